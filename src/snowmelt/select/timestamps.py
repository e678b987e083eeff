"""Timestamps that keep the precision and the offset they were written with."""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from snowmelt.select.dialect import Dialect

if TYPE_CHECKING:
    import datetime as dt

NANOS = 1_000_000_000
_MINUTE = 60 * NANOS
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_DIGITS = 9
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"

PARTS = frozenset(
    "year month day hour minute second timezone_hour timezone_minute week dow doy".split()  # noqa: SIM905
)
"""What `extract` knows; `doy` counts days of the year from 1, `dow` of the week from Sunday, 0."""

_LENGTHS = {"week": 7 * _DAY, "day": _DAY, "hour": _HOUR, "minute": _MINUTE, "second": NANOS}

_OFFSET = r"(Z|[+-]\d\d(?::?\d\d)?)?"
_ISO = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?"
    + _OFFSET
    + r"|T)?|T)?|T)?",
    re.ASCII,
)
_COMPACT = re.compile(
    r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(?:(\d\d)(?:\.(\d+))?)?" + _OFFSET + r"|T)?", re.ASCII
)
_SEED = re.compile(
    r"(\d{4})[:-]*(\d\d)[:-]*(\d\d)[:-]*(?:[T \t]*(\d\d)[:-]*(\d\d)[:-]*(\d\d)[:-]*)?", re.ASCII
)
_BLANKS = " \t\r\n\v\f"


class Precision(IntEnum):
    """The smallest part that was written."""

    YEAR = 1
    MONTH = 2
    DAY = 3
    MINUTE = 4
    SECOND = 5


_PRECISION = {
    "year": Precision.YEAR,
    "month": Precision.MONTH,
    "week": Precision.DAY,
    "day": Precision.DAY,
    "hour": Precision.MINUTE,
    "minute": Precision.MINUTE,
    "second": Precision.SECOND,
}


@dataclass(frozen=True, slots=True)
class Timestamp:
    """An instant with the way it is shown.

    `instant` counts nanoseconds from 1970-01-01T00:00Z, `offset` minutes east of UTC (None: not
    known, read as UTC), `digits` those after the point of the second. SQL compares instants only;
    `==` compares the whole.
    """

    instant: int
    offset: int | None = 0
    precision: Precision = Precision.SECOND
    digits: int = 0

    @property
    def local(self) -> Local:
        """The calendar at the value's own offset."""
        return Local.at(self.instant + (self.offset or 0) * _MINUTE)


@dataclass(frozen=True, slots=True)
class Local:
    """A day and a time of day without an offset."""

    year: int
    month: int
    day: int
    hour: int = 0
    minute: int = 0
    second: int = 0
    nanos: int = 0

    @classmethod
    def at(cls, nanos: int) -> Local:
        """Return the day and time so many nanoseconds after the start of 1970."""
        days, rest = divmod(nanos, _DAY)
        hour, rest = divmod(rest, _HOUR)
        minute, rest = divmod(rest, _MINUTE)
        return cls(*date_of(days), hour, minute, *divmod(rest, NANOS))

    @property
    def days(self) -> int:
        """Days since 1970-01-01."""
        return days_of(self.year, self.month, self.day)

    @property
    def since_epoch(self) -> int:
        """Nanoseconds since the start of 1970."""
        seconds = self.hour * 3600 + self.minute * 60 + self.second
        return self.days * _DAY + seconds * NANOS + self.nanos


def days_of(year: int, month: int, day: int) -> int:
    """Return the days from 1970-01-01 to a day of the Gregorian calendar."""
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def date_of(days: int) -> tuple[int, int, int]:
    """Return year, month and day so many days after 1970-01-01."""
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    number = month + 3 if month < 10 else month - 9
    return year + era * 400 + (number <= 2), number, day


