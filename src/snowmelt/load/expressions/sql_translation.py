"""SQL of COPY expressions: Vertica's, read by sqlglot and written for DuckDB.

Nothing falls through: operators, casts and functions that are not listed here or in
`expression_functions` are rejected by name.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import TokenType, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parsers.postgres import PostgresParser

from snowmelt.errors import LoadRefused
from snowmelt.load.expressions import types
from snowmelt.load.expressions.casts import cast
from snowmelt.load.expressions.datetime_templates import TemplateInvalid, TemplateReader, char_sql
from snowmelt.load.expressions.functions import FUNCTIONS, PART_FUNCTIONS, REJECTED, call, date_part
from snowmelt.load.expressions.types import (
    ExpressionInvalid,
    ExpressionType,
    TypedSql,
    failing,
    quote,
)
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

T = ExpressionType
COERCES = "coerces"
_MAX_SQL = 200_000
_NOW = frozenset({"NOW", "STATEMENT_TIMESTAMP", "TRANSACTION_TIMESTAMP"})
_LOCAL_NOW = frozenset({"GETDATE", "SYSDATE", "GETUTCDATE"})
# Functions that Vertica writes without parentheses.
_WORDS = frozenset({"SYSDATE", "CURRENT_DATE", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP"})
_BARE_REJECTED = frozenset({"CURRENT_TIME", "LOCALTIME", "CURRENT_USER", "SESSION_USER", "USER"})
_TEMPLATED = frozenset({"TO_CHAR", "TO_DATE", "TO_TIMESTAMP"})
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
}
_BITS: dict[type[exp.Expr], str] = {
    exp.BitwiseAnd: "({} & {})",
    exp.BitwiseOr: "({} | {})",
    exp.BitwiseXor: "xor({}, {})",
    exp.BitwiseLeftShift: "({} << {})",
    exp.BitwiseRightShift: "({} >> {})",
}
_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_TRIMS = {None: "BTRIM", "BOTH": "BTRIM", "LEADING": "LTRIM", "TRAILING": "RTRIM"}
_MORE_THAN_ROW = (
    *(exp.Query, exp.Table, exp.Window, exp.AggFunc, exp.Star, exp.Parameter, exp.Placeholder),
    *(exp.UDTF, exp.Explode, exp.Command),
)
_AGGREGATES = frozenset(
    {"SUM", "COUNT", "AVG", "MIN", "MAX", "UNNEST", "EXPLODE", "STDDEV", "MEDIAN"}
)


class _Vertica(Postgres):
    """Vertica's SQL as far as expressions go. Functions stay calls by the name that was written."""

    class Parser(PostgresParser):
        FUNCTIONS = {}  # noqa: RUF012 - declared as a plain dictionary by sqlglot
        NO_PAREN_FUNCTIONS = {}  # noqa: RUF012
        NO_PAREN_FUNCTION_PARSERS = {  # noqa: RUF012
            "CASE": PostgresParser.NO_PAREN_FUNCTION_PARSERS["CASE"]
        }
        FUNCTION_PARSERS = {  # noqa: RUF012
            name: parser
            for name, parser in PostgresParser.FUNCTION_PARSERS.items()
            if name in {"CAST", "EXTRACT", "TRIM", "SUBSTRING", "POSITION"}
        }

        def _parse_dcolon(self) -> exp.Expr | None:
            """Read the type after `::`, or after `::!`, where a cast that fails gives NULL."""
            coerces = self._match(TokenType.NOT)
            found = self._parse_types()
            if found is not None and coerces:
                found.meta[COERCES] = True
            return found


@dataclass(slots=True)
class Readers:
    """The templates that the expressions of a load read texts by, each with its function's name."""

    found: list[TemplateReader] = field(default_factory=list)

    def function(self, template: str, *, timed: bool) -> str:
        """Return the name of the function that reads texts by a template.

        Raises:
            TemplateInvalid: If texts cannot be read by it.
        """
        self.found.append(TemplateReader(template, dated=True, timed=timed))
        return f"read_template_{len(self.found) - 1}"


