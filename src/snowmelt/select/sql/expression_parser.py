"""The grammar of expressions: a parser by precedence."""

from __future__ import annotations

import math
from decimal import Decimal
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.select.dialect import Dialect
from snowmelt.select.sql.ast import (
    Aggregate,
    Any,
    Between,
    Binary,
    Call,
    Case,
    Cast,
    In,
    Index,
    Is,
    Like,
    ListValue,
    Literal,
    Name,
    Unary,
    Word,
    children,
)
from snowmelt.select.sql.function_arity import ARITIES, DATE_FUNCTIONS
from snowmelt.select.sql.lexer import Kind
from snowmelt.select.timestamps import PARTS, parse_iso, parse_seed
from snowmelt.select.values import DECIMAL_DIGITS, INT_MAX, INT_MIN, MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from snowmelt.select.sql.ast import Expression, Step
    from snowmelt.select.sql.lexer import Token, Words

MAX_NESTING = 100
"""How deep parentheses, calls, CASE and operands may stand inside each other."""
MAX_HEIGHT = 150
"""How many levels the tree of an expression may have; the evaluator recurses."""

_OR, _AND, _NOT, _COMPARISON, _PREDICATE, _JOIN, _SUM, _PRODUCT, _SIGN = range(1, 10)
_POWERS = {
    **dict.fromkeys(["=", "==", "<>", "!=", "<", "<=", ">", ">="], _COMPARISON),
    **dict.fromkeys(["IN", "BETWEEN", "LIKE", "IS", "NOT"], _PREDICATE),
    "||": _JOIN,
    **dict.fromkeys(["+", "-"], _SUM),
    **dict.fromkeys(["*", "/", "%", "^"], _PRODUCT),
}
OPERATORS = frozenset({*_POWERS, "AND", "OR"})
"""Every operator with two sides, and NOT."""
_SPELLINGS = {"==": "=", "!=": "<>"}
_BALANCED = frozenset({"AND", "OR", "||"})


