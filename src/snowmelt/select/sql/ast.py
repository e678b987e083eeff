"""Syntax tree of a statement, with tree walks and node replacement.

The parser builds the tree, the binder resolves its names, and the evaluators walk it. `at` is the
offset of a node's first character in the statement. It is excluded from equality, so that two
occurrences of the same expression are equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, get_args


@dataclass(frozen=True, slots=True, eq=False)
class LiteralExpr:
    """A literal value: None, MISSING, bool, int, Decimal, float, str or Timestamp.

    Two literals are equal if their values have the same type and the same repr: 1 equals neither
    1.0 nor TRUE.
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
    """A list of expressions: `[1, 2]` or `(1, 2)`."""

    items: tuple[Expression, ...]
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class KeyStep:
    """A key step of a name or path: `age`, `"Age"` or `['age']`. Quoted keys match exactly."""

    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class IndexStep:
    """An array index step of a path: `[3]`, counted from zero."""

    number: int


class WildcardStep(Enum):
    """A path step that selects all items or fields: `[*]` or `.*`."""

    ITEM = "[*]"
    FIELD = ".*"


PathStep: TypeAlias = KeyStep | IndexStep | WildcardStep


@dataclass(frozen=True, slots=True)
class NameRef:
    """An unresolved name: `_1`, `s.age` or `s.a['b'][2].c`."""

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

    Attributes:
        index: Zero-based field position. CSV: in the row. Parquet: the top-level column of the file.
            None for JSON.
        name: Output name of the field.
        steps: Path within the field (Parquet), or from the root of the record (JSON).
        at: Offset in the statement.
    """

    index: int | None
    name: str
    steps: tuple[PathStep, ...] = ()
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class AliasRef:
    """The value of the projection with this zero-based index, computed once per record."""

    projection: int
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class UnaryOp:
    """`-x` or `NOT x`. The operator is "-" or "NOT"."""

    operator: str
    operand: Expression
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BinaryOp:
    """A binary operation: + - * / % ^ || = <> < <= > >= AND OR. The parser normalizes `==` and `!=`."""

    operator: str
    left: Expression
    right: Expression
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BetweenPredicate:
    """`value [NOT] BETWEEN low AND high`, inclusive at both ends."""

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
    """`value IS [NOT] NULL` or `value IS [NOT] MISSING`. `keyword` is "NULL" or "MISSING"."""

    value: Expression
    keyword: str
    negated: bool = False
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CaseExpr:
    """`CASE [operand] WHEN … THEN … [ELSE …] END`. Without ELSE the default result is NULL."""

    operand: Expression | None
    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression | None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CastExpr:
    """`CAST(value AS type)`. `type` is one of BOOL INT FLOAT DECIMAL STRING TIMESTAMP."""

    value: Expression
    type: str
    precision: int | None = None
    scale: int | None = None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CallExpr:
    """A call of a scalar function. The name is in lower case.

    `int(x)`, `float(x)`, `string(x)`, `to_bool(x)` and `to_timestamp(x)` become a `CastExpr`. A
    date part is always the first argument, a lower-case literal: `extract(year from x)` becomes
    extract('year', x). `trim` has three arguments: the mode as a literal ("both", "leading" or
    "trailing"), the characters, and the text.
    """

    function: str
    arguments: tuple[Expression, ...]
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class AggregateExpr:
    """An aggregate: count, sum, min, max or avg. The argument is None for `count(*)`.

    With `distinct`, equal values count once.
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
    """An item of the SELECT list. `alias` is None if the statement has none."""

    expression: Expression
    alias: str | None = None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class FromClause:
    """The FROM clause. `steps` are a JSON path into the document (`s3object[*].a.b`)."""

    table: str
    steps: tuple[PathStep, ...] = ()
    alias: str | None = None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class OrderKey:
    """A key of ORDER BY."""

    expression: Expression
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class SelectStatement:
    """A SELECT statement. `text` is its source."""

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
    """Return the direct subexpressions in source order."""
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
    """Yield an expression and all its subexpressions in source order, parents before children."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list_children(node)))


def replace_nodes(
    expression: Expression, replacement: Callable[[Expression], Expression | None]
) -> Expression:
    """Return the expression with nodes replaced by the non-None results of `replacement`.

    Does not descend into a replaced node.
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
    if type(value) in _NODE_TYPES:
        return replace_nodes(value, replacement)
    return value


def expand_aliases(expression: Expression, projections: Sequence[Expression]) -> Expression:
    """Return the expression with each alias reference replaced by the aliased expression.

    Terminates because the binder rejects cyclic aliases.
    """

    def instead(part: Expression) -> Expression | None:
        if isinstance(part, AliasRef):
            return expand_aliases(projections[part.projection], projections)
        return None

    return replace_nodes(expression, instead)
