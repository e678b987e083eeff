"""Translation of Vertica SQL expressions, parsed by sqlglot, to DuckDB SQL.

An operator, cast or function that neither this module nor `function_translation` lists is rejected
with an error that names it. Nothing is passed to DuckDB untranslated.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Callable, Mapping

from sqlglot import TokenType, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parsers.postgres import PostgresParser

from snowmelt.errors import LoadRefused
from snowmelt.load.expressions import types
from snowmelt.load.expressions.casts import render_cast
from snowmelt.load.expressions.datetime_templates import (
    DatetimeTemplateInvalid,
    DatetimeTemplateReader,
    render_to_char,
)
from snowmelt.load.expressions.function_translation import (
    FUNCTIONS,
    REJECTED_FUNCTIONS,
    UNIT_ARGUMENT_FUNCTIONS,
    build_date_part,
    build_function_call,
)
from snowmelt.load.expressions.types import (
    ExpressionInvalid,
    ExpressionType,
    TypedSql,
    quote_literal,
    render_failure_if,
)
from snowmelt.load.file_metadata import FILENAME
from snowmelt.schema.types import to_display_name

ExprType = ExpressionType
NULL_ON_ERROR_KEY = "coerces"
_MAX_SQL_CHARS = 200_000
_NOW_FUNCTIONS = frozenset({"NOW", "STATEMENT_TIMESTAMP", "TRANSACTION_TIMESTAMP"})
_LOCAL_NOW_FUNCTIONS = frozenset({"GETDATE", "SYSDATE", "GETUTCDATE"})
# Functions that Vertica writes without parentheses.
_BARE_FUNCTIONS = frozenset({"SYSDATE", "CURRENT_DATE", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP"})
_REJECTED_BARE_FUNCTIONS = frozenset(
    {"CURRENT_TIME", "LOCALTIME", "CURRENT_USER", "SESSION_USER", "USER"}
)
_TEMPLATE_FUNCTIONS = frozenset({"TO_CHAR", "TO_DATE", "TO_TIMESTAMP"})
_COMPARISON_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
}
_BIT_OPERATORS: dict[type[exp.Expr], str] = {
    exp.BitwiseAnd: "({} & {})",
    exp.BitwiseOr: "({} | {})",
    exp.BitwiseXor: "xor({}, {})",
    exp.BitwiseLeftShift: "({} << {})",
    exp.BitwiseRightShift: "({} >> {})",
}
_INTERVAL_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_TRIM_FUNCTIONS = {None: "BTRIM", "BOTH": "BTRIM", "LEADING": "LTRIM", "TRAILING": "RTRIM"}
_MULTI_ROW_NODES = (
    *(exp.Query, exp.Table, exp.Window, exp.AggFunc, exp.Star, exp.Parameter, exp.Placeholder),
    *(exp.UDTF, exp.Explode, exp.Command),
)
_AGGREGATE_FUNCTIONS = frozenset(
    {"SUM", "COUNT", "AVG", "MIN", "MAX", "UNNEST", "EXPLODE", "STDDEV", "MEDIAN"}
)


class _Vertica(Postgres):
    """Dialect for Vertica's expressions. Function calls keep their original names."""

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
            """Parse the type after `::` or `::!`. With `::!`, a failed cast returns NULL."""
            coerces = self._match(TokenType.NOT)
            found = self._parse_types()
            if found is not None and coerces:
                found.meta[NULL_ON_ERROR_KEY] = True
            return found


def translate_expression(
    sql: str,
    columns: Mapping[str, TypedSql],
    started_at: dt.datetime | None,
    *,
    label: str,
    template_readers: list[DatetimeTemplateReader],
) -> tuple[TypedSql, frozenset[str]]:
    """Return an expression as DuckDB SQL, and the columns that it uses.

    Args:
        sql: The expression.
        columns: DuckDB SQL of each available column, by internal name.
        started_at: Current time for the expression, timezone-aware. None: not available.
        label: Name of the expression in error messages.
        template_readers: List that receives a reader for each template of the expression. DuckDB
            calls item n as the function `read_template_n`.

    Raises:
        LoadRefused: If the SQL is not one expression, refers to anything but the columns of its
            row, or has an unsupported part.
    """
    try:
        translator = _ExpressionTranslator(columns, started_at, template_readers)
        written = translator.translate(_parse_expression(sql))
    except (ExpressionInvalid, DatetimeTemplateInvalid) as error:
        raise LoadRefused(what=label, reason=str(error)) from None
    except RecursionError:
        raise LoadRefused(what=label, reason="it is nested too deeply") from None
    return written, frozenset(translator.used)


