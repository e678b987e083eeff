"""Expression parser: operator precedence, function calls, CAST and path steps."""

from __future__ import annotations

import math
from decimal import Decimal
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.select.dialect import Dialect
from snowmelt.select.sql.ast import (
    AggregateExpr,
    BetweenPredicate,
    BinaryOp,
    CallExpr,
    CaseExpr,
    CastExpr,
    IndexStep,
    InPredicate,
    IsPredicate,
    KeyStep,
    LikePredicate,
    ListExpr,
    LiteralExpr,
    NameRef,
    UnaryOp,
    WildcardStep,
    list_children,
)
from snowmelt.select.sql.lexer import SelectTokenKind
from snowmelt.select.timestamps import DATE_PARTS, parse_iso_timestamp, parse_lenient_timestamp
from snowmelt.select.values import DECIMAL_DIGITS, INT_MAX, INT_MIN, MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from snowmelt.select.sql.ast import Expression, PathStep
    from snowmelt.select.sql.lexer import SelectToken, TokenStream

MAX_NESTING_DEPTH = 100
"""Maximum nesting depth of parentheses, calls, CASE and operands."""
MAX_TREE_HEIGHT = 150
"""Maximum height of an expression tree. Limits the recursion of the evaluator."""

_OR, _AND, _NOT, _COMPARISON, _PREDICATE, _JOIN, _SUM, _PRODUCT, _SIGN = range(1, 10)
_BINDING_POWERS = {
    **dict.fromkeys(["=", "==", "<>", "!=", "<", "<=", ">", ">="], _COMPARISON),
    **dict.fromkeys(["IN", "BETWEEN", "LIKE", "IS", "NOT"], _PREDICATE),
    "||": _JOIN,
    **dict.fromkeys(["+", "-"], _SUM),
    **dict.fromkeys(["*", "/", "%", "^"], _PRODUCT),
}
OPERATORS = frozenset({*_BINDING_POWERS, "AND", "OR"})
"""All binary operators, and NOT."""
_OPERATOR_SYNONYMS = {"==": "=", "!=": "<>"}
_ASSOCIATIVE_OPERATORS = frozenset({"AND", "OR", "||"})


