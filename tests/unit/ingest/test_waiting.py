from __future__ import annotations

import threading

from snowmelt.ingest.waiting import Waiting


def test_what_waits_is_taken_together_in_its_order_up_to_the_limit() -> None:
    waiting: Waiting[int] = Waiting()
    waiting.put(range(5))
    waiting.put([5])
    assert [waiting.take(4), waiting.take(4)] == [[0, 1, 2, 3], [4, 5]]


def test_every_item_is_taken_once_by_threads_that_come_and_wait() -> None:
    waiting: Waiting[int] = Waiting()
    taken: list[list[int]] = [[], [], []]

    def take(mine: list[int]) -> None:
        while items := waiting.take(7):
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
    waiting: Waiting[int] = Waiting()
    waiting.put([1])
    waiting.close()
    assert [waiting.take(9), waiting.take(9), waiting.take(9)] == [[1], [], []]
    # Adding nothing wakes a thread that then goes on waiting.
    other: Waiting[int] = Waiting()
    other.put([])
    other.put([2])
    assert other.take(9) == [2]
