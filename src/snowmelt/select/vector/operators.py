"""Arithmetic of columns: 64-bit integers and floats; decimals are the evaluator's."""

from __future__ import annotations

import operator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.kernels.numbers import parse_floats, parse_integers
from snowmelt.select.kernels.strings import compare_text, is_like
from snowmelt.select.kernels.timestamps import parse_instants, utc_micros
from snowmelt.select.scalar.patterns import like_pattern
from snowmelt.select.timestamps import Timestamp, parse_iso
from snowmelt.select.values import infer_number
from snowmelt.select.vector.operands import (
    Constant,
    Frame,
    NoKernel,
    Operand,
    plain_values,
    unknown,
)
from snowmelt.select.vectors import Kind, Vector

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from snowmelt.select.scalar.patterns import Likeness
    from snowmelt.select.vectors import Mask

_SMALLEST = -(2**63)


def arithmetic(sign: str, left: Operand, right: Operand, frame: Frame) -> Vector:
    """Return `left sign right`; what overflows, and divisors of zero, are deferred.

    Raises:
        NoKernel: For operands or signs without a kernel.
    """
    if sign not in {"+", "-", "*", "/", "%"}:
        raise NoKernel
    null, before = unknown(left, right, len(frame))
    deferred = before.copy()
    first = _operand(left, frame, deferred)
    second = _operand(right, frame, deferred)
    kinds = {_is_float(first), _is_float(second)}
    if Decimal in {type(first), type(second)}:
        if True not in kinds:
            raise NoKernel
        first = float(first) if isinstance(first, Decimal) else first
        second = float(second) if isinstance(second, Decimal) else second
    if sign == "%" and frame.dialect.is_ceph and True in kinds:
        raise NoKernel
    with np.errstate(all="ignore"):
        if True in kinds:
            data = _floats(sign, first, second, deferred)
            # What an operand defers may be an error, which NULL beside it does not hide.
            return Vector(Kind.FLOAT, data, null, before | (deferred & ~null))
        whole = _integers(sign, first, second, deferred)
    return Vector(Kind.INT, whole, null, deferred)


def negated(operand: Operand) -> Vector:
    """Return `-operand`.

    Raises:
        NoKernel: For texts and constants.
    """
    if isinstance(operand, Constant) or operand.kind not in (Kind.INT, Kind.FLOAT):
        raise NoKernel
    deferred = operand.deferred
    if operand.kind is Kind.INT:
        deferred = deferred | (operand.array == _SMALLEST)
    with np.errstate(all="ignore"):
        return Vector(operand.kind, -operand.array, operand.null, deferred)


def _is_float(operand: object) -> bool:
    return isinstance(operand, float) or getattr(operand, "dtype", None) == np.float64


def _operand(
    operand: Operand, frame: Frame, deferred: Mask
) -> NDArray[np.int64] | NDArray[np.float64] | int | float | Decimal:
    if isinstance(operand, Constant):
        value = operand.value
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise NoKernel
        if isinstance(value, int) and not _SMALLEST <= value < -_SMALLEST:
            raise NoKernel
        return value
    if operand.kind is Kind.TEXT and frame.dialect is Dialect.AWS:
        values, status = parse_integers(operand.slices)
        deferred |= (status != 0) & ~operand.null
        return values
    if operand.kind in (Kind.INT, Kind.FLOAT):
        return operand.array
    raise NoKernel


def _floats(sign: str, first: object, second: object, deferred: Mask) -> NDArray[np.float64]:
    left = np.asarray(first, np.float64)
    right = np.asarray(second, np.float64)
    data: NDArray[np.float64]
    if sign == "+":
        data = left + right
    elif sign == "-":
        data = left - right
    elif sign == "*":
        data = left * right
    else:
        deferred |= right == 0
        if sign == "%":
            deferred |= ~np.isfinite(left) | ~np.isfinite(right)
            data = np.fmod(left, right)
        else:
            data = left / right
    return np.broadcast_to(data, deferred.shape)


