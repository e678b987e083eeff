"""Intervals as statements write them."""

from __future__ import annotations

import datetime as dt

import pytest

from snowmelt.load.copy_parser import parse_interval


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 seconds", 10),
        ("1.5s", 1.5),
        ("00:10:00", 600),
        ("-1:30", -5400),
        ("1 day 02:00", 93_600),
        ("2 hours 5 minutes", 7500),
        ("10000 milliseconds", 10),
    ],
)
def test_an_interval_is_a_sum_of_parts(text: str, seconds: float) -> None:
    assert parse_interval(text) == dt.timedelta(seconds=seconds)


def test_numbers_without_a_unit_are_of_the_unit_given() -> None:
    assert parse_interval("5", "MINUTES") == dt.timedelta(minutes=5)
    assert parse_interval("5") is None


@pytest.mark.parametrize("text", ["", " ", "soon", "1 year", "1 month", "10:99", "5 bananas"])
def test_what_has_no_fixed_length_is_none(text: str) -> None:
    assert parse_interval(text) is None
