"""Dates, times and timestamps as text: ISO 8601 and integers whose scale is guessed (§5.4).

Years go beyond those of `datetime`, so a moment is counted in seconds of its local clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from snowmelt.schema.numbers import BLANKS, is_narrow

DAY_S = 86_400
_GUESS_LIMIT = 31_536_000_000
_MAX_OFFSET_S = 18 * 3600
_MAX_DIGITS = 4_000
# The days of the wire's calendar; a moment beyond is not a moment at all.
_FIRST_DAY, _LAST_DAY = -365_243_219_162, 365_241_780_471
_CYCLE_S = 146_097 * DAY_S
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a local clock's epoch
_FIRST_S, _END_S = -62_135_596_800, 253_402_300_800

_CLOCK = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{0,9}))?)?"
_OFFSET = r"(?P<offset>[Zz]|[+-][0-9]{2}(?::[0-9]{2}(?::[0-9]{2})?)?)"
_MOMENT = re.compile(
    r"(?P<year>[0-9]{4}|-[0-9]{4,10}|\+[0-9]{5,10})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    rf"(?:[Tt]{_CLOCK}(?:{_OFFSET}(?:\[(?P<region>[A-Za-z0-9/_+\-:]+)\])?)?)?"
)
# What may stand in brackets besides a region: an offset, which may follow a name of UTC.
_REGION_OFFSET = re.compile(r"(?:UTC|GMT|UT)?(?P<offset>[+-][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)|Z|UT")
# Python knows these, too, but the official clients' time zones do not have them.
_FOREIGN_REGIONS = frozenset(
    {"EST", "MST", "HST", "ROC", "Factory", "posixrules", "localtime", "GMT+0", "GMT-0"}
)
_TIME = re.compile(rf"{_CLOCK}(?:{_OFFSET})?")
_INTEGER = re.compile(r"[+-]?\d+")
_HOURS_ONLY = 3


class Unreadable(ValueError):
    """The text is no date, time or timestamp."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A parsed text: seconds of the local clock since 1970; no offset when none was given."""

    local_s: int
    nanos: int
    offset_s: int | None


def parse_moment(text: str) -> Moment:
    """Read a date, date-time or integer.

    Raises:
        Unreadable: if the text has none of the forms.
    """
    text = text.strip(BLANKS)
    match = _MOMENT.fullmatch(text)
    if match is None:
        seconds, nanos = _guess(text)
        return Moment(seconds, nanos, 0)
    year_text = match["year"]
    year = int(year_text)
    if year == 0 and year_text.startswith("-"):
        raise Unreadable(text)
    local_s = day_of(year, int(match["month"]), int(match["day"])) * DAY_S
    if match["hour"] is None:
        return Moment(local_s, 0, None)
    seconds, nanos = _clock(match)
    local_s += seconds
    if match["offset"] is None:
        return Moment(local_s, nanos, None)
    offset_s = _offset(match["offset"])
    if match["region"] is None:
        return Moment(local_s, nanos, offset_s)
    # The instant is kept and shown in the region's own offset.
    own = region_offset(match["region"], local_s - offset_s)
    return Moment(local_s - offset_s + own, nanos, own)


def is_integer(text: str) -> bool:
    """Tell whether a text is a number of seconds or parts of them, whose unit is guessed."""
    text = text.strip(BLANKS)
    return _INTEGER.fullmatch(text) is not None


def parse_time(text: str) -> tuple[int, int]:
    """Read a time of day or an integer; return seconds and nanoseconds.

    Raises:
        Unreadable: if the text has neither form.
    """
    text = text.strip(BLANKS)
    match = _TIME.fullmatch(text)
    if match is None:
        seconds, nanos = _guess(text)
        return seconds % DAY_S, nanos
    offset = match["offset"]
    if offset is not None:
        if len(offset) == _HOURS_ONLY:
            raise Unreadable(text)
        _offset(offset)
    return _clock(match)


def day_of(year: int, month: int, day: int) -> int:
    """Return days since 1970 in the proleptic Gregorian calendar, for any year.

    Raises:
        Unreadable: if there is no such day.
    """
    # The calendar repeats every 400 years of 146,097 days.
    cycles, place = divmod(year, 400)
    try:
        ordinal = datetime(place + 400, month, day).toordinal()  # noqa: DTZ001
    except ValueError as error:
        raise Unreadable(str(error)) from None
    return ordinal + (cycles - 1) * 146_097 - _EPOCH.toordinal()


def year_of_day(day: int) -> int:
    """Return the year of a day since 1970."""
    cycles, place = divmod(day + _EPOCH.toordinal() - 1, 146_097)
    return datetime.fromordinal(place + 1).year + cycles * 400


def region_offset(region: str, utc_s: int) -> int:
    """Return the offset from UTC (seconds) of a region, or of an offset in its place, at an instant.

    Raises:
        Unreadable: if there is no such region.
    """
    fixed = _REGION_OFFSET.fullmatch(region)
    if fixed is not None:
        return _offset(fixed["offset"] or "Z")
    zone = _zone(region)
    if zone is None:
        raise Unreadable(region)
    # The calendar repeats; what was before the first rule, and the last rule, hold for ever.
    if utc_s < _FIRST_S + DAY_S:
        utc_s = _FIRST_S + _CYCLE_S + utc_s % _CYCLE_S
    elif utc_s >= _END_S - DAY_S:
        utc_s = _END_S - 2 * _CYCLE_S + (utc_s - _END_S) % _CYCLE_S
    at = _EPOCH + timedelta(seconds=utc_s)
    offset = zone.fromutc(at.replace(tzinfo=zone)).utcoffset()
    return 0 if offset is None else offset // timedelta(seconds=1)


@lru_cache(maxsize=256)
def _zone(region: str) -> ZoneInfo | None:
    if region in _FOREIGN_REGIONS:
        return None
    try:
        return ZoneInfo(region)
    except (KeyError, ValueError, OSError):
        return None


def _clock(match: re.Match[str]) -> tuple[int, int]:
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise Unreadable(match[0])
    return (hour * 60 + minute) * 60 + second, int((match["fraction"] or "").ljust(9, "0"))


def _offset(text: str) -> int:
    if text in "Zz":
        return 0
    parts = [int(part) for part in text[1:].split(":")] + [0, 0]
    seconds = (parts[0] * 60 + parts[1]) * 60 + parts[2]
    if parts[1] > 59 or parts[2] > 59 or seconds > _MAX_OFFSET_S:
        raise Unreadable(text)
    return -seconds if text[0] == "-" else seconds


def _guess(text: str) -> tuple[int, int]:
    """Read an integer as s, ms, µs or ns since 1970, by its size."""
    if not _INTEGER.fullmatch(text) or len(text) > _MAX_DIGITS or not is_narrow(text):
        raise Unreadable(text)
    value = int(text)
    unit = 10**9
    for divisor in (1, 1_000, 1_000_000):
        if abs(value) < _GUESS_LIMIT * divisor:
            unit = divisor
            break
    seconds, rest = divmod(value, unit)
    if not _FIRST_DAY <= seconds // DAY_S <= _LAST_DAY:
        raise Unreadable(text)
    return seconds, rest * (10**9 // unit)