def _integers(sign: str, first: object, second: object, deferred: Mask) -> NDArray[np.int64]:
    left = np.broadcast_to(np.asarray(first, np.int64), deferred.shape)
    right = np.broadcast_to(np.asarray(second, np.int64), deferred.shape)
    if sign == "+":
        data = left + right
        deferred |= ((left ^ data) & (right ^ data)) < 0
    elif sign == "-":
        data = left - right
        deferred |= ((left ^ right) & (left ^ data)) < 0
    elif sign == "*":
        data = left * right
        deferred |= np.abs(left.astype(np.float64) * right.astype(np.float64)) > 2.0**62
    else:
        odd = (right == 0) | ((left == _SMALLEST) & (right == -1))
        deferred |= odd
        divisor = np.where(odd, 1, right)
        rest = np.fmod(left, divisor)
        data = rest if sign == "%" else (left - rest) // divisor
    return data


# --- Comparisons of columns: numbers, texts, timestamps, and in `aws` texts read as either.

# Numbers as one array or one number, with where they are NULL or deferred beyond the operand's.
Numbers: TypeAlias = "NDArray[np.int64] | NDArray[np.float64] | int | float"

NOT_A_NUMBER, TO_BE_EVALUATED = 1, 2
# Below this each integer is a float, and so are 15 digits with a point anywhere.
EXACT_INTEGERS = 2**53
EXACT_DIGITS = 15

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compare(sign: str, left: Operand, right: Operand, frame: Frame) -> Vector:
    """Return truth values of `left sign right`.

    Raises:
        NoKernel: For pairs that no kernel compares.
    """
    if isinstance(left, Constant):
        left, right, sign = right, left, _MIRRORED[sign]
    if isinstance(left, Constant):
        raise NoKernel
    count = len(frame)
    null, deferred = unknown(left, right, count)
    if null.all():
        return Vector(Kind.BOOL, np.zeros(count, np.bool_), null, deferred)
    pair = {_sort(left), _sort(right)}
    if pair == {"text"}:
        data = _texts(sign, left, right)
    elif pair == {"number"} or (pair == {"number", "text"} and frame.dialect is Dialect.AWS):
        data = _numbers(sign, left, right, null, deferred)
    elif pair == {"instant"} or (pair == {"instant", "text"} and frame.dialect is Dialect.AWS):
        data = _instants(sign, left, right, null, deferred)
    elif pair == {"bool"} and sign in {"=", "<>"}:
        other = right.value if isinstance(right, Constant) else right.array
        data = _OPERATORS[sign](left.array, other)
    else:
        raise NoKernel
    return Vector(Kind.BOOL, data, null, deferred)


def like(subject: Vector, pattern: object, escape: object, dialect: Dialect) -> Vector:
    """Return truth values of `subject LIKE pattern ESCAPE escape`.

    Raises:
        NoKernel: For operands that are no texts, and patterns that are wrong.
    """
    if subject.kind is not Kind.TEXT or not isinstance(pattern, str):
        raise NoKernel
    if escape is not None and not isinstance(escape, str):
        raise NoKernel
    try:
        likeness = like_pattern(pattern, escape, dialect)
    except SelectError:
        raise NoKernel from None
    pieces = likeness.plain
    if pieces is None:
        data, odd = _are_like(subject, likeness), np.zeros(len(subject), np.bool_)
    else:
        data, odd = is_like(subject.slices, pieces)
    return Vector(Kind.BOOL, data, subject.null, subject.deferred | (odd & ~subject.null))


def _are_like(subject: Vector, likeness: Likeness) -> Mask:
    """Ask a pattern with classes, which no kernel knows, of one text after the other."""
    known = ~(subject.null | subject.deferred)
    found: Mask = np.zeros(len(subject), np.bool_)
    texts = zip(plain_values(subject), known.tolist(), strict=True)
    found[:] = [there and likeness.matches(str(text)) for text, there in texts]
    return found


