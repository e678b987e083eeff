"""Cuts a script into its statements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.catalog.copy_lexing import end_of_copy
from snowmelt.catalog.lexing import Places, TokenKind, tokens_of
from snowmelt.errors import StatementError

if TYPE_CHECKING:
    from snowmelt.catalog.lexing import Place, Token

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
