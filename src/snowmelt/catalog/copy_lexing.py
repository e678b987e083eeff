r"""COPY's text into words that know their place; strings are Vertica's.

A backslash in `'…'` is a backslash, so that `ESCAPE AS '\'` is whole; in `E'…'` it escapes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from snowmelt.catalog.lexing import Places, Token, TokenKind
from snowmelt.errors import StatementError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
