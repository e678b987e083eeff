"""Rate limits, concurrency limits, budgets and circuit breakers that a machine's processes share.

RATE_LIMIT and MAX_IN_FLIGHT of a function apply per machine; a rate is divided by the number of
executors that the plan names. An origin that responds with 429 or 503 gets half as many concurrent
calls, and one more after each full window of successful responses. Only the number of calls in
flight changes, never the content of a batch. Without any limit, no file is touched.

A budget limits rows and calls per task, and per query over the processes of a machine. Each
request is one call, retries and polls included.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import fcntl
import hashlib
import json
import os
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from snowmelt.clock import Clock
from snowmelt.errors import ConfigurationError
from snowmelt.functions.caller.plan import CallPlan, QueryPosition
from snowmelt.functions.errors import BudgetExceeded, CallFailed, CircuitOpen

_Shared = TypeVar("_Shared")
_BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
# Locks of slots lie beyond everything that is ever written.
_SLOT_LOCKS_OFFSET_BYTES = 1 << 20


def ensure_private_folder(parent: Path | None = None) -> Path:
    """Return the folder of this user in the machine's folder of temporary files.

    Raises:
        ConfigurationError: Somebody else owns it, or can look into it.
    """
    folder = (parent or Path(tempfile.gettempdir())) / f"snowmelt-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigurationError(
            setting="TMPDIR", reason=f"{folder} is not a folder that only this user can open"
        )
    return folder


def make_shared_file_name(kind: str, *keys: str) -> str:
    """Return the name of the file that is shared by all who give the same keys."""
    digest = hashlib.sha256("\0".join((_read_boot_id(), *keys)).encode())
    return f"{kind}-{digest.hexdigest()[:32]}"


def delete_stale_files(folder: Path, kind: str, clock: Clock, max_age_s: float) -> None:
    """Delete the files of a kind that no process has written to for so long."""
    oldest = clock.now().timestamp() - max_age_s
    for path in folder.glob(f"{kind}-*"):
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
        except FileNotFoundError:
            continue


# By process, because what a fork inherits would not be its own: locks above all.
_shared_objects: dict[tuple[int, Path], Any] = {}


def share_in_process(path: Path, make: Callable[[], _Shared]) -> _Shared:
    """Return the one object of this process for a file."""
    key = (os.getpid(), path)
    found: _Shared = _shared_objects.get(key) or _shared_objects.setdefault(key, make())
    return found


@lru_cache(maxsize=1)
def _read_boot_id() -> str:
    try:
        return _BOOT_ID_PATH.read_text()
    except OSError:
        return ""


class SharedFile:
    """A few numbers that processes share, and locks that die with their holder.

    Closing any descriptor of a file lets go of all slots that this process holds there, so a
    process has one HostFile for a file with slots, and keeps it.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, made if there is none; reading what was never written gives zeros."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        self._thread_lock = threading.Lock()

    def close(self) -> None:
        """Close it; only for files without slots."""
        os.close(self._descriptor)

    @contextmanager
    def locking(self) -> Iterator[None]:
        """Keep other threads and processes out; for microseconds only."""
        with self._thread_lock:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def read_numbers(self, layout: struct.Struct, offset_bytes: int = 0) -> tuple[Any, ...]:
        """Return the numbers that lie at a place."""
        found = os.pread(self._descriptor, layout.size, offset_bytes)
        return layout.unpack(found.ljust(layout.size, b"\0"))

    def write_numbers(
        self, layout: struct.Struct, *values: float | bytes, offset_bytes: int = 0
    ) -> None:
        """Put numbers at a place; one of up to 4096 bytes is there as a whole or not at all."""
        os.pwrite(self._descriptor, layout.pack(*values), offset_bytes)

    def append_key_and_count_previous(self, key: bytes) -> int:
        """Add a key to the file's list; return how often it was there before.

        Args:
            key: As long as all others of the file.
        """
        with self.locking():
            end = os.fstat(self._descriptor).st_size
            listed = os.pread(self._descriptor, end, 0)
            os.pwrite(self._descriptor, key, end - end % len(key))
        keys = (listed[at : at + len(key)] for at in range(0, end, len(key)))
        return sum(each == key for each in keys)

    def try_lock_slot(self, slot: int) -> bool:
        """Take a slot unless another process holds it; tell whether it is ours."""
        try:
            fcntl.lockf(
                self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _SLOT_LOCKS_OFFSET_BYTES + slot
            )
        except OSError:
            return False
        return True

    def unlock_slot(self, slot: int) -> None:
        """Give a slot back."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _SLOT_LOCKS_OFFSET_BYTES + slot)


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
        async with self._loop_locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            with self._file.locking():
                (at,) = self._file.read_numbers(_NEXT_REQUEST_FORMAT)
                at = max(at, self._clock.monotonic() - _MAX_CATCH_UP_S)
                following = at + 1.0 / requests_per_second
                self._file.write_numbers(_NEXT_REQUEST_FORMAT, following)
            try:
                await self._clock.pause(at - self._clock.monotonic())
            except asyncio.CancelledError:
                with self._file.locking():
                    if self._file.read_numbers(_NEXT_REQUEST_FORMAT) == (following,):
                        self._file.write_numbers(_NEXT_REQUEST_FORMAT, at)
                raise


_CONTENDED_AT_FORMAT = struct.Struct("=d")
# A process that waits for others looks so often: no process can wake another one's loop cheaply.
_POLL_INTERVAL_S = 0.004
# So long a process hands its slots on to its own batches while others wait for one.
_MAX_LOCAL_HOLD_S = 0.1
# As long is a process that waits for others believed to wait still.
_CONTENTION_TTL_S = 0.05


class SharedSemaphore:
    """Slots of one file; one object for a file in each process.

    Within a process, whoever came first is first. Among processes that wait for each other, each
    takes no slot for a moment after each tenth of a second. A slot is a lock of the operating
    system: it is free as soon as its process is dead.
    """

    def __init__(self, file: SharedFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._held_slots: set[int] = set()
        self._turn_began_at = 0.0
        self._paused_until = 0.0
        # Of each event loop: the line of those who wait, and what wakes the first of them.
        self._queues: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[asyncio.Lock, asyncio.Event]
        ] = WeakKeyDictionary()
        self._lock = threading.Lock()

    async def acquire_slot(self, get_allowed: Callable[[], int]) -> int:
        """Wait for a slot and return it; `get_allowed` returns how many there are just now."""
        loop = asyncio.get_running_loop()
        queue, released = self._queues.setdefault(loop, (asyncio.Lock(), asyncio.Event()))
        async with queue:
            while (slot := self._try_acquire_slot(get_allowed())) is None:
                released.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_INTERVAL_S):
                        await released.wait()
            return slot

    def release_slot(self, slot: int) -> None:
        """Give a slot back."""
        with self._lock:
            self._held_slots.remove(slot)
            self._file.unlock_slot(slot)
            now = self._clock.monotonic()
            if now - self._turn_began_at >= _MAX_LOCAL_HOLD_S:
                (contended_at,) = self._file.read_numbers(_CONTENDED_AT_FORMAT)
                if now - contended_at < _CONTENTION_TTL_S:
                    self._paused_until = self._turn_began_at = now + 2 * _POLL_INTERVAL_S
        for loop, (queue, released) in [*self._queues.items()]:
            if queue.locked() and not loop.is_closed():
                loop.call_soon_threadsafe(released.set)

    def _try_acquire_slot(self, allowed: int) -> int | None:
        with self._lock:
            now = self._clock.monotonic()
            if now < self._paused_until:
                return None
            # Processes begin at different places, so that they seldom try each other's slots.
            begin = os.getpid() * 7
            for at in range(allowed):
                slot = (begin + at) % allowed
                if slot not in self._held_slots and self._file.try_lock_slot(slot):
                    if not self._held_slots:
                        self._turn_began_at = now
                    self._held_slots.add(slot)
                    return slot
            if len(self._held_slots) < allowed:
                self._file.write_numbers(_CONTENDED_AT_FORMAT, now)
            return None


_WINDOW_FORMAT = struct.Struct("=dddd")
_WINDOW_OFFSET = 64  # bytes
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

    def _read(self) -> tuple[float, float, float, float]:
        """Return limit, good replies since it grew, and when it was cut and all may go on."""
        limit, good, cut_at, quiet_until = self._file.read_numbers(_WINDOW_FORMAT, _WINDOW_OFFSET)
        return limit, good, cut_at, quiet_until

    def _write(self, *numbers: float) -> None:
        self._file.write_numbers(_WINDOW_FORMAT, *numbers, offset_bytes=_WINDOW_OFFSET)

    def get_limit(self) -> int:
        """Return how many may be in flight now; 0 while all wait."""
        limit, _, cut_at, quiet_until = self._read()
        now = self._clock.monotonic()
        if now < quiet_until <= now + _MAX_THROTTLE_PAUSE_S:
            return 0
        return int(limit) if limit and 0 <= now - cut_at < _WINDOW_TTL_S else _MAX_WINDOW

    def shrink(self, started_at: float, in_flight: int, retry_after_s: float | None) -> None:
        """Halve it, or `in_flight` where there is none, unless it was cut since `started_at`."""
        with self._file.locking():
            limit, _, cut_at, quiet_until = self._read()
            now = self._clock.monotonic()
            if not limit or not 0 <= now - cut_at < _WINDOW_TTL_S:
                limit = in_flight
            elif started_at <= cut_at:
                return
            if limit <= 1:
                quiet_s = _THROTTLE_PAUSE_S if retry_after_s is None else retry_after_s
                quiet_until = now + min(quiet_s, _MAX_THROTTLE_PAUSE_S)
            self._write(max(1, limit // 2), 0, now, quiet_until)

    def grow(self) -> None:
        """Count a good reply: a whole window of them widens it by one."""
        with self._file.locking():
            limit, good, cut_at, quiet_until = self._read()
            if limit:
                good += 1
                if good >= limit:
                    limit, good = min(limit + 1, _MAX_WINDOW), 0
                self._write(limit, good, cut_at, quiet_until)


class _OriginLimits:
    """What a process knows of an origin; slots and window once anybody was turned away."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self.in_flight = 0
        self.semaphore: SharedSemaphore | None = None
        self.window: ConcurrencyWindow | None = None
        if path.exists():
            self.share_window()

    def share_window(self) -> ConcurrencyWindow:
        """Return the window, which the processes share from now on."""
        if self.window is None:
            file = SharedFile(self._path)
            self.semaphore = SharedSemaphore(file, self._clock)
            self.window = ConcurrencyWindow(file, self._clock)
        return self.window


