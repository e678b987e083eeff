from __future__ import annotations

import threading

from snowmelt.ingest.batch_worker_pool import WorkerPool, WorkQueue


def test_what_waits_is_taken_together_in_its_order_up_to_the_limit() -> None:
    waiting: WorkQueue[int] = WorkQueue()
    waiting.put(range(5))
    waiting.put([5])
    assert [waiting.pop_batch(4), waiting.pop_batch(4)] == [[0, 1, 2, 3], [4, 5]]


def test_every_item_is_taken_once_by_threads_that_come_and_wait() -> None:
    waiting: WorkQueue[int] = WorkQueue()
    taken: list[list[int]] = [[], [], []]

    def take(mine: list[int]) -> None:
        while items := waiting.pop_batch(7):
            mine.extend(items)

    def put(first: int) -> None:
        for number in range(first, 3000, 3):
            waiting.put([number])

    takers = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    putters = [threading.Thread(target=put, args=(first,)) for first in range(3)]
    for thread in (*takers, *putters):
        thread.start()
    for thread in putters:
        thread.join()
    waiting.close()
    for thread in takers:
        thread.join()
    assert sorted(number for mine in taken for number in mine) == list(range(3000))


def test_closing_ends_who_waits_after_the_items_that_wait() -> None:
    waiting: WorkQueue[int] = WorkQueue()
    waiting.put([1])
    waiting.close()
    assert [waiting.pop_batch(9), waiting.pop_batch(9), waiting.pop_batch(9)] == [[1], [], []]
    # Adding nothing wakes a thread that then goes on waiting.
    other: WorkQueue[int] = WorkQueue()
    other.put([])
    other.put([2])
    assert other.pop_batch(9) == [2]


def test_consumers_handle_what_was_put_before_they_were_closed_and_take_nothing_after() -> None:
    go_on = threading.Event()
    handled: list[list[int]] = []

    def handle(items: list[int]) -> None:
        go_on.wait(60)
        handled.append(items)

    consumers = WorkerPool(handle, max_batch_items=3, thread_names=["only"])
    assert all(consumers.submit_all([number]) for number in range(10))
    closing = threading.Thread(target=consumers.close)
    closing.start()
    while consumers.submit_all([]):
        pass
    assert not consumers.submit_all([99])
    go_on.set()
    closing.join()
    consumers.close()
    assert [number for items in handled for number in items] == list(range(10))
    assert max(map(len, handled)) <= 3
