"""Syntax tree of a statement, with tree walks and node replacement.

The parser makes the tree, the binder resolves its names, and the evaluators walk it. `at` is the
offset of a node's first character in the statement. It does not take part in equality, so that two
spellings of one expression are equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, cast, get_args


@dataclass(frozen=True, slots=True, eq=False)
class LiteralExpr:
    """A value written down: None, MISSING, bool, int, Decimal, float, str or Timestamp.

    Equal only to a literal of the same type that prints alike: 1 is not 1.0, nor is TRUE.
    """

    value: object
    at: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LiteralExpr) and self._equality_key() == other._equality_key()

    def __hash__(self) -> int:
        return hash(self._equality_key())

    def _equality_key(self) -> tuple[type, str]:
        return type(self.value), repr(self.value)


@dataclass(frozen=True, slots=True)
class ListExpr:
    """A list written down: `[1, 2]`, `(1, 2)`."""

    items: tuple[Expression, ...]
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class KeyStep:
    """One step of a name or path: `age`, `"Age"`, `['age']`; quoted ones are exact."""

    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class IndexStep:
    """One step of a path: `[3]`, counted from zero."""

    number: int


class WildcardStep(Enum):
    """One step of a path that takes all: `[*]` or `.*`."""

    ITEM = "[*]"
    FIELD = ".*"


PathStep: TypeAlias = KeyStep | IndexStep | WildcardStep


@dataclass(frozen=True, slots=True)
class NameRef:
    """A name as written, not resolved yet: `_1`, `s.age`, `s.a['b'][2].c`."""

    steps: tuple[PathStep, ...]
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class StarExpr:
    """`*`, or `s.*` with the qualifier `s`."""

    qualifier: str | None = None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A resolved name: a field of the record.

    `index` counts from zero (CSV: the field's place in its row; Parquet: the top-level column in
    the file); None for JSON records, where `steps` lead from the record's root. `steps` lead on
    from the field where it is nested (Parquet). `name` is what output calls it.
    """

    index: int | None
    name: str
    steps: tuple[PathStep, ...] = ()
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class AliasRef:
    """The value of the projection with this place (from zero), computed once per record."""

    projection: int
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class UnaryOp:
    """`-x` or `NOT x`; the operator is "-" or "NOT"."""

    operator: str
    operand: Expression
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BinaryOp:
    """Two operands: + - * / % ^ || = <> < <= > >= AND OR (`==` and `!=` become = and <>)."""

    operator: str
    left: Expression
    right: Expression
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BetweenPredicate:
    """`value [NOT] BETWEEN low AND high`, both ends included."""

    value: Expression
    low: Expression
    high: Expression
    negated: bool = False
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class InPredicate:
    """`value [NOT] IN (…)`."""

    value: Expression
    options: tuple[Expression, ...]
    negated: bool = False
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class LikePredicate:
    """`value [NOT] LIKE pattern [ESCAPE escape]`."""

    value: Expression
    pattern: Expression
    escape: Expression | None = None
    negated: bool = False
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class IsPredicate:
    """`value IS [NOT] NULL` or `value IS [NOT] MISSING`; `keyword` is "NULL" or "MISSING"."""

    value: Expression
    keyword: str
    negated: bool = False
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CaseExpr:
    """`CASE [operand] WHEN … THEN … [ELSE …] END`; without ELSE the rest is NULL."""

    operand: Expression | None
    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression | None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CastExpr:
    """`CAST(value AS type)`; `type` is one of BOOL INT FLOAT DECIMAL STRING TIMESTAMP."""

    value: Expression
    type: str
    precision: int | None = None
    scale: int | None = None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CallExpr:
    """A function of one record, by its lower-case name.

    `int(x)`, `float(x)`, `string(x)`, `to_bool(x)` and `to_timestamp(x)` are a `CastExpr`. Date parts stand as their lower-case text in a Literal, first argument, whichever way they
    were written (`extract(year from x)` is extract('year', x)). `trim` has three arguments:
    Literal mode ("both", "leading", "trailing"), the characters, the text.
    """

    function: str
    arguments: tuple[Expression, ...]
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class AggregateExpr:
    """count, sum, min, max or avg; the argument is None for `count(*)`.

    With `distinct` each value counts once.
    """

    function: str
    argument: Expression | None
    at: int = field(default=0, compare=False)
    distinct: bool = False


