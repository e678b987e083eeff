"""Lower and upper bounds of native columns, encoded as Iceberg stores them.

Bounds are made from raw integers and bytes, never from Python dates or strings, which cannot hold
every value (dates before the year 1, text that is not UTF-8). String and binary bounds are
truncated after 16 code points or bytes. An upper bound is rounded up, or omitted if it cannot be.
An omitted bound means unknown.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Context
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

StoredBound: TypeAlias = int | float | bytes

_MAX_BOUND_LENGTH = 16
_EXACT_CONTEXT = Context(prec=80)
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_STRUCT_FORMATS = {1: "<b", 32: "<i", 64: "<q"}


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """Lowest and highest value (None: unknown or no value) and counts of one native column."""

    lower: bytes | None
    upper: bytes | None
    nulls: int
    nans: int | None = None


def compute_column_bounds(array: pa.ChunkedArray) -> ColumnBounds:
    """Return the bounds of a column in native form; it never raises for a value."""
    nulls, kind = array.null_count, array.type
    if pa.types.is_floating(kind):
        return _float_bounds(array)
    if nulls == len(array):
        return ColumnBounds(None, None, nulls)
    if pa.types.is_string(kind):
        return ColumnBounds(*_string_bounds(*_min_max(array.cast(pa.binary()))), nulls)
    if pa.types.is_binary(kind):
        lower, upper = _min_max(array)
        return ColumnBounds(lower[:_MAX_BOUND_LENGTH], _truncate_upper_bytes_bound(upper), nulls)
    if pa.types.is_decimal(kind):
        low, high = (int(value.scaleb(kind.scale, _EXACT_CONTEXT)) for value in _min_max(array))
        return ColumnBounds(_encode_decimal_bound(low), _encode_decimal_bound(high), nulls)
    integers = pa.int64() if kind.bit_width == 64 else pa.int32()
    low, high = _min_max(array.cast(integers))
    code = _STRUCT_FORMATS[kind.bit_width]
    return ColumnBounds(struct.pack(code, low), struct.pack(code, high), nulls)


def merge_bounds(
    first: ColumnBounds, first_rows: int, second: ColumnBounds, second_rows: int, kind: pa.DataType
) -> ColumnBounds:
    """Return the bounds of two parts of one column together, the parts having so many rows."""
    nulls = first.nulls + second.nulls
    nans = None if first.nans is None else first.nans + (second.nans or 0)
    # None is "no value" in a part without any, and "not known" in another.
    if first.nulls + (first.nans or 0) == first_rows:
        return ColumnBounds(second.lower, second.upper, nulls, nans)
    if second.nulls + (second.nans or 0) == second_rows:
        return ColumnBounds(first.lower, first.upper, nulls, nans)
    lower = _select_bound(first.lower, second.lower, kind, lowest=True)
    upper = _select_bound(first.upper, second.upper, kind, lowest=False)
    return ColumnBounds(lower, upper, nulls, nans)


def _select_bound(
    first: bytes | None, second: bytes | None, kind: pa.DataType, *, lowest: bool
) -> bytes | None:
    if first is None or second is None:
        return None
    either = sorted((first, second), key=lambda bound: decode_bound(bound, kind))
    return either[0] if lowest else either[1]


def decode_bound(bound: bytes, kind: pa.DataType) -> StoredBound:
    """Return a bound's stored value: unscaled integer, days, microseconds, float or bytes."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return bound
    if pa.types.is_decimal(kind):
        return int.from_bytes(bound, "big", signed=True)
    if pa.types.is_floating(kind):
        value: float = struct.unpack("<d", bound)[0]
        return value
    return int.from_bytes(bound, "little", signed=True)


def _min_max(array: pa.ChunkedArray) -> tuple[Any, Any]:
    found = pc.min_max(array)
    return found["min"].as_py(), found["max"].as_py()


def _float_bounds(array: pa.ChunkedArray) -> ColumnBounds:
    values = array.drop_null().to_numpy()
    numbers = values[~np.isnan(values)]
    nans = len(values) - len(numbers)
    if not len(numbers):
        return ColumnBounds(None, None, array.null_count, nans)
    low, high = float(numbers.min()), float(numbers.max())
    # The two zeros are equal to numpy but not to every reader: keep both inside.
    low, high = (-0.0 if low == 0.0 else low), (0.0 if high == 0.0 else high)
    return ColumnBounds(struct.pack("<d", low), struct.pack("<d", high), array.null_count, nans)


def _string_bounds(lower: bytes, upper: bytes) -> tuple[bytes | None, bytes | None]:
    try:
        low, high = lower.decode(), upper.decode()
    except UnicodeDecodeError:
        # Other readers decode bounds as text and would fail on these.
        return None, None
    return low[:_MAX_BOUND_LENGTH].encode(), _truncate_upper_string_bound(high)


def _truncate_upper_string_bound(text: str) -> bytes | None:
    """Return the shortest text of at most 16 code points that is not below `text`."""
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


def _encode_decimal_bound(unscaled: int) -> bytes:
    # One more bit than the magnitude, for the sign; -128 fits one byte.
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length() + 1
    return unscaled.to_bytes(-(-bits // 8), "big", signed=True)
