"""Functions of columns: parts of timestamps, and texts of ASCII alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from snowmelt.select.dialect import Dialect
from snowmelt.select.kernels.numbers import parse_floats, parse_integers
from snowmelt.select.kernels.strings import has_other_than_ascii, in_lower_case, in_upper_case
from snowmelt.select.kernels.timestamps import extract_part, parse_instants
from snowmelt.select.vector.operands import Constant, Frame, NoKernel, Operand
from snowmelt.select.vectors import Kind, Slices, Vector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from snowmelt.select.sql.ast import Call, Cast

# --- Casts of columns; what a text says that is not plainly a number is the evaluator's.

_LARGEST = 2.0**63


def cast(node: Cast, value: Vector, frame: Frame) -> Vector:
    """Return values as another type.

    Raises:
        NoKernel: For types without a kernel.
    """
    if value.kind is Kind.VALUES and value.null.all():
        return value
    handler = _CASTS.get(node.type)
    if handler is None:
        raise NoKernel
    return handler(value, frame)


def _to_int(value: Vector, _frame: Frame) -> Vector:
    if value.kind is Kind.INT:
        return value
    if value.kind is Kind.BOOL:
        return Vector(Kind.INT, value.array.astype(np.int64), value.null, value.deferred)
    if value.kind is Kind.TEXT:
        numbers, status = parse_integers(value.slices)
        return Vector(Kind.INT, numbers, value.null, value.deferred | ((status != 0) & ~value.null))
    if value.kind is Kind.FLOAT:
        inside = (value.array >= -_LARGEST) & (value.array < _LARGEST)
        with np.errstate(all="ignore"):
            whole = np.where(inside, value.array, 0).astype(np.int64)
        return Vector(Kind.INT, whole, value.null, value.deferred | ~(inside | value.null))
    raise NoKernel


def _to_float(value: Vector, _frame: Frame) -> Vector:
    if value.kind is Kind.FLOAT:
        return value
    if value.kind in (Kind.INT, Kind.BOOL):
        return Vector(Kind.FLOAT, value.array.astype(np.float64), value.null, value.deferred)
    if value.kind in (Kind.TEXT, Kind.NUMERAL):
        numbers, status = parse_floats(value.slices)
        deferred = value.deferred | ((status != 0) & ~value.null)
        return Vector(Kind.FLOAT, numbers, value.null, deferred)
    raise NoKernel


def _to_string(value: Vector, _frame: Frame) -> Vector:
    if value.kind not in (Kind.TEXT, Kind.NUMERAL):
        raise NoKernel
    return Vector(Kind.TEXT, value.data, value.null, value.deferred)


def _to_timestamp(value: Vector, frame: Frame) -> Vector:
    if value.kind is Kind.INSTANT:
        return value
    if value.kind is not Kind.TEXT:
        raise NoKernel
    return as_instants(value, frame)


def as_instants(value: Vector, frame: Frame) -> Vector:
    """Return ISO texts as timestamps, where no other form could be read first.

    Raises:
        NoKernel: In `ceph-2020`, which has other forms.
    """
    if frame.dialect is Dialect.CEPH_2020:
        raise NoKernel
    instants, odd = parse_instants(value.slices)
    return Vector(Kind.INSTANT, instants, value.null, value.deferred | (odd & ~value.null))


_CASTS: dict[str, Callable[[Vector, Frame], Vector]] = {
    "INT": _to_int,
    "FLOAT": _to_float,
    "STRING": _to_string,
    "TIMESTAMP": _to_timestamp,
}


_PARTS = frozenset({"year", "month", "day", "hour", "minute", "second"})


def call(node: Call, arguments: Sequence[Operand], frame: Frame) -> Operand:
    """Return a function's values.

    Raises:
        NoKernel: For functions and arguments without a kernel.
    """
    handler = _CALLS.get(node.function)
    if handler is None:
        raise NoKernel
    return handler(arguments, frame)


def _extract(arguments: Sequence[Operand], frame: Frame) -> Operand:
    part, moment = arguments
    if not isinstance(part, Constant) or part.value not in _PARTS or isinstance(moment, Constant):
        raise NoKernel
    if moment.kind is Kind.TEXT and frame.dialect is Dialect.AWS:
        moment = as_instants(moment, frame)
    if moment.kind is not Kind.INSTANT:
        raise NoKernel
    data = extract_part(str(part.value), moment.instants)
    return Vector(Kind.INT, data, moment.null, moment.deferred)


def _text(operand: Operand) -> Vector:
    if isinstance(operand, Constant) or operand.kind is not Kind.TEXT:
        raise NoKernel
    return operand


def _whole(operand: Operand) -> int:
    if not isinstance(operand, Constant) or type(operand.value) is not int:
        raise NoKernel
    if abs(operand.value) >= 2**31:
        raise NoKernel
    return operand.value


def _ascii_only(text: Vector) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the rows to defer: those the vector defers, and texts beyond ASCII."""
    odd = has_other_than_ascii(text.slices.buffer, text.slices.start, text.slices.end)
    return text.deferred | (odd & ~text.null)


def _char_length(arguments: Sequence[Operand], _frame: Frame) -> Operand:
    text = _text(arguments[0])
    size = (text.slices.end - text.slices.start).astype(np.int64)
    return Vector(Kind.INT, size, text.null, _ascii_only(text))


def _substring(arguments: Sequence[Operand], frame: Frame) -> Operand:
    text = _text(arguments[0])
    start = _whole(arguments[1])
    length = _whole(arguments[2]) if len(arguments) > 2 else None
    if length is not None and length < 0:
        raise NoKernel
    if frame.dialect is Dialect.AWS:
        start = max(start, 1)
    slices = text.slices
    size = (slices.end - slices.start).astype(np.int64)
    end = size if length is None else np.clip(size, 0, max(start + length - 1, 0))
    begin = np.minimum(max(start, 1) - 1, end)
    cut = Slices(
        slices.buffer,
        (slices.start + begin).astype(np.int32),
        (slices.start + end).astype(np.int32),
        np.zeros(len(slices), np.uint8),
    )
    return Vector(Kind.TEXT, cut, text.null, _ascii_only(text))


def _substr(arguments: Sequence[Operand], frame: Frame) -> Operand:
    """As `substring`; in `ceph-2020` a part that is not all inside the text is deferred."""
    found = _substring(arguments, frame)
    if frame.dialect is not Dialect.CEPH_2020 or not isinstance(found, Vector):
        return found
    text = _text(arguments[0])
    start = _whole(arguments[1])
    size = text.slices.end - text.slices.start
    odd = np.full(len(text), start <= 0)
    if len(arguments) > 2:
        odd |= start - 1 + _whole(arguments[2]) > size
    odd |= start > size
    return Vector(Kind.TEXT, found.data, found.null, found.deferred | (odd & ~found.null))


def _lower(arguments: Sequence[Operand], _frame: Frame) -> Operand:
    text = _text(arguments[0])
    return Vector(Kind.TEXT, in_lower_case(text.slices), text.null, _ascii_only(text))


def _upper(arguments: Sequence[Operand], _frame: Frame) -> Operand:
    text = _text(arguments[0])
    return Vector(Kind.TEXT, in_upper_case(text.slices), text.null, _ascii_only(text))


_CALLS: dict[str, Callable[[Sequence[Operand], Frame], Operand]] = {
    "extract": _extract,
    "char_length": _char_length,
    "character_length": _char_length,
    "substring": _substring,
    "substr": _substr,
    "lower": _lower,
    "upper": _upper,
}
