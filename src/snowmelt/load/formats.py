"""How a column's texts are rewritten before they are read: date formats, and bytes in digits.

Templates are those of `TO_DATE` and `TO_TIMESTAMP`: YYYY, MM, DD, HH24, MI, SS and the like.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from snowmelt.errors import InvalidValue, LoadRefused
from snowmelt.schema.numbers import BLANKS
from snowmelt.schema.types import TIMESTAMPS, Column, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LOOSE = re.compile(
    r"([+-]?[0-9]{4,10}-[0-9]{2}-[0-9]{2})[ Tt]([0-9]{2})(:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]*)?)?)?"
    r" ?([Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_HOUR_ONLY, _WITHOUT_COLON = 3, 5
_OCTAL = re.compile(rb"\\([0-3][0-7]{2}|\\)")
_BITS = re.compile(r"(?:[01]{8})*")
# What stands for what; longer names before those that they begin with.
_PARTS = {
    "YYYY": r"(?P<year>[0-9]{4})",
    "YY": r"(?P<short>[0-9]{2})",
    "MONTH": r"(?P<name>[A-Za-z]{3,9})",
    "MON": r"(?P<name>[A-Za-z]{3})",
    "MM": r"(?P<month>[0-9]{1,2})",
    "MI": r"(?P<minute>[0-9]{1,2})",
    "MS": r"(?P<fraction>[0-9]{1,3})",
    "US": r"(?P<fraction>[0-9]{1,6})",
    "DDD": r"(?P<ordinal>[0-9]{1,3})",
    "DD": r"(?P<day>[0-9]{1,2})",
    "DAY": r"[A-Za-z]+",
    "DY": r"[A-Za-z]{3}",
    "HH24": r"(?P<hour>[0-9]{1,2})",
    "HH12": r"(?P<hour>[0-9]{1,2})",
    "HH": r"(?P<hour>[0-9]{1,2})",
    "SS": r"(?P<second>[0-9]{1,2})",
    "FF": r"(?P<fraction>[0-9]{1,9})",
    "A.M.": r"(?P<half>[AaPp]\.[Mm]\.)",
    "P.M.": r"(?P<half>[AaPp]\.[Mm]\.)",
    "AM": r"(?P<half>[AaPp][Mm])",
    "PM": r"(?P<half>[AaPp][Mm])",
    "TZH": r"(?P<zone>[+-][0-9]{2})",
    "TZM": r"(?P<zone_minute>[0-9]{2})",
    "T": "[Tt]",
    "Z": "(?P<utc>[Zz])",
}
_WORD = re.compile("|".join(map(re.escape, sorted(_PARTS, key=len, reverse=True))), re.IGNORECASE)
_PIVOT = 70


class Rewriting:
    """Rewrites the texts of a column; `is_usual` where the usual forms are only made regular."""

    def __init__(self, rewrite: Callable[[str], str], *, is_usual: bool) -> None:
        self._rewrite = rewrite
        self.is_usual = is_usual

    def __call__(self, text: str) -> str:
        """Return the text as `snowmelt.schema.values` reads it.

        Raises:
            InvalidValue: It does not have the format.
        """
        return self._rewrite(text)


def reader_of(column: Column, template: str | None) -> Rewriting:
    """Return what rewrites the texts of a column with a format, or None for the usual forms.

    Raises:
        LoadRefused: The column has no such format.
    """
    timed = column.kind in {Kind.DATE, Kind.TIME} or column.kind in TIMESTAMPS
    if template is None:
        return Rewriting(_regular if timed else str, is_usual=True)
    if timed:
        return Rewriting(_templated(column, template), is_usual=False)
    if column.kind is Kind.BINARY:
        known = {"HEX": _hexadecimal, "OCTAL": _octal, "BITSTRING": _bits}
        rewrite = known.get(template.upper())
        if rewrite is not None:
            return Rewriting(rewrite, is_usual=False)
        _refuse(column, "FORMAT of a binary column is HEX, OCTAL or BITSTRING")
    _refuse(column, "FORMAT is for dates, times and binary columns")
    raise AssertionError


def _refuse(column: Column, reason: str) -> None:
    raise LoadRefused(what=f"column {column.display_name}", reason=reason)


def _regular(text: str) -> str:
    """Write a moment with T, minutes and a colon in its offset."""
    match = _LOOSE.fullmatch(text.strip(BLANKS))
    if match is None:
        return text
    date, hour, rest, offset = match.groups("")
    if len(offset) == _WITHOUT_COLON:
        offset = f"{offset[:3]}:{offset[3:]}"
    return f"{date}T{hour}{rest or ':00'}{offset}"


def _hexadecimal(text: str) -> str:
    text = text.strip(BLANKS)
    return text[2:] if text[:2] in {"0x", "0X"} else text


def _octal(text: str) -> str:
    data = text.encode()
    if _OCTAL.sub(b"", data).count(b"\\"):
        raise InvalidValue(reason="Not a valid octal string")
    return _OCTAL.sub(_byte, data).hex()


def _byte(match: re.Match[bytes]) -> bytes:
    return b"\\" if match[1] == b"\\" else bytes([int(match[1], 8)])


def _bits(text: str) -> str:
    text = text.strip(BLANKS)
    if not _BITS.fullmatch(text):
        raise InvalidValue(reason="Not a valid bit string of whole bytes")
    return f"{int(text, 2):0{len(text) // 4}x}" if text else ""


def _templated(column: Column, template: str) -> Callable[[str], str]:
    pattern = _pattern(column, template)
    is_time = column.kind is Kind.TIME

    # Dates repeat in files: most are read once.
    @lru_cache(maxsize=65_536)
    def rewrite(text: str) -> str:
        match = pattern.fullmatch(text.strip(BLANKS))
        if match is None:
            raise InvalidValue(reason=f"Not of the format {template!r}")
        return _iso(match.groupdict(), template, is_time=is_time)

    return rewrite


def _pattern(column: Column, template: str) -> re.Pattern[str]:
    pieces: list[str] = []
    names: set[str] = set()
    at = 0
    quoted = template.split('"')
    for index, piece in enumerate(quoted):
        if index % 2:
            pieces.append(re.escape(piece))
            continue
        at = 0
        for match in _WORD.finditer(piece):
            part = _PARTS[match[0].upper()]
            pieces.append(_literal(column, piece[at : match.start()]))
            name = part[4 : part.index(">")] if part.startswith("(?P<") else match[0]
            if name in names:
                _refuse(column, f"FORMAT {template!r} says {match[0]} twice")
            names.add(name)
            pieces.append(part)
            at = match.end()
        pieces.append(_literal(column, piece[at:]))
    return re.compile("".join(pieces), re.ASCII)


def _literal(column: Column, text: str) -> str:
    if any(char.isalnum() for char in text):
        _refuse(column, f"FORMAT has an unknown part {text!r}")
    return re.escape(text)


def _iso(found: dict[str, str | None], template: str, *, is_time: bool) -> str:
    clock = _clock(found, template)
    if is_time:
        return clock
    year = found.get("year")
    if year is None:
        short = int(found.get("short") or "70")
        year = str(short + (1900 if short >= _PIVOT else 2000))
    month = found.get("month") or "1"
    if name := found.get("name"):
        if name[:3].lower() not in _MONTHS:
            raise InvalidValue(reason=f"Not of the format {template!r}: no month {name!r}")
        month = str(_MONTHS.index(name[:3].lower()) + 1)
    date = f"{year}-{month:0>2}-{found.get('day') or '1':0>2}"
    zone = "Z" if found.get("utc") else found.get("zone") or ""
    if found.get("zone_minute"):
        zone += f":{found['zone_minute']}"
    return f"{date}T{clock}{zone}"


def _clock(found: dict[str, str | None], template: str) -> str:
    hour = int(found.get("hour") or "0")
    if half := found.get("half"):
        if not 1 <= hour <= 12:
            raise InvalidValue(reason=f"Not of the format {template!r}: no hour {hour}")
        hour = hour % 12 + (12 if half[0] in "Pp" else 0)
    text = f"{hour:02}:{found.get('minute') or '0':0>2}:{found.get('second') or '0':0>2}"
    fraction = found.get("fraction")
    return f"{text}.{fraction}" if fraction else text
