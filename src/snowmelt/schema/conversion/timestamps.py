"""Conversion of dates, times and timestamps, and the parsers of their text (§5.4).

A text format is one of three documented sets of rules: Snowflake's classic Java client, Snowflake's
automatic detection, or Vertica's rules for COPY. `docs/reference/value-conversion.md` lists them. A
parsed timestamp is a number of seconds of local time, because its year may be out of the range of
`datetime`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from enum import Enum
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from snowmelt.errors import InvalidValue
from snowmelt.schema.chunk_types import Int64s, Mask, make_null_mask, to_contiguous_array
from snowmelt.schema.conversion.arrow_to_python import parse_arrow_zone
from snowmelt.schema.conversion.numbers import TRIMMED_CHARACTERS, is_bmp_text
from snowmelt.schema.types import (
    TIMESTAMP_TYPES,
    Column,
    LogicalType,
    TimestampTextFormat,
    wrong_type_error,
    wrong_value_error,
    year_range_error,
)

_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_NULL_TYPES = frozenset({("pandas", "NaTType"), ("pandas", "NAType")})
_MAX_ENUM_DEPTH = 8

# --- Conversion of NumPy and pandas values and of members of enumerations to plain values.


def to_plain_value(value: object) -> object:
    """Return the plain value of an enumeration member, `numpy.datetime64` or missing value.

    Other values are returned unchanged. `NaT` and `pandas.NA` become None. A `datetime64` becomes a date, a
    datetime, or ISO 8601 text if a datetime cannot represent it.
    """
    for _ in range(_MAX_ENUM_DEPTH):
        if not isinstance(value, Enum):
            break
        value = value.value
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            return None
        found = split_datetime64(value)
        if not has_time_of_day(value):
            return found[0].date() if found else format_datetime64(value.astype("datetime64[D]"))
        if found is None:
            return format_datetime64(value)
        clock, nanos = found
        if nanos % 1000 == 0:
            return clock.replace(microsecond=nanos // 1000)
        return f"{clock.isoformat()}.{nanos:09}"
    return None if is_missing(value) else value


def is_missing(value: object) -> bool:
    """Return True for a null of pandas or NumPy. Does not import these libraries."""
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    kind = type(value)
    return (kind.__module__.partition(".")[0], kind.__name__) in _NULL_TYPES


def split_datetime64(value: np.datetime64) -> tuple[datetime, int] | None:
    """Return the local time to the second, and its nanoseconds. None outside years 1 to 9999."""
    unit = np.datetime_data(value.dtype)[0]
    if unit not in {"ps", "fs", "as"}:
        # Convert any unit from days to nanoseconds exactly, in Python's integers.
        finer = unit if unit in _UNIT_NS else "s"
        value = value.astype(f"datetime64[{finer}]")
    else:
        finer, value = "ns", value.astype("datetime64[ns]")
    total = int(value.astype(np.int64)) * _UNIT_NS[finer]
    seconds, nanos = divmod(total, 10**9)
    try:
        return _EPOCH + timedelta(seconds=seconds), nanos
    except OverflowError:
        return None


def has_time_of_day(value: np.datetime64) -> bool:
    """Return True if a value is a point in time, not a day, month or year."""
    return np.datetime_data(value.dtype)[0] not in {"Y", "M", "W", "D"}


def format_datetime64(value: np.datetime64) -> str:
    """Format a timestamp in ISO 8601, which requires a sign before a year of more than four digits."""
    text = str(value)
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    year, rest = digits.split("-", 1)
    if len(year) > len("9999"):
        sign = sign or "+"
    return f"{sign}{year.rjust(4, '0')}-{rest}"


# --- Parsing of dates, times and timestamps, by one of three documented sets of rules.
# `JAVA` accepts the same text as Snowflake's classic Java client: ISO 8601 with a `T`, and
# integers. `AUTO` is Snowflake's automatic detection, for other streams and inserts. `VERTICA` is
# for COPY. `docs/reference/value-conversion.md` lists the forms of each. (Streaming v1, §5.4)

DAY_S = 86_400
_MAX_EPOCH_S = 31_536_000_000
_MAX_OFFSET_S = 18 * 3600
_MAX_DIGITS = 4_000
_MAX_SHOWN_CHARACTERS = 80
# Range of days in the wire format. Timestamps outside of it are invalid.
_FIRST_DAY, _LAST_DAY = -365_243_219_162, 365_241_780_471
_CYCLE_S = 146_097 * DAY_S
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - local clock times are counted from a local epoch
_FIRST_S, _END_S = -62_135_596_800, 253_402_300_800

_CLOCK = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{0,9}))?)?"
_OFFSET = r"(?P<offset>[Zz]|[+-][0-9]{2}(?::[0-9]{2}(?::[0-9]{2})?)?)"
_ISO_TIMESTAMP_PATTERN = re.compile(
    r"(?P<year>[0-9]{4}|-[0-9]{4,10}|\+[0-9]{5,10})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    rf"(?:[Tt]{_CLOCK}(?:{_OFFSET}(?:\[(?P<region>[A-Za-z0-9/_+\-:]+)\])?)?)?"
)
# Text in brackets that is not a region: an offset, which a name of UTC may precede.
_REGION_OFFSET_PATTERN = re.compile(
    r"(?:UTC|GMT|UT)?(?P<offset>[+-][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)|Z|UT"
)
# Zones that Python supports, but the official clients do not.
_FOREIGN_REGIONS = frozenset(
    {"EST", "MST", "HST", "ROC", "Factory", "posixrules", "localtime", "GMT+0", "GMT-0"}
)
_ISO_TIME_PATTERN = re.compile(rf"{_CLOCK}(?:{_OFFSET})?")
_INTEGER_PATTERN = re.compile(r"[+-]?\d+")
_HOURS_ONLY_OFFSET_CHARACTERS = 3

# Further forms of Snowflake's automatic detection. Hours, days and months may have one digit.
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?P<name>{'|'.join(_MONTHS)})"
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEKDAY = rf"(?P<weekday>{'|'.join(_WEEKDAYS)})"
_LOOSE_CLOCK = (
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,9}))?)?)?"
    r"(?:[ ]?(?P<half>am|pm))?"
)
# Names of UTC, which HTTP and mail use instead of an offset.
_LOOSE_OFFSET = r"(?:[ ]?(?P<offset>z|ut|utc|gmt|[+-]\d{2}(?::?\d{2})?))?"
_LOOSE_TIME = rf"{_LOOSE_CLOCK}{_LOOSE_OFFSET}"
_LOOSE_TIMESTAMP_PATTERNS = tuple(
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
_LOOSE_TIME_PATTERN = re.compile(_LOOSE_TIME, re.ASCII | re.IGNORECASE)
# Digits that may be a date (YYYYMMDD, with optional hhmm, hhmmss and milliseconds) or a count.
_COMPACT_TIMESTAMP_PATTERN = re.compile(
    r"(?P<year>19\d\d|20\d\d)(?P<month>0[1-9]|1[0-2])(?P<day>0[1-9]|[12]\d|3[01])"
    r"(?P<rest>(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d(?:\d{3})?)?)?"
)
_COMPACT_DATE_PATTERN = re.compile(r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})", re.ASCII)
# Minimum digits of a count of seconds. Fewer digits would mean a time before 3 March 1973, but are
# more often a year, a month, a date or a time of day.
_MIN_EPOCH_DIGITS = 9
_NOON_HOUR = 12


class TimestampSyntaxError(ValueError):
    """The text is not a date, time or timestamp. `reason` is None if its form is unknown."""

    def __init__(self, text: str, reason: str | None = None) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ParsedTimestamp:
    """Parsed text: seconds since 1970 in local time, and the offset or None."""

    local_s: int
    nanos: int
    offset_s: int | None


def parse_timestamp(text: str, forms: TimestampTextFormat) -> ParsedTimestamp:
    """Parse a date or a timestamp.

    Raises:
        TimestampSyntaxError: If the text has none of the forms, or its meaning is ambiguous.
    """
    text = text.strip(TRIMMED_CHARACTERS)
    match = _ISO_TIMESTAMP_PATTERN.fullmatch(text)
    if match is not None:
        return _parse_iso_match(match)
    if forms is TimestampTextFormat.JAVA:
        seconds, nanos = _parse_epoch_by_size(text)
        return ParsedTimestamp(seconds, nanos, 0)
    for form in _LOOSE_TIMESTAMP_PATTERNS:
        match = form.fullmatch(text)
        if match is not None:
            return _parse_loose_match(match)
    if forms is TimestampTextFormat.VERTICA:
        match = _COMPACT_DATE_PATTERN.fullmatch(text)
        if match is None:
            raise TimestampSyntaxError(text)
        days = days_since_epoch(int(match["year"]), int(match["month"]), int(match["day"]))
        return ParsedTimestamp(days * DAY_S, 0, None)
    seconds, nanos = _parse_unambiguous_epoch(text)
    return ParsedTimestamp(seconds, nanos, 0)


def parse_time(text: str, forms: TimestampTextFormat) -> tuple[int, int]:
    """Parse a time of day. Return seconds and nanoseconds. Drops an offset.

    Raises:
        TimestampSyntaxError: If the text has none of the forms, or its meaning is ambiguous.
    """
    text = text.strip(TRIMMED_CHARACTERS)
    match = _ISO_TIME_PATTERN.fullmatch(text)
    if match is None and forms is not TimestampTextFormat.JAVA:
        match = _LOOSE_TIME_PATTERN.fullmatch(text)
        if match is not None and match["minute"] is not None:
            _parse_loose_offset(match)
            return _parse_clock(match)
        if forms is TimestampTextFormat.VERTICA:
            raise TimestampSyntaxError(text)
        seconds, nanos = _parse_unambiguous_epoch(text)
        return seconds % DAY_S, nanos
    if match is None:
        seconds, nanos = _parse_epoch_by_size(text)
        return seconds % DAY_S, nanos
    offset = match["offset"]
    if offset is not None:
        if len(offset) == _HOURS_ONLY_OFFSET_CHARACTERS and forms is TimestampTextFormat.JAVA:
            raise TimestampSyntaxError(text)
        _parse_offset(offset)
    return _parse_clock(match)


def days_since_epoch(year: int, month: int, day: int) -> int:
    """Return days since 1970 in the proleptic Gregorian calendar, for any year.

    Raises:
        TimestampSyntaxError: If the day does not exist.
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


