"""A batch that failed for good fails at once on the task's next attempt, not in a new query."""

from __future__ import annotations

import datetime as dt

import pytest

from snowmelt.clock import ManualClock
from snowmelt.functions.caller.rate_and_concurrency_limits import FailedBatchCache
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
    FailedBatchCache(place(0), clock, folder=tmp_path).cache_failure("batch", failed())
    with pytest.raises(CallFailed) as again:
        FailedBatchCache(place(1), clock, folder=tmp_path).raise_cached_failure("batch")
    assert str(again.value) == str(failed())
    FailedBatchCache(place(1), clock, folder=tmp_path).raise_cached_failure("another batch")


def test_a_first_attempt_forgets_what_an_earlier_run_left(clock, tmp_path):
    FailedBatchCache(place(3), clock, folder=tmp_path).cache_failure("batch", failed())
    FailedBatchCache(place(0), clock, folder=tmp_path).raise_cached_failure("batch")
    FailedBatchCache(place(1), clock, folder=tmp_path).raise_cached_failure("batch")


def test_after_ten_minutes_it_is_asked_again(clock, tmp_path):
    FailedBatchCache(place(0), clock, folder=tmp_path).cache_failure("batch", failed())
    clock.advance(601.0)
    FailedBatchCache(place(1), clock, folder=tmp_path).raise_cached_failure("batch")


def test_a_file_that_cannot_be_read_is_nothing(clock, tmp_path):
    failures = FailedBatchCache(place(1), clock, folder=tmp_path)
    failures.cache_failure("batch", failed())
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"{")
    FailedBatchCache(place(1), clock, folder=tmp_path).raise_cached_failure("batch")
