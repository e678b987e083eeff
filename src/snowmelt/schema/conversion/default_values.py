"""Default values of columns: from their text in the schema to stored and native values.

`Column.default` is text that converts to the value by the strict rules, or CURRENT_TIMESTAMP.
Writers of all kinds use this module, so a row that lacks a column gets the same value from every
writer.
"""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.errors import InternalError, InvalidRow
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.iceberg_table_form import to_native_table
from snowmelt.schema.types import (
    SEMI_STRUCTURED_TYPES,
    TIMESTAMP_TYPES,
    Column,
    LogicalType,
    StoredValue,
    TableSchema,
)

CURRENT_TIMESTAMP = "CURRENT_TIMESTAMP"
_UTC = ZoneInfo("UTC")


def has_defaults(schema: TableSchema) -> bool:
    """Return True if a column has a default value."""
    return any(column.default is not None for column in schema.columns)


def is_current_timestamp(column: Column) -> bool:
    """Return True if the default is the time of the insert, not a constant."""
    return column.kind in TIMESTAMP_TYPES and column.default == CURRENT_TIMESTAMP


def make_default_value(column: Column, now: dt.datetime | None = None) -> StoredValue:
    """Return the stored default value of a column, null without one.

    Args:
        column: The column.
        now: The value of CURRENT_TIMESTAMP. None: not needed.

    Raises:
        InvalidRow: If the default does not fit the column.
        InternalError: If the default is CURRENT_TIMESTAMP and `now` is None.
    """
    value: object = column.default
    if is_current_timestamp(column):
        if now is None:
            raise InternalError(f"no time is known for the default of {column.display_name}")
        instant = now.astimezone(dt.UTC)
        # A TIMESTAMP_NTZ gets the time in UTC.
        is_local = column.kind is LogicalType.TIMESTAMP_NTZ
        value = instant.replace(tzinfo=None) if is_local else instant
    return make_value_rule(column, _UTC)(value, 0)


def find_default_error(column: Column) -> str | None:
    """Return why the default of a column is invalid, None if it is valid."""
    if column.kind in SEMI_STRUCTURED_TYPES:
        return f"a column of type {column.sql_type} has no default but NULL"
    values = []
    for zone in (_UTC, ZoneInfo("America/Los_Angeles")):
        try:
            values.append(make_value_rule(column, zone)(column.default, 0))
        except InvalidRow as error:
            return str(error.fields.get("reason", error)).rstrip(".")
    if values[0] != values[1]:
        return f"{column.default!r} has no offset. Write one, such as '2026-01-31 08:00:00 +00:00'"
    return None


def make_default_chunk_array(column: Column, rows: int, now: dt.datetime | None = None) -> pa.Array:
    """Return a column of the default value in chunk form."""
    value = make_default_value(column, now)
    made: pa.Array = ColumnConverter(column, _UTC).stored_to_array([value] * rows)
    return made


def make_default_native_arrays(
    column: Column, rows: int, now: dt.datetime | None = None
) -> list[pa.Array]:
    """Return a column of the default value in native form, with its companions."""
    chunk = pa.table([make_default_chunk_array(column, 1, now)], names=[column.name])
    native = to_native_table(chunk, TableSchema(1, (column,)))
    return [pa.repeat(part.combine_chunks()[0], rows) for part in native.columns]