def region_offset_s(region: str, utc_s: int) -> int:
    """Return the UTC offset in seconds at an instant. `region` is a region name or an offset.

    Raises:
        TimestampSyntaxError: If the region does not exist.
    """
    fixed = _REGION_OFFSET_PATTERN.fullmatch(region)
    if fixed is not None:
        return _parse_offset(fixed["offset"] or "Z")
    zone = _load_zone(region)
    if zone is None:
        raise TimestampSyntaxError(region)
    # Look up an equivalent year: the calendar repeats every 400 years, and the zone's first and
    # last rules also apply to earlier and later years.
    if utc_s < _FIRST_S + DAY_S:
        utc_s = _FIRST_S + _CYCLE_S + utc_s % _CYCLE_S
    elif utc_s >= _END_S - DAY_S:
        utc_s = _END_S - 2 * _CYCLE_S + (utc_s - _END_S) % _CYCLE_S
    at = _EPOCH + timedelta(seconds=utc_s)
    offset = zone.fromutc(at.replace(tzinfo=zone)).utcoffset()
    return 0 if offset is None else offset // timedelta(seconds=1)


@lru_cache(maxsize=256)
def _load_zone(region: str) -> ZoneInfo | None:
    if region in _FOREIGN_REGIONS:
        return None
    try:
        return ZoneInfo(region)
    except (KeyError, ValueError, OSError):
        return None


