"""Predicates for pruning files and chunks, extracted from the conditions of a query.

A condition becomes a predicate only if it compares a plain column of the table with a literal that
Spark and Snowmelt interpret identically. A missing predicate only costs time, but an incorrect
predicate would lose rows.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from sqlglot import exp

from snowmelt.errors import Unsupported
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, TIMESTAMP_TYPES, Column, LogicalType
from snowmelt.spark.sql.table_references import (
    DIALECT,
    SparkQuery,
    TableReference,
    list_select_sources,
)
from snowmelt.table.pruning import (
    And,
    Comparison,
    InList,
    IsNull,
    LiteralValue,
    Or,
    Predicate,
    StartsWith,
)

ColumnLookup: TypeAlias = "Callable[[TableReference], Mapping[str, Column | None] | None]"

_COMPARISON_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}
_FLIPPED_OPERATORS = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DATE_PATTERN = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_TIME_PATTERN = re.compile(r"\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?\Z")
_TIMESTAMP_PATTERN = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?\Z")
_INTEGER_PATTERN = re.compile(r"\d+\Z")
_DECIMAL_PATTERN = re.compile(r"\d*\.\d+\Z|\d+\.\Z")
_FLOAT_PATTERN = re.compile(r"(?:\d++\.?\d*|\.\d+)[eE][+-]?\d+\Z")
_MAX_DECIMAL_DIGITS = 38
# Precision of the decimal type to which Spark widens an INT or BIGINT literal.
_INT_DIGITS, _BIGINT_DIGITS = 10, 20
_DATE_TYPES = frozenset({"DATE"})
_TIME_TYPES = frozenset({"TIME"})
_TIMESTAMP_TYPES = frozenset({"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ"})


class _UnusableCondition(Exception):
    """Error for a condition that cannot become a predicate."""


@dataclass(frozen=True, slots=True)
class _SelectScope:
    """Name resolution rules of one SELECT, for one of its tables."""

    reference: TableReference
    columns: Mapping[str, Column | None]
    ambiguous_names: frozenset[str] | None
    has_plain_strings: bool
    is_utc: bool
    has_outer_join: bool

    def resolve_column(self, node: exp.Expr | None) -> Column:
        """Return the table's column that a node refers to.

        Raises:
            _UnusableCondition: If the node is not a column, or may belong to another table.
        """
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise _UnusableCondition
        name = node.name.lower()
        if node.table:
            if node.table.lower() != self.reference.alias.lower():
                raise _UnusableCondition
        elif self.ambiguous_names is None or name in self.ambiguous_names:
            raise _UnusableCondition
        column = self.columns.get(name)
        if column is None or column.kind in SEMI_STRUCTURED_TYPES:
            raise _UnusableCondition
        return column


def extract_predicates(
    query: SparkQuery, reference: TableReference, find_columns: ColumnLookup, *, is_utc: bool
) -> list[Predicate]:
    """Return predicates that are true for every row of a table that can affect the query.

    Args:
        query: The query.
        reference: The table reference.
        find_columns: Returns a table's visible columns by lower-case name, with None for a companion
            column. Returns None for a table that is not in the catalog.
        is_utc: True if the session's time zone is UTC.
    """
    node = reference.node
    if query.is_opaque or node is None or not isinstance(node.parent, exp.From | exp.Join):
        return []
    select = node.parent_select
    if not isinstance(select, exp.Select) or node.parent.parent is not select:
        return []
    if any(node.args.get(key) for key in ("pivots", "sample", "joins", "laterals", "version")):
        return []
    if select.args.get("sample") or select.args.get("pivots"):
        return []
    scope = _make_scope(query, select, reference, find_columns, is_utc=is_utc)
    found = [
        _try_convert_condition(condition, scope) for condition in _list_conjuncts(select, node)
    ]
    return [predicate for predicate in found if predicate is not None]


def extract_exact_predicates(
    query: SparkQuery, reference: TableReference, columns: Mapping[str, Column | None]
) -> list[Predicate]:
    """Convert the whole condition of a single-table query. Times without an offset are in UTC.

    Raises:
        Unsupported: If predicates cannot express a part of the condition exactly.
    """
    node = reference.node
    select = None if node is None else node.parent_select
    whole = query.tree
    if query.is_opaque or select is None or select is not whole or _has_other_clauses(select):
        raise Unsupported(
            what="This condition",
            instead="`where` accepts only comparisons of columns with constants; apply other "
            "conditions with `.where()` of the DataFrame",
        )
    scope = _make_scope(query, select, reference, lambda _: columns, is_utc=True)
    found = []
    for condition in _flatten_conjunction(select.args["where"].this):
        exact = all(map(_is_prefix_pattern, condition.find_all(exp.Like)))
        predicate = _try_convert_condition(condition, scope) if exact else None
        if predicate is None:
            raise Unsupported(
                what=f"The condition {condition.sql(dialect=DIALECT)}",
                instead="`where` accepts only comparisons of columns with constants; apply other "
                "conditions with `.where()` of the DataFrame",
            )
        found.append(predicate)
    return found


def _has_other_clauses(select: exp.Expr) -> bool:
    return any(
        select.args.get(key)
        for key in ("joins", "group", "having", "order", "limit", "laterals", "qualify", "windows")
    )


def _is_prefix_pattern(like: exp.Expr) -> bool:
    """Return True if a LIKE pattern only tests a prefix."""
    pattern = like.args["expression"].name
    return pattern.endswith("%") and not any(letter in pattern[:-1] for letter in "%_\\")


def _make_scope(
    query: SparkQuery,
    select: exp.Select,
    reference: TableReference,
    find_columns: ColumnLookup,
    *,
    is_utc: bool,
) -> _SelectScope:
    joins = _list_joins(select)
    others = [source for source in list_select_sources(query, select) if source is not reference]
    known = [_find_aliased_columns(source, find_columns) for source in others]
    qualified_only: frozenset[str] | None = None
    if len(known) == len(joins) and None not in known and not select.args.get("laterals"):
        qualified_only = frozenset(name for names in known for name in names or ())
    return _SelectScope(
        reference=reference,
        columns=_find_aliased_columns(reference, find_columns) or {},
        ambiguous_names=qualified_only,
        # Skip these: depending on settings, a backslash is an escape, and double quotes quote a
        # column.
        has_plain_strings="\\" not in query.text and '"' not in query.text,
        is_utc=is_utc,
        has_outer_join=any(join.side for join in joins),
    )


def _find_aliased_columns(
    reference: TableReference, find_columns: ColumnLookup
) -> Mapping[str, Column | None] | None:
    """Return a table's columns by the names of `AS alias(names)`. None: unknown."""
    columns = find_columns(reference)
    alias = None if reference.node is None else reference.node.args.get("alias")
    names = [each.name.lower() for each in alias.args.get("columns") or ()] if alias else []
    if columns is None or not names:
        return columns
    renamed = dict(zip(names, columns.values(), strict=False))
    return renamed if len(renamed) == len(names) == len(columns) else None


