"""Requests leave at equal distances, whichever task and process sends them."""

from __future__ import annotations

import asyncio
import datetime as dt
from itertools import pairwise

import pytest

from snowmelt.clock import ManualClock, SystemClock
from snowmelt.functions.caller.rate_and_concurrency_limits import RequestSpacing, SharedFile
from support.limited_caller import calls_of, start


@pytest.fixture
def clock():
    found = ManualClock(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    found.advance(1000.0)
    return found


def test_tasks_leave_a_tenth_of_a_second_apart(tmp_path, clock):
    pace = RequestSpacing(SharedFile(tmp_path / "pace"), clock)
    left = []

    async def call():
        await pace.acquire(10.0)
        left.append(clock.monotonic())

    async def calls():
        await asyncio.gather(*(call() for _ in range(21)))

    asyncio.run(calls())
    assert left[-1] - left[0] == pytest.approx(2.0, abs=0.051)
    assert all(b - a == pytest.approx(0.1) for a, b in pairwise(left[1:]))


def test_a_long_pause_saves_up_next_to_nothing(tmp_path, clock):
    pace = RequestSpacing(SharedFile(tmp_path / "pace"), clock)

    async def calls():
        await pace.acquire(10.0)
        clock.advance(3600.0)
        began = clock.monotonic()
        for _ in range(11):
            await pace.acquire(10.0)
        return clock.monotonic() - began

    assert asyncio.run(calls()) >= 0.9


def test_a_task_that_is_cancelled_gives_its_instant_back(tmp_path):
    path = tmp_path / "pace"
    pace = RequestSpacing(SharedFile(path), SystemClock())

    async def calls():
        await pace.acquire(0.01)
        before = path.read_bytes()
        task = asyncio.create_task(pace.acquire(0.01))
        await asyncio.sleep(0.01)
        assert path.read_bytes() != before
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert path.read_bytes() == before

    asyncio.run(calls())


@pytest.mark.slow
def test_so_many_a_second_hold_over_processes_and_all_get_on(tmp_path):
    processes = [start(tmp_path, "rate_limit", 20, calls=10, seconds=0) for _ in range(4)]
    calls = calls_of(*processes)
    assert len(calls) == 40
    # Their instants are 0.05 s apart, but each may come late to what it was woken for. Were the rate
    # each process's own, all would take 0.45 s, and eleven an eighth of a second.
    assert calls[-1].began - calls[0].began > 1.2
    assert all(b.began - a.began > 0.25 for a, b in zip(calls, calls[11:], strict=False))
    for process in processes:
        began = [call.began for call in calls if call.process == process.pid]
        # One that got no turn before the others were done would wait for 1.5 s.
        assert max(b - a for a, b in pairwise(began)) < 1.2


@pytest.mark.slow
def test_a_killed_process_wastes_one_request(tmp_path):
    doomed = start(tmp_path, "rate_limit", 5, calls=100, seconds=0)
    assert doomed.stdout is not None
    with doomed.stdout:
        first = float(doomed.stdout.readline().split()[0])
        doomed.kill()
        doomed.wait()
    calls = calls_of(start(tmp_path, "rate_limit", 5, calls=5, seconds=0))
    assert len(calls) == 5
    assert calls[-1].began - calls[0].began > 0.3
    # The hundred calls of the other one would have taken 20 s.
    assert first < calls[0].began < first + 15