def _parse_iso_match(match: re.Match[str]) -> ParsedTimestamp:
    year_text = match["year"]
    year = int(year_text)
    if year == 0 and year_text.startswith("-"):
        raise TimestampSyntaxError(match[0])
    local_s = days_since_epoch(year, int(match["month"]), int(match["day"])) * DAY_S
    if match["hour"] is None:
        return ParsedTimestamp(local_s, 0, None)
    seconds, nanos = _parse_clock(match)
    local_s += seconds
    if match["offset"] is None:
        return ParsedTimestamp(local_s, nanos, None)
    offset_s = _parse_offset(match["offset"])
    if match["region"] is None:
        return ParsedTimestamp(local_s, nanos, offset_s)
    # Keep the UTC time, with the region's offset.
    own = region_offset_s(match["region"], local_s - offset_s)
    return ParsedTimestamp(local_s - offset_s + own, nanos, own)


def _parse_loose_match(match: re.Match[str]) -> ParsedTimestamp:
    parts = match.groupdict()
    name = parts.get("name")
    month = int(parts["month"]) if name is None else _MONTHS.index(name.lower()) + 1
    day = days_since_epoch(int(match["year"]), month, int(match["day"]))
    weekday = parts.get("weekday")
    # 1 January 1970 was a Thursday.
    if weekday is not None and _WEEKDAYS.index(weekday.lower()) != (day + 3) % 7:
        raise TimestampSyntaxError(
            match[0], f"The day {match[0]!r} is not a {weekday}; remove the weekday"
        )
    if match["hour"] is None:
        return ParsedTimestamp(day * DAY_S, 0, None)
    seconds, nanos = _parse_clock(match)
    return ParsedTimestamp(day * DAY_S + seconds, nanos, _parse_loose_offset(match))


