"""Lower and upper bounds of native columns, encoded as Iceberg stores them.

Bounds are computed from the raw integers and bytes of Parquet's statistics, because Python cannot
represent all of them (dates before year 1, text that is not UTF-8). String and binary bounds are
truncated to 16 code points or bytes. A truncated upper bound is rounded up, or omitted if that is
impossible. An omitted bound means unknown.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

StoredBound: TypeAlias = int | float | bytes

_MAX_BOUND_LENGTH = 16
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_STRUCT_FORMATS = {1: "<b", 32: "<i", 64: "<q"}


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """Bounds and counts of one native column. A bound is None if it is unknown or there are no values."""

    lower: bytes | None
    upper: bytes | None
    nulls: int
    nans: int | None = None


def read_column_bounds(
    metadata: pq.FileMetaData, position: int, kind: pa.DataType, nans: int | None
) -> ColumnBounds:
    """Read the bounds of a native column from the statistics of its Parquet file.

    `nans` is the number of NaN values, or None if the type has no NaN. Never raises an error.
    """
    groups = range(metadata.num_row_groups)
    chunks = [metadata.row_group(each).column(position).statistics for each in groups]
    # A chunk without rows has no statistics.
    chunks = [chunk for chunk in chunks if chunk is not None]
    nulls = sum(chunk.null_count for chunk in chunks)
    known = [chunk for chunk in chunks if chunk.has_min_max]
    # A column with values has no bounds if all values are NaN, or for strings of more than 4 KiB.
    unknown = any(each.num_values and not each.has_min_max for each in chunks)
    if not known or (unknown and nans is None):
        return ColumnBounds(None, None, nulls, nans)
    lows, highs = [each.min_raw for each in known], [each.max_raw for each in known]
    if pa.types.is_string(kind):
        return ColumnBounds(*_string_bounds(min(lows), max(highs)), nulls)
    if pa.types.is_binary(kind):
        upper = _truncate_upper_bytes_bound(max(highs))
        return ColumnBounds(min(lows)[:_MAX_BOUND_LENGTH], upper, nulls)
    if pa.types.is_decimal(kind):
        return ColumnBounds(
            _encode_decimal_bound(min(map(_decode_unscaled, lows))),
            _encode_decimal_bound(max(map(_decode_unscaled, highs))),
            nulls,
        )
    code = "<d" if nans is not None else _STRUCT_FORMATS[kind.bit_width]
    return ColumnBounds(struct.pack(code, min(lows)), struct.pack(code, max(highs)), nulls, nans)


def count_nans(array: pa.ChunkedArray) -> int | None:
    """Return the number of NaN values, or None if the type has no NaN."""
    return pc.sum(pc.is_nan(array)).as_py() or 0 if pa.types.is_floating(array.type) else None


def decode_bound(bound: bytes, kind: pa.DataType) -> StoredBound:
    """Decode a bound to its stored value: unscaled integer, days, microseconds, float or bytes."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return bound
    if pa.types.is_decimal(kind):
        return int.from_bytes(bound, "big", signed=True)
    if pa.types.is_floating(kind):
        value: float = struct.unpack("<d", bound)[0]
        return value
    return int.from_bytes(bound, "little", signed=True)


def _string_bounds(lower: bytes, upper: bytes) -> tuple[bytes | None, bytes | None]:
    try:
        low, high = lower.decode(), upper.decode()
    except UnicodeDecodeError:
        # Omit bounds that are not UTF-8: other readers decode them as text and would fail.
        return None, None
    return low[:_MAX_BOUND_LENGTH].encode(), _truncate_upper_string_bound(high)


def _truncate_upper_string_bound(text: str) -> bytes | None:
    """Return a text of at most 16 code points that is not less than `text`, or None."""
    if len(text) <= _MAX_BOUND_LENGTH:
        return text.encode()
    for end in range(_MAX_BOUND_LENGTH, 0, -1):
        following = ord(text[end - 1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST_CODE_POINT:
            return (text[: end - 1] + chr(following)).encode()
    return None


def _truncate_upper_bytes_bound(value: bytes) -> bytes | None:
    if len(value) <= _MAX_BOUND_LENGTH:
        return value
    kept = value[:_MAX_BOUND_LENGTH].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _decode_unscaled(raw: int | bytes) -> int:
    """Return a decimal's unscaled value. Parquet stores values of more than 64 bits as bytes."""
    return raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)


def _encode_decimal_bound(unscaled: int) -> bytes:
    # The sign needs one bit in addition to the magnitude. -128 fits in one byte.
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length() + 1
    return unscaled.to_bytes(-(-bits // 8), "big", signed=True)
