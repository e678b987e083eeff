"""Conditions of a query that say which files and chunks it cannot need.

Only what is certain becomes a predicate: a plain column of the table against a literal whose
meaning Spark and we agree on. A condition that is left out costs time, one that is misread rows.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

from sqlglot import exp

from snowmelt.errors import Unsupported
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, TIMESTAMP_TYPES, Column, LogicalType
from snowmelt.spark.sql.query import DIALECT, sources
from snowmelt.table.pruning import And, Comparison, InList, IsNull, Or, StartsWith

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from snowmelt.spark.sql.query import Query, Reference
    from snowmelt.table.pruning import LiteralValue, Predicate

ColumnsOf: TypeAlias = "Callable[[Reference], Mapping[str, Column | None] | None]"

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_TIME = re.compile(r"\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?\Z")
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?\Z")
_INTEGER = re.compile(r"\d+\Z")
_DECIMAL = re.compile(r"\d*\.\d+\Z|\d+\.\Z")
_REAL = re.compile(r"(?:\d++\.?\d*|\.\d+)[eE][+-]?\d+\Z")
_MAX_DIGITS = 38
# Digits that Spark gives an integer literal's type: INT, BIGINT.
_INT_DIGITS, _BIGINT_DIGITS = 10, 20
_DATE_TYPES = frozenset({"DATE"})
_TIME_TYPES = frozenset({"TIME"})
_TIMESTAMP_TYPES = frozenset({"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ"})


class _Unusable(Exception):
    """A condition from which nothing follows."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """How the names of one SELECT are to be understood, for one table in it."""

    reference: Reference
    columns: Mapping[str, Column | None]
    qualified_only: frozenset[str] | None
    plain_texts: bool
    utc: bool
    outer: bool

    def column(self, node: exp.Expr | None) -> Column:
        """Return the table's column that a node is.

        Raises:
            _Unusable: It is something else, or perhaps another table's.
        """
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise _Unusable
        name = node.name.lower()
        if node.table:
            if node.table.lower() != self.reference.alias.lower():
                raise _Unusable
        elif self.qualified_only is None or name in self.qualified_only:
            raise _Unusable
        column = self.columns.get(name)
        if column is None or column.kind in SEMI_STRUCTURED_TYPES:
            raise _Unusable
        return column


def predicates(
    query: Query, reference: Reference, columns_of: ColumnsOf, *, utc: bool
) -> list[Predicate]:
    """Return what must be true of every row of a referenced table that the query can use.

    `columns_of` gives a table's visible columns by lower-case name, None for what is no column
    of its own (a companion), and None for a table that is not ours; `utc`: the session's time
    zone is UTC.
    """
    node = reference.node
    if query.opaque or node is None or not isinstance(node.parent, exp.From | exp.Join):
        return []
    select = node.parent_select
    if not isinstance(select, exp.Select) or node.parent.parent is not select:
        return []
    if any(node.args.get(key) for key in ("pivots", "sample", "joins", "laterals", "version")):
        return []
    if select.args.get("sample") or select.args.get("pivots"):
        return []
    alias = node.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        return []
    scope = _scope(query, select, reference, columns_of, utc=utc)
    found = [_predicate(condition, scope) for condition in _conjuncts(select, node)]
    return [predicate for predicate in found if predicate is not None]


def exact_predicates(
    query: Query, reference: Reference, columns: Mapping[str, Column | None]
) -> list[Predicate]:
    """Return the whole condition of a query on one table, times without an offset in UTC.

    Raises:
        Unsupported: A part of it cannot be said by predicates exactly.
    """
    node = reference.node
    select = None if node is None else node.parent_select
    whole = query.tree
    if query.opaque or select is None or select is not whole or _has_more(select):
        raise Unsupported(
            what="This condition",
            instead="`where` takes comparisons of columns with constants; say the rest by "
            "`.where()` of the DataFrame",
        )
    scope = _scope(query, select, reference, lambda _: columns, utc=True)
    found = []
    for condition in _flat(select.args["where"].this):
        exact = all(map(_is_prefix, condition.find_all(exp.Like)))
        predicate = _predicate(condition, scope) if exact else None
        if predicate is None:
            raise Unsupported(
                what=f"The condition {condition.sql(dialect=DIALECT)}",
                instead="`where` takes comparisons of columns with constants; say the rest by "
                "`.where()` of the DataFrame",
            )
        found.append(predicate)
    return found


def _has_more(select: exp.Expr) -> bool:
    return any(
        select.args.get(key)
        for key in ("joins", "group", "having", "order", "limit", "laterals", "qualify", "windows")
    )


def _is_prefix(like: exp.Expr) -> bool:
    """Tell whether a LIKE says no more than how texts begin."""
    pattern = like.args["expression"].name
    return pattern.endswith("%") and not any(letter in pattern[:-1] for letter in "%_\\")


def _scope(
    query: Query,
    select: exp.Select,
    reference: Reference,
    columns_of: ColumnsOf,
    *,
    utc: bool,
) -> _Scope:
    joins = _joins(select)
    others = [source for source in sources(query, select) if source is not reference]
    known = [columns_of(source) for source in others]
    qualified_only: frozenset[str] | None = None
    if len(known) == len(joins) and None not in known and not select.args.get("laterals"):
        qualified_only = frozenset(name for names in known for name in names or ())
    return _Scope(
        reference=reference,
        columns=columns_of(reference) or {},
        qualified_only=qualified_only,
        # A backslash may be an escape, a double-quoted text a column, as settings will have it.
        plain_texts="\\" not in query.text and '"' not in query.text,
        utc=utc,
        outer=any(join.side for join in joins),
    )


def _joins(select: exp.Select) -> list[exp.Join]:
    return [join for join in select.args.get("joins") or [] if isinstance(join, exp.Join)]


def _conjuncts(select: exp.Select, table: exp.Table) -> Iterator[exp.Expr]:
    where = select.args.get("where")
    if where is not None:
        yield from _flat(where.this)
    for join in _joins(select):
        # A condition of ON rejects rows of both sides of an inner join, and of the right side of
        # a left, semi or anti join; what it does to the others is no rejection.
        inner = not join.side and join.kind.upper() in {"", "INNER", "CROSS"}
        own = table.parent is join and join.side.upper() in {"", "LEFT"}
        if join.args.get("on") is not None and (inner or own):
            yield from _flat(join.args["on"])


def _flat(condition: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.And):
        yield from _flat(condition.left)
        yield from _flat(condition.right)
    else:
        yield condition


def _predicate(condition: exp.Expr, scope: _Scope) -> Predicate | None:
    try:
        return _condition(condition, scope)
    except _Unusable:
        return None


def _condition(node: exp.Expr, scope: _Scope) -> Predicate:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Is):
        return _is_null(node.this, scope, negated=True)
    reader = _READERS.get(type(node), _comparison)
    return reader(node, scope)


def _or(node: exp.Expr, scope: _Scope) -> Predicate:
    return Or((_condition(node.args["this"], scope), _condition(node.args["expression"], scope)))


def _and(node: exp.Expr, scope: _Scope) -> Predicate:
    return And((_condition(node.args["this"], scope), _condition(node.args["expression"], scope)))


def _comparison(node: exp.Expr, scope: _Scope) -> Predicate:
    operator = _OPERATORS.get(type(node))
    if operator is None:
        raise _Unusable
    left, right = node.args["this"], node.args["expression"]
    if not isinstance(left, exp.Column):
        left, right, operator = right, left, _FLIPPED.get(operator, operator)
    column = scope.column(left)
    return Comparison(column.name, operator, _value(right, column, scope))  # type: ignore[arg-type]


def _between(node: exp.Expr, scope: _Scope) -> Predicate:
    if node.args.get("symmetric"):
        raise _Unusable
    column = scope.column(node.this)
    low = _value(node.args["low"], column, scope)
    high = _value(node.args["high"], column, scope)
    return And((Comparison(column.name, ">=", low), Comparison(column.name, "<=", high)))


def _in(node: exp.Expr, scope: _Scope) -> Predicate:
    column = scope.column(node.this)
    texts = node.expressions
    if not texts or any(node.args.get(key) for key in ("query", "unnest", "field")):
        raise _Unusable
    # NULL among the values makes the condition NULL instead of false: no row either way.
    values = [_value(text, column, scope) for text in texts if not isinstance(text, exp.Null)]
    return InList(column.name, tuple(values))


def _is_null(node: exp.Expr, scope: _Scope, *, negated: bool = False) -> Predicate:
    if not isinstance(node.args["expression"], exp.Null):
        raise _Unusable
    if not negated and scope.outer:
        # An outer join makes NULLs of its own, where rows are missing.
        raise _Unusable
    return IsNull(scope.column(node.this).name, negated=negated)


def _like(node: exp.Expr, scope: _Scope) -> Predicate:
    column = scope.column(node.this)
    pattern = node.args["expression"]
    if column.kind is not LogicalType.TEXT or not _is_text(pattern, scope):
        raise _Unusable
    prefix = re.split("[%_]", pattern.name, maxsplit=1)[0]
    if not prefix or prefix == pattern.name:
        raise _Unusable
    return StartsWith(column.name, prefix)


def _is_text(node: exp.Expr, scope: _Scope) -> bool:
    return isinstance(node, exp.Literal) and node.is_string and scope.plain_texts


def _value(node: exp.Expr, column: Column, scope: _Scope) -> LiteralValue:
    """Return a literal's value, if Spark compares it with the column as we do."""
    match column.kind:
        case LogicalType.FIXED | LogicalType.REAL:
            return _number(node, column)
        case LogicalType.TEXT if _is_text(node, scope):
            return str(node.name)
        case LogicalType.BOOLEAN if isinstance(node, exp.Boolean):
            return bool(node.this)
        case LogicalType.DATE:
            return dt.date.fromisoformat(_moment(node, _DATE, _DATE_TYPES, scope))
        case LogicalType.TIME:
            return dt.time.fromisoformat(_moment(node, _TIME, _TIME_TYPES, scope))
        case kind if kind in TIMESTAMP_TYPES:
            return _timestamp(node, column, scope)
    raise _Unusable