def _sort(operand: Operand) -> str:
    if isinstance(operand, Vector):
        sorts = {Kind.INT: "number", Kind.FLOAT: "number", Kind.NUMERAL: "number"}
        return sorts.get(operand.kind, operand.kind.value)
    value = operand.value
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float | Decimal):
        return "number"
    return {str: "text", Timestamp: "instant"}.get(type(value), "other")


def _texts(sign: str, left: Vector, right: Operand) -> Mask:
    if isinstance(right, Constant):
        order = compare_text(left.slices, str(right.value).encode("utf-8", "surrogateescape"))
    else:
        order = compare_text(left.slices, right.slices)
    found: Mask = _OPERATORS[sign](order, 0)
    return found


def _numbers(sign: str, left: Operand, right: Operand, null: Mask, deferred: Mask) -> Mask:
    first, second = as_numbers(left, null, deferred), as_numbers(right, null, deferred)
    _defer_inexact(left, first, second, deferred)
    _defer_inexact(right, second, first, deferred)
    found = _OPERATORS[sign](first, second)
    return np.broadcast_to(found, null.shape) if np.ndim(found) == 0 else found


def as_numbers(operand: Operand, null: Mask, deferred: Mask) -> Numbers:
    """Return an operand of a comparison as numbers; texts that are none become NULL in `null`.

    Raises:
        NoKernel: A constant that floats and 64-bit integers do not hold exactly.
    """
    if isinstance(operand, Constant):
        value = operand.value
        number = infer_number(value) if isinstance(value, str) else value
        if number is None:
            null |= True
            return 0
        return exact_number(number)
    if operand.kind in (Kind.TEXT, Kind.NUMERAL):
        values, status = parse_floats(operand.slices)
        known = ~(operand.null | operand.deferred)
        null |= known & (status == NOT_A_NUMBER)
        deferred |= known & (status == TO_BE_EVALUATED)
        return values
    return operand.array


def exact_number(value: object) -> int | float:
    """Return a constant as an integer or float that compares with other exact ones as it does.

    Raises:
        NoKernel: There is none.
    """
    if isinstance(value, float):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, Decimal) and value.is_finite():
        short = len(value.as_tuple().digits) <= EXACT_DIGITS
        if short and abs(value.adjusted()) <= EXACT_DIGITS:
            return float(value)
    raise NoKernel


def _defer_inexact(operand: Operand, own: Numbers, other: Numbers, deferred: Mask) -> None:
    """Defer integers too large for a float where they would be compared as one."""
    is_float = isinstance(other, float) or getattr(other, "dtype", None) == np.float64
    if not is_float:
        return
    if isinstance(own, int) and abs(own) > EXACT_INTEGERS:
        raise NoKernel
    if isinstance(operand, Vector) and operand.kind is Kind.INT:
        deferred |= (operand.array > EXACT_INTEGERS) | (operand.array < -EXACT_INTEGERS)


def _instants(sign: str, left: Operand, right: Operand, null: Mask, deferred: Mask) -> Mask:
    first, second = _micros(left, null, deferred), _micros(right, null, deferred)
    found = _OPERATORS[sign](first, second)
    return np.broadcast_to(found, null.shape) if np.ndim(found) == 0 else found


def _micros(operand: Operand, null: Mask, deferred: Mask) -> NDArray[np.int64] | int:
    """Return microseconds since 1970 in UTC."""
    if isinstance(operand, Constant):
        value = parse_iso(operand.value) if isinstance(operand.value, str) else operand.value
        if value is None:
            null |= True
            return 0
        if not isinstance(value, Timestamp) or value.instant % 1000:
            raise NoKernel
        return value.instant // 1000
    if operand.kind is Kind.INSTANT:
        instants = operand.instants
    else:
        instants, odd = parse_instants(operand.slices)
        deferred |= odd & ~operand.null
    return utc_micros(instants)
