"""A service that fails batch after batch is left alone, and tried again after a while."""

from __future__ import annotations

import datetime as dt

import pytest

from snowmelt.clock import ManualClock
from snowmelt.functions.caller.rate_and_concurrency_limits import (
    CircuitBreaker,
    SharedFile,
    get_circuit_breaker,
)
from snowmelt.functions.errors import CircuitOpen


@pytest.fixture
def clock():
    return ManualClock(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))


@pytest.fixture
def made(clock, tmp_path):
    """Return what makes breakers of one URL, as each worker process has its own."""
    return lambda: CircuitBreaker(clock, SharedFile(tmp_path / "breaker"))


@pytest.fixture
def opened(clock, made):
    breaker = made()
    for _ in range(5):
        breaker.check_call_allowed("f")
        breaker.record_failure("status 503")
        clock.advance(1.0)
    return breaker


def test_it_opens_after_failures_in_a_row_and_says_since_when_and_why(opened):
    with pytest.raises(CircuitOpen) as refusal:
        opened.check_call_allowed("f")
    text = str(refusal.value)
    assert "since 2026-01-01 00:00:04" in text
    assert "5 consecutive batches" in text
    assert "status 503" in text
    assert not refusal.value.retryable


def test_a_good_batch_in_between_starts_the_count_anew(made):
    breaker = made()
    for _ in range(5):
        breaker.record_failure("a")
        breaker.record_failure("b")
        breaker.record_failure("c")
        breaker.record_failure("d")
        breaker.record_success()
        breaker.check_call_allowed("f")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_batches_that_a_service_does_not_take_say_nothing_about_the_service(made, status):
    breaker = made()
    for _ in range(10):
        breaker.record_failure("refused", status)
        breaker.check_call_allowed("f")


def test_one_batch_is_let_through_after_the_pause(opened, clock):
    clock.advance(30.0)
    opened.check_call_allowed("f")
    with pytest.raises(CircuitOpen):
        opened.check_call_allowed("f")
    opened.record_success()
    opened.check_call_allowed("f")
    opened.check_call_allowed("f")


def test_a_probe_that_fails_keeps_it_open_since_the_beginning(opened, clock):
    clock.advance(30.0)
    opened.check_call_allowed("f")
    opened.record_failure("still down")
    with pytest.raises(CircuitOpen, match=r"00:00:04.*6 consecutive batches.*still down"):
        opened.check_call_allowed("f")


def test_a_probe_that_never_ends_keeps_nobody_out_for_ever(opened, clock):
    clock.advance(30.0)
    opened.check_call_allowed("f")
    clock.advance(30.0)
    opened.check_call_allowed("f")


def test_processes_of_a_machine_share_one(made, clock):
    first, second = made(), made()
    for each in (first, second, first, second, first):
        each.record_failure("status 503")
    for each in (first, second, made()):
        with pytest.raises(CircuitOpen, match="5 consecutive batches"):
            each.check_call_allowed("f")
    clock.advance(30.0)
    second.check_call_allowed("f")
    with pytest.raises(CircuitOpen):
        first.check_call_allowed("f")
    second.record_success()
    first.check_call_allowed("f")


def test_all_calls_to_a_url_share_one(clock, tmp_path):
    def found(url):
        return get_circuit_breaker(url, clock, folder=tmp_path)

    assert found("http://a/f") is found("http://a/f")
    assert found("http://a/f") is not found("http://a/g")
