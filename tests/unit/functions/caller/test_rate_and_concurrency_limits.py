"""Limits hold where clauses or the service ask for them, and cost nothing elsewhere."""

from __future__ import annotations

import asyncio
import datetime as dt
from itertools import pairwise

import pytest

from snowmelt.clock import ManualClock, SystemClock
from snowmelt.functions.caller.plan import CallerOptions
from snowmelt.functions.caller.rate_and_concurrency_limits import (
    ConcurrencyWindow,
    RateLimiter,
    SharedFile,
)
from support.call_plans import URL, plan
from support.limited_caller import calls_of, most_together, start


@pytest.fixture
def clock():
    found = ManualClock(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    found.advance(1000.0)
    return found


async def calls(limits, clock, count, reply, seconds=0.001):
    """Make calls at once; returns the most that were in flight together."""
    now = most = 0

    async def call():
        nonlocal now, most
        async with limits.acquire(URL) as turn:
            now += 1
            most = max(most, now)
            clock.sleep(0.001)
            await asyncio.sleep(seconds)
            reply(turn)
            now -= 1

    await asyncio.gather(*(call() for _ in range(count)))
    return most


def answered(turn):
    turn.record_success()


def turned_away(turn):
    turn.record_throttled()


def test_without_a_limit_no_file_is_touched_and_all_are_in_flight(tmp_path, clock):
    limits = RateLimiter(plan(), clock, folder=tmp_path)
    assert asyncio.run(calls(limits, clock, 50, answered)) == 50
    assert [*tmp_path.iterdir()] == []


def test_max_in_flight_holds_for_all_plans_of_a_function(tmp_path, clock):
    first, second = (RateLimiter(plan(max_in_flight=3), clock, folder=tmp_path) for _ in range(2))

    async def both():
        return await asyncio.gather(
            calls(first, clock, 10, answered), calls(second, clock, 10, answered)
        )

    assert sum(asyncio.run(both())) <= 6
    assert asyncio.run(calls(first, clock, 10, answered)) == 3


def test_a_rate_is_divided_among_executors(tmp_path, clock):
    options = CallerOptions(executors=4)
    limits = RateLimiter(plan(options, rate_limit=8.0), clock, folder=tmp_path)
    left = []

    async def turns():
        for _ in range(6):
            async with limits.acquire(URL):
                left.append(clock.monotonic())

    asyncio.run(turns())
    assert all(b - a == pytest.approx(0.5) for a, b in pairwise(left[1:]))


def test_requests_of_one_call_each_count_towards_the_rate(tmp_path, clock):
    limits = RateLimiter(plan(rate_limit=1.0), clock, folder=tmp_path)

    async def polls():
        async with limits.acquire(URL) as turn:
            began = clock.monotonic()
            for _ in range(5):
                await turn.acquire_next_request()
            return clock.monotonic() - began

    assert asyncio.run(polls()) == pytest.approx(5.0, abs=0.1)


def test_an_origin_that_is_too_busy_is_asked_by_half_as_many(tmp_path, clock):
    limits = RateLimiter(plan(), clock, folder=tmp_path)
    assert asyncio.run(calls(limits, clock, 16, turned_away)) == 16
    # All sixteen were sent before the first was turned away: that is one reason, not sixteen.
    assert asyncio.run(calls(limits, clock, 40, lambda turn: None)) == 8


def test_good_replies_widen_it_by_one_a_round(tmp_path, clock):
    limits = RateLimiter(plan(), clock, folder=tmp_path)
    asyncio.run(calls(limits, clock, 8, turned_away))
    asyncio.run(calls(limits, clock, 4, answered))
    assert asyncio.run(calls(limits, clock, 40, lambda turn: None)) == 5
    asyncio.run(calls(limits, clock, 11, answered))
    assert asyncio.run(calls(limits, clock, 40, lambda turn: None)) == 7


def test_it_is_never_wider_than_max_in_flight(tmp_path, clock):
    limits = RateLimiter(plan(max_in_flight=4), clock, folder=tmp_path)
    asyncio.run(calls(limits, clock, 4, turned_away))
    assert asyncio.run(calls(limits, clock, 100, answered)) == 4


def test_one_that_was_not_too_busy_for_long_is_no_longer_held_back(tmp_path, clock):
    limits = RateLimiter(plan(), clock, folder=tmp_path)
    asyncio.run(calls(limits, clock, 4, turned_away))
    clock.advance(601.0)
    assert asyncio.run(calls(limits, clock, 30, lambda turn: None)) == 30


def test_times_that_cannot_be_are_no_reason_to_wait(tmp_path, clock):
    limits = RateLimiter(plan(), clock, folder=tmp_path)
    asyncio.run(calls(limits, clock, 1, turned_away))
    ahead = ManualClock(clock.now())
    ahead.advance(1_000_000.0)
    ConcurrencyWindow(SharedFile(*tmp_path.iterdir()), ahead).shrink(ahead.monotonic(), 1, 30.0)
    assert asyncio.run(calls(limits, clock, 30, lambda turn: None)) == 30


def test_a_process_that_comes_later_knows_of_it(tmp_path, clock):
    asyncio.run(calls(RateLimiter(plan(), clock, folder=tmp_path), clock, 4, turned_away))
    other = RateLimiter(plan(url=URL + "/other"), clock, folder=tmp_path)
    assert asyncio.run(calls(other, clock, 30, lambda turn: None)) == 2


@pytest.mark.slow
def test_other_processes_know_of_it(tmp_path):
    asyncio.run(
        calls(RateLimiter(plan(), SystemClock(), folder=tmp_path), SystemClock(), 4, turned_away)
    )
    others = [start(tmp_path, "max_in_flight", 50, calls=8, seconds=0.05) for _ in range(2)]
    assert most_together(calls_of(*others)) == 2


def test_when_one_at_a_time_is_too_much_all_wait(tmp_path, clock):
    limits = RateLimiter(plan(), clock, folder=tmp_path)
    asyncio.run(calls(limits, clock, 1, turned_away))
    clock.advance(1.0)

    async def refused_then_next():
        async with limits.acquire(URL) as turn:
            turn.record_throttled(retry_after_s=5.0)
        began = clock.monotonic()
        waiting = asyncio.create_task(calls(limits, clock, 1, answered))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        clock.advance(5.0)
        await waiting
        return clock.monotonic() - began

    assert asyncio.run(refused_then_next()) >= 5.0


def test_a_call_that_fails_gives_its_turn_back(tmp_path, clock):
    limits = RateLimiter(plan(max_in_flight=1), clock, folder=tmp_path)

    async def failing():
        with pytest.raises(ValueError, match="broken"):
            async with limits.acquire(URL):
                raise ValueError("broken")
        return await calls(limits, clock, 2, answered)

    assert asyncio.run(failing()) == 1


def test_a_call_cancelled_while_it_waits_for_the_rate_gives_its_slot_back(tmp_path, clock):
    limits = RateLimiter(plan(max_in_flight=1), clock, folder=tmp_path)

    async def cancelled():
        async with limits.acquire(URL):
            waiting = asyncio.create_task(calls(limits, clock, 3, answered))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        return await calls(limits, clock, 3, answered)

    assert asyncio.run(cancelled()) == 1
