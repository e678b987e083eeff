"""Group small catalog writes of many clients into a few transactions.

Opening a thousand channels separately would need a thousand transactions, each with a disk sync.
Pending writes share a transaction instead. Writes of the same kind are executed in one call, with
as many statements as a single write. Every other write has a separate savepoint.
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
    TransactionConflict,
    UnknownOutcome,
)
from snowmelt.ingest.batch_worker_pool import WorkerPool

_log = logging.getLogger("snowmelt.ingest")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MAX_GROUP_WRITES = 256
# A commit of rows waits for at most one group. An open takes about 0.1 ms, a drop 1 ms, a sync 1–5 ms.
_GROUP_TIMEOUT_S = 0.05
_MAX_ITEMS_PER_CALL = 64
# Number of threads. On PostgreSQL, a group waits for row locks of its table while other groups
# continue.
_POSTGRES_THREADS = 4


# Errors that every other write of the group would also get, each after the same timeout.
_GROUP_ERRORS = (CatalogBusy, CatalogUnavailable, UnknownOutcome)


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    """A queued write. Writes with the same key may share a transaction on PostgreSQL."""

    work: Callable[[sa.Connection, Sequence[Any]], Sequence[Any]]
    item: Any
    lock_key: Hashable
    future: Future[Any] = field(default_factory=Future)


class WriteBatcher:
    """Group commit of writes. Thread-safe. Each write has a future for its result.

    If a write raises an error, only that write is rolled back. On PostgreSQL, a group holds the
    locks of a single key, so two groups cannot deadlock.
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
        """Queue a write and return the future of its result.

        Args:
            work: Receives a write transaction, which it must neither commit nor roll back. Called a
                second time if its group fails.
            group_key: Identifies what the write locks.

        Raises:
            ServiceBusy: If `close` was called.
        """
        # A new function object, so that this write never shares a call with others.
        return self.submit_item(partial(_execute_in_savepoint, work), None, group_key=group_key)

    def submit_item(
        self,
        work: Callable[[sa.Connection, Sequence[_Item]], Sequence[_Result | SnowmeltError]],
        item: _Item,
        *,
        group_key: Hashable,
    ) -> Future[_Result]:
        """Queue an item for `work`, which handles many items in one call. Return the item's future.

        Args:
            work: Receives a write transaction and all queued items in order. Returns a result or an
                error for each. An exception rolls back the whole group; each item is then handled
                alone, and gets the exception that `work` raises for it.
            item: The item.
            group_key: Identifies what the write locks.

        Raises:
            ServiceBusy: If `close` was called.
        """
        write = _PendingWrite(work, item, group_key)
        if not self._workers.submit_all([write]):
            raise ServiceBusy(reason="it is stopping")
        return write.future

    def close(self) -> None:
        """Execute the queued writes, then stop."""
        self._workers.close()

    def _execute_writes(self, writes: Sequence[_PendingWrite]) -> None:
        # After this call, a caller cannot cancel its write.
        waiting = deque(write for write in writes if write.future.set_running_or_notify_cancel())
        while waiting:
            group = self._pop_writes_with_same_key(waiting)
            try:
                done = self._commit_group(group)
            except Exception as error:  # noqa: BLE001 - reported to the callers
                is_retried = len(group) > 1 or isinstance(error, TransactionConflict)
                if isinstance(error, _GROUP_ERRORS) or not is_retried:
                    _fail_writes(group, error)
                    continue
                _log.warning("group of %d catalog writes failed: %r", len(group), error)
                for write in group:
                    try:
                        self._commit_group([write])
                    except Exception as alone:  # noqa: BLE001 - reported to the caller
                        _fail_writes([write], alone)
            else:
                # Writes that did not fit into this group are first in the next one.
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
        """Execute writes in one transaction until its time limit. Return the number of executed writes."""
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
    """Execute `work` for one item in a savepoint. Return its result, or the error that it raises."""
    del items
    savepoint = connection.begin_nested()
    try:
        result = work(connection)
    except (sa.exc.DBAPIError, TransactionConflict):
        # A database error may have ended the whole transaction. A conflict requires another one.
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
