"""Batch deduplication: runs each batch once, and returns the stored response to later attempts.

`MemoryStore` serves one process. `SqliteStore` uses a SQLite file: responses survive restarts, and
several processes of a machine share them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from snowmelt.clock import Clock, SystemClock
from snowmelt.functions.errors import BatchIdReused, Overloaded
from snowmelt.functions.service.request_response_types import BatchResponseBody, error_to_response

DEFAULT_MEMORY_STORE_BYTES = 64 * 1024 * 1024
_ENTRY_OVERHEAD_BYTES = 400  # Approximate size of an entry without its body.


@dataclass(frozen=True, slots=True)
class Known:
    """State of a batch in a store. `status` is None while the batch is running."""

    fingerprint: bytes
    status: int | None = None
    body: bytes = b""

    @property
    def failed(self) -> bool:
        """True if the batch failed, so that another attempt may run it."""
        return self.status is not None and self.status >= 500


class BatchStore(Protocol):
    """Store of responses by function and batch ID. Must be thread-safe."""

    @property
    def blocking(self) -> bool:
        """True if calls wait for disk or network, and therefore must not run on the event loop."""

    @property
    def renew_every_s(self) -> float | None:
        """Interval in seconds of `renew` for running batches. None: never."""

    def fingerprint(self, body: bytes) -> bytes:
        """Return a fingerprint of a body, stable for the lifetime of the store."""

    def find(self, key: str) -> Known | None:
        """Return the state of a batch, or None if it is unknown."""

    def begin(self, key: str, fingerprint: bytes) -> Known | None:
        """Claim a batch atomically. The caller must then `finish` or `release` it.

        Returns None if the caller owns the batch, else the state of the finished or running batch.
        A batch that failed, or that was not renewed in time, can be claimed again.
        """

    def finish(self, key: str, known: Known, keep_s: float) -> None:
        """Store the response for `keep_s` seconds, or until the store is full."""

    def release(self, key: str) -> None:
        """Delete a batch, so that the next attempt runs it."""

    def renew(self, keys: Collection[str]) -> None:
        """Record that these batches are still running."""

    def close(self) -> None:
        """Close files and connections."""


class MemoryStore:
    """Store of responses in memory, for one long-running process such as a web server."""

    blocking = False
    renew_every_s = None

    def __init__(
        self, max_bytes: int = DEFAULT_MEMORY_STORE_BYTES, *, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._running: dict[str, Known] = {}
        # Entries, oldest first.
        self._finished: OrderedDict[str, tuple[Known, float]] = OrderedDict()

    def fingerprint(self, body: bytes) -> bytes:
        """Return Python's hash. It is valid only in this process, and 7 times as fast as a digest."""
        return b"%d %d" % (len(body), hash(body))

    def find(self, key: str) -> Known | None:
        """Return the state of a batch, or None if it is unknown."""
        with self._lock:
            return self._running.get(key) or self._find_unexpired(key)

    def begin(self, key: str, fingerprint: bytes) -> Known | None:
        """Claim a batch."""
        with self._lock:
            known = self._running.get(key) or self._find_unexpired(key)
            if known is not None and not known.failed:
                return known
            self._evict(key)
            self._running[key] = Known(fingerprint)
            return None

    def finish(self, key: str, known: Known, keep_s: float) -> None:
        """Store the response. If the store is full, delete the oldest responses."""
        with self._lock:
            self._running.pop(key, None)
            self._evict(key)
            self._finished[key] = (known, self._clock.monotonic() + keep_s)
            self._bytes += len(known.body) + _ENTRY_OVERHEAD_BYTES
            while self._bytes > self._max_bytes and self._finished:
                self._evict(next(iter(self._finished)))

    def release(self, key: str) -> None:
        """Remove a batch."""
        with self._lock:
            self._running.pop(key, None)
            self._evict(key)

    def renew(self, keys: Collection[str]) -> None:
        """Do nothing: the workers run in the same process as this store."""

    def close(self) -> None:
        """Do nothing."""

    def _find_unexpired(self, key: str) -> Known | None:
        kept = self._finished.get(key)
        if kept is None:
            return None
        known, until = kept
        if until < self._clock.monotonic():
            self._evict(key)
            return None
        return known

    def _evict(self, key: str) -> None:
        kept = self._finished.pop(key, None)
        if kept is not None:
            self._bytes -= len(kept[0].body) + _ENTRY_OVERHEAD_BYTES


DEFAULT_SQLITE_STORE_BYTES = 1024 * 1024 * 1024
_LOCK_TIMEOUT_S = 60
_CLEANUP_INTERVAL_BATCHES = 256  # Number of responses between cleanups.

