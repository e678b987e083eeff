"""Lexer: splits a statement into tokens with offsets. The parsers read them from `TokenStream`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError

MAX_STATEMENT_BYTES = 256 * 1024
"""Maximum statement size, in UTF-8 bytes."""

ColumnNamePredicate: TypeAlias = Callable[[str], bool]

_TOKEN_PATTERN = re.compile(
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
_HYPHENATED_PATTERN = re.compile(r"\w+(?:-\w+)+")
_PATH_PATTERN = re.compile(r"/[^\s;]*")


class SelectTokenKind(StrEnum):
    """Token kinds. The value is the name of the kind in messages."""

    WORD = "word"
    NUMBER = "number"
    STRING = "string"
    QUOTED = "quoted name"
    TIMESTAMP = "timestamp"
    SYMBOL = "symbol"
    PATH = "path"
    END = "end of the statement"


_KIND_BY_GROUP = {kind.name.lower(): kind for kind in SelectTokenKind}


@dataclass(frozen=True, slots=True)
class SelectToken:
    """A token. `text` excludes the quotes.

    `upper` is the upper-case text of a word or symbol, and empty for other kinds.
    """

    kind: SelectTokenKind
    text: str
    start: int
    end: int
    upper: str = ""

    def __str__(self) -> str:
        return str(self.kind) if self.kind is SelectTokenKind.END else repr(self.text)


def make_syntax_error(code: str, message: str, text: str, offset: int) -> SelectError:
    """Return an error whose message ends with the 1-based line and column of an offset."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return SelectError(code, f"{message} (line {line}, column {column})")


def tokenize(text: str, is_name: ColumnNamePredicate | None = None) -> list[SelectToken]:
    """Split a statement into tokens, ending with one of kind END.

    Args:
        text: Statement text.
        is_name: True for a hyphenated word that is a name, such as `customer-id`. The longest
            match wins. None: a hyphen is always a minus.

    Raises:
        SelectError: If a token is invalid (Lexer… codes), or the statement is too long
            (ExpressionTooLong).
    """
    if (
        len(text) > MAX_STATEMENT_BYTES
        or len(text.encode("utf-8", "surrogatepass")) > MAX_STATEMENT_BYTES
    ):
        message = f"the statement is longer than {MAX_STATEMENT_BYTES} bytes"
        raise SelectError("ExpressionTooLong", message)
    tokens = list(_scan_tokens(text, is_name))
    end = len(text.rstrip())
    return [*tokens, SelectToken(SelectTokenKind.END, "", end, end)]


def _scan_tokens(text: str, is_name: ColumnNamePredicate | None) -> Iterator[SelectToken]:
    at = 0
    after_from = False
    while at < len(text):
        path = _PATH_PATTERN.match(text, at) if after_from else None
        match = path or _TOKEN_PATTERN.match(text, at)
        if match is None:
            raise _invalid_character_error(text, at)
        group = match.lastgroup or "path"
        start, at = at, match.end()
        if group == "blank":
            continue
        if group == "word" and is_name is not None:
            at = _find_hyphenated_name_end(text, start, is_name) or at
        if group == "number" and re.match(r"\w", text[at : at + 1]):
            message = f"a number is followed by {text[at]!r}; insert a blank, or quote the name"
            raise make_syntax_error("LexerInvalidLiteral", message, text, start)
        upper = text[start:at].upper() if group in {"word", "symbol"} else ""
        yield SelectToken(
            _KIND_BY_GROUP[group], _unquote_token_text(group, text[start:at]), start, at, upper
        )
        after_from = upper == "FROM"


def _unquote_token_text(group: str, token_text: str) -> str:
    if group in {"string", "quoted", "timestamp"}:
        quote = token_text[0]
        return token_text[1:-1].replace(quote * 2, quote)
    return token_text


def _find_hyphenated_name_end(text: str, start: int, is_name: ColumnNamePredicate) -> int | None:
    match = _HYPHENATED_PATTERN.match(text, start)
    candidate = match.group() if match else ""
    while "-" in candidate:
        if is_name(candidate):
            return start + len(candidate)
        candidate = candidate.rpartition("-")[0]
    return None