def translate(
    sql: str,
    columns: Mapping[str, TypedSql],
    started_at: dt.datetime | None,
    *,
    what: str,
    readers: Readers,
) -> tuple[TypedSql, frozenset[str]]:
    """Return an expression for DuckDB, and the columns in it.

    `columns` maps internal names that may be used to what stands for them in DuckDB; `what` is
    how errors call the expression. `started_at`, aware, is what the expression sees as now.

    Raises:
        LoadRefused: It is no expression, or one of more than the columns of its row, or has a part
            that is not supported.
    """

    def refuse(reason: str) -> LoadRefused:
        return LoadRefused(what=what, reason=reason)

    try:
        translator = _Translator(columns, started_at, readers)
        written = translator.translate(_parsed(sql, refuse))
    except (ExpressionInvalid, TemplateInvalid) as error:
        raise refuse(str(error)) from None
    except RecursionError:
        raise refuse("it is nested too deeply") from None
    return written, frozenset(translator.used)


def _parsed(sql: str, refuse: Callable[[str], LoadRefused]) -> exp.Expr:
    try:
        trees = _Vertica().parse(f"SELECT {sql}\n")
    except ParseError as error:
        reason = error.errors[0]["description"].partition(" for <class")[0]
        raise refuse(f"it cannot be understood: {reason}") from None
    except SqlglotError as error:
        raise refuse(f"it cannot be understood: {error}") from None
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Select):
        raise refuse("it is not one expression")
    given = [name for name, value in tree.args.items() if value and name != "expressions"]
    if given or len(tree.expressions) != 1 or isinstance(tree.expressions[0], exp.Alias):
        raise refuse("it is not one expression")
    expression: exp.Expr = tree.expressions[0]
    return expression