def _number(node: exp.Expr, column: Column) -> LiteralValue:
    sign = 1
    while isinstance(node, exp.Paren | exp.Neg):
        sign = -sign if isinstance(node, exp.Neg) else sign
        node = node.this
    if not isinstance(node, exp.Literal) or node.is_string:
        raise _Unusable
    text = node.name
    if _INTEGER.match(text):
        digits = _INT_DIGITS if len(text) < _INT_DIGITS else max(len(text), _BIGINT_DIGITS)
        _check_digits(column, digits, 0)
        return sign * int(text)
    if _DECIMAL.match(text):
        whole, _, fraction = text.partition(".")
        _check_digits(column, len(whole), len(fraction))
        return sign * Decimal(text)
    if _REAL.match(text):
        return sign * float(text)
    raise _Unusable


def _check_digits(column: Column, whole: int, scale: int) -> None:
    """Refuse literals for which Spark's common type of both sides would drop digits."""
    if column.kind is not LogicalType.FIXED:
        return
    own = column.scale or 0
    if max((column.precision or 38) - own, whole) + max(own, scale) > _MAX_DIGITS:
        raise _Unusable


def _moment(node: exp.Expr, form: re.Pattern[str], types: frozenset[str], scope: _Scope) -> str:
    """Return the text of `DATE '…'` or of a bare text that Spark casts to the column's type."""
    if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
        if str(node.to.this.name) not in types or node.to.expressions:
            raise _Unusable
        node = node.this
    if not _is_text(node, scope) or not form.match(node.name):
        raise _Unusable
    text = str(node.name)
    try:
        dt.datetime.fromisoformat(text if form is not _TIME else f"2000-01-01 {text}")
    except ValueError as error:
        raise _Unusable from error
    return text


def _timestamp(node: exp.Expr, column: Column, scope: _Scope) -> dt.datetime:
    if not scope.utc:
        # A literal without offset would mean an instant of the session's zone.
        raise _Unusable
    texts = _attempt(node, _TIMESTAMP, _TIMESTAMP_TYPES, scope) or _attempt(
        node, _DATE, _DATE_TYPES | _TIMESTAMP_TYPES, scope
    )
    if texts is None:
        raise _Unusable
    instant = dt.datetime.fromisoformat(texts)
    return instant if column.kind is LogicalType.TIMESTAMP_NTZ else instant.replace(tzinfo=dt.UTC)


def _attempt(
    node: exp.Expr, form: re.Pattern[str], types: frozenset[str], scope: _Scope
) -> str | None:
    try:
        return _moment(node, form, types, scope)
    except _Unusable:
        return None


_READERS: dict[type[exp.Expr], Callable[[exp.Expr, _Scope], Predicate]] = {
    exp.Or: _or,
    exp.And: _and,
    exp.Between: _between,
    exp.In: _in,
    exp.Is: _is_null,
    exp.Like: _like,
}
