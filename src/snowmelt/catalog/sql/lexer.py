"""Lexer of statements with source positions. Splits scripts into statements.

Statements have Snowflake's strings, comments and operators. They also have Spark's quoted names, so
that a `;` inside backticks does not end a query. COPY has Vertica's strings: a backslash is literal
in `'…'`, so that ESCAPE AS can name a single backslash, and starts an escape in `E'…'`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from snowmelt.errors import StatementError


class TokenKind(StrEnum):
    """Kind of a token. The value is its name in error messages."""

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
    """One token. `text` is upper-case for words, and without quotes for names and strings."""

    kind: TokenKind
    text: str
    source_text: str
    position: SourcePosition
    start_offset: int


class PositionIndex:
    """Converts offsets of a text to lines and columns."""

    def __init__(self, text: str) -> None:
        self._line_starts = [0, *accumulate(len(line) for line in text.split("\n"))]
        self._line_starts = [start + number for number, start in enumerate(self._line_starts)]

    def position_at(self, offset: int) -> SourcePosition:
        """Return line and column of an offset."""
        line = bisect_right(self._line_starts, offset)
        return SourcePosition(line, offset - self._line_starts[line - 1] + 1)


# Characters that end a word. `$` does not end a word, but cannot begin one.
_SIGNS = r"!\"#%&'()*+,\-./:;<=>?@\[\\\]^`{|}~"
_TOKEN = re.compile(
    rf"""
    (?P<blank>\s+|(?:--|//)[^\r\n]*|/\*.*?\*/|\{{\#.*?\#\}})
  | (?P<raw>\$\$.*?\$\$)
  | (?P<string>'(?:[^'\\]++|\\.|'')*')
  | (?P<quoted>"(?:[^"]++|"")*"|`(?:[^`]++|``)*`)
  | (?P<word>[xXnN]'(?:[^'\\]++|\\.|'')*'|[^\s0-9${_SIGNS}][^\s{_SIGNS}]*)
  | (?P<open>['"`]|/\*|\$\$|\{{\#)
  | (?P<hex>0[xX][0-9a-fA-F]+)
  | (?P<number>(?:(?<=[$@])[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE](?:[+-](?=[0-9]))?[0-9]*)?)
  | (?P<operator><<->>|<->|<=>|->>|\#>>|\?::|~~~|~~\*|-\|-|\(\+\)
      |&<|&>|==|::|\|\||\|>|>=|<=|<>|!=|:=|->|=>|\#>|&&|\?\?|~~|~\*|.)
    """,
    re.VERBOSE | re.DOTALL,
)
# A backslash is literal in `'…'`, so `ESCAPE AS '\'` is complete. In `E'…'` it starts an escape.
_COPY_TOKEN = re.compile(
    r"""
    (?P<blank>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*')
  | (?P<unclosed>[eE]')
  | (?P<plain>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")+")
  | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
  | (?P<word>[^\W\d][\w$]*)
  | (?P<open>['"]|/\*)
  | (?P<operator>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# Lone surrogates and code points beyond Unicode are not valid escapes.
_ESCAPE = re.compile(
    r"''|\\(?:(?P<octal>[0-3][0-7]{2}|[0-7]{1,2})|x(?P<hex>[0-9a-fA-F]{2})"
    r"|u(?P<utf16>[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|u(?P<short>(?![dD][89a-fA-F])[0-9a-fA-F]{4})|(?P<other>.))",
    re.DOTALL,
)
_COPY_ESCAPE = re.compile(
    r"''|\\(?:(?P<octal>[0-7]{1,3})|x(?P<hex>[0-9a-fA-F]{1,2})"
    r"|u(?P<short>(?![dD][89a-fA-F])[0-9a-fA-F]{4})"
    r"|U(?P<long>00(?:0[0-9a-fA-F]|10)(?![dD][89a-fA-F])[0-9a-fA-F]{4})|(?P<other>.))",
    re.DOTALL,
)
_ESCAPED_CHARACTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _unescape(found: re.Match[str]) -> str:
    digits = found[found.lastgroup or 0]
    match found.lastgroup:
        case None:
            return "'"
        case "other":
            return _ESCAPED_CHARACTERS.get(digits, digits)
        case "octal":
            return chr(int(digits, 8))
        case "utf16":
            return bytes.fromhex(digits.replace("\\u", "")).decode("utf-16-be")
    return chr(int(digits, 16))


# Functions that decode each kind of quoted text.
_TOKEN_MEANINGS: dict[str, tuple[TokenKind, Callable[[str], str]]] = {
    "raw": (TokenKind.STRING, lambda text: text[2:-2]),
    "string": (TokenKind.STRING, lambda text: _ESCAPE.sub(_unescape, text[1:-1])),
    "plain": (TokenKind.STRING, lambda text: text[1:-1].replace("''", "'")),
    "escaped": (TokenKind.STRING, lambda text: _COPY_ESCAPE.sub(_unescape, text[2:-1])),
    "quoted": (TokenKind.QUOTED, lambda text: text[1:-1].replace(text[0] * 2, text[0])),
    "word": (TokenKind.WORD, str.upper),
    "number": (TokenKind.NUMBER, str),
    "hex": (TokenKind.SYMBOL, str),
    "operator": (TokenKind.SYMBOL, str),
}


def tokenize(text: str, *, is_copy: bool = False) -> tuple[SqlToken, ...]:
    """Split one statement or a script into tokens, the last of them of kind END.

    `is_copy` reads the text as one COPY statement.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    positions = PositionIndex(text)
    end = len(text.rstrip())
    return (
        *_iterate_tokens(text, positions, is_copy=is_copy),
        SqlToken(TokenKind.END, "", "", positions.position_at(end), end),
    )


def _iterate_tokens(
    text: str,
    positions: PositionIndex,
    start: int = 0,
    end: int | None = None,
    *,
    is_copy: bool = False,
) -> Iterator[SqlToken]:
    pattern = _COPY_TOKEN if is_copy else _TOKEN
    for found in pattern.finditer(text, start, len(text) if end is None else end):
        kind, source_text = found.lastgroup or "", found.group()
        if kind == "blank":
            continue
        position = positions.position_at(found.start())
        if kind not in _TOKEN_MEANINGS:
            raise StatementError(
                reason="This string, quoted name or comment is not closed",
                line=position.line,
                column=position.column,
            )
        meaning, read = _TOKEN_MEANINGS[kind]
        value = read(source_text)
        if meaning is TokenKind.WORD and not value[:1].isidentifier():
            meaning, value = TokenKind.SYMBOL, source_text
        yield SqlToken(meaning, value, source_text, position, found.start())


def is_copy_statement(text: str, start: int = 0) -> bool:
    """Return True if a statement begins with COPY. Does not examine the rest."""
    first = next(_iterate_tokens(text, PositionIndex(text), start, is_copy=True), None)
    return first is not None and first.kind is TokenKind.WORD and first.text == "COPY"


def find_copy_end(text: str, start: int) -> int:
    """Return the end of the COPY that begins at `start`: its semicolon, or the end of the text.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    for token in _iterate_tokens(text, PositionIndex(text), start, is_copy=True):
        if token.text == ";" and token.kind is TokenKind.SYMBOL:
            return token.start_offset
    return len(text)


# Classification of statements by their first words, and splitting of scripts.

# A SELECT of this function alone is a catalog statement, not a query.
PIPE_STATUS_FUNCTION = "SYSTEM$PIPE_STATUS"
_INFER_SCHEMA = re.compile("INFER_SCHEMA", re.IGNORECASE)
_QUERY_WORDS = frozenset({"SELECT", "WITH", "VALUES", "FROM", "EXPLAIN", "("})


def is_infer_schema(text: str) -> bool:
    """Return True if a statement calls the table function INFER_SCHEMA.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    if not _INFER_SCHEMA.search(text):
        return False
    words = [token.text if token.kind is not TokenKind.STRING else "" for token in tokenize(text)]
    return any(words[at : at + 3] == ["TABLE", "(", "INFER_SCHEMA"] for at in range(len(words)))


def is_query(text: str) -> bool:
    """Return True for SELECT, WITH, VALUES, FROM, EXPLAIN, or a statement in parentheses.

    Return False for `SELECT SYSTEM$PIPE_STATUS(…)`, which is a catalog statement, and for INFER_SCHEMA,
    which reads files.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    # Check for COPY first: its strings have other rules, so other rules might find an unclosed
    # string.
    if is_copy_statement(text) or is_infer_schema(text):
        return False
    first, *others = tokenize(text)
    if first.text == "SELECT" and others[0].text == PIPE_STATUS_FUNCTION:
        return False
    return first.kind in {TokenKind.WORD, TokenKind.SYMBOL} and first.text in _QUERY_WORDS


_COPY_START = re.compile(
    # COPY INTO has the same strings as all statements except Vertica's COPY.
    r"(?:\A|;)(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*(COPY)\b(?!\s+INTO\b)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ScriptStatement:
    """One statement of a script without its semicolon, and its position."""

    text: str
    position: SourcePosition


def split_script(text: str) -> tuple[ScriptStatement, ...]:
    """Split a script at its semicolons. Statements without tokens are omitted.

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
    """Return True if a COPY after this text begins a statement, and is not inside a string."""
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
    at_end = SqlToken(TokenKind.END, "", "", positions.position_at(end), end)
    for token in (*_iterate_tokens(text, positions, start, end), at_end):
        if token.kind is TokenKind.END or (token.text == ";" and token.kind is TokenKind.SYMBOL):
            if first is not None:
                piece = text[first.start_offset : token.start_offset].rstrip()
                pieces.append(ScriptStatement(piece, first.position))
            first = None
        else:
            first = first or token
    return pieces