class _Translator:
    """Writes one expression for DuckDB, from its parts upward."""

    def __init__(
        self,
        columns: Mapping[str, TypedSql],
        started_at: dt.datetime | None,
        readers: Readers,
    ) -> None:
        self.used: set[str] = set()
        self._columns = columns
        self._started_at = started_at
        self._readers = readers
        self._forms: dict[type[exp.Expr], Callable[[exp.Expr], TypedSql]] = {
            exp.Paren: lambda node: self._paren(node),
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.ByteString: lambda node: types.text_literal(node.name),
            exp.RawString: lambda node: types.text_literal(node.name),
            exp.Boolean: lambda node: TypedSql(str(bool(node.this)).upper(), T.BOOLEAN),
            exp.Null: lambda _: TypedSql("NULL", T.NULL),
            exp.Neg: self._negative,
            exp.Add: self._sum,
            exp.Sub: self._sum,
            exp.Mul: self._product,
            exp.Div: self._quotient,
            exp.Mod: lambda node: call("MOD", self._both(node)),
            exp.Pow: lambda node: call("POWER", self._both(node)),
            exp.DPipe: lambda node: call("CONCAT", self._both(node)),
            exp.BitwiseNot: lambda node: TypedSql(
                f"(~{types.to_integer(self.translate(node.this))})", T.INTEGER
            ),
            **dict.fromkeys(_BITS, self._bits),
            **dict.fromkeys(_COMPARISONS, self._comparison),
            exp.And: self._logic,
            exp.Or: self._logic,
            exp.Not: lambda node: self._not(self.translate(node.this)),
            exp.Is: self._is,
            exp.Between: self._between,
            exp.In: self._in,
            exp.Like: self._like,
            exp.ILike: self._like,
            exp.Escape: self._escape,
            exp.Case: self._case,
            exp.Cast: self._cast,
            exp.Interval: self._interval,
            exp.Array: self._array,
            exp.Anonymous: self._call,
            exp.Extract: lambda node: date_part(node.name, self.translate(node.expression)),
            exp.Trim: self._trim,
            exp.Substring: self._substring,
            exp.StrPosition: self._position,
        }

    def translate(self, node: exp.Expr) -> TypedSql:
        """Return part of an expression."""
        form = self._forms.get(type(node))
        if isinstance(node, _MORE_THAN_ROW):
            raise _more_than_row(node)
        if form is None:
            raise _WithPlace(f"{_shown(node)} is not supported")
        try:
            found = form(node)
        except _WithPlace:
            raise
        except ExpressionInvalid as error:
            raise _WithPlace(f"in {_shown(node)}: {error}") from None
        if len(found.sql) > _MAX_SQL:
            raise ExpressionInvalid("it is too long; split it up")
        return found

    def _paren(self, node: exp.Expr) -> TypedSql:
        return self.translate(node.this)

    def _both(self, node: exp.Expr) -> list[TypedSql]:
        return [self.translate(node.this), self.translate(node.expression)]

    def _column(self, node: exp.Expr) -> TypedSql:
        if node.args.get("table"):
            raise _WithPlace(f"columns have one part, unlike {_shown(node)}")
        identifier = node.this
        if not isinstance(identifier, exp.Identifier):
            raise _more_than_row(node)
        quoted = bool(identifier.args.get("quoted"))
        name = str(identifier.name if quoted else identifier.name.upper())
        if name in self._columns:
            self.used.add(name)
            return self._columns[name]
        if name in _WORDS and not quoted:
            return self._now(name)
        if name in _BARE_REJECTED and not quoted:
            raise _WithPlace(_function_reason(name))
        parsed = ", ".join(map(display_name, self._columns)) or "none"
        raise _WithPlace(f"there is no parsed column {display_name(name)}; there are {parsed}")

    def _now(self, name: str) -> TypedSql:
        at = self._started_at
        if at is None:
            raise ExpressionInvalid("the time of the statement is not known here")
        instant = f"CAST({quote(at.isoformat())} AS TIMESTAMPTZ)"
        if name == "CURRENT_DATE":
            return TypedSql(f"CAST(timezone('UTC', {instant}) AS DATE)", T.DATE)
        if name in _LOCAL_NOW or name == "LOCALTIMESTAMP":
            return TypedSql(f"timezone('UTC', {instant})", T.TIMESTAMP)
        return TypedSql(instant, T.TIMESTAMP_TZ)

    def _literal(self, node: exp.Expr) -> TypedSql:
        text = str(node.this)
        if node.args.get("is_string"):
            return types.text_literal(text)
        return types.integer_literal(text) if text.isdigit() else types.number_literal(text)

    def _negative(self, node: exp.Expr) -> TypedSql:
        value = self.translate(node.this)
        if value.type is T.INTERVAL:
            return TypedSql(f"(-{value.sql})", T.INTERVAL)
        number = types.to_number(value)
        return TypedSql(f"(-{number.sql})", number.type, has_scale=number.has_scale)

    def _sum(self, node: exp.Expr) -> TypedSql:
        left, right = self._both(node)
        sign = "+" if isinstance(node, exp.Add) else "-"
        dated = _sum_of_dates(left, right, sign)
        if dated is None and sign == "+":
            dated = _sum_of_dates(right, left, sign)
        return dated or _arithmetic(left, right, sign)

    def _product(self, node: exp.Expr) -> TypedSql:
        left, right = self._both(node)
        return _arithmetic(left, right, "*")

    def _quotient(self, node: exp.Expr) -> TypedSql:
        left, right = map(types.to_number, self._both(node))
        zero = f"{right.sql} = 0"
        if T.FLOAT in {left.type, right.type}:
            sql = f"({types.to_float(left)} / {types.to_float(right)})"
            return TypedSql(failing(zero, "division by zero", sql), T.FLOAT)
        sql = f"divide_numbers({left.sql}, {right.sql})"
        return TypedSql(failing(zero, "division by zero", sql), T.NUMERIC, has_scale=False)

    def _bits(self, node: exp.Expr) -> TypedSql:
        left, right = map(types.to_integer, self._both(node))
        return TypedSql(_BITS[type(node)].format(left, right), T.INTEGER)

    def _comparison(self, node: exp.Expr) -> TypedSql:
        _, (left, right) = types.unify(self._both(node))
        return TypedSql(f"({left} {_COMPARISONS[type(node)]} {right})", T.BOOLEAN)

    def _logic(self, node: exp.Expr) -> TypedSql:
        left, right = map(types.to_boolean, self._both(node))
        return TypedSql(
            f"({left} {'AND' if isinstance(node, exp.And) else 'OR'} {right})", T.BOOLEAN
        )

    def _not(self, value: TypedSql, *, negate: bool = True) -> TypedSql:
        sql = types.to_boolean(value)
        return TypedSql(f"(NOT {sql})" if negate else sql, T.BOOLEAN)

    def _is(self, node: exp.Expr) -> TypedSql:
        value = self.translate(node.this)
        if isinstance(node.expression, exp.Null):
            found = TypedSql(f"({value.sql} IS NULL)", T.BOOLEAN)
        elif isinstance(node.expression, exp.Boolean):
            truth = str(bool(node.expression.this)).upper()
            found = TypedSql(f"({types.to_boolean(value)} IS NOT DISTINCT FROM {truth})", T.BOOLEAN)
        else:
            raise ExpressionInvalid("IS is followed by NULL, TRUE or FALSE")
        return self._not(found, negate=bool(_arguments(node, "negate")))

    def _between(self, node: exp.Expr) -> TypedSql:
        negate = _arguments(node, "low", "high", "negate").get("negate")
        values = [self.translate(node.args[name]) for name in ("this", "low", "high")]
        _, (value, low, high) = types.unify(values)
        found = TypedSql(f"({value} >= {low} AND {value} <= {high})", T.BOOLEAN)
        return self._not(found, negate=bool(negate))

    def _in(self, node: exp.Expr) -> TypedSql:
        if node.args.get("query"):
            raise _more_than_row(node)
        negate = _arguments(node, "negate").get("negate")
        values = [self.translate(each) for each in (node.this, *node.expressions)]
        _, (value, *listed) = types.unify(values)
        found = TypedSql(f"({value} IN ({', '.join(listed)}))", T.BOOLEAN)
        return self._not(found, negate=bool(negate))

    def _like(self, node: exp.Expr, escape: str = "\\") -> TypedSql:
        negate = _arguments(node, "negate").get("negate")
        text, pattern = map(types.to_text, self._both(node))
        word = "LIKE" if isinstance(node, exp.Like) else "ILIKE"
        found = TypedSql(f"({text} {word} {pattern} ESCAPE {quote(escape)})", T.BOOLEAN)
        return self._not(found, negate=bool(negate))

    def _escape(self, node: exp.Expr) -> TypedSql:
        escape = self.translate(node.expression).literal
        like = node.this
        if escape is None or len(escape) != 1 or not isinstance(like, exp.Like | exp.ILike):
            raise ExpressionInvalid("ESCAPE is one character in quotes, after LIKE or ILIKE")
        return self._like(like, escape)

    def _case(self, node: exp.Expr) -> TypedSql:
        _arguments(node, "ifs", "default")
        branches = node.args["ifs"]
        sought = [self.translate(branch.this) for branch in branches]
        default = node.args.get("default")
        results = [self.translate(branch.args["true"]) for branch in branches]
        results.append(TypedSql("NULL", T.NULL) if default is None else self.translate(default))
        if node.this is None:
            conditions = [types.to_boolean(each) for each in sought]
        else:
            _, (value, *others) = types.unify([self.translate(node.this), *sought])
            conditions = [f"{value} = {each}" for each in others]
        found, (*chosen, other) = types.unify(results)
        cases = " ".join(
            f"WHEN {condition} THEN {result}"
            for condition, result in zip(conditions, chosen, strict=True)
        )
        sql = f"(CASE {cases} ELSE {other} END)"
        return TypedSql(sql, found, has_scale=types.has_one_scale(results))

    def _cast(self, node: exp.Expr) -> TypedSql:
        _arguments(node, "to", "_type", "safe", "action")
        to = node.args["to"]
        return cast(self.translate(node.this), to, lenient=bool(to.meta.get(COERCES)))

    def _interval(self, node: exp.Expr) -> TypedSql:
        unit = node.args.get("unit")
        number = node.this
        text = number.name if isinstance(number, exp.Literal) else ""
        name = unit.name.upper() if isinstance(unit, exp.Var) else ""
        name = name.removesuffix("S")
        digits = text.removeprefix("-")
        if name not in _UNITS or not (digits.isascii() and digits.isdigit()):
            raise ExpressionInvalid(
                "an interval is written INTERVAL 'n unit', with a whole number of days, hours, "
                "minutes or seconds; months are added by ADD_MONTHS"
            )
        return TypedSql(f"(INTERVAL ({int(text)}) {name})", T.INTERVAL)

    def _array(self, node: exp.Expr) -> TypedSql:
        found, listed = types.unify([self.translate(each) for each in node.expressions])
        if found in {T.BINARY, T.INTERVAL, T.ARRAY, T.TIME} | types.DATED:
            raise ExpressionInvalid(f"an array of {found} is not supported; write ::VARCHAR")
        return TypedSql(f"[{', '.join(listed)}]", T.ARRAY)

    def _trim(self, node: exp.Expr) -> TypedSql:
        given = _arguments(node, "position", "expression")
        values = [self.translate(node.this)]
        if given.get("expression"):
            values.append(self.translate(node.expression))
        position = given.get("position")
        return call(_TRIMS[None if position is None else str(position)], values)

    def _substring(self, node: exp.Expr) -> TypedSql:
        given = _arguments(node, "start", "length")
        if "start" not in given:
            raise ExpressionInvalid("SUBSTRING needs a position: SUBSTRING(text, position, length)")
        parts = [node.this, *(given[name] for name in ("start", "length") if name in given)]
        return call("SUBSTR", [self.translate(part) for part in parts])

    def _position(self, node: exp.Expr) -> TypedSql:
        substr = _arguments(node, "substr")["substr"]
        return call("INSTR", [self.translate(node.this), self.translate(substr)])

    def _call(self, node: exp.Expr) -> TypedSql:
        name = str(node.this).upper()
        arguments = node.expressions
        if name in _AGGREGATES:
            raise _more_than_row(node)
        if name in _NOW | _LOCAL_NOW | _WORDS:
            if arguments:
                raise ExpressionInvalid(f"{name} takes no arguments here")
            return self._now(name)
        if name in _TEMPLATED and len(arguments) == 2:
            return self._templated(name, arguments)
        if name not in FUNCTIONS:
            raise _WithPlace(_function_reason(name))
        if name in PART_FUNCTIONS and arguments and isinstance(arguments[0], exp.Column):
            word = arguments[0].name
            return call(name, [types.text_literal(word), *map(self.translate, arguments[1:])])
        return call(name, [self.translate(argument) for argument in arguments])

    def _templated(self, name: str, arguments: list[exp.Expr]) -> TypedSql:
        value, template = map(self.translate, arguments)
        if template.literal is None:
            raise ExpressionInvalid(f"{name}: the template must be a text in quotes")
        try:
            if name == "TO_CHAR":
                if value.type in types.NUMBERS:
                    raise ExpressionInvalid(
                        "TO_CHAR of a number with a template is not supported; write "
                        "::NUMERIC(p,s)::VARCHAR and LPAD"
                    )
                return TypedSql(char_sql(template.literal, types.to_timestamp(value)), T.TEXT)
            function = self._readers.function(template.literal, timed=name == "TO_TIMESTAMP")
        except TemplateInvalid as error:
            raise ExpressionInvalid(f"template {template.literal!r}: {error}") from None
        if value.type not in types.TEXTS | {T.NULL}:
            raise ExpressionInvalid(f"{name} reads VARCHAR, not {value.type}; write ::VARCHAR")
        sql = f"{function}(CAST({value.sql} AS VARCHAR))"
        if name == "TO_DATE":
            return TypedSql(f"CAST({sql} AS DATE)", T.DATE)
        return TypedSql(sql, T.TIMESTAMP)


