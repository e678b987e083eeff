"""SQL text into words that know their place; sqlglot's Snowflake tokenizer does the cutting."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING

from sqlglot import TokenType
from sqlglot.dialects.snowflake import Snowflake
from sqlglot.errors import TokenError

from snowmelt.errors import StatementError

if TYPE_CHECKING:
    from collections.abc import Iterator


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


# --- COPY's text into words that know their place; strings are Vertica's.
#
# A backslash in `'…'` is a backslash, so that `ESCAPE AS '\'` is whole; in `E'…'` it escapes.

_TOKEN = re.compile(
    r"""
    (?P<blank>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*')
  | (?P<unclosed>[eE]')
  | (?P<string>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")+")
  | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
  | (?P<word>[^\W\d][\w$]*)
  | (?P<open>['"]|/\*)
  | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# Halves of surrogate pairs, and what is beyond Unicode, are no escapes.
_ESCAPE = re.compile(
    r"''|\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u((?![dD][89a-fA-F])[0-9a-fA-F]{4})"
    r"|U(00(?:0[0-9a-fA-F]|10)(?![dD][89a-fA-F])[0-9a-fA-F]{4})|(.))",
    re.DOTALL,
)
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def is_copy(text: str, start: int = 0) -> bool:
    """Return whether a statement is a COPY; what follows the word is not looked at."""
    first = next(_tokens(text, Places(text), start), None)
    return first is not None and first.kind is TokenKind.WORD and first.text == "COPY"


def copy_tokens_of(text: str) -> tuple[Token, ...]:
    """Cut one COPY statement into tokens, the last of them of kind END.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    places = Places(text)
    end = len(text.rstrip())
    return (*_tokens(text, places), Token(TokenKind.END, "", "", places.place(end), end))


def end_of_copy(text: str, start: int) -> int:
    """Return where the COPY that begins at `start` ends: at its semicolon, or with the text.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    for token in _tokens(text, Places(text), start):
        if token.text == ";" and token.kind is TokenKind.SYMBOL:
            return token.start
    return len(text)


def _tokens(text: str, places: Places, start: int = 0) -> Iterator[Token]:
    for found in _TOKEN.finditer(text, start):
        kind, written = found.lastgroup, found.group()
        place, at = places.place(found.start()), found.start()
        if kind in {"open", "unclosed"}:
            raise StatementError(
                reason="This string, quoted name or comment is not closed",
                line=place.line,
                column=place.column,
            )
        if kind == "word":
            yield Token(TokenKind.WORD, written.upper(), written, place, at)
        elif kind == "string":
            yield Token(TokenKind.STRING, written[1:-1].replace("''", "'"), written, place, at)
        elif kind == "escaped":
            yield Token(TokenKind.STRING, _unescaped(written[2:-1]), written, place, at)
        elif kind == "quoted":
            yield Token(TokenKind.QUOTED, written[1:-1].replace('""', '"'), written, place, at)
        elif kind != "blank":
            known = TokenKind.NUMBER if kind == "number" else TokenKind.SYMBOL
            yield Token(known, written, written, place, at)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    octal, hexadecimal, short, long, other = found.groups()
    if found.group() == "''":
        return "'"
    if octal is not None:
        return chr(int(octal, 8))
    digits = hexadecimal or short or long
    return chr(int(digits, 16)) if digits else _LETTERS.get(other, other)


# --- Cuts a script into its statements.

_COPY = re.compile(
    r"(?:\A|;)(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*(COPY)\b", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Piece:
    """One statement of a script, without its semicolon, and where it begins."""

    text: str
    place: Place


def split_script(text: str) -> tuple[Piece, ...]:
    """Cut a script at its semicolons; pieces without a single word are left out.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    places = Places(text)
    pieces: list[Piece] = []
    at = 0
    for found in _COPY.finditer(text):
        start = found.start(1)
        if start < at or not _is_whole(text[at:start]):
            continue
        pieces.extend(_pieces(text, at, start, places))
        end = end_of_copy(text, start)
        pieces.append(Piece(text[start:end].rstrip(), places.place(start)))
        at = end + 1
    pieces.extend(_pieces(text, at, len(text), places))
    return tuple(pieces)


def _is_whole(text: str) -> bool:
    """Tell whether a COPY after this text begins a statement, and is not inside a string."""
    try:
        tokens = tokens_of(text)
    except StatementError:
        return False
    return len(tokens) == 1 or (tokens[-2].text == ";" and tokens[-2].kind is TokenKind.SYMBOL)


def _pieces(text: str, start: int, end: int, places: Places) -> list[Piece]:
    pieces: list[Piece] = []
    first: Token | None = None
    # Blanks instead of what was cut already, so that places are those of the whole.
    before = re.sub(r"[^\n]", " ", text[:start])
    for token in tokens_of(before + text[start:end]):
        if token.kind is TokenKind.END or (token.text == ";" and token.kind is TokenKind.SYMBOL):
            if first is not None:
                pieces.append(
                    Piece(text[first.start : token.start].rstrip(), places.place(first.start))
                )
            first = None
        else:
            first = first or token
    return pieces
