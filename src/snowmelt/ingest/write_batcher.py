"""Small catalog writes of many clients, executed together in a few transactions.

A thousand channels that are opened at once would be a thousand transactions, each with a sync of
the disk. Here those that wait share a transaction, each in a savepoint of its own.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from snowmelt.errors import (
    CatalogBusy,
    CatalogUnavailable,
    ServiceBusy,
    SnowmeltError,
    UnknownOutcome,
)
from snowmelt.ingest.work_queue import Consumers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from snowmelt.catalog.db.database import Database
    from snowmelt.clock import Clock

_log = logging.getLogger("snowmelt.ingest")
_Result = TypeVar("_Result")

_GROUP_LIMIT = 256
# Commits of rows wait for one group at most. An open takes about 1.5 ms, a sync 1–5 ms.
_GROUP_TIMEOUT_S = 0.05
# On PostgreSQL a group waits for row locks of its table while others can go on.
_POSTGRES_THREADS = 4


# What every write of a group would meet again, each after as long a wait.
_OF_ALL = (CatalogBusy, CatalogUnavailable, UnknownOutcome)


@dataclass(frozen=True, slots=True)
class _Write:
    """A caller's write; writes with one key may share a transaction on PostgreSQL."""

    work: Callable[[sa.Connection], Any]
    key: Hashable
    future: Future[Any] = field(default_factory=Future)


class GroupedWrites:
    """Executes writes from any thread in groups and reports each result in a future.

    A write that raises is rolled back alone; the others of its group are committed. On PostgreSQL
    a group holds the locks of one key only, so that two groups cannot wait for each other.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._is_sqlite = database.dialect == "sqlite"
        threads = 1 if self._is_sqlite else _POSTGRES_THREADS
        self._consumers: Consumers[_Write] = Consumers(
            self._execute,
            limit=_GROUP_LIMIT if self._is_sqlite else _GROUP_LIMIT // threads,
            names=[f"grouped-writes-{number}" for number in range(threads)],
        )

    def submit(self, work: Callable[[sa.Connection], _Result], *, key: Hashable) -> Future[_Result]:
        """Queue a write and return the future of its result.

        Args:
            work: Called once or, after a failure of its group, again; with a writing transaction
                that it must neither commit nor roll back.
            key: What the write locks, for example the name of its table.

        Raises:
            ServiceBusy: If `close` was called.
        """
        write = _Write(work, key)
        if not self._consumers.put([write]):
            raise ServiceBusy(reason="it is stopping")
        return write.future

    def close(self) -> None:
        """Execute what was submitted, then stop."""
        self._consumers.close()

    def _execute(self, writes: Sequence[_Write]) -> None:
        # From here on a caller that goes away cannot cancel its write.
        waiting = deque(write for write in writes if write.future.set_running_or_notify_cancel())
        while waiting:
            group = self._next_group(waiting)
            try:
                done = self._commit_group(group)
            except Exception as error:  # noqa: BLE001 - reported to the callers
                if len(group) == 1 or isinstance(error, _OF_ALL):
                    _fail(group, error)
                    continue
                _log.warning("group of %d catalog writes failed: %r", len(group), error)
                for write in group:
                    self._execute_alone(write)
            else:
                # What a full group left over comes first in the next one.
                waiting.extendleft(reversed(group[done:]))

    def _next_group(self, waiting: deque[_Write]) -> list[_Write]:
        if self._is_sqlite:
            group = list(waiting)
            waiting.clear()
            return group
        key = waiting[0].key
        group = [write for write in waiting if write.key == key]
        others = [write for write in waiting if write.key != key]
        waiting.clear()
        waiting.extend(others)
        return group

    def _execute_alone(self, write: _Write) -> None:
        try:
            self._commit_group([write])
        except Exception as error:  # noqa: BLE001 - reported to the caller
            _fail([write], error)

    def _commit_group(self, group: Sequence[_Write]) -> int:
        """Execute writes in one transaction until its time is over; return how many."""
        results: list[tuple[_Write, Any, Exception | None]] = []
        with self._database.writing() as connection:
            end = self._clock.monotonic() + _GROUP_TIMEOUT_S
            for write in group:
                results.append((write, *_in_savepoint(connection, write)))
                if self._clock.monotonic() >= end:
                    break
        for write, result, error in results:
            if error is None:
                write.future.set_result(result)
            else:
                write.future.set_exception(error)
        return len(results)


def _in_savepoint(connection: sa.Connection, write: _Write) -> tuple[Any, Exception | None]:
    savepoint = connection.begin_nested()
    try:
        result = write.work(connection)
    except sa.exc.DBAPIError:
        # The database's own failure may have ended the whole transaction.
        raise
    except Exception as error:  # noqa: BLE001 - reported to its caller; the others go on
        if not isinstance(error, SnowmeltError):
            _log.error("a catalog write failed", exc_info=error)
        savepoint.rollback()
        return None, error
    savepoint.commit()
    return result, None


def _fail(group: Sequence[_Write], error: Exception) -> None:
    for write in group:
        write.future.set_exception(error)
