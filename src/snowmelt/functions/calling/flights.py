"""Calls that run in the background, for one thread that waits for them in its own order."""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from snowmelt.functions.calling.background import background

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeAlias

    Work: TypeAlias = Callable[[], Coroutine[Any, Any, bytes]]


# Closing a connection takes no time; a loop that was stopped at the process's end takes forever.
_CLOSE_S = 5.0


class Flight:
    """One call under way."""

    __slots__ = ("_flights", "_task", "_work", "body", "done", "error")

    def __init__(self, flights: Flights, work: Work) -> None:
        self.done = False
        self.body = b""
        self.error: BaseException | None = None
        self._flights = flights
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin in the loop's thread."""
        if not self.done:
            self._task = self._flights.loop.create_task(self._fly())

    async def _fly(self) -> None:
        try:
            self.body = await self._work()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self.error = error
        finally:
            self._flights.ended(self)

    def cancel(self) -> None:
        """End it, in the loop's thread; its connection is closed."""
        if self._task is None:
            self._flights.ended(self)
        else:
            self._task.cancel()


class Flights:
    """All calls of one task that are under way."""

    def __init__(self) -> None:
        self._background = background()
        self.loop = self._background.loop
        self._open: set[Flight] = set()
        self._awaited: Flight | None = None
        # Cheaper than a future per call: who waits is woken for the one that it waits for.
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def start(self, work: Work) -> Flight:
        """Start a call.

        Args:
            work: Makes the coroutine, in the loop's thread.
        """
        flight = Flight(self, work)
        self._open.add(flight)
        self.loop.call_soon_threadsafe(flight.begin)
        return flight

    def land(self, flight: Flight) -> None:
        """Return as soon as a call has ended."""
        self._awaited = flight
        while not flight.done:
            self._wakes.get()

    def wait(self, flight: Flight) -> bytes:
        """Return what a call came to, as soon as it has.

        Raises:
            BaseException: Whatever the call ended with.
        """
        self.land(flight)
        self._open.discard(flight)
        if flight.error is not None:
            raise flight.error
        return flight.body

    def ended(self, flight: Flight) -> None:
        """Wake who waits for a call; in the loop's thread."""
        flight.done = True
        if self._awaited is flight:
            self._wakes.put(None)

    def close(self) -> None:
        """Cancel what is under way, and return when none of it is left."""
        under_way = [flight for flight in self._open if not flight.done]
        self._open.clear()
        for flight in under_way:
            self.loop.call_soon_threadsafe(flight.cancel)
        # A generator that nobody holds any more may be closed by any thread, the loop's as well.
        if self._background.is_current():
            return
        with contextlib.suppress(Empty):
            for flight in under_way:
                self._awaited = flight
                while not flight.done:
                    self._wakes.get(timeout=_CLOSE_S)
