"""Rate limits, concurrency limits, budgets and circuit breakers, shared by a machine's processes.

RATE_LIMIT and MAX_IN_FLIGHT of a function apply per machine; the plan divides a rate by the number
of executors. A response of 429 or 503 halves the number of concurrent calls to its origin. Each
full window of successful responses adds one. The content of batches never changes. Files are used
only if there is a limit.

A budget limits rows and calls per task, and per query over the processes of a machine. Each request
is one call, including retries and polls.
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
# Start of the lock offsets of slots, beyond all data of the file.
_SLOT_LOCKS_OFFSET_BYTES = 1 << 20


def ensure_private_folder(parent: Path | None = None) -> Path:
    """Return this user's private folder for temporary files. Creates it if needed.

    Raises:
        ConfigurationError: If another user owns the folder or has access to it.
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
    """Return the name of the file that all processes with the same keys share."""
    digest = hashlib.sha256("\0".join((_read_boot_id(), *keys)).encode())
    return f"{kind}-{digest.hexdigest()[:32]}"


def delete_stale_files(folder: Path, kind: str, clock: Clock, max_age_s: float) -> None:
    """Delete the files of a kind that were not modified for `max_age_s` seconds."""
    oldest = clock.now().timestamp() - max_age_s
    for path in folder.glob(f"{kind}-*"):
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
        except FileNotFoundError:
            continue


# By process ID, because a forked process does not own the locks of inherited objects.
_shared_objects: dict[tuple[int, Path], Any] = {}


def share_in_process(path: Path, make: Callable[[], _Shared]) -> _Shared:
    """Return this process's single object for a file."""
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
    """File of numbers that processes share, and of slots that the system unlocks at process exit.

    Closing any descriptor of a file releases all slots that this process holds in it. A process
    therefore opens a file with slots once, and never closes it.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file. Data that was never written reads as zeros."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        self._thread_lock = threading.Lock()

    def close(self) -> None:
        """Close the file. Only for files without slots."""
        os.close(self._descriptor)

    @contextmanager
    def locking(self) -> Iterator[None]:
        """Lock the file against other threads and processes. Hold it only for microseconds."""
        with self._thread_lock:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def read_numbers(self, layout: struct.Struct, offset_bytes: int = 0) -> tuple[Any, ...]:
        """Return the numbers at an offset."""
        found = os.pread(self._descriptor, layout.size, offset_bytes)
        return layout.unpack(found.ljust(layout.size, b"\0"))

    def write_numbers(
        self, layout: struct.Struct, *values: float | bytes, offset_bytes: int = 0
    ) -> None:
        """Write numbers at an offset. A write of up to 4096 bytes is atomic."""
        os.pwrite(self._descriptor, layout.pack(*values), offset_bytes)

    def append_key_and_count_previous(self, key: bytes) -> int:
        """Append a key to the file and return how many times it was present before.

        Args:
            key: Key. All keys of a file must have the same length.
        """
        with self.locking():
            end = os.fstat(self._descriptor).st_size
            listed = os.pread(self._descriptor, end, 0)
            os.pwrite(self._descriptor, key, end - end % len(key))
        keys = (listed[at : at + len(key)] for at in range(0, end, len(key)))
        return sum(each == key for each in keys)

    def try_lock_slot(self, slot: int) -> bool:
        """Try to lock a slot. Return False if another process holds it."""
        try:
            fcntl.lockf(
                self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _SLOT_LOCKS_OFFSET_BYTES + slot
            )
        except OSError:
            return False
        return True

    def unlock_slot(self, slot: int) -> None:
        """Release a slot."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _SLOT_LOCKS_OFFSET_BYTES + slot)


_NEXT_REQUEST_FORMAT = struct.Struct("=d")
# After a pause, a process may send the requests of at most this time without spacing them.
_MAX_CATCH_UP_S = 0.05


