"""The event loop thread in which a process makes its calls, and the calls in flight.

The thread has one event loop and one HTTP client, whose connections it keeps. One task thread
waits for its calls in its own order.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from snowmelt.functions.caller.http_client import HttpClient, new_event_loop

if TYPE_CHECKING:
    CoroutineFactory: TypeAlias = Callable[[], Coroutine[Any, Any, bytes]]

_STOP_TIMEOUT_S = 2.0


class EventLoopThread:
    """An event loop in a thread of its own, until the process ends; never holds that up."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.client = HttpClient()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run_loop, name="snowmelt-calls", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def is_current(self) -> bool:
        """Tell whether the caller is in the loop's own thread, which cannot wait for the loop."""
        return threading.current_thread() is self._thread

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _stop(self) -> None:
        # A fork inherits what is to be done at exit, but not the thread.
        if os.getpid() != self._pid or not self._thread.is_alive():
            return

        async def cancel_tasks_and_close() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.client.close()

        ending = asyncio.run_coroutine_threadsafe(cancel_tasks_and_close(), self.loop)
        try:
            ending.result(_STOP_TIMEOUT_S)
        except TimeoutError:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)


# By process: Spark forks its workers, and a loop does not survive that.
_event_loop_threads: dict[int, EventLoopThread] = {}
_start_locks: dict[int, threading.Lock] = {}


# Closing a connection takes no time; a loop that was stopped at the process's end takes forever.
_CLOSE_TIMEOUT_S = 5.0


class InFlightCall:
    """One call under way."""

    __slots__ = ("_flights", "_task", "_work", "body", "done", "error")

    def __init__(self, calls: InFlightCalls, coroutine_factory: CoroutineFactory) -> None:
        self.done = False
        self.body = b""
        self.error: BaseException | None = None
        self._flights = calls
        self._work = coroutine_factory
        self._task: asyncio.Task[None] | None = None

    def start_task(self) -> None:
        """Begin in the loop's thread."""
        if not self.done:
            self._task = self._flights.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            self.body = await self._work()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self.error = error
        finally:
            self._flights.mark_done(self)

    def cancel(self) -> None:
        """End it, in the loop's thread; its connection is closed."""
        if self._task is None:
            self._flights.mark_done(self)
        else:
            self._task.cancel()


class InFlightCalls:
    """All calls of one task that are under way."""

    def __init__(self) -> None:
        process = os.getpid()
        found = _event_loop_threads.get(process)
        if found is None:
            with _start_locks.setdefault(process, threading.Lock()):
                found = _event_loop_threads.get(process) or EventLoopThread()
                _event_loop_threads[process] = found
        self._event_loop_thread = found
        self.loop, self.client = self._event_loop_thread.loop, self._event_loop_thread.client
        self._pending_calls: set[InFlightCall] = set()
        self._awaited_call: InFlightCall | None = None
        # Cheaper than a future per call: who waits is woken for the one that it waits for.
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def start(self, coroutine_factory: CoroutineFactory) -> InFlightCall:
        """Start a call."""
        flight = InFlightCall(self, coroutine_factory)
        self._pending_calls.add(flight)
        self.loop.call_soon_threadsafe(flight.start_task)
        return flight

    def wait_until_done(self, call: InFlightCall) -> None:
        """Return as soon as a call has ended."""
        self._awaited_call = call
        while not call.done:
            self._wakes.get()

    def wait_for_result(self, call: InFlightCall) -> bytes:
        """Return what a call came to, as soon as it has.

        Raises:
            BaseException: Whatever the call ended with.
        """
        self.wait_until_done(call)
        self._pending_calls.discard(call)
        if call.error is not None:
            raise call.error
        return call.body

    def mark_done(self, call: InFlightCall) -> None:
        """Wake who waits for a call; in the loop's thread."""
        call.done = True
        if self._awaited_call is call:
            self._wakes.put(None)

    def close(self) -> None:
        """Cancel what is under way, and return when none of it is left."""
        under_way = [flight for flight in self._pending_calls if not flight.done]
        self._pending_calls.clear()
        for flight in under_way:
            self.loop.call_soon_threadsafe(flight.cancel)
        # A generator that nobody holds any more may be closed by any thread, the loop's as well.
        if self._event_loop_thread.is_current():
            return
        with contextlib.suppress(Empty):
            for flight in under_way:
                self._awaited_call = flight
                while not flight.done:
                    self._wakes.get(timeout=_CLOSE_TIMEOUT_S)