class ExpressionParser:
    """Reads expressions of one statement."""

    def __init__(self, words: Words) -> None:
        """Read from `words`, and move it forward."""
        self._words = words
        self._depth = 0
        # The first engine reads AND and OR from left to right, neither before the other.
        first_engine = words.dialect is Dialect.CEPH_2020
        self._powers = {**_POWERS, "OR": _AND if first_engine else _OR, "AND": _AND}
        self._prefixes: dict[str, Callable[[], Expression]] = {
            "(": self._group,
            "[": self._list,
            "-": self._minus,
            "+": self._plus,
            "NOT": self._negation,
            "CASE": self._case,
            "CAST": lambda: parse_cast(words, self._parse),
            "NULL": lambda: self._constant(None),
            "MISSING": lambda: self._constant(MISSING),
            "TRUE": lambda: self._constant(True),
            "FALSE": lambda: self._constant(False),
        }

    def parse(self) -> Expression:
        """Read one expression.

        Raises:
            SelectError: The parser's codes.
        """
        start = self._words.token
        expression = self._parse()
        if _height(expression) > MAX_HEIGHT:
            message = f"this expression has more than {MAX_HEIGHT} levels; split it"
            raise self._words.error("UnsupportedSqlStructure", message, start)
        return expression

    def _parse(self, power: int = _OR) -> Expression:
        self._depth += 1
        if self._depth > MAX_NESTING:
            message = f"the statement is nested deeper than {MAX_NESTING} levels"
            raise self._words.error("UnsupportedSqlStructure", message)
        first = self._words.token
        left = self._prefix()
        if power == _OR and first.upper == "NOT":
            self._check_negation(first)
        while (found := self._powers.get(self._words.token.upper, 0)) >= power:
            left = self._joined(left, found)
        self._depth -= 1
        return left

    def _joined(self, left: Expression, power: int) -> Expression:
        """Read an operator after its left operand, and what belongs to its right."""
        operator = self._words.token.upper
        if operator in _BALANCED:
            return self._chain(left, power)
        if power == _PREDICATE:
            return self._predicate(left)
        self._words.take()
        sign = _SPELLINGS.get(operator, operator)
        return Binary(sign, left, self._parse(power + 1), left.at)

    def _chain(self, left: Expression, power: int) -> Expression:
        """Read `a AND b AND c …` into a tree that is flat: these operators are associative."""
        operator = self._words.token.upper
        operands = [left]
        while self._words.accept(operator):
            operands.append(self._parse(power + 1))
        return _balanced(operator, operands)

    def _predicate(self, value: Expression) -> Expression:
        words = self._words
        if words.accept("IS"):
            negated = words.accept("NOT")
            if not words.sees("NULL", "MISSING"):
                message = f"after IS stand NULL or MISSING, not {words.token}"
                raise words.error("ParseExpectedKeyword", message)
            return Is(value, words.take().upper, negated, value.at)
        negated = words.accept("NOT")
        if words.accept("IN"):
            return In(value, self._options(), negated, value.at)
        if words.accept("BETWEEN"):
            low = self._parse(_JOIN)
            words.expect("AND", "ParseExpectedKeyword", "AND and the upper end")
            return Between(value, low, self._parse(_JOIN), negated, value.at)
        words.expect("LIKE", "ParseExpectedKeyword", "IN, BETWEEN or LIKE")
        pattern = self._parse(_JOIN)
        escape = self._parse(_JOIN) if words.accept("ESCAPE") else None
        return Like(value, pattern, escape, negated, value.at)

    def _options(self) -> tuple[Expression, ...]:
        if not self._words.sees("(", "["):
            return (self._parse(_JOIN),)
        listed = self._list() if self._words.sees("[") else self._group()
        return listed.items if isinstance(listed, ListValue) else (listed,)

    def _prefix(self) -> Expression:
        words = self._words
        token = words.token
        if token.kind in {Kind.STRING, Kind.NUMBER, Kind.TIMESTAMP}:
            words.take()
            return self._literal(token)
        if words.sees_name():
            return self._named(token)
        if token.kind is Kind.QUOTED:
            return self._name()
        prefix = self._prefixes.get(token.upper)
        if prefix is None:
            raise self._unexpected(token)
        return prefix()

    def _named(self, token: Token) -> Expression:
        if self._words.following.text == "(":
            return parse_call(self._words, self._parse)
        if token.upper == "NAN" and self._words.dialect.is_ceph:
            return self._constant(math.nan)
        return self._name()

    def _name(self) -> Name:
        token = self._words.take()
        first = Word(token.text, token.kind is Kind.QUOTED)
        return Name((first, *parse_steps(self._words)), token.start)

    def _constant(self, value: object) -> Literal:
        return Literal(value, self._words.take().start)

    def _literal(self, token: Token) -> Literal:
        if token.kind is Kind.NUMBER:
            return Literal(self._number(token, negative=False), token.start)
        if token.kind is Kind.STRING:
            return Literal(token.text, token.start)
        timestamp = parse_iso(token.text)
        if timestamp is None and not self._words.dialect.is_ceph:
            message = f"{token} is no timestamp; write it like `2007-02-23T12:14:33Z`"
            raise self._words.error("LexerInvalidIONLiteral", message, token)
        return Literal(token.text if timestamp is None else timestamp, token.start)

    def _number(self, token: Token, *, negative: bool) -> int | float | Decimal:
        written = "-" + token.text if negative else token.text
        is_ceph = self._words.dialect.is_ceph
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
        raise self._words.error("LexerInvalidLiteral", message, token)

    def _minus(self) -> Expression:
        minus = self._words.take()
        start = minus.start
        follows = start > 0 and self._words.text[start - 1] == "-"
        if follows and self._words.dialect is Dialect.AWS:
            message = "'--' begins no comment here; put a blank between two minus signs"
            raise self._words.error("UnsupportedSyntax", message, minus)
        token = self._words.token
        if token.kind is Kind.NUMBER:
            self._words.take()
            return Literal(self._number(token, negative=True), start)
        return Unary("-", self._parse(_SIGN), start)

    def _plus(self) -> Expression:
        self._words.take()
        return self._parse(_SIGN)

    def _negation(self) -> Expression:
        start = self._words.take().start
        return Unary("NOT", self._parse(_COMPARISON), start)

    def _check_negation(self, first: Token) -> None:
        """Refuse what `ceph` reads in another way: its NOT stands for all up to the next bracket."""
        joins = self._words.sees("AND", "OR")
        if joins and self._words.dialect is Dialect.CEPH:
            message = (
                f"Ceph's NOT negates what follows {self._words.token}, too; write NOT (…) for "
                f"all of it, or (NOT …) {self._words.token} … for the first condition alone"
            )
            raise self._words.error("UnsupportedSyntax", message, first)

    def _group(self) -> Expression:
        words = self._words
        start = words.take().start
        if words.sees("SELECT"):
            raise words.error("UnsupportedSqlStructure", "a query inside a query is not supported")
        items = self._items(")")
        words.expect(")", "ParseExpectedTokenType", "')'")
        return items[0] if len(items) == 1 else ListValue(tuple(items), start)

    def _list(self) -> ListValue:
        start = self._words.take().start
        items = [] if self._words.sees("]") else self._items("]")
        self._words.expect("]", "ParseExpectedTokenType", "']'")
        return ListValue(tuple(items), start)

    def _items(self, closing: str) -> list[Expression]:
        if self._words.sees(closing):
            message = f"an expression must stand here, not {closing!r}"
            raise self._words.error("ParseExpectedExpression", message)
        items = [self._parse()]
        while self._words.accept(","):
            items.append(self._parse())
        return items

    def _case(self) -> Case:
        words = self._words
        start = words.take().start
        operand = None if words.sees("WHEN") else self._parse()
        branches: list[tuple[Expression, Expression]] = []
        while words.accept("WHEN"):
            condition = self._parse()
            words.expect("THEN", "ParseExpectedKeyword", "THEN and a value")
            branches.append((condition, self._parse()))
        if not branches:
            raise words.error("ParseExpectedWhenClause", f"WHEN must stand here, not {words.token}")
        otherwise = self._parse() if words.accept("ELSE") else None
        words.expect("END", "ParseExpectedKeyword", "WHEN, ELSE or END")
        return Case(operand, tuple(branches), otherwise, start)

    def _unexpected(self, token: Token) -> Exception:
        if token.kind is Kind.END:
            message = "an expression is missing at the end of the statement"
            return self._words.error("ParseExpectedExpression", message)
        if token.kind is Kind.WORD:
            message = (
                f"an expression must stand here; {token.upper} is a keyword, "
                f'write "{token.text}" for a column of that name'
            )
            return self._words.error("ParseUnExpectedKeyword", message)
        message = f"an expression must stand here, not {token}"
        return self._words.error("ParseUnexpectedToken", message)


