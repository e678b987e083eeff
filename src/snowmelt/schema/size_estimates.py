"""Estimated bytes of values in a client's buffer (specification of v1, §5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from snowmelt.schema.chunk_types import make_null_mask
from snowmelt.schema.types import TIMESTAMP_TYPES, Column, LogicalType
from snowmelt.schema.value_errors import StoredValue

if TYPE_CHECKING:
    from numpy.typing import NDArray


_LEVEL_BYTES = 0.25
_LENGTH_BYTES = 4
_BOOLEAN_BYTES = 0.125


def estimate_fixed_value_bytes(column: Column) -> float | None:
    """Return the estimated size of a value in a buffer (§5.4); None where its length decides."""
    if column.kind is LogicalType.BOOLEAN:
        return _BOOLEAN_BYTES
    if column.kind is LogicalType.FIXED:
        precision = 38 if column.scale else column.precision or 38
        return 4 if precision <= 9 else 8 if precision <= 18 else 16
    if column.kind in TIMESTAMP_TYPES | {LogicalType.TIME, LogicalType.DATE}:
        return {"SB4": 4, "SB8": 8, "SB16": 16}[column.physical_type]
    return 8 if column.kind is LogicalType.REAL else None


def estimate_value_bytes(value: StoredValue, width_bytes: float | None) -> float:
    """Return the same for a value of a column whose `estimate_fixed_value_bytes` are known."""
    if value is None:
        return _LEVEL_BYTES
    if width_bytes is not None:
        return _LEVEL_BYTES + width_bytes
    if isinstance(value, str) and not value.isascii():
        value = value.encode()
    return _LEVEL_BYTES + _LENGTH_BYTES + (len(value) if isinstance(value, (str, bytes)) else 0)


def estimate_array_bytes(array: pa.Array | pa.ChunkedArray, width_bytes: float | None) -> float:
    """Return the estimated size of a column's values; `width_bytes` is the column's `estimate_fixed_value_bytes`."""
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
    """Return the same for so many values, nulls among them; texts have so many bytes in all."""
    values = count - null_count
    own = values * _LENGTH_BYTES + content_bytes if width_bytes is None else values * width_bytes
    return count * _LEVEL_BYTES + own


def estimate_bytes_per_value(
    array: pa.Array | pa.ChunkedArray, width_bytes: float | None
) -> NDArray[np.float64]:
    """Return the estimated size of each of a column's values."""
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
