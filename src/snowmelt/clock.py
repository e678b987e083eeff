"""Clocks, which are passed as a dependency so that tests can control the time."""

from __future__ import annotations

import datetime as dt
import threading
import time
from types import ModuleType
from typing import Protocol


class Clock(Protocol):
    """Interface of all clocks."""

    def now(self) -> dt.datetime:
        """Return the wall-clock time as an aware UTC datetime. It may jump backwards."""

    def monotonic(self) -> float:
        """Return monotonic seconds. Only differences are meaningful."""

    def sleep(self, seconds: float) -> None:
        """Block this thread for a number of seconds. Return immediately if it is not positive."""

    async def pause(self, seconds: float) -> None:
        """Suspend this task for `seconds`. If that is not positive, only yield to the event loop."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> dt.datetime:
        """Return the machine's wall-clock time in UTC."""
        return dt.datetime.now(dt.UTC)

    def monotonic(self) -> float:
        """Return the machine's monotonic clock in seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread for a number of seconds."""
        if seconds > 0:
            time.sleep(seconds)

    async def pause(self, seconds: float) -> None:
        """Suspend this task for a number of seconds; other tasks of the event loop run."""
        await _import_asyncio().sleep(max(seconds, 0.0))


class ManualClock:
    """A clock that moves only when a test advances it. Thread-safe.

    `sleep` and `pause` advance it immediately instead of waiting, so code under test does not
    block.
    """

    def __init__(self, start: dt.datetime) -> None:
        self._now = start
        self._monotonic = 0.0
        self._lock = threading.Lock()

    def now(self) -> dt.datetime:
        """Return the current time of this clock."""
        with self._lock:
            return self._now

    def monotonic(self) -> float:
        """Return the seconds advanced so far. `set_wall` does not change them."""
        with self._lock:
            return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Advance wall clock and monotonic time by `seconds`."""
        self.advance(max(seconds, 0.0))

    async def pause(self, seconds: float) -> None:
        """Advance both times by `seconds`, and yield to the event loop once."""
        self.advance(max(seconds, 0.0))
        await _import_asyncio().sleep(0)

    def advance(self, seconds: float) -> None:
        """Advance wall clock and monotonic time by `seconds`."""
        with self._lock:
            self._now += dt.timedelta(seconds=seconds)
            self._monotonic += seconds

    def set_wall(self, now: dt.datetime) -> None:
        """Set only the wall clock, forwards or backwards, as an operator or NTP may do."""
        with self._lock:
            self._now = now


def _import_asyncio() -> ModuleType:
    """Import asyncio at first use, because most programs that use a clock have no event loop."""
    import asyncio

    return asyncio


def to_epoch_ms(timestamp: dt.datetime) -> int:
    """Convert an aware datetime to milliseconds since 1970."""
    return round(timestamp.timestamp() * 1000)
