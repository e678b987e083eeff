"""Expressions over columns: values by kernels, and which records the evaluator must decide.

Logic has three values and a fourth, deferred, and obeys the order in which the evaluator looks:
a deferred left side decides nothing, whatever stands right of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from snowmelt.select.sql.ast import (
    AliasUse,
    Between,
    Binary,
    Call,
    Case,
    Cast,
    Column,
    In,
    Is,
    Like,
    Literal,
    Unary,
)
from snowmelt.select.vector.functions import call, cast
from snowmelt.select.vector.operands import (
    Constant,
    Frame,
    NoKernel,
    Operand,
    all_deferred,
    all_null,
    chosen,
    spread,
)
from snowmelt.select.vector.operators import arithmetic, compare, like, negated
from snowmelt.select.vectors import Kind, Vector, no_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.select.sql.ast import Expression
    from snowmelt.select.vectors import Mask, Rows

_RELATIONS = frozenset({"=", "<>", "<", "<=", ">", ">="})


def value(expression: Expression, frame: Frame) -> Vector:
    """Return an expression's values in the records of a frame."""
    try:
        return spread(operand(expression, frame), len(frame))
    except NoKernel:
        return all_deferred(len(frame))


def truth(expression: Expression, frame: Frame) -> tuple[Mask, Mask]:
    """Return where a condition is true, and where the evaluator must say.

    The conditions of an AND are looked at one after the other, each in the records that the
    ones before did not rule out.
    """
    count = len(frame)
    true, deferred = no_rows(count), no_rows(count)
    open_rows: Rows = np.arange(count)
    unknown = no_rows(count)
    for condition in _conjuncts(expression):
        found = _condition(condition, frame)
        deferred[open_rows[found.deferred]] = True
        known = ~found.deferred
        keeps = known & (found.null | found.array)
        unknown[open_rows[known & found.null]] = True
        kept = np.flatnonzero(keeps)
        frame = frame.narrow(kept)
        open_rows = open_rows[kept]
        if not len(open_rows):
            break
    true[open_rows] = True
    return true & ~unknown, deferred


def operand(expression: Expression, frame: Frame) -> Operand:
    """Return an expression's values, or its one value.

    Raises:
        NoKernel: Only the evaluator knows.
    """
    handler = _HANDLERS.get(type(expression))
    if handler is None:
        raise NoKernel
    return handler(expression, frame)


def _conjuncts(expression: Expression) -> list[Expression]:
    if isinstance(expression, Binary) and expression.operator == "AND":
        return [*_conjuncts(expression.left), *_conjuncts(expression.right)]
    return [expression]


def _condition(expression: Expression, frame: Frame) -> Vector:
    """Return truth values; anything else is for the evaluator."""
    found = value(expression, frame)
    if found.kind is Kind.BOOL:
        return found
    if found.kind is Kind.VALUES and found.null.all():
        return Vector(Kind.BOOL, no_rows(len(frame)), found.null, found.deferred)
    return Vector(Kind.BOOL, no_rows(len(frame)), no_rows(len(frame)), ~no_rows(len(frame)))


def _literal(node: Literal, _frame: Frame) -> Operand:
    return Constant(node.value)


def _column(node: Column, frame: Frame) -> Operand:
    return frame.column(node)


def _alias(node: AliasUse, frame: Frame) -> Operand:
    return operand(frame.query.outputs[node.projection].expression, frame)


def _unary(node: Unary, frame: Frame) -> Operand:
    if node.operator == "-":
        return negated(operand(node.operand, frame))
    found = _condition(node.operand, frame)
    return Vector(Kind.BOOL, ~found.array, found.null, found.deferred)


def _binary(node: Binary, frame: Frame) -> Operand:
    sign = node.operator
    if sign in {"AND", "OR"}:
        return _logical(node, frame)
    left, right = operand(node.left, frame), operand(node.right, frame)
    if isinstance(left, Constant) and isinstance(right, Constant):
        raise NoKernel
    if sign in _RELATIONS:
        return compare(sign, left, right, frame)
    return arithmetic(sign, left, right, frame)


def _logical(node: Binary, frame: Frame) -> Vector:
    left, right = _condition(node.left, frame), _condition(node.right, frame)
    return _joined(left, right, decisive=node.operator == "OR")


