"""Patterns: LIKE, and the pictures of TO_STRING."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from snowmelt.select.refusals import SelectError

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.select.timestamps import Local, Timestamp

_CACHED = 256
_MONTHS = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)


class Likeness:
    """A LIKE pattern, taken apart at each `%`; a piece holds characters and None for `_`."""

    def __init__(self, pieces: tuple[tuple[str | None, ...], ...]) -> None:
        """Keep the pieces: one more than there are `%`."""
        self.pieces = pieces
        # Each piece is looked for once, from left to right: no pattern takes exponential time.
        self._searches = [re.compile(_expression(piece), re.DOTALL) for piece in pieces]

    def matches(self, text: str) -> bool:
        """Return whether the whole text is like the pattern."""
        first, last = self._searches[0], self._searches[-1]
        if len(self._searches) == 1:
            return first.fullmatch(text) is not None
        start = first.match(text)
        end = len(text) - len(self.pieces[-1])
        if start is None or start.end() > end or last.match(text, end) is None:
            return False
        at = start.end()
        for search in self._searches[1:-1]:
            found = search.search(text, at, end)
            if found is None:
                return False
            at = found.end()
        return True


def _expression(piece: tuple[str | None, ...]) -> str:
    return "".join("." if character is None else re.escape(character) for character in piece)


@lru_cache(maxsize=_CACHED)
def parse_like(pattern: str, escape: str | None = None) -> Likeness:
    """Take a pattern apart: `%` is any text, `_` one character, both themselves after `escape`.

    Raises:
        SelectError: LikeInvalidInputs, where `escape` is not one character or ends the pattern.
    """
    if escape is not None and len(escape) != 1:
        raise SelectError("LikeInvalidInputs", f"ESCAPE takes one character, not {escape!r}")
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                message = f"the pattern ends with its escape character {escape!r}"
                raise SelectError("LikeInvalidInputs", message)
            pieces[-1].append(literal)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return Likeness(tuple(tuple(piece) for piece in pieces))


def format_timestamp(value: Timestamp, picture: str) -> str:
    """Return a timestamp in the way a picture such as `y-MM-dd'T'HH:mm:ssX` shows.

    Raises:
        SelectError: A code of EvaluatorInvalidTimestampFormatPattern….
    """
    local = value.local
    offset = value.offset or 0
    return "".join(
        part if isinstance(part, str) else part(local, offset) for part in _parts(picture)
    )


@lru_cache(maxsize=_CACHED)
def _parts(picture: str) -> tuple[str | Callable[[Local, int], str], ...]:
    parts: list[str | Callable[[Local, int], str]] = []
    for match in re.finditer(r"'((?:[^']|'')*)'|([A-Za-z])\2*|(')|[^A-Za-z']+", picture):
        written = match.group()
        if match[3]:
            message = f"a quote in {picture!r} is not closed"
            raise SelectError("EvaluatorUnterminatedTimestampFormatPatternToken", message)
        if match[1] is not None:
            parts.append(match[1].replace("''", "'") or "'")
        else:
            parts.append(_symbol(written, picture) if match[2] else written)
    return tuple(parts)


def _symbol(written: str, picture: str) -> Callable[[Local, int], str]:
    if written[0] == "S" and len(written) <= 9:
        return lambda local, _: f"{local.nanos:09}"[: len(written)]
    if written in _SYMBOLS:
        return _SYMBOLS[written]
    is_known = written[0] == "S" or any(written[0] == symbol[0] for symbol in _SYMBOLS)
    code = "EvaluatorInvalidTimestampFormatPattern" + ("Token" if is_known else "Symbol")
    message = f"{written!r} in {picture!r} stands for nothing; put text between single quotes"
    raise SelectError(code, message)


def _hour(local: Local) -> int:
    return local.hour % 12 or 12


def _offset(minutes: int, *, colon: bool, short: bool, zulu: bool) -> str:
    if zulu and minutes == 0:
        return "Z"
    hours, rest = divmod(abs(minutes), 60)
    text = f"{'-' if minutes < 0 else '+'}{hours:02}"
    if short and rest == 0:
        return text
    return f"{text}{':' if colon else ''}{rest:02}"


def _offsets(letter: str, *, zulu: bool) -> dict[str, Callable[[Local, int], str]]:
    def short(_local: Local, minutes: int) -> str:
        return _offset(minutes, colon=False, short=True, zulu=zulu)

    def plain(_local: Local, minutes: int) -> str:
        return _offset(minutes, colon=False, short=False, zulu=zulu)

    def colon(_local: Local, minutes: int) -> str:
        return _offset(minutes, colon=True, short=False, zulu=zulu)

    kinds = (short, plain, colon, plain, colon)
    return {letter * count: kind for count, kind in enumerate(kinds, 1)}


_SYMBOLS: dict[str, Callable[[Local, int], str]] = {
    "y": lambda local, _: str(local.year),
    "yy": lambda local, _: f"{local.year % 100:02}",
    "yyyy": lambda local, _: f"{local.year:04}",
    "M": lambda local, _: str(local.month),
    "MM": lambda local, _: f"{local.month:02}",
    "MMM": lambda local, _: _MONTHS[local.month - 1][:3],
    "MMMM": lambda local, _: _MONTHS[local.month - 1],
    "MMMMM": lambda local, _: _MONTHS[local.month - 1][:1],
    "d": lambda local, _: str(local.day),
    "dd": lambda local, _: f"{local.day:02}",
    "a": lambda local, _: "AM" if local.hour < 12 else "PM",
    "h": lambda local, _: str(_hour(local)),
    "hh": lambda local, _: f"{_hour(local):02}",
    "H": lambda local, _: str(local.hour),
    "HH": lambda local, _: f"{local.hour:02}",
    "m": lambda local, _: str(local.minute),
    "mm": lambda local, _: f"{local.minute:02}",
    "s": lambda local, _: str(local.second),
    "ss": lambda local, _: f"{local.second:02}",
    "n": lambda local, _: str(local.nanos),
    **_offsets("X", zulu=True),
    **_offsets("x", zulu=False),
}
