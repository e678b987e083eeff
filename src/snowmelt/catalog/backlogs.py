"""What waits for migration, over all tables, and what migrations have done: for those who watch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.history import MigrationState
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    import datetime as dt

    from sqlalchemy import Connection

_C = model.chunks
_T = model.tables
_M = model.migrations


@dataclass(frozen=True, slots=True)
class TableBacklog:
    """What of one table is not yet in native files; `oldest` is a registration time."""

    table_id: int
    name: TableName
    chunks: int
    bytes: int
    oldest: dt.datetime


@dataclass(frozen=True, slots=True)
class MigrationCount:
    """What the migrations that ended in one state did; those that run have no seconds yet."""

    state: MigrationState
    runs: int
    rows: int
    seconds: float


def backlogs(connection: Connection) -> list[TableBacklog]:
    """Return the live tables of which chunks wait, those with the most chunks first.

    Reads every waiting chunk's row: about a second for a million of them.
    """
    waiting = (
        sa.select(
            _C.c.table_id,
            sa.func.count().label("chunks"),
            sa.func.sum(_C.c.length).label("bytes"),
            sa.func.min(_C.c.registered_at, type_=model.Instant).label("oldest"),
        )
        .join(_T, _T.c.table_id == _C.c.table_id)
        .where(
            _T.c.dropped_at.is_(None),
            _T.c.last_seq > _T.c.migrated_seq,
            _C.c.seq > _T.c.migrated_seq,
        )
        .group_by(_C.c.table_id)
        .subquery()
    )
    schemas, databases = model.schemas, model.databases
    query = (
        sa.select(waiting, databases.c.name, schemas.c.name, _T.c.name)
        .select_from(waiting)
        .join(_T, _T.c.table_id == waiting.c.table_id)
        .join(schemas, schemas.c.schema_id == _T.c.schema_id)
        .join(databases, databases.c.database_id == schemas.c.database_id)
        .order_by(waiting.c.chunks.desc(), waiting.c.table_id)
    )
    return [
        TableBacklog(table_id, TableName(*names), int(chunks), int(size), oldest)
        for table_id, chunks, size, oldest, *names in connection.execute(query)
    ]


def tables_with_more(
    connection: Connection, *, chunks: int | None, size: int | None
) -> frozenset[int]:
    """Return the ids of the live tables of which more waits than so many chunks, or bytes.

    None is no limit. Chunks are known from the tables' numbers; for bytes, every waiting chunk's row
    is read.
    """
    waiting = _T.c.last_seq - _T.c.migrated_seq
    found: set[int] = set()
    if chunks is not None:
        query = sa.select(_T.c.table_id).where(_T.c.dropped_at.is_(None), waiting > chunks)
        found.update(connection.execute(query).scalars())
    if size is not None:
        query = (
            sa.select(_C.c.table_id)
            .join(_T, _T.c.table_id == _C.c.table_id)
            .where(_T.c.dropped_at.is_(None), waiting > 0, _C.c.seq > _T.c.migrated_seq)
            .group_by(_C.c.table_id)
            .having(sa.func.sum(_C.c.length) > size)
        )
        found.update(connection.execute(query).scalars())
    return frozenset(found)


def migration_counts(connection: Connection) -> list[MigrationCount]:
    """Return what migrations did by state, every state once, from the history that is kept."""
    micros = sa.type_coerce(_M.c.ended_at, sa.BigInteger) - sa.type_coerce(
        _M.c.started_at, sa.BigInteger
    )
    query = sa.select(
        _M.c.state, sa.func.count(), sa.func.sum(_M.c.rows), sa.func.sum(micros)
    ).group_by(_M.c.state)
    found = {state: counts for state, *counts in connection.execute(query)}
    counted = []
    for state in MigrationState:
        runs, rows, taken = found.get(state, (0, 0, 0))
        counted.append(MigrationCount(state, runs, int(rows or 0), int(taken or 0) / 1e6))
    return counted
