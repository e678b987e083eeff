"""Loads whose rejects go into the error table of their table: both commit at once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from snowmelt import faults
from snowmelt.catalog.error_tables import error_table_of
from snowmelt.catalog.tables import Pointer, lock_tables, set_pointer, table_by_id
from snowmelt.errors import CommitLost, LoadOvertaken
from snowmelt.faults import Point
from snowmelt.table.iceberg import commit_append
from snowmelt.table.loading import (
    addition,
    close_committed,
    commit_load,
    current_of,
    is_committed,
    repeated,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.catalog.database import Database
    from snowmelt.catalog.tables import TableRecord
    from snowmelt.clock import Clock
    from snowmelt.table.loading import LoadResult, OpenLoad
    from snowmelt.table.native import WrittenFile

_log = logging.getLogger("snowmelt.load")


def commit_with_refused(
    database: Database,
    load: OpenLoad,
    result: LoadResult,
    refused: Sequence[WrittenFile],
    *,
    clock: Clock,
) -> None:
    """Commit a load as `commit_load` does, and in the same transaction its refused rows.

    Raises:
        LoadOvertaken: As `commit_load`.
        LeaseLost: Somebody has given this load up; nothing was changed.
        UnknownOutcome: It may have been committed; the history will tell.
    """
    if not refused or _is_gone(database, load):
        return commit_load(database, load, result, clock=clock)
    faults.point(Point.LOAD_WRITTEN)
    both = _Both(database, load, result, refused, clock)
    try:
        repeated(load, both.attempt, lambda: is_committed(database, load.load_id), clock)
    except CommitLost as error:
        raise LoadOvertaken(load=load.load_id, reason=str(error).rstrip(".")) from error
    faults.point(Point.LOAD_COMMITTED)
    return None


def _is_gone(database: Database, load: OpenLoad) -> bool:
    with database.reading() as connection:
        current = error_table_of(connection, table_by_id(connection, load.table.table_id))
    if load.errors is not None and current is not None:
        return current.table_id != load.errors.table_id
    _log.warning("Rejects of load %s are not kept: the error table is gone.", load.load_id)
    return True


class _Both:
    """A commit to two tables, tried until it happens."""

    def __init__(
        self,
        database: Database,
        load: OpenLoad,
        result: LoadResult,
        refused: Sequence[WrittenFile],
        clock: Clock,
    ) -> None:
        self._database = database
        self._load = load
        self._result = result
        pairs = ((load.table, result.files), (load.errors, refused))
        self._additions = [(table, files) for table, files in pairs if table is not None and files]
        self._clock = clock
        self._moves: list[tuple[TableRecord, str]] = []
        self._snapshot_id: int | None = None

    def attempt(self) -> None:
        """Stage one table's metadata after the other's, then move both pointers."""
        self._moves.clear()
        self._snapshot_id = None
        self._stage(0)

    def _stage(self, at: int) -> None:
        if at == len(self._additions):
            return self._commit()
        table, files = self._additions[at]
        current, native = current_of(self._database, self._load, table)

        def swap(location: str, snapshot_id: int) -> None:
            self._moves.append((current, location))
            if table is self._load.table:
                self._snapshot_id = snapshot_id
            self._stage(at + 1)

        return commit_append(addition(self._load, current, native, files, self._clock), swap)

    def _commit(self) -> None:
        faults.point(Point.LOAD_STAGED)
        touched = {self._load.table.table_id, *(table.table_id for table, _ in self._moves)}
        with self._database.writing() as connection:
            if len(lock_tables(connection, touched)) < len(touched):
                raise LoadOvertaken(load=self._load.load_id, reason="a table was dropped")
            for current, location in self._moves:
                before = Pointer(current.pointer, current.migrated_seq)
                after = Pointer(location, current.migrated_seq)
                set_pointer(connection, current, expected=before, new=after)
            close_committed(connection, self._load, self._result, self._snapshot_id, self._clock)
            faults.point(Point.LOAD_INSIDE_COMMIT)
