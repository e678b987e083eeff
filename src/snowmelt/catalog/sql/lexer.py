"""Lexer of statements with source positions. Classifies statements and splits scripts.

Catalog statements have Snowflake's strings, comments and operators. COPY has Vertica's strings: a
backslash is literal in `'…'`, so that ESCAPE AS can name a single backslash, and starts an escape
in `E'…'`. Queries, INSERT, UPDATE, DELETE and MERGE have Spark's strings: `"…"` is a string, a
backslash starts an escape in both kinds of strings unless they begin with `r`, and comments nest.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, islice

from snowmelt.errors import StatementError


class TokenKind(StrEnum):
    """Kind of a token. The value is its name in error messages."""

    WORD = "word"
    QUOTED = "quoted name"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end of the statement"


class SqlRules(StrEnum):
    """Lexical rules of a statement."""

    CATALOG = "Snowflake"
    COPY = "Vertica"
    SPARK = "Spark"


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """Line and column, both from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class SqlToken:
    """One token. `text` is upper-case for words, and without quotes for names and strings.

    Escapes of Spark's strings stay in `text`.
    """

    kind: TokenKind
    text: str
    source_text: str
    position: SourcePosition
    start_offset: int

    @property
    def end_offset(self) -> int:
        """Offset after the token."""
        return self.start_offset + len(self.source_text)

    @property
    def unquoted(self) -> str:
        """The text of a word or symbol, or an empty string."""
        return self.text if self.kind in _UNQUOTED_KINDS else ""


