"""Convert Arrow columns to native form, with the same rules as for rows of a channel.

Companion columns (nanoseconds, zone offsets) may be supplied with their column. Otherwise they are
computed from it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from datetime import tzinfo
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InvalidRow, LoadFailed
from snowmelt.schema.conversion.arrow_input import convert_arrow_array
from snowmelt.schema.conversion.arrow_to_python import to_python_values
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.conversion.default_values import make_default_native_arrays
from snowmelt.schema.conversion.timestamps import out_of_range_mask
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.iceberg_table_form import native_fields, native_schema, to_native_table
from snowmelt.schema.types import Column, LogicalType, TableSchema

_MAX_OFFSET_MINUTES = 24 * 60
_MAX_SHOWN_CHARACTERS = 60


def convert_to_native(
    schema: TableSchema,
    sources: Sequence[int | None],
    batch: pa.RecordBatch,
    zone: tzinfo,
    now: dt.datetime,
) -> pa.Table:
    """Convert a record batch to native form.

    Args:
        schema: Columns of the table.
        sources: Index of the batch column for each native field. None: the field has the default of its
            column, or is computed from its column.
        batch: The rows.
        zone: Time zone of values without a time zone.
        now: Value of the default CURRENT_TIMESTAMP.

    Raises:
        LoadFailed: If a value does not fit its column.
    """
    arrays: list[pa.Array] = []
    places = iter(sources)
    for column in schema.columns:
        fields = native_fields(column)
        own, *others = [next(places) for _ in fields]
        parts = (
            _make_missing_column(column, batch.num_rows, now)
            if own is None
            else cast_column(column, batch.column(own), zone)
        )
        for at, place in enumerate(others, start=1):
            if place is not None:
                supply_companion(column, fields[at].name, parts, at, batch.column(place))
        arrays += parts
    return pa.Table.from_arrays(arrays, schema=native_schema(schema))


def cast_column(column: Column, array: pa.Array, zone: tzinfo) -> list[pa.Array]:
    """Convert a column to native form, with its companion columns.

    Args:
        column: The target column.
        array: The values.
        zone: The session's zone, for TIMESTAMP_LTZ and TIMESTAMP_TZ values without a zone.

    Raises:
        LoadFailed: If a value does not fit, or is NULL in a NOT NULL column.
    """
    if array.null_count and not column.nullable:
        raise _make_column_error(column, "it is NOT NULL, and a value is NULL")
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.tz and column.kind is LogicalType.TIMESTAMP_TZ:
        # Spark timestamps have no zone offset.
        array = array.cast(pa.timestamp(kind.unit, "UTC"))
    try:
        converted, wrong = convert_arrow_array(ColumnConverter(column, zone), array)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise _make_column_error(column, str(error)) from error
    if wrong:
        [value] = to_python_values(array.slice(wrong[0], 1))
        raise _make_column_error(column, _find_rejection_reason(column, value, zone))
    try:
        native = to_native_table(
            pa.table([converted], names=[column.name]), TableSchema(1, (column,))
        )
    except InvalidRow as error:
        raise _make_column_error(column, str(error)) from error
    return [part.combine_chunks() for part in native.columns]


def supply_companion(
    column: Column, name: str, parts: list[pa.Array], at: int, given: pa.Array
) -> None:
    """Replace `parts[at]`, the companion `name` that was computed from its column, by given values.

    Raises:
        LoadFailed: If a value is out of range.
    """
    # Writers that do not support companions leave them NULL.
    whole = pc.coalesce(cast_companion(column, name, given), parts[at])
    parts[at] = pc.if_else(pc.is_null(parts[0]), pa.scalar(None, pa.int32()), whole)
    check_local_time_range(column, parts)


def cast_companion(column: Column, name: str, array: pa.Array) -> pa.Array:
    """Verify and convert a companion column of nanoseconds or offsets that the DataFrame supplies.

    Raises:
        LoadFailed: If a value is out of range.
    """
    least, most = (0, 999) if name.endswith("$ns") else (-_MAX_OFFSET_MINUTES, _MAX_OFFSET_MINUTES)
    numbers = array.cast(pa.int32())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and not least <= bounds["min"] <= bounds["max"] <= most:
        raise _make_column_error(column, f"{name} must be between {least} and {most}")
    return numbers


def check_local_time_range(column: Column, arrays: Sequence[pa.Array]) -> None:
    """Verify that a column and its supplied offsets give local times that are in range.

    Raises:
        LoadFailed: If a local time is outside the years 1 to 9999.
    """
    outside = out_of_range_mask(column, arrays)
    if outside is not None:
        place = int(outside.argmax())
        raise _make_column_error(
            column,
            f"the local time of {arrays[0][place]} at an offset of {arrays[-1][place]} minutes is "
            "outside the years 1 to 9999",
        )


def _find_rejection_reason(column: Column, value: Any, zone: tzinfo) -> str:
    try:
        make_value_rule(column, zone)(value, 0)
    except InvalidRow as error:
        return str(error.fields.get("reason", error)).rstrip(".")
    return f"the value {str(value)[:_MAX_SHOWN_CHARACTERS]} is invalid"


def _make_column_error(column: Column, reason: str) -> LoadFailed:
    return LoadFailed(where=f"Column {column.display_name} ({column.sql_type})", reason=reason)


def _make_missing_column(column: Column, rows: int, now: dt.datetime) -> list[pa.Array]:
    """Create a column of default values, with its companions."""
    if column.default is not None:
        return make_default_native_arrays(column, rows, now)
    return [pa.nulls(rows, part.type) for part in native_fields(column)]


def format_column_names(columns: Sequence[Column]) -> str:
    """Return the display names of columns, separated by commas."""
    return ", ".join(column.display_name for column in columns)