class RequestSpacing:
    """Rate limiter that spaces the requests of all processes evenly.

    A process has one object per file. The file contains the time of the next request. Each process
    reserves one request at a time, so processes alternate, and a process that dies wastes at most
    one request.
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
# Interval at which a process polls for a slot. Waking another process's loop would cost more.
_POLL_INTERVAL_S = 0.004
# Time for which a process may reuse its slots while other processes wait for one.
_MAX_LOCAL_HOLD_S = 0.1
# Time after its last poll at which a process no longer counts as waiting.
_CONTENTION_TTL_S = 0.05


class SharedSemaphore:
    """Semaphore with slots in one file. One object per file and process.

    Waiters of a process are served in order. While other processes wait, a process pauses for 8 ms
    after each 0.1 s, so that they get slots. A slot is a lock of the operating system, so it is
    released when its process dies.
    """

    def __init__(self, file: SharedFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._held_slots: set[int] = set()
        self._turn_began_at = 0.0
        self._paused_until = 0.0
        # For each event loop, the queue of waiters and the event that wakes the first of them.
        self._queues: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[asyncio.Lock, asyncio.Event]
        ] = WeakKeyDictionary()
        self._lock = threading.Lock()

    async def acquire_slot(self, get_allowed: Callable[[], int]) -> int:
        """Wait for a slot and return it. `get_allowed` returns the current number of slots."""
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
        """Release a slot."""
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
            # Start at a slot that depends on the process, so that processes rarely try the same
            # one.
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
# A window expires if the origin was not overloaded for this time.
_WINDOW_TTL_S = 600.0
# Pause of all calls to an origin if one call in flight is too many: default without Retry-After,
# and maximum.
_THROTTLE_PAUSE_S = 0.2
_MAX_THROTTLE_PAUSE_S = 30.0


class ConcurrencyWindow:
    """Limit of calls in flight to an origin that was overloaded."""

    def __init__(self, file: SharedFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock

    def _read(self) -> tuple[float, float, float, float]:
        """Return limit, successes since its last growth, time of its last cut, end of the pause."""
        limit, good, cut_at, quiet_until = self._file.read_numbers(_WINDOW_FORMAT, _WINDOW_OFFSET)
        return limit, good, cut_at, quiet_until

    def _write(self, *numbers: float) -> None:
        self._file.write_numbers(_WINDOW_FORMAT, *numbers, offset_bytes=_WINDOW_OFFSET)

    def get_limit(self) -> int:
        """Return the current limit of calls in flight; 0 during a pause."""
        limit, _, cut_at, quiet_until = self._read()
        now = self._clock.monotonic()
        if now < quiet_until <= now + _MAX_THROTTLE_PAUSE_S:
            return 0
        return int(limit) if limit and 0 <= now - cut_at < _WINDOW_TTL_S else _MAX_WINDOW

    def shrink(self, started_at: float, in_flight: int, retry_after_s: float | None) -> None:
        """Halve the limit (without a limit, `in_flight`), unless it was cut since `started_at`."""
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
        """Count a successful response. A full window of them raises the limit by one."""
        with self._file.locking():
            limit, good, cut_at, quiet_until = self._read()
            if limit:
                good += 1
                if good >= limit:
                    limit, good = min(limit + 1, _MAX_WINDOW), 0
                self._write(limit, good, cut_at, quiet_until)


class _OriginLimits:
    """State of an origin in a process. Slots and window are created at the first throttled call."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self.in_flight = 0
        self.semaphore: SharedSemaphore | None = None
        self.window: ConcurrencyWindow | None = None
        if path.exists():
            self.share_window()

    def share_window(self) -> ConcurrencyWindow:
        """Return the window. The first call creates it in a file that processes share."""
        if self.window is None:
            file = SharedFile(self._path)
            self.semaphore = SharedSemaphore(file, self._clock)
            self.window = ConcurrencyWindow(file, self._clock)
        return self.window


class RateLimiter:
    """Limiter of one function's calls, for any number of tasks of an event loop."""

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
        """Return a permit for one call. `async with` waits for it and releases it at the end.

        The caller must not count the time waited towards a timeout of the call.
        """
        origin = self._origins.get(url)
        if origin is None:
            parts = urlsplit(url)
            path = self._folder / make_shared_file_name("origin", parts.scheme, parts.netloc)
            origin = share_in_process(path, lambda: _OriginLimits(path, self.clock))
            self._origins[url] = origin
        return AcquiredPermit(self, origin)


class AcquiredPermit:
    """Permit for one call, valid inside `async with`."""

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
        """Wait until the call's next request (a retry or a poll) may be sent."""
        limits = self._function_limits
        if limits.spacing is not None:
            await limits.spacing.acquire(limits.requests_per_second)
        self._request_started_at = limits.clock.monotonic()

    def record_success(self) -> None:
        """Record a successful response. A full window raises the origin's concurrency limit."""
        if self._origin.window is not None:
            self._origin.window.grow()

    def record_throttled(self, retry_after_s: float | None = None) -> None:
        """Record that the origin is overloaded (429, 503). Halves its concurrency limit.

        This call is retried after `retry_after_s`. Other calls pause for that time, at most 30 s,
        only if the limit was already one.
        """
        self._origin.share_window().shrink(
            self._request_started_at, self._origin.in_flight, retry_after_s
        )

    def _release_slots(self) -> None:
        while self._acquired_slots:
            semaphore, slot = self._acquired_slots.pop()
            semaphore.release_slot(slot)


_SPENT_FORMAT = struct.Struct("=QQ")
# Age at which a file is deleted: no query takes this long, and the file is useless after it.
_BUDGET_FILE_TTL_S = 7 * 24 * 3600.0


