"""Clauses of the form `WORD = value`, in any order, each once; the sign may be left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from snowmelt.catalog.sql.lexer import TokenKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from snowmelt.catalog.sql.cursor import Cursor
    from snowmelt.catalog.sql.lexer import Place, Token

Reader: TypeAlias = Callable[["Cursor"], Any]
_Choice = TypeVar("_Choice", bound=StrEnum)

_TEXTUAL = frozenset({TokenKind.WORD, TokenKind.QUOTED, TokenKind.STRING})


MAX_RETENTION_DAYS = 90  # as Snowflake's


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause: the field of a definition that it sets, how its value is read, what UNSET sets.

    `is_required` means that it must be given, and cannot be UNSET.
    """

    field: str
    read: Reader
    default: object = None
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """What a clause said, and where."""

    word: str
    field: str
    value: Any
    place: Place


class Settings:
    """The clauses of one statement as they are read."""

    def __init__(self, clauses: Mapping[str, Clause], what: str) -> None:
        """`what` is how errors call that which has the clauses."""
        self._clauses = clauses
        self._what = what
        self.found: dict[str, Setting] = {}

    def read_one(self, cursor: Cursor) -> bool:
        """Go past the next clause if there is one, and tell.

        Raises:
            StatementError: It was given before, or its value is not as it must be.
        """
        token = cursor.token
        if token.kind is not TokenKind.WORD or token.text not in self._clauses:
            return False
        cursor.take()
        cursor.accept("=")
        value = self._clauses[token.text].read(cursor)
        self.keep(cursor, token, value)
        return True

    def unset_one(self, cursor: Cursor) -> bool:
        """Go past the name of a clause if one comes next, and tell.

        Raises:
            StatementError: It was given before, or must have a value.
        """
        token = cursor.token
        if token.kind is not TokenKind.WORD or token.text not in self._clauses:
            return False
        clause = self._clauses[token.text]
        if clause.is_required:
            raise cursor.error(f"{token.text} cannot be UNSET: SET it to another value")
        cursor.take()
        self.keep(cursor, token, clause.default)
        return True

    def keep(self, cursor: Cursor, token: Token, value: object) -> None:
        """Keep the value of a clause that has been read.

        Raises:
            StatementError: It was given before.
        """
        if token.text in self.found:
            raise cursor.error(f"{token.text} is given twice", token)
        field = self._clauses[token.text].field
        self.found[token.text] = Setting(token.text, field, value, token.place)

    def refuse(self, cursor: Cursor, others: Iterable[str] = ()) -> None:
        """Raise the error that says which clauses there are."""
        there = ", ".join((*others, *self._clauses))
        raise cursor.error(
            f"{cursor.seen} is no clause of {self._what}; there are {there}"
            if not is_at_end(cursor)
            else f"Expected a clause of {self._what} here; there are {there}"
        )

    def require(self, cursor: Cursor) -> None:
        """Check that what must be given was.

        Raises:
            StatementError: A clause is missing.
        """
        for word, clause in self._clauses.items():
            if clause.is_required and word not in self.found:
                raise cursor.error(f"{word} is missing: {self._what} needs it")

    def fields(self) -> dict[str, Any]:
        """Return the values by field of the definition."""
        return {each.field: each.value for each in self.found.values()}

    def places(self) -> dict[str, Place]:
        """Return where each clause stands."""
        return {each.word: each.place for each in self.found.values()}


def text(what: str) -> Reader:
    """Return a reader of a string."""
    return lambda cursor: cursor.string(what)


def choice(kind: type[_Choice], what: str) -> Callable[[Cursor], _Choice]:
    """Return a reader of one of an enumeration's values: bare, or quoted either way."""

    def read(cursor: Cursor) -> _Choice:
        token = cursor.token
        values = {each.value: each for each in kind}
        if token.kind not in _TEXTUAL or token.text.upper() not in values:
            raise cursor.error(f"{what} is {_alternatives(values)}, not {cursor.seen}")
        cursor.take()
        return values[token.text.upper()]

    return read


def integer(what: str, least: int, most: int) -> Reader:
    """Return a reader of a whole number, both bounds included."""
    return lambda cursor: cursor.integer(what, least, most)


def number(what: str, most: float) -> Reader:
    """Return a reader of a number above 0, fractions allowed."""

    def read(cursor: Cursor) -> float:
        token = cursor.token
        if token.kind is not TokenKind.NUMBER:
            raise cursor.error(f"Expected {what} here, not {cursor.seen}")
        value = float(token.text)
        if not 0 < value <= most or not math.isfinite(value):
            raise cursor.error(f"{what.capitalize()} lies above 0 and not above {most:g}")
        cursor.take()
        return value

    return read


def boolean(cursor: Cursor) -> bool:
    """Go past TRUE or FALSE.

    Raises:
        StatementError: If something else comes next.
    """
    return cursor.expect_one_of("TRUE", "FALSE") == "TRUE"


def identifier(what: str) -> Reader:
    """Return a reader of a name of one part, by its internal form."""
    return lambda cursor: cursor.name(what, 1).parts[0]


def strings(what: str) -> Callable[[Cursor], tuple[str, ...]]:
    """Return a reader of strings in parentheses."""
    return lambda cursor: listed(cursor, lambda inner: inner.string(what))


def listed(cursor: Cursor, read: Callable[[Cursor], Any], *, least: int = 1) -> tuple[Any, ...]:
    """Go past what `read` reads, in parentheses and with commas between.

    Raises:
        StatementError: There are fewer than `least`, or something else comes next.
    """
    cursor.expect("(")
    if least == 0 and cursor.accept(")"):
        return ()
    found = [read(cursor)]
    while cursor.accept(","):
        found.append(read(cursor))
    cursor.expect(")")
    return tuple(found)


def is_string(cursor: Cursor) -> bool:
    """Tell whether a string comes next."""
    return cursor.token.kind is TokenKind.STRING


def is_at_end(cursor: Cursor) -> bool:
    """Tell whether the statement ends here, with a semicolon or without."""
    return cursor.token.kind is TokenKind.END or cursor.ahead(";")


def _alternatives(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"
