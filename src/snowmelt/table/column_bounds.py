"""Statistics of native columns as open tables hold them: lowest and highest value as bytes.

They are made from raw integers and bytes, never by way of Python's dates or text, which cannot
hold every value (dates before the year 1, text that is not UTF-8). Text and binary bounds are
cut after 16 code points or bytes; an upper bound is rounded up, or left out when it cannot be.
A bound that is left out says nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Context
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Stored: TypeAlias = int | float | bytes

_TRUNCATED = 16
_EXACT = Context(prec=80)
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_WIDTHS = {1: "<b", 32: "<i", 64: "<q"}


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """Lowest and highest value (None: unknown or no value) and counts of one native column."""

    lower: bytes | None
    upper: bytes | None
    nulls: int
    nans: int | None = None


def column_bounds(array: pa.ChunkedArray) -> ColumnBounds:
    """Return the bounds of a column in native form; it never raises for a value."""
    nulls, kind = array.null_count, array.type
    if pa.types.is_floating(kind):
        return _of_reals(array)
    if nulls == len(array):
        return ColumnBounds(None, None, nulls)
    if pa.types.is_string(kind):
        return ColumnBounds(*_text_bounds(*_extremes(array.cast(pa.binary()))), nulls)
    if pa.types.is_binary(kind):
        lower, upper = _extremes(array)
        return ColumnBounds(lower[:_TRUNCATED], _rounded_up(upper), nulls)
    if pa.types.is_decimal(kind):
        low, high = (int(value.scaleb(kind.scale, _EXACT)) for value in _extremes(array))
        return ColumnBounds(_shortest(low), _shortest(high), nulls)
    integers = pa.int64() if kind.bit_width == 64 else pa.int32()
    low, high = _extremes(array.cast(integers))
    code = _WIDTHS[kind.bit_width]
    return ColumnBounds(struct.pack(code, low), struct.pack(code, high), nulls)


def merged_bounds(
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
    lower = _chosen(first.lower, second.lower, kind, least=True)
    upper = _chosen(first.upper, second.upper, kind, least=False)
    return ColumnBounds(lower, upper, nulls, nans)


def _chosen(
    first: bytes | None, second: bytes | None, kind: pa.DataType, *, least: bool
) -> bytes | None:
    if first is None or second is None:
        return None
    either = sorted((first, second), key=lambda bound: decode_bound(bound, kind))
    return either[0] if least else either[1]


def decode_bound(bound: bytes, kind: pa.DataType) -> Stored:
    """Return a bound's stored value: unscaled integer, days, microseconds, float or bytes."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return bound
    if pa.types.is_decimal(kind):
        return int.from_bytes(bound, "big", signed=True)
    if pa.types.is_floating(kind):
        value: float = struct.unpack("<d", bound)[0]
        return value
    return int.from_bytes(bound, "little", signed=True)


def _extremes(array: pa.ChunkedArray) -> tuple[Any, Any]:
    found = pc.min_max(array)
    return found["min"].as_py(), found["max"].as_py()


def _of_reals(array: pa.ChunkedArray) -> ColumnBounds:
    values = array.drop_null().to_numpy()
    numbers = values[~np.isnan(values)]
    nans = len(values) - len(numbers)
    if not len(numbers):
        return ColumnBounds(None, None, array.null_count, nans)
    low, high = float(numbers.min()), float(numbers.max())
    # The two zeros are equal to numpy but not to every reader: keep both inside.
    low, high = (-0.0 if low == 0.0 else low), (0.0 if high == 0.0 else high)
    return ColumnBounds(struct.pack("<d", low), struct.pack("<d", high), array.null_count, nans)


def _text_bounds(lower: bytes, upper: bytes) -> tuple[bytes | None, bytes | None]:
    try:
        low, high = lower.decode(), upper.decode()
    except UnicodeDecodeError:
        # Other readers decode bounds as text and would fail on these.
        return None, None
    return low[:_TRUNCATED].encode(), _rounded_up_text(high)


def _rounded_up_text(text: str) -> bytes | None:
    """Return the shortest text of at most 16 code points that is not below `text`."""
    if len(text) <= _TRUNCATED:
        return text.encode()
    for end in range(_TRUNCATED, 0, -1):
        following = ord(text[end - 1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST_CODE_POINT:
            return (text[: end - 1] + chr(following)).encode()
    return None


def _rounded_up(value: bytes) -> bytes | None:
    if len(value) <= _TRUNCATED:
        return value
    kept = value[:_TRUNCATED].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _shortest(unscaled: int) -> bytes:
    # One more bit than the magnitude, for the sign; -128 fits one byte.
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length() + 1
    return unscaled.to_bytes(-(-bits // 8), "big", signed=True)