class ExpressionParser:
    """Parser for the expressions of one statement."""

    def __init__(self, tokens: TokenStream) -> None:
        """Parse from `tokens`, advancing it."""
        self._tokens = tokens
        self._depth = 0
        # In `ceph-2020` AND and OR have the same precedence and are left-associative.
        first_engine = tokens.dialect is Dialect.CEPH_2020
        self._binding_powers = {**_BINDING_POWERS, "OR": _AND if first_engine else _OR, "AND": _AND}
        self._prefix_parsers: dict[str, Callable[[], Expression]] = {
            "(": self._parse_parentheses,
            "[": self._parse_list,
            "-": self._parse_minus,
            "+": self._parse_plus,
            "NOT": self._parse_not,
            "CASE": self._parse_case,
            "CAST": lambda: parse_cast(tokens, self._parse_expression),
            "NULL": lambda: self._parse_keyword_literal(None),
            "MISSING": lambda: self._parse_keyword_literal(MISSING),
            "TRUE": lambda: self._parse_keyword_literal(True),
            "FALSE": lambda: self._parse_keyword_literal(False),
        }

    def parse(self) -> Expression:
        """Parse one expression.

        Raises:
            SelectError: If the expression is invalid. The code is one of the parser's codes.
        """
        start = self._tokens.current
        expression = self._parse_expression()
        if _measure_height(expression) > MAX_TREE_HEIGHT:
            message = f"this expression has more than {MAX_TREE_HEIGHT} levels; split it"
            raise self._tokens.make_error("UnsupportedSqlStructure", message, start)
        return expression

    def _parse_expression(self, min_power: int = _OR) -> Expression:
        self._depth += 1
        if self._depth > MAX_NESTING_DEPTH:
            message = f"the statement is nested deeper than {MAX_NESTING_DEPTH} levels"
            raise self._tokens.make_error("UnsupportedSqlStructure", message)
        first = self._tokens.current
        left = self._parse_prefix()
        if min_power == _OR and first.upper == "NOT":
            self._reject_ambiguous_not(first)
        while (found := self._binding_powers.get(self._tokens.current.upper, 0)) >= min_power:
            left = self._parse_infix(left, found)
        self._depth -= 1
        return left

    def _parse_infix(self, left: Expression, power: int) -> Expression:
        """Parse an operator and its right operand."""
        operator = self._tokens.current.upper
        if operator in _ASSOCIATIVE_OPERATORS:
            return self._parse_associative_chain(left, power)
        if power == _PREDICATE:
            return self._parse_predicate(left)
        self._tokens.advance()
        sign = _OPERATOR_SYNONYMS.get(operator, operator)
        return BinaryOp(sign, left, self._parse_expression(power + 1), left.at)

    def _parse_associative_chain(self, left: Expression, power: int) -> Expression:
        """Parse `a AND b AND c …` into a balanced tree, which is valid for associative operators."""
        operator = self._tokens.current.upper
        operands = [left]
        while self._tokens.accept(operator):
            operands.append(self._parse_expression(power + 1))
        return _make_balanced_tree(operator, operands)

    def _parse_predicate(self, value: Expression) -> Expression:
        words = self._tokens
        if words.accept("IS"):
            negated = words.accept("NOT")
            if not words.is_at("NULL", "MISSING"):
                message = f"expected NULL or MISSING after IS, got {words.current}"
                raise words.make_error("ParseExpectedKeyword", message)
            return IsPredicate(value, words.advance().upper, negated, value.at)
        negated = words.accept("NOT")
        if words.accept("IN"):
            return InPredicate(value, self._parse_in_options(), negated, value.at)
        if words.accept("BETWEEN"):
            low = self._parse_expression(_JOIN)
            words.expect("AND", "ParseExpectedKeyword", "AND and an upper bound")
            return BetweenPredicate(value, low, self._parse_expression(_JOIN), negated, value.at)
        words.expect("LIKE", "ParseExpectedKeyword", "IN, BETWEEN or LIKE")
        pattern = self._parse_expression(_JOIN)
        escape = self._parse_expression(_JOIN) if words.accept("ESCAPE") else None
        return LikePredicate(value, pattern, escape, negated, value.at)

    def _parse_in_options(self) -> tuple[Expression, ...]:
        if not self._tokens.is_at("(", "["):
            return (self._parse_expression(_JOIN),)
        listed = self._parse_list() if self._tokens.is_at("[") else self._parse_parentheses()
        return listed.items if isinstance(listed, ListExpr) else (listed,)

    def _parse_prefix(self) -> Expression:
        words = self._tokens
        token = words.current
        if token.kind in {
            SelectTokenKind.STRING,
            SelectTokenKind.NUMBER,
            SelectTokenKind.TIMESTAMP,
        }:
            words.advance()
            return self._parse_literal(token)
        if words.is_at_name():
            return self._parse_name_or_call(token)
        if token.kind is SelectTokenKind.QUOTED:
            return self._parse_name()
        prefix = self._prefix_parsers.get(token.upper)
        if prefix is None:
            raise self._unexpected_token_error(token)
        return prefix()

    def _parse_name_or_call(self, token: SelectToken) -> Expression:
        if self._tokens.lookahead_token.text == "(":
            return parse_call(self._tokens, self._parse_expression)
        if token.upper == "NAN" and self._tokens.dialect.is_ceph:
            return self._parse_keyword_literal(math.nan)
        return self._parse_name()

    def _parse_name(self) -> NameRef:
        token = self._tokens.advance()
        first = KeyStep(token.text, token.kind is SelectTokenKind.QUOTED)
        return NameRef((first, *parse_path_steps(self._tokens)), token.start)

    def _parse_keyword_literal(self, value: object) -> LiteralExpr:
        return LiteralExpr(value, self._tokens.advance().start)

    def _parse_literal(self, token: SelectToken) -> LiteralExpr:
        if token.kind is SelectTokenKind.NUMBER:
            return LiteralExpr(self._parse_number(token, negative=False), token.start)
        if token.kind is SelectTokenKind.STRING:
            return LiteralExpr(token.text, token.start)
        timestamp = parse_iso_timestamp(token.text)
        if timestamp is None and not self._tokens.dialect.is_ceph:
            message = f"{token} is not a timestamp; expected a form such as `2007-02-23T12:14:33Z`"
            raise self._tokens.make_error("LexerInvalidIONLiteral", message, token)
        return LiteralExpr(token.text if timestamp is None else timestamp, token.start)

    def _parse_number(self, token: SelectToken, *, negative: bool) -> int | float | Decimal:
        written = "-" + token.text if negative else token.text
        is_ceph = self._tokens.dialect.is_ceph
        is_whole = token.text.isdecimal()
        has_exponent = "e" in token.text.lower()
        is_exact = not has_exponent and len(token.text) <= DECIMAL_DIGITS + 1
        if is_whole and is_exact and INT_MIN <= int(written) <= INT_MAX:
            return int(written)
        if is_exact and not is_ceph:
            return Decimal(written)
        if has_exponent or (is_ceph and not is_whole):
            nearest = float(written)
            if math.isfinite(nearest):
                return nearest
        message = f"number {token} has too many digits; integers have 64 bits, decimals 38 digits"
        raise self._tokens.make_error("LexerInvalidLiteral", message, token)

    def _parse_minus(self) -> Expression:
        minus = self._tokens.advance()
        start = minus.start
        follows = start > 0 and self._tokens.text[start - 1] == "-"
        if follows and self._tokens.dialect is Dialect.AWS:
            message = "comments ('--') are not supported; put a space between two minus signs"
            raise self._tokens.make_error("UnsupportedSyntax", message, minus)
        token = self._tokens.current
        if token.kind is SelectTokenKind.NUMBER:
            self._tokens.advance()
            return LiteralExpr(self._parse_number(token, negative=True), start)
        return UnaryOp("-", self._parse_expression(_SIGN), start)

    def _parse_plus(self) -> Expression:
        self._tokens.advance()
        return self._parse_expression(_SIGN)

    def _parse_not(self) -> Expression:
        start = self._tokens.advance().start
        return UnaryOp("NOT", self._parse_expression(_COMPARISON), start)

    def _reject_ambiguous_not(self, not_token: SelectToken) -> None:
        """Raise SelectError for `NOT a AND b` in `ceph`, where NOT applies up to the closing bracket."""
        joins = self._tokens.is_at("AND", "OR")
        if joins and self._tokens.dialect is Dialect.CEPH:
            message = (
                f"Ceph's NOT also negates the condition after {self._tokens.current}; write NOT (…) "
                f"for both, or (NOT …) {self._tokens.current} … for the first condition alone"
            )
            raise self._tokens.make_error("UnsupportedSyntax", message, not_token)

    def _parse_parentheses(self) -> Expression:
        words = self._tokens
        start = words.advance().start
        if words.is_at("SELECT"):
            raise words.make_error("UnsupportedSqlStructure", "subqueries are not supported")
        items = self._parse_items(")")
        words.expect(")", "ParseExpectedTokenType", "')'")
        return items[0] if len(items) == 1 else ListExpr(tuple(items), start)

    def _parse_list(self) -> ListExpr:
        start = self._tokens.advance().start
        items = [] if self._tokens.is_at("]") else self._parse_items("]")
        self._tokens.expect("]", "ParseExpectedTokenType", "']'")
        return ListExpr(tuple(items), start)

    def _parse_items(self, closing: str) -> list[Expression]:
        if self._tokens.is_at(closing):
            message = f"expected an expression, got {closing!r}"
            raise self._tokens.make_error("ParseExpectedExpression", message)
        items = [self._parse_expression()]
        while self._tokens.accept(","):
            items.append(self._parse_expression())
        return items

    def _parse_case(self) -> CaseExpr:
        words = self._tokens
        start = words.advance().start
        operand = None if words.is_at("WHEN") else self._parse_expression()
        branches: list[tuple[Expression, Expression]] = []
        while words.accept("WHEN"):
            condition = self._parse_expression()
            words.expect("THEN", "ParseExpectedKeyword", "THEN and a value")
            branches.append((condition, self._parse_expression()))
        if not branches:
            raise words.make_error("ParseExpectedWhenClause", f"expected WHEN, got {words.current}")
        otherwise = self._parse_expression() if words.accept("ELSE") else None
        words.expect("END", "ParseExpectedKeyword", "WHEN, ELSE or END")
        return CaseExpr(operand, tuple(branches), otherwise, start)

    def _unexpected_token_error(self, token: SelectToken) -> Exception:
        if token.kind is SelectTokenKind.END:
            message = "expected an expression at the end of the statement"
            return self._tokens.make_error("ParseExpectedExpression", message)
        if token.kind is SelectTokenKind.WORD:
            message = (
                f"expected an expression; {token.upper} is a keyword, "
                f'write "{token.text}" for a column of that name'
            )
            return self._tokens.make_error("ParseUnExpectedKeyword", message)
        message = f"expected an expression, got {token}"
        return self._tokens.make_error("ParseUnexpectedToken", message)


