"""Intervals as statements write them: `10 seconds`, `00:10:00`, `1 day 02:00`."""

from __future__ import annotations

import datetime as dt
import re

_UNITS = {
    "microsecond": dt.timedelta(microseconds=1),
    "millisecond": dt.timedelta(milliseconds=1),
    "second": dt.timedelta(seconds=1),
    "minute": dt.timedelta(minutes=1),
    "hour": dt.timedelta(hours=1),
    "day": dt.timedelta(days=1),
    "week": dt.timedelta(weeks=1),
}
_SHORT = {"us": "microsecond", "ms": "millisecond", "s": "second", "sec": "second"}
_SHORT |= {"m": "minute", "min": "minute", "h": "hour", "hr": "hour", "d": "day", "w": "week"}
_PART = re.compile(
    r"\s*(?:(?P<sign>-?)(?P<hours>\d+):(?P<minutes>[0-5]?\d)(?::(?P<seconds>[0-5]?\d(?:\.\d+)?))?"
    r"|(?P<number>-?\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*))\s*",
    re.IGNORECASE,
)


def interval_of(text: str, unit: str | None = None) -> dt.timedelta | None:
    """Return an interval, None for what is none; numbers without a unit are of `unit`.

    Months and years have no fixed length and are none.
    """
    total, at = dt.timedelta(0), 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            return None
        part = _clock(found) if found["hours"] else _counted(found, unit)
        if part is None:
            return None
        total += part
        at = found.end()
    return total if text.strip() else None


def _clock(found: re.Match[str]) -> dt.timedelta:
    part = dt.timedelta(
        hours=int(found["hours"]),
        minutes=int(found["minutes"]),
        seconds=float(found["seconds"] or 0),
    )
    return -part if found["sign"] else part


def _counted(found: re.Match[str], unit: str | None) -> dt.timedelta | None:
    word = (found["unit"] or unit or "").lower()
    length = _UNITS.get(_SHORT.get(word, word.removesuffix("s")))
    return None if length is None else float(found["number"]) * length