class _WithPlace(ExpressionInvalid):
    """Says of which part of the expression it is."""


def _more_than_row(node: exp.Expr) -> _WithPlace:
    return _WithPlace(f"it may use the columns of its row alone, not {_shown(node)}")


def _function_reason(name: str) -> str:
    if name in REJECTED:
        return f"function {name} is not available: {REJECTED[name]}"
    close = difflib.get_close_matches(name, [*FUNCTIONS, *_TEMPLATED], n=1)
    more = f"; the nearest is {close[0]}" if close else ""
    return f"function {name} is not available{more}"


def _arguments(node: exp.Expr, *known: str) -> dict[str, exp.Expr]:
    """Return what a part of a tree holds; other than `known`, `this` and lists is rejected."""
    given = {name: value for name, value in node.args.items() if value}
    extra = given.keys() - {*known, "this", "expression", "expressions", "is_string"}
    if extra:
        raise ExpressionInvalid(f"{_shown(node)} is not supported")
    return given


def _sum_of_dates(left: TypedSql, right: TypedSql, sign: str) -> TypedSql | None:
    if left.type not in types.DATED:
        return None
    if right.type is T.INTERVAL:
        return TypedSql(f"({types.to_timestamp(left)} {sign} {right.sql})", T.TIMESTAMP)
    if left.type is T.DATE and right.type is T.INTEGER:
        return TypedSql(f"({left.sql} {sign} CAST({right.sql} AS INTEGER))", T.DATE)
    if left.type is right.type is T.DATE and sign == "-":
        return TypedSql(f"({left.sql} - {right.sql})", T.INTEGER)
    raise ExpressionInvalid(
        f"{left.type} {sign} {right.type} is not supported; dates take whole numbers of days, "
        "timestamps take intervals, and DATEDIFF gives differences"
    )


def _arithmetic(left: TypedSql, right: TypedSql, sign: str) -> TypedSql:
    numbers = [types.to_number(left), types.to_number(right)]
    found, (first, second) = types.unify(numbers)
    scale = all(number.has_scale for number in numbers)
    return TypedSql(f"({first} {sign} {second})", found, has_scale=scale)


def _shown(node: exp.Expr) -> str:
    shown = node.sql(_Vertica)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
