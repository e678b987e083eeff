"""Dates, times and timestamps as SQL users write them, in the ISO form that the values' rules read.

These are the forms of Snowflake's automatic detection for INSERT. An SDK's rows have rules of their
own (`snowmelt.schema.instants`), which know the `T` of ISO 8601 alone.
"""

from __future__ import annotations

import re

from snowmelt.schema.numbers import BLANKS

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?P<name>{'|'.join(_MONTHS)})"
_DAY_NAME = r"(?:mon|tue|wed|thu|fri|sat|sun)"
_CLOCK = (
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{0,9}))?)?)?"
)
_HALF = r"(?:[ ]?(?P<half>am|pm))?"
_OFFSET = r"(?:[ ]?(?P<offset>z|[+-]\d{2}(?::?\d{2})?))?"
_REST = rf"{_CLOCK}{_HALF}{_OFFSET}"
_MOMENTS = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        # 2026-01-31 12:00:00.5 +0100
        rf"(?P<year>\d{{4}})-(?P<month>\d{{1,2}})-(?P<day>\d{{1,2}})(?:[ t][ ]*{_REST})?",
        # 1/31/2026 12:00
        rf"(?P<month>\d{{1,2}})/(?P<day>\d{{1,2}})/(?P<year>\d{{4}})(?:[ ]+{_REST})?",
        # Sat, 31 Jan 2026 12:00:00 +0100, and 31-Jan-2026
        rf"(?:{_DAY_NAME},?[ ])?(?P<day>\d{{1,2}})[ -]{_MONTH}[ -](?P<year>\d{{4}})(?:[ ]+{_REST})?",
        # Sat Jan 31 12:00:00 +0100 2026
        rf"{_DAY_NAME}[ ]{_MONTH}[ ](?P<day>\d{{1,2}})[ ]{_REST}[ ](?P<year>\d{{4}})",
    )
)
_TIME = re.compile(_REST, re.ASCII | re.IGNORECASE)
_NOON = 12


def iso_moment(text: str) -> str:
    """Return a date or timestamp in ISO 8601; a text of another form as it is."""
    stripped = text.strip(BLANKS)
    for form in _MOMENTS:
        match = form.fullmatch(stripped)
        if match is not None:
            return _moment(match) or text
    return text


def iso_time(text: str) -> str:
    """Return a time of day in ISO 8601; a text of another form as it is."""
    match = _TIME.fullmatch(text.strip(BLANKS))
    if match is None or match["minute"] is None:
        return text
    return _clock(match) or text


def _moment(match: re.Match[str]) -> str | None:
    parts = match.groupdict()
    name = parts.get("name")
    month = parts.get("month") or str(_MONTHS.index((name or "").lower()) + 1)
    date = f"{match['year']}-{month:0>2}-{match['day']:0>2}"
    if match["hour"] is None:
        return date
    clock = _clock(match)
    return None if clock is None else f"{date}T{clock}"


def _clock(match: re.Match[str]) -> str | None:
    """Return the time of day; None where an hour of twelve is none."""
    hour = int(match["hour"])
    if match["half"] is not None:
        if not 1 <= hour <= _NOON:
            return None
        hour = hour % _NOON + (_NOON if match["half"].lower() == "pm" else 0)
    seconds = "".join(
        filter(None, (match["second"] or "00", match["fraction"] and ".", match["fraction"]))
    )
    offset = (match["offset"] or "").upper()
    if offset not in {"", "Z"}:
        offset = f"{offset[:3]}:{offset[3:].removeprefix(':') or '00'}"
    return f"{hour:02}:{match['minute'] or '00'}:{seconds}{offset}"
