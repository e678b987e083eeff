"""Allowed changes of a table's columns, and the check that rows for older columns still fit.

A column is identified by its ordinal: names and types may change, ordinals are never reused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from snowmelt.schema.types import Column, LogicalType, TableSchema

_TYPE_FAMILIES = {
    LogicalType.FIXED: "NUMBER",
    LogicalType.TEXT: "VARCHAR",
    LogicalType.REAL: "FLOAT",
}


@dataclass(frozen=True, slots=True)
class SchemaConflict:
    """Why rows written for older columns are not taken any more.

    `is_missing` tells that they lack a column, by its value or by its name.
    """

    reason: str
    is_missing: bool


def next_ordinal(versions: Iterable[TableSchema]) -> int:
    """Return the ordinal of a new column: above every one that any version has used."""
    used = (column.ordinal for version in versions for column in version.columns)
    return max(used, default=0) + 1


def widen_column_type(column: Column, wanted: Column) -> Column | str:
    """Return a column with the type of `wanted`, or why its rows would not fit that type.

    Types may only grow, in a way that leaves every stored value as it is: the digits of a NUMBER
    before its point, the length of a VARCHAR or a BINARY.
    """
    reason = _find_type_mismatch(column, wanted)
    if reason is not None:
        return reason
    return replace(
        column,
        precision=wanted.precision,
        scale=wanted.scale,
        length=wanted.length,
        byte_length=wanted.byte_length,
    )


def find_schema_conflict(older: TableSchema, current: TableSchema) -> SchemaConflict | None:
    """Return why rows written for `older` columns are not taken now, None when they are.

    They are taken when each value still has its column, under the name that the writer knows, and
    each column they lack may be NULL.
    """
    known = {column.ordinal: column for column in older.columns}
    there = {column.ordinal: column for column in current.columns}
    for ordinal, column in there.items():
        before = known.get(ordinal)
        if before is None:
            if not column.nullable:
                return SchemaConflict(
                    f"it has the column {column.display_name}, which is NOT NULL", True
                )
        elif before.name != column.name:
            return SchemaConflict(
                f"its column {before.display_name} is called {column.display_name}", True
            )
        elif (before.nullable and not column.nullable) or isinstance(
            widen_column_type(before, column), str
        ):
            return SchemaConflict(
                f"its column {column.display_name} is {column.sql_type}"
                f"{'' if column.nullable else ' NOT NULL'}",
                False,
            )
    for ordinal, column in known.items():
        if ordinal not in there:
            return SchemaConflict(f"it has no column {column.display_name} any more", False)
    return None


def _find_type_mismatch(column: Column, wanted: Column) -> str | None:
    if column.kind is not wanted.kind:
        return f"it is {column.sql_type} and stays {_TYPE_FAMILIES.get(column.kind, column.kind)}"
    sizes = (
        ("the precision", column.precision, wanted.precision),
        ("the length", column.length, wanted.length),
        ("the length", column.byte_length, wanted.byte_length),
    )
    if column.scale != wanted.scale:
        return f"its scale stays {column.scale}"
    for what, least, found in sizes:
        if (found or 0) < (least or 0):
            return f"{what} is at least {least}"
    return None
