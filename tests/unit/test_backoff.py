"""Pauses grow to their limit, end at the deadline, and differ between clients."""

from __future__ import annotations

import datetime as dt
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.backoff import Backoff, growing_delays_s
from snowmelt.clock import ManualClock

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@given(
    initial_s=st.floats(0.01, 5),
    max_s=st.floats(5, 60),
    factor=st.floats(1, 4),
    jitter=st.floats(0, 1),
)
def test_delays_grow_to_their_limit_and_are_shortened_at_most_by_their_jitter(
    initial_s: float, max_s: float, factor: float, jitter: float
) -> None:
    delays = islice(growing_delays_s(initial_s, max_s, factor=factor, jitter=jitter), 20)
    for at, delay_s in enumerate(delays):
        whole_s = min(initial_s * factor**at, max_s)
        assert whole_s * (1 - jitter) * 0.999999 <= delay_s <= whole_s * 1.000001


def test_without_jitter_delays_are_a_table() -> None:
    assert list(islice(growing_delays_s(1.0, 4.0, jitter=0.0), 4)) == [1.0, 2.0, 4.0, 4.0]


def test_delays_of_many_clients_differ() -> None:
    assert len({next(growing_delays_s(1.0, 4.0)) for _ in range(50)}) > 40


@given(timeout_s=st.floats(0.001, 600))
def test_pauses_fill_the_time_to_its_end_and_no_further(timeout_s: float) -> None:
    clock = ManualClock(START)
    backoff = Backoff(timeout_s, clock, initial_delay_s=0.05, max_delay_s=4.0)
    pauses = []
    while (pause_s := backoff.next_delay_s()) is not None:
        assert not backoff.is_expired
        pauses.append(pause_s)
        clock.sleep(pause_s)
    assert backoff.is_expired
    assert clock.monotonic() == pytest.approx(timeout_s)
    for at, pause_s in enumerate(pauses[:-1]):
        assert min(0.05 * 2**at, 4.0) * 0.75 <= pause_s <= min(0.05 * 2**at, 4.0)


def pause(backoff: Backoff) -> float:
    seconds = backoff.next_delay_s()
    assert seconds is not None
    return seconds


def test_who_is_busy_gives_time_but_no_shorter_pauses() -> None:
    clock = ManualClock(START)
    backoff = Backoff(10.0, clock, initial_delay_s=1.0, max_delay_s=8.0)
    for _ in range(3):
        clock.sleep(pause(backoff))
    backoff.restart_deadline()
    clock.sleep(9.9)
    assert not backoff.is_expired
    backoff.restart_deadline()
    assert pause(backoff) >= 6.0
    backoff.reset()
    assert pause(backoff) <= 1.0
