"""Batching of small catalog writes of many clients into a few transactions.

Opening a thousand channels at the same time would need a thousand transactions, each with a disk
sync. Pending writes share a transaction instead: those of one kind in one call, for as many
statements as one of them would need, all others in a savepoint of their own.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.clock import Clock
from snowmelt.errors import (
    CatalogBusy,
    CatalogUnavailable,
    ServiceBusy,
    SnowmeltError,
    UnknownOutcome,
)
from snowmelt.ingest.batch_worker_pool import WorkerPool

_log = logging.getLogger("snowmelt.ingest")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MAX_GROUP_WRITES = 256
# Commits of rows wait for one group at most. An open takes about 0.1 ms, a drop 1 ms, a sync 1–5 ms.
_GROUP_TIMEOUT_S = 0.05
_MAX_ITEMS_PER_CALL = 64
# On PostgreSQL a group waits for row locks of its table while others can go on.
_POSTGRES_THREADS = 4


# What every write of a group would meet again, each after as long a wait.
_GROUP_ERRORS = (CatalogBusy, CatalogUnavailable, UnknownOutcome)


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    """A caller's write; writes with one key may share a transaction on PostgreSQL."""

    work: Callable[[sa.Connection, Sequence[Any]], Sequence[Any]]
    item: Any
    lock_key: Hashable
    future: Future[Any] = field(default_factory=Future)


class WriteBatcher:
    """Executes writes from any thread in groups and reports each result in a future.

    A write that raises is rolled back alone; the others of its group are committed. On PostgreSQL
    a group holds the locks of one key only, so that two groups cannot wait for each other.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._is_sqlite = database.dialect == "sqlite"
        threads = 1 if self._is_sqlite else _POSTGRES_THREADS
        self._workers: WorkerPool[_PendingWrite] = WorkerPool(
            self._execute_writes,
            max_batch_items=_MAX_GROUP_WRITES if self._is_sqlite else _MAX_GROUP_WRITES // threads,
            thread_names=[f"grouped-writes-{number}" for number in range(threads)],
        )

    def submit(
        self, work: Callable[[sa.Connection], _Result], *, group_key: Hashable
    ) -> Future[_Result]:
        """Queue a write and return the future of its result; `group_key` is what the write locks.

        `work` is called once or, after a failure of its group, again; with a writing transaction
        that it must neither commit nor roll back.

        Raises:
            ServiceBusy: If `close` was called.
        """
        # A work of its own: it never shares a call.
        return self.submit_item(partial(_execute_in_savepoint, work), None, group_key=group_key)

    def submit_item(
        self,
        work: Callable[[sa.Connection, Sequence[_Item]], Sequence[_Result | SnowmeltError]],
        item: _Item,
        *,
        group_key: Hashable,
    ) -> Future[_Result]:
        """Queue an item of `work` and return the future of its result; see `submit`.

        `work` is called with a writing transaction and the items that wait, one after the other as
        they came, and returns a result or an error for each. Whatever it raises undoes the whole
        group, and is each item's own only when it is called with that item alone.

        Raises:
            ServiceBusy: If `close` was called.
        """
        write = _PendingWrite(work, item, group_key)
        if not self._workers.submit_all([write]):
            raise ServiceBusy(reason="it is stopping")
        return write.future

    def close(self) -> None:
        """Execute what was submitted, then stop."""
        self._workers.close()

    def _execute_writes(self, writes: Sequence[_PendingWrite]) -> None:
        # From here on a caller that goes away cannot cancel its write.
        waiting = deque(write for write in writes if write.future.set_running_or_notify_cancel())
        while waiting:
            group = self._pop_writes_with_same_key(waiting)
            try:
                done = self._commit_group(group)
            except Exception as error:  # noqa: BLE001 - reported to the callers
                if len(group) == 1 or isinstance(error, _GROUP_ERRORS):
                    _fail_writes(group, error)
                    continue
                _log.warning("group of %d catalog writes failed: %r", len(group), error)
                for write in group:
                    try:
                        self._commit_group([write])
                    except Exception as alone:  # noqa: BLE001 - reported to the caller
                        _fail_writes([write], alone)
            else:
                # What a full group left over comes first in the next one.
                waiting.extendleft(reversed(group[done:]))

    def _pop_writes_with_same_key(self, pending: deque[_PendingWrite]) -> list[_PendingWrite]:
        if self._is_sqlite:
            group = list(pending)
            pending.clear()
            return group
        key = pending[0].lock_key
        group = [write for write in pending if write.lock_key == key]
        others = [write for write in pending if write.lock_key != key]
        pending.clear()
        pending.extend(others)
        return group

    def _commit_group(self, group: Sequence[_PendingWrite]) -> int:
        """Execute writes in one transaction until its time is over; return how many."""
        results: list[Any] = []
        with self._database.writing() as connection:
            end = self._clock.monotonic() + _GROUP_TIMEOUT_S
            while len(results) < len(group) and (not results or self._clock.monotonic() < end):
                work, run = next(itertools.groupby(group[len(results) :], attrgetter("work")))
                items = [each.item for each in itertools.islice(run, _MAX_ITEMS_PER_CALL)]
                results += work(connection, items)
        for write, result in zip(group, results, strict=False):
            if isinstance(result, Exception):
                write.future.set_exception(result)
            else:
                write.future.set_result(result)
        return len(results)


def _execute_in_savepoint(
    work: Callable[[sa.Connection], Any], connection: sa.Connection, items: Sequence[None]
) -> list[Any]:
    """Return what `work` returns, or the error that it raises, for its only item."""
    del items
    savepoint = connection.begin_nested()
    try:
        result = work(connection)
    except sa.exc.DBAPIError:
        # The database's own failure may have ended the whole transaction.
        raise
    except Exception as error:  # noqa: BLE001 - reported to its caller; the others go on
        if not isinstance(error, SnowmeltError):
            _log.error("a catalog write failed", exc_info=error)
        savepoint.rollback()
        return [error]
    savepoint.commit()
    return [result]


def _fail_writes(group: Sequence[_PendingWrite], error: Exception) -> None:
    for write in group:
        write.future.set_exception(error)