def _joined(left: Vector, right: Vector, *, decisive: bool) -> Vector:
    """Return `left AND right`, or OR, which `decisive` true stands for."""
    left_decides = (left.array == decisive) & ~left.null & ~left.deferred
    right_decides = (right.array == decisive) & ~right.null & ~right.deferred
    deferred = left.deferred | (~left_decides & right.deferred)
    decided = left_decides | right_decides
    null = ~decided & (left.null | right.null)
    data = decided if decisive else ~decided
    return Vector(Kind.BOOL, data, null, deferred)


def _between(node: Between, frame: Frame) -> Vector:
    subject = operand(node.value, frame)
    low, high = operand(node.low, frame), operand(node.high, frame)
    if isinstance(subject, Constant):
        raise NoKernel
    above = compare(">=", subject, low, frame)
    found = _joined(above, compare("<=", subject, high, frame), decisive=False)
    return _flipped(found) if node.negated else found


def _in(node: In, frame: Frame) -> Vector:
    subject = operand(node.value, frame)
    if isinstance(subject, Constant):
        raise NoKernel
    found = Vector(Kind.BOOL, no_rows(len(frame)), no_rows(len(frame)), subject.deferred)
    for option in node.options:
        equal = compare("=", subject, operand(option, frame), frame)
        found = _joined(found, equal, decisive=True)
    return _flipped(found) if node.negated else found


def _like(node: Like, frame: Frame) -> Vector:
    subject, pattern = operand(node.value, frame), operand(node.pattern, frame)
    escape = Constant("") if node.escape is None else operand(node.escape, frame)
    if isinstance(subject, Constant) or not isinstance(pattern, Constant):
        raise NoKernel
    if not isinstance(escape, Constant):
        raise NoKernel
    written = None if node.escape is None else escape.value
    found = like(subject, pattern.value, written, frame.dialect)
    return _flipped(found) if node.negated else found


def _is(node: Is, frame: Frame) -> Vector:
    subject = operand(node.value, frame)
    if isinstance(subject, Constant) or node.what != "NULL":
        raise NoKernel
    found = Vector(Kind.BOOL, subject.null, no_rows(len(frame)), subject.deferred)
    return _flipped(found) if node.negated else found


def _flipped(found: Vector) -> Vector:
    return Vector(Kind.BOOL, ~found.array, found.null, found.deferred)


def _case(node: Case, frame: Frame) -> Vector:
    """Later branches are looked at in all records, and used where none before was chosen."""
    count = len(frame)
    otherwise = node.otherwise
    result = all_null(count) if otherwise is None else value(otherwise, frame)
    for when, then in reversed(node.branches):
        if node.operand is None:
            holds = _condition(when, frame)
        else:
            subject = spread(operand(node.operand, frame), count)
            holds = compare("=", subject, operand(when, frame), frame)
        picked = holds.array & ~holds.null
        result = chosen(value(then, frame), result, picked)
        deferred = result.deferred | holds.deferred
        result = Vector(result.kind, result.data, result.null, deferred)
    return result


def _cast(node: Cast, frame: Frame) -> Operand:
    return cast(node, spread(operand(node.value, frame), len(frame)), frame)


def _call(node: Call, frame: Frame) -> Operand:
    if node.function == "coalesce":
        result = all_null(len(frame))
        for argument in reversed(node.arguments):
            found = value(argument, frame)
            first = chosen(found, result, ~found.null | found.deferred)
            result = Vector(first.kind, first.data, first.null, first.deferred | found.deferred)
        return result
    if node.function == "nullif":
        left, right = (spread(operand(each, frame), len(frame)) for each in node.arguments)
        equal = compare("=", left, right, frame)
        if left.kind is not right.kind or left.kind not in (Kind.TEXT, Kind.INT, Kind.FLOAT):
            raise NoKernel
        same = equal.array & ~equal.null
        return Vector(left.kind, left.data, left.null | same, left.deferred | right.deferred)
    return call(node, [operand(each, frame) for each in node.arguments], frame)


_HANDLERS: dict[type, Callable[[Any, Frame], Operand]] = {
    Literal: _literal,
    Column: _column,
    AliasUse: _alias,
    Unary: _unary,
    Binary: _binary,
    Between: _between,
    In: _in,
    Like: _like,
    Is: _is,
    Case: _case,
    Cast: _cast,
    Call: _call,
}