def _make_balanced_tree(operator: str, operands: Sequence[Expression]) -> Expression:
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    left = _make_balanced_tree(operator, operands[:middle])
    return BinaryOp(operator, left, _make_balanced_tree(operator, operands[middle:]), left.at)


def _measure_height(expression: Expression) -> int:
    tallest = 0
    waiting = [(expression, 1)]
    while waiting:
        node, level = waiting.pop()
        tallest = max(tallest, level)
        waiting.extend((child, level + 1) for child in list_children(node))
    return tallest


if TYPE_CHECKING:
    Parse: TypeAlias = Callable[[], Expression]

AGGREGATE_FUNCTIONS = frozenset({"count", "sum", "min", "max", "avg"})

_MAX_ARGUMENTS = 10_000
_NULLARY, _UNARY, _BINARY, _TERNARY = (0, 0), (1, 1), (2, 2), (3, 3)
_DATE_PART_FUNCTIONS = ("date_add", "date_diff", "dateadd", "datediff")
FUNCTION_ARITIES = {
    **dict.fromkeys(("engine_version", "utcnow", "version"), _NULLARY),
    **dict.fromkeys(("char_length", "character_length", "lower", "timestamp", "upper"), _UNARY),
    **dict.fromkeys(("add", "extract", "nullif", "to_string"), _BINARY),
    **dict.fromkeys(("trim", *_DATE_PART_FUNCTIONS), _TERNARY),
    **dict.fromkeys(("substr", "substring"), (2, 3)),
    "coalesce": (1, _MAX_ARGUMENTS),
}
"""Minimum and maximum number of arguments of each scalar function."""

