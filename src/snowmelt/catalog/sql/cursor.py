"""Cursor over the tokens of one statement, and parsers of names and `WORD = value` clauses.

Each error has the position of the token that caused it.
"""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from snowmelt.catalog.model.records import ObjectKind
from snowmelt.catalog.sql.lexer import SourcePosition, SqlRules, SqlToken, TokenKind, tokenize
from snowmelt.errors import StatementError
from snowmelt.schema.types import RESERVED_WORDS, TableName, to_display_name

MAX_NAME_LENGTH = 255  # The limit of Snowflake.


class NameLevel(StrEnum):
    """Level of a named object, outermost first."""

    ACCOUNT = "ACCOUNT"
    DATABASE = "DATABASE"
    SCHEMA = "SCHEMA"
    TABLE = "TABLE"

    @property
    def part_count(self) -> int:
        """Number of parts of a full name."""
        return list(NameLevel).index(self)

    @property
    def object_kind(self) -> ObjectKind:
        """Kind of object for grants. Raises KeyError for the account."""
        return _OBJECT_KINDS[self]


_OBJECT_KINDS: dict[NameLevel, ObjectKind] = {
    NameLevel.DATABASE: "DATABASE",
    NameLevel.SCHEMA: "SCHEMA",
    NameLevel.TABLE: "TABLE",
}