def parse_iso(text: str) -> Timestamp | None:
    """Read `2007T`, `2007-02T`, `2007-02-23[T]`, `2007-02-23T12:14[:33[.079]][Z|-08:00]`.

    A blank may stand for the T, blanks around are passed over; without separators
    (`20070223T121433Z`) it works too. Digits of a second after the ninth are dropped.

    Returns:
        None where the text is no timestamp.
    """
    stripped = text.strip(_BLANKS)
    match = _ISO.fullmatch(stripped) or _COMPACT.fullmatch(stripped)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, offset = match.groups()
    local = _local(year, month or "1", day or "1", hour or "0", minute or "0", second or "0")
    minutes = _offset(offset)
    if local is None or (offset is not None and minutes is None and offset[1:3] != "00"):
        return None
    digits = (fraction or "")[:_DIGITS]
    precision = sum(part is not None for part in (year, month, day, hour, second))
    nanos = int(digits.ljust(_DIGITS, "0"))
    instant = local.since_epoch + nanos - (minutes or 0) * _MINUTE
    return Timestamp(instant, minutes, Precision(precision), len(digits))


def parse_seed(text: str) -> Timestamp | None:
    """Read `yyyy mm dd hh mi ss` with any `:` or `-` or nothing between, blank or T before hh.

    The time may be left out. What `parse_iso` reads is read too.

    Returns:
        None where the text is no timestamp.
    """
    match = _SEED.fullmatch(text.strip(_BLANKS))
    if match is None:
        return parse_iso(text)
    local = _local(*(part or "0" for part in match.groups()))
    if local is None:
        return None
    precision = Precision.DAY if match.group(4) is None else Precision.SECOND
    return Timestamp(local.since_epoch, 0, precision)


def _local(year: str, month: str, day: str, hour: str, minute: str, second: str) -> Local | None:
    local = Local(int(year), int(month), int(day), int(hour), int(minute), int(second))
    if local.year < 1 or not 1 <= local.month <= 12:
        return None
    if not 1 <= local.day <= monthrange(local.year, local.month)[1]:
        return None
    return local if local.hour < 24 and local.minute < 60 and local.second < 60 else None


def _offset(written: str | None) -> int | None:
    """Return minutes; None for no offset, for `-00:00` (not known) and for an impossible one."""
    if written is None or written == "Z":
        return None if written is None else 0
    hours, minutes = int(written[1:3]), int(written[3:].lstrip(":") or "0")
    if hours > 23 or minutes > 59 or (written[0] == "-" and hours == minutes == 0):
        return None
    return (hours * 60 + minutes) * (-1 if written[0] == "-" else 1)


