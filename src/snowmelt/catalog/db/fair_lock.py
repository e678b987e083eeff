"""FIFO lock for the threads that write to one SQLite file, with priority for row commits.

SQLite allows one write transaction at a time. A pool of one connection hands it to whichever thread
wakes first, so a thread could wait for a minute while others wrote hundreds of times.
`FairWriterLock` orders the threads of one process; `begin_immediate` is fair between processes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from typing import TYPE_CHECKING

from snowmelt.clock import SystemClock

if TYPE_CHECKING:
    import sqlalchemy as sa

_clock = SystemClock()

# How often a process asks for SQLite's lock. SQLite's own wait asks ever more seldom, up to once in
# 100 ms, so that whoever has waited long loses against whoever has just come.
_POLL_INTERVAL_S = 0.001
# How long a process leaves the lock alone after a transaction, so that others find it free.
_RELEASE_PAUSE_S = 0.002
_BEGIN_STATEMENT = "BEGIN IMMEDIATE"


class FairWriterLock:
    """A lock that is granted first come, first served, in two queues that take turns.

    Urgent threads commit rows for many clients in one transaction. After each ordinary turn the
    next one is theirs, so that they wait for one other transaction at most, however many threads
    queue up. After each urgent turn an ordinary thread is next, so that neither queue starves.
    Thread-safe; not reentrant.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._is_locked = False
        self._urgent_waiters: deque[threading.Event] = deque()
        self._ordinary_waiters: deque[threading.Event] = deque()
        self._was_urgent = False
        self._pause_until = 0.0

    def acquire(self, timeout_s: float, *, urgent: bool) -> bool:
        """Wait for a turn; return False if none came within `timeout_s` seconds."""
        if not self._wait_in_queue(timeout_s, urgent=urgent):
            return False
        if not urgent:
            _clock.sleep(self._pause_until - _clock.monotonic())
        return True

    def _wait_in_queue(self, timeout_s: float, *, urgent: bool) -> bool:
        with self._mutex:
            if not self._is_locked:
                self._is_locked = True
                self._was_urgent = urgent
                return True
            granted = threading.Event()
            queue = self._urgent_waiters if urgent else self._ordinary_waiters
            queue.append(granted)
        if granted.wait(timeout_s):
            return True
        with self._mutex:
            # The turn may have come between the end of the wait and here.
            if granted.is_set():
                return True
            queue.remove(granted)
            return False

    def release(self) -> None:
        """End a turn and hand the lock to the next thread."""
        self._pause_until = _clock.monotonic() + _RELEASE_PAUSE_S
        with self._mutex:
            first, second = self._urgent_waiters, self._ordinary_waiters
            if self._was_urgent:
                first, second = second, first
            queue = first or second
            if not queue:
                self._is_locked = False
                return
            self._was_urgent = queue is self._urgent_waiters
            queue.popleft().set()


def begin_immediate(connection: sa.Connection, timeout_s: float) -> None:
    """Begin a writing transaction, polling at a constant rate while another process writes.

    The connection is to SQLite, and its busy timeout is 0.

    Raises:
        sqlalchemy.exc.OperationalError: If the lock was not free in time (SQLITE_BUSY), or the
            database cannot be written.
    """
    until = _clock.monotonic() + timeout_s
    cursor = connection.connection.cursor()
    try:
        while _clock.monotonic() < until:
            try:
                cursor.execute(_BEGIN_STATEMENT)
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY"):
                    break
                _clock.sleep(_POLL_INTERVAL_S)
            else:
                return
    finally:
        cursor.close()
    # Once more in SQLAlchemy's way, so that the error is one of its own.
    connection.exec_driver_sql(_BEGIN_STATEMENT)