_INVALID_CHARACTER_ERRORS = {
    "'": ("LexerInvalidLiteral", "this string is not closed; it ends with '"),
    '"': ("LexerInvalidLiteral", 'this quoted name is not closed; it ends with "'),
    "`": ("LexerInvalidIONLiteral", "this timestamp is not closed; it ends with `"),
    "!": ("LexerInvalidOperator", "'!' is not an operator; write NOT, <> or !="),
    "|": ("LexerInvalidOperator", "'|' is not an operator; use || to concatenate texts"),
    "&": ("LexerInvalidOperator", "'&' is not an operator; write AND"),
    "~": ("LexerInvalidOperator", "'~' is not an operator; write LIKE"),
}


def _invalid_character_error(text: str, offset: int) -> SelectError:
    unknown = f"unexpected character {text[offset]!r}; put names that contain it in double quotes"
    code, message = _INVALID_CHARACTER_ERRORS.get(text[offset], ("LexerInvalidChar", unknown))
    return make_syntax_error(code, message, text, offset)


RESERVED_WORDS = frozenset(
    """
    ALL AND AS BETWEEN CASE CAST DISTINCT ELSE END ESCAPE EXCEPT FALSE FROM GROUP HAVING IN
    INTERSECT IS JOIN LIKE LIMIT MISSING NOT NULL OFFSET ON OR ORDER SELECT THEN TRUE UNION WHEN
    WHERE
    """.split()  # noqa: SIM905  one word per line would fill a page
)
"""Words that must be quoted to be used as names."""


class TokenStream:
    """A cursor over the tokens of a statement."""

    def __init__(self, text: str, dialect: Dialect, is_name: ColumnNamePredicate | None) -> None:
        """Tokenize `text`. For `is_name`, see `tokenize`."""
        self.text = text
        self.dialect = dialect
        self._tokens = tokenize(text, is_name)
        self._next = 0

    @property
    def current(self) -> SelectToken:
        """The next token."""
        return self._tokens[self._next]

    @property
    def lookahead_token(self) -> SelectToken:
        """The token after `current`, or the END token if there is none."""
        return self._tokens[min(self._next + 1, len(self._tokens) - 1)]

    def advance(self) -> SelectToken:
        """Return the next token and move past it. Does not move past END."""
        token = self.current
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def is_at(self, *texts: str) -> bool:
        """Return True if the next token is one of these keywords or symbols."""
        return self.current.upper in texts

    def accept(self, *texts: str) -> bool:
        """Move past the next token and return True if it is one of these keywords or symbols."""
        found = self.is_at(*texts)
        if found:
            self.advance()
        return found

    def expect(self, text: str, code: str, expected: str) -> SelectToken:
        """Move past a required keyword or symbol and return it.

        Raises:
            SelectError: If the next token is another one. The message contains `expected`.
        """
        if not self.is_at(text):
            raise self.make_error(code, f"expected {expected}, got {self.current}")
        return self.advance()

    def is_at_name(self) -> bool:
        """Return True if the next token is an unquoted name.

        Accepts a reserved word next to a hyphen (`order-date`): it may be part of a header name,
        which only the binder can resolve.
        """
        token = self.current
        if token.kind is not SelectTokenKind.WORD:
            return False
        return token.upper not in RESERVED_WORDS or self._is_next_to_hyphen(token)

    def _is_next_to_hyphen(self, token: SelectToken) -> bool:
        after = self.text[token.end : token.end + 2]
        before = self.text[max(token.start - 2, 0) : token.start]
        return (after[:1] == "-" and after[1:].isalpha()) or (
            before[1:] == "-" and before[:1].isalnum()
        )

    def make_error(self, code: str, message: str, token: SelectToken | None = None) -> SelectError:
        """Return an error with the position of a token, by default the next token."""
        return make_syntax_error(code, message, self.text, (token or self.current).start)
