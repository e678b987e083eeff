"""What an expression is worth in one record: the semantics that every faster plan must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError, row_error
from snowmelt.select.scalar.casts import cast_value
from snowmelt.select.scalar.functions import call_function
from snowmelt.select.scalar.operators import calculate, concatenate, negate, relate
from snowmelt.select.scalar.patterns import like_pattern
from snowmelt.select.sql.ast import (
    Aggregate,
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
    ListValue,
    Literal,
    Name,
    Star,
    Unary,
)
from snowmelt.select.values import MISSING, excerpt, is_absent, kind_of, truth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from snowmelt.select.sql.ast import Expression
    from snowmelt.select.sql.bound_query import Query
    from snowmelt.select.timestamps import Timestamp


class Row(Protocol):
    """One record."""

    def field(self, column: Column) -> object:
        """Return the value of a field, MISSING where the record has no such field."""


class Scope:
    """What expressions of one query share: its instant, and what is known of the record so far."""

    def __init__(self, query: Query, now: Timestamp) -> None:
        """Begin; `now` is what `utcnow()` gives to every record."""
        self.query = query
        self.dialect = query.dialect
        self.now = now
        self.results: Mapping[Expression, object] = {}
        self.aliases: dict[int, object] = {}

    def begin_row(self) -> None:
        """Forget what aliases were worth; call it before each record."""
        self.aliases.clear()

    def begin_group(self, results: Mapping[Expression, object]) -> None:
        """Take the values of a group's keys and aggregates, by their expressions."""
        self.results = results
        self.aliases.clear()


def evaluate(expression: Expression, row: Row | None, scope: Scope) -> object:
    """Return the value of an expression in a record; without a record each field is NULL.

    Raises:
        SelectError: Where it has none; `fatal` tells whether that costs the query or the row.
    """
    if scope.results and expression in scope.results:
        return scope.results[expression]
    return _EVALUATORS[type(expression)](expression, row, scope)


def holds(condition: Expression, row: Row | None, scope: Scope) -> bool:
    """Return whether a condition is true, neither false nor unknown."""
    return truth(evaluate(condition, row, scope), scope.dialect) is True


def _literal(node: Literal, _row: Row | None, _scope: Scope) -> object:
    return node.value


def _list(node: ListValue, row: Row | None, scope: Scope) -> object:
    return [evaluate(item, row, scope) for item in node.items]


def _column(node: Column, row: Row | None, scope: Scope) -> object:
    if row is None:
        return None
    value = row.field(node)
    if value is not MISSING or node.index is None or node.steps:
        return value
    if scope.dialect is Dialect.CEPH_2020:
        message = f"column position {node.index + 1} lies past the end of the row"
        raise row_error("InvalidColumnIndex", message, scope.dialect)
    return None


def _alias(node: AliasUse, row: Row | None, scope: Scope) -> object:
    if node.projection not in scope.aliases:
        expression = scope.query.outputs[node.projection].expression
        scope.aliases[node.projection] = evaluate(expression, row, scope)
    return scope.aliases[node.projection]


def _unary(node: Unary, row: Row | None, scope: Scope) -> object:
    value = evaluate(node.operand, row, scope)
    if node.operator == "-":
        return negate(value, scope.dialect)
    known = truth(value, scope.dialect)
    return None if known is None else not known


def _binary(node: Binary, row: Row | None, scope: Scope) -> object:
    operator = node.operator
    if operator in {"AND", "OR"}:
        return _logical(node, row, scope)
    left = evaluate(node.left, row, scope)
    right = evaluate(node.right, row, scope)
    if operator == "||":
        return concatenate(left, right, scope.dialect)
    if operator in {"+", "-", "*", "/", "%", "^"}:
        return calculate(operator, left, right, scope.dialect)
    return relate(operator, left, right, scope.dialect)


def _logical(node: Binary, row: Row | None, scope: Scope) -> bool | None:
    """AND and OR of three values; the right side is not looked at where the left decides."""
    decisive = node.operator == "OR"
    left = truth(evaluate(node.left, row, scope), scope.dialect)
    if left is decisive:
        return decisive
    right = truth(evaluate(node.right, row, scope), scope.dialect)
    if right is decisive:
        return decisive
    return None if left is None or right is None else not decisive


def _between(node: Between, row: Row | None, scope: Scope) -> bool | None:
    """`value >= low AND value <= high`, the value evaluated once."""
    value = evaluate(node.value, row, scope)
    above = relate(">=", value, evaluate(node.low, row, scope), scope.dialect)
    if above is False:
        return node.negated
    below = relate("<=", value, evaluate(node.high, row, scope), scope.dialect)
    if below is False:
        return node.negated
    return None if above is None or below is None else not node.negated


def _in(node: In, row: Row | None, scope: Scope) -> bool | None:
    """Whether an option is equal; the first that is ends the search, an unknown one is kept."""
    value = evaluate(node.value, row, scope)
    is_unknown = False
    for option in node.options:
        found = evaluate(option, row, scope)
        for item in found if isinstance(found, list) else (found,):
            answer = relate("=", value, item, scope.dialect)
            if answer:
                return not node.negated
            is_unknown = is_unknown or answer is None
    return None if is_unknown else node.negated


def _like(node: Like, row: Row | None, scope: Scope) -> bool | None:
    value = evaluate(node.value, row, scope)
    pattern = evaluate(node.pattern, row, scope)
    escape = None if node.escape is None else evaluate(node.escape, row, scope)
    if is_absent(value) or is_absent(pattern) or (node.escape is not None and is_absent(escape)):
        return None
    for text in (value, pattern, escape or ""):
        if not isinstance(text, str):
            message = f"LIKE compares texts, not {excerpt(text)} ({kind_of(text)})"
            raise row_error("LikeInvalidInputs", message, scope.dialect)
    likeness = like_pattern(
        str(pattern), escape if isinstance(escape, str) else None, scope.dialect
    )
    return likeness.matches(str(value)) is not node.negated


def _is(node: Is, row: Row | None, scope: Scope) -> bool:
    value = evaluate(node.value, row, scope)
    found = value is MISSING if node.what == "MISSING" else is_absent(value)
    return found is not node.negated


def _case(node: Case, row: Row | None, scope: Scope) -> object:
    if node.operand is None:
        chosen = (then for when, then in node.branches if holds(when, row, scope))
    else:
        operand = evaluate(node.operand, row, scope)
        chosen = (
            then
            for when, then in node.branches
            if relate("=", operand, evaluate(when, row, scope), scope.dialect)
        )
    result = next(chosen, node.otherwise)
    return None if result is None else evaluate(result, row, scope)


def _cast(node: Cast, row: Row | None, scope: Scope) -> object:
    return cast_value(evaluate(node.value, row, scope), node, scope.dialect)


def _call(node: Call, row: Row | None, scope: Scope) -> object:
    if node.function == "utcnow":
        return scope.now
    if node.function == "coalesce":
        values = (evaluate(argument, row, scope) for argument in node.arguments)
        return next((value for value in values if not is_absent(value)), None)
    arguments = [evaluate(argument, row, scope) for argument in node.arguments]
    return call_function(node.function, arguments, scope.dialect)


def _unbound(node: Aggregate | Name | Star, _row: Row | None, _scope: Scope) -> object:
    raise SelectError("InvalidQuery", f"{type(node).__name__} has no value in a single record")


_EVALUATORS: dict[type, Callable[[Any, Row | None, Scope], object]] = {
    Literal: _literal,
    ListValue: _list,
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
    Aggregate: _unbound,
    Name: _unbound,
    Star: _unbound,
}
