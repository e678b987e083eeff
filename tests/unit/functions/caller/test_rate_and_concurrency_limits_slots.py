"""A slot is one task's at a time, over all processes, in the order in which tasks came."""

from __future__ import annotations

import asyncio
import subprocess
from itertools import pairwise

import pytest

from snowmelt.clock import SystemClock
from snowmelt.functions.caller.rate_and_concurrency_limits import (
    SharedFile,
    SharedSemaphore,
    make_shared_file_name,
)
from support.call_plans import URL
from support.limited_caller import calls_of, most_together, start


@pytest.fixture
def slots(tmp_path):
    return SharedSemaphore(SharedFile(tmp_path / "slots"), SystemClock())


def test_tasks_of_a_process_take_turns_in_the_order_in_which_they_came(slots):
    order = []

    async def call(number):
        slot = await slots.acquire_slot(lambda: 2)
        order.append(number)
        await asyncio.sleep(0.001)
        slots.release_slot(slot)

    async def calls():
        await asyncio.gather(*map(call, range(20)))

    asyncio.run(calls())
    assert order == [*range(20)]


def test_a_task_that_is_cancelled_while_it_waits_leaves_no_slot_behind(slots):
    async def calls():
        first = await slots.acquire_slot(lambda: 1)
        waiting = [asyncio.create_task(slots.acquire_slot(lambda: 1)) for _ in range(3)]
        await asyncio.sleep(0.01)
        waiting[0].cancel()
        slots.release_slot(first)
        second = await waiting[1]
        waiting[2].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        slots.release_slot(second)
        return await slots.acquire_slot(lambda: 1)

    assert asyncio.run(calls()) == 0


def test_a_smaller_number_counts_from_the_next_slot_on(slots):
    allowed = 4

    async def calls():
        nonlocal allowed
        held = [await slots.acquire_slot(lambda: allowed) for _ in range(4)]
        allowed = 1
        late = asyncio.create_task(slots.acquire_slot(lambda: allowed))
        for slot in sorted(held, reverse=True)[:3]:
            slots.release_slot(slot)
            await asyncio.sleep(0.01)
            assert not late.done()
        slots.release_slot(0)
        assert await late == 0

    asyncio.run(calls())


def test_a_second_loop_of_the_process_goes_on_where_the_first_was_left(slots):
    async def abandoned():
        await slots.acquire_slot(lambda: 1)
        waiting = asyncio.create_task(slots.acquire_slot(lambda: 1))
        await asyncio.sleep(0.001)
        return waiting

    asyncio.run(abandoned())
    slots.release_slot(0)
    assert asyncio.run(slots.acquire_slot(lambda: 1)) == 0


@pytest.mark.slow
def test_processes_together_never_hold_more_and_all_get_on(tmp_path):
    processes = [start(tmp_path, "max_in_flight", 3, calls=25, seconds=0.02) for _ in range(4)]
    calls = calls_of(*processes)
    assert len(calls) == 100
    assert most_together(calls) == 3
    for process in processes:
        began = [call.began for call in calls if call.process == process.pid]
        assert max(b - a for a, b in pairwise(began)) < 5.0


@pytest.mark.slow
def test_a_killed_process_holds_no_slot_for_ever(tmp_path):
    doomed = start(tmp_path, "max_in_flight", 2, calls=2, seconds=60)
    assert doomed.stdout is not None
    with doomed.stdout:
        file = SharedFile(tmp_path / make_shared_file_name("slots", URL, "f"))
        while file.try_lock_slot(0) or file.try_lock_slot(1):
            file.unlock_slot(0)
            file.unlock_slot(1)
            assert doomed.poll() is None
        other = start(tmp_path, "max_in_flight", 2, calls=10, seconds=0.01)
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(1.5)
        finally:
            doomed.kill()
            doomed.wait()
    assert len(calls_of(other)) == 10
