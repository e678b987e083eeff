"""How many bytes values take in a buffer, by estimate (specification of v1, §5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from snowmelt.schema.chunk_types import nulls_of
from snowmelt.schema.types import TIMESTAMPS, Column, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.schema.value_errors import Stored

_LEVEL_BYTES = 0.25
_LENGTH_BYTES = 4
_BOOLEAN_BYTES = 0.125


def value_bytes(column: Column) -> float | None:
    """Return the estimated size of a value in a buffer (§5.4); None where its length decides."""
    if column.kind is Kind.BOOLEAN:
        return _BOOLEAN_BYTES
    if column.kind is Kind.FIXED:
        precision = 38 if column.scale else column.precision or 38
        return 4 if precision <= 9 else 8 if precision <= 18 else 16
    if column.kind is Kind.TIME or column.kind in TIMESTAMPS or column.kind is Kind.DATE:
        return {"SB4": 4, "SB8": 8, "SB16": 16}[column.physical_type]
    return 8 if column.kind is Kind.REAL else None


def stored_bytes(value: Stored, column: Column) -> float:
    """Return the estimated size of a stored value in a buffer (§5.4)."""
    return stored_size(value, value_bytes(column))


def stored_size(value: Stored, width: float | None) -> float:
    """Return the same for a value of a column whose `value_bytes` are known."""
    if value is None:
        return _LEVEL_BYTES
    if width is not None:
        return _LEVEL_BYTES + width
    if isinstance(value, str) and not value.isascii():
        value = value.encode()
    return _LEVEL_BYTES + _LENGTH_BYTES + (len(value) if isinstance(value, (str, bytes)) else 0)


def array_bytes(array: pa.Array | pa.ChunkedArray, width: float | None) -> float:
    """Return the estimated size of a column's values; `width` is the column's `value_bytes`."""
    values = len(array) - int(array.null_count)
    size = len(array) * _LEVEL_BYTES
    if width is not None:
        return size + values * width
    pieces = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    return size + values * _LENGTH_BYTES + sum(map(_content_bytes, pieces))


def plain_bytes(count: int, content_bytes: int, width: float | None) -> float:
    """Return the same for so many values, none of them null; texts have so many bytes in all."""
    own = count * _LENGTH_BYTES + content_bytes if width is None else count * width
    return count * _LEVEL_BYTES + own


def _content_bytes(array: pa.Array) -> int:
    offsets = _offsets(array)
    return int(offsets[-1] - offsets[0])


def row_bytes(array: pa.Array | pa.ChunkedArray, width: float | None) -> NDArray[np.float64]:
    """Return the estimated size of each of a column's values."""
    if isinstance(array, pa.ChunkedArray):
        return np.concatenate([row_bytes(piece, width) for piece in array.chunks])
    lengths = np.diff(_offsets(array)) + _LENGTH_BYTES if width is None else width
    return np.where(nulls_of(array), 0.0, lengths) + _LEVEL_BYTES


def _offsets(array: pa.Array) -> NDArray[np.int32]:
    buffer = array.buffers()[1]
    if buffer is None or not len(buffer):
        return np.zeros(len(array) + 1, dtype=np.int32)
    return np.frombuffer(buffer, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
