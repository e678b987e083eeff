"""SQL timestamps with their written precision and UTC offset: parsing, arithmetic and formatting."""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from snowmelt.select.dialect import Dialect

if TYPE_CHECKING:
    import datetime as dt

NANOS_PER_SECOND = 1_000_000_000
_MINUTE_NANOS = 60 * NANOS_PER_SECOND
_HOUR_NANOS = 60 * _MINUTE_NANOS
_DAY_NANOS = 24 * _HOUR_NANOS
_MAX_FRACTION_DIGITS = 9
_MONTH_ABBREVIATIONS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"

DATE_PARTS = frozenset(
    "year month day hour minute second timezone_hour timezone_minute week dow doy".split()  # noqa: SIM905
)
"""Parts that `extract_date_part` accepts: `doy` starts at 1, `dow` at 0 (Sunday)."""

_DATE_PART_NANOS = {
    "week": 7 * _DAY_NANOS,
    "day": _DAY_NANOS,
    "hour": _HOUR_NANOS,
    "minute": _MINUTE_NANOS,
    "second": NANOS_PER_SECOND,
}

_UNKNOWN_OFFSETS = (None, "-00", "-0000", "-00:00")
_OFFSET_PATTERN = r"(Z|[+-]\d\d(?::?\d\d)?)?"
_ISO_PATTERN = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?"
    + _OFFSET_PATTERN
    + r"|T)?|T)?|T)?",
    re.ASCII,
)
_COMPACT_ISO_PATTERN = re.compile(
    r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(?:(\d\d)(?:\.(\d+))?)?" + _OFFSET_PATTERN + r"|T)?",
    re.ASCII,
)
_LENIENT_PATTERN = re.compile(
    r"(\d{4})[:-]*(\d\d)[:-]*(\d\d)[:-]*(?:[T \t]*(\d\d)[:-]*(\d\d)[:-]*(\d\d)[:-]*)?", re.ASCII
)
_WHITESPACE = " \t\r\n\v\f"


class TimestampPrecision(IntEnum):
    """Precision of a timestamp: the smallest part that was written."""

    YEAR = 1
    MONTH = 2
    DAY = 3
    MINUTE = 4
    SECOND = 5


