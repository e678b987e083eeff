"""Timestamp format patterns of TO_STRING."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from snowmelt.select.errors import SelectError
from snowmelt.select.timestamps import LocalDateTime, Timestamp

_FORMAT_CACHE_SIZE = 256
_MONTH_NAMES = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)


def format_timestamp(value: Timestamp, format_pattern: str, *, is_ceph: bool = False) -> str:
    """Format a timestamp with a pattern such as `y-MM-dd'T'HH:mm:ssX`.

    With `is_ceph`, quotes and unknown letters are literal.

    Raises:
        SelectError: If the pattern is invalid. The code starts with `EvaluatorInvalidTimestampFormat`
            or is `EvaluatorUnterminatedTimestampFormatPatternToken`.
    """
    local = value.local_datetime
    offset = value.offset_minutes or 0
    parts = _parse_ceph_format(format_pattern) if is_ceph else _parse_format(format_pattern)
    return "".join(part if isinstance(part, str) else part(local, offset) for part in parts)


@lru_cache(maxsize=_FORMAT_CACHE_SIZE)
def _parse_ceph_format(
    format_pattern: str,
) -> tuple[str | Callable[[LocalDateTime, int], str], ...]:
    return tuple(
        _compile_ceph_format_symbol(match.group())
        for match in _CEPH_SYMBOL_PATTERN.finditer(format_pattern)
    )


def _compile_ceph_format_symbol(letters: str) -> str | Callable[[LocalDateTime, int], str]:
    if letters[0] == "S":
        return lambda local, _: f"{local.nanos:09}".ljust(len(letters), "0")[: len(letters)]
    if letters == "yyy" or (letters[0] == "y" and len(letters) > len("yyyy")):
        return lambda local, _: f"{local.year:0{len(letters)}}"
    return _SYMBOL_FORMATTERS.get(letters, letters)


@lru_cache(maxsize=_FORMAT_CACHE_SIZE)
def _parse_format(format_pattern: str) -> tuple[str | Callable[[LocalDateTime, int], str], ...]:
    parts: list[str | Callable[[LocalDateTime, int], str]] = []
    for match in re.finditer(r"'((?:[^']|'')*)'|([A-Za-z])\2*|(')|[^A-Za-z']+", format_pattern):
        written = match.group()
        if match[3]:
            message = f"a quote in {format_pattern!r} is not closed"
            raise SelectError("EvaluatorUnterminatedTimestampFormatPatternToken", message)
        if match[1] is not None:
            parts.append(match[1].replace("''", "'") or "'")
        else:
            parts.append(_compile_format_symbol(written, format_pattern) if match[2] else written)
    return tuple(parts)


def _compile_format_symbol(
    letters: str, format_pattern: str
) -> Callable[[LocalDateTime, int], str]:
    if letters[0] == "S" and len(letters) <= 9:
        return lambda local, _: f"{local.nanos:09}"[: len(letters)]
    if letters in _SYMBOL_FORMATTERS:
        return _SYMBOL_FORMATTERS[letters]
    is_known = letters[0] == "S" or any(letters[0] == symbol[0] for symbol in _SYMBOL_FORMATTERS)
    code = "EvaluatorInvalidTimestampFormatPattern" + ("Token" if is_known else "Symbol")
    message = f"invalid symbol {letters!r} in format {format_pattern!r}; put text in single quotes"
    raise SelectError(code, message)


def _to_12_hour(local: LocalDateTime) -> int:
    return local.hour % 12 or 12


def _format_offset(offset_minutes: int, *, colon: bool, short: bool, zulu: bool) -> str:
    if zulu and offset_minutes == 0:
        return "Z"
    hours, rest = divmod(abs(offset_minutes), 60)
    text = f"{'-' if offset_minutes < 0 else '+'}{hours:02}"
    if short and rest == 0:
        return text
    return f"{text}{':' if colon else ''}{rest:02}"


def _make_offset_formatters(
    letter: str, *, zulu: bool
) -> dict[str, Callable[[LocalDateTime, int], str]]:
    def short(_local: LocalDateTime, minutes: int) -> str:
        return _format_offset(minutes, colon=False, short=True, zulu=zulu)

    def plain(_local: LocalDateTime, minutes: int) -> str:
        return _format_offset(minutes, colon=False, short=False, zulu=zulu)

    def colon(_local: LocalDateTime, minutes: int) -> str:
        return _format_offset(minutes, colon=True, short=False, zulu=zulu)

    kinds = (short, plain, colon, plain, colon)
    return {letter * count: kind for count, kind in enumerate(kinds, 1)}


_SYMBOL_FORMATTERS: dict[str, Callable[[LocalDateTime, int], str]] = {
    "y": lambda local, _: str(local.year),
    "yy": lambda local, _: f"{local.year % 100:02}",
    "yyyy": lambda local, _: f"{local.year:04}",
    "M": lambda local, _: str(local.month),
    "MM": lambda local, _: f"{local.month:02}",
    "MMM": lambda local, _: _MONTH_NAMES[local.month - 1][:3],
    "MMMM": lambda local, _: _MONTH_NAMES[local.month - 1],
    "MMMMM": lambda local, _: _MONTH_NAMES[local.month - 1][:1],
    "d": lambda local, _: str(local.day),
    "dd": lambda local, _: f"{local.day:02}",
    "a": lambda local, _: "AM" if local.hour < 12 else "PM",
    "h": lambda local, _: str(_to_12_hour(local)),
    "hh": lambda local, _: f"{_to_12_hour(local):02}",
    "H": lambda local, _: str(local.hour),
    "HH": lambda local, _: f"{local.hour:02}",
    "m": lambda local, _: str(local.minute),
    "mm": lambda local, _: f"{local.minute:02}",
    "s": lambda local, _: str(local.second),
    "ss": lambda local, _: f"{local.second:02}",
    "n": lambda local, _: str(local.nanos),
    **_make_offset_formatters("X", zulu=True),
    **_make_offset_formatters("x", zulu=False),
}


# Longest symbols first. Any other character matches by itself.
_CEPH_SYMBOL_PATTERN = re.compile(
    "y{4,}|S+|yyy|" + "|".join(sorted(_SYMBOL_FORMATTERS, key=len, reverse=True)) + "|.", re.DOTALL
)


FORMAT_SYMBOLS = frozenset(_SYMBOL_FORMATTERS) | {"S"}
"""Valid symbols of a pattern. `S` repeats one to nine times, in Ceph any number of times."""
