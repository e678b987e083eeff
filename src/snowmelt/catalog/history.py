"""What migrations were tried, and how they ended; rows are only added and closed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.dialects import storable
from snowmelt.errors import NotFound

if TYPE_CHECKING:
    import datetime as dt

    from sqlalchemy import Connection

_M = model.migrations


class MigrationState(StrEnum):
    """How far a migration got; `running` after a crash until somebody closes it."""

    RUNNING = "running"
    COMMITTED = "committed"
    LOST = "lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class MigrationRecord:
    """One run: the chunks in (from_seq, to_seq] of a table; counts are set when it committed."""

    run_id: str
    table_id: int
    epoch: int
    from_seq: int
    to_seq: int
    state: MigrationState
    started_at: dt.datetime
    ended_at: dt.datetime | None = None
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    snapshot_id: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What a committed migration wrote."""

    rows: int
    files: int
    bytes: int
    snapshot_id: int | None


def start_migration(connection: Connection, record: MigrationRecord) -> None:
    """Write down a run that begins; its id must be new."""
    connection.execute(
        sa.insert(_M).values(
            run_id=record.run_id,
            table_id=record.table_id,
            epoch=record.epoch,
            from_seq=record.from_seq,
            to_seq=record.to_seq,
            state=record.state,
            started_at=record.started_at,
        )
    )


def finish_migration(
    connection: Connection,
    run_id: str,
    state: MigrationState,
    *,
    now: dt.datetime,
    written: Written | None = None,
    message: str | None = None,
) -> None:
    """Close a run; a committed one in the very transaction that swaps the table's pointer.

    Raises:
        NotFound: There is no such run.
    """
    counts: dict[str, Any] = {}
    if written is not None:
        counts = {field.name: getattr(written, field.name) for field in fields(written)}
    closed = connection.execute(
        sa.update(_M)
        .where(_M.c.run_id == run_id)
        .values(state=state, ended_at=now, message=storable(message), **counts)
    )
    if closed.rowcount != 1:
        raise NotFound(kind="Migration", name=run_id)


def find_migration(connection: Connection, run_id: str) -> MigrationRecord | None:
    """Return one run, None when it never started."""
    row = connection.execute(sa.select(_M).where(_M.c.run_id == run_id)).mappings().first()
    return None if row is None else _record(row)


def migrations_of(
    connection: Connection, table_id: int | None = None, *, limit: int = 10_000
) -> list[MigrationRecord]:
    """Return the runs of a table, or of all, the newest first."""
    query = sa.select(_M).order_by(_M.c.started_at.desc(), _M.c.to_seq.desc()).limit(limit)
    if table_id is not None:
        query = query.where(_M.c.table_id == table_id)
    return [_record(row) for row in connection.execute(query).mappings()]


def running_migrations(connection: Connection, table_id: int) -> list[MigrationRecord]:
    """Return the runs of a table that nobody has closed, the oldest first."""
    query = sa.select(_M).where(_M.c.table_id == table_id, _M.c.state == MigrationState.RUNNING)
    ordered = query.order_by(_M.c.to_seq, _M.c.started_at)
    return [_record(row) for row in connection.execute(ordered).mappings()]


def migrated_before(connection: Connection, table_id: int, before: dt.datetime) -> int:
    """Return the sequence up to which chunks were in native files at an instant, 0 for none."""
    query = sa.select(sa.func.max(_M.c.to_seq)).where(
        _M.c.table_id == table_id,
        _M.c.state == MigrationState.COMMITTED,
        _M.c.ended_at <= before,
    )
    return connection.execute(query).scalar() or 0


def _record(row: sa.RowMapping) -> MigrationRecord:
    return MigrationRecord(**{**row, "state": MigrationState(row["state"])})
