"""Native form of a table, which Iceberg files and the engine use.

Timestamps and times are floored to microseconds. Companion columns, directly after the column,
store the parts that do not fit (nanoseconds, the offset of a TIMESTAMP_TZ).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from snowmelt.errors import InvalidValue
from snowmelt.schema.chunk_types import (
    FIELD_ID,
    Int64s,
    Mask,
    UInt64s,
    chunk_arrow_type,
    decimal_to_words,
    make_field,
    make_null_mask,
)
from snowmelt.schema.types import TIMESTAMP_TYPES, Column, LogicalType, TableSchema

NANOSECONDS_SUFFIX = "$ns"
OFFSET_SUFFIX = "$tz"
NANOSECONDS_FIELD_ID_BASE = 1_000_000
OFFSET_FIELD_ID_BASE = 2_000_000

_DAY_US = 86_400_000_000
# A day of tolerance: years 1–9999 are checked in the value's own offset, which is less than a day.
_SLACK_US = _DAY_US
_FIRST_US = -62_135_596_800_000_000 - _SLACK_US
_LAST_US = 253_402_300_799_999_999 + _SLACK_US
_TZ_BITS = 14
_TZ_BIAS = 1440


def native_fields(column: Column) -> tuple[pa.Field, ...]:
    """Return the native fields of a column: its own field, then its companions."""
    parts = [("", _native_arrow_type(column), 0)]
    if needs_nanosecond_companion(column):
        parts.append((NANOSECONDS_SUFFIX, pa.int32(), NANOSECONDS_FIELD_ID_BASE))
    if column.kind is LogicalType.TIMESTAMP_TZ:
        parts.append((OFFSET_SUFFIX, pa.int32(), OFFSET_FIELD_ID_BASE))
    return tuple(
        make_field(
            column.name + suffix, kind, nullable=column.nullable, field_id=base + column.ordinal
        )
        for suffix, kind, base in parts
    )


def keeps_values(older: TableSchema, newer: TableSchema) -> bool:
    """Return True if rows written with `older` columns have the same native values in `newer`.

    Ignores added columns, which are NULL.
    """
    fields = {field.metadata[FIELD_ID]: field.type for field in native_schema(newer)}
    return all(
        _has_same_values(field.type, fields.get(field.metadata[FIELD_ID]))
        for field in native_schema(older)
    )


def _has_same_values(older: pa.DataType, newer: pa.DataType | None) -> bool:
    if newer is None or not pa.types.is_decimal(older) or not pa.types.is_decimal(newer):
        return bool(older == newer)
    return bool(older.scale == newer.scale)


def find_companion_conflict(columns: Sequence[Column]) -> str | None:
    """Return the name of a column that a query could confuse with a companion, or None.

    Spark ignores the case of names.
    """
    companions = {part.name.lower() for column in columns for part in native_fields(column)[1:]}
    return next((column.name for column in columns if column.name.lower() in companions), None)


# Cached, because a read of a table calls it for each chunk.
@lru_cache(maxsize=256)
def native_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of a table in native form, with field IDs."""
    return pa.schema([part for column in schema.columns for part in native_fields(column)])


def needs_nanosecond_companion(column: Column) -> bool:
    """Return True if the column has values finer than microseconds."""
    timed = column.kind is LogicalType.TIME or column.kind in TIMESTAMP_TYPES
    return timed and (column.scale or 0) > 6


def to_native_table(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Convert a table in chunk form, with exactly the columns of `schema`, to native form.

    Raises:
        InvalidValue: If a stored time or timestamp is out of range.
    """
    arrays: list[pa.Array | pa.ChunkedArray] = []
    for column in schema.columns:
        array = table.column(column.name)
        if column.kind is LogicalType.TIME or column.kind in TIMESTAMP_TYPES:
            arrays.extend(_split_companions(array, column))
        else:
            arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=native_schema(schema))


def _native_arrow_type(column: Column) -> pa.DataType:
    match column.kind:
        case LogicalType.TIME:
            return pa.time64("us")
        case LogicalType.TIMESTAMP_NTZ:
            return pa.timestamp("us")
        case LogicalType.TIMESTAMP_LTZ | LogicalType.TIMESTAMP_TZ:
            return pa.timestamp("us", "UTC")
        case _:
            return chunk_arrow_type(column)


def _split_companions(array: pa.ChunkedArray, column: Column) -> list[pa.Array]:
    low, high = decimal_to_words(array)
    nulls = make_null_mask(array) if array.null_count else None
    offsets: Int64s | None = None
    if column.kind is LogicalType.TIMESTAMP_TZ:
        offsets = (low & np.uint64((1 << _TZ_BITS) - 1)).astype(np.int64) - _TZ_BIAS
        if nulls is not None:
            offsets[nulls] = 0
        if len(offsets) and np.abs(offsets).max() > _TZ_BIAS:
            raise _invalid_value_error(column, "an offset is beyond 24 hours")
        low = (low >> np.uint64(_TZ_BITS)) | (high.view(np.uint64) << np.uint64(64 - _TZ_BITS))
        high = high >> _TZ_BITS
    micros, nanos = _to_microseconds(low, high, column)
    parts = [_make_typed_array(micros, nulls, _native_arrow_type(column))]
    if nanos is not None:
        parts.append(_make_typed_array(nanos.astype(np.int32), nulls, pa.int32()))
    if offsets is not None:
        parts.append(_make_typed_array(offsets.astype(np.int32), nulls, pa.int32()))
    return parts


def _to_microseconds(low: UInt64s, high: Int64s, column: Column) -> tuple[Int64s, Int64s | None]:
    """Floor to microseconds. If the scale is above 6, also return the remaining nanoseconds."""
    scale = column.scale or 0
    first, last = (0, _DAY_US - 1) if column.kind is LogicalType.TIME else (_FIRST_US, _LAST_US)
    if scale > 6:
        divisor = 10 ** (scale - 6)
        micros, rest, fits = _floor_divide_int128(low, high, divisor)
        nanos: Int64s | None = rest * 10 ** (9 - scale)
        factor = 1
    else:
        micros, nanos = low.view(np.int64), None
        fits = high == micros >> 63
        factor = 10 ** (6 - scale)
    # Divide the limits instead of multiplying the values, which could overflow.
    inside = fits & (micros >= -(-first // factor)) & (micros <= last // factor)
    if not inside.all():
        raise _invalid_value_error(
            column, "a value is outside the years 1 to 9999 or the hours of a day"
        )
    return micros * factor, nanos


def _floor_divide_int128(low: UInt64s, high: Int64s, divisor: int) -> tuple[Int64s, Int64s, Mask]:
    """Divide 128-bit values by a small divisor. Also return a mask of 64-bit quotients."""
    top, rest = np.divmod(high, divisor)
    middle = (rest << 32) + (low >> np.uint64(32)).astype(np.int64)
    quotient_high, rest = np.divmod(middle, divisor)
    bottom = (rest << 32) + (low & np.uint64(0xFFFFFFFF)).astype(np.int64)
    quotient_low, rest = np.divmod(bottom, divisor)
    quotient = (quotient_high << 32) + quotient_low
    return quotient, rest, top == quotient >> 63


def _make_typed_array(values: Int64s, nulls: Mask | None, arrow_type: pa.DataType) -> pa.Array:
    storage = pa.array(values, mask=nulls)
    return storage.view(arrow_type)


def _invalid_value_error(column: Column, reason: str) -> InvalidValue:
    return InvalidValue(reason=f"column {column.display_name} of type {column.sql_type}: {reason}")