class CallBudget:
    """Budget of one task. Thread-safe; must be closed.

    Spent rows and calls are never refunded: a retry is another call, and so is the next attempt of
    a task.
    """

    def __init__(
        self, plan: CallPlan, position: QueryPosition, clock: Clock, *, folder: Path | None = None
    ) -> None:
        """Create a budget. Uses a file only if the query has a budget."""
        options = plan.options
        self._function = plan.function.signature.name
        self._task_limits = (options.max_rows_per_task, options.max_calls_per_task)
        self._query_limits = (options.max_rows_per_query, options.max_calls_per_query)
        self._executors = options.executors
        # Round down, so that the shares never exceed the whole. A share below one is zero.
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
        """Spend one request and its rows before it is sent. A retry spends 0 rows.

        A rejected request spends nothing.

        Raises:
            BudgetExceeded: If the request exceeds a limit.
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
        """Close the file of the query."""
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


# Circuit breakers. A breaker opens after several consecutive failed batches; all worker processes
# share the state of a URL. Failed batches are also cached, so that the next attempt of a task fails
# immediately. Spark ends a worker process whose task failed, so that cache is in files, one per
# batch. Only attempts after the first read it: a restarted query sends its batches again.

_FAILURE_THRESHOLD = 5
_OPEN_DURATION_S = 30.0
# Statuses with which a working service rejects a batch.
_BATCH_ERROR_STATUSES = frozenset({400, 413, 422})
_MAX_REASON_BYTES = 1_000
_STATE_FORMAT = struct.Struct(f"=QddH{_MAX_REASON_BYTES}s")


class _BreakerState(NamedTuple):
    """State of a breaker. `opened_at` is a Unix time, `probe_at` monotonic. 0 while closed."""

    consecutive_failures: int = 0
    opened_at: float = 0.0
    probe_at: float = 0.0
    reason: str = ""


class CircuitBreaker:
    """Circuit breaker of one URL. Thread-safe and shared by processes.

    It opens after 5 consecutive batches that failed permanently. After 30 s it lets one batch through:
    if that batch succeeds, the breaker closes, otherwise the pause starts again.
    """

    def __init__(self, clock: Clock, file: SharedFile) -> None:
        self._clock = clock
        self._file = file

    def check_call_allowed(self, function: str) -> None:
        """Verify that a batch may be sent.

        Raises:
            CircuitOpen: If the breaker is open and the pause has not elapsed.
        """
        if not self._read_state().opened_at:
            return
        with self._file.locking():
            state = self._read_state()
            if not state.opened_at:
                return
            now = self._clock.monotonic()
            if now >= state.probe_at:
                # Other batches wait for the outcome of the probe, but for at most one more pause,
                # because a probe may never end.
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
        """Count a successful batch."""
        if self._read_state().consecutive_failures:
            with self._file.locking():
                self._write_state(_BreakerState())

    def record_failure(self, reason: str, status: int | None = None) -> None:
        """Count a permanently failed batch, unless its content alone caused the failure.

        Args:
            reason: Reason of the failure. Errors of other batches contain it.
            status: HTTP status of the last response.
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
    """Return the breaker of a URL, shared by all calls of this user on this machine."""
    path = (folder or ensure_private_folder()) / make_shared_file_name("breaker", url)
    return share_in_process(path, lambda: CircuitBreaker(clock, SharedFile(path)))


_FAILURE_TTL_S = 600.0


class FailedBatchCache:
    """Failed batches of earlier attempts of a task on this machine."""

    def __init__(
        self, position: QueryPosition, clock: Clock, *, folder: Path | None = None
    ) -> None:
        self._clock = clock
        self._folder = folder or ensure_private_folder()
        task = (position.query_id, str(position.stage), str(position.partition))
        self._prefix = make_shared_file_name("failed", *task)
        # True if the folder has failures. If it has none, batches need no file access.
        known = [*self._folder.glob(f"{self._prefix}-*")]
        if position.attempt == 0:
            for path in known:
                path.unlink(missing_ok=True)
        self._has_failures = position.attempt > 0 and bool(known)

    def raise_cached_failure(self, batch_id: str) -> None:
        """Raise the cached error of a batch, if there is one.

        Raises:
            CallFailed: If the batch failed permanently in an earlier attempt on this machine.
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
        """Store the error of a failed batch for ten minutes.

        The file contains the fields of the error, with payload only if errors may contain payload.
        """
        path = self._make_failure_path(batch_id)
        now = self._clock.now().timestamp()
        # Also deletes the incomplete files of killed processes.
        for kind in ("failed", "draft"):
            delete_stale_files(self._folder, kind, self._clock, _FAILURE_TTL_S)
        # Replace the file atomically: another attempt may be reading it.
        draft = path.with_name(f"draft-{os.getpid()}-{path.name}")
        draft.write_text(json.dumps(error.fields))
        os.utime(draft, (now, now))
        draft.replace(path)

    def _make_failure_path(self, batch_id: str) -> Path:
        return self._folder / f"{self._prefix}-{make_shared_file_name('batch', batch_id)}"