def _parse_expression(sql: str) -> exp.Expr:
    try:
        trees = _Vertica().parse(f"SELECT {sql}\n")
    except ParseError as error:
        reason = error.errors[0]["description"].partition(" for <class")[0]
        raise ExpressionInvalid(f"invalid syntax: {reason}") from None
    except SqlglotError as error:
        raise ExpressionInvalid(f"invalid syntax: {error}") from None
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Select):
        raise ExpressionInvalid("it is not one expression")
    given = [name for name, value in tree.args.items() if value and name != "expressions"]
    if given or len(tree.expressions) != 1 or isinstance(tree.expressions[0], exp.Alias):
        raise ExpressionInvalid("it is not one expression")
    expression: exp.Expr = tree.expressions[0]
    return expression


class _ExpressionTranslator:
    """Translator of one expression, from the bottom up."""

    def __init__(
        self,
        columns: Mapping[str, TypedSql],
        started_at: dt.datetime | None,
        readers: list[DatetimeTemplateReader],
    ) -> None:
        self.used: set[str] = set()
        self._columns = columns
        self._started_at = started_at
        self._readers = readers
        self._translators: dict[type[exp.Expr], Callable[[exp.Expr], TypedSql]] = {
            exp.Paren: lambda node: self.translate(node.this),
            exp.Column: self._translate_column,
            exp.Literal: self._translate_literal,
            exp.ByteString: lambda node: types.render_text_literal(node.name),
            exp.RawString: lambda node: types.render_text_literal(node.name),
            exp.Boolean: lambda node: TypedSql(str(bool(node.this)).upper(), ExprType.BOOLEAN),
            exp.Null: lambda _: TypedSql("NULL", ExprType.NULL),
            exp.Neg: self._translate_unary_minus,
            exp.Add: self._translate_addition_or_subtraction,
            exp.Sub: self._translate_addition_or_subtraction,
            exp.Mul: self._translate_multiplication,
            exp.Div: self._translate_division,
            exp.Mod: lambda node: build_function_call("MOD", self._translate_operands(node)),
            exp.Pow: lambda node: build_function_call("POWER", self._translate_operands(node)),
            exp.DPipe: lambda node: build_function_call("CONCAT", self._translate_operands(node)),
            exp.BitwiseNot: lambda node: TypedSql(
                f"(~{types.render_as_integer(self.translate(node.this))})", ExprType.INTEGER
            ),
            **dict.fromkeys(_BIT_OPERATORS, self._translate_bit_operation),
            **dict.fromkeys(_COMPARISON_OPERATORS, self._translate_comparison),
            exp.And: self._translate_and_or,
            exp.Or: self._translate_and_or,
            exp.Not: lambda node: self._render_not(self.translate(node.this)),
            exp.Is: self._translate_is,
            exp.Between: self._translate_between,
            exp.In: self._translate_in,
            exp.Like: self._translate_like,
            exp.ILike: self._translate_like,
            exp.Escape: self._translate_escape,
            exp.Case: self._translate_case,
            exp.Cast: self._translate_cast,
            exp.Interval: self._translate_interval,
            exp.Array: self._translate_array,
            exp.Anonymous: self._translate_call,
            exp.Extract: lambda node: build_date_part(node.name, self.translate(node.expression)),
            exp.Trim: self._translate_trim,
            exp.Substring: self._translate_substring,
            exp.StrPosition: self._translate_position,
        }

    def translate(self, node: exp.Expr) -> TypedSql:
        """Return the SQL of a node."""
        form = self._translators.get(type(node))
        if isinstance(node, _MULTI_ROW_NODES):
            raise _make_multi_row_error(node)
        if form is None:
            raise _LocatedExpressionInvalid(f"{_display_node(node)} is not supported")
        try:
            found = form(node)
        except _LocatedExpressionInvalid:
            raise
        except ExpressionInvalid as error:
            raise _LocatedExpressionInvalid(f"in {_display_node(node)}: {error}") from None
        if len(found.sql) > _MAX_SQL_CHARS:
            raise ExpressionInvalid("it is too long; split it")
        return found

    def _translate_operands(self, node: exp.Expr) -> list[TypedSql]:
        return [self.translate(node.this), self.translate(node.expression)]

    def _translate_column(self, node: exp.Expr) -> TypedSql:
        if node.args.get("table"):
            raise _LocatedExpressionInvalid(
                f"column names have one part, but got {_display_node(node)}"
            )
        identifier = node.this
        if not isinstance(identifier, exp.Identifier):
            raise _make_multi_row_error(node)
        quoted = bool(identifier.args.get("quoted"))
        name = str(identifier.name if quoted else identifier.name.upper())
        if name in self._columns:
            self.used.add(name)
            return self._columns[name]
        if name in _BARE_FUNCTIONS and not quoted:
            return self._translate_current_time(name)
        if name in _REJECTED_BARE_FUNCTIONS and not quoted:
            raise _LocatedExpressionInvalid(_describe_missing_function(name))
        parsed = ", ".join(to_display_name(each) for each in self._columns if "$" not in each)
        parsed = parsed or "none"
        raise _LocatedExpressionInvalid(
            f"unknown parsed column {to_display_name(name)}; valid columns: {parsed}"
        )

    def _translate_current_time(self, name: str) -> TypedSql:
        at = self._started_at
        if at is None:
            raise ExpressionInvalid("the time of the statement is not available here")
        instant = f"CAST({quote_literal(at.isoformat())} AS TIMESTAMPTZ)"
        if name == "CURRENT_DATE":
            return TypedSql(f"CAST(timezone('UTC', {instant}) AS DATE)", ExprType.DATE)
        if name in _LOCAL_NOW_FUNCTIONS or name == "LOCALTIMESTAMP":
            return TypedSql(f"timezone('UTC', {instant})", ExprType.TIMESTAMP)
        return TypedSql(instant, ExprType.TIMESTAMP_TZ)

    def _translate_literal(self, node: exp.Expr) -> TypedSql:
        text = str(node.this)
        if node.args.get("is_string"):
            return types.render_text_literal(text)
        is_whole = text.isdigit()
        return (types.render_integer_literal if is_whole else types.render_number_literal)(text)

    def _translate_unary_minus(self, node: exp.Expr) -> TypedSql:
        value = self.translate(node.this)
        if value.type is ExprType.INTERVAL:
            return TypedSql(f"(-{value.sql})", ExprType.INTERVAL)
        number = types.require_number(value)
        return TypedSql(f"(-{number.sql})", number.type, has_scale=number.has_scale)

    def _translate_addition_or_subtraction(self, node: exp.Expr) -> TypedSql:
        left, right = self._translate_operands(node)
        sign = "+" if isinstance(node, exp.Add) else "-"
        dated = _render_date_arithmetic(left, right, sign)
        if dated is None and sign == "+":
            dated = _render_date_arithmetic(right, left, sign)
        return dated or _render_number_arithmetic(left, right, sign)

    def _translate_multiplication(self, node: exp.Expr) -> TypedSql:
        left, right = self._translate_operands(node)
        return _render_number_arithmetic(left, right, "*")

    def _translate_division(self, node: exp.Expr) -> TypedSql:
        left, right = map(types.require_number, self._translate_operands(node))
        zero = f"{right.sql} = 0"
        if ExprType.FLOAT in {left.type, right.type}:
            sql = f"({types.render_as_float(left)} / {types.render_as_float(right)})"
            return TypedSql(render_failure_if(zero, "division by zero", sql), ExprType.FLOAT)
        sql = f"divide_numbers({left.sql}, {right.sql})"
        return TypedSql(
            render_failure_if(zero, "division by zero", sql), ExprType.NUMERIC, has_scale=False
        )

    def _translate_bit_operation(self, node: exp.Expr) -> TypedSql:
        left, right = map(types.render_as_integer, self._translate_operands(node))
        return TypedSql(_BIT_OPERATORS[type(node)].format(left, right), ExprType.INTEGER)

    def _translate_comparison(self, node: exp.Expr) -> TypedSql:
        _, (left, right) = types.convert_to_common_type(self._translate_operands(node))
        return TypedSql(f"({left} {_COMPARISON_OPERATORS[type(node)]} {right})", ExprType.BOOLEAN)

    def _translate_and_or(self, node: exp.Expr) -> TypedSql:
        left, right = map(types.render_as_condition, self._translate_operands(node))
        return TypedSql(
            f"({left} {'AND' if isinstance(node, exp.And) else 'OR'} {right})", ExprType.BOOLEAN
        )

    def _render_not(self, value: TypedSql, *, negate: bool = True) -> TypedSql:
        sql = types.render_as_condition(value)
        return TypedSql(f"(NOT {sql})" if negate else sql, ExprType.BOOLEAN)

    def _translate_is(self, node: exp.Expr) -> TypedSql:
        value = self.translate(node.this)
        if isinstance(node.expression, exp.Null):
            found = TypedSql(f"({value.sql} IS NULL)", ExprType.BOOLEAN)
        elif isinstance(node.expression, exp.Boolean):
            truth = str(bool(node.expression.this)).upper()
            found = TypedSql(
                f"({types.render_as_condition(value)} IS NOT DISTINCT FROM {truth})",
                ExprType.BOOLEAN,
            )
        else:
            raise ExpressionInvalid("IS must be followed by NULL, TRUE or FALSE")
        return self._render_not(found, negate=bool(_get_allowed_arguments(node, "negate")))

    def _translate_between(self, node: exp.Expr) -> TypedSql:
        negate = _get_allowed_arguments(node, "low", "high", "negate").get("negate")
        values = [self.translate(node.args[name]) for name in ("this", "low", "high")]
        _, (value, low, high) = types.convert_to_common_type(values)
        found = TypedSql(f"({value} >= {low} AND {value} <= {high})", ExprType.BOOLEAN)
        return self._render_not(found, negate=bool(negate))

    def _translate_in(self, node: exp.Expr) -> TypedSql:
        if node.args.get("query"):
            raise _make_multi_row_error(node)
        negate = _get_allowed_arguments(node, "negate").get("negate")
        values = [self.translate(each) for each in (node.this, *node.expressions)]
        _, (value, *listed) = types.convert_to_common_type(values)
        found = TypedSql(f"({value} IN ({', '.join(listed)}))", ExprType.BOOLEAN)
        return self._render_not(found, negate=bool(negate))

    def _translate_like(self, node: exp.Expr, escape: str = "\\") -> TypedSql:
        negate = _get_allowed_arguments(node, "negate").get("negate")
        text, pattern = map(types.render_as_text, self._translate_operands(node))
        word = "LIKE" if isinstance(node, exp.Like) else "ILIKE"
        found = TypedSql(
            f"({text} {word} {pattern} ESCAPE {quote_literal(escape)})", ExprType.BOOLEAN
        )
        return self._render_not(found, negate=bool(negate))

    def _translate_escape(self, node: exp.Expr) -> TypedSql:
        escape = self.translate(node.expression).literal
        like = node.this
        if escape is None or len(escape) != 1 or not isinstance(like, exp.Like | exp.ILike):
            raise ExpressionInvalid("ESCAPE is one character in quotes, after LIKE or ILIKE")
        return self._translate_like(like, escape)

    def _translate_case(self, node: exp.Expr) -> TypedSql:
        _get_allowed_arguments(node, "ifs", "default")
        branches = node.args["ifs"]
        sought = [self.translate(branch.this) for branch in branches]
        default = node.args.get("default")
        results = [self.translate(branch.args["true"]) for branch in branches]
        results.append(
            TypedSql("NULL", ExprType.NULL) if default is None else self.translate(default)
        )
        if node.this is None:
            conditions = [types.render_as_condition(each) for each in sought]
        else:
            _, (value, *others) = types.convert_to_common_type([self.translate(node.this), *sought])
            conditions = [f"{value} = {each}" for each in others]
        found, (*chosen, other) = types.convert_to_common_type(results)
        cases = " ".join(
            f"WHEN {condition} THEN {result}"
            for condition, result in zip(conditions, chosen, strict=True)
        )
        sql = f"(CASE {cases} ELSE {other} END)"
        return TypedSql(sql, found, has_scale=types.is_scale_preserved(results))

    def _translate_cast(self, node: exp.Expr) -> TypedSql:
        _get_allowed_arguments(node, "to", "_type", "safe", "action")
        to = node.args["to"]
        return render_cast(
            self.translate(node.this), to, null_on_error=bool(to.meta.get(NULL_ON_ERROR_KEY))
        )

    def _translate_interval(self, node: exp.Expr) -> TypedSql:
        unit = node.args.get("unit")
        number = node.this
        text = number.name if isinstance(number, exp.Literal) else ""
        name = unit.name.upper() if isinstance(unit, exp.Var) else ""
        name = name.removesuffix("S")
        digits = text.removeprefix("-")
        if name not in _INTERVAL_UNITS or not (digits.isascii() and digits.isdigit()):
            raise ExpressionInvalid(
                "an interval is written INTERVAL 'n unit', with a whole number of days, hours, "
                "minutes or seconds; months are added by ADD_MONTHS"
            )
        return TypedSql(f"(INTERVAL ({int(text)}) {name})", ExprType.INTERVAL)

    def _translate_array(self, node: exp.Expr) -> TypedSql:
        found, listed = types.convert_to_common_type(
            [self.translate(each) for each in node.expressions]
        )
        wrong = {ExprType.BINARY, ExprType.INTERVAL, ExprType.ARRAY, ExprType.TIME}
        if found in wrong | types.DATE_TYPES:
            raise ExpressionInvalid(f"an array of {found} is not supported; write ::VARCHAR")
        return TypedSql(f"[{', '.join(listed)}]", ExprType.ARRAY)

    def _translate_trim(self, node: exp.Expr) -> TypedSql:
        given = _get_allowed_arguments(node, "position", "expression")
        values = [self.translate(node.this)]
        if given.get("expression"):
            values.append(self.translate(node.expression))
        position = given.get("position")
        return build_function_call(
            _TRIM_FUNCTIONS[None if position is None else str(position)], values
        )

    def _translate_substring(self, node: exp.Expr) -> TypedSql:
        given = _get_allowed_arguments(node, "start", "length")
        if "start" not in given:
            raise ExpressionInvalid("SUBSTRING needs a position: SUBSTRING(text, position, length)")
        parts = [node.this, *(given[name] for name in ("start", "length") if name in given)]
        return build_function_call("SUBSTR", [self.translate(part) for part in parts])

    def _translate_position(self, node: exp.Expr) -> TypedSql:
        substr = _get_allowed_arguments(node, "substr")["substr"]
        return build_function_call("INSTR", [self.translate(node.this), self.translate(substr)])

    def _translate_call(self, node: exp.Expr) -> TypedSql:
        name = str(node.this).upper()
        arguments = node.expressions
        if name in _AGGREGATE_FUNCTIONS:
            raise _make_multi_row_error(node)
        if name in _NOW_FUNCTIONS | _LOCAL_NOW_FUNCTIONS | _BARE_FUNCTIONS:
            if arguments:
                raise ExpressionInvalid(f"{name} takes no arguments here")
            return self._translate_current_time(name)
        if name == "CURRENT_LOAD_SOURCE":
            return self._translate_load_source(arguments)
        if name in _TEMPLATE_FUNCTIONS and len(arguments) == 2:
            return self._translate_template_call(name, arguments)
        if name not in FUNCTIONS:
            raise _LocatedExpressionInvalid(_describe_missing_function(name))
        if name in UNIT_ARGUMENT_FUNCTIONS and arguments and isinstance(arguments[0], exp.Column):
            word = arguments[0].name
            return build_function_call(
                name, [types.render_text_literal(word), *map(self.translate, arguments[1:])]
            )
        return build_function_call(name, [self.translate(argument) for argument in arguments])

    def _translate_load_source(self, arguments: list[exp.Expr]) -> TypedSql:
        """Translate CURRENT_LOAD_SOURCE: the path of the file, or one part of it by number."""
        path = self._columns.get(FILENAME)
        if path is None:
            raise ExpressionInvalid("the file of a row is not available here")
        self.used.add(FILENAME)
        if not arguments:
            return path
        number = arguments[0]
        if len(arguments) > 1 or not isinstance(number, exp.Literal) or number.is_string:
            raise ExpressionInvalid(
                "CURRENT_LOAD_SOURCE accepts one optional integer: the number of a part of the path, from 1"
            )
        # Remove the slash or the scheme at the start of the path.
        parts = f"regexp_replace({path.sql}, '^([A-Za-z][A-Za-z0-9+.-]*:/)?/', '')"
        return TypedSql(
            f"nullif(split_part({parts}, '/', {int(str(number.this))}), '')", ExprType.TEXT
        )

    def _translate_template_call(self, name: str, arguments: list[exp.Expr]) -> TypedSql:
        value, template = map(self.translate, arguments)
        if template.literal is None:
            raise ExpressionInvalid(f"{name}: the template must be a text in quotes")
        try:
            if name == "TO_CHAR":
                if value.type in types.NUMBER_TYPES:
                    raise ExpressionInvalid(
                        "TO_CHAR of a number with a template is not supported; write "
                        "::NUMERIC(p,s)::VARCHAR and LPAD"
                    )
                sql = render_to_char(template.literal, types.render_as_timestamp(value))
                return TypedSql(sql, ExprType.TEXT)
            needs_time = name == "TO_TIMESTAMP"
            reader = DatetimeTemplateReader(
                template.literal, needs_date=True, needs_time=needs_time
            )
        except DatetimeTemplateInvalid as error:
            raise ExpressionInvalid(f"template {template.literal!r}: {error}") from None
        if value.type not in types.TEXT_TYPES | {ExprType.NULL}:
            raise ExpressionInvalid(f"{name} expects VARCHAR, got {value.type}; write ::VARCHAR")
        self._readers.append(reader)
        sql = f"read_template_{len(self._readers) - 1}(CAST({value.sql} AS VARCHAR))"
        if name == "TO_DATE":
            return TypedSql(f"CAST({sql} AS DATE)", ExprType.DATE)
        return TypedSql(sql, ExprType.TIMESTAMP)


