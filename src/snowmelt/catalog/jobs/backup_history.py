"""History of the backups of an installation.

A row is inserted when `snowmelt backup` begins, and closed when it ends. The backup points are in
the destination (`snowmelt backup list`). Functions take a connection and do not commit.
"""

from __future__ import annotations

import datetime as dt
import secrets
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import replace_nul
from snowmelt.catalog.jobs.run_history import RunState

_BACKUPS = model.backups


@dataclass(frozen=True, slots=True)
class LastBackup:
    """The newest completed backup of an installation, to any destination."""

    point_id: str
    destination: str
    ended_at: dt.datetime


def start_backup(connection: Connection, destination: str, now: dt.datetime) -> str:
    """Insert a run with state `running`, and return its ID.

    The caller has locked the destination, so any run to it with state `running` was killed. Such a
    run is closed as `lost`.
    """
    connection.execute(
        sa.update(_BACKUPS)
        .where(_BACKUPS.c.destination == destination, _BACKUPS.c.state == RunState.RUNNING)
        .values(state=RunState.LOST, ended_at=now)
    )
    backup_id = secrets.token_hex(8)
    connection.execute(
        sa.insert(_BACKUPS).values(
            backup_id=backup_id, destination=destination, state=RunState.RUNNING, started_at=now
        )
    )
    return backup_id


def commit_backup(
    connection: Connection,
    backup_id: str,
    now: dt.datetime,
    *,
    point_id: str,
    objects: int,
    size: int,
) -> None:
    """Close a run that created a backup point, with the number and bytes of copied objects."""
    _close(
        connection,
        backup_id,
        {"state": RunState.COMMITTED, "ended_at": now, "point_id": point_id}
        | {"objects": objects, "bytes": size},
    )


def fail_backup(connection: Connection, backup_id: str, now: dt.datetime, message: str) -> None:
    """Close a run that failed before it created a backup point."""
    values = {"state": RunState.FAILED, "ended_at": now, "message": replace_nul(message)}
    _close(connection, backup_id, values)


def find_last_backup(connection: Connection) -> LastBackup | None:
    """Return the newest completed backup, or None if there is none."""
    row = connection.execute(
        sa.select(_BACKUPS.c.point_id, _BACKUPS.c.destination, _BACKUPS.c.ended_at)
        .where(_BACKUPS.c.state == RunState.COMMITTED)
        .order_by(_BACKUPS.c.started_at.desc(), _BACKUPS.c.backup_id.desc())
        .limit(1)
    ).one_or_none()
    return None if row is None else LastBackup(*row)


def _close(connection: Connection, backup_id: str, values: dict[str, object]) -> None:
    connection.execute(
        sa.update(_BACKUPS)
        .where(_BACKUPS.c.backup_id == backup_id, _BACKUPS.c.state == RunState.RUNNING)
        .values(values)
    )
