"""A batch that failed for good fails at once on the task's next attempt, not in a new query."""

from __future__ import annotations

import datetime as dt

import pytest

from snowmelt.clock import ManualClock
from snowmelt.functions.caller.circuit_breaker import Failures
from snowmelt.functions.errors import CallFailed
from support.call_plans import place


@pytest.fixture
def clock():
    return ManualClock(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))


def failed(batch="batch"):
    return CallFailed(
        function="f",
        batch=batch,
        reason="the service refuses",
        status=403,
        attempts=1,
        polls=0,
        seconds=0.25,
        url="",
    )


def test_the_next_attempt_fails_with_the_same_words(clock, tmp_path):
    Failures(place(0), clock, folder=tmp_path).remember("batch", failed())
    with pytest.raises(CallFailed) as again:
        Failures(place(1), clock, folder=tmp_path).recall("batch")
    assert str(again.value) == str(failed())
    Failures(place(1), clock, folder=tmp_path).recall("another batch")


def test_a_first_attempt_forgets_what_an_earlier_run_left(clock, tmp_path):
    Failures(place(3), clock, folder=tmp_path).remember("batch", failed())
    Failures(place(0), clock, folder=tmp_path).recall("batch")
    Failures(place(1), clock, folder=tmp_path).recall("batch")


def test_after_ten_minutes_it_is_asked_again(clock, tmp_path):
    Failures(place(0), clock, folder=tmp_path).remember("batch", failed())
    clock.advance(601.0)
    Failures(place(1), clock, folder=tmp_path).recall("batch")


def test_so_many_are_kept_and_no_more(clock, tmp_path):
    failures = Failures(place(0), clock, folder=tmp_path, most=20)
    for number in range(25):
        clock.advance(0.01)
        failures.remember(f"batch {number}", failed())
    assert len([*tmp_path.iterdir()]) == 20
    with pytest.raises(CallFailed):
        Failures(place(1), clock, folder=tmp_path).recall("batch 24")
    Failures(place(1), clock, folder=tmp_path).recall("batch 0")


def test_a_file_that_cannot_be_read_is_nothing(clock, tmp_path):
    failures = Failures(place(1), clock, folder=tmp_path)
    failures.remember("batch", failed())
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"{")
    Failures(place(1), clock, folder=tmp_path).recall("batch")
