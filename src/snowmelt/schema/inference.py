"""Inference of columns that rows have and their table lacks, and allowed changes of a table."""

from __future__ import annotations

import datetime as dt
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from snowmelt.schema.conversion.arrow_to_python import EXTENSIONS_UNLIKE_STORAGE, has_nulls
from snowmelt.schema.conversion.timestamps import has_time_of_day, to_plain_value
from snowmelt.schema.types import Column, LogicalType, TableSchema, to_internal_name

RowsOrTable: TypeAlias = "list[Mapping[str, object]] | pa.Table"

# Fixed scale of an inferred NUMBER: the scale is permanent, so it must not depend on a few values.
_MIN_SCALE, _MAX_SCALE = 9, 30
_TEXT_TYPE = "VARCHAR"
# Characters that names cannot have: NUL, and surrogates, which UTF-8 cannot represent.
_INVALID_NAME_PATTERN = re.compile("[\0\ud800-\udfff]")
_SQL_TYPES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "BOOLEAN"),
    ((int, np.integer), "NUMBER(38,0)"),
    ((float, np.floating), "FLOAT"),
    (str, _TEXT_TYPE),
    ((bytes, bytearray, memoryview), "BINARY"),
    (dt.date, "DATE"),
    (dt.time, "TIME(9)"),
    ((Mapping, list, tuple, set, frozenset, deque, np.ndarray), "VARIANT"),
)


def infer_new_columns(data: RowsOrTable, schema: TableSchema) -> dict[str, str]:
    """Return internal names and SQL types of columns that the table lacks.

    Keys that cannot name a column, such as an empty string, are ignored. For values of several
    types, the type accepts all of them: FLOAT, VARCHAR, a timestamp, or else VARIANT, which accepts
    texts only if they are JSON. If all values are NULL, the type is VARCHAR.
    """
    known = {column.name for column in schema.columns}
    if isinstance(data, pa.Table):
        fields = ((to_internal_name(field.name), field.type) for field in data.schema)
        return {
            name: _sql_type_of_arrow(kind)
            for name, kind in fields
            if name not in known and _is_column_name(name)
        }
    found: dict[str, set[str]] = {}
    items = (item for row in data if isinstance(row, Mapping) for item in row.items())
    for key, value in items:
        if not isinstance(key, str):
            continue
        name = to_internal_name(key)
        if name not in known and _is_column_name(name):
            found.setdefault(name, set()).update(_infer_value_types(value))
    return {name: _merge_types(kinds) for name, kinds in found.items()}


def find_unfilled_columns(data: RowsOrTable, schema: TableSchema) -> list[str]:
    """Return the internal names of NOT NULL columns that are NULL or missing in some rows."""
    required = {column.name for column in schema.columns if not column.nullable}
    if isinstance(data, pa.Table):
        filled = {
            to_internal_name(name)
            for name, values in zip(data.column_names, data.columns, strict=True)
            if not any(map(has_nulls, values.chunks))
        }
        return sorted(required - filled)
    free: set[str] = set()
    rows: Iterable[object] = data
    for row in rows:
        if isinstance(row, Mapping):
            filled = {
                to_internal_name(key)
                for key, value in row.items()
                if isinstance(key, str) and to_plain_value(value) is not None
            }
            free |= required - filled
    return sorted(free)


def _is_column_name(name: str) -> bool:
    return name != "" and _INVALID_NAME_PATTERN.search(name) is None


def _infer_value_types(value: object) -> Iterator[str]:
    """Yield the type of a value, or nothing for NULL."""
    plain = to_plain_value(value)
    if isinstance(value, np.datetime64) and plain is not None:
        yield "TIMESTAMP_NTZ(9)" if has_time_of_day(value) else "DATE"
    elif isinstance(plain, Decimal):
        exponent = plain.as_tuple().exponent
        scale = -exponent if isinstance(exponent, int) else 0
        yield f"NUMBER(38,{min(max(scale, _MIN_SCALE), _MAX_SCALE)})"
    elif isinstance(plain, dt.datetime):
        yield "TIMESTAMP_NTZ(9)" if plain.tzinfo is None else "TIMESTAMP_TZ(9)"
    elif is_dataclass(plain):
        yield "VARIANT"
    elif plain is not None:
        yield next((text for kind, text in _SQL_TYPES if isinstance(plain, kind)), _TEXT_TYPE)


