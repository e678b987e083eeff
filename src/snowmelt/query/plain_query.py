"""Plain queries, which have the same result in Spark and DuckDB, and their translation to DuckDB.

A plain query selects columns or aggregates (count, min, max, sum) of one table, with a condition of
comparisons, grouping, order and limit. Everything else, and every column type for which the engines
differ, raises `QueryNotPlain`. Such a query needs Spark. The SQL for DuckDB is generated node by
node from the syntax tree, so an unknown node raises the error too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from snowmelt.catalog.sql.lexer import SqlRules, prepare_for_sqlglot, tokenize
from snowmelt.errors import UserError
from snowmelt.schema.iceberg_table_form import native_fields
from snowmelt.schema.types import Column, LogicalType, TableName, TableSchema

# Spark's dialect in sqlglot, with the additions of Spark 4.
_DIALECT = "databricks"
_FULL_NAME_PARTS = 3
# Names of catalog views in the Spark interface.
_VIEW_SCHEMAS = frozenset({"INFORMATION_SCHEMA", "ACCOUNT_USAGE"})
_SPARK_CATALOG = "SPARK_CATALOG"
_MAX_NUMBER_DIGITS = 18
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
# Without 24:00:00, which Spark rejects.
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2} ([01]\d|2[0-3]):\d{2}:\d{2}(\.\d{1,6})?")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_MICROSECOND_DIGITS = 6
_MAX_SHOWN_COLUMNS = 20
_FUNCTIONS_WITHOUT_PARENTHESES = {"user", "session_user", "localtimestamp"}

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
}
_AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.Min: "min",
    exp.Max: "max",
    exp.Sum: "sum",
}
_TIMESTAMP_KINDS = (LogicalType.TIMESTAMP_NTZ, LogicalType.TIMESTAMP_LTZ)
_PLAIN_KINDS = frozenset(
    {
        LogicalType.FIXED,
        LogicalType.REAL,
        LogicalType.BOOLEAN,
        LogicalType.TEXT,
        LogicalType.BINARY,
        LogicalType.DATE,
        *_TIMESTAMP_KINDS,
    }
)


class QueryNotPlain(UserError):
    """The query is not plain: {reason}. Run it with Spark (--engine spark)."""


class QueryColumnMissing(QueryNotPlain):
    """Column {column} does not exist. Columns: {columns}."""


@dataclass(frozen=True, slots=True)
class PlainQuery:
    """Plain query for DuckDB, on the relation `ROWS` with these `columns`.

    `output_names` and `output_types` are the names and types of the result's columns in Spark.
    """

    sql: str
    columns: tuple[str, ...]
    output_names: tuple[str, ...]
    output_types: tuple[LogicalType, ...]


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """Parsed SELECT on one table. `analyze` completes the checks when the columns are known."""

    select: exp.Select
    table: TableName
    alias: str

    def analyze(self, schema: TableSchema) -> PlainQuery:
        """Return the query for DuckDB.

        Raises:
            QueryNotPlain: If the query is not plain.
        """
        return _Analysis(self, schema).run()


def parse_plain_query(text: str, namespace: Sequence[str] = ()) -> ParsedQuery:
    """Parse a SELECT on one table of the catalog.

    Args:
        text: The query, in Spark's dialect.
        namespace: Database and schema of names without them, as internal names.

    Raises:
        QueryNotPlain: If the text is not a SELECT on one table.
        StatementError: If a string, quoted name or comment is not closed.
    """
    try:
        prepared = prepare_for_sqlglot(tokenize(text, SqlRules.SPARK))
        trees = [tree for tree in sqlglot.parse(prepared, dialect=_DIALECT) if tree is not None]
    except (SqlglotError, RecursionError):
        trees = []
    if len(trees) != 1 or not isinstance(trees[0], exp.Select):
        raise QueryNotPlain(reason="it is not a single SELECT")
    select = trees[0]
    _check_args(select, "expressions", "from_", "where", "group", "order", "limit", "distinct")
    source = select.args.get("from_")
    if source is None or not isinstance(source.this, exp.Table):
        raise QueryNotPlain(reason="it does not read a table")
    table = source.this
    _check_args(source, "this")
    _check_args(table, "this", "db", "catalog", "alias")
    alias = table.args.get("alias")
    if alias is not None:
        _check_args(alias, "this")
    parts = tuple(
        part.name if part.quoted else part.name.upper()
        for part in table.parts
        if isinstance(part, exp.Identifier)
    )
    missing = _FULL_NAME_PARTS - len(parts)
    parts = (*namespace[:missing], *parts)
    if len(parts) != _FULL_NAME_PARTS or len(table.parts) > _FULL_NAME_PARTS:
        raise QueryNotPlain(reason="the table is not named as database.schema.table")
    if parts[1] in _VIEW_SCHEMAS or parts[0] == _SPARK_CATALOG:
        raise QueryNotPlain(reason="it reads a view")
    return ParsedQuery(select, TableName(*parts), table.alias or parts[-1])


class _Analysis:
    def __init__(self, query: ParsedQuery, schema: TableSchema) -> None:
        self._query = query
        self._schema = schema
        self._by_name: dict[str, Column] = {}
        # Names of Spark's columns in lower case: the columns and their companions.
        self._spark_names: set[str] = set()
        for column in schema.columns:
            for field in native_fields(column):
                if field.name.lower() in self._spark_names:
                    raise QueryNotPlain(reason=f"two columns are called {field.name}")
                self._spark_names.add(field.name.lower())
            self._by_name[column.name.lower()] = column
        self._used: dict[str, None] = {}
        # 1-based positions of the outputs by name and by alias, in lower case.
        self._aliases: dict[str, int] = {}
        self._outputs: list[tuple[str, str, LogicalType]] = []
        self._plain_outputs: dict[str, int] = {}
        self._has_aggregate = False

    def run(self) -> PlainQuery:
        select = self._query.select
        for projection in select.expressions:
            self._add_output(projection)
        group = self._render_group(select.args.get("group"))
        distinct = select.args.get("distinct")
        if distinct is not None:
            _check_args(distinct)
            for name in self._plain_outputs:
                self._require_groupable(self._by_name[name])
        where = select.args.get("where")
        parts = [
            "SELECT" if distinct is None else "SELECT DISTINCT",
            ", ".join(sql for sql, _, _ in self._outputs),
            'FROM "ROWS"',
        ]
        if where is not None:
            parts.append(f"WHERE {self._render_condition(where.this)}")
        if group:
            parts.append(f"GROUP BY {group}")
        order = select.args.get("order")
        if order is not None:
            _check_args(order, "expressions")
            is_restricted = bool(group) or self._has_aggregate or distinct is not None
            terms = (self._render_order(each, is_restricted) for each in order.expressions)
            parts.append(f"ORDER BY {', '.join(terms)}")
        limit = select.args.get("limit")
        if limit is not None:
            _check_args(limit, "expression")
            parts.append(f"LIMIT {_read_integer(limit.expression)}")
        # Read at least one column, because rows without columns would not be counted.
        columns = tuple(self._used) or (self._schema.columns[0].name,)
        names = tuple(name for _, name, _ in self._outputs)
        types = tuple(output_type for _, _, output_type in self._outputs)
        return PlainQuery(" ".join(parts), columns, names, types)

    def _add_output(self, node: exp.Expr) -> None:
        star = node.this if isinstance(node, exp.Column) else node
        if isinstance(star, exp.Star):
            # EXCEPT and REPLACE are arguments of the star, also after a qualifier.
            _check_args(star)
            if isinstance(node, exp.Column):
                self._check_qualifier(node)
            self._add_star()
            return
        alias = None
        if isinstance(node, exp.Alias):
            _check_args(node, "this", "alias")
            alias, node = node.alias, node.this
        sql, name, output_type = self._render_output(node)
        self._outputs.append((sql, name if alias is None else alias, output_type))
        position = len(self._outputs)
        if isinstance(node, exp.Column):
            self._plain_outputs.setdefault(self._find_column(node).name.lower(), position)
        if alias is not None:
            same = isinstance(node, exp.Column) and node.name.lower() == alias.lower()
            if (alias.lower() in self._by_name and not same) or alias.lower() in self._aliases:
                raise QueryNotPlain(reason=f"alias {alias} has two meanings")
            if not same:
                self._aliases[alias.lower()] = position

    def _add_star(self) -> None:
        for column in self._schema.columns:
            self._outputs.append((self._render_name(column), column.name, column.kind))
            self._plain_outputs.setdefault(column.name.lower(), len(self._outputs))

    def _render_output(self, node: exp.Expr) -> tuple[str, str, LogicalType]:
        if isinstance(node, exp.Column):
            return self._render_column(node), node.name, self._find_column(node).kind
        function = _AGGREGATES.get(type(node))
        if function is None:
            raise QueryNotPlain(reason=f"it selects {_describe(node)}")
        self._has_aggregate = True
        _check_args(node, "this", "big_int")
        argument, distinct = node.this, ""
        if isinstance(argument, exp.Star) and function == "count":
            _check_args(argument)
            return "count(*)", "count(1)", LogicalType.FIXED
        if isinstance(argument, exp.Distinct) and function == "count":
            _check_args(argument, "expressions")
            if len(argument.expressions) != 1:
                raise QueryNotPlain(reason="it counts distinct combinations")
            argument, distinct = argument.expressions[0], "DISTINCT "
        if not isinstance(argument, exp.Column):
            raise QueryNotPlain(reason=f"it aggregates {_describe(argument)}")
        column = self._find_column(argument)
        if function == "sum" and column.kind is not LogicalType.FIXED:
            raise QueryNotPlain(reason=f"it sums {column.kind} column {column.name}")
        if function in {"min", "max"} or distinct:
            self._require_groupable(column)
        return (
            f"{function}({distinct}{self._render_name(column)})",
            f"{function}({distinct}{argument.name})",
            column.kind if function in {"min", "max"} else LogicalType.FIXED,
        )

    def _render_group(self, group: exp.Expr | None) -> str:
        grouped: set[int] = set()
        terms = []
        if group is not None:
            _check_args(group, "expressions")
            for node in group.expressions:
                column = self._resolve_group_term(node)
                self._require_groupable(column)
                terms.append(self._render_name(column))
                grouped.add(self._plain_outputs.get(column.name.lower(), 0))
        if group is not None or self._has_aggregate:
            loose = [
                name for name, position in self._plain_outputs.items() if position not in grouped
            ]
            if loose:
                raise QueryNotPlain(reason=f"column {loose[0]} is neither grouped nor aggregated")
        return ", ".join(terms)

    def _resolve_group_term(self, node: exp.Expr) -> Column:
        if isinstance(node, exp.Literal):
            position = _read_integer(node)
            names = [name for name, at in self._plain_outputs.items() if at == position]
            if not names:
                raise QueryNotPlain(reason="it groups by a position that is not a column")
            return self._by_name[names[0]]
        if not isinstance(node, exp.Column) or node.name.lower() in self._aliases:
            raise QueryNotPlain(reason=f"it groups by {_describe(node)}")
        return self._find_column(node)

    def _render_order(self, node: exp.Expr, is_restricted: bool) -> str:
        if not isinstance(node, exp.Ordered):
            raise QueryNotPlain(reason=f"it orders by {_describe(node)}")
        _check_args(node, "this", "desc", "nulls_first")
        key = node.this
        position: int | None = None
        if isinstance(key, exp.Literal):
            position = _read_integer(key)
            if not 1 <= position <= len(self._outputs):
                raise QueryNotPlain(reason="it orders by a position that does not exist")
        elif not isinstance(key, exp.Column):
            raise QueryNotPlain(reason=f"it orders by {_describe(key)}")
        elif key.name.lower() in self._aliases and not key.table:
            position = self._aliases[key.name.lower()]
        elif is_restricted:
            position = self._plain_outputs.get(self._find_column(key).name.lower())
            if position is None:
                raise QueryNotPlain(reason=f"it orders by {key.name}, which is not selected")
        term = self._render_column(key) if position is None else str(position)
        direction = "DESC" if node.args.get("desc") else "ASC"
        nulls = "FIRST" if node.args.get("nulls_first") else "LAST"
        return f"{term} {direction} NULLS {nulls}"

    def _render_condition(self, node: exp.Expr) -> str:
        renderers: dict[type[exp.Expr], Callable[[Any], str]] = {
            exp.Paren: lambda node: self._render_condition(node.this),
            exp.And: self._render_junction,
            exp.Or: self._render_junction,
            exp.Not: lambda node: f"(NOT {self._render_condition(node.this)})",
            exp.Is: self._render_is,
            exp.In: self._render_in,
            exp.Between: self._render_between,
            exp.Like: self._render_like,
            exp.Column: self._render_boolean,
        }
        render = renderers.get(type(node))
        if render is not None:
            return render(node)
        operator = _COMPARISONS.get(type(node))
        if operator is None:
            raise QueryNotPlain(reason=f"its condition has {_describe(node)}")
        return self._render_comparison(node, operator)

    def _render_junction(self, node: exp.Expr) -> str:
        _check_args(node, "this", "expression")
        word = "AND" if isinstance(node, exp.And) else "OR"
        left, right = map(self._render_condition, (node.this, node.args["expression"]))
        return f"({left} {word} {right})"

    def _render_boolean(self, node: exp.Column) -> str:
        column = self._find_column(node)
        if column.kind is not LogicalType.BOOLEAN:
            raise QueryNotPlain(reason=f"column {column.name} is not a condition")
        return self._render_name(column)

    def _render_is(self, node: exp.Is) -> str:
        _check_args(node, "this", "expression")
        if not isinstance(node.this, exp.Column) or not isinstance(node.expression, exp.Null):
            raise QueryNotPlain(reason=f"its condition has {_describe(node)}")
        return f"({self._render_column(node.this)} IS NULL)"

    def _render_in(self, node: exp.In) -> str:
        _check_args(node, "this", "expressions")
        column = self._find_operand(node.this)
        values = ", ".join(self._render_literal(each, column) for each in node.expressions)
        return f"({self._render_name(column)} IN ({values}))"

    def _render_between(self, node: exp.Between) -> str:
        _check_args(node, "this", "low", "high")
        column = self._find_operand(node.this)
        low, high = (self._render_literal(node.args[each], column) for each in ("low", "high"))
        return f"({self._render_name(column)} BETWEEN {low} AND {high})"

    def _render_like(self, node: exp.Like) -> str:
        _check_args(node, "this", "expression")
        column, pattern = self._find_operand(node.this), node.expression
        if column.kind is not LogicalType.TEXT or not isinstance(pattern, exp.Literal):
            raise QueryNotPlain(reason="LIKE needs a text column and a literal")
        # A backslash is an escape in Spark, but not in DuckDB.
        if not pattern.is_string or "\\" in pattern.this:
            raise QueryNotPlain(reason="a LIKE pattern has a backslash")
        return f"({self._render_name(column)} LIKE {_quote_text(pattern.this)})"

    def _render_comparison(self, node: exp.Expr, operator: str) -> str:
        _check_args(node, "this", "expression")
        left, right = node.this, node.args["expression"]
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            first, second = self._find_operand(left), self._find_operand(right)
            if first.kind is not second.kind:
                raise QueryNotPlain(reason=f"it compares {first.kind} with {second.kind}")
            if first.kind is LogicalType.FIXED and (first.scale or 0) != (second.scale or 0):
                raise QueryNotPlain(reason="it compares numbers of different scales")
            return f"({self._render_name(first)} {operator} {self._render_name(second)})"
        if isinstance(left, exp.Column):
            column = self._find_operand(left)
            return f"({self._render_name(column)} {operator} {self._render_literal(right, column)})"
        column = self._find_operand(right)
        return f"({self._render_literal(left, column)} {operator} {self._render_name(column)})"

    def _find_operand(self, node: exp.Expr) -> Column:
        if not isinstance(node, exp.Column):
            raise QueryNotPlain(reason=f"its condition has {_describe(node)}")
        return self._find_column(node)

    def _render_literal(self, node: exp.Expr, column: Column) -> str:
        """Return a literal of the type of `column`."""
        if column.kind in {LogicalType.FIXED, LogicalType.REAL}:
            return _render_number(node)
        if column.kind is LogicalType.TEXT and isinstance(node, exp.Literal) and node.is_string:
            return _quote_text(node.this)
        if column.kind is LogicalType.BOOLEAN and isinstance(node, exp.Boolean):
            return "TRUE" if node.this else "FALSE"
        if column.kind is LogicalType.DATE:
            return f"DATE {_quote_text(_read_typed_text(node, {exp.DType.DATE}, _DATE))}"
        if column.kind in _TIMESTAMP_KINDS:
            types = {exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ, exp.DType.TIMESTAMPTZ}
            return f"TIMESTAMP {_quote_text(_read_typed_text(node, types, _TIMESTAMP))}"
        raise QueryNotPlain(reason=f"it compares {column.kind} with {_describe(node)}")

    def _render_column(self, node: exp.Column) -> str:
        return self._render_name(self._find_column(node))

    def _find_column(self, node: exp.Column) -> Column:
        self._check_qualifier(node)
        column = self._by_name.get(node.name.lower())
        if column is None:
            reason = f"the table has no column {node.name}"
            if node.table or not self._is_missing_in_spark(node.name):
                raise QueryNotPlain(reason=reason)
            names = [each.display_name for each in self._schema.columns]
            shown = ", ".join(names[:_MAX_SHOWN_COLUMNS])
            more = len(names) - _MAX_SHOWN_COLUMNS
            raise QueryColumnMissing(
                reason=reason,
                column=node.name,
                columns=f"{shown} and {more} more" if more > 0 else shown,
            )
        return column

    def _is_missing_in_spark(self, name: str) -> bool:
        """Return True if Spark, too, cannot resolve a name without a qualifier.

        It resolves companions, aliases of the select list, functions without parentheses, and
        hidden columns.
        """
        aliases = {each.alias.lower() for each in self._query.select.expressions if each.alias}
        return (
            name.lower() not in aliases | self._spark_names | _FUNCTIONS_WITHOUT_PARENTHESES
            and not name.lower().startswith("current_")
            and not name.startswith("_")
            and "__" not in name
        )

    def _check_qualifier(self, node: exp.Column) -> None:
        _check_args(node, "this", "table")
        if node.table and node.table.lower() != self._query.alias.lower():
            raise QueryNotPlain(reason=f"there is no table {node.table}")

    def _render_name(self, column: Column) -> str:
        if column.kind not in _PLAIN_KINDS:
            raise QueryNotPlain(reason=f"column {column.name} is {column.kind}")
        if column.kind in _TIMESTAMP_KINDS and (column.scale or 0) > _MICROSECOND_DIGITS:
            raise QueryNotPlain(reason=f"column {column.name} has nanoseconds")
        self._used[column.name] = None
        return '"' + column.name.replace('"', '""') + '"'

    def _require_groupable(self, column: Column) -> None:
        # For equal values 0.0 and -0.0, the engines may return different ones.
        if column.kind is LogicalType.REAL:
            raise QueryNotPlain(reason=f"it groups by column {column.name}, which is FLOAT")


def _check_args(node: exp.Expr, *known: str) -> None:
    """Verify that a node has only these arguments."""
    for name, value in node.args.items():
        if value and name not in known:
            raise QueryNotPlain(reason=f"it has {name.rstrip('_').upper().replace('_', ' ')}")


def _describe(node: exp.Expr) -> str:
    return str(node.sql(dialect=_DIALECT))[:80]


def _read_integer(node: exp.Expr) -> int:
    if isinstance(node, exp.Literal) and not node.is_string and node.this.isdecimal():
        return int(node.this)
    raise QueryNotPlain(reason=f"{_describe(node)} is not an integer")


def _render_number(node: exp.Expr) -> str:
    sign = ""
    if isinstance(node, exp.Neg):
        sign, node = "-", node.this
    if (
        not isinstance(node, exp.Literal)
        or node.is_string
        or not _NUMBER.fullmatch(node.this)
        or len(node.this) > _MAX_NUMBER_DIGITS
    ):
        raise QueryNotPlain(reason=f"it compares a number with {_describe(node)}")
    return sign + str(node.this)


def _read_typed_text(node: exp.Expr, types: set[exp.DType], pattern: re.Pattern[str]) -> str:
    """Return the text of `DATE '…'` or `TIMESTAMP '…'`."""
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.is_string:
        text: str = node.this.this
        if node.to.this in types and pattern.fullmatch(text):
            return text
    raise QueryNotPlain(reason=f"it compares a date or time with {_describe(node)}")


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
