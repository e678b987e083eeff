"""What SQL users write as dates and times, as the rules of values read it."""

from __future__ import annotations

import pytest

from snowmelt.schema.instants import parse_moment, parse_time
from snowmelt.schema.sql_moments import iso_moment, iso_time

NOON = "2026-01-31T12:00:00"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2026-01-31 12:00:00", NOON),
        ("2026-01-31T12:00:00", NOON),
        (" 2026-01-31  12:00 ", NOON),
        ("2026-01-31 12", NOON),
        ("2026-01-31 12:00:00.25", NOON + ".25"),
        ("2026-01-31 12:00:00Z", NOON + "Z"),
        ("2026-01-31 12:00:00 +0130", NOON + "+01:30"),
        ("2026-01-31 12:00:00.5 -08:00", NOON + ".5-08:00"),
        ("2026-01-31 12:00:00+01", NOON + "+01:00"),
        ("2026-1-31", "2026-01-31"),
        ("1/31/2026", "2026-01-31"),
        ("01/31/2026 12:00:00", NOON),
        ("31-JAN-2026", "2026-01-31"),
        ("Sat, 31 Jan 2026 12:00:00 +0100", NOON + "+01:00"),
        ("31 Jan 2026 12:00:00 AM", "2026-01-31T00:00:00"),
        ("Sat Jan 31 12:00:00 +0000 2026", NOON + "+00:00"),
    ],
)
def test_the_forms_of_snowflakes_detection_are_read(written, read):
    assert iso_moment(written) == read
    parse_moment(read)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("9:30", "09:30:00"),
        ("09:30:15.25", "09:30:15.25"),
        ("12:30 AM", "00:30:00"),
        ("1:30:15 pm", "13:30:15"),
    ],
)
def test_times_of_day_are_read(written, read):
    assert iso_time(written) == read
    parse_time(read)


@pytest.mark.parametrize(
    "text", ["", "1700000000", "tomorrow", "2026-01-31 ", "31.1.2026", "13:00 PM", "+12026-01-01"]
)
def test_any_other_text_is_left_to_the_rules_of_values(text):
    assert iso_moment(text) == text or iso_moment(text) == text.strip()
    assert iso_time(text) == text
