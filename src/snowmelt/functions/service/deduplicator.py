"""Sees to it that each batch is worked on once, however often and from wherever it comes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from snowmelt.functions.errors import BatchIdReused, Overloaded
from snowmelt.functions.service.batch_stores import Known
from snowmelt.functions.service.messages import Answer, problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from snowmelt.functions.service.batch_stores import BatchStore

_Result = TypeVar("_Result")

STILL_RUNNING = Answer(202, b'{"status":"running"}')
_RETRY_AFTER_S = 1.0
# Work that is quicker than this answers at once, even where 202 was announced.
_SHORTEST_WAIT_S = 0.01
_OVERLOADED = 429


@dataclass(frozen=True, slots=True)
class Order:
    """One batch to be worked on.

    `key` is None for a caller that sends no batch id: it cannot be recognised or asked for later.
    `work` never raises. `at_once` says that it never waits for anything. `deadline_s` is when a
    caller is told to come back, None for never; `keep_s` how long the answer is remembered.
    """

    key: str | None
    body: bytes
    work: Callable[[], Awaitable[Answer]]
    at_once: bool = False
    deadline_s: float | None = None
    keep_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Job:
    fingerprint: bytes
    task: asyncio.Task[Answer]


class Desk:
    """Takes orders and answers polls; all on one event loop."""

    def __init__(self, store: BatchStore, *, max_concurrency: int | None = None) -> None:
        """Open.

        Args:
            store: Remembers.
            max_concurrency: Batches worked on at a time; more are refused with 429.
        """
        self._store = store
        # Not the threads that functions run in, which may all be busy.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batch-store")
        self._max = max_concurrency
        self._working = 0
        self._jobs: dict[str, _Job] = {}
        self._renewal: asyncio.Task[None] | None = None

    async def take(self, order: Order) -> Answer:
        """Work on a batch, join whoever does, or repeat the answer.

        Raises:
            BatchIdReused: The batch came before with another body.
        """
        if order.key is None:
            return await self._limited(order.work)
        mark = self._store.fingerprint(order.body)
        job = self._jobs.get(order.key)
        if job is None and order.at_once and not self._store.blocking:
            # Nothing else runs between claim and answer, so nobody could join.
            return await self._carry_out(order, order.key, mark)
        if job is None and self._full:
            # Said at once, not after the first wait; what is known is repeated all the same.
            return await self._known(order.key, mark) or self._refusal()
        if job is None:
            job = _Job(mark, asyncio.create_task(self._carry_out(order, order.key, mark)))
            self._begin(order.key, job)
        elif job.fingerprint != mark:
            raise BatchIdReused
        if order.deadline_s is None:
            return await asyncio.shield(job.task)
        await asyncio.wait({job.task}, timeout=max(order.deadline_s, _SHORTEST_WAIT_S))
        return job.task.result() if job.task.done() else STILL_RUNNING

    async def poll(self, key: str) -> Answer | None:
        """Return a batch's answer, that it is still worked on, or None if it is not known."""
        if key in self._jobs:
            return STILL_RUNNING
        known = await self._stored(self._store.find, key)
        return None if known is None else _answer(known)

    async def _carry_out(self, order: Order, key: str, mark: bytes) -> Answer:
        known = await self._stored(self._store.begin, key, mark)
        if known is not None:
            return _repeated(known, mark)
        try:
            answer = await self._limited(order.work)
        except BaseException:
            await self._stored(self._store.release, key)
            raise
        if answer.status == _OVERLOADED:
            await self._stored(self._store.release, key)
        else:
            kept = Known(mark, answer.status, answer.body)
            await self._stored(self._store.finish, key, kept, order.keep_s)
        return answer

    async def _known(self, key: str, mark: bytes) -> Answer | None:
        known = await self._stored(self._store.find, key)
        return None if known is None or known.failed else _repeated(known, mark)

    @property
    def _full(self) -> bool:
        return self._max is not None and self._working >= self._max

    def _refusal(self) -> Answer:
        text = f"{self._max} batches are being worked on; try again later."
        return problem(Overloaded(text, retry_after=_RETRY_AFTER_S))

    async def _limited(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        if self._full:
            return self._refusal()
        self._working += 1
        try:
            return await work()
        finally:
            self._working -= 1

    def _begin(self, key: str, job: _Job) -> None:
        self._jobs[key] = job

        def end(task: asyncio.Task[Answer]) -> None:
            del self._jobs[key]
            if not self._jobs and self._renewal is not None:
                self._renewal.cancel()
                self._renewal = None
            if not task.cancelled():
                task.exception()  # seen, also where nobody waits any more

        job.task.add_done_callback(end)
        if self._store.renew_every_s is not None and self._renewal is None:
            self._renewal = asyncio.create_task(self._renew(self._store.renew_every_s))

    async def _renew(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self._stored(self._store.renew, list(self._jobs))

    async def _stored(self, call: Callable[..., _Result], *arguments: Any) -> _Result:
        if not self._store.blocking:
            return call(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, call, *arguments)


def _answer(known: Known) -> Answer:
    return STILL_RUNNING if known.status is None else Answer(known.status, known.body)


def _repeated(known: Known, mark: bytes) -> Answer:
    if known.fingerprint != mark:
        raise BatchIdReused
    return _answer(known)
