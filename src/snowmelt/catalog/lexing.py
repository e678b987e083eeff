"""SQL text into words that know their place; sqlglot's Snowflake tokenizer does the cutting."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from sqlglot import TokenType
from sqlglot.dialects.snowflake import Snowflake
from sqlglot.errors import TokenError

from snowmelt.errors import StatementError


class TokenKind(StrEnum):
    """What a token is; the value is how an error message calls it."""

    WORD = "word"
    QUOTED = "quoted name"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end of the statement"


@dataclass(frozen=True, slots=True)
class Place:
    """Line and column, both from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Token:
    """One word; `text` is upper-case for words, without quotes for names and strings."""

    kind: TokenKind
    text: str
    written: str
    place: Place
    start: int


class _Dialect(Snowflake):
    """Snowflake with Spark's quoted names, so that a query's `;` inside backticks is seen."""

    class Tokenizer(Snowflake.Tokenizer):
        IDENTIFIERS = ['"', "`"]  # noqa: RUF012 - declared as a plain list by sqlglot


_KINDS = {
    TokenType.IDENTIFIER: TokenKind.QUOTED,
    TokenType.STRING: TokenKind.STRING,
    TokenType.RAW_STRING: TokenKind.STRING,
    TokenType.NUMBER: TokenKind.NUMBER,
}
_OPENERS = frozenset("'\"`$/")


class Places:
    """Offsets of a text to places."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *accumulate(len(line) for line in text.split("\n"))]
        self._starts = [start + number for number, start in enumerate(self._starts)]

    def place(self, offset: int) -> Place:
        """Return line and column of an offset."""
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)


def tokens_of(text: str) -> tuple[Token, ...]:
    """Cut one statement or a script into tokens, the last of them of kind END.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    places = Places(text)
    tokens: list[Token] = []
    for start, end, kind, value in _raw(text, places):
        written = text[start:end]
        if kind is TokenKind.SYMBOL and value[:1].isidentifier():
            tokens.extend(_words(written, start, places))
        else:
            tokens.append(Token(kind, value, written, places.place(start), start))
    end = len(text.rstrip())
    return (*tokens, Token(TokenKind.END, "", "", places.place(end), end))


def _raw(text: str, places: Places) -> list[tuple[int, int, TokenKind, str]]:
    try:
        tokens = _Dialect().tokenize(text)
    except TokenError:
        place = places.place(_unclosed(text))
        raise StatementError(
            reason="This string, quoted name or comment is not closed",
            line=place.line,
            column=place.column,
        ) from None
    return [
        (
            token.start,
            token.end + 1,
            _KINDS.get(token.token_type, TokenKind.SYMBOL),
            token.text,
        )
        for token in tokens
    ]


def _words(written: str, start: int, places: Places) -> list[Token]:
    """Split what sqlglot reads as one keyword, such as `CLUSTER BY`, into its words."""
    words: list[Token] = []
    offset = 0
    for word in written.split():
        offset = written.index(word, offset)
        at = start + offset
        words.append(Token(TokenKind.WORD, word.upper(), word, places.place(at), at))
        offset += len(word)
    return words


def _unclosed(text: str) -> int:
    """Return the offset at which the part that is not closed begins.

    It is the last opening sign before which the text is whole.
    """
    for offset in range(len(text) - 1, -1, -1):
        if text[offset] in _OPENERS:
            try:
                _Dialect().tokenize(text[:offset])
            except TokenError:
                continue
            return offset
    return 0