def _balanced(operator: str, operands: Sequence[Expression]) -> Expression:
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    left = _balanced(operator, operands[:middle])
    return Binary(operator, left, _balanced(operator, operands[middle:]), left.at)


def _height(expression: Expression) -> int:
    tallest = 0
    waiting = [(expression, 1)]
    while waiting:
        node, level = waiting.pop()
        tallest = max(tallest, level)
        waiting.extend((child, level + 1) for child in children(node))
    return tallest


# --- How functions are called: aggregates, CAST, and those whose arguments stand between keywords.

if TYPE_CHECKING:
    Parse: TypeAlias = Callable[[], Expression]

AGGREGATES = frozenset({"count", "sum", "min", "max", "avg"})

TYPES = {
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
CONVERSIONS = {
    "int": "INT",
    "float": "FLOAT",
    "string": "STRING",
    "to_bool": "BOOL",
    "to_timestamp": "TIMESTAMP",
}
ADDED_PARTS = frozenset({"year", "month", "week", "day", "hour", "minute", "second"})
_CLOSING = "ParseExpectedRightParenBuiltinFunctionCall"
_TYPE_PARAMETERS = 2


def parse_call(words: Words, parse: Parse) -> Expression:
    """Read a call from the function's name on.

    Raises:
        SelectError: UnsupportedFunction for one that does not exist, and the parser's codes.
    """
    name = words.take()
    function = name.text.lower()
    words.expect("(", "ParseExpectedLeftParenBuiltinFunctionCall", "'('")
    if function in AGGREGATES:
        return _aggregate(words, parse, function, name)
    if function in CONVERSIONS:
        value = _timestamp_text(words) or parse()
        _close(words, function)
        return Cast(value, CONVERSIONS[function], at=name.start)
    if function not in ARITIES:
        raise words.error("UnsupportedFunction", _unknown(name.text), name)
    arguments = _SPECIAL.get(function, _arguments)(words, parse)
    _close(words, function)
    least, most = ARITIES[function]
    if not least <= len(arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        message = f"{function} takes {wanted} arguments, not {len(arguments)}"
        raise words.error("EvaluatorInvalidArguments", message, name)
    return Call(function, tuple(arguments), name.start)


def parse_cast(words: Words, parse: Parse) -> Cast:
    """Read `CAST(value AS type)` from the word CAST on.

    Raises:
        SelectError: The parser's codes.
    """
    start = words.take().start
    words.expect("(", "ParseExpectedLeftParenAfterCast", "after CAST '('")
    value = parse()
    words.expect("AS", "ParseExpectedKeyword", "AS and a type")
    token = words.take()
    name = TYPES.get(token.upper)
    if name is None:
        shown = ", ".join(sorted(set(TYPES.values())))
        message = f"{token} is no type to cast to; there are {shown}"
        raise words.error("ParseExpectedTypeName", message, token)
    if token.upper == "DOUBLE":
        words.accept("PRECISION")
    if name != "DECIMAL" and words.sees("("):
        message = f"{token.upper} takes no length or precision here; SUBSTRING cuts a text"
        raise words.error("ParseInvalidTypeParam", message)
    parameters = _type_parameters(words) if words.accept("(") else []
    words.expect(")", "ParseExpectedRightParenBuiltinFunctionCall", "')' after the type")
    if name != "DECIMAL":
        return Cast(value, name, at=start)
    precision, scale = (*parameters, None, None)[:2]
    return Cast(value, name, precision, scale, start)


def _type_parameters(words: Words) -> list[int]:
    parameters: list[int] = []
    while True:
        token = words.take()
        if token.kind is not Kind.NUMBER or not token.text.isdecimal() or len(token.text) > 9:
            message = f"a type's length or precision is a whole number, not {token}"
            raise words.error("ParseInvalidTypeParam", message, token)
        parameters.append(int(token.text))
        if not words.accept(","):
            break
    if len(parameters) > _TYPE_PARAMETERS:
        raise words.error("ParseCastArity", "a type takes at most two numbers")
    words.expect(")", "ParseExpectedRightParenBuiltinFunctionCall", "')' after the type's numbers")
    return parameters


def _aggregate(words: Words, parse: Parse, function: str, name: Token) -> Aggregate:
    distinct = words.accept("DISTINCT")
    if not distinct:
        words.accept("ALL")
    argument: Expression | None = None
    if function == "count" and not distinct and (words.accept("*") or words.sees(")")):
        argument = None
    elif words.sees("*"):
        shown = f"{function}(DISTINCT …)" if distinct else function
        raise words.error("ParseUnsupportedCallWithStar", f"only count takes *, not {shown}")
    elif not words.sees(")"):
        argument = parse()
    if words.sees(",") or (argument is None and (distinct or function != "count")):
        message = f"{function} takes one argument"
        raise words.error("ParseNonUnaryAgregateFunctionCall", message)
    _close(words, function)
    return Aggregate(function, argument, name.start, distinct)


def _arguments(words: Words, parse: Parse) -> list[Expression]:
    if words.sees(")"):
        return []
    arguments = [_timestamp_text(words) or _argument(words, parse)]
    while words.accept(","):
        arguments.append(_argument(words, parse))
    return arguments


def _argument(words: Words, parse: Parse) -> Expression:
    if words.sees("*"):
        raise words.error("ParseUnsupportedCallWithStar", "only count takes *")
    return parse()


def _timestamp_text(words: Words) -> Literal | None:
    """Take a timestamp in double quotes: no column is called so, in no dialect."""
    token = words.token
    is_whole = words.following.text in {")", ","}
    if token.kind is not Kind.QUOTED or not is_whole or not token.text[:1].isdecimal():
        return None
    if parse_seed(token.text) is None:
        return None
    words.take()
    return Literal(token.text, token.start)


def _extract(words: Words, parse: Parse) -> list[Expression]:
    part = _date_part(words, PARTS)
    if not words.accept(","):
        words.expect("FROM", "ParseExpectedKeyword", "FROM or a comma")
    return [part, parse()]


def _date_arguments(words: Words, parse: Parse) -> list[Expression]:
    part = _date_part(words, ADDED_PARTS)
    words.expect(",", "ParseExpectedArgumentDelimiter", "after the date part a comma")
    return [part, *_arguments(words, parse)]


def _date_part(words: Words, known: frozenset[str]) -> Literal:
    token = words.take()
    lower = token.text.lower()
    part = lower if lower in known else lower.removesuffix("s")
    if token.kind not in {Kind.WORD, Kind.QUOTED, Kind.STRING} or part not in known:
        message = f"{token} is no date part here; there are {', '.join(sorted(known))}"
        raise words.error("ParseExpectedDatePart", message, token)
    return Literal(part, token.start)


def _substring(words: Words, parse: Parse) -> list[Expression]:
    text = parse()
    if not words.accept("FROM"):
        words.expect(",", "ParseExpectedArgumentDelimiter", "FROM or a comma")
        return [text, *_arguments(words, parse)]
    arguments = [text, parse()]
    if words.accept("FOR"):
        arguments.append(parse())
    return arguments


def _trim(words: Words, parse: Parse) -> list[Expression]:
    start = words.token.start
    mode = "both"
    if words.sees("BOTH", "LEADING", "TRAILING") and words.following.text not in {")", "."}:
        mode = words.take().text.lower()
    if words.accept("FROM"):
        return [Literal(mode, start), Literal(" ", start), parse()]
    first = parse()
    if words.accept("FROM"):
        return [Literal(mode, start), first, parse()]
    return [Literal(mode, start), Literal(" ", start), first]


_SPECIAL: dict[str, Callable[[Words, Parse], list[Expression]]] = {
    "extract": _extract,
    "substring": _substring,
    "trim": _trim,
    **dict.fromkeys(DATE_FUNCTIONS, _date_arguments),
}


def _close(words: Words, function: str) -> None:
    starts_value = {Kind.NUMBER, Kind.STRING, Kind.QUOTED}
    if words.token.kind in starts_value or words.sees_name():
        message = f"a comma or ')' must stand here in {function}, not {words.token}"
        raise words.error("ParseExpectedArgumentDelimiter", message)
    words.expect(")", _CLOSING, f"')' of {function}")


def _unknown(name: str) -> str:
    known = [*ARITIES, *CONVERSIONS, *AGGREGATES, "cast"]
    close = get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"
    return f"there is no function {name}{hint}"


# --- The grammar of paths: what follows a name to lead into a record.

_LONGEST_INDEX = 9


def parse_steps(words: Words) -> tuple[Step, ...]:
    """Read `.name`, `."name"`, `['name']`, `[2]`, `[*]` and `.*`, as many as there are.

    Raises:
        SelectError: ParseInvalidPathComponent, ParseExpectedMember.
    """
    steps: list[Step] = []
    while words.sees(".", "["):
        steps.append(_field(words) if words.take().text == "." else _item(words))
    return tuple(steps)


def _field(words: Words) -> Step:
    if words.accept("*"):
        return Any.FIELD
    token = words.token
    if token.kind not in {Kind.WORD, Kind.QUOTED}:
        raise words.error("ParseExpectedMember", f"a field's name must stand here, not {token}")
    words.take()
    return Word(token.text, token.kind is Kind.QUOTED)


def _item(words: Words) -> Step:
    token = words.take()
    step: Step
    if token.text == "*" and token.kind is Kind.SYMBOL:
        step = Any.ITEM
    elif token.kind in {Kind.STRING, Kind.QUOTED}:
        step = Word(token.text, quoted=True)
    elif token.kind is Kind.NUMBER and token.text.isdecimal() and len(token.text) <= _LONGEST_INDEX:
        step = Index(int(token.text))
    else:
        message = f"a number, 'name' or * must stand between the brackets, not {token}"
        raise words.error("ParseInvalidPathComponent", message, token)
    words.expect("]", "ParseExpectedTokenType", "']'")
    return step
