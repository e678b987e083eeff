"""The Arrow form of a chunk, which its Parquet file holds, and 128-bit decimals in NumPy.

Decimals are handled as two arrays of 64-bit words, so that no value becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.schema.types import (
    SEMI_STRUCTURED_TYPES,
    TIMESTAMP_TYPES,
    Column,
    LogicalType,
    TableSchema,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    """Return an Arrow field that carries its Parquet field id."""
    return pa.field(name, arrow_type, nullable=nullable, metadata={FIELD_ID: str(field_id)})


@lru_cache(maxsize=256)
def chunk_arrow_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of a table's chunks, with ordinals as field ids."""
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
    """Return decimals of these unscaled values; `nulls` is true where the result is null.

    The caller has checked that the values fit `precision`.
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
    """Return decimals of unscaled Python integers of any size up to 128 bits; None is null."""
    words = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
    nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
    validity = pack_bitmap(~nulls) if nulls.any() else None
    return pa.Array.from_buffers(
        pa.decimal128(precision, scale), len(values), [validity, pa.py_buffer(words)]
    )


def decimal_to_words(array: pa.Array | pa.ChunkedArray) -> tuple[UInt64s, Int64s]:
    """Return low and high words of the unscaled values; they are 0 where the value is null."""
    flat = to_contiguous_array(array)
    words = np.frombuffer(flat.buffers()[1], dtype=np.uint64).reshape(-1, 2)
    words = words[flat.offset : flat.offset + len(flat)]
    # Copies always: of a single row NumPy would hand back the buffer itself, read-only.
    low = words[:, 0].copy()
    high = words[:, 1].copy().view(np.int64)
    if flat.null_count:
        nulls = make_null_mask(flat)
        low[nulls] = 0
        high[nulls] = 0
    return low, high


def decimal_to_int64(array: pa.Array | pa.ChunkedArray) -> Int64s:
    """Return the unscaled values of decimals; 0 where the value is null.

    Raises:
        OverflowError: if a value needs more than 64 bits.
    """
    low, high = decimal_to_words(array)
    values = low.view(np.int64)
    if not np.array_equal(high, values >> 63):
        raise OverflowError("a decimal needs more than 64 bits")
    return values


def make_null_mask(array: pa.Array | pa.ChunkedArray) -> Mask:
    """Return an array of booleans that are true where the value is null."""
    return to_contiguous_array(pc.is_null(array)).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def to_contiguous_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the values as one contiguous array."""
    if not isinstance(array, pa.ChunkedArray):
        return array
    if array.num_chunks == 1:
        return array.chunk(0)
    combined: Any = array.combine_chunks()
    # Text of more than 2 GiB stays in pieces; only fixed-width callers come here.
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def pack_bitmap(valid: Mask) -> pa.Buffer:
    """Return the validity of an array as Arrow holds it."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