def _parse_clock(match: re.Match[str]) -> tuple[int, int]:
    hour, minute, second = (int(match[each] or 0) for each in ("hour", "minute", "second"))
    half = match.groupdict().get("half")
    if half is not None:
        if not 1 <= hour <= _NOON_HOUR:
            raise TimestampSyntaxError(match[0])
        hour = hour % _NOON_HOUR + (_NOON_HOUR if half.lower() == "pm" else 0)
    if hour > 23 or minute > 59 or second > 59:
        raise TimestampSyntaxError(match[0])
    return (hour * 60 + minute) * 60 + second, int((match["fraction"] or "").ljust(9, "0"))


def _parse_loose_offset(match: re.Match[str]) -> int | None:
    offset = match["offset"]
    if offset is None:
        return None
    if offset[0] not in "+-":
        return 0
    return _parse_offset(f"{offset[:3]}:{offset[3:].removeprefix(':') or '00'}")


def _parse_unambiguous_epoch(text: str) -> tuple[int, int]:
    """Parse an integer as a count since 1970, unless it is more likely a date, year or time."""
    if not _INTEGER_PATTERN.fullmatch(text):
        raise TimestampSyntaxError(text)
    digits = text.lstrip("+-")
    if len(digits) < _MIN_EPOCH_DIGITS or _COMPACT_TIMESTAMP_PATTERN.fullmatch(digits):
        raise TimestampSyntaxError(
            text,
            f"Ambiguous digits {text[:_MAX_SHOWN_CHARACTERS]!r}: a date, or seconds since 1970? Write a date "
            "as 2013-04-28, a timestamp as 2013-04-28 20:57:01",
        )
    return _parse_epoch_by_size(text)


def _parse_offset(text: str) -> int:
    if text in "Zz":
        return 0
    parts = [int(part) for part in text[1:].split(":")] + [0, 0]
    seconds = (parts[0] * 60 + parts[1]) * 60 + parts[2]
    if parts[1] > 59 or parts[2] > 59 or seconds > _MAX_OFFSET_S:
        raise TimestampSyntaxError(text)
    return -seconds if text[0] == "-" else seconds


