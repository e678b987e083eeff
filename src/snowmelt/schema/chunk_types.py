"""Arrow form of chunks, estimated sizes of values, and 128-bit decimals.

Decimals are processed as two arrays of 64-bit words, to avoid a Python object per value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from snowmelt.schema.types import (
    SEMI_STRUCTURED_TYPES,
    TIMESTAMP_TYPES,
    Column,
    LogicalType,
    StoredValue,
    TableSchema,
)

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Float64s = NDArray[np.float64]
Mask = NDArray[np.bool_]

FIELD_ID = b"PARQUET:field_id"

_PLAIN_TYPES: dict[LogicalType, pa.DataType] = {
    LogicalType.REAL: pa.float64(),
    LogicalType.BOOLEAN: pa.bool_(),
    LogicalType.TEXT: pa.string(),
    LogicalType.BINARY: pa.binary(),
    LogicalType.DATE: pa.date32(),
    **dict.fromkeys(SEMI_STRUCTURED_TYPES, pa.string()),
}


def chunk_arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column in chunk form."""
    if column.kind is LogicalType.FIXED:
        return pa.decimal128(column.precision or 38, column.scale or 0)
    if column.kind is LogicalType.TIME:
        return pa.decimal128(9 if column.physical_type == "SB4" else 18, column.scale or 0)
    if column.kind in TIMESTAMP_TYPES:
        return pa.decimal128(18 if column.physical_type == "SB8" else 38, column.scale or 0)
    return _PLAIN_TYPES[column.kind]


def make_field(name: str, arrow_type: pa.DataType, *, nullable: bool, field_id: int) -> pa.Field:
    """Return an Arrow field with its Parquet field ID."""
    return pa.field(name, arrow_type, nullable=nullable, metadata={FIELD_ID: str(field_id)})


@lru_cache(maxsize=256)
def chunk_arrow_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of a table's chunks, with ordinals as field IDs."""
    return pa.schema(
        [
            make_field(
                column.name,
                chunk_arrow_type(column),
                nullable=column.nullable,
                field_id=column.ordinal,
            )
            for column in schema.columns
        ]
    )


def decimal_from_int64(
    values: Int64s, nulls: Mask | None, precision: int, scale: int
) -> pa.Decimal128Array:
    """Return decimals with these unscaled values. `nulls` is True for null values.

    The caller ensures that the values fit `precision`.
    """
    return decimal_from_words(values.view(np.uint64), values >> 63, nulls, precision, scale)


def decimal_from_words(
    low: UInt64s, high: Int64s, nulls: Mask | None, precision: int, scale: int
) -> pa.Decimal128Array:
    """Return decimals whose unscaled values are `high * 2**64 + low`."""
    words = np.empty((len(low), 2), dtype=np.uint64)
    words[:, 0] = low
    words[:, 1] = high.view(np.uint64)
    validity = None if nulls is None or not nulls.any() else pack_bitmap(~nulls)
    return pa.Array.from_buffers(
        pa.decimal128(precision, scale), len(low), [validity, pa.py_buffer(words)]
    )


def decimal_from_unscaled(
    values: Sequence[int | None], precision: int, scale: int
) -> pa.Decimal128Array:
    """Return decimals with unscaled values from Python integers of up to 128 bits. None is null."""
    words = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
    nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
    validity = pack_bitmap(~nulls) if nulls.any() else None
    return pa.Array.from_buffers(
        pa.decimal128(precision, scale), len(values), [validity, pa.py_buffer(words)]
    )


def decimal_to_words(array: pa.Array | pa.ChunkedArray) -> tuple[UInt64s, Int64s]:
    """Return the low and high words of the unscaled values, 0 for nulls."""
    flat = to_contiguous_array(array)
    words = np.frombuffer(flat.buffers()[1], dtype=np.uint64).reshape(-1, 2)
    words = words[flat.offset : flat.offset + len(flat)]
    # Always copy: for a single row, NumPy would return the read-only buffer itself.
    low = words[:, 0].copy()
    high = words[:, 1].copy().view(np.int64)
    if flat.null_count:
        nulls = make_null_mask(flat)
        low[nulls] = 0
        high[nulls] = 0
    return low, high


