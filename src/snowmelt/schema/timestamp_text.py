"""Text into dates, times and timestamps, by one of three documented rules.

`JAVA` is what Snowflake's classic Java client reads: ISO 8601 with a `T`, and integers. `AUTO` is
Snowflake's automatic detection, for everything else that streams or inserts. `VERTICA` is for COPY.
`docs/sdk-values.md` lists the forms of each. Years go beyond those of `datetime`, so a timestamp is
counted in seconds of its naive clock. (Streaming v1, §5.4)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo

from snowmelt.schema.numbers import BLANKS, is_narrow

DAY_S = 86_400
_GUESS_LIMIT = 31_536_000_000
_MAX_OFFSET_S = 18 * 3600
_MAX_DIGITS = 4_000
_MAX_SHOWN = 80
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

# The other forms of Snowflake's automatic detection. Hours, days and months may have one digit.
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?P<name>{'|'.join(_MONTHS)})"
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEKDAY = rf"(?P<weekday>{'|'.join(_WEEKDAYS)})"
_LOOSE_CLOCK = (
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,9}))?)?)?"
    r"(?:[ ]?(?P<half>am|pm))?"
)
# A name of UTC is what HTTP and mail write in the place of an offset.
_LOOSE_OFFSET = r"(?:[ ]?(?P<offset>z|ut|utc|gmt|[+-]\d{2}(?::?\d{2})?))?"
_LOOSE_TIME = rf"{_LOOSE_CLOCK}{_LOOSE_OFFSET}"
_LOOSE_TIMESTAMPS = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        # 2026-01-31 12:00:00.5 +0100
        rf"(?P<year>\d{{4}})-(?P<month>\d{{1,2}})-(?P<day>\d{{1,2}})(?:(?:t|[ ]+){_LOOSE_TIME})?",
        # 1/31/2026 12:00
        rf"(?P<month>\d{{1,2}})/(?P<day>\d{{1,2}})/(?P<year>\d{{4}})(?:[ ]+{_LOOSE_TIME})?",
        # Sat, 31 Jan 2026 12:00:00 +0100
        rf"(?:{_WEEKDAY},?[ ])?(?P<day>\d{{1,2}})[ ]{_MONTH}[ ](?P<year>\d{{4}})(?:[ ]+{_LOOSE_TIME})?",
        # 31-Jan-2026
        rf"(?P<day>\d{{1,2}})-{_MONTH}-(?P<year>\d{{4}})(?:[ ]+{_LOOSE_TIME})?",
        # Sat Jan 31 12:00:00 +0100 2026
        rf"{_WEEKDAY}[ ]{_MONTH}[ ]+(?P<day>\d{{1,2}})[ ]{_LOOSE_TIME}[ ](?P<year>\d{{4}})",
        # Sat Jan 31 2026 12:00:00 +0100
        rf"{_WEEKDAY}[ ]{_MONTH}[ ]+(?P<day>\d{{1,2}})[ ](?P<year>\d{{4}})[ ]{_LOOSE_TIME}",
    )
)
_LOOSE_TIME_ALONE = re.compile(_LOOSE_TIME, re.ASCII | re.IGNORECASE)
# YYYYMMDD, also with hhmm, hhmmss and milliseconds: a calendar's digits, or a count of seconds?
_COMPACT = re.compile(
    r"(?P<year>19\d\d|20\d\d)(?P<month>0[1-9]|1[0-2])(?P<day>0[1-9]|[12]\d|3[01])"
    r"(?P<rest>(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d(?:\d{3})?)?)?"
)
_COMPACT_DATE = re.compile(r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})", re.ASCII)
# A count of seconds with fewer digits is before 3 March 1973; it is more often a year, a month,
# a day of the calendar or a time of day.
_LEAST_EPOCH_DIGITS = 9
_NOON = 12


class TextForms(StrEnum):
    """Which texts are dates, times and timestamps."""

    JAVA = "java"
    AUTO = "auto"
    VERTICA = "vertica"


class TimestampSyntaxError(ValueError):
    """The text is no date, time or timestamp; `reason` says why, None where it has no known form."""

    def __init__(self, text: str, reason: str | None = None) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ParsedTimestamp:
    """A parsed text: seconds of the naive clock since 1970; no offset if none was given."""

    local_s: int
    nanos: int
    offset_s: int | None


def parse_timestamp(text: str, forms: TextForms) -> ParsedTimestamp:
    """Parse a date or a timestamp.

    Raises:
        TimestampSyntaxError: If the text has none of the forms, or its meaning is ambiguous.
    """
    text = text.strip(BLANKS)
    match = _MOMENT.fullmatch(text)
    if match is not None:
        return _iso(match)
    if forms is TextForms.JAVA:
        seconds, nanos = _guess(text)
        return ParsedTimestamp(seconds, nanos, 0)
    for form in _LOOSE_TIMESTAMPS:
        match = form.fullmatch(text)
        if match is not None:
            return _loose(match)
    if forms is TextForms.VERTICA:
        match = _COMPACT_DATE.fullmatch(text)
        if match is None:
            raise TimestampSyntaxError(text)
        days = day_of(int(match["year"]), int(match["month"]), int(match["day"]))
        return ParsedTimestamp(days * DAY_S, 0, None)
    seconds, nanos = _sure_guess(text)
    return ParsedTimestamp(seconds, nanos, 0)


def parse_time(text: str, forms: TextForms) -> tuple[int, int]:
    """Parse a time of day; return seconds and nanoseconds. An offset is dropped.

    Raises:
        TimestampSyntaxError: If the text has none of the forms, or its meaning is ambiguous.
    """
    text = text.strip(BLANKS)
    match = _TIME.fullmatch(text)
    if match is None and forms is not TextForms.JAVA:
        match = _LOOSE_TIME_ALONE.fullmatch(text)
        if match is not None and match["minute"] is not None:
            _loose_offset(match)
            return _loose_clock(match)
        if forms is TextForms.VERTICA:
            raise TimestampSyntaxError(text)
        seconds, nanos = _sure_guess(text)
        return seconds % DAY_S, nanos
    if match is None:
        seconds, nanos = _guess(text)
        return seconds % DAY_S, nanos
    offset = match["offset"]
    if offset is not None:
        if len(offset) == _HOURS_ONLY and forms is TextForms.JAVA:
            raise TimestampSyntaxError(text)
        _offset(offset)
    return _clock(match)


def day_of(year: int, month: int, day: int) -> int:
    """Return days since 1970 in the proleptic Gregorian calendar, for any year.

    Raises:
        TimestampSyntaxError: if there is no such day.
    """
    # The calendar repeats every 400 years of 146,097 days.
    cycles, place = divmod(year, 400)
    try:
        ordinal = datetime(place + 400, month, day).toordinal()  # noqa: DTZ001
    except ValueError as error:
        raise TimestampSyntaxError(str(error)) from None
    return ordinal + (cycles - 1) * 146_097 - _EPOCH.toordinal()


def year_of_day(day: int) -> int:
    """Return the year of a day since 1970."""
    cycles, place = divmod(day + _EPOCH.toordinal() - 1, 146_097)
    return datetime.fromordinal(place + 1).year + cycles * 400


def region_offset(region: str, utc_s: int) -> int:
    """Return the offset from UTC (seconds) of a region, or of an offset in its place, at an instant.

    Raises:
        TimestampSyntaxError: if there is no such region.
    """
    fixed = _REGION_OFFSET.fullmatch(region)
    if fixed is not None:
        return _offset(fixed["offset"] or "Z")
    zone = _zone(region)
    if zone is None:
        raise TimestampSyntaxError(region)
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


def _iso(match: re.Match[str]) -> ParsedTimestamp:
    year_text = match["year"]
    year = int(year_text)
    if year == 0 and year_text.startswith("-"):
        raise TimestampSyntaxError(match[0])
    local_s = day_of(year, int(match["month"]), int(match["day"])) * DAY_S
    if match["hour"] is None:
        return ParsedTimestamp(local_s, 0, None)
    seconds, nanos = _clock(match)
    local_s += seconds
    if match["offset"] is None:
        return ParsedTimestamp(local_s, nanos, None)
    offset_s = _offset(match["offset"])
    if match["region"] is None:
        return ParsedTimestamp(local_s, nanos, offset_s)
    # The instant is kept and shown in the region's own offset.
    own = region_offset(match["region"], local_s - offset_s)
    return ParsedTimestamp(local_s - offset_s + own, nanos, own)


def _loose(match: re.Match[str]) -> ParsedTimestamp:
    parts = match.groupdict()
    name = parts.get("name")
    month = int(parts["month"]) if name is None else _MONTHS.index(name.lower()) + 1
    day = day_of(int(match["year"]), month, int(match["day"]))
    weekday = parts.get("weekday")
    # 1 January 1970 was a Thursday.
    if weekday is not None and _WEEKDAYS.index(weekday.lower()) != (day + 3) % 7:
        raise TimestampSyntaxError(
            match[0], f"The day {match[0]!r} names is no {weekday}; leave the weekday out"
        )
    if match["hour"] is None:
        return ParsedTimestamp(day * DAY_S, 0, None)
    seconds, nanos = _loose_clock(match)
    return ParsedTimestamp(day * DAY_S + seconds, nanos, _loose_offset(match))


def _loose_clock(match: re.Match[str]) -> tuple[int, int]:
    hour, minute, second = int(match["hour"]), int(match["minute"] or 0), int(match["second"] or 0)
    half = match["half"]
    if half is not None:
        if not 1 <= hour <= _NOON:
            raise TimestampSyntaxError(match[0])
        hour = hour % _NOON + (_NOON if half.lower() == "pm" else 0)
    if hour > 23 or minute > 59 or second > 59:
        raise TimestampSyntaxError(match[0])
    return (hour * 60 + minute) * 60 + second, int((match["fraction"] or "").ljust(9, "0"))


def _loose_offset(match: re.Match[str]) -> int | None:
    offset = match["offset"]
    if offset is None:
        return None
    if offset[0] not in "+-":
        return 0
    return _offset(f"{offset[:3]}:{offset[3:].removeprefix(':') or '00'}")


def _sure_guess(text: str) -> tuple[int, int]:
    """Read an integer since 1970 unless it is more likely a date, a year or a time of day."""
    if not _INTEGER.fullmatch(text):
        raise TimestampSyntaxError(text)
    digits = text.lstrip("+-")
    if len(digits) < _LEAST_EPOCH_DIGITS or _COMPACT.fullmatch(digits):
        raise TimestampSyntaxError(
            text,
            f"Ambiguous digits {text[:_MAX_SHOWN]!r}: a date, or seconds since 1970? Write a date "
            "as 2013-04-28, a timestamp as 2013-04-28 20:57:01",
        )
    return _guess(text)


def _clock(match: re.Match[str]) -> tuple[int, int]:
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise TimestampSyntaxError(match[0])
    return (hour * 60 + minute) * 60 + second, int((match["fraction"] or "").ljust(9, "0"))


def _offset(text: str) -> int:
    if text in "Zz":
        return 0
    parts = [int(part) for part in text[1:].split(":")] + [0, 0]
    seconds = (parts[0] * 60 + parts[1]) * 60 + parts[2]
    if parts[1] > 59 or parts[2] > 59 or seconds > _MAX_OFFSET_S:
        raise TimestampSyntaxError(text)
    return -seconds if text[0] == "-" else seconds


def _guess(text: str) -> tuple[int, int]:
    """Read an integer as s, ms, µs or ns since 1970, by its size."""
    if not _INTEGER.fullmatch(text) or len(text) > _MAX_DIGITS or not is_narrow(text):
        raise TimestampSyntaxError(text)
    value = int(text)
    unit = 10**9
    for divisor in (1, 1_000, 1_000_000):
        if abs(value) < _GUESS_LIMIT * divisor:
            unit = divisor
            break
    seconds, rest = divmod(value, unit)
    if not _FIRST_DAY <= seconds // DAY_S <= _LAST_DAY:
        raise TimestampSyntaxError(text)
    return seconds, rest * (10**9 // unit)
