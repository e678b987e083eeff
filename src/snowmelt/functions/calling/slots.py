"""So many at a time, over all worker processes of a machine."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.clock import Clock
    from snowmelt.functions.calling.host import HostFile

_CONTENDED = struct.Struct("=d")
# A process that waits for others looks so often: no process can wake another one's loop cheaply.
_LOOK_S = 0.004
# So long a process hands its slots on to its own batches while others wait for one.
_HANDED_ON_S = 0.1
# As long is a process that waits for others believed to wait still.
_BELIEVED_S = 0.05


class _Waiter:
    """A task that waits, woken when it may look again."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self.loop.create_future()

    async def woken(self, timeout_s: float | None) -> None:
        await asyncio.wait((self._woken,), timeout=timeout_s)
        if self._woken.done():
            self._woken = self.loop.create_future()

    def wake(self) -> None:
        self.loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)


class Slots:
    """Slots of one file; one object for a file in each process.

    Within a process, whoever came first is first. Among processes that wait for each other, each
    lets go of a slot after a tenth of a second and looks for another only after a pause. A slot is
    a lock of the operating system: it is free as soon as its process is dead.
    """

    def __init__(self, file: HostFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._since: dict[int, float] = {}
        self._handed_on: list[int] = []
        self._waiting: deque[_Waiter] = deque()
        self._resting_until = 0.0
        self._lock = threading.Lock()

    async def take(self, allowed: Callable[[], int]) -> int:
        """Wait for a slot and return it.

        Args:
            allowed: How many there are just now; asked again while waiting.
        """
        if not self._waiting:
            slot = self._take(allowed())
            if slot is not None:
                return slot
        me = _Waiter()
        self._waiting.append(me)
        try:
            while True:
                first = self._waiting[0] is me
                slot = self._take(allowed()) if first else None
                if slot is not None:
                    return slot
                await me.woken(_LOOK_S if first else None)
        finally:
            self._leave(me)

    def give(self, slot: int) -> None:
        """Give a slot back."""
        with self._lock:
            now = self._clock.monotonic()
            if self._waiting and not self._others_turn(slot, now):
                self._handed_on.append(slot)
            else:
                self._let_go(slot)
                if self._waiting:
                    self._resting_until = now + 2 * _LOOK_S
        self._wake_first()

    def _take(self, allowed: int) -> int | None:
        with self._lock:
            now = self._clock.monotonic()
            while self._handed_on:
                slot = self._handed_on.pop()
                if slot < allowed:
                    return slot
                self._let_go(slot)
            if now < self._resting_until:
                return None
            # Processes begin at different places, so that they seldom try each other's slots.
            begin = os.getpid() * 7
            for at in range(allowed):
                slot = (begin + at) % allowed
                if slot not in self._since and self._file.hold(slot):
                    self._since[slot] = now
                    return slot
            if len(self._since) < allowed:
                self._file.write(_CONTENDED, now)
            return None

    def _others_turn(self, slot: int, now: float) -> bool:
        if now - self._since[slot] < _HANDED_ON_S:
            return False
        (contended,) = self._file.read(_CONTENDED)
        return bool(now - contended < _BELIEVED_S)

    def _let_go(self, slot: int) -> None:
        del self._since[slot]
        self._file.let_go(slot)

    def _leave(self, waiter: _Waiter) -> None:
        self._waiting.remove(waiter)
        if not self._waiting:
            with self._lock:
                while self._handed_on:
                    self._let_go(self._handed_on.pop())
        self._wake_first()

    def _wake_first(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if not first.loop.is_closed():
                first.wake()
                return
            self._waiting.popleft()