class RateLimiter:
    """The limits of one function's calls, in any number of tasks of an event loop."""

    def __init__(self, plan: CallPlan, clock: Clock, *, folder: Path | None = None) -> None:
        function = plan.function
        self.clock = clock
        self._folder = folder or ensure_private_folder()
        name = (function.url, function.signature.name)
        self.max_in_flight = function.max_in_flight or 0
        self.semaphore: SharedSemaphore | None = None
        if function.max_in_flight is not None:
            path = self._folder / make_shared_file_name("slots", *name)
            self.semaphore = share_in_process(
                path, lambda: SharedSemaphore(SharedFile(path), clock)
            )
        self.requests_per_second = (function.rate_limit or 0.0) / plan.options.executors
        self.spacing: RequestSpacing | None = None
        if function.rate_limit is not None:
            pace = self._folder / make_shared_file_name("pace", *name)
            self.spacing = share_in_process(pace, lambda: RequestSpacing(SharedFile(pace), clock))
        self._origins: dict[str, _OriginLimits] = {}

    def acquire(self, url: str) -> AcquiredPermit:
        """Return what waits, entered by `async with`, until a call may be made, and ends with it.

        The time waited is nobody's failure: it should count towards no timeout of the call.
        """
        origin = self._origins.get(url)
        if origin is None:
            parts = urlsplit(url)
            path = self._folder / make_shared_file_name("origin", parts.scheme, parts.netloc)
            origin = share_in_process(path, lambda: _OriginLimits(path, self.clock))
            self._origins[url] = origin
        return AcquiredPermit(self, origin)