def _merge_types(sql_types: set[str]) -> str:
    """Return a type that accepts values of all these types, if there is one."""
    others = sql_types - {_TEXT_TYPE}
    numbers = {each for each in others if each == "FLOAT" or each.startswith("NUMBER")}
    if others <= numbers | {"BOOLEAN"} and sql_types != others:
        return _TEXT_TYPE
    if len(others) == 1:
        # The texts may be parsed as values of the other type. A VARIANT would accept fewer of them.
        return others.pop()
    if others and others == numbers:
        return (
            "FLOAT"
            if "FLOAT" in others
            else max(others, key=lambda each: int(each[:-1].rpartition(",")[2]))
        )
    if others == {"DATE", "TIMESTAMP_NTZ(9)"}:
        return "TIMESTAMP_NTZ(9)"
    return "VARIANT" if others else _TEXT_TYPE


def _sql_type_of_arrow(kind: pa.DataType) -> str:
    is_a = pa.types
    if (
        isinstance(kind, pa.BaseExtensionType)
        and kind.extension_name not in EXTENSIONS_UNLIKE_STORAGE
    ):
        return _sql_type_of_arrow(kind.storage_type)
    if is_a.is_dictionary(kind) or is_a.is_run_end_encoded(kind):
        return _sql_type_of_arrow(kind.value_type)
    if is_a.is_decimal(kind):
        return f"NUMBER(38,{min(max(kind.scale, 0), 37)})"
    if is_a.is_timestamp(kind):
        return "TIMESTAMP_NTZ(9)" if kind.tz is None else "TIMESTAMP_TZ(9)"
    for matches, text in (
        (is_a.is_boolean, "BOOLEAN"),
        (is_a.is_integer, "NUMBER(38,0)"),
        (is_a.is_floating, "FLOAT"),
        (is_a.is_date, "DATE"),
        (is_a.is_time, "TIME(9)"),
        (is_a.is_nested, "VARIANT"),
    ):
        if matches(kind):
            return text
    binary = (is_a.is_binary, is_a.is_large_binary, is_a.is_binary_view, is_a.is_fixed_size_binary)
    return "BINARY" if any(matches(kind) for matches in binary) else _TEXT_TYPE


# --- Allowed changes of a table's columns, and the check that rows for older columns fit.

_TYPE_FAMILIES = {
    LogicalType.FIXED: "NUMBER",
    LogicalType.TEXT: "VARCHAR",
    LogicalType.REAL: "FLOAT",
}


@dataclass(frozen=True, slots=True)
class SchemaConflict:
    """Reason to reject rows for older columns.

    `is_missing` is True if the rows lack a column, because it was added or renamed.
    """

    reason: str
    is_missing: bool


def next_ordinal(versions: Iterable[TableSchema]) -> int:
    """Return the ordinal of a new column: higher than any ordinal of any version."""
    used = (column.ordinal for version in versions for column in version.columns)
    return max(used, default=0) + 1


def widen_column_type(column: Column, wanted: Column) -> Column | str:
    """Return a column with the type of `wanted`, or the reason why the change is not allowed.

    A type may only grow in ways that do not change stored values: more integer digits of a NUMBER,
    or a longer VARCHAR or BINARY.
    """
    if column.kind is not wanted.kind:
        return f"it is {column.sql_type} and stays {_TYPE_FAMILIES.get(column.kind, column.kind)}"
    if column.scale != wanted.scale:
        return f"its scale stays {column.scale}"
    for what, least, found in (
        ("the precision", column.precision, wanted.precision),
        ("the length", column.length, wanted.length),
        ("the length", column.byte_length, wanted.byte_length),
    ):
        if (found or 0) < (least or 0):
            return f"{what} is at least {least}"
    return replace(
        column,
        precision=wanted.precision,
        scale=wanted.scale,
        length=wanted.length,
        byte_length=wanted.byte_length,
    )


def find_schema_conflict(older: TableSchema, current: TableSchema) -> SchemaConflict | None:
    """Return the reason to reject rows for `older` columns, or None if they are accepted.

    Rows are accepted if each value's column exists with its original name and default, and if all
    columns that the rows lack are nullable.
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
        elif before.default != column.default:
            return SchemaConflict(f"the default of its column {column.display_name} changed", False)
    for ordinal, column in known.items():
        if ordinal not in there:
            return SchemaConflict(f"column {column.display_name} was dropped", False)
    return None


def find_versions_with_defaults_of(schemas: Mapping[int, TableSchema], version: int) -> list[int]:
    """Return the versions with the defaults of `version`. A missing version has no defaults."""
    wanted = _collect_defaults(schemas[version]) if version in schemas else {}
    return [number for number, each in schemas.items() if _collect_defaults(each) == wanted]


def _collect_defaults(schema: TableSchema) -> dict[int, str]:
    return {
        column.ordinal: column.default for column in schema.columns if column.default is not None
    }
