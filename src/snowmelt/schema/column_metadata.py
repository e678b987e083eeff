"""Conversion of columns to and from the `table_columns` of streaming v1 (specification §2.2, §4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from snowmelt.errors import Unsupported
from snowmelt.schema.types import (
    MAX_TEXT_BYTES,
    SEMI_STRUCTURED_TYPES,
    TIMESTAMP_TYPES,
    Column,
    LogicalType,
    to_internal_name,
)


class ColumnFields(TypedDict):
    """One entry of `table_columns`."""

    name: str
    type: str
    logical_type: str
    physical_type: str
    ordinal: int
    nullable: bool
    precision: int | None
    scale: int | None
    byte_length: int | None
    length: int | None
    collation: str | None


def column_to_fields(column: Column) -> ColumnFields:
    """Return what an open channel's answer says about a column."""
    timed = column.kind is LogicalType.TIME or column.kind in TIMESTAMP_TYPES
    byte_length = MAX_TEXT_BYTES if column.kind in SEMI_STRUCTURED_TYPES else column.byte_length
    if column.kind is LogicalType.TEXT and byte_length is None:
        byte_length = min(4 * (column.length or 0), MAX_TEXT_BYTES)
    return ColumnFields(
        name=column.display_name,
        type=column.sql_type,
        logical_type=str(column.kind),
        physical_type=column.physical_type,
        ordinal=column.ordinal,
        nullable=column.nullable,
        precision=0 if timed else column.precision,
        scale=column.scale,
        byte_length=byte_length,
        length=column.byte_length if column.kind is LogicalType.BINARY else column.length,
        collation=None,
    )


def column_from_fields(fields: Mapping[str, object]) -> Column:
    """Return the column that an open channel's answer describes.

    Raises:
        Unsupported: if the column has a type, physical type or collation we cannot write.
    """
    name = str(fields["name"])
    logical = str(fields["logical_type"]).upper()
    if fields.get("collation") is not None:
        raise Unsupported(what=f"column {name} with a collation", instead="drop the collation")
    if logical not in LogicalType.__members__:
        raise Unsupported(what=f"column {name} of type {logical}", instead="leave it out")
    kind = LogicalType(logical)
    timed = kind is LogicalType.TIME or kind in TIMESTAMP_TYPES
    sized = kind in {LogicalType.TEXT, LogicalType.BINARY}
    column = Column(
        name=to_internal_name(name),
        kind=kind,
        ordinal=_require_int(fields, "ordinal", name),
        nullable=bool(fields.get("nullable", True)),
        precision=_require_int(fields, "precision", name) if kind is LogicalType.FIXED else None,
        scale=_require_int(fields, "scale", name) if timed or kind is LogicalType.FIXED else None,
        length=_require_int(fields, "length", name) if kind is LogicalType.TEXT else None,
        byte_length=_require_int(fields, "byte_length", name) if sized else None,
    )
    physical = str(fields["physical_type"]).upper()
    if column.physical_type != "LOB" and physical != column.physical_type:
        raise Unsupported(
            what=f"column {name} of type {column.sql_type} stored as {physical}",
            instead=f"store it as {column.physical_type}",
        )
    return column


def _require_int(fields: Mapping[str, object], key: str, name: str) -> int:
    value = fields.get(key)
    if not isinstance(value, int):
        raise Unsupported(what=f"column {name} without {key}", instead="send it")
    return value
