"""SQL timestamps with their written precision and UTC offset: parsing and date arithmetic."""

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
"""What `extract_date_part` knows; `doy` counts days of the year from 1, `dow` of the week from Sunday, 0."""

_DATE_PART_NANOS = {
    "week": 7 * _DAY_NANOS,
    "day": _DAY_NANOS,
    "hour": _HOUR_NANOS,
    "minute": _MINUTE_NANOS,
    "second": NANOS_PER_SECOND,
}

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
    """The smallest part that was written."""

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
    """An instant with the way it is shown.

    `instant` counts nanoseconds from 1970-01-01T00:00Z, `to_offset_minutes` minutes east of UTC (None: not
    known, read as UTC), `fraction_digits` those after the point of the second. SQL compares instants only;
    `==` compares the whole.
    """

    instant: int
    offset_minutes: int | None = 0
    precision: TimestampPrecision = TimestampPrecision.SECOND
    fraction_digits: int = 0

    @property
    def local_datetime(self) -> LocalDateTime:
        """The calendar at the value's own offset."""
        return LocalDateTime.from_epoch_nanos(
            self.instant + (self.offset_minutes or 0) * _MINUTE_NANOS
        )


@dataclass(frozen=True, slots=True)
class LocalDateTime:
    """A day and a time of day without an offset."""

    year: int
    month: int
    day: int
    hour: int = 0
    minute: int = 0
    second: int = 0
    nanos: int = 0

    @classmethod
    def from_epoch_nanos(cls, epoch_nanos: int) -> LocalDateTime:
        """Return the day and time so many nanoseconds after the start of 1970."""
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
        """Nanoseconds since the start of 1970."""
        seconds = self.hour * 3600 + self.minute * 60 + self.second
        return self.epoch_days * _DAY_NANOS + seconds * NANOS_PER_SECOND + self.nanos


def date_to_epoch_days(year: int, month: int, day: int) -> int:
    """Return the days from 1970-01-01 to a day of the Gregorian calendar."""
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def epoch_days_to_date(epoch_days: int) -> tuple[int, int, int]:
    """Return year, month and day so many days after 1970-01-01."""
    era, of_era = divmod(epoch_days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    number = month + 3 if month < 10 else month - 9
    return year + era * 400 + (number <= 2), number, day


def parse_iso_timestamp(text: str) -> Timestamp | None:
    """Read `2007T`, `2007-02T`, `2007-02-23[T]`, `2007-02-23T12:14[:33[.079]][Z|-08:00]`.

    A blank may stand for the T, blanks around are passed over; without separators
    (`20070223T121433Z`) it works too. Digits of a second after the ninth are dropped.

    Returns:
        None where the text is no timestamp.
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
    if local is None or (offset is not None and minutes is None and offset[1:3] != "00"):
        return None
    digits = (fraction or "")[:_MAX_FRACTION_DIGITS]
    precision = sum(part is not None for part in (year, month, day, hour, second))
    nanos = int(digits.ljust(_MAX_FRACTION_DIGITS, "0"))
    instant = local.epoch_nanos + nanos - (minutes or 0) * _MINUTE_NANOS
    return Timestamp(instant, minutes, TimestampPrecision(precision), len(digits))


def parse_lenient_timestamp(text: str) -> Timestamp | None:
    """Read `yyyy mm dd hh mi ss` with any `:` or `-` or nothing between, blank or T before hh.

    The time may be left out. What `parse_iso_timestamp` reads is read too.

    Returns:
        None where the text is no timestamp.
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
    """Return minutes; None for no offset, for `-00:00` (not known) and for an impossible one."""
    if offset_text is None or offset_text == "Z":
        return None if offset_text is None else 0
    hours, minutes = int(offset_text[1:3]), int(offset_text[3:].lstrip(":") or "0")
    if hours > 23 or minutes > 59 or (offset_text[0] == "-" and hours == minutes == 0):
        return None
    return (hours * 60 + minutes) * (-1 if offset_text[0] == "-" else 1)


def timestamp_from_datetime(value: dt.datetime, *, fraction_digits: int = 0) -> Timestamp:
    """Return an aware moment with so many digits of its second, at most six."""
    offset = value.utcoffset()
    seconds = date_to_epoch_days(value.year, value.month, value.day) * 86_400
    seconds += value.hour * 3600 + value.minute * 60 + value.second
    minutes = 0 if offset is None else int(offset.total_seconds() // 60)
    step = 10 ** (_MAX_FRACTION_DIGITS - fraction_digits)
    nanos = value.microsecond * 1000 // step * step
    instant = seconds * NANOS_PER_SECOND + nanos - minutes * _MINUTE_NANOS
    return Timestamp(instant, minutes, TimestampPrecision.SECOND, fraction_digits)


def extract_date_part(part: str, value: Timestamp) -> int:
    """Return a part (`DATE_PARTS`) as it is at the value's own offset."""
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
    """Return the timestamp so many years, months, weeks, days, hours, minutes or seconds later.

    Years and months keep the day, or take the month's last where it has no such day; `keep_month_end`
    also keeps a last day the last (2000-02-29 and a month is 2000-03-31). The precision grows
    where the part asks for it.

    Returns:
        None where the result lies outside the years 1 to 9999.
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
    """Return the whole years, months, weeks, … seconds that passed; negative where end is first.

    A day has passed after 24 hours, a month when day and time are reached again (in UTC).
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
    """Return the difference of the calendar's years, months or days in UTC; else what passed."""
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
    """Return the text of a timestamp as the dialect's output and CAST show it."""
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
        # Six digits of a fraction, or none where it is zero.
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
