"""Lexers of DDL and COPY with source positions, and the split of scripts into statements.

DDL uses sqlglot's Snowflake tokenizer. COPY has Vertica's strings: a backslash is literal
in `'…'`, so that ESCAPE AS can name a single backslash, and starts an escape in `E'…'`.
"""

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
class SourcePosition:
    """Line and column, both from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class SqlToken:
    """One word; `text` is upper-case for words, without quotes for names and strings."""

    kind: TokenKind
    text: str
    source_text: str
    position: SourcePosition
    start_offset: int


class _TokenizerDialect(Snowflake):
    """Snowflake with Spark's quoted names, so that a query's `;` inside backticks is seen."""

    class Tokenizer(Snowflake.Tokenizer):
        IDENTIFIERS = ['"', "`"]  # noqa: RUF012 - declared as a plain list by sqlglot


_TOKEN_KINDS = {
    TokenType.IDENTIFIER: TokenKind.QUOTED,
    TokenType.STRING: TokenKind.STRING,
    TokenType.RAW_STRING: TokenKind.STRING,
    TokenType.NUMBER: TokenKind.NUMBER,
}
_OPENING_CHARACTERS = frozenset("'\"`$/")


class PositionIndex:
    """Offsets of a text to places."""

    def __init__(self, text: str) -> None:
        self._line_starts = [0, *accumulate(len(line) for line in text.split("\n"))]
        self._line_starts = [start + number for number, start in enumerate(self._line_starts)]

    def position_at(self, offset: int) -> SourcePosition:
        """Return line and column of an offset."""
        line = bisect_right(self._line_starts, offset)
        return SourcePosition(line, offset - self._line_starts[line - 1] + 1)


def tokenize(text: str) -> tuple[SqlToken, ...]:
    """Cut one statement or a script into tokens, the last of them of kind END.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    places = PositionIndex(text)
    tokens: list[SqlToken] = []
    for start, end, kind, value in _tokenize_with_sqlglot(text, places):
        written = text[start:end]
        if kind is TokenKind.SYMBOL and value[:1].isidentifier():
            tokens.extend(_split_keyword(written, start, places))
        else:
            tokens.append(SqlToken(kind, value, written, places.position_at(start), start))
    end = len(text.rstrip())
    return (*tokens, SqlToken(TokenKind.END, "", "", places.position_at(end), end))


def _tokenize_with_sqlglot(
    text: str, positions: PositionIndex
) -> list[tuple[int, int, TokenKind, str]]:
    try:
        tokens = _TokenizerDialect().tokenize(text)
    except TokenError:
        place = positions.position_at(_find_unclosed_offset(text))
        raise StatementError(
            reason="This string, quoted name or comment is not closed",
            line=place.line,
            column=place.column,
        ) from None
    return [
        (
            token.start,
            token.end + 1,
            _TOKEN_KINDS.get(token.token_type, TokenKind.SYMBOL),
            token.text,
        )
        for token in tokens
    ]


def _split_keyword(source_text: str, start: int, positions: PositionIndex) -> list[SqlToken]:
    """Split what sqlglot reads as one keyword, such as `CLUSTER BY`, into its words."""
    words: list[SqlToken] = []
    offset = 0
    for word in source_text.split():
        offset = source_text.index(word, offset)
        at = start + offset
        words.append(SqlToken(TokenKind.WORD, word.upper(), word, positions.position_at(at), at))
        offset += len(word)
    return words


def _find_unclosed_offset(text: str) -> int:
    """Return the offset at which the part that is not closed begins.

    It is the last opening sign before which the text is whole.
    """
    for offset in range(len(text) - 1, -1, -1):
        if text[offset] in _OPENING_CHARACTERS:
            try:
                _TokenizerDialect().tokenize(text[:offset])
            except TokenError:
                continue
            return offset
    return 0


# --- COPY's text into words that know their place; strings are Vertica's.
#
# A backslash in `'…'` is a backslash, so that `ESCAPE AS '\'` is whole; in `E'…'` it escapes.

