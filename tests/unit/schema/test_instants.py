"""Texts of dates, times and timestamps."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.schema.instants import (
    Moment,
    Unreadable,
    day_of,
    parse_moment,
    parse_time,
    year_of_day,
)

EPOCH = datetime(1970, 1, 1)


@given(st.datetimes())
def test_iso_texts_are_read_to_the_microsecond(value):
    moment = parse_moment(value.isoformat())
    assert EPOCH + timedelta(seconds=moment.local_s, microseconds=moment.nanos // 1000) == value
    assert moment.offset_s is None


@given(st.integers(-3_000_000, 6_000_000))
def test_days_and_years_agree_beyond_the_calendar_of_python(day):
    year = year_of_day(day)
    assert day_of(year, 1, 1) <= day < day_of(year + 1, 1, 1)
    if 1 <= year <= 9999:
        assert (date(1970, 1, 1) + timedelta(days=day)).year == year


def test_a_region_decides_over_a_contradicting_offset():
    assert parse_moment("2013-04-28T20:57:01+09:00[America/Los_Angeles]") == Moment(
        parse_moment("2013-04-28T04:57:01").local_s, 0, -7 * 3600
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
def test_what_is_no_moment_is_refused(text):
    with pytest.raises(Unreadable):
        parse_moment(text)


@given(st.text(alphabet="0123456789-+:.TZz[]/aE ", max_size=40))
def test_any_text_is_read_or_refused(text):
    for read in (parse_moment, parse_time):
        with suppress(Unreadable):
            read(text)
