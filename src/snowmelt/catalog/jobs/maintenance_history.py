"""History of maintenance runs on native files: compaction and snapshot expiry.

Rows are only inserted and closed. Functions take a connection and do not commit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog.model import maintenance_runs

if TYPE_CHECKING:
    import datetime as dt

    from sqlalchemy import Connection

_MAINTENANCE_RUNS = maintenance_runs


class MaintenanceKind(StrEnum):
    """What a run does: rewrite small files, or only let go of old snapshots."""

    COMPACTION = "compaction"
    EXPIRY = "expiry"


class MaintenanceState(StrEnum):
    """How far a run got; `running` after a crash until somebody closes it."""

    RUNNING = "running"
    COMMITTED = "committed"
    LOST = "lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class MaintenanceRecord:
    """One run on a table; counts are set when it committed."""

    run_id: str
    table_id: int
    kind: MaintenanceKind
    state: MaintenanceState
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
    """What a committed run did: files it replaced, files it wrote in their place, their rows."""

    rows: int = 0
    files_before: int = 0
    bytes_before: int = 0
    files_after: int = 0
    bytes_after: int = 0
    snapshots_expired: int = 0
    snapshot_id: int | None = None


def start_maintenance_run(
    connection: Connection, run_id: str, table_id: int, kind: MaintenanceKind, now: dt.datetime
) -> None:
    """Write down a run that begins; its id must be new."""
    connection.execute(
        sa.insert(_MAINTENANCE_RUNS).values(
            run_id=run_id,
            table_id=table_id,
            kind=kind,
            state=MaintenanceState.RUNNING,
            started_at=now,
        )
    )


def finish_maintenance_run(
    connection: Connection,
    run_id: str,
    state: MaintenanceState,
    *,
    now: dt.datetime,
    totals: MaintenanceTotals | None = None,
    message: str | None = None,
) -> bool:
    """Close a running run; False, and nothing is changed, when somebody has closed it."""
    counts: dict[str, Any] = {}
    if totals is not None:
        counts = {field.name: getattr(totals, field.name) for field in fields(totals)}
    closed = connection.execute(
        sa.update(_MAINTENANCE_RUNS)
        .where(
            _MAINTENANCE_RUNS.c.run_id == run_id,
            _MAINTENANCE_RUNS.c.state == MaintenanceState.RUNNING,
        )
        .values(state=state, ended_at=now, message=message, **counts)
    )
    return closed.rowcount == 1


def find_maintenance_run(connection: Connection, run_id: str) -> MaintenanceRecord | None:
    """Return one run, None when it never started."""
    row = (
        connection.execute(sa.select(_MAINTENANCE_RUNS).where(_MAINTENANCE_RUNS.c.run_id == run_id))
        .mappings()
        .first()
    )
    return None if row is None else _to_maintenance_record(row)


def list_maintenance_runs(
    connection: Connection, table_id: int | None = None, *, limit: int = 10_000
) -> list[MaintenanceRecord]:
    """Return the runs on a table, or on all, the newest first."""
    query = (
        sa.select(_MAINTENANCE_RUNS)
        .order_by(_MAINTENANCE_RUNS.c.started_at.desc(), _MAINTENANCE_RUNS.c.run_id)
        .limit(limit)
    )
    if table_id is not None:
        query = query.where(_MAINTENANCE_RUNS.c.table_id == table_id)
    return [_to_maintenance_record(row) for row in connection.execute(query).mappings()]


def list_running_maintenance(connection: Connection, table_id: int) -> list[MaintenanceRecord]:
    """Return the runs on a table that nobody has closed, the oldest first."""
    query = (
        sa.select(_MAINTENANCE_RUNS)
        .where(
            _MAINTENANCE_RUNS.c.table_id == table_id,
            _MAINTENANCE_RUNS.c.state == MaintenanceState.RUNNING,
        )
        .order_by(_MAINTENANCE_RUNS.c.started_at)
    )
    return [_to_maintenance_record(row) for row in connection.execute(query).mappings()]


def find_maintenance_commit_times(connection: Connection, table_id: int) -> dict[str, dt.datetime]:
    """Return when each run on a table committed, by run id."""
    query = sa.select(_MAINTENANCE_RUNS.c.run_id, _MAINTENANCE_RUNS.c.ended_at).where(
        _MAINTENANCE_RUNS.c.table_id == table_id,
        _MAINTENANCE_RUNS.c.state == MaintenanceState.COMMITTED,
    )
    return {row.run_id: row.ended_at for row in connection.execute(query)}


def _to_maintenance_record(row: sa.RowMapping) -> MaintenanceRecord:
    return MaintenanceRecord(
        **{
            **row,
            "kind": MaintenanceKind(row["kind"]),
            "state": MaintenanceState(row["state"]),
        }
    )