_COPY_TOKEN = re.compile(
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
_ESCAPE_SEQUENCE = re.compile(
    r"''|\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u((?![dD][89a-fA-F])[0-9a-fA-F]{4})"
    r"|U(00(?:0[0-9a-fA-F]|10)(?![dD][89a-fA-F])[0-9a-fA-F]{4})|(.))",
    re.DOTALL,
)
_ESCAPED_CHARACTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def is_copy_statement(text: str, start: int = 0) -> bool:
    """Return whether a statement is a COPY; what follows the word is not looked at."""
    first = next(_iterate_copy_tokens(text, PositionIndex(text), start), None)
    return first is not None and first.kind is TokenKind.WORD and first.text == "COPY"


def tokenize_copy(text: str) -> tuple[SqlToken, ...]:
    """Cut one COPY statement into tokens, the last of them of kind END.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    places = PositionIndex(text)
    end = len(text.rstrip())
    return (
        *_iterate_copy_tokens(text, places),
        SqlToken(TokenKind.END, "", "", places.position_at(end), end),
    )


def find_copy_end(text: str, start: int) -> int:
    """Return where the COPY that begins at `start` ends: at its semicolon, or with the text.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    for token in _iterate_copy_tokens(text, PositionIndex(text), start):
        if token.text == ";" and token.kind is TokenKind.SYMBOL:
            return token.start_offset
    return len(text)


def _iterate_copy_tokens(text: str, positions: PositionIndex, start: int = 0) -> Iterator[SqlToken]:
    for found in _COPY_TOKEN.finditer(text, start):
        kind, written = found.lastgroup, found.group()
        place, at = positions.position_at(found.start()), found.start()
        if kind in {"open", "unclosed"}:
            raise StatementError(
                reason="This string, quoted name or comment is not closed",
                line=place.line,
                column=place.column,
            )
        if kind == "word":
            yield SqlToken(TokenKind.WORD, written.upper(), written, place, at)
        elif kind == "string":
            yield SqlToken(TokenKind.STRING, written[1:-1].replace("''", "'"), written, place, at)
        elif kind == "escaped":
            yield SqlToken(TokenKind.STRING, _unescape(written[2:-1]), written, place, at)
        elif kind == "quoted":
            yield SqlToken(TokenKind.QUOTED, written[1:-1].replace('""', '"'), written, place, at)
        elif kind != "blank":
            known = TokenKind.NUMBER if kind == "number" else TokenKind.SYMBOL
            yield SqlToken(known, written, written, place, at)


def _unescape(text: str) -> str:
    return _ESCAPE_SEQUENCE.sub(_unescape_match, text)


def _unescape_match(match: re.Match[str]) -> str:
    octal, hexadecimal, short, long, other = match.groups()
    if match.group() == "''":
        return "'"
    if octal is not None:
        return chr(int(octal, 8))
    digits = hexadecimal or short or long
    return chr(int(digits, 16)) if digits else _ESCAPED_CHARACTERS.get(other, other)


# --- Kinds of statements by their first words, and scripts.

_QUERY_WORDS = frozenset({"SELECT", "WITH", "VALUES", "FROM", "EXPLAIN", "("})


def is_query(text: str) -> bool:
    """Tell whether a statement is Spark's: SELECT, WITH, VALUES, FROM, EXPLAIN, or parenthesised.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    # COPY's strings are not those of the other statements, so that it may be no whole text to them.
    if is_copy_statement(text):
        return False
    first = tokenize(text)[0]
    return first.kind in {TokenKind.WORD, TokenKind.SYMBOL} and first.text in _QUERY_WORDS


_COPY_START = re.compile(
    r"(?:\A|;)(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*(COPY)\b", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class ScriptStatement:
    """One statement of a script, without its semicolon, and where it begins."""

    text: str
    position: SourcePosition


def split_script(text: str) -> tuple[ScriptStatement, ...]:
    """Cut a script at its semicolons; pieces without a single word are left out.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    places = PositionIndex(text)
    pieces: list[ScriptStatement] = []
    at = 0
    for found in _COPY_START.finditer(text):
        start = found.start(1)
        if start < at or not _is_before_statement(text[at:start]):
            continue
        pieces.extend(_split_statements(text, at, start, places))
        end = find_copy_end(text, start)
        pieces.append(ScriptStatement(text[start:end].rstrip(), places.position_at(start)))
        at = end + 1
    pieces.extend(_split_statements(text, at, len(text), places))
    return tuple(pieces)


def _is_before_statement(text: str) -> bool:
    """Tell whether a COPY after this text begins a statement, and is not inside a string."""
    try:
        tokens = tokenize(text)
    except StatementError:
        return False
    return len(tokens) == 1 or (tokens[-2].text == ";" and tokens[-2].kind is TokenKind.SYMBOL)


def _split_statements(
    text: str, start: int, end: int, positions: PositionIndex
) -> list[ScriptStatement]:
    pieces: list[ScriptStatement] = []
    first: SqlToken | None = None
    # Blanks instead of what was cut already, so that places are those of the whole.
    before = re.sub(r"[^\n]", " ", text[:start])
    for token in tokenize(before + text[start:end]):
        if token.kind is TokenKind.END or (token.text == ";" and token.kind is TokenKind.SYMBOL):
            if first is not None:
                pieces.append(
                    ScriptStatement(
                        text[first.start_offset : token.start_offset].rstrip(),
                        positions.position_at(first.start_offset),
                    )
                )
            first = None
        else:
            first = first or token
    return pieces
