"""Rate limits, concurrency limits and budgets, shared by all worker processes of a machine.

RATE_LIMIT and MAX_IN_FLIGHT of a function apply per machine; a rate is divided by the number of
executors that the plan names. An origin that responds with 429 or 503 gets half as many concurrent
calls, and one more after each full window of successful responses. Only the number of calls in
flight changes, never the content of a batch. Without any limit, no file is touched.

A budget limits rows and calls per task, and per query over the processes of a machine. Each
request is one call, retries and polls included.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from snowmelt.functions.caller.shared_files import (
    SharedFile,
    delete_stale_files,
    ensure_private_folder,
    make_shared_file_name,
)
from snowmelt.functions.errors import BudgetExceeded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from snowmelt.clock import Clock
    from snowmelt.functions.caller.plan import CallPlan, QueryPosition

_NEXT_REQUEST_FORMAT = struct.Struct("=d")
# What a loop that woke late may make up for; it bounds the burst after a pause, too.
_MAX_CATCH_UP_S = 0.05


class RequestSpacing:
    """Requests of all processes at equal distances; one object for a file in each process.

    The file holds the instant of the next request. Each process books one instant at a time, so
    processes take turns, and one that dies wastes a single request.
    """

    def __init__(self, file: SharedFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._loop_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def acquire(self, requests_per_second: float) -> None:
        """Wait until a request may be sent."""
        queue = self._loop_locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with queue:
            at, following = self._reserve(1.0 / requests_per_second)
            try:
                await self._clock.pause(at - self._clock.monotonic())
            except asyncio.CancelledError:
                self._cancel_reservation(at, following)
                raise

    def _reserve(self, interval_s: float) -> tuple[float, float]:
        with self._file.locking():
            (at,) = self._file.read_numbers(_NEXT_REQUEST_FORMAT)
            at = max(at, self._clock.monotonic() - _MAX_CATCH_UP_S)
            self._file.write_numbers(_NEXT_REQUEST_FORMAT, at + interval_s)
            return at, at + interval_s

    def _cancel_reservation(self, reserved_at: float, next_at: float) -> None:
        with self._file.locking():
            if self._file.read_numbers(_NEXT_REQUEST_FORMAT) == (next_at,):
                self._file.write_numbers(_NEXT_REQUEST_FORMAT, reserved_at)


_CONTENDED_AT_FORMAT = struct.Struct("=d")
# A process that waits for others looks so often: no process can wake another one's loop cheaply.
_POLL_INTERVAL_S = 0.004
# So long a process hands its slots on to its own batches while others wait for one.
_MAX_LOCAL_HOLD_S = 0.1
# As long is a process that waits for others believed to wait still.
_CONTENTION_TTL_S = 0.05


class _Waiter:
    """A task that waits, woken when it may look again."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._wake_future: asyncio.Future[None] = self.loop.create_future()

    async def wait(self, timeout_s: float | None) -> None:
        await asyncio.wait((self._wake_future,), timeout=timeout_s)
        if self._wake_future.done():
            self._wake_future = self.loop.create_future()

    def wake(self) -> None:
        self.loop.call_soon_threadsafe(self._complete_wake_future)

    def _complete_wake_future(self) -> None:
        if not self._wake_future.done():
            self._wake_future.set_result(None)


