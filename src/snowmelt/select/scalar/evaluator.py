"""Scalar expression evaluator: the reference semantics for the vectorized path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError, make_skippable_row_error
from snowmelt.select.scalar.casts import cast_value
from snowmelt.select.scalar.functions import call_function
from snowmelt.select.scalar.like_patterns import compile_like_pattern
from snowmelt.select.scalar.operators import (
    calculate_arithmetic,
    compare_values,
    concatenate,
    negate,
)
from snowmelt.select.sql.ast import (
    AggregateExpr,
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
    ListExpr,
    LiteralExpr,
    NameRef,
    StarExpr,
    UnaryOp,
)
from snowmelt.select.sql.bound_query import BoundQuery
from snowmelt.select.timestamps import Timestamp
from snowmelt.select.values import (
    MISSING,
    describe_type,
    format_excerpt,
    is_null_or_missing,
    to_three_valued_truth,
)


class RecordView(Protocol):
    """Read access to the fields of one record."""

    def field(self, column: ColumnRef) -> object:
        """Return the value of a field, or MISSING if the record has no such field."""


class EvaluationContext:
    """Evaluation state: the query's current time, a group's results, the record's alias values."""

    def __init__(self, query: BoundQuery, now: Timestamp) -> None:
        """Create an empty context. `now` is the value of `utcnow()` for all records."""
        self.query = query
        self.dialect = query.dialect
        self.now = now
        self.group_results: Mapping[Expression, object] = {}
        self.alias_values: dict[int, object] = {}

    def begin_row(self) -> None:
        """Clear the cached alias values. Call it before each record."""
        self.alias_values.clear()

    def begin_group(self, group_results: Mapping[Expression, object]) -> None:
        """Set the values of a group's keys and aggregates, by expression."""
        self.group_results = group_results
        self.alias_values.clear()


def evaluate(expression: Expression, row: RecordView | None, context: EvaluationContext) -> object:
    """Return the value of an expression in a record. Without a record, each field is NULL.

    Raises:
        SelectError: If the evaluation fails. `fatal` is True if the error ends the query, False if it
            drops the row.
    """
    if context.group_results and expression in context.group_results:
        return context.group_results[expression]
    return _EVALUATORS[type(expression)](expression, row, context)


def is_true(condition: Expression, row: RecordView | None, context: EvaluationContext) -> bool:
    """Return True if a condition is true. Return False if it is false or unknown."""
    return to_three_valued_truth(evaluate(condition, row, context), context.dialect) is True


def _evaluate_literal(
    node: LiteralExpr, _row: RecordView | None, _context: EvaluationContext
) -> object:
    return node.value


def _evaluate_list(node: ListExpr, row: RecordView | None, context: EvaluationContext) -> object:
    return [evaluate(item, row, context) for item in node.items]


def _evaluate_column(node: ColumnRef, row: RecordView | None, context: EvaluationContext) -> object:
    if row is None:
        return None
    value = row.field(node)
    if value is not MISSING or node.index is None or node.steps:
        return value
    if context.dialect is Dialect.CEPH_2020:
        message = f"column position {node.index + 1} is past the end of the row"
        raise make_skippable_row_error("InvalidColumnIndex", message, context.dialect)
    return None


def _evaluate_alias(node: AliasRef, row: RecordView | None, context: EvaluationContext) -> object:
    if node.projection not in context.alias_values:
        expression = context.query.outputs[node.projection].expression
        context.alias_values[node.projection] = evaluate(expression, row, context)
    return context.alias_values[node.projection]


def _evaluate_unary(node: UnaryOp, row: RecordView | None, context: EvaluationContext) -> object:
    value = evaluate(node.operand, row, context)
    if node.operator == "-":
        return negate(value, context.dialect)
    known = to_three_valued_truth(value, context.dialect)
    return None if known is None else not known


def _evaluate_binary(node: BinaryOp, row: RecordView | None, context: EvaluationContext) -> object:
    operator = node.operator
    if operator in {"AND", "OR"}:
        return _evaluate_logical(node, row, context)
    left = evaluate(node.left, row, context)
    right = evaluate(node.right, row, context)
    if operator == "||":
        return concatenate(left, right, context.dialect)
    if operator in {"+", "-", "*", "/", "%", "^"}:
        return calculate_arithmetic(operator, left, right, context.dialect)
    return compare_values(operator, left, right, context.dialect)


