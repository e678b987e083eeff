"""So many a second, over all worker processes of a machine."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from snowmelt.clock import Clock
    from snowmelt.functions.calling.host import HostFile

_NEXT = struct.Struct("=d")
# What a loop that woke late may make up for; it bounds the burst after a pause, too.
_MADE_UP_S = 0.05


class Pace:
    """Requests of all processes at equal distances; one object for a file in each process.

    The file holds the instant of the next request. Each process books one instant at a time, so
    processes take turns, and one that dies wastes a single request.
    """

    def __init__(self, file: HostFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def turn(self, per_second: float) -> None:
        """Wait until a request may be sent."""
        queue = self._queues.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with queue:
            at, following = self._book(1.0 / per_second)
            try:
                await self._clock.pause(at - self._clock.monotonic())
            except asyncio.CancelledError:
                self._give_back(at, following)
                raise

    def _book(self, distance_s: float) -> tuple[float, float]:
        with self._file.locked():
            (at,) = self._file.read(_NEXT)
            at = max(at, self._clock.monotonic() - _MADE_UP_S)
            self._file.write(_NEXT, at + distance_s)
            return at, at + distance_s

    def _give_back(self, at: float, following: float) -> None:
        with self._file.locked():
            if self._file.read(_NEXT) == (following,):
                self._file.write(_NEXT, at)