class SharedSemaphore:
    """Slots of one file; one object for a file in each process.

    Within a process, whoever came first is first. Among processes that wait for each other, each
    lets go of a slot after a tenth of a second and looks for another only after a pause. A slot is
    a lock of the operating system: it is free as soon as its process is dead.
    """

    def __init__(self, file: SharedFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._acquired_at: dict[int, float] = {}
        self._transferred_slots: list[int] = []
        self._waiters: deque[_Waiter] = deque()
        self._paused_until = 0.0
        self._lock = threading.Lock()

    async def acquire_slot(self, get_allowed: Callable[[], int]) -> int:
        """Wait for a slot and return it.

        Args:
            get_allowed: How many there are just now; asked again while waiting.
        """
        if not self._waiters:
            slot = self._try_acquire_slot(get_allowed())
            if slot is not None:
                return slot
        me = _Waiter()
        self._waiters.append(me)
        try:
            while True:
                first = self._waiters[0] is me
                slot = self._try_acquire_slot(get_allowed()) if first else None
                if slot is not None:
                    return slot
                await me.wait(_POLL_INTERVAL_S if first else None)
        finally:
            self._remove_waiter(me)

    def release_slot(self, slot: int) -> None:
        """Give a slot back."""
        with self._lock:
            now = self._clock.monotonic()
            if self._waiters and not self._should_yield(slot, now):
                self._transferred_slots.append(slot)
            else:
                self._unlock_slot(slot)
                if self._waiters:
                    self._paused_until = now + 2 * _POLL_INTERVAL_S
        self._wake_first()

    def _try_acquire_slot(self, allowed: int) -> int | None:
        with self._lock:
            now = self._clock.monotonic()
            while self._transferred_slots:
                slot = self._transferred_slots.pop()
                if slot < allowed:
                    return slot
                self._unlock_slot(slot)
            if now < self._paused_until:
                return None
            # Processes begin at different places, so that they seldom try each other's slots.
            begin = os.getpid() * 7
            for at in range(allowed):
                slot = (begin + at) % allowed
                if slot not in self._acquired_at and self._file.try_lock_slot(slot):
                    self._acquired_at[slot] = now
                    return slot
            if len(self._acquired_at) < allowed:
                self._file.write_numbers(_CONTENDED_AT_FORMAT, now)
            return None

    def _should_yield(self, slot: int, now: float) -> bool:
        if now - self._acquired_at[slot] < _MAX_LOCAL_HOLD_S:
            return False
        (contended,) = self._file.read_numbers(_CONTENDED_AT_FORMAT)
        return bool(now - contended < _CONTENTION_TTL_S)

    def _unlock_slot(self, slot: int) -> None:
        del self._acquired_at[slot]
        self._file.unlock_slot(slot)

    def _remove_waiter(self, waiter: _Waiter) -> None:
        self._waiters.remove(waiter)
        if not self._waiters:
            with self._lock:
                while self._transferred_slots:
                    self._unlock_slot(self._transferred_slots.pop())
        self._wake_first()

    def _wake_first(self) -> None:
        while self._waiters:
            first = self._waiters[0]
            if not first.loop.is_closed():
                first.wake()
                return
            self._waiters.popleft()


_WINDOW_FORMAT = struct.Struct("=dddd")
_WINDOW_OFFSET_BYTES = 64
_MAX_WINDOW = 1024
# An origin that was not too busy for so long is no longer held back.
_WINDOW_TTL_S = 600.0
# With one in flight still too many, all wait: so long unless the service says how long, at most …
_THROTTLE_PAUSE_S = 0.2
_MAX_THROTTLE_PAUSE_S = 30.0


class ConcurrencyWindow:
    """How many may be in flight to an origin that was too busy at some time."""

    def __init__(self, file: SharedFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock

    def get_limit(self) -> int:
        """Return how many may be in flight now; 0 while all wait."""
        limit, _, cut_at, quiet_until = self._file.read_numbers(
            _WINDOW_FORMAT, _WINDOW_OFFSET_BYTES
        )
        now = self._clock.monotonic()
        if now < quiet_until <= now + _MAX_THROTTLE_PAUSE_S:
            return 0
        return int(limit) if limit and 0 <= now - cut_at < _WINDOW_TTL_S else _MAX_WINDOW

    def shrink(self, started_at: float, in_flight: int, retry_after_s: float | None) -> None:
        """Halve it, unless the call began before it was halved last.

        `started_at`: Monotonic seconds at which the call that was turned away began.
        """
        with self._file.locking():
            limit, _, cut_at, quiet_until = self._file.read_numbers(
                _WINDOW_FORMAT, _WINDOW_OFFSET_BYTES
            )
            now = self._clock.monotonic()
            if not limit or not 0 <= now - cut_at < _WINDOW_TTL_S:
                limit = in_flight
            elif started_at <= cut_at:
                return
            if limit <= 1:
                quiet_s = _THROTTLE_PAUSE_S if retry_after_s is None else retry_after_s
                quiet_until = now + min(quiet_s, _MAX_THROTTLE_PAUSE_S)
            self._file.write_numbers(
                _WINDOW_FORMAT,
                max(1, limit // 2),
                0,
                now,
                quiet_until,
                offset_bytes=_WINDOW_OFFSET_BYTES,
            )

    def grow(self) -> None:
        """Count a good reply: a whole window of them widens it by one."""
        with self._file.locking():
            limit, good, cut_at, quiet_until = self._file.read_numbers(
                _WINDOW_FORMAT, _WINDOW_OFFSET_BYTES
            )
            if not limit:
                return
            good += 1
            if good >= limit:
                limit, good = min(limit + 1, _MAX_WINDOW), 0
            self._file.write_numbers(
                _WINDOW_FORMAT, limit, good, cut_at, quiet_until, offset_bytes=_WINDOW_OFFSET_BYTES
            )


class _OriginLimits:
    """What a process knows of an origin; slots and window once anybody was turned away."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self.in_flight = 0
        self.shared_limits: tuple[SharedSemaphore, ConcurrencyWindow] | None = None
        if path.exists():
            self.get_shared_window()

    def get_shared_window(self) -> ConcurrencyWindow:
        """Return the window, which the processes share from now on."""
        if self.shared_limits is None:
            file = SharedFile(self._path)
            self.shared_limits = (
                SharedSemaphore(file, self._clock),
                ConcurrencyWindow(file, self._clock),
            )
        return self.shared_limits[1]


@dataclass(frozen=True, slots=True)
class _FunctionLimits:
    """What a function's clauses say, and where it is kept."""

    clock: Clock
    max_in_flight: int = 0
    semaphore: SharedSemaphore | None = None
    requests_per_second: float = 0.0
    spacing: RequestSpacing | None = None


# By process, because what a fork inherits of them would not be its own: locks above all.
_origin_limits: dict[tuple[int, Path], _OriginLimits] = {}
_semaphores: dict[tuple[int, Path], SharedSemaphore] = {}
_spacings: dict[tuple[int, Path], RequestSpacing] = {}


class RateLimiter:
    """The limits of one function's calls, in any number of tasks of an event loop."""

    def __init__(self, plan: CallPlan, clock: Clock, *, folder: Path | None = None) -> None:
        function = plan.function
        self._clock = clock
        self._folder = folder or ensure_private_folder()
        name = (function.url, function.signature.name)
        rules = _FunctionLimits(clock)
        if function.max_in_flight is not None:
            slots = _get_semaphore(self._folder / make_shared_file_name("slots", *name), clock)
            rules = replace(rules, max_in_flight=function.max_in_flight, semaphore=slots)
        if function.rate_limit is not None:
            pace = _get_spacing(self._folder / make_shared_file_name("pace", *name), clock)
            per_second = function.rate_limit / plan.options.executors
            rules = replace(rules, requests_per_second=per_second, spacing=pace)
        self._function_limits = rules
        self._origins: dict[str, _OriginLimits] = {}

    def acquire(self, url: str) -> AcquiredPermit:
        """Return what waits, entered by `async with`, until a call may be made, and ends with it.

        The time waited is nobody's failure: it should count towards no timeout of the call.
        """
        origin = self._origins.get(url)
        if origin is None:
            parts = urlsplit(url)
            path = self._folder / make_shared_file_name("origin", parts.scheme, parts.netloc)
            origin = _get_origin_limits(path, self._clock)
            self._origins[url] = origin
        return AcquiredPermit(self._function_limits, origin)


class AcquiredPermit:
    """One call that may be made, from when it is entered until it is left."""

    def __init__(self, function_limits: _FunctionLimits, origin: _OriginLimits) -> None:
        self._function_limits = function_limits
        self._origin = origin
        self._acquired_slots: list[tuple[SharedSemaphore, int]] = []
        self._request_started_at = 0.0

    async def __aenter__(self) -> Self:
        rules, shared = self._function_limits, self._origin.shared_limits
        try:
            if rules.semaphore is not None:
                self._acquired_slots.append(
                    (
                        rules.semaphore,
                        await rules.semaphore.acquire_slot(lambda: rules.max_in_flight),
                    )
                )
            if shared is not None:
                slots, window = shared
                self._acquired_slots.append((slots, await slots.acquire_slot(window.get_limit)))
            await self.acquire_next_request()
        except BaseException:
            self._release_slots()
            raise
        self._origin.in_flight += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._origin.in_flight -= 1
        self._release_slots()

    async def acquire_next_request(self) -> None:
        """Wait until one more request of the same call may be sent: a retry or a poll."""
        if self._function_limits.spacing is not None:
            await self._function_limits.spacing.acquire(self._function_limits.requests_per_second)
        self._request_started_at = self._function_limits.clock.monotonic()

    def record_success(self) -> None:
        """Say that the origin answered well: after a while it is asked by more at a time."""
        if self._origin.shared_limits is not None:
            self._origin.get_shared_window().grow()

    def record_throttled(self, retry_after_s: float | None = None) -> None:
        """Say that the origin is too busy (429, 503): it is asked by half as many at a time.

        Args:
            retry_after_s: What its Retry-After said. That is for the call's own retry; others
                wait for it, half a minute at most, only where one at a time was too much.
        """
        self._origin.get_shared_window().shrink(
            self._request_started_at, self._origin.in_flight, retry_after_s
        )

    def _release_slots(self) -> None:
        while self._acquired_slots:
            slots, slot = self._acquired_slots.pop()
            slots.release_slot(slot)


def _get_semaphore(path: Path, clock: Clock) -> SharedSemaphore:
    key = (os.getpid(), path)
    return _semaphores.get(key) or _semaphores.setdefault(
        key, SharedSemaphore(SharedFile(path), clock)
    )


def _get_spacing(path: Path, clock: Clock) -> RequestSpacing:
    key = (os.getpid(), path)
    return _spacings.get(key) or _spacings.setdefault(key, RequestSpacing(SharedFile(path), clock))


def _get_origin_limits(path: Path, clock: Clock) -> _OriginLimits:
    key = (os.getpid(), path)
    return _origin_limits.get(key) or _origin_limits.setdefault(key, _OriginLimits(path, clock))


_SPENT_FORMAT = struct.Struct("=QQ")
# A query's file is of no use once the query is over, and none lasts for so long.
_BUDGET_FILE_TTL_S = 7 * 24 * 3600.0


class CallBudget:
    """What one task may still spend; for any number of threads, to be closed at the end.

    What was spent is not given back: a retry is another call, and so is a task's next attempt.
    """

    def __init__(
        self, plan: CallPlan, position: QueryPosition, clock: Clock, *, folder: Path | None = None
    ) -> None:
        """Prepare; without a budget of the query, no file is touched."""
        options = plan.options
        self._function = plan.function.signature.name
        self._task_limits = (options.max_rows_per_task, options.max_calls_per_task)
        self._query_limits = (options.max_rows_per_query, options.max_calls_per_query)
        self._executors = options.executors
        # Shares that together are never more than the whole; less than one each is none.
        self._query_share = tuple(
            None if limit is None else limit // self._executors for limit in self._query_limits
        )
        self._has_task_limits = self._task_limits != (None, None)
        self._spent = (0, 0)
        self._lock = threading.Lock()
        self._file: SharedFile | None = None
        if self._query_share != (None, None):
            folder = folder or ensure_private_folder()
            path = folder / make_shared_file_name("budget", position.query_id)
            if not path.exists():
                delete_stale_files(folder, "budget", clock, _BUDGET_FILE_TTL_S)
            self._file = SharedFile(path)

    def spend(self, *, rows: int = 0, calls: int = 1) -> None:
        """Spend before a request is sent; nothing is spent where it is refused.

        `rows`: In the request; 0 for one that is sent again.

        Raises:
            BudgetExceeded: It would be more than a setting allows.
        """
        if self._has_task_limits:
            with self._lock:
                self._spent = self._add_within_limits(
                    self._spent, (rows, calls), self._task_limits, "task"
                )
        if self._file is not None:
            with self._file.locking():
                spent = self._file.read_numbers(_SPENT_FORMAT)
                spent = self._add_within_limits(
                    (spent[0], spent[1]), (rows, calls), self._query_share, "query"
                )
                self._file.write_numbers(_SPENT_FORMAT, *spent)

    def close(self) -> None:
        """Close the query's file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add_within_limits(
        self,
        spent: tuple[int, int],
        amount: tuple[int, int],
        limits: tuple[int | None, ...],
        scope: str,
    ) -> tuple[int, int]:
        total = (spent[0] + amount[0], spent[1] + amount[1])
        for at, what in enumerate(("rows", "calls")):
            limit = limits[at]
            if limit is not None and total[at] > limit:
                shared = scope == "query" and self._executors > 1
                raise BudgetExceeded(
                    function=self._function,
                    what=what,
                    limit=self._query_limits[at] if shared else limit,
                    setting=f"max_{what}_per_{scope}",
                    share=f" (the share of each of {self._executors} machines is {limit})"
                    if shared
                    else "",
                )
        return total