def _list_joins(select: exp.Select) -> list[exp.Join]:
    return [join for join in select.args.get("joins") or [] if isinstance(join, exp.Join)]


def _list_conjuncts(select: exp.Select, table: exp.Table) -> Iterator[exp.Expr]:
    where = select.args.get("where")
    if where is not None:
        yield from _flatten_conjunction(where.this)
    for join in _list_joins(select):
        # An ON condition rejects rows of both sides of an inner join, and of the right side of a
        # left, semi or anti join. It does not reject other rows.
        inner = not join.side and join.kind.upper() in {"", "INNER", "CROSS"}
        own = table.parent is join and join.side.upper() in {"", "LEFT"}
        if join.args.get("on") is not None and (inner or own):
            yield from _flatten_conjunction(join.args["on"])


def _flatten_conjunction(condition: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.And):
        yield from _flatten_conjunction(condition.left)
        yield from _flatten_conjunction(condition.right)
    else:
        yield condition


def _try_convert_condition(condition: exp.Expr, scope: _SelectScope) -> Predicate | None:
    try:
        return _convert_condition(condition, scope)
    except _UnusableCondition:
        return None


def _convert_condition(node: exp.Expr, scope: _SelectScope) -> Predicate:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Is):
        return _convert_is_null(node.this, scope, negated=True)
    if isinstance(node, exp.And | exp.Or):
        sides = tuple(_convert_condition(node.args[key], scope) for key in ("this", "expression"))
        return And(sides) if isinstance(node, exp.And) else Or(sides)
    reader = _CONVERTERS.get(type(node), _convert_comparison)
    return reader(node, scope)


