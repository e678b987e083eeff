"""History of maintenance runs on native files: compaction and snapshot expiry."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.jobs.run_history import RunHistory, RunState

_MAINTENANCE_RUNS = model.maintenance_runs


class MaintenanceKind(StrEnum):
    """What a run does: rewrite small files, or only let go of old snapshots."""

    COMPACTION = "compaction"
    EXPIRY = "expiry"


@dataclass(frozen=True, slots=True)
class MaintenanceRecord:
    """One run on a table; counts are set when it committed."""

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
    """What a committed run did: files it replaced, files it wrote in their place, their rows."""

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
    """Write down a run that begins; its id must be new."""
    _RUNS.start(connection, MaintenanceRecord(run_id, table_id, kind, RunState.RUNNING, now))


def find_maintenance_commit_times(
    connection: sa.Connection, table_id: int
) -> dict[str, dt.datetime]:
    """Return when each run on a table committed, by run id."""
    query = sa.select(_MAINTENANCE_RUNS.c.run_id, _MAINTENANCE_RUNS.c.ended_at).where(
        _MAINTENANCE_RUNS.c.table_id == table_id,
        _MAINTENANCE_RUNS.c.state == RunState.COMMITTED,
    )
    return {row.run_id: row.ended_at for row in connection.execute(query)}