class AcquiredPermit:
    """One call that may be made, from when it is entered until it is left."""

    def __init__(self, function_limits: RateLimiter, origin: _OriginLimits) -> None:
        self._function_limits = function_limits
        self._origin = origin
        self._acquired_slots: list[tuple[SharedSemaphore, int]] = []
        self._request_started_at = 0.0

    async def __aenter__(self) -> Self:
        limits, origin = self._function_limits, self._origin
        try:
            if limits.semaphore is not None:
                slot = await limits.semaphore.acquire_slot(lambda: limits.max_in_flight)
                self._acquired_slots.append((limits.semaphore, slot))
            if origin.semaphore is not None and origin.window is not None:
                slot = await origin.semaphore.acquire_slot(origin.window.get_limit)
                self._acquired_slots.append((origin.semaphore, slot))
            await self.acquire_next_request()
        except BaseException:
            self._release_slots()
            raise
        origin.in_flight += 1
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._origin.in_flight -= 1
        self._release_slots()

    async def acquire_next_request(self) -> None:
        """Wait until one more request of the same call may be sent: a retry or a poll."""
        limits = self._function_limits
        if limits.spacing is not None:
            await limits.spacing.acquire(limits.requests_per_second)
        self._request_started_at = limits.clock.monotonic()

    def record_success(self) -> None:
        """Say that the origin answered well: after a while it is asked by more at a time."""
        if self._origin.window is not None:
            self._origin.window.grow()

    def record_throttled(self, retry_after_s: float | None = None) -> None:
        """Say that the origin is too busy (429, 503): it is asked by half as many at a time.

        `retry_after_s` is for the call's own retry; others wait for it, half a minute at most,
        only where one at a time was too much.
        """
        self._origin.share_window().shrink(
            self._request_started_at, self._origin.in_flight, retry_after_s
        )

    def _release_slots(self) -> None:
        while self._acquired_slots:
            semaphore, slot = self._acquired_slots.pop()
            semaphore.release_slot(slot)


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
        self._spent = (0, 0)
        self._lock = threading.Lock()
        self._file: SharedFile | None = None
        if self._query_share != (None, None):
            folder = folder or ensure_private_folder()
            path = folder / make_shared_file_name("budget", position.query_id)
            if not path.exists():
                delete_stale_files(folder, "budget", clock, _BUDGET_FILE_TTL_S)
            self._file = SharedFile(path)

    def spend(self, *, rows: int = 0) -> None:
        """Spend a request before it is sent, with 0 rows again; nothing where it is refused.

        Raises:
            BudgetExceeded: It would be more than a setting allows.
        """
        if self._task_limits != (None, None):
            with self._lock:
                self._spent = self._add_within_limits(self._spent, rows, self._task_limits, "task")
        if self._file is not None:
            with self._file.locking():
                spent = self._file.read_numbers(_SPENT_FORMAT)
                spent = self._add_within_limits(spent, rows, self._query_share, "query")
                self._file.write_numbers(_SPENT_FORMAT, *spent)

    def close(self) -> None:
        """Close the query's file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add_within_limits(
        self, spent: tuple[int, ...], rows: int, limits: tuple[int | None, ...], scope: str
    ) -> tuple[int, int]:
        total = (spent[0] + rows, spent[1] + 1)
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


# Circuit breakers, which open after several consecutive failed batches; all worker processes share
# the state of a URL. Failed batches are cached so that the next attempt of a task fails immediately.
# Spark ends a worker process whose task failed, so that cache is in files, one per batch. Only
# attempts after the first read it: a query that is started anew sends its batches anew.

_FAILURE_THRESHOLD = 5
_OPEN_DURATION_S = 30.0
# A service that says so is well; it is what was sent that it does not take.
_BATCH_ERROR_STATUSES = frozenset({400, 413, 422})
_MAX_REASON_BYTES = 1_000
_STATE_FORMAT = struct.Struct(f"=QddH{_MAX_REASON_BYTES}s")


class _BreakerState(NamedTuple):
    """`opened_at` in seconds since 1970, `probe_at` monotonic; both 0 while the breaker is closed."""

    consecutive_failures: int = 0
    opened_at: float = 0.0
    probe_at: float = 0.0
    reason: str = ""


class CircuitBreaker:
    """What one URL's batches came to lately; for any number of threads and processes.

    It opens after so many batches in a row that failed for good. After the pause one batch goes
    through: if it is answered all may, if it fails the pause begins again.
    """

    def __init__(self, clock: Clock, file: SharedFile) -> None:
        self._clock = clock
        self._file = file

    def check_call_allowed(self, function: str) -> None:
        """Let a batch through, or not.

        Raises:
            CircuitOpen: Too many have failed, and the pause is not over.
        """
        if not self._read_state().opened_at:
            return
        with self._file.locking():
            state = self._read_state()
            if not state.opened_at:
                return
            now = self._clock.monotonic()
            if now >= state.probe_at:
                # Others wait for the probe's outcome; one that never comes to an end does not
                # keep them out for longer than another pause.
                self._write_state(state._replace(probe_at=now + _OPEN_DURATION_S))
                return
        raise CircuitOpen(
            function=function,
            failures=state.consecutive_failures,
            since=dt.datetime.fromtimestamp(state.opened_at, dt.UTC).isoformat(
                sep=" ", timespec="seconds"
            ),
            reason=state.reason,
            seconds=state.probe_at - now,
        )

    def record_success(self) -> None:
        """Count a batch that was answered."""
        if self._read_state().consecutive_failures:
            with self._file.locking():
                self._write_state(_BreakerState())

    def record_failure(self, reason: str, status: int | None = None) -> None:
        """Count a batch that failed for good, unless only this batch is to blame.

        `reason`: It is shown for other batches, too.
        """
        if status in _BATCH_ERROR_STATUSES:
            return
        with self._file.locking():
            failed, opened_at, probe_at, _ = self._read_state()
            failed += 1
            if failed >= _FAILURE_THRESHOLD:
                opened_at = opened_at or self._clock.now().timestamp()
                probe_at = self._clock.monotonic() + _OPEN_DURATION_S
            self._write_state(_BreakerState(failed, opened_at, probe_at, reason.rstrip(".")))

    def _read_state(self) -> _BreakerState:
        failed, since, probe_at, size, reason = self._file.read_numbers(_STATE_FORMAT)
        return _BreakerState(failed, since, probe_at, reason[:size].decode(errors="replace"))

    def _write_state(self, state: _BreakerState) -> None:
        *numbers, reason = state
        text = reason.encode(errors="replace")[:_MAX_REASON_BYTES]
        self._file.write_numbers(_STATE_FORMAT, *numbers, len(text), text)


def get_circuit_breaker(url: str, clock: Clock, *, folder: Path | None = None) -> CircuitBreaker:
    """Return the breaker that all calls of this machine and user to a URL share."""
    path = (folder or ensure_private_folder()) / make_shared_file_name("breaker", url)
    return share_in_process(path, lambda: CircuitBreaker(clock, SharedFile(path)))


_FAILURE_TTL_S = 600.0


class FailedBatchCache:
    """What the processes of this machine remember for one attempt at a task."""

    def __init__(
        self, position: QueryPosition, clock: Clock, *, folder: Path | None = None
    ) -> None:
        self._clock = clock
        self._folder = folder or ensure_private_folder()
        task = (position.query_id, str(position.stage), str(position.partition))
        self._prefix = make_shared_file_name("failed", *task)
        # Mostly there are none: then no batch costs a look.
        known = [*self._folder.glob(f"{self._prefix}-*")]
        if position.attempt == 0:
            for path in known:
                path.unlink(missing_ok=True)
        self._has_failures = position.attempt > 0 and bool(known)

    def raise_cached_failure(self, batch_id: str) -> None:
        """Return if the batch may be sent.

        Raises:
            CallFailed: An earlier attempt on this machine sent it, and it failed for good.
        """
        if not self._has_failures:
            return
        path = self._make_failure_path(batch_id)
        try:
            if path.stat().st_mtime < self._clock.now().timestamp() - _FAILURE_TTL_S:
                return
            fields = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            return
        raise CallFailed(**fields)

    def cache_failure(self, batch_id: str, error: CallFailed) -> None:
        """Keep why a batch failed, for ten minutes.

        What the error says lies in the file; it holds payload only if errors may show some.
        """
        path = self._make_failure_path(batch_id)
        now = self._clock.now().timestamp()
        # Drafts, too: those of a process that was killed.
        for kind in ("failed", "draft"):
            delete_stale_files(self._folder, kind, self._clock, _FAILURE_TTL_S)
        # As a whole or not at all: another attempt may be reading.
        draft = path.with_name(f"draft-{os.getpid()}-{path.name}")
        draft.write_text(json.dumps(error.fields))
        os.utime(draft, (now, now))
        draft.replace(path)

    def _make_failure_path(self, batch_id: str) -> Path:
        return self._folder / f"{self._prefix}-{make_shared_file_name('batch', batch_id)}"
