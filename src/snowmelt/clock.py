"""Clocks passed as a dependency, so that tests control the time."""

from __future__ import annotations

import datetime as dt
import threading
import time
from types import ModuleType
from typing import Protocol


class Clock(Protocol):
    """What the rest of Snowmelt knows of time."""

    def now(self) -> dt.datetime:
        """Return the wall-clock instant, aware, in UTC. It may jump backwards."""

    def monotonic(self) -> float:
        """Return seconds that never go backwards; only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Wait; zero and negative values return at once."""

    async def pause(self, seconds: float) -> None:
        """Wait without holding up the event loop; zero and negative values only yield to it."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> dt.datetime:
        """Return the machine's wall-clock time in UTC."""
        return dt.datetime.now(dt.UTC)

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        if seconds > 0:
            time.sleep(seconds)

    async def pause(self, seconds: float) -> None:
        """Let other tasks of the event loop run."""
        await _import_asyncio().sleep(max(seconds, 0.0))


class ManualClock:
    """A clock that stands still until it is moved; thread-safe.

    `sleep` and `pause` advance it at once instead of waiting, so code under test never blocks.
    """

    def __init__(self, start: dt.datetime) -> None:
        self._now = start
        self._monotonic = 0.0
        self._lock = threading.Lock()

    def now(self) -> dt.datetime:
        """Return the instant that was set."""
        with self._lock:
            return self._now

    def monotonic(self) -> float:
        """Return the seconds advanced so far; moving the wall clock back leaves it alone."""
        with self._lock:
            return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Advance both times by `seconds`."""
        self.advance(max(seconds, 0.0))

    async def pause(self, seconds: float) -> None:
        """Advance both times by `seconds`, and let other tasks run once."""
        self.advance(max(seconds, 0.0))
        await _import_asyncio().sleep(0)

    def advance(self, seconds: float) -> None:
        """Move wall clock and monotonic time forward."""
        with self._lock:
            self._now += dt.timedelta(seconds=seconds)
            self._monotonic += seconds

    def set_wall(self, now: dt.datetime) -> None:
        """Set the wall clock alone, backwards too, as an operator or NTP would."""
        with self._lock:
            self._now = now


def _import_asyncio() -> ModuleType:
    """Load the event loop only where there is one: most that need a clock have none."""
    import asyncio

    return asyncio


def to_epoch_ms(timestamp: dt.datetime) -> int:
    """Return milliseconds since 1970 of an aware instant."""
    return round(timestamp.timestamp() * 1000)