def _convert_comparison(node: exp.Expr, scope: _SelectScope) -> Predicate:
    operator = _COMPARISON_OPERATORS.get(type(node))
    if operator is None:
        raise _UnusableCondition
    left, right = node.args["this"], node.args["expression"]
    if not isinstance(left, exp.Column):
        left, right, operator = right, left, _FLIPPED_OPERATORS.get(operator, operator)
    column = scope.resolve_column(left)
    return Comparison(column.name, operator, _convert_literal(right, column, scope))  # type: ignore[arg-type]


def _convert_between(node: exp.Expr, scope: _SelectScope) -> Predicate:
    if node.args.get("symmetric"):
        raise _UnusableCondition
    column = scope.resolve_column(node.this)
    low = _convert_literal(node.args["low"], column, scope)
    high = _convert_literal(node.args["high"], column, scope)
    return And((Comparison(column.name, ">=", low), Comparison(column.name, "<=", high)))


def _convert_in(node: exp.Expr, scope: _SelectScope) -> Predicate:
    column = scope.resolve_column(node.this)
    texts = node.expressions
    if not texts or any(node.args.get(key) for key in ("query", "unnest", "field")):
        raise _UnusableCondition
    # Ignore NULL among the values: it makes the condition NULL instead of false, and neither
    # selects a row.
    texts = [text for text in texts if not isinstance(text, exp.Null)]
    if column.kind is LogicalType.FIXED:
        return InList(column.name, _convert_numbers(texts, column))
    return InList(column.name, tuple(_convert_literal(text, column, scope) for text in texts))


def _convert_is_null(node: exp.Expr, scope: _SelectScope, *, negated: bool = False) -> Predicate:
    if not isinstance(node.args["expression"], exp.Null):
        raise _UnusableCondition
    if not negated and scope.has_outer_join:
        # An outer join adds NULLs for rows without a match.
        raise _UnusableCondition
    return IsNull(scope.resolve_column(node.this).name, negated=negated)


def _convert_like(node: exp.Expr, scope: _SelectScope) -> Predicate:
    column = scope.resolve_column(node.this)
    pattern = node.args["expression"]
    if column.kind is not LogicalType.TEXT or not _is_string_literal(pattern, scope):
        raise _UnusableCondition
    prefix = re.split("[%_]", pattern.name, maxsplit=1)[0]
    if not prefix or prefix == pattern.name:
        raise _UnusableCondition
    return StartsWith(column.name, prefix)


def _is_string_literal(node: exp.Expr, scope: _SelectScope) -> bool:
    return isinstance(node, exp.Literal) and node.is_string and scope.has_plain_strings


def _convert_literal(node: exp.Expr, column: Column, scope: _SelectScope) -> LiteralValue:
    """Return a literal's value. Rejects literals that Spark compares differently from Snowmelt."""
    match column.kind:
        case LogicalType.FIXED | LogicalType.REAL:
            return _convert_number(node, column)
        case LogicalType.TEXT if _is_string_literal(node, scope):
            return str(node.name)
        case LogicalType.BOOLEAN if isinstance(node, exp.Boolean):
            return bool(node.this)
        case LogicalType.DATE:
            return dt.date.fromisoformat(
                _extract_datetime_text(node, _DATE_PATTERN, _DATE_TYPES, scope)
            )
        case LogicalType.TIME:
            return dt.time.fromisoformat(
                _extract_datetime_text(node, _TIME_PATTERN, _TIME_TYPES, scope)
            )
        case kind if kind in TIMESTAMP_TYPES:
            return _convert_timestamp(node, column, scope)
    raise _UnusableCondition