class CreateMode(StrEnum):
    """Behavior of CREATE if an object of that name exists."""

    FAIL_IF_EXISTS = "refuse"
    IF_NOT_EXISTS = "if not exists"
    OR_REPLACE = "or replace"
    OR_ALTER = "or alter"


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A name as written, with one to three parts, the innermost last."""

    parts: tuple[str, ...]
    position: SourcePosition


def display_schema(database: str, schema: str) -> str:
    """Return the name of a schema in SQL notation."""
    return f"{to_display_name(database)}.{to_display_name(schema)}"


def format_suggestion(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean …?` with the most similar known word, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]}?" if close and close[0] != word else ""


class TokenCursor:
    """A position in the tokens of one statement."""

    def __init__(self, text: str, rules: SqlRules = SqlRules.CATALOG) -> None:
        """Tokenize a statement by the rules of its dialect."""
        self._text = text
        self._tokens = tokenize(text, rules)
        self._index = 0

    @property
    def current(self) -> SqlToken:
        """Next token, or a token of kind END at the end."""
        return self._tokens[self._index]

    @property
    def previous(self) -> SqlToken:
        """Last token that was consumed, or the first token if none was."""
        return self._tokens[max(self._index - 1, 0)]

    def is_next(self, *words: str) -> bool:
        """Return True if exactly these words follow."""
        upcoming = self._tokens[self._index : self._index + len(words)]
        return tuple(token.unquoted for token in upcoming) == words

    def peek(self, count: int = 1) -> SqlToken:
        """Return the token `count` positions after the next one, or the last token."""
        return self._tokens[min(self._index + count, len(self._tokens) - 1)]

    def fork(self) -> TokenCursor:
        """Return another cursor at the same position."""
        return copy.copy(self)

    def advance(self) -> SqlToken:
        """Consume and return the next token. END is not consumed."""
        token = self.current
        if token.kind is not TokenKind.END:
            self._index += 1
        return token

    def accept(self, *words: str) -> bool:
        """Consume these words if they follow, and return True if so."""
        found = self.is_next(*words)
        if found:
            self._index += len(words)
        return found

    def accept_one_of(self, *words: str) -> SqlToken | None:
        """Consume and return the next word if it is one of these; else return None."""
        return self.advance() if self.current.unquoted in words else None

    def expect(self, *words: str) -> None:
        """Consume these words. Raise StatementError if others follow."""
        if not self.accept(*words):
            raise self.make_error(f"Expected {' '.join(words)} here, not {self.current_label}")

    def expect_one_of(self, *words: str) -> str:
        """Consume and return one of these words. Raise StatementError if another follows."""
        token = self.accept_one_of(*words)
        if token is None:
            raise self.make_alternatives_error(words)
        return token.text

    def parse_identifier(self, label: str) -> str:
        """Parse a name of one part and return its internal form. Errors refer to it as `label`."""
        token = self.current
        if token.kind not in {TokenKind.WORD, TokenKind.QUOTED}:
            raise self.make_error(f"Expected the name of {label} here, not {self.current_label}")
        name = token.text
        if token.kind is TokenKind.WORD and (
            name in RESERVED_WORDS or to_display_name(name) != name
        ):
            is_reserved = name in RESERVED_WORDS
            why = (
                "is a reserved word"
                if is_reserved
                else "has characters that an unquoted name cannot have"
            )
            raise self.make_error(
                f'{token.source_text} {why}. Quote it to use it as a name: "{token.source_text}"'
            )
        if token.source_text.startswith("`"):
            raise self.make_error(f'Use double quotes for names: "{name}"')
        if not name or "\0" in name or len(name) > MAX_NAME_LENGTH:
            raise self.make_error(
                f"The name of {label} must have 1 to {MAX_NAME_LENGTH} characters and no NUL"
            )
        self.advance()
        return name

    def parse_name(self, label: str, max_parts: int) -> ObjectName:
        """Parse a name of one to `max_parts` parts separated by dots."""
        place = self.current.position
        parts = [self.parse_identifier(label)]
        while self.current.text == "." and self.current.kind is TokenKind.SYMBOL:
            if len(parts) == max_parts:
                raise self.make_error(
                    f"The name of {label} has at most {max_parts} part{'s' if max_parts > 1 else ''}"
                )
            self.advance()
            parts.append(self.parse_identifier(label))
        return ObjectName(tuple(parts), place)

    def parse_last_name(self, label: str, max_parts: int, statement: str) -> ObjectName:
        """Parse a name that ends the statement. Errors refer to the statement as `statement`."""
        name = self.parse_name(label, max_parts)
        self.expect_end(statement)
        return name

    def parse_string(self, label: str, *, allow_nul: bool = False) -> str:
        """Parse a string in single quotes and return its contents.

        Without `allow_nul`, rejects NUL, which PostgreSQL does not store.
        """
        if self.current.kind is not TokenKind.STRING:
            raise self.make_error(
                f"Expected {label} in single quotes here, not {self.current_label}"
            )
        if "\0" in self.current.text and not allow_nul:
            raise self.make_error("The string contains the character NUL. Remove it")
        return self.advance().text

    def parse_integer(self, label: str, minimum: int, maximum: int) -> int:
        """Parse an integer from `minimum` to `maximum`, both included."""
        token = self.current
        if token.kind is not TokenKind.NUMBER or not token.text.isdecimal():
            raise self.make_error(
                f"Expected {label} ({minimum} to {maximum}) here, not {self.current_label}"
            )
        if not minimum <= int(token.text) <= maximum:
            raise self.make_error(
                f"{label.capitalize()} must be between {minimum} and {maximum}, not {token.text}"
            )
        self.advance()
        return int(token.text)

    def expect_end(self, after: str) -> None:
        """Raise StatementError unless the statement ends here; a semicolon may follow."""
        self.accept(";")
        if self.current.kind is not TokenKind.END:
            raise self.make_error(
                f"Expected the end of the statement after {after}, not {self.current_label}"
            )

    def make_error(self, reason: str, token: SqlToken | None = None) -> StatementError:
        """Create an error with the position of a token, by default the next token."""
        place = (token or self.current).position
        return StatementError(reason=reason, line=place.line, column=place.column)

    def make_alternatives_error(
        self, words: tuple[str, ...], token: SqlToken | None = None
    ) -> StatementError:
        """Create an error that lists the words expected at a token, by default the next token."""
        token = token or self.current
        return self.make_error(
            f"Expected {join_alternatives(words)} here, not {_label_token(token)}", token
        )

    def source_between(self, first: SqlToken, last: SqlToken) -> str:
        """Return the source text from one token to another, both included."""
        return self._text[first.start_offset : last.end_offset]

    @property
    def current_label(self) -> str:
        """Description of the next token for error messages."""
        return _label_token(self.current)


def _label_token(token: SqlToken) -> str:
    return token.kind.value if token.kind is TokenKind.END else token.source_text.split("\n")[0]


def join_alternatives(words: tuple[str, ...]) -> str:
    """Join words with commas and "or" for error messages."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def parse_table_name(text: str) -> TableName:
    """Parse a full table name in SQL notation.

    Raises:
        StatementError: If the text is not a name of three parts.
    """
    cursor = TokenCursor(text)
    name = cursor.parse_name("a table", 3)
    if len(name.parts) < 3:
        raise cursor.make_error(
            "Write the table with database and schema, such as demo.public.flights"
        )
    cursor.expect_end("the name of a table")
    return TableName(*name.parts)


# Parser of `WORD = value` clauses, in any order, each at most once; `=` is optional.

ValueParser: TypeAlias = Callable[["TokenCursor"], Any]
_Choice = TypeVar("_Choice", bound=str)

_TEXT_TOKEN_KINDS = frozenset({TokenKind.WORD, TokenKind.QUOTED, TokenKind.STRING})


MAX_RETENTION_DAYS = 90  # The limit of Snowflake.


@dataclass(frozen=True, slots=True)
class Clause:
    """Definition of a clause: parser of its value, value that UNSET sets, and field that it sets.

    A clause with `is_required` must be present and cannot be UNSET. If `field` is missing, the
    field has the name of the clause.
    """

    parse_value: ValueParser
    default: object = None
    is_required: bool = False
    field: str | None = None


