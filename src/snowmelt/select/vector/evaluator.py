"""Vectorized evaluator: kernels compute expressions, and defer rows to the scalar evaluator.

In each row, a condition is true, false, unknown or deferred. Evaluation runs from left to right, as
in the scalar evaluator: if the left side is deferred, the result is deferred too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from snowmelt.kernels.slices import Mask, RowIndexes
from snowmelt.select.sql.ast import (
    AliasRef,
    BetweenPredicate,
    BinaryOp,
    CallExpr,
    CaseExpr,
    CastExpr,
    ColumnRef,
    Expression,
    InPredicate,
    IsPredicate,
    LikePredicate,
    LiteralExpr,
    UnaryOp,
)
from snowmelt.select.vector.functions import call_vector_function, cast_vector
from snowmelt.select.vector.operands_and_frames import (
    ConstantOperand,
    KernelUnsupported,
    Operand,
    RecordFrame,
    choose_values,
    make_deferred_vector,
    make_null_vector,
    operand_to_vector,
)
from snowmelt.select.vector.operators import (
    calculate_vector,
    compare_vectors,
    match_like_vector,
    negate_vector,
)
from snowmelt.select.vectors import ValueVector, VectorKind, make_false_mask

_COMPARISON_OPERATORS = frozenset({"=", "<>", "<", "<=", ">", ">="})


def evaluate_vector(expression: Expression, frame: RecordFrame) -> ValueVector:
    """Return the values of an expression in the records of a frame."""
    try:
        return operand_to_vector(evaluate_operand(expression, frame), len(frame))
    except KernelUnsupported:
        return make_deferred_vector(len(frame))


def evaluate_condition_masks(expression: Expression, frame: RecordFrame) -> tuple[Mask, Mask]:
    """Return two masks: rows where a condition is true, and rows deferred to the scalar evaluator.

    Evaluates the operands of a top-level AND in order. Each is evaluated only for the records that
    the earlier operands neither rejected nor deferred.
    """
    count = len(frame)
    true, deferred = make_false_mask(count), make_false_mask(count)
    open_rows: RowIndexes = np.arange(count)
    unknown = make_false_mask(count)
    for condition in _split_conjuncts(expression):
        found = _evaluate_boolean(condition, frame)
        deferred[open_rows[found.deferred]] = True
        known = ~found.deferred
        keeps = known & (found.null | found.array)
        unknown[open_rows[known & found.null]] = True
        kept = np.flatnonzero(keeps)
        frame = frame.select_rows(kept)
        open_rows = open_rows[kept]
        if not len(open_rows):
            break
    true[open_rows] = True
    return true & ~unknown, deferred


def evaluate_operand(expression: Expression, frame: RecordFrame) -> Operand:
    """Return the values of an expression, or its constant value.

    Raises:
        KernelUnsupported: If only the scalar evaluator can evaluate the expression.
    """
    handler = _EVALUATORS.get(type(expression))
    if handler is None:
        raise KernelUnsupported
    return handler(expression, frame)


def _split_conjuncts(expression: Expression) -> list[Expression]:
    if isinstance(expression, BinaryOp) and expression.operator == "AND":
        return [*_split_conjuncts(expression.left), *_split_conjuncts(expression.right)]
    return [expression]


def _evaluate_boolean(expression: Expression, frame: RecordFrame) -> ValueVector:
    """Return the values of a condition. Defers all rows if the expression is not a condition."""
    found = evaluate_vector(expression, frame)
    if found.kind is VectorKind.BOOL:
        return found
    if found.kind is VectorKind.OBJECT and found.null.all():
        return ValueVector(VectorKind.BOOL, make_false_mask(len(frame)), found.null, found.deferred)
    return ValueVector(
        VectorKind.BOOL,
        make_false_mask(len(frame)),
        make_false_mask(len(frame)),
        ~make_false_mask(len(frame)),
    )


def _evaluate_literal(node: LiteralExpr, _frame: RecordFrame) -> Operand:
    return ConstantOperand(node.value)


def _evaluate_column(node: ColumnRef, frame: RecordFrame) -> Operand:
    return frame.read_column(node)


def _evaluate_alias(node: AliasRef, frame: RecordFrame) -> Operand:
    return evaluate_operand(frame.query.outputs[node.projection].expression, frame)


def _evaluate_unary(node: UnaryOp, frame: RecordFrame) -> Operand:
    if node.operator == "-":
        return negate_vector(evaluate_operand(node.operand, frame))
    found = _evaluate_boolean(node.operand, frame)
    return ValueVector(VectorKind.BOOL, ~found.array, found.null, found.deferred)


def _evaluate_binary(node: BinaryOp, frame: RecordFrame) -> Operand:
    sign = node.operator
    if sign in {"AND", "OR"}:
        return _evaluate_logical(node, frame)
    left, right = evaluate_operand(node.left, frame), evaluate_operand(node.right, frame)
    if isinstance(left, ConstantOperand) and isinstance(right, ConstantOperand):
        raise KernelUnsupported
    if sign in _COMPARISON_OPERATORS:
        return compare_vectors(sign, left, right, frame)
    return calculate_vector(sign, left, right, frame)


def _evaluate_logical(node: BinaryOp, frame: RecordFrame) -> ValueVector:
    left, right = _evaluate_boolean(node.left, frame), _evaluate_boolean(node.right, frame)
    return _combine_booleans(left, right, decisive=node.operator == "OR")


def _combine_booleans(left: ValueVector, right: ValueVector, *, decisive: bool) -> ValueVector:
    """Return `left AND right`, or `left OR right` if `decisive` is True."""
    left_decides = (left.array == decisive) & ~left.null & ~left.deferred
    right_decides = (right.array == decisive) & ~right.null & ~right.deferred
    deferred = left.deferred | (~left_decides & right.deferred)
    decided = left_decides | right_decides
    null = ~decided & (left.null | right.null)
    data = decided if decisive else ~decided
    return ValueVector(VectorKind.BOOL, data, null, deferred)


def _evaluate_between(node: BetweenPredicate, frame: RecordFrame) -> ValueVector:
    subject = evaluate_operand(node.value, frame)
    low, high = evaluate_operand(node.low, frame), evaluate_operand(node.high, frame)
    if isinstance(subject, ConstantOperand):
        raise KernelUnsupported
    above = compare_vectors(">=", subject, low, frame)
    found = _combine_booleans(above, compare_vectors("<=", subject, high, frame), decisive=False)
    return _negate_boolean(found) if node.negated else found


def _evaluate_in(node: InPredicate, frame: RecordFrame) -> ValueVector:
    subject = evaluate_operand(node.value, frame)
    if isinstance(subject, ConstantOperand):
        raise KernelUnsupported
    found = ValueVector(
        VectorKind.BOOL, make_false_mask(len(frame)), make_false_mask(len(frame)), subject.deferred
    )
    for option in node.options:
        equal = compare_vectors("=", subject, evaluate_operand(option, frame), frame)
        found = _combine_booleans(found, equal, decisive=True)
    return _negate_boolean(found) if node.negated else found


def _evaluate_like(node: LikePredicate, frame: RecordFrame) -> ValueVector:
    subject, pattern = evaluate_operand(node.value, frame), evaluate_operand(node.pattern, frame)
    escape = ConstantOperand("") if node.escape is None else evaluate_operand(node.escape, frame)
    if isinstance(subject, ConstantOperand) or not isinstance(pattern, ConstantOperand):
        raise KernelUnsupported
    if not isinstance(escape, ConstantOperand):
        raise KernelUnsupported
    written = None if node.escape is None else escape.value
    found = match_like_vector(subject, pattern.value, written, frame.dialect)
    return _negate_boolean(found) if node.negated else found


def _evaluate_is(node: IsPredicate, frame: RecordFrame) -> ValueVector:
    subject = evaluate_operand(node.value, frame)
    if isinstance(subject, ConstantOperand) or node.keyword != "NULL":
        raise KernelUnsupported
    found = ValueVector(
        VectorKind.BOOL, subject.null, make_false_mask(len(frame)), subject.deferred
    )
    return _negate_boolean(found) if node.negated else found


def _negate_boolean(vector: ValueVector) -> ValueVector:
    return ValueVector(VectorKind.BOOL, ~vector.array, vector.null, vector.deferred)


def _evaluate_case(node: CaseExpr, frame: RecordFrame) -> ValueVector:
    """Evaluate CASE. Computes every branch for all records, from the last branch to the first."""
    count = len(frame)
    otherwise = node.otherwise
    result = make_null_vector(count) if otherwise is None else evaluate_vector(otherwise, frame)
    for when, then in reversed(node.branches):
        if node.operand is None:
            holds = _evaluate_boolean(when, frame)
        else:
            subject = operand_to_vector(evaluate_operand(node.operand, frame), count)
            holds = compare_vectors("=", subject, evaluate_operand(when, frame), frame)
        picked = holds.array & ~holds.null
        result = choose_values(evaluate_vector(then, frame), result, picked)
        deferred = result.deferred | holds.deferred
        result = ValueVector(result.kind, result.data, result.null, deferred)
    return result


def _evaluate_cast(node: CastExpr, frame: RecordFrame) -> Operand:
    return cast_vector(
        node, operand_to_vector(evaluate_operand(node.value, frame), len(frame)), frame
    )


def _evaluate_call(node: CallExpr, frame: RecordFrame) -> Operand:
    if node.function == "coalesce":
        result = make_null_vector(len(frame))
        for argument in reversed(node.arguments):
            found = evaluate_vector(argument, frame)
            first = choose_values(found, result, ~found.null | found.deferred)
            result = ValueVector(
                first.kind, first.data, first.null, first.deferred | found.deferred
            )
        return result
    if node.function == "nullif":
        left, right = (
            operand_to_vector(evaluate_operand(each, frame), len(frame)) for each in node.arguments
        )
        equal = compare_vectors("=", left, right, frame)
        if left.kind is not right.kind or left.kind not in (
            VectorKind.TEXT,
            VectorKind.INT,
            VectorKind.FLOAT,
        ):
            raise KernelUnsupported
        same = equal.array & ~equal.null
        return ValueVector(left.kind, left.data, left.null | same, left.deferred | right.deferred)
    return call_vector_function(
        node, [evaluate_operand(each, frame) for each in node.arguments], frame
    )


_EVALUATORS: dict[type, Callable[[Any, RecordFrame], Operand]] = {
    LiteralExpr: _evaluate_literal,
    ColumnRef: _evaluate_column,
    AliasRef: _evaluate_alias,
    UnaryOp: _evaluate_unary,
    BinaryOp: _evaluate_binary,
    BetweenPredicate: _evaluate_between,
    InPredicate: _evaluate_in,
    LikePredicate: _evaluate_like,
    IsPredicate: _evaluate_is,
    CaseExpr: _evaluate_case,
    CastExpr: _evaluate_cast,
    CallExpr: _evaluate_call,
}