def _parse_epoch_by_size(text: str) -> tuple[int, int]:
    """Parse an integer as s, ms, µs or ns since 1970, by its size."""
    if not _INTEGER_PATTERN.fullmatch(text) or len(text) > _MAX_DIGITS or not is_bmp_text(text):
        raise TimestampSyntaxError(text)
    value = int(text)
    unit = 10**9
    for divisor in (1, 1_000, 1_000_000):
        if abs(value) < _MAX_EPOCH_S * divisor:
            unit = divisor
            break
    seconds, rest = divmod(value, unit)
    if not _FIRST_DAY <= seconds // DAY_S <= _LAST_DAY:
        raise TimestampSyntaxError(text)
    return seconds, rest * (10**9 // unit)


_EPOCH_ORDINAL = _EPOCH.toordinal()
_SECOND = timedelta(seconds=1)
_MINUTE_S = 60
_TZ_BITS = 14
_TZ_BIAS = 1440
_ALLOWED_TYPES = "str, datetime.date, datetime.datetime"
_DATE_REASONS = {
    TimestampTextFormat.JAVA: "Not a valid value; use ISO 8601 such as 2013-04-28T20:57:01.123+09:00, or an "
    "integer as text",
    TimestampTextFormat.AUTO: "Not a valid date or timestamp; use 2013-04-28, 2013-04-28T20:57:01.123+09:00, "
    "2013-04-28 20:57:01, 04/28/2013, 28-Apr-2013 or Sun, 28 Apr 2013 20:57:01 +0900",
    TimestampTextFormat.VERTICA: "Not a valid date or timestamp; use 2013-04-28, 2013-04-28 20:57:01.123+09, "
    "20130428 or 04/28/2013",
}
_TIME_REASONS = {
    TimestampTextFormat.JAVA: "Not a valid time; use ISO 8601 such as 20:57:01.123, or an integer as text",
    TimestampTextFormat.AUTO: "Not a valid time; use 20:57:01.123 or 08:57:01 PM",
    TimestampTextFormat.VERTICA: "Not a valid time; use 20:57:01.123 or 08:57:01 PM",
}


@dataclass(frozen=True, slots=True)
class ResolvedTimestamp:
    """Point in time: seconds since 1970 in local time, and the offset."""

    local_s: int
    nanos: int
    offset_s: int


def convert_date(
    value: object, column: Column, row_index: int, *, forms: TimestampTextFormat
) -> int:
    """Convert a date, datetime or text to days since 1970."""
    if isinstance(value, datetime):
        value = _require_valid_datetime(value, column, row_index).date()
    if isinstance(value, date):
        return value.toordinal() - _EPOCH_ORDINAL
    if not isinstance(value, str):
        raise wrong_type_error(value, column, row_index, _ALLOWED_TYPES)
    day = _parse_value(value, column, row_index, forms).local_s // DAY_S
    if not -9999 <= year_of_day(day) <= 9999:
        raise year_range_error(column, row_index, value)
    return day


def convert_time(
    value: object, column: Column, row_index: int, *, forms: TimestampTextFormat
) -> int:
    """Convert a time of day to units of the column's scale, truncated."""
    if isinstance(value, time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        nanos = value.microsecond * 1000 + getattr(value, "nanosecond", 0)
        return scale_timestamp(seconds, nanos, column.scale or 0)
    if not isinstance(value, str):
        raise wrong_type_error(value, column, row_index, "str, datetime.time")
    try:
        seconds, nanos = parse_time(value, forms)
    except TimestampSyntaxError as error:
        reason = error.reason or _TIME_REASONS[forms]
        raise wrong_value_error(column, row_index, reason) from None
    return scale_timestamp(seconds, nanos, column.scale or 0)


def convert_timestamp(
    value: object,
    column: Column,
    row_index: int,
    *,
    zone: tzinfo | None,
    forms: TimestampTextFormat,
) -> int:
    """Convert to the stored value of a TIMESTAMP_*: scaled, floored, for TZ with the offset packed.

    If `zone` is None, local times without a zone stay unchanged.
    """
    instant = _resolve_value(value, column, zone, row_index, forms)
    scale = column.scale or 0
    if column.kind is LogicalType.TIMESTAMP_NTZ:
        return scale_timestamp(instant.local_s, instant.nanos, scale)
    since_epoch = scale_timestamp(instant.local_s - instant.offset_s, instant.nanos, scale)
    if column.kind is LogicalType.TIMESTAMP_LTZ:
        return since_epoch
    return (since_epoch << _TZ_BITS) + to_offset_minutes(instant.offset_s) + _TZ_BIAS


def scale_timestamp(seconds: int, nanos: int, scale: int) -> int:
    """Convert seconds and nanoseconds (not negative) to units of 10**-scale s, floored."""
    return int(seconds * 10**scale + nanos // 10 ** (9 - scale))


def to_offset_minutes(offset_s: int) -> int:
    """Convert an offset to minutes. Truncates seconds toward zero."""
    return offset_s // _MINUTE_S if offset_s >= 0 else -(-offset_s // _MINUTE_S)


def resolve_local_time(
    local_s: int, nanos: int, zone: tzinfo | None, fold: int
) -> ResolvedTimestamp:
    """Return a local time with its offset in a zone.

    In a gap, the time moves forward. In an overlap, the earlier offset applies unless `fold` is 1.
    Without a zone, the time stays unchanged.
    """
    if zone is None:
        return ResolvedTimestamp(local_s, nanos, 0)
    local = _EPOCH + timedelta(seconds=local_s)
    before = _utc_offset_s(local.replace(tzinfo=zone, fold=0))
    after = _utc_offset_s(local.replace(tzinfo=zone, fold=1))
    if before < after:
        return ResolvedTimestamp(local_s + after - before, nanos, after)
    return ResolvedTimestamp(local_s, nanos, after if fold else before)


def _resolve_value(
    value: object, column: Column, zone: tzinfo | None, row_index: int, forms: TimestampTextFormat
) -> ResolvedTimestamp:
    if isinstance(value, datetime):
        value = _require_valid_datetime(value, column, row_index)
        nanos = value.microsecond * 1000 + getattr(value, "nanosecond", 0)
        seconds = (value.replace(tzinfo=None, microsecond=0) - _EPOCH) // _SECOND
        if zone is None:
            return ResolvedTimestamp(seconds, nanos, 0)
        if value.utcoffset() is None:
            return resolve_local_time(seconds, nanos, zone, value.fold)
        return ResolvedTimestamp(seconds, nanos, _utc_offset_s(value))
    if isinstance(value, date):
        return resolve_local_time((value.toordinal() - _EPOCH_ORDINAL) * DAY_S, 0, zone, 0)
    if not isinstance(value, str):
        raise wrong_type_error(value, column, row_index, _ALLOWED_TYPES)
    moment = _parse_value(value, column, row_index, forms)
    if not 1 <= year_of_day(moment.local_s // DAY_S) <= 9999:
        raise year_range_error(column, row_index, value)
    if moment.offset_s is not None:
        return ResolvedTimestamp(moment.local_s, moment.nanos, moment.offset_s)
    return resolve_local_time(moment.local_s, moment.nanos, zone, 0)


def _parse_value(
    value: str, column: Column, row_index: int, forms: TimestampTextFormat
) -> ParsedTimestamp:
    try:
        return parse_timestamp(value, forms)
    except TimestampSyntaxError as error:
        reason = error.reason or _DATE_REASONS[forms]
        raise wrong_value_error(column, row_index, reason) from None


def _require_valid_datetime(value: datetime, column: Column, row_index: int) -> datetime:
    """Reject NaT, which has the type datetime but no fields."""
    # NaT is unequal to itself. `object` avoids an error of type checkers for this comparison.
    same: object = value
    if same != value:
        raise wrong_value_error(column, row_index, "Not a date or time: it has no fields")
    return value


def _utc_offset_s(value: datetime) -> int:
    offset = value.utcoffset()
    return 0 if offset is None else offset // _SECOND


# --- Range of dates and timestamps that every documented reader can represent.

LIMITED_TYPES = TIMESTAMP_TYPES | {LogicalType.DATE}
"""Types whose stored form has a larger range than readers support."""

_FIRST_INSTANT_S = _FIRST_S + DAY_S
_SECOND_US = 1_000_000


def timestamp_limits_s(kind: LogicalType) -> tuple[int, int]:
    """Return the limits of timestamps of a type: first second since 1970, and exclusive end."""
    return _FIRST_S if kind is LogicalType.TIMESTAMP_NTZ else _FIRST_INSTANT_S, _END_S


def describe_limits(kind: LogicalType) -> str:
    """Return the range of a type for messages."""
    if kind is LogicalType.DATE:
        return "0001-01-01 to 9999-12-31"
    if kind is LogicalType.TIMESTAMP_NTZ:
        return "0001-01-01 00:00:00 to 9999-12-31 23:59:59.999999999"
    return "0001-01-02 00:00:00 to 9999-12-31 23:59:59.999999999 in UTC"


def find_range_error(
    stored: int, column: Column, row_index: int, value: object
) -> InvalidValue | None:
    """Return the error if a stored date or timestamp is out of range, or None.

    Args:
        stored: The value as a chunk stores it.
        column: A column of one of the types in `LIMITED_TYPES`.
        row_index: The row's position, for the message.
        value: The user's value, for the message.
    """
    kind = column.kind
    if kind is LogicalType.DATE:
        seconds, local_s = stored * DAY_S, stored * DAY_S
        first, end = _FIRST_S, _END_S
    else:
        units, offset_s = stored, 0
        if kind is LogicalType.TIMESTAMP_TZ:
            offset_s = ((stored & ((1 << _TZ_BITS) - 1)) - _TZ_BIAS) * 60
            units = stored >> _TZ_BITS
        seconds = units // 10 ** (column.scale or 0)
        local_s = seconds + offset_s
        first, end = timestamp_limits_s(kind)
    if first <= seconds < end and _FIRST_S <= local_s < _END_S:
        return None
    if first == _FIRST_S:
        return year_range_error(column, row_index, str(value)[:_MAX_SHOWN_CHARACTERS])
    return instant_range_error(column, row_index, _format_utc(seconds))


def instant_range_error(column: Column, row_index: int, shown: str) -> InvalidValue:
    """Return the error for a timestamp that is out of the range of readers."""
    what = "Date" if column.kind is LogicalType.DATE else "Timestamp"
    return wrong_value_error(
        column,
        row_index,
        f"{what} out of range: expected {describe_limits(column.kind)}, got {shown}. Use a time "
        "within that range, NULL, or a column of type TIMESTAMP_NTZ",
    )


def describe_unrepresentable_timestamp(value: object) -> str | None:
    """Describe an Arrow timestamp of a known zone that Python's `datetime` cannot hold.

    Return None for any other value.
    """
    if not isinstance(value, pa.TimestampScalar) or value.type.tz is None:
        return None
    known = parse_arrow_zone(value.type.tz) is not None
    return f"{value.value} {value.type.unit} since 1970 in UTC" if known else None


def are_timestamps_in_range(counts: Int64s, digits: int, kind: LogicalType) -> bool:
    """Return True if all timestamps (in 10**-digits s since 1970) are within the limits."""
    first, end = timestamp_limits_s(kind)
    # At nine digits the limits exceed 64 bits, so compare Python integers.
    unit: int = 10**digits
    return first * unit <= int(counts.min()) and int(counts.max()) < end * unit


def out_of_range_mask(
    column: Column, native_arrays: Sequence[pa.Array | pa.ChunkedArray]
) -> Mask | None:
    """Return a mask of a native column's values that are out of range, or None if there are none.

    Args:
        column: Any column.
        native_arrays: Its native arrays, including companions.
    """
    if column.kind not in LIMITED_TYPES:
        return None
    own = to_contiguous_array(native_arrays[0])
    if own.null_count == len(own):
        return None
    if column.kind is LogicalType.DATE:
        seconds = own.view("int32").fill_null(0).to_numpy().astype(np.int64) * DAY_S
        outside = (seconds < _FIRST_S) | (seconds >= _END_S)
    else:
        micros = own.view("int64").fill_null(0).to_numpy()
        first, end = timestamp_limits_s(column.kind)
        outside = (micros < first * _SECOND_US) | (micros >= end * _SECOND_US)
        if column.kind is LogicalType.TIMESTAMP_TZ:
            offsets = (
                to_contiguous_array(native_arrays[-1]).fill_null(0).to_numpy().astype(np.int64)
            )
            local = (
                np.clip(micros, 2 * first * _SECOND_US, 2 * end * _SECOND_US)
                + offsets * 60 * _SECOND_US
            )
            outside |= (local < _FIRST_S * _SECOND_US) | (local >= _END_S * _SECOND_US)
    if not outside.any():
        return None
    if own.null_count:
        outside &= ~make_null_mask(own)
    return outside if outside.any() else None


def _format_utc(seconds: int) -> str:
    """Format a UTC time, even one that Python cannot represent."""
    try:
        return f"{_EPOCH + timedelta(seconds=seconds)} in UTC"
    except OverflowError:
        return f"a time {'after year 9999' if seconds > 0 else 'before year 1'} in UTC"