CAST_TYPES = {
    "BOOL": "BOOL",
    "BOOLEAN": "BOOL",
    "INT": "INT",
    "INTEGER": "INT",
    "BIGINT": "INT",
    "FLOAT": "FLOAT",
    "DOUBLE": "FLOAT",
    "DECIMAL": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "STRING": "STRING",
    "TEXT": "STRING",
    "VARCHAR": "STRING",
    "TIMESTAMP": "TIMESTAMP",
}
CONVERSION_FUNCTIONS = {
    "int": "INT",
    "float": "FLOAT",
    "string": "STRING",
    "to_bool": "BOOL",
    "to_timestamp": "TIMESTAMP",
}
DATE_ADD_PARTS = frozenset({"year", "month", "week", "day", "hour", "minute", "second"})
_MISSING_PARENTHESIS_CODE = "ParseExpectedRightParenBuiltinFunctionCall"
_MAX_TYPE_PARAMETERS = 2


def parse_call(tokens: TokenStream, parse_expression: Parse) -> Expression:
    """Parse a function call, starting at the function name.

    Raises:
        SelectError: If the function is unknown (UnsupportedFunction), or the call is invalid.
    """
    name = tokens.advance()
    function = name.text.lower()
    tokens.expect("(", "ParseExpectedLeftParenBuiltinFunctionCall", "'('")
    if function in AGGREGATE_FUNCTIONS:
        return _parse_aggregate(tokens, parse_expression, function, name)
    if function in CONVERSION_FUNCTIONS:
        value = _accept_double_quoted_timestamp(tokens) or parse_expression()
        _expect_closing_parenthesis(tokens, function)
        return CastExpr(value, CONVERSION_FUNCTIONS[function], at=name.start)
    if function not in FUNCTION_ARITIES:
        raise tokens.make_error("UnsupportedFunction", _unknown_function_message(name.text), name)
    arguments = _ARGUMENT_PARSERS.get(function, _parse_arguments)(tokens, parse_expression)
    _expect_closing_parenthesis(tokens, function)
    least, most = FUNCTION_ARITIES[function]
    if not least <= len(arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        message = f"{function} expects {wanted} arguments, got {len(arguments)}"
        raise tokens.make_error("EvaluatorInvalidArguments", message, name)
    return CallExpr(function, tuple(arguments), name.start)


def parse_cast(tokens: TokenStream, parse_expression: Parse) -> CastExpr:
    """Parse `CAST(value AS type)`, starting at CAST.

    Raises:
        SelectError: If the cast is invalid. The code is one of the parser's codes.
    """
    start = tokens.advance().start
    tokens.expect("(", "ParseExpectedLeftParenAfterCast", "'(' after CAST")
    value = parse_expression()
    tokens.expect("AS", "ParseExpectedKeyword", "AS and a type")
    token = tokens.advance()
    name = CAST_TYPES.get(token.upper)
    if name is None:
        shown = ", ".join(sorted(set(CAST_TYPES.values())))
        message = f"cannot cast to {token}; valid types: {shown}"
        raise tokens.make_error("ParseExpectedTypeName", message, token)
    if token.upper == "DOUBLE":
        tokens.accept("PRECISION")
    if name != "DECIMAL" and tokens.is_at("("):
        message = (
            f"{token.upper} does not accept a length or precision; use SUBSTRING to truncate text"
        )
        raise tokens.make_error("ParseInvalidTypeParam", message)
    parameters = _parse_type_parameters(tokens) if tokens.accept("(") else []
    tokens.expect(")", "ParseExpectedRightParenBuiltinFunctionCall", "')' after the type")
    if name != "DECIMAL":
        return CastExpr(value, name, at=start)
    precision, scale = (*parameters, None, None)[:2]
    return CastExpr(value, name, precision, scale, start)


def _parse_type_parameters(tokens: TokenStream) -> list[int]:
    parameters: list[int] = []
    while True:
        token = tokens.advance()
        if (
            token.kind is not SelectTokenKind.NUMBER
            or not token.text.isdecimal()
            or len(token.text) > 9
        ):
            message = f"expected an integer as length or precision of a type, got {token}"
            raise tokens.make_error("ParseInvalidTypeParam", message, token)
        parameters.append(int(token.text))
        if not tokens.accept(","):
            break
    if len(parameters) > _MAX_TYPE_PARAMETERS:
        raise tokens.make_error("ParseCastArity", "a type accepts at most two numbers")
    tokens.expect(
        ")", "ParseExpectedRightParenBuiltinFunctionCall", "')' after the parameters of the type"
    )
    return parameters


def _parse_aggregate(
    tokens: TokenStream, parse_expression: Parse, function: str, name_token: SelectToken
) -> AggregateExpr:
    distinct = tokens.accept("DISTINCT")
    if not distinct:
        tokens.accept("ALL")
    argument: Expression | None = None
    if function == "count" and not distinct and (tokens.accept("*") or tokens.is_at(")")):
        argument = None
    elif tokens.is_at("*"):
        shown = f"{function}(DISTINCT …)" if distinct else function
        raise tokens.make_error(
            "ParseUnsupportedCallWithStar", f"only count accepts *, not {shown}"
        )
    elif not tokens.is_at(")"):
        argument = parse_expression()
    if tokens.is_at(",") or (argument is None and (distinct or function != "count")):
        message = f"{function} takes one argument"
        raise tokens.make_error("ParseNonUnaryAgregateFunctionCall", message)
    _expect_closing_parenthesis(tokens, function)
    return AggregateExpr(function, argument, name_token.start, distinct)


def _parse_arguments(tokens: TokenStream, parse_expression: Parse) -> list[Expression]:
    if tokens.is_at(")"):
        return []
    arguments = [
        _accept_double_quoted_timestamp(tokens) or _parse_argument(tokens, parse_expression)
    ]
    while tokens.accept(","):
        arguments.append(_parse_argument(tokens, parse_expression))
    return arguments


def _parse_argument(tokens: TokenStream, parse_expression: Parse) -> Expression:
    if tokens.is_at("*"):
        raise tokens.make_error("ParseUnsupportedCallWithStar", "only count takes *")
    return parse_expression()


def _accept_double_quoted_timestamp(tokens: TokenStream) -> LiteralExpr | None:
    """Parse a double-quoted timestamp, or return None. No dialect allows such a column name."""
    token = tokens.current
    is_whole = tokens.lookahead_token.text in {")", ","}
    if token.kind is not SelectTokenKind.QUOTED or not is_whole or not token.text[:1].isdecimal():
        return None
    if parse_lenient_timestamp(token.text) is None:
        return None
    tokens.advance()
    return LiteralExpr(token.text, token.start)


def _parse_extract_arguments(tokens: TokenStream, parse_expression: Parse) -> list[Expression]:
    part = _parse_date_part(tokens, DATE_PARTS)
    if not tokens.accept(","):
        tokens.expect("FROM", "ParseExpectedKeyword", "FROM or a comma")
    return [part, parse_expression()]


def _parse_date_arguments(tokens: TokenStream, parse_expression: Parse) -> list[Expression]:
    part = _parse_date_part(tokens, DATE_ADD_PARTS)
    tokens.expect(",", "ParseExpectedArgumentDelimiter", "a comma after the date part")
    return [part, *_parse_arguments(tokens, parse_expression)]


def _parse_date_part(tokens: TokenStream, allowed_parts: frozenset[str]) -> LiteralExpr:
    token = tokens.advance()
    lower = token.text.lower()
    part = lower if lower in allowed_parts else lower.removesuffix("s")
    if (
        token.kind not in {SelectTokenKind.WORD, SelectTokenKind.QUOTED, SelectTokenKind.STRING}
        or part not in allowed_parts
    ):
        message = f"{token} is not a valid date part here; valid parts: {', '.join(sorted(allowed_parts))}"
        raise tokens.make_error("ParseExpectedDatePart", message, token)
    return LiteralExpr(part, token.start)


def _parse_substring_arguments(tokens: TokenStream, parse_expression: Parse) -> list[Expression]:
    text = parse_expression()
    if not tokens.accept("FROM"):
        tokens.expect(",", "ParseExpectedArgumentDelimiter", "FROM or a comma")
        return [text, *_parse_arguments(tokens, parse_expression)]
    arguments = [text, parse_expression()]
    if tokens.accept("FOR"):
        arguments.append(parse_expression())
    return arguments


def _parse_trim_arguments(tokens: TokenStream, parse_expression: Parse) -> list[Expression]:
    start = tokens.current.start
    mode = "both"
    if tokens.is_at("BOTH", "LEADING", "TRAILING") and tokens.lookahead_token.text not in {
        ")",
        ".",
    }:
        mode = tokens.advance().text.lower()
    if tokens.accept("FROM"):
        return [LiteralExpr(mode, start), LiteralExpr(" ", start), parse_expression()]
    first = parse_expression()
    if tokens.accept("FROM"):
        return [LiteralExpr(mode, start), first, parse_expression()]
    return [LiteralExpr(mode, start), LiteralExpr(" ", start), first]


_ARGUMENT_PARSERS: dict[str, Callable[[TokenStream, Parse], list[Expression]]] = {
    "extract": _parse_extract_arguments,
    "substring": _parse_substring_arguments,
    "trim": _parse_trim_arguments,
    **dict.fromkeys(_DATE_PART_FUNCTIONS, _parse_date_arguments),
}


def _expect_closing_parenthesis(tokens: TokenStream, function: str) -> None:
    starts_value = {SelectTokenKind.NUMBER, SelectTokenKind.STRING, SelectTokenKind.QUOTED}
    if tokens.current.kind in starts_value or tokens.is_at_name():
        message = f"expected a comma or ')' in {function}, got {tokens.current}"
        raise tokens.make_error("ParseExpectedArgumentDelimiter", message)
    tokens.expect(")", _MISSING_PARENTHESIS_CODE, f"')' of {function}")


def _unknown_function_message(name: str) -> str:
    known = [*FUNCTION_ARITIES, *CONVERSION_FUNCTIONS, *AGGREGATE_FUNCTIONS, "cast"]
    close = get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"
    return f"there is no function {name}{hint}"


_MAX_INDEX_DIGITS = 9


def parse_path_steps(tokens: TokenStream) -> tuple[PathStep, ...]:
    """Parse a possibly empty sequence of `.name`, `."name"`, `['name']`, `[2]`, `[*]` and `.*`.

    Raises:
        SelectError: If a step is invalid (ParseInvalidPathComponent, ParseExpectedMember).
    """
    steps: list[PathStep] = []
    while tokens.is_at(".", "["):
        steps.append(
            _parse_field_step(tokens)
            if tokens.advance().text == "."
            else _parse_bracket_step(tokens)
        )
    return tuple(steps)


def _parse_field_step(tokens: TokenStream) -> PathStep:
    if tokens.accept("*"):
        return WildcardStep.FIELD
    token = tokens.current
    if token.kind not in {SelectTokenKind.WORD, SelectTokenKind.QUOTED}:
        raise tokens.make_error("ParseExpectedMember", f"expected a field name, got {token}")
    tokens.advance()
    return KeyStep(token.text, token.kind is SelectTokenKind.QUOTED)


def _parse_bracket_step(tokens: TokenStream) -> PathStep:
    token = tokens.advance()
    step: PathStep
    if token.text == "*" and token.kind is SelectTokenKind.SYMBOL:
        step = WildcardStep.ITEM
    elif token.kind in {SelectTokenKind.STRING, SelectTokenKind.QUOTED}:
        step = KeyStep(token.text, quoted=True)
    elif (
        token.kind is SelectTokenKind.NUMBER
        and token.text.isdecimal()
        and len(token.text) <= _MAX_INDEX_DIGITS
    ):
        step = IndexStep(int(token.text))
    else:
        message = f"expected a number, 'name' or * between the brackets, got {token}"
        raise tokens.make_error("ParseInvalidPathComponent", message, token)
    tokens.expect("]", "ParseExpectedTokenType", "']'")
    return step
