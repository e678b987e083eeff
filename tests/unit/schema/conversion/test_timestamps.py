"""Texts of dates, times and timestamps."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.schema.conversion.timestamps import (
    ParsedTimestamp,
    TimestampSyntaxError,
    days_since_epoch,
    parse_time,
    parse_timestamp,
    year_of_day,
)
from snowmelt.schema.types import TimestampTextFormat

JAVA, AUTO, VERTICA = TimestampTextFormat

EPOCH = datetime(1970, 1, 1)


@given(st.datetimes(), st.sampled_from(TimestampTextFormat))
def test_iso_texts_are_read_to_the_microsecond(value: datetime, forms: Any) -> None:
    moment = parse_timestamp(value.isoformat(), forms)
    assert EPOCH + timedelta(seconds=moment.local_s, microseconds=moment.nanos // 1000) == value
    assert moment.offset_s is None


@given(st.integers(-3_000_000, 6_000_000))
def test_days_and_years_agree_beyond_the_calendar_of_python(day: int) -> None:
    year = year_of_day(day)
    assert days_since_epoch(year, 1, 1) <= day < days_since_epoch(year + 1, 1, 1)
    if 1 <= year <= 9999:
        assert (date(1970, 1, 1) + timedelta(days=day)).year == year


def test_a_region_decides_over_a_contradicting_offset() -> None:
    assert parse_timestamp("2013-04-28T20:57:01+09:00[America/Los_Angeles]", JAVA) == (
        ParsedTimestamp(parse_timestamp("2013-04-28T04:57:01", JAVA).local_s, 0, -7 * 3600)
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "2013-04-28T",
        "2013-04-28Z",
        "2013-04-28 20:57",
        "2013-04-28T20:57[Europe/Paris]",
        "2013-04-28T20:57+01:00[No/Where]",
        "2013-04-28T20:57+01:00[../x]",
        "2013-04-28T20:57+01:00[Europe]",
        "-0000-01-01",
        "+2013-01-01",
        "2013-00-01",
        "2013-01-32",
        "1_0",
        "9" * 5000,
        "2013-04-28T20:57:01+07:60",
    ],
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(TimestampSyntaxError):
        parse_timestamp(text, JAVA)


@given(
    st.text(alphabet="0123456789-+:.TZz[]/aE ", max_size=40)
    | st.from_regex(r"(Mon, )?[0-3]?[0-9][ /-](Jan|1?2)[ /-][0-9]{4}( 1?[0-9]:[0-6]0( [AP]M)?)?"),
    st.sampled_from(TimestampTextFormat),
)
def test_any_text_is_read_or_refused(text: Any, forms: Any) -> None:
    for read in (parse_timestamp, parse_time):
        with suppress(TimestampSyntaxError):
            read(text, forms)


NOON = "2026-01-31T12:00:00"
# Every form of Snowflake's automatic detection, by its name there; then what else is taken.
DETECTED = {
    "2026-01-31": "2026-01-31",
    "31-JAN-2026": "2026-01-31",
    "01/31/2026": "2026-01-31",
    "2026-01-31T12:00:00.123456789+07:00": NOON + ".123456789+07:00",
    "2026-01-31 12:00:00.123456789+07:00": NOON + ".123456789+07:00",
    "2026-01-31 12:00:00.123456789+07": NOON + ".123456789+07:00",
    "2026-01-31 12:00:00.123456789 +07:00": NOON + ".123456789+07:00",
    "2026-01-31 12:00:00.123456789 +0700": NOON + ".123456789+07:00",
    "2026-01-31 12:00:00 +07:00": NOON + "+07:00",
    "2026-01-31 12:00:00 +0700": NOON + "+07:00",
    "2026-01-31T12:00:00.123456": NOON + ".123456",
    "2026-01-31 12:00:00.123456": NOON + ".123456",
    "2026-01-31T12:00:00": NOON,
    "2026-01-31 12:00:00": NOON,
    "2026-01-31T12:00": NOON,
    "2026-01-31 12:00": NOON,
    "2026-01-31T12": NOON,
    "2026-01-31 12": NOON,
    "2026-01-31T12:00:00-07:00": NOON + "-07:00",
    "2026-01-31 12:00:00-07:00": NOON + "-07:00",
    "2026-01-31 12:00:00-07": NOON + "-07:00",
    "2026-01-31T12:00+07:00": NOON + "+07:00",
    "2026-01-31 12:00+07:00": NOON + "+07:00",
    "Sat, 31 Jan 2026 12:00:00 +0200": NOON + "+02:00",
    "Sat, 31 Jan 2026 12:00:00.123456789 +0200": NOON + ".123456789+02:00",
    "Sat, 31 Jan 2026 01:00:00 PM +0200": "2026-01-31T13:00:00+02:00",
    "Sat, 31 Jan 2026 12:00:00.123456789 PM +0200": NOON + ".123456789+02:00",
    "Sat, 31 Jan 2026 12:00:00": NOON,
    "Sat, 31 Jan 2026 12:00:00.123456789": NOON + ".123456789",
    "Sat, 31 Jan 2026 12:00:00 PM": NOON,
    "Sat, 31 Jan 2026 12:00:00.123456789 AM": "2026-01-31T00:00:00.123456789",
    "1/31/2026 12:00:00": NOON,
    "Sat Jan 31 12:00:00 +0000 2026": NOON + "Z",
    # Of HTTP, JavaScript and C.
    "Sat, 31 Jan 2026 12:00:00 GMT": NOON + "Z",
    "Sat Jan 31 2026 12:00:00 +0200": NOON + "+02:00",
    " 2026-1-31  9:05 ": "2026-01-31T09:05:00",
}


@pytest.mark.parametrize(("written", "read"), DETECTED.items())
def test_each_form_of_snowflakes_detection_is_read(written: str, read: str) -> None:
    assert parse_timestamp(written, AUTO) == parse_timestamp(read, JAVA)


@given(st.datetimes(min_value=datetime(1000, 1, 1)))
def test_what_python_prints_of_a_datetime_is_read(value: datetime) -> None:
    for text in (str(value), value.strftime("%m/%d/%Y %H:%M:%S.%f")):
        assert parse_timestamp(text, AUTO) == parse_timestamp(value.isoformat(), JAVA)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("9:30", "09:30:00"),
        ("09:30:15.25", "09:30:15.25"),
        ("20:57:01.123456789+07:00", "20:57:01.123456789"),
        ("07:57:01.123456789 AM", "07:57:01.123456789"),
        ("12:30 AM", "00:30:00"),
        ("1:30:15 pm", "13:30:15"),
    ],
)
def test_each_form_of_a_time_of_day_is_read(written: str, read: str) -> None:
    assert parse_time(written, AUTO) == parse_time(read, JAVA)


@pytest.mark.parametrize(
    ("text", "seconds", "nanos"),
    [
        ("1487654321", 1487654321, 0),
        ("31535999999", 31535999999, 0),
        ("31536000000", 31536000, 0),
        ("1487654321321", 1487654321, 321_000_000),
        ("1487654321321987", 1487654321, 321_987_000),
        ("1487654321321987654", 1487654321, 321_987_654),
        ("-1487654321", -1487654321, 0),
    ],
)
def test_digits_are_a_count_since_1970_whose_unit_their_magnitude_tells(
    text: str, seconds: int, nanos: int
) -> None:
    assert parse_timestamp(text, AUTO) == ParsedTimestamp(seconds, nanos, 0)


@pytest.mark.parametrize(
    "text",
    ["0", "2024", "202401", "20240131", "202401311200", "20240131120000", "20240131120000123"],
)
def test_digits_that_may_be_a_date_are_rejected_with_the_reason(text: str) -> None:
    for read in (parse_timestamp, parse_time):
        with pytest.raises(TimestampSyntaxError) as raised:
            read(text, AUTO)
        assert "Ambiguous digits" in (raised.value.reason or "")


@pytest.mark.parametrize(
    "text",
    [
        "31/01/2026",
        "2026/01/31",
        "01-31-2026",
        "31.1.2026",
        "tomorrow",
        "2026-02-29",
        "2026-01-31 24:00:00",
        "2026-01-31 12:00:60",
        "2026-01-31 13:00 PM",
        "2026-01-31 0:30 AM",
        "2026-01-31 12:00:00 +25",
        "Sun, 31 Jan 2026 12:00:00",
        "Sat, 31 Jab 2026",
        "2026-01-31 12:00:00 EST",
        "2026-01-31 12:00:00.1234567891",
        "1_700_000_000",
        "1700000000.5",
        "+12026-13-01",
    ],
)
def test_what_is_in_no_list_is_rejected(text: str) -> None:
    with pytest.raises(TimestampSyntaxError):
        parse_timestamp(text, AUTO)


def test_copy_reads_compact_dates_as_dates_and_no_counts() -> None:
    assert parse_timestamp("19990506", VERTICA) == parse_timestamp("1999-05-06", JAVA)
    for text in ("1700000000", "0", "20210132", "13"):
        with pytest.raises(TimestampSyntaxError):
            parse_timestamp(text, VERTICA)
        with pytest.raises(TimestampSyntaxError):
            parse_time(text, VERTICA)
