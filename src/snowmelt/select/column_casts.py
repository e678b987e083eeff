"""Casts of columns; what a text says that is not plainly a number is the evaluator's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from snowmelt.select.dialect import Dialect
from snowmelt.select.instants import parse_instants
from snowmelt.select.numbers import parse_floats, parse_integers
from snowmelt.select.operands import Frame, NoKernel
from snowmelt.select.vectors import Kind, Vector

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.select.syntax import Cast

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