class ClauseReader:
    """Reader of the clauses of one statement."""

    def __init__(self, clauses: Mapping[str, Clause], label: str) -> None:
        """Create a reader. Errors refer to the object of the clauses as `label`."""
        self._clauses = clauses
        self._label = label
        # Value and position of each clause, by its word.
        self.values: dict[str, tuple[Any, SourcePosition]] = {}

    def parse_next(self, cursor: TokenCursor, *, unset: bool = False) -> bool:
        """Parse the next clause, only its name if `unset` is true. Return False if none follows."""
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
        """Parse the clauses of a CREATE up to the end of the statement. Commas are optional."""
        while self.parse_next(cursor):
            cursor.accept(",")
        if not is_at_end(cursor):
            self.raise_unknown_clause(cursor)
        self.check_required(cursor)

    def parse_changes(self, cursor: TokenCursor, *, unset: bool) -> None:
        """Parse the clauses of SET or UNSET up to the end of the statement. Commas are optional."""
        while self.parse_next(cursor, unset=unset):
            cursor.accept(",")
        if not self.values or not is_at_end(cursor):
            self.raise_unknown_clause(cursor)
        cursor.expect_end("ALTER")

    def raise_unknown_clause(self, cursor: TokenCursor, other_words: Iterable[str] = ()) -> None:
        """Raise an error that lists the valid clauses."""
        there = ", ".join((*other_words, *self._clauses))
        raise cursor.make_error(
            f"{cursor.current_label} is not a clause of {self._label}. Valid clauses: {there}"
            if not is_at_end(cursor)
            else f"Expected a clause of {self._label} here. Valid clauses: {there}"
        )

    def check_required(self, cursor: TokenCursor) -> None:
        """Raise StatementError if a required clause is missing."""
        for word, clause in self._clauses.items():
            if clause.is_required and word not in self.values:
                raise cursor.make_error(f"{word} is missing. It is required for {self._label}")

    def field_values(self) -> dict[str, Any]:
        """Return the parsed values by field of the definition."""
        return {
            self._clauses[word].field or word.lower(): value
            for word, (value, _) in self.values.items()
        }

    def positions(self) -> dict[str, SourcePosition]:
        """Return the position of each clause."""
        return {word: position for word, (_, position) in self.values.items()}


def text_parser(label: str) -> ValueParser:
    """Return a parser of strings."""
    return lambda cursor: cursor.parse_string(label)


def choice_parser(choices: Iterable[_Choice], label: str) -> Callable[[TokenCursor], _Choice]:
    """Return a parser of one of several words or enumeration values, bare or in quotes."""

    def read(cursor: TokenCursor) -> _Choice:
        token = cursor.current
        values = {str(each): each for each in choices}
        if token.kind not in _TEXT_TOKEN_KINDS or token.text.upper() not in values:
            raise cursor.make_error(
                f"{label} must be {join_alternatives(tuple(values))}, not {cursor.current_label}"
            )
        cursor.advance()
        return values[token.text.upper()]

    return read


def integer_parser(label: str, minimum: int, maximum: int) -> ValueParser:
    """Return a parser of integers from `minimum` to `maximum`, both included."""
    return lambda cursor: cursor.parse_integer(label, minimum, maximum)


def number_parser(label: str, maximum: float) -> ValueParser:
    """Return a parser of numbers above 0, with or without a fraction."""

    def read(cursor: TokenCursor) -> float:
        token = cursor.current
        if token.kind is not TokenKind.NUMBER:
            raise cursor.make_error(f"Expected {label} here, not {cursor.current_label}")
        value = float(token.text)
        if not 0 < value <= maximum or not math.isfinite(value):
            raise cursor.make_error(f"{label.capitalize()} must be above 0 and at most {maximum:g}")
        cursor.advance()
        return value

    return read


def parse_boolean(cursor: TokenCursor) -> bool:
    """Parse TRUE or FALSE."""
    return cursor.expect_one_of("TRUE", "FALSE") == "TRUE"


def identifier_parser(label: str) -> ValueParser:
    """Return a parser of names of one part. Its values are internal names."""
    return lambda cursor: cursor.parse_name(label, 1).parts[0]


def string_list_parser(label: str) -> Callable[[TokenCursor], tuple[str, ...]]:
    """Return a parser of strings in parentheses."""
    return lambda cursor: parse_list(cursor, lambda inner: inner.parse_string(label))


def parse_list(
    cursor: TokenCursor, parse_item: Callable[[TokenCursor], Any], *, min_items: int = 1
) -> tuple[Any, ...]:
    """Parse items in parentheses, separated by commas."""
    cursor.expect("(")
    if min_items == 0 and cursor.accept(")"):
        return ()
    found = [parse_item(cursor)]
    while cursor.accept(","):
        found.append(parse_item(cursor))
    cursor.expect(")")
    return tuple(found)


def is_next_string(cursor: TokenCursor) -> bool:
    """Return True if a string follows."""
    return cursor.current.kind is TokenKind.STRING


def is_at_end(cursor: TokenCursor) -> bool:
    """Return True if the statement ends here, with or without a semicolon."""
    return cursor.current.kind is TokenKind.END or cursor.is_next(";")
