"""The text of a statement cut into words, strings, numbers and symbols that know their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from snowmelt.select.refusals import SelectError

MAX_BYTES = 256 * 1024
"""The longest statement, in bytes of UTF-8."""

IsName: TypeAlias = Callable[[str], bool]

_TOKEN = re.compile(
    r"""
    (?P<blank>\s+)
    | (?P<word>[^\W\d]\w*)
    | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<string>'[^']*(?:''[^']*)*')
    | (?P<quoted>"[^"]*(?:""[^"]*)*")
    | (?P<timestamp>`[^`]*`)
    | (?P<symbol><=|>=|<>|!=|==|\|\||[-+*/%^=<>(),.;:\[\]])
    """,
    re.VERBOSE,
)
_HYPHENATED = re.compile(r"\w+(?:-\w+)+")
_PATH = re.compile(r"/[^\s;]*")


class Kind(StrEnum):
    """What a token is; the value is how a message calls it."""

    WORD = "word"
    NUMBER = "number"
    STRING = "string"
    QUOTED = "quoted name"
    TIMESTAMP = "timestamp"
    SYMBOL = "symbol"
    PATH = "path"
    END = "end of the statement"


_KINDS = {kind.name.lower(): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Token:
    """One word; `text` is without quotes.

    `upper` is the keyword or symbol that this may be; it is empty for anything else.
    """

    kind: Kind
    text: str
    start: int
    end: int
    upper: str = ""

    def __str__(self) -> str:
        return str(self.kind) if self.kind is Kind.END else repr(self.text)


def syntax_error(code: str, message: str, text: str, at: int) -> SelectError:
    """Return a refusal that ends with the line and column of an offset, both from 1."""
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return SelectError(code, f"{message} (line {line}, column {column})")


def tokens_of(text: str, is_name: IsName | None = None) -> list[Token]:
    """Cut a statement into tokens, the last of them of kind END.

    Args:
        text: The statement.
        is_name: Tells which words with hyphens, such as `customer-id`, are names; the longest
            is taken. Without it a hyphen is always a minus.

    Raises:
        SelectError: A lexer's code or ExpressionTooLong.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        message = f"the statement is longer than {MAX_BYTES} bytes"
        raise SelectError("ExpressionTooLong", message)
    tokens = list(_scan(text, is_name))
    end = len(text.rstrip())
    return [*tokens, Token(Kind.END, "", end, end)]


def _scan(text: str, is_name: IsName | None) -> Iterator[Token]:
    at = 0
    after_from = False
    while at < len(text):
        path = _PATH.match(text, at) if after_from else None
        match = path or _TOKEN.match(text, at)
        if match is None:
            raise _unreadable(text, at)
        group = match.lastgroup or "path"
        start, at = at, match.end()
        if group == "blank":
            continue
        if group == "word" and is_name is not None:
            at = _hyphenated_end(text, start, is_name) or at
        if group == "number" and re.match(r"\w", text[at : at + 1]):
            message = f"a number ends in {text[at]!r}; put a blank between, or quote the name"
            raise syntax_error("LexerInvalidLiteral", message, text, start)
        upper = text[start:at].upper() if group in {"word", "symbol"} else ""
        yield Token(_KINDS[group], _content(group, text[start:at]), start, at, upper)
        after_from = upper == "FROM"


def _content(group: str, written: str) -> str:
    if group in {"string", "quoted", "timestamp"}:
        quote = written[0]
        return written[1:-1].replace(quote * 2, quote)
    return written


def _hyphenated_end(text: str, start: int, is_name: IsName) -> int | None:
    match = _HYPHENATED.match(text, start)
    candidate = match.group() if match else ""
    while "-" in candidate:
        if is_name(candidate):
            return start + len(candidate)
        candidate = candidate.rpartition("-")[0]
    return None


_UNREADABLE = {
    "'": ("LexerInvalidLiteral", "this string is not closed; it ends with '"),
    '"': ("LexerInvalidLiteral", 'this quoted name is not closed; it ends with "'),
    "`": ("LexerInvalidIONLiteral", "this timestamp is not closed; it ends with `"),
    "!": ("LexerInvalidOperator", "'!' is no operator; write NOT, <> or !="),
    "|": ("LexerInvalidOperator", "'|' is no operator; texts are joined with ||"),
    "&": ("LexerInvalidOperator", "'&' is no operator; write AND"),
    "~": ("LexerInvalidOperator", "'~' is no operator; write LIKE"),
}


def _unreadable(text: str, at: int) -> SelectError:
    unknown = f"character {text[at]!r} means nothing here; names with it stand in double quotes"
    code, message = _UNREADABLE.get(text[at], ("LexerInvalidChar", unknown))
    return syntax_error(code, message, text, at)
