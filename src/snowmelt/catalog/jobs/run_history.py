"""History of maintenance and migration runs, and the migration backlog.

A run's row is inserted once and closed once. Methods take a connection and do not commit. A
committed run is closed in the transaction that swaps the table's metadata pointer.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import replace_nul
from snowmelt.errors import NotFound
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_RecordT = TypeVar("_RecordT")


class RunState(StrEnum):
    """State of a run. After a crash, the state remains `running` until another process closes the run."""

    RUNNING = "running"
    COMMITTED = "committed"
    LOST = "lost"
    FAILED = "failed"


class RunHistory(Generic[_RecordT]):
    """Reads and writes the runs in one table of the catalog. Records have a field for each column."""

    def __init__(
        self,
        table: sa.Table,
        record_type: type[_RecordT],
        enums: Mapping[str, type[StrEnum]],
        *table_id_columns: sa.Column[Any],
    ) -> None:
        """Describe the table: the enum types of text columns, and the columns with table IDs."""
        self._table = table
        self._record_type: Any = record_type
        self._enums = enums
        (self._key,) = table.primary_key
        self._table_id_columns = table_id_columns or (table.c.table_id,)

    def start(self, connection: sa.Connection, record: _RecordT) -> None:
        """Insert a run with state `running`. The ID must be new."""
        values = {name: getattr(record, name) for name in self._record_type.__dataclass_fields__}
        connection.execute(sa.insert(self._table).values(values))

    def finish(
        self,
        connection: sa.Connection,
        run_id: str,
        state: RunState,
        *,
        now: dt.datetime,
        totals: DataclassInstance | None = None,
        message: str | None = None,
    ) -> bool:
        """Close a running run. Return False, and change nothing, if it is already closed."""
        values = {} if totals is None else dataclasses.asdict(totals)
        values |= {"state": state, "ended_at": now, "message": message}
        closed = connection.execute(
            sa.update(self._table)
            .where(self._key == run_id, self._table.c.state == "running")
            .values(
                {
                    name: replace_nul(value) if isinstance(value, str) else value
                    for name, value in values.items()
                }
            )
        )
        return closed.rowcount == 1

    def find(self, connection: sa.Connection, run_id: str) -> _RecordT | None:
        """Return a run, or None if it does not exist."""
        found = self._fetch(connection, sa.select(self._table).where(self._key == run_id))
        return found[0] if found else None

    def list_runs(
        self, connection: sa.Connection, table_id: int | None = None, *, limit: int = 10_000
    ) -> list[_RecordT]:
        """Return the runs of a table or of all tables, newest first."""
        newest_first = (
            self._table.c.started_at.desc(),
            self._table.c.get("to_seq", self._key).desc(),
        )
        query = sa.select(self._table).order_by(*newest_first).limit(limit)
        if table_id is not None:
            query = query.where(self._table.c.table_id == table_id)
        return self._fetch(connection, query)

    def list_running(self, connection: sa.Connection, table_id: int) -> list[_RecordT]:
        """Return the runs on a table that are not closed, oldest first."""
        query = sa.select(self._table).where(
            self._table.c.state == "running",
            sa.or_(*(column == table_id for column in self._table_id_columns)),
        )
        return self._fetch(connection, query.order_by(self._table.c.started_at))

    def _fetch(self, connection: sa.Connection, query: sa.Select[Any]) -> list[_RecordT]:
        return [
            self._record_type(
                **{**row, **{name: kind(row[name]) for name, kind in self._enums.items()}}
            )
            for row in connection.execute(query).mappings()
        ]


# History of maintenance runs on native files: compaction and snapshot expiration.

_MAINTENANCE_RUNS = model.maintenance_runs


class MaintenanceKind(StrEnum):
    """Kind of a run: compaction, or only expiration of old snapshots."""

    COMPACTION = "compaction"
    EXPIRY = "expiry"


@dataclass(frozen=True, slots=True)
class MaintenanceRecord:
    """One maintenance run on a table. Counts are set when it commits."""

    run_id: str
    table_id: int
    kind: MaintenanceKind
    state: RunState
    started_at: dt.datetime
    ended_at: dt.datetime | None = None
    rows: int | None = None
    files_before: int | None = None
    bytes_before: int | None = None
    files_after: int | None = None
    bytes_after: int | None = None
    snapshots_expired: int | None = None
    snapshot_id: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class MaintenanceTotals:
    """Counts of a committed run: replaced files, written files, and rows."""

    rows: int = 0
    files_before: int = 0
    bytes_before: int = 0
    files_after: int = 0
    bytes_after: int = 0
    snapshots_expired: int = 0
    snapshot_id: int | None = None


_RUNS = RunHistory(
    _MAINTENANCE_RUNS, MaintenanceRecord, {"kind": MaintenanceKind, "state": RunState}
)
finish_maintenance_run = _RUNS.finish
find_maintenance_run = _RUNS.find
list_maintenance_runs = _RUNS.list_runs
list_running_maintenance = _RUNS.list_running


def start_maintenance_run(
    connection: sa.Connection, run_id: str, table_id: int, kind: MaintenanceKind, now: dt.datetime
) -> None:
    """Insert a run with state `running`. The ID must be new."""
    _RUNS.start(connection, MaintenanceRecord(run_id, table_id, kind, RunState.RUNNING, now))


def find_maintenance_commit_times(
    connection: sa.Connection, table_id: int
) -> dict[str, dt.datetime]:
    """Return when each run on a table committed, by run ID."""
    query = sa.select(_MAINTENANCE_RUNS.c.run_id, _MAINTENANCE_RUNS.c.ended_at).where(
        _MAINTENANCE_RUNS.c.table_id == table_id,
        _MAINTENANCE_RUNS.c.state == RunState.COMMITTED,
    )
    return {row.run_id: row.ended_at for row in connection.execute(query)}


# History of migrations to native files, and the backlog of unmigrated chunks per table.

_MIGRATIONS = model.migrations


@dataclass(frozen=True, slots=True)
class MigrationRecord:
    """One migration of the chunks in (from_seq, to_seq] of a table. Counts are set when it commits."""

    run_id: str
    table_id: int
    epoch: int
    from_seq: int
    to_seq: int
    state: RunState
    started_at: dt.datetime
    ended_at: dt.datetime | None = None
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    snapshot_id: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class MigrationTotals:
    """Numbers of rows, files and bytes that a committed migration wrote."""

    rows: int
    files: int
    bytes: int
    snapshot_id: int | None


_MIGRATION_RUNS = RunHistory(_MIGRATIONS, MigrationRecord, {"state": RunState})
start_migration = _MIGRATION_RUNS.start
find_migration = _MIGRATION_RUNS.find
list_migrations = _MIGRATION_RUNS.list_runs
list_running_migrations = _MIGRATION_RUNS.list_running


def finish_migration(connection: Connection, run_id: str, state: RunState, **details: Any) -> None:
    """Close a run like `RunHistory.finish`. Raise NotFound if it does not exist."""
    if not _MIGRATION_RUNS.finish(connection, run_id, state, **details) and not find_migration(
        connection, run_id
    ):
        raise NotFound(kind="Migration", name=run_id)


def find_migrated_seq(connection: Connection, table_id: int, before: dt.datetime) -> int:
    """Return the sequence up to which chunks were migrated at a given time, or 0 if none were."""
    query = sa.select(sa.func.max(_MIGRATIONS.c.to_seq)).where(
        _MIGRATIONS.c.table_id == table_id,
        _MIGRATIONS.c.state == RunState.COMMITTED,
        _MIGRATIONS.c.ended_at <= before,
    )
    return connection.execute(query).scalar() or 0


# Backlog and totals of all tables, for monitoring.

_CHUNKS = model.chunks
_TABLES = model.tables


@dataclass(frozen=True, slots=True)
class TableBacklog:
    """Unmigrated chunks of a table. `oldest_registered_at` is the registration time of the oldest one."""

    table_id: int
    name: TableName
    chunks: int
    bytes: int
    oldest_registered_at: dt.datetime


@dataclass(frozen=True, slots=True)
class MigrationStateTotals:
    """Totals of the migrations in one state. Running migrations have no duration."""

    state: RunState
    runs: int
    rows: int
    seconds: float


def list_table_backlogs(connection: Connection) -> list[TableBacklog]:
    """Return the live tables with unmigrated chunks, largest backlog first.

    Reads the row of every unmigrated chunk: about a second for a million chunks.
    """
    waiting = (
        sa.select(
            _CHUNKS.c.table_id,
            sa.func.count().label("chunks"),
            sa.func.sum(_CHUNKS.c.length).label("bytes"),
            sa.func.min(_CHUNKS.c.registered_at, type_=model.UtcTimestamp).label("oldest"),
        )
        .join(_TABLES, _TABLES.c.table_id == _CHUNKS.c.table_id)
        .where(
            _TABLES.c.dropped_at.is_(None),
            _TABLES.c.last_seq > _TABLES.c.migrated_seq,
            _CHUNKS.c.seq > _TABLES.c.migrated_seq,
        )
        .group_by(_CHUNKS.c.table_id)
        .subquery()
    )
    schemas, databases = model.schemas, model.databases
    query = (
        sa.select(waiting, databases.c.name, schemas.c.name, _TABLES.c.name)
        .select_from(waiting)
        .join(_TABLES, _TABLES.c.table_id == waiting.c.table_id)
        .join(schemas, schemas.c.schema_id == _TABLES.c.schema_id)
        .join(databases, databases.c.database_id == schemas.c.database_id)
        .order_by(waiting.c.chunks.desc(), waiting.c.table_id)
    )
    return [
        TableBacklog(table_id, TableName(*names), int(chunks), int(size), oldest)
        for table_id, chunks, size, oldest, *names in connection.execute(query)
    ]


def find_table_ids_over_backlog(
    connection: Connection, *, max_chunks: int | None, max_bytes: int | None
) -> frozenset[int]:
    """Return the IDs of live tables whose backlog exceeds a number of chunks or bytes.

    None means no limit. The number of chunks is computed from the table's sequences; for bytes, the
    row of every unmigrated chunk is read.
    """
    waiting = _TABLES.c.last_seq - _TABLES.c.migrated_seq
    found: set[int] = set()
    if max_chunks is not None:
        query = sa.select(_TABLES.c.table_id).where(
            _TABLES.c.dropped_at.is_(None), waiting > max_chunks
        )
        found.update(connection.execute(query).scalars())
    if max_bytes is not None:
        query = (
            sa.select(_CHUNKS.c.table_id)
            .join(_TABLES, _TABLES.c.table_id == _CHUNKS.c.table_id)
            .where(
                _TABLES.c.dropped_at.is_(None), waiting > 0, _CHUNKS.c.seq > _TABLES.c.migrated_seq
            )
            .group_by(_CHUNKS.c.table_id)
            .having(sa.func.sum(_CHUNKS.c.length) > max_bytes)
        )
        found.update(connection.execute(query).scalars())
    return frozenset(found)


def sum_migrations_by_state(connection: Connection) -> list[MigrationStateTotals]:
    """Return the totals of the recorded migrations for each state."""
    micros = sa.type_coerce(_MIGRATIONS.c.ended_at, sa.BigInteger) - sa.type_coerce(
        _MIGRATIONS.c.started_at, sa.BigInteger
    )
    query = sa.select(
        _MIGRATIONS.c.state, sa.func.count(), sa.func.sum(_MIGRATIONS.c.rows), sa.func.sum(micros)
    ).group_by(_MIGRATIONS.c.state)
    found = {state: counts for state, *counts in connection.execute(query)}
    counted = []
    for state in RunState:
        runs, rows, taken = found.get(state, (0, 0, 0))
        counted.append(MigrationStateTotals(state, runs, int(rows or 0), int(taken or 0) / 1e6))
    return counted
