"""History of migrations to native files, and the backlog of unmigrated chunks per table.

The backlog and the totals by state feed the metrics.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from snowmelt.catalog import model
from snowmelt.catalog.jobs.run_history import RunHistory, RunState
from snowmelt.errors import NotFound
from snowmelt.schema.types import TableName

_MIGRATIONS = model.migrations


@dataclass(frozen=True, slots=True)
class MigrationRecord:
    """One run: the chunks in (from_seq, to_seq] of a table; counts are set when it committed."""

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
    """What a committed migration wrote."""

    rows: int
    files: int
    bytes: int
    snapshot_id: int | None


_RUNS = RunHistory(_MIGRATIONS, MigrationRecord, {"state": RunState})
start_migration = _RUNS.start
find_migration = _RUNS.find
list_migrations = _RUNS.list_runs
list_running_migrations = _RUNS.list_running


def finish_migration(connection: Connection, run_id: str, state: RunState, **details: Any) -> None:
    """Close a run as `RunHistory.finish` does. NotFound: there is no such run."""
    if not _RUNS.finish(connection, run_id, state, **details) and not find_migration(
        connection, run_id
    ):
        raise NotFound(kind="Migration", name=run_id)


def find_migrated_seq(connection: Connection, table_id: int, before: dt.datetime) -> int:
    """Return the sequence up to which chunks were in native files at an instant, 0 for none."""
    query = sa.select(sa.func.max(_MIGRATIONS.c.to_seq)).where(
        _MIGRATIONS.c.table_id == table_id,
        _MIGRATIONS.c.state == RunState.COMMITTED,
        _MIGRATIONS.c.ended_at <= before,
    )
    return connection.execute(query).scalar() or 0


# What waits for migration, over all tables, and what migrations have done: for those who watch.

_CHUNKS = model.chunks
_TABLES = model.tables


@dataclass(frozen=True, slots=True)
class TableBacklog:
    """What of one table is not yet in native files; `oldest_registered_at` is a registration time."""

    table_id: int
    name: TableName
    chunks: int
    bytes: int
    oldest_registered_at: dt.datetime


@dataclass(frozen=True, slots=True)
class MigrationStateTotals:
    """What the migrations that ended in one state did; those that run have no seconds yet."""

    state: RunState
    runs: int
    rows: int
    seconds: float


def list_table_backlogs(connection: Connection) -> list[TableBacklog]:
    """Return the live tables of which chunks wait, those with the most chunks first.

    Reads every waiting chunk's row: about a second for a million of them.
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
    """Return the ids of the live tables of which more waits than so many chunks, or bytes.

    None is no limit. Chunks are known from the tables' numbers; for bytes, every waiting chunk's row
    is read.
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
    """Return what migrations did by state, every state once, from the history that is kept."""
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
