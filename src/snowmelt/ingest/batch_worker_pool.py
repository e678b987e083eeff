"""Queue and worker threads that process many items per wake-up."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class WorkQueue(Generic[_Item]):
    """Queue that wakes a worker once for all items added since it last ran.

    The queue of the standard library wakes a thread for each item. At thousands of items per second
    the system calls and the contention for the interpreter's lock cost more than the work itself.
    """

    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        # One wake-up token suffices. A spurious wake-up is harmless; a missed one is not.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_wake_pending = False
        self._closed = False

    def put(self, items: Iterable[_Item]) -> None:
        """Add items. Callable from any thread, but not after `close`."""
        self._items.extend(items)
        if not self._is_wake_pending:
            self._wake_thread()

    def pop_batch(self, max_items: int) -> list[_Item]:
        """Wait for items and return up to `max_items`. Return an empty list once closed and drained."""
        while True:
            self._tokens.get()
            # Clear the flag before reading the queue, so that any later `put` sends a new token.
            self._is_wake_pending = False
            taken: list[_Item] = []
            while len(taken) < max_items:
                try:
                    taken.append(self._items.popleft())
                except IndexError:
                    break
            if self._items or self._closed:
                self._wake_thread()
            if taken or (self._closed and not self._items):
                return taken

    def close(self) -> None:
        """Make every `pop_batch` return an empty list once the queue is drained."""
        self._closed = True
        self._wake_thread()

    def _wake_thread(self) -> None:
        self._is_wake_pending = True
        self._tokens.put(None)


class WorkerPool(Generic[_Item]):
    """Worker threads that handle queued items in batches until the pool is closed.

    `handle` receives up to `limit` items and must not raise. There is one thread for each name in
    `names`.
    """

    def __init__(
        self,
        handle: Callable[[list[_Item]], None],
        *,
        max_batch_items: int,
        thread_names: Sequence[str],
    ) -> None:
        self._handle = handle
        self._max_batch_items = max_batch_items
        self._work_queue: WorkQueue[_Item] = WorkQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=name, daemon=True) for name in thread_names
        ]
        for thread in self._threads:
            thread.start()

    def submit_all(self, items: Iterable[_Item]) -> bool:
        """Add items from any thread. Return False if the pool is closed."""
        with self._lock:
            if not self._closed:
                self._work_queue.put(items)
            return not self._closed

    def close(self) -> None:
        """Handle the queued items, then stop the threads. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._work_queue.close()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while items := self._work_queue.pop_batch(self._max_batch_items):
            self._handle(items)