def of_datetime(moment: dt.datetime, *, digits: int = 0) -> Timestamp:
    """Return an aware moment with so many digits of its second, at most six."""
    offset = moment.utcoffset()
    seconds = days_of(moment.year, moment.month, moment.day) * 86_400
    seconds += moment.hour * 3600 + moment.minute * 60 + moment.second
    minutes = 0 if offset is None else int(offset.total_seconds() // 60)
    step = 10 ** (_DIGITS - digits)
    nanos = moment.microsecond * 1000 // step * step
    instant = seconds * NANOS + nanos - minutes * _MINUTE
    return Timestamp(instant, minutes, Precision.SECOND, digits)


def extract(part: str, value: Timestamp) -> int:
    """Return a part (`PARTS`) as it is at the value's own offset."""
    if part in {"timezone_hour", "timezone_minute"}:
        minutes = value.offset or 0
        hours, rest = divmod(abs(minutes), 60)
        return (hours if part == "timezone_hour" else rest) * (-1 if minutes < 0 else 1)
    local = value.local
    if part == "week":
        return _iso_week(local.days)
    if part == "dow":
        return (local.days + 4) % 7
    if part == "doy":
        return local.days - days_of(local.year, 1, 1) + 1
    return int(getattr(local, part))


def _iso_week(days: int) -> int:
    thursday = days - (days + 3) % 7 + 3
    return (thursday - days_of(date_of(thursday)[0], 1, 1)) // 7 + 1


def date_add(part: str, count: int, value: Timestamp, *, sticky: bool = False) -> Timestamp | None:
    """Return the timestamp so many years, months, weeks, days, hours, minutes or seconds later.

    Years and months keep the day, or take the month's last where it has no such day; `sticky`
    also keeps a last day the last (2000-02-29 and a month is 2000-03-31). The precision grows
    where the part asks for it.

    Returns:
        None where the result lies outside the years 1 to 9999.
    """
    precision = max(value.precision, _PRECISION[part])
    if part in {"year", "month"}:
        shift = _months_later(value, count * (12 if part == "year" else 1), sticky=sticky)
    else:
        shift = count * _LENGTHS[part]
    if shift is None or abs(shift) > 10_000 * 366 * _DAY:
        return None
    moved = replace(value, instant=value.instant + shift, precision=precision)
    return moved if 1 <= moved.local.year <= 9999 else None


def _months_later(value: Timestamp, months: int, *, sticky: bool) -> int | None:
    local = value.local
    year, month = divmod(local.year * 12 + local.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        return None
    last = monthrange(year, month + 1)[1]
    stays_last = sticky and local.day == monthrange(local.year, local.month)[1]
    day = last if stays_last else min(local.day, last)
    return (days_of(year, month + 1, day) - local.days) * _DAY


def date_diff(part: str, start: Timestamp, end: Timestamp) -> int:
    """Return the whole years, months, weeks, … seconds that passed; negative where end is first.

    A day has passed after 24 hours, a month when day and time are reached again (in UTC).
    """
    if part in _LENGTHS:
        passed = abs(end.instant - start.instant) // _LENGTHS[part]
        return passed if end.instant >= start.instant else -passed
    if end.instant < start.instant:
        return -date_diff(part, end, start)
    first, last = Local.at(start.instant), Local.at(end.instant)
    months = (last.year - first.year) * 12 + last.month - first.month
    months -= (last.day, end.instant % _DAY) < (first.day, start.instant % _DAY)
    return months if part == "month" else months // 12


def calendar_diff(part: str, start: Timestamp, end: Timestamp) -> int:
    """Return the difference of the calendar's years, months or days in UTC; else what passed."""
    first, last = Local.at(start.instant), Local.at(end.instant)
    if part == "year":
        return last.year - first.year
    if part == "month":
        return (last.year - first.year) * 12 + last.month - first.month
    if part == "day":
        return last.days - first.days
    return date_diff(part, start, end)


def print_timestamp(value: Timestamp, dialect: Dialect) -> str:
    """Return the text of a timestamp as the dialect's output and CAST show it."""
    local = value.local
    date = f"{local.year:04}-{local.month:02}-{local.day:02}"
    seconds = f"{local.second:02}"
    if dialect is Dialect.CEPH_2020:
        month = _MONTHS.split()[local.month - 1]
        micros = f".{local.nanos // 1000:06}" if local.nanos >= 1000 else ""
        clock = f"{local.hour:02}:{local.minute:02}:{seconds}{micros}"
        return f"{local.year:04}-{month}-{local.day:02} {clock}"
    clock = f"{local.hour:02}:{local.minute:02}"
    if dialect is Dialect.CEPH:
        # Six digits of a fraction, or none where it is zero.
        micros = f".{local.nanos // 1000:06}" if local.nanos >= 1000 else ""
        zone = _print_offset(value.offset, unknown="+00:00")
        return f"{date}T{clock}:{seconds}{micros}{zone}"
    if value.digits:
        seconds += "." + f"{local.nanos:09}"[: value.digits]
    if value.precision <= Precision.DAY:
        return {1: date[:4] + "T", 2: date[:7] + "T"}.get(value.precision, date)
    if value.precision is Precision.SECOND:
        clock += ":" + seconds
    return f"{date}T{clock}{_print_offset(value.offset, unknown='-00:00')}"


def _print_offset(offset: int | None, *, unknown: str) -> str:
    if offset is None:
        return unknown
    if offset == 0:
        return "Z"
    hours, minutes = divmod(abs(offset), 60)
    return f"{'-' if offset < 0 else '+'}{hours:02}:{minutes:02}"
