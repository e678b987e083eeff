"""Random statements of S3 Select, each with the result of a model in Python.

The model has three-valued logic, exact decimals, and texts of code points. It shares no code with
the engine.
"""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

Row = dict[str, Any]
TEXTS = [
    *("", "a", "A", "ab", "a%b", "a_b", "é", "雪x", "  sp ", "10", "1e3", "\\", '"q"'),
    *("a\nb", "x,y", "Z\U0001f600z", "null", "it's"),
]
NUMBERS = ["0", "1", "-3", "2.5", "-0.125", "100", "7", "1000000"]
PATTERNS = ["%", "_", "a%", "%b", "a_b", "", "%é%", "a!%b", "__", "!_%", "%\n%"]
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
TRIMS: dict[str, Callable[[str], str]] = {
    "leading": lambda text: text.lstrip(" "),
    "trailing": lambda text: text.rstrip(" "),
    "both": lambda text: text.strip(" "),
}


class Term(NamedTuple):
    """Expression, and its value in a row."""

    sql: str
    find: Callable[[Row], Any]


def lift(function: Callable[..., Any], *terms: Term) -> Callable[[Row], Any]:
    """Return the function of the terms' values, NULL if one of them is NULL."""

    def find(row: Row) -> Any:
        values = [term.find(row) for term in terms]
        return None if None in values else function(*values)

    return find


def conjoin(values: list[bool | None]) -> bool | None:
    """Return AND in three-valued logic."""
    return False if False in values else None if None in values else True


def negate(value: bool | None) -> bool | None:
    """Return NOT in three-valued logic."""
    return None if value is None else not value


def substring(text: str, start: int, length: int | None) -> str:
    """Return the characters from `start`; a start before 1 means 1, as Amazon documents."""
    begin = max(start, 1) - 1
    return text[begin:] if length is None else text[begin : begin + length]


def matches(text: str, pattern: str) -> bool:
    """Return LIKE with the escape character `!`."""
    parts = re.findall(r"!.|.", pattern, re.DOTALL)
    meanings = {"%": ".*", "_": "."}
    expression = "".join(meanings.get(part, re.escape(part[-1])) for part in parts)
    return re.fullmatch(expression, text, re.DOTALL) is not None


