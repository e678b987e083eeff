"""Parser for `WORD = value` clauses, in any order, each at most once; the sign is optional."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from snowmelt.catalog.sql.cursor import TokenCursor, join_alternatives
from snowmelt.catalog.sql.lexer import SourcePosition, TokenKind

ValueParser: TypeAlias = Callable[["TokenCursor"], Any]
_Choice = TypeVar("_Choice", bound=StrEnum)

_TEXT_TOKEN_KINDS = frozenset({TokenKind.WORD, TokenKind.QUOTED, TokenKind.STRING})


MAX_RETENTION_DAYS = 90  # as Snowflake's


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause: how its value is read, what UNSET sets, and the field of a definition that is set.

    `is_required` means that it must be given, and cannot be UNSET. The field is named as the clause
    where it has no name of its own.
    """

    parse_value: ValueParser
    default: object = None
    is_required: bool = False
    field: str | None = None


class ClauseReader:
    """The clauses of one statement as they are read."""

    def __init__(self, clauses: Mapping[str, Clause], label: str) -> None:
        """`label` is how errors call that which has the clauses."""
        self._clauses = clauses
        self._label = label
        # What each clause said, and where, by its word.
        self.values: dict[str, tuple[Any, SourcePosition]] = {}

    def parse_next(self, cursor: TokenCursor, *, unset: bool = False) -> bool:
        """Go past the next clause, or with `unset` its name, if there is one, and report that."""
        token = cursor.current
        if token.kind is not TokenKind.WORD or token.text not in self._clauses:
            return False
        clause = self._clauses[token.text]
        if unset and clause.is_required:
            raise cursor.make_error(f"{token.text} cannot be UNSET: SET it to another value")
        cursor.advance()
        if unset:
            value = clause.default
        else:
            cursor.accept("=")
            value = clause.parse_value(cursor)
        if token.text in self.values:
            raise cursor.make_error(f"{token.text} is given twice", token)
        self.values[token.text] = value, token.position
        return True

    def parse_all(self, cursor: TokenCursor) -> None:
        """Go past the clauses of a CREATE, with commas between or without, to the end."""
        while self.parse_next(cursor):
            cursor.accept(",")
        if not is_at_end(cursor):
            self.raise_unknown_clause(cursor)
        self.check_required(cursor)

    def parse_changes(self, cursor: TokenCursor, *, unset: bool) -> None:
        """Go past the clauses of SET or UNSET, with commas between or without, to the end."""
        while self.parse_next(cursor, unset=unset):
            cursor.accept(",")
        if not self.values or not is_at_end(cursor):
            self.raise_unknown_clause(cursor)
        cursor.expect_end("ALTER")

    def raise_unknown_clause(self, cursor: TokenCursor, other_words: Iterable[str] = ()) -> None:
        """Raise the error that says which clauses there are."""
        there = ", ".join((*other_words, *self._clauses))
        raise cursor.make_error(
            f"{cursor.current_label} is no clause of {self._label}; there are {there}"
            if not is_at_end(cursor)
            else f"Expected a clause of {self._label} here; there are {there}"
        )

    def check_required(self, cursor: TokenCursor) -> None:
        """Check that what must be given was."""
        for word, clause in self._clauses.items():
            if clause.is_required and word not in self.values:
                raise cursor.make_error(f"{word} is missing: {self._label} needs it")

    def field_values(self) -> dict[str, Any]:
        """Return the values by field of the definition."""
        return {
            self._clauses[word].field or word.lower(): value
            for word, (value, _) in self.values.items()
        }

    def positions(self) -> dict[str, SourcePosition]:
        """Return where each clause stands."""
        return {word: position for word, (_, position) in self.values.items()}


def text_parser(label: str) -> ValueParser:
    """Return a reader of a string."""
    return lambda cursor: cursor.parse_string(label)


def choice_parser(enum_type: type[_Choice], label: str) -> Callable[[TokenCursor], _Choice]:
    """Return a reader of one of an enumeration's values: bare, or quoted either way."""

    def read(cursor: TokenCursor) -> _Choice:
        token = cursor.current
        values = {each.value: each for each in enum_type}
        if token.kind not in _TEXT_TOKEN_KINDS or token.text.upper() not in values:
            raise cursor.make_error(
                f"{label} is {join_alternatives(tuple(values))}, not {cursor.current_label}"
            )
        cursor.advance()
        return values[token.text.upper()]

    return read


def integer_parser(label: str, minimum: int, maximum: int) -> ValueParser:
    """Return a reader of a whole number, both bounds included."""
    return lambda cursor: cursor.parse_integer(label, minimum, maximum)


def number_parser(label: str, maximum: float) -> ValueParser:
    """Return a reader of a number above 0, fractions allowed."""

    def read(cursor: TokenCursor) -> float:
        token = cursor.current
        if token.kind is not TokenKind.NUMBER:
            raise cursor.make_error(f"Expected {label} here, not {cursor.current_label}")
        value = float(token.text)
        if not 0 < value <= maximum or not math.isfinite(value):
            raise cursor.make_error(f"{label.capitalize()} lies above 0 and not above {maximum:g}")
        cursor.advance()
        return value

    return read


def parse_boolean(cursor: TokenCursor) -> bool:
    """Go past TRUE or FALSE."""
    return cursor.expect_one_of("TRUE", "FALSE") == "TRUE"


def identifier_parser(label: str) -> ValueParser:
    """Return a reader of a name of one part, by its internal form."""
    return lambda cursor: cursor.parse_name(label, 1).parts[0]


def string_list_parser(label: str) -> Callable[[TokenCursor], tuple[str, ...]]:
    """Return a reader of strings in parentheses."""
    return lambda cursor: parse_list(cursor, lambda inner: inner.parse_string(label))


def parse_list(
    cursor: TokenCursor, parse_item: Callable[[TokenCursor], Any], *, min_items: int = 1
) -> tuple[Any, ...]:
    """Go past what `parse_item` reads, in parentheses and with commas between."""
    cursor.expect("(")
    if min_items == 0 and cursor.accept(")"):
        return ()
    found = [parse_item(cursor)]
    while cursor.accept(","):
        found.append(parse_item(cursor))
    cursor.expect(")")
    return tuple(found)


def is_next_string(cursor: TokenCursor) -> bool:
    """Tell whether a string comes next."""
    return cursor.current.kind is TokenKind.STRING


def is_at_end(cursor: TokenCursor) -> bool:
    """Tell whether the statement ends here, with a semicolon or without."""
    return cursor.current.kind is TokenKind.END or cursor.is_next(";")