Expression: TypeAlias = (
    LiteralExpr
    | ListExpr
    | NameRef
    | StarExpr
    | ColumnRef
    | AliasRef
    | UnaryOp
    | BinaryOp
    | BetweenPredicate
    | InPredicate
    | LikePredicate
    | IsPredicate
    | CaseExpr
    | CastExpr
    | CallExpr
    | AggregateExpr
)


@dataclass(frozen=True, slots=True)
class Projection:
    """One item of the SELECT list; `alias` is None where none was given."""

    expression: Expression
    alias: str | None = None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class FromClause:
    """What stands after FROM: `steps` are a JSON path into the document (`s3object[*].a.b`)."""

    table: str
    steps: tuple[PathStep, ...] = ()
    alias: str | None = None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class OrderKey:
    """One key of ORDER BY."""

    expression: Expression
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class SelectStatement:
    """One SELECT; `text` is what was parsed."""

    projections: tuple[Projection, ...]
    source: FromClause
    text: str = field(compare=False, repr=False)
    where: Expression | None = None
    group_by: tuple[Expression, ...] = ()
    having: Expression | None = None
    order_by: tuple[OrderKey, ...] = ()
    limit: int | None = None
    offset: int = 0
    distinct: bool = False


_NODE_TYPES = frozenset(get_args(Expression))


def list_children(expression: Expression) -> list[Expression]:
    """Return the expressions directly inside this one, in the order they were written."""
    found: list[Expression] = []
    waiting = [getattr(expression, name) for name in reversed(type(expression).__slots__)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, tuple):
            waiting.extend(reversed(value))
        elif type(value) in _NODE_TYPES:
            found.append(value)
    return found


def walk_in_source_order(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all inside it, in the order they were written."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list_children(node)))


def walk_outer_first(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and everything inside it, the outer before the inner."""
    yield expression
    for part in dataclasses.fields(expression):
        yield from _walk_field_value(getattr(expression, part.name))


def _walk_field_value(value: object) -> Iterator[Expression]:
    if isinstance(value, tuple):
        for item in value:
            yield from _walk_field_value(item)
    elif _is_expression(value):
        yield from walk_outer_first(cast("Expression", value))


def replace_nodes(
    expression: Expression, replacement: Callable[[Expression], Expression | None]
) -> Expression:
    """Return the expression with each part for which `replacement` has an answer replaced by it.

    A replaced part is not looked into again.
    """
    answer = replacement(expression)
    if answer is not None:
        return answer
    changes: dict[str, Any] = {}
    for part in dataclasses.fields(expression):
        value = getattr(expression, part.name)
        changed = _replace_in_field_value(value, replacement)
        if changed is not value:
            changes[part.name] = changed
    return dataclasses.replace(expression, **changes) if changes else expression


def _replace_in_field_value(
    value: Any, replacement: Callable[[Expression], Expression | None]
) -> Any:
    if isinstance(value, tuple):
        items = tuple(_replace_in_field_value(item, replacement) for item in value)
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    if _is_expression(value):
        return replace_nodes(value, replacement)
    return value


def _is_expression(value: object) -> bool:
    return (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and type(value).__module__ == AliasRef.__module__
        and hasattr(value, "at")
    )


def expand_aliases(expression: Expression, projections: Sequence[Expression]) -> Expression:
    """Return the expression with each use of an alias replaced by what it stands for.

    The binder has refused cycles, so this ends.
    """

    def instead(part: Expression) -> Expression | None:
        if isinstance(part, AliasRef):
            return expand_aliases(projections[part.projection], projections)
        return None

    return replace_nodes(expression, instead)
