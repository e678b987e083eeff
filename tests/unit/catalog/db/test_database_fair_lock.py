from __future__ import annotations

import itertools
import threading
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.catalog.db.database import FairWriterLock

# Longer than any test takes: threads wait for the event, not for the time.
LONG_S = 60.0


def queue_up(
    turns: FairWriterLock, order: list[tuple[int, bool]], number: int, *, urgent: bool
) -> threading.Thread:
    """Start a thread that waits for its turn, and return once it is queued."""

    def work() -> None:
        assert turns.acquire(LONG_S, urgent=urgent)
        order.append((number, urgent))
        turns.release()

    queue = turns._urgent_waiters if urgent else turns._ordinary_waiters
    before = len(queue)
    thread = threading.Thread(target=work)
    thread.start()
    while len(queue) == before:
        pass
    return thread


@settings(deadline=None, max_examples=25)
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_turns_are_in_order_of_arrival_and_neither_queue_starves(arrivals: list[Any]) -> None:
    turns = FairWriterLock()
    order: list[Any] = []
    assert turns.acquire(LONG_S, urgent=False)
    threads = [
        queue_up(turns, order, number, urgent=urgent) for number, urgent in enumerate(arrivals)
    ]
    turns.release()
    for thread in threads:
        thread.join(LONG_S)
    for kind in (True, False):
        numbers = [number for number, urgent in order if urgent == kind]
        assert numbers == sorted(numbers)
        assert len(numbers) == arrivals.count(kind)
    # Two turns of one kind follow each other only once the other kind has none left.
    kinds = [urgent for _, urgent in order]
    repeated = next(
        (at for at, pair in enumerate(itertools.pairwise(kinds)) if len(set(pair)) == 1), None
    )
    if repeated is not None:
        assert len(set(kinds[repeated:])) == 1
    assert not kinds or not any(arrivals) or kinds[0]


def test_a_wait_that_expires_leaves_the_queue() -> None:
    turns = FairWriterLock()
    assert turns.acquire(LONG_S, urgent=False)
    assert not turns.acquire(0.01, urgent=True)
    assert not turns.acquire(0.01, urgent=False)
    turns.release()
    assert turns.acquire(0, urgent=False)