_CREATE_TABLE_SQL = """
CREATE TABLE IF NOT EXISTS batches (
  key TEXT PRIMARY KEY,
  fingerprint BLOB NOT NULL,
  status INTEGER,          -- NULL while a request is running
  body BLOB NOT NULL,
  until REAL NOT NULL      -- end of the lease, or of keeping: seconds since 1970
) WITHOUT ROWID
"""

_DELETE_EXCESS_SQL = """
DELETE FROM batches WHERE key IN (
  SELECT key FROM (
    SELECT key, sum(length(body)) OVER (ORDER BY until DESC, key) AS total
    FROM batches WHERE status IS NOT NULL
  ) WHERE total > ?
)
"""


class SqliteStore:
    """Store of responses in a SQLite file, shared by several processes of a machine.

    A worker holds a lease on its batch. After a process is killed, its batch appears to be running
    until the lease expires. Then another process can run the batch.
    """

    blocking = True

    def __init__(
        self,
        path: str | Path,
        *,
        lease_s: float = 15.0,
        max_bytes: int = DEFAULT_SQLITE_STORE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        """Open or create the SQLite file.

        Args:
            path: File on a local disk; its folder must exist.
            lease_s: Seconds without `renew` after which a process loses its batches.
            max_bytes: Maximum total size of stored responses. Deletes those that expire first.
            clock: Clock, for tests.
        """
        self.renew_every_s: float | None = lease_s / 3
        self._lease_s = lease_s
        self._max_bytes = max_bytes
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._finished_count = 0
        self._connection = sqlite3.connect(
            path, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        # Do not sync every write: after a power failure a batch may run again, which the protocol
        # permits.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute(_CREATE_TABLE_SQL)

    def fingerprint(self, body: bytes) -> bytes:
        """Return a hash that is the same in every process."""
        return hashlib.sha256(body).digest()

    def find(self, key: str) -> Known | None:
        """Return the state of a batch, or None if it is unknown."""
        with self._lock:
            return self._select_batch(key)

    def begin(self, key: str, fingerprint: bytes) -> Known | None:
        """Claim a batch in one transaction."""
        with self._writing_transaction():
            known = self._select_batch(key)
            if known is not None and not known.failed:
                return known
            self._connection.execute(
                "INSERT OR REPLACE INTO batches VALUES (?, ?, NULL, x'', ?)",
                (key, fingerprint, self._now() + self._lease_s),
            )
            return None

    def finish(self, key: str, known: Known, keep_s: float) -> None:
        """Store the response."""
        with self._writing_transaction():
            self._connection.execute(
                "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, ?)",
                (key, known.fingerprint, known.status, known.body, self._now() + keep_s),
            )
            if self._finished_count % _CLEANUP_INTERVAL_BATCHES == 0:
                # Delete expired responses, then those above the size limit.
                self._connection.execute("DELETE FROM batches WHERE until < ?", (self._now(),))
                self._connection.execute(_DELETE_EXCESS_SQL, (self._max_bytes,))
            self._finished_count += 1

    def release(self, key: str) -> None:
        """Remove a batch."""
        with self._writing_transaction():
            self._connection.execute("DELETE FROM batches WHERE key = ?", (key,))

    def renew(self, keys: Collection[str]) -> None:
        """Prolong the leases."""
        until = self._now() + self._lease_s
        with self._writing_transaction():
            self._connection.executemany(
                "UPDATE batches SET until = ? WHERE key = ? AND status IS NULL",
                [(until, key) for key in keys],
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _select_batch(self, key: str) -> Known | None:
        row = self._connection.execute(
            "SELECT fingerprint, status, body FROM batches WHERE key = ? AND until >= ?",
            (key, self._now()),
        ).fetchone()
        return None if row is None else Known(*row)

    @contextlib.contextmanager
    def _writing_transaction(self) -> Iterator[None]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


_Result = TypeVar("_Result")

RUNNING_RESPONSE = BatchResponseBody(202, b'{"status":"running"}')
_RETRY_AFTER_S = 1.0
# Minimum wait: a batch that finishes in this time returns its response even if the deadline is 0.
_MIN_WAIT_S = 0.01
_HTTP_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class _RunningBatch:
    fingerprint: bytes
    task: asyncio.Task[BatchResponseBody]


class BatchDeduplicator:
    """Runner that executes each batch once and responds to polls. For one event loop."""

    def __init__(self, store: BatchStore, *, max_concurrency: int | None = None) -> None:
        """Create a deduplicator.

        Args:
            store: Store of responses.
            max_concurrency: Maximum number of concurrent batches. Others get status 429. None: no
                limit.
        """
        self._store = store
        # Use a separate thread: the threads of functions may all be busy.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batch-store")
        self._max_concurrency = max_concurrency
        self._running_count = 0
        self._running_batches: dict[str, _RunningBatch] = {}
        self._renewal_task: asyncio.Task[None] | None = None

    async def run_batch(
        self,
        key: str | None,
        body: bytes,
        run: Callable[[], Awaitable[BatchResponseBody]],
        *,
        runs_inline: bool,
        deadline_s: float | None,
        keep_s: float,
    ) -> BatchResponseBody:
        """Run a batch, wait for the same running batch, or return the stored response.

        Args:
            key: Function and batch ID. None: the caller sent no batch ID, so the batch can be
                neither deduplicated nor polled.
            body: Body of the request.
            run: Runs the batch. It must not raise an error, and must not wait if `runs_inline`.
            runs_inline: True if `run` finishes without waiting.
            deadline_s: Seconds until the caller gets status 202 and polls. None: never.
            keep_s: Seconds for which the response is stored.

        Raises:
            BatchIdReused: If the batch ID was used with a different body.
        """
        if key is None:
            return await self._run_limited(run)
        mark = self._store.fingerprint(body)
        job = self._running_batches.get(key)
        if job is None and runs_inline and not self._store.blocking:
            # No other task runs between claim and response, so no task waits for this batch.
            return await self._claim_and_run(key, mark, run, keep_s)
        if job is None and self._is_full:
            # Reject a new batch without waiting, but return a stored response.
            known = await self._call_store(self._store.find, key)
            if known is None or known.failed:
                return self._make_overloaded_response()
            return _repeat_response(known, mark)
        if job is None:
            job = _RunningBatch(
                mark, asyncio.create_task(self._claim_and_run(key, mark, run, keep_s))
            )
            self._running_batches[key] = job
            job.task.add_done_callback(partial(self._end_running_batch, key))
            if self._store.renew_every_s is not None and self._renewal_task is None:
                renewing = self._renew_claims(self._store.renew_every_s)
                self._renewal_task = asyncio.create_task(renewing)
        elif job.fingerprint != mark:
            raise BatchIdReused
        if deadline_s is None:
            return await asyncio.shield(job.task)
        await asyncio.wait({job.task}, timeout=max(deadline_s, _MIN_WAIT_S))
        return job.task.result() if job.task.done() else RUNNING_RESPONSE

    async def poll(self, key: str) -> BatchResponseBody | None:
        """Return the response of a batch, 202 if it is running, or None if it is unknown."""
        if key in self._running_batches:
            return RUNNING_RESPONSE
        known = await self._call_store(self._store.find, key)
        return None if known is None else _make_response(known)

    async def _claim_and_run(
        self,
        key: str,
        fingerprint: bytes,
        run: Callable[[], Awaitable[BatchResponseBody]],
        keep_s: float,
    ) -> BatchResponseBody:
        known = await self._call_store(self._store.begin, key, fingerprint)
        if known is not None:
            return _repeat_response(known, fingerprint)
        try:
            answer = await self._run_limited(run)
        except BaseException:
            await self._call_store(self._store.release, key)
            raise
        if answer.status == _HTTP_TOO_MANY_REQUESTS:
            await self._call_store(self._store.release, key)
        else:
            kept = Known(fingerprint, answer.status, answer.body)
            await self._call_store(self._store.finish, key, kept, keep_s)
        return answer

    @property
    def _is_full(self) -> bool:
        return self._max_concurrency is not None and self._running_count >= self._max_concurrency

    def _make_overloaded_response(self) -> BatchResponseBody:
        text = f"The service runs {self._max_concurrency} batches, its maximum. Retry later."
        return error_to_response(Overloaded(text, retry_after=_RETRY_AFTER_S))

    async def _run_limited(
        self, work: Callable[[], Awaitable[BatchResponseBody]]
    ) -> BatchResponseBody:
        if self._is_full:
            return self._make_overloaded_response()
        self._running_count += 1
        try:
            return await work()
        finally:
            self._running_count -= 1

    def _end_running_batch(self, key: str, task: asyncio.Task[BatchResponseBody]) -> None:
        del self._running_batches[key]
        if not self._running_batches and self._renewal_task is not None:
            self._renewal_task.cancel()
            self._renewal_task = None
        if not task.cancelled():
            task.exception()  # Retrieve it. Otherwise, asyncio logs it if no caller waits.

    async def _renew_claims(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self._call_store(self._store.renew, list(self._running_batches))

    async def _call_store(self, method: Callable[..., _Result], *arguments: Any) -> _Result:
        if not self._store.blocking:
            return method(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, method, *arguments)


def _make_response(stored_batch: Known) -> BatchResponseBody:
    return (
        RUNNING_RESPONSE
        if stored_batch.status is None
        else BatchResponseBody(stored_batch.status, stored_batch.body)
    )


def _repeat_response(stored_batch: Known, fingerprint: bytes) -> BatchResponseBody:
    if stored_batch.fingerprint != fingerprint:
        raise BatchIdReused
    return _make_response(stored_batch)
