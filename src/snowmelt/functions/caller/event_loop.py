"""The thread in which this process makes its calls: one event loop, and the connections it keeps."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from snowmelt.functions.caller.http_client import HttpClient, new_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeAlias

_STOP_S = 2.0


class Background:
    """An event loop in a thread of its own, until the process ends; never holds that up."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.client = HttpClient()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="snowmelt-calls", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def is_current(self) -> bool:
        """Tell whether the caller is in the loop's own thread, which cannot wait for the loop."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()

    def _stop(self) -> None:
        # A fork inherits what is to be done at exit, but not the thread.
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        ending = asyncio.run_coroutine_threadsafe(self._end(), self.loop)
        try:
            ending.result(_STOP_S)
        except TimeoutError:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_S)


# By process: Spark forks its workers, and a loop does not survive that.
_backgrounds: dict[int, Background] = {}
_starting: dict[int, threading.Lock] = {}


def background() -> Background:
    """Return this process's thread for calls, started by the first who asks."""
    process = os.getpid()
    found = _backgrounds.get(process)
    if found is None:
        with _starting.setdefault(process, threading.Lock()):
            found = _backgrounds.get(process) or Background()
            _backgrounds[process] = found
    return found


# --- Calls that run in the background, for one thread that waits for them in its own order.

if TYPE_CHECKING:
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
