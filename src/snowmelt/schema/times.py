"""Dates, times and timestamps as values: what a moment in a row becomes in a chunk (§5.4)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING

from snowmelt.schema.refusals import wrong_type, wrong_value, year_out_of_range
from snowmelt.schema.timestamp_text import (
    DAY_S,
    ParsedTimestamp,
    TextForms,
    TimestampSyntaxError,
    parse_time,
    parse_timestamp,
    year_of_day,
)
from snowmelt.schema.types import Column, Kind

if TYPE_CHECKING:
    from datetime import tzinfo

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - local clock times are counted from a local epoch
_EPOCH_ORDINAL = _EPOCH.toordinal()
_SECOND = timedelta(seconds=1)
_MINUTE_S = 60
_TZ_BITS = 14
_TZ_BIAS = 1440
_MOMENTS = "str, datetime.date, datetime.datetime"
_DATE_REASONS = {
    TextForms.JAVA: "Not a valid value; use ISO 8601 such as 2013-04-28T20:57:01.123+09:00, or an "
    "integer as text",
    TextForms.AUTO: "Not a valid date or timestamp; use 2013-04-28, 2013-04-28T20:57:01.123+09:00, "
    "2013-04-28 20:57:01, 04/28/2013, 28-Apr-2013 or Sun, 28 Apr 2013 20:57:01 +0900",
    TextForms.VERTICA: "Not a valid date or timestamp; use 2013-04-28, 2013-04-28 20:57:01.123+09, "
    "20130428 or 04/28/2013",
}
_TIME_REASONS = {
    TextForms.JAVA: "Not a valid time; use ISO 8601 such as 20:57:01.123, or an integer as text",
    TextForms.AUTO: "Not a valid time; use 20:57:01.123 or 08:57:01 PM",
    TextForms.VERTICA: "Not a valid time; use 20:57:01.123 or 08:57:01 PM",
}


@dataclass(frozen=True, slots=True)
class Instant:
    """A resolved moment: seconds of the local clock since 1970, and the offset it was given in."""

    local_s: int
    nanos: int
    offset_s: int


def days(value: object, column: Column, row_index: int, *, forms: TextForms) -> int:
    """Return days since 1970 of a date's, datetime's or text's own calendar day."""
    if isinstance(value, datetime):
        value = _whole(value, column, row_index).date()
    if isinstance(value, date):
        return value.toordinal() - _EPOCH_ORDINAL
    if not isinstance(value, str):
        raise wrong_type(value, column, row_index, _MOMENTS)
    day = _parsed(value, column, row_index, forms).local_s // DAY_S
    if not -9999 <= year_of_day(day) <= 9999:
        raise year_out_of_range(column, row_index, value)
    return day


def time_of_day(value: object, column: Column, row_index: int, *, forms: TextForms) -> int:
    """Return the time of day in units of the column's scale, truncated."""
    if isinstance(value, time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        nanos = value.microsecond * 1000 + getattr(value, "nanosecond", 0)
        return scaled(seconds, nanos, column.scale or 0)
    if not isinstance(value, str):
        raise wrong_type(value, column, row_index, "str, datetime.time")
    try:
        seconds, nanos = parse_time(value, forms)
    except TimestampSyntaxError as error:
        reason = error.reason or _TIME_REASONS[forms]
        raise wrong_value(column, row_index, reason) from None
    return scaled(seconds, nanos, column.scale or 0)


def timestamp(
    value: object, column: Column, row_index: int, *, zone: tzinfo | None, forms: TextForms
) -> int:
    """Return the stored value of a TIMESTAMP_*: scaled, floored, TZ with its packed offset.

    Without a `zone`, clock times that name none are taken as they are.
    """
    instant = _instant(value, column, zone, row_index, forms)
    scale = column.scale or 0
    if column.kind is Kind.TIMESTAMP_NTZ:
        return scaled(instant.local_s, instant.nanos, scale)
    since_epoch = scaled(instant.local_s - instant.offset_s, instant.nanos, scale)
    if column.kind is Kind.TIMESTAMP_LTZ:
        return since_epoch
    return (since_epoch << _TZ_BITS) + offset_minutes(instant.offset_s) + _TZ_BIAS


def scaled(seconds: int, nanos: int, scale: int) -> int:
    """Return seconds and nanoseconds (never negative) in units of 10**-scale s, floored."""
    return int(seconds * 10**scale + nanos // 10 ** (9 - scale))


def offset_minutes(offset_s: int) -> int:
    """Return an offset in minutes, seconds cut toward zero."""
    return offset_s // _MINUTE_S if offset_s >= 0 else -(-offset_s // _MINUTE_S)


def resolve(local_s: int, nanos: int, zone: tzinfo | None, fold: int) -> Instant:
    """Give a local clock time its offset in a zone.

    In a gap the clock moves forward; in an overlap the earlier offset holds unless `fold` is 1.
    Without a zone it stays as it is.
    """
    if zone is None:
        return Instant(local_s, nanos, 0)
    local = _EPOCH + timedelta(seconds=local_s)
    before = _offset_s(local.replace(tzinfo=zone, fold=0))
    after = _offset_s(local.replace(tzinfo=zone, fold=1))
    if before < after:
        return Instant(local_s + after - before, nanos, after)
    return Instant(local_s, nanos, after if fold else before)


def _instant(
    value: object, column: Column, zone: tzinfo | None, row_index: int, forms: TextForms
) -> Instant:
    if isinstance(value, datetime):
        value = _whole(value, column, row_index)
        nanos = value.microsecond * 1000 + getattr(value, "nanosecond", 0)
        seconds = (value.replace(tzinfo=None, microsecond=0) - _EPOCH) // _SECOND
        if zone is None:
            return Instant(seconds, nanos, 0)
        if value.utcoffset() is None:
            return resolve(seconds, nanos, zone, value.fold)
        return Instant(seconds, nanos, _offset_s(value))
    if isinstance(value, date):
        return resolve((value.toordinal() - _EPOCH_ORDINAL) * DAY_S, 0, zone, 0)
    if not isinstance(value, str):
        raise wrong_type(value, column, row_index, _MOMENTS)
    moment = _parsed(value, column, row_index, forms)
    if not 1 <= year_of_day(moment.local_s // DAY_S) <= 9999:
        raise year_out_of_range(column, row_index, value)
    if moment.offset_s is not None:
        return Instant(moment.local_s, moment.nanos, moment.offset_s)
    return resolve(moment.local_s, moment.nanos, zone, 0)


def _parsed(value: str, column: Column, row_index: int, forms: TextForms) -> ParsedTimestamp:
    try:
        return parse_timestamp(value, forms)
    except TimestampSyntaxError as error:
        reason = error.reason or _DATE_REASONS[forms]
        raise wrong_value(column, row_index, reason) from None


def _whole(value: datetime, column: Column, row_index: int) -> datetime:
    """Refuse what only looks like a datetime (a NaT has no fields)."""
    # Written so that a type checker does not know better: NaT is a datetime and unequal to itself.
    same: object = value
    if same != value:
        raise wrong_value(column, row_index, "Not a date or time: it has no fields")
    return value


def _offset_s(value: datetime) -> int:
    offset = value.utcoffset()
    return 0 if offset is None else offset // _SECOND