_DATE_PART_PRECISION = {
    "year": TimestampPrecision.YEAR,
    "month": TimestampPrecision.MONTH,
    "week": TimestampPrecision.DAY,
    "day": TimestampPrecision.DAY,
    "hour": TimestampPrecision.MINUTE,
    "minute": TimestampPrecision.MINUTE,
    "second": TimestampPrecision.SECOND,
}


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Timestamp: an instant and its display format.

    `instant` is in nanoseconds since 1970-01-01T00:00Z. `offset_minutes` is in minutes east of UTC;
    None means unknown and is treated as UTC. `fraction_digits` is the number of digits after the decimal
    point of the second. SQL compares only the instant; `==` compares all attributes.
    """

    instant: int
    offset_minutes: int | None = 0
    precision: TimestampPrecision = TimestampPrecision.SECOND
    fraction_digits: int = 0

    @property
    def local_datetime(self) -> LocalDateTime:
        """Date and time at the offset of the timestamp."""
        return LocalDateTime.from_epoch_nanos(
            self.instant + (self.offset_minutes or 0) * _MINUTE_NANOS
        )


@dataclass(frozen=True, slots=True)
class LocalDateTime:
    """Date and time of day without an offset."""

    year: int
    month: int
    day: int
    hour: int = 0
    minute: int = 0
    second: int = 0
    nanos: int = 0

    @classmethod
    def from_epoch_nanos(cls, epoch_nanos: int) -> LocalDateTime:
        """Return the date and time `epoch_nanos` nanoseconds after 1970-01-01T00:00."""
        days, rest = divmod(epoch_nanos, _DAY_NANOS)
        hour, rest = divmod(rest, _HOUR_NANOS)
        minute, rest = divmod(rest, _MINUTE_NANOS)
        return cls(*epoch_days_to_date(days), hour, minute, *divmod(rest, NANOS_PER_SECOND))

    @property
    def epoch_days(self) -> int:
        """Days since 1970-01-01."""
        return date_to_epoch_days(self.year, self.month, self.day)

    @property
    def epoch_nanos(self) -> int:
        """Nanoseconds since 1970-01-01T00:00."""
        seconds = self.hour * 3600 + self.minute * 60 + self.second
        return self.epoch_days * _DAY_NANOS + seconds * NANOS_PER_SECOND + self.nanos


def date_to_epoch_days(year: int, month: int, day: int) -> int:
    """Return the number of days from 1970-01-01 to a date of the Gregorian calendar."""
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def epoch_days_to_date(epoch_days: int) -> tuple[int, int, int]:
    """Return year, month and day of the date `epoch_days` days after 1970-01-01."""
    era, of_era = divmod(epoch_days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    number = month + 3 if month < 10 else month - 9
    return year + era * 400 + (number <= 2), number, day


def parse_iso_timestamp(text: str) -> Timestamp | None:
    """Parse `2007T`, `2007-02T`, `2007-02-23[T]`, `2007-02-23T12:14[:33[.079]][Z|-08:00]`.

    A space is accepted in place of the T, and surrounding whitespace is ignored. The form without
    separators (`20070223T121433Z`) is also accepted. Digits of a second after the ninth are dropped.

    Returns:
        None if the text is not a timestamp.
    """
    stripped = text.strip(_WHITESPACE)
    match = _ISO_PATTERN.fullmatch(stripped) or _COMPACT_ISO_PATTERN.fullmatch(stripped)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, offset = match.groups()
    local = _make_local_datetime(
        year, month or "1", day or "1", hour or "0", minute or "0", second or "0"
    )
    minutes = _parse_offset_minutes(offset)
    if local is None or (minutes is None and offset not in _UNKNOWN_OFFSETS):
        return None
    digits = (fraction or "")[:_MAX_FRACTION_DIGITS]
    precision = sum(part is not None for part in (year, month, day, hour, second))
    nanos = int(digits.ljust(_MAX_FRACTION_DIGITS, "0"))
    instant = local.epoch_nanos + nanos - (minutes or 0) * _MINUTE_NANOS
    return Timestamp(instant, minutes, TimestampPrecision(precision), len(digits))


def parse_lenient_timestamp(text: str) -> Timestamp | None:
    """Parse `yyyy mm dd [hh mi ss]` with optional `:` or `-` between parts and space or T before hh.

    Other texts are parsed by `parse_iso_timestamp`.

    Returns:
        None if the text is not a timestamp.
    """
    match = _LENIENT_PATTERN.fullmatch(text.strip(_WHITESPACE))
    if match is None:
        return parse_iso_timestamp(text)
    local = _make_local_datetime(*(part or "0" for part in match.groups()))
    if local is None:
        return None
    precision = TimestampPrecision.DAY if match.group(4) is None else TimestampPrecision.SECOND
    return Timestamp(local.epoch_nanos, 0, precision)


def _make_local_datetime(
    year: str, month: str, day: str, hour: str, minute: str, second: str
) -> LocalDateTime | None:
    local = LocalDateTime(int(year), int(month), int(day), int(hour), int(minute), int(second))
    if local.year < 1 or not 1 <= local.month <= 12:
        return None
    if not 1 <= local.day <= monthrange(local.year, local.month)[1]:
        return None
    return local if local.hour < 24 and local.minute < 60 and local.second < 60 else None


def _parse_offset_minutes(offset_text: str | None) -> int | None:
    """Return the offset in minutes. Return None if it is missing, unknown (`-00:00`) or invalid."""
    if offset_text is None or offset_text == "Z":
        return None if offset_text is None else 0
    hours, minutes = int(offset_text[1:3]), int(offset_text[3:].lstrip(":") or "0")
    if hours > 23 or minutes > 59 or (offset_text[0] == "-" and hours == minutes == 0):
        return None
    return (hours * 60 + minutes) * (-1 if offset_text[0] == "-" else 1)


def timestamp_from_datetime(value: dt.datetime, *, fraction_digits: int = 0) -> Timestamp:
    """Convert an aware datetime, truncated to `fraction_digits` digits of its second (at most 6)."""
    offset = value.utcoffset()
    seconds = date_to_epoch_days(value.year, value.month, value.day) * 86_400
    seconds += value.hour * 3600 + value.minute * 60 + value.second
    minutes = 0 if offset is None else int(offset.total_seconds() // 60)
    step = 10 ** (_MAX_FRACTION_DIGITS - fraction_digits)
    nanos = value.microsecond * 1000 // step * step
    instant = seconds * NANOS_PER_SECOND + nanos - minutes * _MINUTE_NANOS
    return Timestamp(instant, minutes, TimestampPrecision.SECOND, fraction_digits)


def extract_date_part(part: str, value: Timestamp) -> int:
    """Return a part (`DATE_PARTS`) at the offset of the timestamp."""
    if part in {"timezone_hour", "timezone_minute"}:
        minutes = value.offset_minutes or 0
        hours, rest = divmod(abs(minutes), 60)
        return (hours if part == "timezone_hour" else rest) * (-1 if minutes < 0 else 1)
    local = value.local_datetime
    if part == "week":
        return _iso_week_number(local.epoch_days)
    if part == "dow":
        return (local.epoch_days + 4) % 7
    if part == "doy":
        return local.epoch_days - date_to_epoch_days(local.year, 1, 1) + 1
    return int(getattr(local, part))


def _iso_week_number(epoch_days: int) -> int:
    thursday = epoch_days - (epoch_days + 3) % 7 + 3
    return (thursday - date_to_epoch_days(epoch_days_to_date(thursday)[0], 1, 1)) // 7 + 1


def date_add(
    part: str, count: int, value: Timestamp, *, keep_month_end: bool = False
) -> Timestamp | None:
    """Return the timestamp `count` units of `part` later.

    `part` is year, month, week, day, hour, minute or second. Years and months keep the day of the
    month, or use the last day of a shorter month. With `keep_month_end`, the last day of a month stays
    the last day (2000-02-29 plus one month is 2000-03-31). The precision is at least that of `part`.

    Returns:
        None if the result is outside the years 1 to 9999.
    """
    precision = max(value.precision, _DATE_PART_PRECISION[part])
    if part in {"year", "month"}:
        shift = _month_shift_nanos(
            value, count * (12 if part == "year" else 1), keep_month_end=keep_month_end
        )
    else:
        shift = count * _DATE_PART_NANOS[part]
    if shift is None or abs(shift) > 10_000 * 366 * _DAY_NANOS:
        return None
    moved = replace(value, instant=value.instant + shift, precision=precision)
    return moved if 1 <= moved.local_datetime.year <= 9999 else None


def _month_shift_nanos(value: Timestamp, months: int, *, keep_month_end: bool) -> int | None:
    local = value.local_datetime
    year, month = divmod(local.year * 12 + local.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        return None
    last = monthrange(year, month + 1)[1]
    stays_last = keep_month_end and local.day == monthrange(local.year, local.month)[1]
    day = last if stays_last else min(local.day, last)
    return (date_to_epoch_days(year, month + 1, day) - local.epoch_days) * _DAY_NANOS


def date_diff(part: str, start: Timestamp, end: Timestamp) -> int:
    """Return the number of whole units elapsed from `start` to `end`, negative if `end` is earlier.

    `part` is as for `date_add`. A day is 24 hours. A month has elapsed when its day and time are
    reached again (in UTC).
    """
    if part in _DATE_PART_NANOS:
        passed = abs(end.instant - start.instant) // _DATE_PART_NANOS[part]
        return passed if end.instant >= start.instant else -passed
    if end.instant < start.instant:
        return -date_diff(part, end, start)
    first, last = (
        LocalDateTime.from_epoch_nanos(start.instant),
        LocalDateTime.from_epoch_nanos(end.instant),
    )
    months = (last.year - first.year) * 12 + last.month - first.month
    months -= (last.day, end.instant % _DAY_NANOS) < (first.day, start.instant % _DAY_NANOS)
    return months if part == "month" else months // 12


def calendar_diff(part: str, start: Timestamp, end: Timestamp) -> int:
    """Return the difference of calendar years, months or days in UTC; other parts as `date_diff`."""
    first, last = (
        LocalDateTime.from_epoch_nanos(start.instant),
        LocalDateTime.from_epoch_nanos(end.instant),
    )
    if part == "year":
        return last.year - first.year
    if part == "month":
        return (last.year - first.year) * 12 + last.month - first.month
    if part == "day":
        return last.epoch_days - first.epoch_days
    return date_diff(part, start, end)


def timestamp_to_string(value: Timestamp, dialect: Dialect) -> str:
    """Format a timestamp as the dialect's output and CAST do."""
    local = value.local_datetime
    date = f"{local.year:04}-{local.month:02}-{local.day:02}"
    seconds = f"{local.second:02}"
    if dialect is Dialect.CEPH_2020:
        month = _MONTH_ABBREVIATIONS.split()[local.month - 1]
        micros = f".{local.nanos // 1000:06}" if local.nanos >= 1000 else ""
        clock = f"{local.hour:02}:{local.minute:02}:{seconds}{micros}"
        return f"{local.year:04}-{month}-{local.day:02} {clock}"
    clock = f"{local.hour:02}:{local.minute:02}"
    if dialect is Dialect.CEPH:
        # Ceph writes six fractional digits, or none if the fraction is below one microsecond.
        micros = f".{local.nanos // 1000:06}" if local.nanos >= 1000 else ""
        zone = _format_offset(value.offset_minutes, unknown="+00:00")
        return f"{date}T{clock}:{seconds}{micros}{zone}"
    if value.fraction_digits:
        seconds += "." + f"{local.nanos:09}"[: value.fraction_digits]
    if value.precision <= TimestampPrecision.DAY:
        return {1: date[:4] + "T", 2: date[:7] + "T"}.get(value.precision, date)
    if value.precision is TimestampPrecision.SECOND:
        clock += ":" + seconds
    return f"{date}T{clock}{_format_offset(value.offset_minutes, unknown='-00:00')}"


def _format_offset(offset_minutes: int | None, *, unknown: str) -> str:
    if offset_minutes is None:
        return unknown
    if offset_minutes == 0:
        return "Z"
    hours, minutes = divmod(abs(offset_minutes), 60)
    return f"{'-' if offset_minutes < 0 else '+'}{hours:02}:{minutes:02}"
