from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.select.timestamps import (
    LocalDateTime,
    Timestamp,
    TimestampPrecision,
    calendar_diff,
    date_add,
    date_diff,
    date_to_epoch_days,
    epoch_days_to_date,
    extract_date_part,
    parse_iso_timestamp,
    parse_lenient_timestamp,
    timestamp_from_datetime,
    timestamp_to_string,
)
from support.reference_select import ALL, AWS, CEPH

ZONES = st.integers(-14 * 60, 14 * 60).map(
    lambda minutes: dt.timezone(dt.timedelta(minutes=minutes))
)
MOMENTS = st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 12, 31), timezones=ZONES)


def read(text: str) -> Timestamp:
    found = parse_iso_timestamp(text)
    assert found is not None
    return found


def added(part: Any, count: int, start: Timestamp, **options: bool) -> Timestamp:
    found = date_add(part, count, start, **options)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        "2007T",
        "2007-02T",
        "2007-02-23",
        "2007-02-23T12:14Z",
        "2007-02-23T12:14:33Z",
        "2007-02-23T12:14:33.079-08:00",
        "2007-02-23T12:14:33.000000001+14:00",
        "0001-01-01T00:00:00-00:00",
    ],
)
def test_timestamp_prints_as_it_was_written(text: str) -> None:
    assert timestamp_to_string(read(text), AWS) == text


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2007-02-23T", "2007-02-23"),
        ("20070223T121433Z", "2007-02-23T12:14:33Z"),
        ("2007-02-23 12:14:33", "2007-02-23T12:14:33-00:00"),
        (" 2007-02-23T12:14:33+0100\r", "2007-02-23T12:14:33+01:00"),
        ("2007-02-23T12:14:33.1234567891Z", "2007-02-23T12:14:33.123456789Z"),
        ("20070223", "2007-02-23"),
        ("2007", "2007T"),
    ],
)
def test_other_spellings_are_read_too(text: str, same: str) -> None:
    assert parse_iso_timestamp(text) == parse_iso_timestamp(same)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "0000T",
        "2007-13T",
        "2007-02-30",
        "2007-02-23T24:00Z",
        "2007-02-23T12:60Z",
        "2007-02-23T12:00:60Z",
        "2007-02-23T12Z",
        "2007-02-23T12:14:33+00:75",
        "2007-02-23T12:14:33-0060",
        "2007-2-3",
        "07-02-03",
        "2007-02-23T12:14:33+25:00",
        "2007-02-23T12:14:33+01:61",
        "2007-02-23T12:14:33.Z",
        "2007-02-23Z",
        "٢٠٠٧T",
        "2007-02-23T12:14:33Zx",
        "",
    ],
)
def test_text_that_is_no_timestamp_is_none(text: str) -> None:
    assert parse_iso_timestamp(text) is None


@pytest.mark.parametrize(
    "text",
    ["1999:10:10-12:23:44", "1999-10-10 12:23:44", "19991010122344", "1999::10--10T12:23:44"],
)
def test_first_engines_separators(text: str) -> None:
    assert parse_lenient_timestamp(text) == timestamp_from_datetime(
        dt.datetime(1999, 10, 10, 12, 23, 44, tzinfo=dt.UTC)
    )


@pytest.mark.parametrize("text", ["", "1999", "1999:02:31", "1999:10:10-24:00:00", "99:10:10"])
def test_first_engines_bad_texts(text: str) -> None:
    assert parse_lenient_timestamp(text) is None or text == "1999"


@given(MOMENTS)
def test_moment_survives_printing_and_reading(moment: dt.datetime) -> None:
    value = timestamp_from_datetime(moment, fraction_digits=6)
    assert parse_iso_timestamp(timestamp_to_string(value, AWS)) == value
    assert read(timestamp_to_string(value, CEPH)).instant == value.instant
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert value.instant == (moment - epoch) // dt.timedelta(microseconds=1) * 1000


@given(MOMENTS)
def test_parts_are_those_of_the_calendar(moment: dt.datetime) -> None:
    value = timestamp_from_datetime(moment, fraction_digits=6)
    for part in ("year", "month", "day", "hour", "minute", "second"):
        assert extract_date_part(part, value) == getattr(moment, part)
    assert extract_date_part("week", value) == moment.isocalendar().week
    assert extract_date_part("doy", value) == moment.timetuple().tm_yday
    assert extract_date_part("dow", value) == moment.isoweekday() % 7
    assert value.local_datetime.epoch_nanos // 1000 % 1_000_000 == moment.microsecond


@given(st.integers(-800_000, 3_000_000))
def test_days_and_dates_are_each_others_inverse(days: int) -> None:
    assert date_to_epoch_days(*epoch_days_to_date(days)) == days
    assert LocalDateTime.from_epoch_nanos(days * 86_400_000_000_000).epoch_days == days


@given(MOMENTS, MOMENTS, st.sampled_from(["year", "month", "week", "day", "hour", "second"]))
def test_elapsed_time_added_to_the_start_is_the_last_step_before_the_end(
    first: dt.datetime, last: dt.datetime, part: Any
) -> None:
    start, end = (
        timestamp_from_datetime(first, fraction_digits=6),
        timestamp_from_datetime(last, fraction_digits=6),
    )
    start = Timestamp(start.instant, 0)
    passed = date_diff(part, start, end)
    assert date_diff(part, end, start) == -passed
    if start.instant <= end.instant and start.local_datetime.day <= 28:
        assert added(part, passed, start).instant <= end.instant
        after = date_add(part, passed + 1, start)
        assert after is None or after.instant > end.instant


def test_end_of_month_is_kept_only_where_asked() -> None:
    january = read("2011-01-31T")
    assert timestamp_to_string(added("month", 1, january), AWS) == "2011-02-28"
    february = read("2000-02-29T")
    assert timestamp_to_string(added("month", 1, february), AWS) == "2000-03-29"
    assert (
        timestamp_to_string(added("month", 1, february, keep_month_end=True), AWS) == "2000-03-31"
    )
    assert timestamp_to_string(added("year", 1, february), AWS) == "2001-02-28"


@pytest.mark.parametrize("part", ["year", "month", "day", "second"])
@pytest.mark.parametrize("count", [10**30, -(10**30), 10_000 * 366 * 86_400])
def test_result_outside_the_calendar_is_none(part: str, count: int) -> None:
    assert date_add(part, count, read("2000-01-01T00:00:00Z")) is None


def test_calendar_difference_looks_at_dates_alone() -> None:
    start, end = read("2000-12-31T23:59Z"), read("2001-01-01T00:00Z")
    assert [calendar_diff(part, start, end) for part in ("year", "month", "day")] == [1, 1, 1]
    assert calendar_diff("hour", start, end) == 0


def test_precision_grows_with_what_is_added() -> None:
    assert added("second", 1, read("2007T")).precision is TimestampPrecision.SECOND
    assert added("year", 1, read("2007-01T")).precision is TimestampPrecision.MONTH


@given(st.text(max_size=30), st.sampled_from(ALL))
def test_any_text_is_read_or_none(text: str, dialect: Any) -> None:
    for parse in (parse_iso_timestamp, parse_lenient_timestamp):
        found = parse(text)
        assert found is None or timestamp_to_string(found, dialect)
