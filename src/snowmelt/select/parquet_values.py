"""Arrow's values as values of a query, one by one and as vectors without copies."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from snowmelt.select.instants import pack_micros
from snowmelt.select.text_kernels import has_byte
from snowmelt.select.timestamps import NANOS, Precision, Timestamp, days_of
from snowmelt.select.vectors import Form, Instants, Kind, Slices, Vector

if TYPE_CHECKING:
    from snowmelt.select.vectors import Mask

_UNITS = {"s": (0, NANOS), "ms": (3, 10**6), "us": (6, 1000), "ns": (9, 1)}
_DAY_NANOS = 86_400 * NANOS
_DAY_MICROS = 86_400_000_000
_FIRST_DAY, _LAST_DAY = days_of(1, 1, 1), days_of(9999, 12, 31)
_EXPONENT = ord("E")
_LARGEST = 2**63


def plain(scalar: pa.Scalar) -> object:
    """Return one Arrow value as the evaluator knows it.

    Dates and timestamps are timestamps of their precision (in UTC), other times, binaries and
    what else SQL has no type for are texts.
    """
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pt.is_timestamp(kind):
        digits, nanos = _UNITS[kind.unit]
        return Timestamp(scalar.value * nanos, 0, Precision.SECOND, digits)
    if pt.is_date(kind):
        days = scalar.value if pt.is_date32(kind) else scalar.value // 86_400_000
        return Timestamp(days * _DAY_NANOS, 0, Precision.DAY)
    return _nested(scalar, kind) if pt.is_nested(kind) else _of_python(scalar.as_py())


def _nested(scalar: pa.Scalar, kind: pa.DataType) -> object:
    if pt.is_struct(kind):
        return {name: plain(scalar[name]) for name in scalar}
    if pt.is_map(kind):
        return {str(key): _of_python(item) for key, item in scalar.as_py()}
    return [plain(item) for item in scalar.values]


def _of_python(value: Any) -> object:
    if value is None or isinstance(value, bool | int | float | str | Decimal):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {str(name): _of_python(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_of_python(item) for item in value]
    return value.isoformat() if isinstance(value, dt.time) else str(value)


def vector_of(array: pa.Array) -> Vector | None:
    """Return an array as a vector, without a copy where Arrow's form is ours; None: no form fits."""
    kind = array.type
    null = _nulls(array)
    none = np.zeros(len(array), np.bool_)
    if pt.is_boolean(kind):
        values = array.fill_null(False).to_numpy(zero_copy_only=False)
        return Vector(Kind.BOOL, values, null, none)
    if pt.is_integer(kind):
        numbers = _numbers(array, kind)
        too_large = numbers >= _LARGEST if kind == pa.uint64() else none
        return Vector(Kind.INT, numbers.astype(np.int64, copy=False), null, too_large)
    if pt.is_float32(kind) or pt.is_float64(kind):
        return Vector(Kind.FLOAT, _numbers(array, kind).astype(np.float64, copy=False), null, none)
    return _written(array, null)


def _written(array: pa.Array, null: Mask) -> Vector | None:
    """Return what has a text of its own as a vector: texts, timestamps, decimals."""
    kind = array.type
    if pt.is_string(kind) or pt.is_large_string(kind):
        return Vector(Kind.TEXT, _texts(array), null, np.zeros(len(array), np.bool_))
    if pt.is_timestamp(kind) or pt.is_date(kind):
        instants, odd = _instants(array)
        return Vector(Kind.INSTANT, instants, null, odd & ~null)
    if pt.is_decimal(kind) and kind.scale > 0:
        # With a point in it, so that the evaluator, too, reads a decimal and not an integer.
        texts = _texts(array.cast(pa.string()))
        odd = has_byte(texts.buffer, texts.start, texts.end, _EXPONENT)
        return Vector(Kind.NUMERAL, texts, null, odd & ~null)
    return None


def _instants(array: pa.Array) -> tuple[Instants, Mask]:
    """Return dates or timestamps, and which of them lie beyond microseconds or calendars."""
    kind = array.type
    form = Form(Precision.DAY, 0)
    if pt.is_timestamp(kind):
        digits, nanos = _UNITS[kind.unit]
        form, per_day = Form(Precision.SECOND, digits), _DAY_NANOS // nanos
    else:
        per_day = 1 if pt.is_date32(kind) else 86_400_000
    numbers = _numbers(array, pa.int32() if pt.is_date32(kind) else pa.int64()).astype(np.int64)
    days, rest = np.divmod(numbers, per_day)
    odd = (days < _FIRST_DAY) | (days > _LAST_DAY)
    if pt.is_date(kind):
        rest = np.zeros_like(rest)
    # Microseconds of the day; what is finer than one is the evaluator's.
    factor, divisor = max(_DAY_MICROS // per_day, 1), max(per_day // _DAY_MICROS, 1)
    odd |= rest % divisor != 0
    micros = np.where(odd, 0, days) * _DAY_MICROS + rest * factor // divisor
    offset = np.zeros(len(array), np.int16)
    return Instants(pack_micros(micros), offset, form), odd


def _nulls(array: pa.Array) -> Mask:
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    mask: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def _numbers(array: pa.Array, kind: pa.DataType) -> np.ndarray[Any, Any]:
    whole = np.frombuffer(array.buffers()[1], kind.to_pandas_dtype())
    return whole[array.offset : array.offset + len(array)]


def _texts(array: pa.Array) -> Slices:
    offset_type = np.int64 if pt.is_large_string(array.type) else np.int32
    _, places, data = array.buffers()
    if not len(array):
        empty = np.zeros(0, np.int32)
        return Slices(empty.astype(np.uint8), empty, empty, empty.astype(np.uint8))
    offsets = np.frombuffer(places, offset_type)[array.offset : array.offset + len(array) + 1]
    first = int(offsets[0])
    # A slice of a large array reads but its own part of the buffer.
    buffer = np.frombuffer(data, np.uint8) if data is not None else np.zeros(1, np.uint8)
    buffer = buffer[first : int(offsets[-1])]
    offsets = offsets - first
    flags = np.zeros(len(array), np.uint8)
    starts, ends = offsets[:-1].astype(np.int32), offsets[1:].astype(np.int32)
    return Slices(buffer, starts, ends, flags)