def _evaluate_logical(
    node: BinaryOp, row: RecordView | None, context: EvaluationContext
) -> bool | None:
    """Evaluate AND or OR with three-valued logic. Skips the right side if the left side decides."""
    decisive = node.operator == "OR"
    left = to_three_valued_truth(evaluate(node.left, row, context), context.dialect)
    if left is decisive:
        return decisive
    right = to_three_valued_truth(evaluate(node.right, row, context), context.dialect)
    if right is decisive:
        return decisive
    return None if left is None or right is None else not decisive


def _evaluate_between(
    node: BetweenPredicate, row: RecordView | None, context: EvaluationContext
) -> bool | None:
    """Evaluate `value >= low AND value <= high`, with a single evaluation of `value`."""
    value = evaluate(node.value, row, context)
    above = compare_values(">=", value, evaluate(node.low, row, context), context.dialect)
    if above is False:
        return node.negated
    below = compare_values("<=", value, evaluate(node.high, row, context), context.dialect)
    if below is False:
        return node.negated
    return None if above is None or below is None else not node.negated


def _evaluate_in(
    node: InPredicate, row: RecordView | None, context: EvaluationContext
) -> bool | None:
    """Evaluate IN. Stops at the first equal option. Without one, an unknown comparison gives None."""
    value = evaluate(node.value, row, context)
    is_unknown = False
    for option in node.options:
        found = evaluate(option, row, context)
        for item in found if isinstance(found, list) else (found,):
            answer = compare_values("=", value, item, context.dialect)
            if answer:
                return not node.negated
            is_unknown = is_unknown or answer is None
    return None if is_unknown else node.negated


def _evaluate_like(
    node: LikePredicate, row: RecordView | None, context: EvaluationContext
) -> bool | None:
    value = evaluate(node.value, row, context)
    pattern = evaluate(node.pattern, row, context)
    escape = None if node.escape is None else evaluate(node.escape, row, context)
    if (
        is_null_or_missing(value)
        or is_null_or_missing(pattern)
        or (node.escape is not None and is_null_or_missing(escape))
    ):
        return None
    for text in (value, pattern, escape or ""):
        if not isinstance(text, str):
            message = f"LIKE expects text, got {format_excerpt(text)} ({describe_type(text)})"
            raise make_skippable_row_error("LikeInvalidInputs", message, context.dialect)
    likeness = compile_like_pattern(
        str(pattern), escape if isinstance(escape, str) else None, context.dialect
    )
    return likeness.matches(str(value)) is not node.negated


def _evaluate_is(node: IsPredicate, row: RecordView | None, context: EvaluationContext) -> bool:
    value = evaluate(node.value, row, context)
    found = value is MISSING if node.keyword == "MISSING" else is_null_or_missing(value)
    return found is not node.negated


def _evaluate_case(node: CaseExpr, row: RecordView | None, context: EvaluationContext) -> object:
    if node.operand is None:
        chosen = (then for when, then in node.branches if is_true(when, row, context))
    else:
        operand = evaluate(node.operand, row, context)
        chosen = (
            then
            for when, then in node.branches
            if compare_values("=", operand, evaluate(when, row, context), context.dialect)
        )
    result = next(chosen, node.otherwise)
    return None if result is None else evaluate(result, row, context)


def _evaluate_cast(node: CastExpr, row: RecordView | None, context: EvaluationContext) -> object:
    return cast_value(evaluate(node.value, row, context), node, context.dialect)


def _evaluate_call(node: CallExpr, row: RecordView | None, context: EvaluationContext) -> object:
    if node.function == "utcnow":
        return context.now
    if node.function == "coalesce":
        values = (evaluate(argument, row, context) for argument in node.arguments)
        return next((value for value in values if not is_null_or_missing(value)), None)
    arguments = [evaluate(argument, row, context) for argument in node.arguments]
    return call_function(node.function, arguments, context.dialect)


def _reject_unbound_node(
    node: AggregateExpr | NameRef | StarExpr, _row: RecordView | None, _context: EvaluationContext
) -> object:
    kind = type(node).__name__
    raise SelectError("InvalidQuery", f"cannot evaluate {kind} in one record: bind the query first")


_EVALUATORS: dict[type, Callable[[Any, RecordView | None, EvaluationContext], object]] = {
    LiteralExpr: _evaluate_literal,
    ListExpr: _evaluate_list,
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
    AggregateExpr: _reject_unbound_node,
    NameRef: _reject_unbound_node,
    StarExpr: _reject_unbound_node,
}