def decimal_to_int64(array: pa.Array | pa.ChunkedArray) -> Int64s:
    """Return the unscaled values of decimals, 0 for nulls.

    Raises:
        OverflowError: If a value needs more than 64 bits.
    """
    low, high = decimal_to_words(array)
    values = low.view(np.int64)
    if not np.array_equal(high, values >> 63):
        raise OverflowError("a decimal needs more than 64 bits")
    return values


def make_null_mask(array: pa.Array | pa.ChunkedArray) -> Mask:
    """Return an array of booleans that are True for nulls."""
    return to_contiguous_array(pc.is_null(array)).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def to_contiguous_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the values as one contiguous array."""
    if not isinstance(array, pa.ChunkedArray):
        return array
    if array.num_chunks == 1:
        return array.chunk(0)
    combined: Any = array.combine_chunks()
    # The result is one array: only text of more than 2 GiB stays chunked, and callers pass no text.
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def pack_bitmap(valid: Mask) -> pa.Buffer:
    """Return the validity bitmap of an Arrow array."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


# Estimated bytes of values in a client's buffer (Streaming v1, §5.4).

_LEVEL_BYTES = 0.25
_LENGTH_BYTES = 4
_BOOLEAN_BYTES = 0.125


def estimate_fixed_value_bytes(column: Column) -> float | None:
    """Return the estimated size of a value in a buffer (§5.4), or None if the size varies."""
    if column.kind is LogicalType.BOOLEAN:
        return _BOOLEAN_BYTES
    if column.kind is LogicalType.FIXED:
        precision = 38 if column.scale else column.precision or 38
        return 4 if precision <= 9 else 8 if precision <= 18 else 16
    if column.kind in TIMESTAMP_TYPES | {LogicalType.TIME, LogicalType.DATE}:
        return {"SB4": 4, "SB8": 8, "SB16": 16}[column.physical_type]
    return 8 if column.kind is LogicalType.REAL else None


def estimate_value_bytes(value: StoredValue, width_bytes: float | None) -> float:
    """Return the estimated size of a value. `width_bytes` is `estimate_fixed_value_bytes`."""
    if value is None:
        return _LEVEL_BYTES
    if width_bytes is not None:
        return _LEVEL_BYTES + width_bytes
    if isinstance(value, str) and not value.isascii():
        value = value.encode()
    return _LEVEL_BYTES + _LENGTH_BYTES + (len(value) if isinstance(value, (str, bytes)) else 0)


def estimate_array_bytes(array: pa.Array | pa.ChunkedArray, width_bytes: float | None) -> float:
    """Return the estimated size of a column's values.

    `width_bytes` is the column's `estimate_fixed_value_bytes`.
    """
    values = len(array) - int(array.null_count)
    size = len(array) * _LEVEL_BYTES
    if width_bytes is not None:
        return size + values * width_bytes
    pieces = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    ends = ((offsets[0], offsets[-1]) for offsets in map(_value_offsets, pieces))
    return size + values * _LENGTH_BYTES + sum(int(end - start) for start, end in ends)


def estimate_packed_bytes(
    count: int, null_count: int, content_bytes: int, width_bytes: float | None
) -> float:
    """Return the estimated size of `count` values, of which `null_count` are null."""
    values = count - null_count
    own = values * _LENGTH_BYTES + content_bytes if width_bytes is None else values * width_bytes
    return count * _LEVEL_BYTES + own


def estimate_bytes_per_value(
    array: pa.Array | pa.ChunkedArray, width_bytes: float | None
) -> NDArray[np.float64]:
    """Return the estimated size of each value of a column."""
    if isinstance(array, pa.ChunkedArray):
        return np.concatenate(
            [estimate_bytes_per_value(piece, width_bytes) for piece in array.chunks]
        )
    lengths = np.diff(_value_offsets(array)) + _LENGTH_BYTES if width_bytes is None else width_bytes
    return np.where(make_null_mask(array), 0.0, lengths) + _LEVEL_BYTES


def _value_offsets(array: pa.Array) -> NDArray[np.int32]:
    buffer = array.buffers()[1]
    if buffer is None or not len(buffer):
        return np.zeros(len(array) + 1, dtype=np.int32)
    return np.frombuffer(buffer, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