def _convert_number(node: exp.Expr, column: Column) -> LiteralValue:
    return _convert_numbers([node], column)[0]


def _convert_numbers(nodes: list[exp.Expr], column: Column) -> tuple[LiteralValue, ...]:
    """Return the values of numbers that Spark casts, with the column, to one common type."""
    parsed = [_parse_number(node) for node in nodes]
    if any(isinstance(number.value, float) for number in parsed):
        try:
            return tuple(float(number.value) for number in parsed)
        except OverflowError:
            raise _UnusableCondition from None
    if parsed:
        whole = max(number.whole_digits for number in parsed)
        _check_common_type(column, whole, max(number.scale for number in parsed))
    return tuple(number.value for number in parsed)


@dataclass(frozen=True, slots=True)
class _Number:
    """A literal, and the digits of the decimal type to which Spark widens it (not of a float)."""

    value: int | float | Decimal
    whole_digits: int = 0
    scale: int = 0


def _parse_number(node: exp.Expr) -> _Number:
    sign = 1
    while isinstance(node, exp.Paren | exp.Neg):
        sign = -sign if isinstance(node, exp.Neg) else sign
        node = node.this
    if not isinstance(node, exp.Literal) or node.is_string:
        raise _UnusableCondition
    text = node.name
    if _INTEGER_PATTERN.match(text):
        digits = _INT_DIGITS if len(text) < _INT_DIGITS else max(len(text), _BIGINT_DIGITS)
        return _Number(sign * int(text), digits)
    if _DECIMAL_PATTERN.match(text):
        whole, _, fraction = text.partition(".")
        return _Number(sign * Decimal(text), len(whole), len(fraction))
    if _FLOAT_PATTERN.match(text):
        return _Number(sign * float(text))
    raise _UnusableCondition


def _check_common_type(column: Column, whole_digits: int, scale: int) -> None:
    """Reject literals that lose digits in the common type to which Spark casts both sides."""
    if column.kind is not LogicalType.FIXED:
        return
    own = column.scale or 0
    if max((column.precision or 38) - own, whole_digits) + max(own, scale) > _MAX_DECIMAL_DIGITS:
        raise _UnusableCondition


def _extract_datetime_text(
    node: exp.Expr, pattern: re.Pattern[str], types: frozenset[str], scope: _SelectScope
) -> str:
    """Return the text of `DATE '…'`, or of a string that Spark casts to the column's type."""
    if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
        if str(node.to.this.name) not in types or node.to.expressions:
            raise _UnusableCondition
        node = node.this
    if not _is_string_literal(node, scope) or not pattern.match(node.name):
        raise _UnusableCondition
    text = str(node.name)
    try:
        dt.datetime.fromisoformat(text if pattern is not _TIME_PATTERN else f"2000-01-01 {text}")
    except ValueError as error:
        raise _UnusableCondition from error
    return text


def _convert_timestamp(node: exp.Expr, column: Column, scope: _SelectScope) -> dt.datetime:
    if not scope.is_utc:
        # Spark interprets a literal without an offset in the session's time zone.
        raise _UnusableCondition
    texts = _try_extract_datetime_text(
        node, _TIMESTAMP_PATTERN, _TIMESTAMP_TYPES, scope
    ) or _try_extract_datetime_text(node, _DATE_PATTERN, _DATE_TYPES | _TIMESTAMP_TYPES, scope)
    if texts is None:
        raise _UnusableCondition
    instant = dt.datetime.fromisoformat(texts)
    return instant if column.kind is LogicalType.TIMESTAMP_NTZ else instant.replace(tzinfo=dt.UTC)


def _try_extract_datetime_text(
    node: exp.Expr, pattern: re.Pattern[str], types: frozenset[str], scope: _SelectScope
) -> str | None:
    try:
        return _extract_datetime_text(node, pattern, types, scope)
    except _UnusableCondition:
        return None


_CONVERTERS: dict[type[exp.Expr], Callable[[exp.Expr, _SelectScope], Predicate]] = {
    exp.Between: _convert_between,
    exp.In: _convert_in,
    exp.Is: _convert_is_null,
    exp.Like: _convert_like,
}
