"""Batch deduplication: each batch runs once, and repeated attempts get its response."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from snowmelt.functions.errors import BatchIdReused, Overloaded
from snowmelt.functions.service.batch_stores import Known
from snowmelt.functions.service.request_response_types import BatchResponseBody, error_to_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from snowmelt.functions.service.batch_stores import BatchStore

_Result = TypeVar("_Result")

RUNNING_RESPONSE = BatchResponseBody(202, b'{"status":"running"}')
_RETRY_AFTER_S = 1.0
# Work that is quicker than this answers at once, even where 202 was announced.
_MIN_WAIT_S = 0.01
_HTTP_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One batch to be worked on.

    `key` is None for a caller that sends no batch id: it cannot be recognised or asked for later.
    `run` never raises. `runs_inline` says that it never waits for anything. `deadline_s` is when a
    caller is told to come back, None for never; `retention_s` how long the answer is remembered.
    """

    key: str | None
    body: bytes
    run: Callable[[], Awaitable[BatchResponseBody]]
    runs_inline: bool = False
    deadline_s: float | None = None
    retention_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _RunningBatch:
    fingerprint: bytes
    task: asyncio.Task[BatchResponseBody]


class BatchDeduplicator:
    """Takes orders and answers polls; all on one event loop."""

    def __init__(self, store: BatchStore, *, max_concurrency: int | None = None) -> None:
        """Open.

        `max_concurrency`: Batches worked on at a time; more are refused with 429.
        """
        self._store = store
        # Not the threads that functions run in, which may all be busy.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batch-store")
        self._max_concurrency = max_concurrency
        self._running_count = 0
        self._running_batches: dict[str, _RunningBatch] = {}
        self._renewal_task: asyncio.Task[None] | None = None

    async def run_batch(self, batch_job: BatchJob) -> BatchResponseBody:
        """Work on a batch, join whoever does, or repeat the answer.

        Raises:
            BatchIdReused: The batch came before with another body.
        """
        if batch_job.key is None:
            return await self._run_limited(batch_job.run)
        mark = self._store.fingerprint(batch_job.body)
        job = self._running_batches.get(batch_job.key)
        if job is None and batch_job.runs_inline and not self._store.blocking:
            # Nothing else runs between claim and answer, so nobody could join.
            return await self._claim_and_run(batch_job, batch_job.key, mark)
        if job is None and self._is_full:
            # Said at once, not after the first wait; what is known is repeated all the same.
            known = await self._call_store(self._store.find, batch_job.key)
            if known is None or known.failed:
                return self._make_overloaded_response()
            return _repeat_response(known, mark)
        if job is None:
            job = _RunningBatch(
                mark, asyncio.create_task(self._claim_and_run(batch_job, batch_job.key, mark))
            )
            self._running_batches[batch_job.key] = job
            job.task.add_done_callback(partial(self._end_running_batch, batch_job.key))
            if self._store.renew_every_s is not None and self._renewal_task is None:
                renewing = self._renew_claims(self._store.renew_every_s)
                self._renewal_task = asyncio.create_task(renewing)
        elif job.fingerprint != mark:
            raise BatchIdReused
        if batch_job.deadline_s is None:
            return await asyncio.shield(job.task)
        await asyncio.wait({job.task}, timeout=max(batch_job.deadline_s, _MIN_WAIT_S))
        return job.task.result() if job.task.done() else RUNNING_RESPONSE

    async def poll(self, key: str) -> BatchResponseBody | None:
        """Return a batch's answer, that it is still worked on, or None if it is not known."""
        if key in self._running_batches:
            return RUNNING_RESPONSE
        known = await self._call_store(self._store.find, key)
        return None if known is None else _make_response(known)

    async def _claim_and_run(
        self, batch_job: BatchJob, key: str, fingerprint: bytes
    ) -> BatchResponseBody:
        known = await self._call_store(self._store.begin, key, fingerprint)
        if known is not None:
            return _repeat_response(known, fingerprint)
        try:
            answer = await self._run_limited(batch_job.run)
        except BaseException:
            await self._call_store(self._store.release, key)
            raise
        if answer.status == _HTTP_TOO_MANY_REQUESTS:
            await self._call_store(self._store.release, key)
        else:
            kept = Known(fingerprint, answer.status, answer.body)
            await self._call_store(self._store.finish, key, kept, batch_job.retention_s)
        return answer

    @property
    def _is_full(self) -> bool:
        return self._max_concurrency is not None and self._running_count >= self._max_concurrency

    def _make_overloaded_response(self) -> BatchResponseBody:
        text = f"{self._max_concurrency} batches are being worked on; try again later."
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
            task.exception()  # seen, also where nobody waits any more

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