class _LocatedExpressionInvalid(ExpressionInvalid):
    """Error whose message already names the part of the expression."""


def _make_multi_row_error(node: exp.Expr) -> _LocatedExpressionInvalid:
    return _LocatedExpressionInvalid(
        f"it may use only the columns of its row, not {_display_node(node)}"
    )


def _describe_missing_function(name: str) -> str:
    if name in REJECTED_FUNCTIONS:
        return f"function {name} is not available: {REJECTED_FUNCTIONS[name]}"
    close = difflib.get_close_matches(name, [*FUNCTIONS, *_TEMPLATE_FUNCTIONS], n=1)
    more = f"; the nearest is {close[0]}" if close else ""
    return f"function {name} is not available{more}"


def _get_allowed_arguments(node: exp.Expr, *known: str) -> dict[str, exp.Expr]:
    """Return the arguments of a node. Reject arguments other than `known`, `this` and lists."""
    given = {name: value for name, value in node.args.items() if value}
    extra = given.keys() - {*known, "this", "expression", "expressions", "is_string"}
    if extra:
        raise ExpressionInvalid(f"{_display_node(node)} is not supported")
    return given


def _render_date_arithmetic(left: TypedSql, right: TypedSql, operator: str) -> TypedSql | None:
    if left.type not in types.DATE_TYPES:
        return None
    if right.type is ExprType.INTERVAL:
        return TypedSql(
            f"({types.render_as_timestamp(left)} {operator} {right.sql})", ExprType.TIMESTAMP
        )
    if left.type is ExprType.DATE and right.type is ExprType.INTEGER:
        return TypedSql(f"({left.sql} {operator} CAST({right.sql} AS INTEGER))", ExprType.DATE)
    if left.type is right.type is ExprType.DATE and operator == "-":
        return TypedSql(f"({left.sql} - {right.sql})", ExprType.INTEGER)
    raise ExpressionInvalid(
        f"{left.type} {operator} {right.type} is not supported; dates take whole numbers of days, "
        "timestamps take intervals, and DATEDIFF gives differences"
    )


def _render_number_arithmetic(left: TypedSql, right: TypedSql, operator: str) -> TypedSql:
    numbers = [types.require_number(left), types.require_number(right)]
    found, (first, second) = types.convert_to_common_type(numbers)
    scale = all(number.has_scale for number in numbers)
    return TypedSql(f"({first} {operator} {second})", found, has_scale=scale)


def _display_node(node: exp.Expr) -> str:
    shown = node.sql(_Vertica)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
