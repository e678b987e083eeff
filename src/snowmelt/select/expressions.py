"""The grammar of expressions: a parser by precedence."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING

from snowmelt.select.calls import parse_call, parse_cast
from snowmelt.select.dialect import Dialect
from snowmelt.select.lexer import Kind
from snowmelt.select.steps import parse_steps
from snowmelt.select.syntax import (
    MISSING,
    Between,
    Binary,
    Case,
    In,
    Is,
    Like,
    ListValue,
    Literal,
    Name,
    Unary,
    Word,
    children,
)
from snowmelt.select.timestamps import parse_iso
from snowmelt.select.values import DECIMAL_DIGITS, INT_MAX, INT_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from snowmelt.select.lexer import Token
    from snowmelt.select.syntax import Expression
    from snowmelt.select.words import Words

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