_UNQUOTED_KINDS = frozenset({TokenKind.WORD, TokenKind.SYMBOL})


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
# Spark rejects names that contain `$` without backticks. `${…}` is a variable of the session.
_SPARK_TOKEN = re.compile(
    r"""
    (?P<blank>\s+|--(?:\\\n|[^\r\n])*)
  | (?P<hint>/\*\+.*?\*/)
  | (?P<comment>/\*)
  | (?P<verbatim>[rR](?:'[^']*'|"[^"]*")|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
  | (?P<escapable>'(?:[^'\\]++|\\.|'')*'|"(?:[^"\\]++|\\.|"")*")
  | (?P<quoted>`(?:[^`]++|``)*`)
  | (?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?(?:BD|bd|[LSYFDlsyfd])?(?!\w))
  | (?P<dollar>\w+\$(?!\{))
  | (?P<word>\w+)
  | (?P<open>['"`])
  | (?P<operator><=>|<>|!=|==|>=|<=|=>|->|::|\|\||\|>|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")
_PATTERNS = {
    SqlRules.CATALOG: _TOKEN,
    SqlRules.COPY: _COPY_TOKEN,
    SqlRules.SPARK: _SPARK_TOKEN,
}
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
    "escapable": (TokenKind.STRING, lambda text: text[1:-1].replace(text[0] * 2, text[0])),
    "verbatim": (TokenKind.STRING, str),
    "quoted": (TokenKind.QUOTED, lambda text: text[1:-1].replace(text[0] * 2, text[0])),
    "word": (TokenKind.WORD, str.upper),
    "number": (TokenKind.NUMBER, str),
    "hex": (TokenKind.SYMBOL, str),
    "operator": (TokenKind.SYMBOL, str),
    "hint": (TokenKind.SYMBOL, str),
}


def tokenize(text: str, rules: SqlRules = SqlRules.CATALOG) -> tuple[SqlToken, ...]:
    """Split one statement into tokens, the last of them of kind END.

    Raises:
        StatementError: If a string, quoted name or comment is not closed, or a number has over
            1,000 characters.
    """
    positions = PositionIndex(text)
    end = len(text.rstrip())
    return (
        *(
            SqlToken(kind, value, source_text, positions.position_at(start), start)
            for kind, value, source_text, start in _scan(text, 0, rules)
        ),
        SqlToken(TokenKind.END, "", "", positions.position_at(end), end),
    )


def prepare_for_sqlglot(tokens: Iterable[SqlToken]) -> str:
    """Return a text with these tokens of Spark at their offsets, and spaces in place of comments.

    A doubled quote in a string is escaped: sqlglot reads it as the end of one string and the start of another.
    """
    prepared, done = [], 0
    for token in tokens:
        text = token.source_text
        doubled = _DOUBLED_QUOTES.get(text[:1])
        if doubled is not None:
            text = text[0] + doubled.sub(_escape_doubled, text[1:-1]) + text[0]
        prepared += [" " * (token.start_offset - done), text]
        done = token.end_offset
    return "".join(prepared)


_DOUBLED_QUOTES = {"'": re.compile(r"\\.|''", re.DOTALL), '"': re.compile(r'\\.|""', re.DOTALL)}


def _escape_doubled(found: re.Match[str]) -> str:
    return found.group() if found.group().startswith("\\") else f"\\{found.group()[0]}"


# Python converts only integers of up to 4,300 digits.
_MAX_NUMBER_CHARACTERS = 1_000
_COMMENT_ENDS = {"/*": "*/", "{#": "#}"}


def _scan(text: str, at: int, rules: SqlRules) -> Iterator[tuple[TokenKind, str, str, int]]:
    """Yield kind, text, source text and offset of each token."""
    match = _PATTERNS[rules].match
    while (found := match(text, at)) is not None:
        name, source_text, start, at = found.lastgroup or "", found.group(), at, found.end()
        if name == "blank":
            continue
        if name == "comment":
            at = _find_comment_end(text, start)
            continue
        if name == "dollar":
            reason = f"{source_text} begins a name with a dollar sign. Write the name in backticks"
            raise _make_error(text, start, reason)
        if name not in _TOKEN_MEANINGS:
            raise _make_error(text, start, _describe_unclosed(source_text, rules))
        kind, read = _TOKEN_MEANINGS[name]
        if kind is TokenKind.NUMBER and len(source_text) > _MAX_NUMBER_CHARACTERS:
            reason = f"A number must have at most {_MAX_NUMBER_CHARACTERS:,} characters"
            raise _make_error(text, start, reason)
        value = read(source_text)
        if kind is TokenKind.WORD and rules is not SqlRules.SPARK and not value[:1].isidentifier():
            kind, value = TokenKind.SYMBOL, source_text
        yield kind, value, source_text, start


def _find_comment_end(text: str, start: int) -> int:
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, start):
        depth += 1 if mark.group() == "/*" else -1
        if not depth:
            return mark.end()
    raise _make_error(text, start, _describe_unclosed("/*", SqlRules.SPARK))


def _describe_unclosed(opening: str, rules: SqlRules) -> str:
    """Return the error for a string, quoted name or comment with this opening and no end."""
    if opening in _COMMENT_ENDS:
        return f"This comment is not closed. End it with {_COMMENT_ENDS[opening]}"
    mark = opening[-1:] if opening[:1] in "eE" else opening
    is_name = mark == "`" or (mark == '"' and rules is not SqlRules.SPARK)
    return f"This {'quoted name' if is_name else 'string'} is not closed. End it with {mark}"


def _make_error(text: str, offset: int, reason: str) -> StatementError:
    place = PositionIndex(text).position_at(offset)
    return StatementError(reason=reason, line=place.line, column=place.column)


# Classification of statements by their first words, and splitting of scripts.

# A SELECT of this function alone is a catalog statement, not a query.
PIPE_STATUS_FUNCTION = "SYSTEM$PIPE_STATUS"
_QUERY_WORDS = frozenset({"SELECT", "WITH", "VALUES", "FROM", "EXPLAIN", "("})
_ROW_CHANGE_WORDS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_INFER_SCHEMA = ("TABLE", "(", "INFER_SCHEMA")


def _iterate_words(text: str, start: int) -> Iterator[str]:
    """Yield the words and symbols of a statement, up to its semicolon or a token that is not closed.

    Other tokens are yielded as empty strings.
    """
    with contextlib.suppress(StatementError):
        for kind, value, _, _ in _scan(text, start, SqlRules.CATALOG):
            if value == ";" and kind is TokenKind.SYMBOL:
                return
            yield value if kind in _UNQUOTED_KINDS else ""


def read_first_words(text: str, start: int = 0) -> tuple[str, str]:
    """Return the first two words or symbols of a statement. Other tokens are empty strings."""
    words = (*islice(_iterate_words(text, start), 2), "", "")
    return words[0], words[1]


def is_copy_statement(text: str) -> bool:
    """Return True if a statement begins with COPY. Does not examine the rest."""
    return read_first_words(text)[0] == "COPY"


def is_copy_into(text: str) -> bool:
    """Return True if a statement begins with COPY INTO. Does not examine the rest."""
    return read_first_words(text) == ("COPY", "INTO")


def is_infer_schema(text: str) -> bool:
    """Return True if a statement calls the table function INFER_SCHEMA."""
    return _INFER_SCHEMA[-1] in text.upper() and _has_infer_schema(text, 0)


def _has_infer_schema(text: str, start: int) -> bool:
    words = tuple(_iterate_words(text, start))
    return any(words[at : at + len(_INFER_SCHEMA)] == _INFER_SCHEMA for at in range(len(words)))


def is_query(text: str) -> bool:
    """Return True for SELECT, WITH, VALUES, FROM, EXPLAIN, or a statement in parentheses.

    Return False for `SELECT SYSTEM$PIPE_STATUS(…)`, which is a catalog statement, and for INFER_SCHEMA,
    which reads files. Examines only the first words, and searches the rest for INFER_SCHEMA only.
    """
    return _begins_query(text, 0) and not is_infer_schema(text)


def _begins_query(text: str, start: int) -> bool:
    first, second = read_first_words(text, start)
    return first in _QUERY_WORDS and second != PIPE_STATUS_FUNCTION


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
    positions = PositionIndex(text)
    pieces: list[ScriptStatement] = []
    infers = _INFER_SCHEMA[-1] in text.upper()
    end = -1
    while (first := next(_scan(text, end + 1, SqlRules.CATALOG), None)) is not None:
        start = first[-1]
        is_spark = first[1] in _ROW_CHANGE_WORDS or (
            _begins_query(text, start) and not (infers and _has_infer_schema(text, start))
        )
        is_copy = first[1] == "COPY" and read_first_words(text, start)[1] != "INTO"
        rules = SqlRules.SPARK if is_spark else SqlRules.COPY if is_copy else SqlRules.CATALOG
        tokens = _scan(text, start, rules)
        ends = (at for kind, value, _, at in tokens if (kind, value) == (TokenKind.SYMBOL, ";"))
        end = next(ends, len(text))
        if end > start:
            piece = text[start:end].rstrip()
            pieces.append(ScriptStatement(piece, positions.position_at(start)))
    return tuple(pieces)