class StatementGenerator:
    """Generator of random terms over the columns i, j, f (numbers) and s, t (texts)."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def rows(self, count: int) -> list[Row]:
        """Return random rows. A value can be NULL."""

        def pick(values: list[Any]) -> Any:
            return None if self._random.random() < 0.15 else self._random.choice(values)

        integers = [Decimal(each) for each in (0, 1, -1, 3, 7, 100, 2**53 + 1, -(2**31))]
        small = [Decimal(each) for each in range(-5, 6)]
        fractions = [Decimal(each) for each in ("0.5", "-2.25", "1.125", "0", "1024.0625", "0.1")]
        columns: dict[str, list[Any]] = {
            "i": integers,
            "j": small,
            "f": fractions,
            "s": TEXTS,
            "t": TEXTS,
        }
        return [{name: pick(each) for name, each in columns.items()} for _ in range(count)]

    def statement(self, rows: list[Row]) -> tuple[str, list[Any]]:
        """Return a statement and the values that it selects from the rows."""
        condition = self._condition(3)
        chosen = [row for row in rows if condition.find(row) is True]
        if self._random.random() < 0.7:
            term = self._term(3)
            values = [term.find(row) for row in chosen]
            return f"select {term.sql} as x from s3object s where {condition.sql}", values
        term, name = self._number(2), self._random.choice(["sum", "min", "max", "count"])
        given = [value for value in map(term.find, chosen) if value is not None]
        functions: dict[str, Callable[..., Any]] = {"sum": sum, "min": min, "max": max}
        found: Any = None
        if name == "count":
            found = Decimal(len(given))
        elif given:
            found = functions[name](given)
        return f"select {name}({term.sql}) as x from s3object s where {condition.sql}", [found]

    def _term(self, depth: int) -> Term:
        return self._random.choice([self._number, self._text, self._condition])(depth)

    def _number(self, depth: int) -> Term:
        choice = self._random.randrange(10) if depth > 0 else self._random.randrange(5)
        if choice < 3:
            name = self._random.choice("ijf")
            return Term(f"s.{name}", lambda row: row[name])
        if choice < 5:
            text = self._random.choice(NUMBERS)
            return Term(text, lambda _: Decimal(text))
        first, second = self._number(depth - 1), self._number(depth - 1)
        if choice < 7:
            sign, function = self._random.choice([("+", operator.add), ("-", operator.sub)])
            return Term(f"({first.sql} {sign} {second.sql})", lift(function, first, second))
        if choice == 7:
            text_term = self._text(depth - 1)
            return Term(
                f"char_length({text_term.sql})", lift(lambda text: Decimal(len(text)), text_term)
            )
        if choice == 8:
            return Term(
                f"coalesce({first.sql}, {second.sql})",
                lambda row: second.find(row) if first.find(row) is None else first.find(row),
            )
        condition = self._condition(depth - 1)
        return Term(
            f"case when {condition.sql} then {first.sql} else {second.sql} end",
            lambda row: (first if condition.find(row) is True else second).find(row),
        )

    def _text(self, depth: int) -> Term:
        choice = self._random.randrange(10) if depth > 0 else self._random.randrange(4)
        if choice < 3:
            name = self._random.choice("st")
            return Term(f"s.{name}", lambda row: row[name])
        if choice == 3:
            value = self._random.choice(TEXTS)
            quoted = value.replace("'", "''")
            return Term(f"'{quoted}'", lambda _: value)
        first = self._text(depth - 1)
        if choice == 4:
            return Term(f"lower({first.sql})", lift(str.lower, first))
        if choice == 5:
            return Term(f"upper({first.sql})", lift(str.upper, first))
        if choice < 8:
            start, length = self._random.randint(-3, 4), self._random.choice([None, 0, 1, 2, 5])
            more = "" if length is None else f", {length}"
            sql = f"substring({first.sql}, {start}{more})"
            return Term(sql, lift(lambda text: substring(text, start, length), first))
        if choice == 8:
            second = self._text(depth - 1)
            return Term(f"({first.sql} || {second.sql})", lift(operator.add, first, second))
        side = self._random.choice(list(TRIMS))
        return Term(f"trim({side} from {first.sql})", lift(TRIMS[side], first))

    def _condition(self, depth: int) -> Term:
        if depth > 0 and self._random.random() < 0.45:
            return self._connection(depth)
        is_text = self._random.random() < 0.5
        make = self._text if is_text else self._number
        first, second = make(depth - 1), make(depth - 1)
        choice = self._random.randrange(6)
        if choice == 0:
            return Term(f"({first.sql} is null)", lambda row: first.find(row) is None)
        if choice == 1:
            third = make(depth - 1)
            low, high = lift(operator.ge, first, second), lift(operator.le, first, third)
            sql = f"({first.sql} between {second.sql} and {third.sql})"
            return Term(sql, lambda row: conjoin([low(row), high(row)]))
        if choice == 2:
            items = [make(0) for _ in range(3)]
            differ = [lift(operator.ne, first, item) for item in items]
            sql = f"({first.sql} in ({', '.join(item.sql for item in items)}))"
            return Term(sql, lambda row: negate(conjoin([each(row) for each in differ])))
        if choice == 3 and is_text:
            pattern = self._random.choice(PATTERNS)
            sql = f"({first.sql} like '{pattern}' escape '!')"
            return Term(sql, lift(lambda text: matches(text, pattern), first))
        sign = self._random.choice(list(COMPARISONS))
        return Term(f"({first.sql} {sign} {second.sql})", lift(COMPARISONS[sign], first, second))

    def _connection(self, depth: int) -> Term:
        first, second = self._condition(depth - 1), self._condition(depth - 1)
        choice = self._random.randrange(3)
        if choice == 0:
            return Term(f"(not {first.sql})", lambda row: negate(first.find(row)))
        if choice == 1:
            return Term(
                f"({first.sql} and {second.sql})",
                lambda row: conjoin([first.find(row), second.find(row)]),
            )
        return Term(
            f"({first.sql} or {second.sql})",
            lambda row: negate(conjoin([negate(first.find(row)), negate(second.find(row))])),
        )
