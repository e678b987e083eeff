"""Arithmetic of columns: 64-bit integers and floats; decimals are the evaluator's."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from snowmelt.select.dialect import Dialect
from snowmelt.select.numbers import parse_integers
from snowmelt.select.operands import Constant, Frame, NoKernel, Operand, unknown
from snowmelt.select.vectors import Kind, Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
