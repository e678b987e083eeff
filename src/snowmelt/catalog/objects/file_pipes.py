"""State of pipes that load files, of files that requests name, and of files that failed to load.

Only the history of loads records which files are loaded, in the transaction that commits their
rows. Functions take a connection and do not commit.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import encode_array, in_array, make_insert, replace_nul
from snowmelt.catalog.jobs.load_history import LoadFileState
from snowmelt.catalog.jobs.run_history import RunState
from snowmelt.catalog.objects.tables import PipeRecord, list_pipes

_FILE_PIPES = model.file_pipes
_PIPE_FILES = model.pipe_files
_NOTICES = model.pipe_notices
# A file that is named again within this time is not loaded again, as in Snowpipe.
NOTICE_RETENTION = dt.timedelta(days=14)


class PipeFileState(StrEnum):
    """Reason why a pipe has a record of a file."""

    FAILED = "FAILED"
    CHANGED = "CHANGED"
    KILLED = "KILLED"


@dataclass(frozen=True, slots=True)
class FilePipeRecord:
    """State of a pipe that loads files.

    `refresh_at` is the time of the last request to list all files and retry failed ones.
    `refreshed_at` is the time of the last completed request. `listed_at` is when the worker last
    listed files. `last_error` is an error that stops the whole pipe. `attempts` counts loads that
    began and did not end. `attempted_file` is the file of such a load if it had only one. If
    `named_only` is True, the pipe loads only files that are named in requests.
    """

    paused: bool
    refresh_at: dt.datetime | None = None
    refreshed_at: dt.datetime | None = None
    listed_at: dt.datetime | None = None
    waiting_files: int | None = None
    oldest_waiting_at: dt.datetime | None = None
    last_file: str | None = None
    last_load_at: dt.datetime | None = None
    last_error: str | None = None
    last_error_at: dt.datetime | None = None
    attempts: int | None = None
    attempted_file: str | None = None
    named_only: bool = False

    @property
    def wants_refresh(self) -> bool:
        """True if a request to list all files is pending."""
        return self.refresh_at is not None and self.refresh_at != self.refreshed_at


@dataclass(frozen=True, slots=True)
class PipeFileRecord:
    """A file that a pipe could not load: its version and the reason."""

    path: str
    size: int | None
    tag: str | None
    state: PipeFileState
    error: str
    at: dt.datetime


def create_file_pipe(connection: Connection, pipe_id: int, *, named_only: bool = False) -> None:
    """Add the state of a new pipe that loads files. With `named_only`, only files named in requests."""
    connection.execute(
        sa.insert(_FILE_PIPES).values(pipe_id=pipe_id, paused=False, named_only=named_only)
    )


def find_file_pipe(connection: Connection, pipe_id: int) -> FilePipeRecord | None:
    """Return the state of a pipe, or None if it does not load files."""
    row = (
        connection.execute(sa.select(_FILE_PIPES).where(_FILE_PIPES.c.pipe_id == pipe_id))
        .mappings()
        .first()
    )
    if row is None:
        return None
    return FilePipeRecord(**{name: row[name] for name in FilePipeRecord.__dataclass_fields__})


def list_file_pipes(connection: Connection) -> list[tuple[PipeRecord, FilePipeRecord]]:
    """Return the live pipes that load files, with their states."""
    if not has_file_pipes(connection):
        return []
    found = (
        (pipe, find_file_pipe(connection, pipe.pipe_id))
        for pipe in list_pipes(connection, None, None)
    )
    return [(pipe, state) for pipe, state in found if state is not None]


def has_file_pipes(connection: Connection) -> bool:
    """Return True if a pipe that loads files exists or existed."""
    return (
        connection.execute(sa.select(sa.literal(1)).select_from(_FILE_PIPES).limit(1)).first()
        is not None
    )


def update_file_pipe(connection: Connection, pipe_id: int, **values: object) -> None:
    """Set fields of a pipe's `FilePipeRecord`."""
    connection.execute(
        sa.update(_FILE_PIPES)
        .where(_FILE_PIPES.c.pipe_id == pipe_id)
        .values(
            {
                name: replace_nul(each) if isinstance(each, str) else each
                for name, each in values.items()
            }
        )
    )


def list_pipe_files(connection: Connection, pipe_id: int) -> list[PipeFileRecord]:
    """Return the files that a pipe could not load, oldest errors first."""
    query = (
        sa.select(_PIPE_FILES)
        .where(_PIPE_FILES.c.pipe_id == pipe_id)
        .order_by(_PIPE_FILES.c.at, _PIPE_FILES.c.path)
    )
    names = PipeFileRecord.__dataclass_fields__
    return [
        PipeFileRecord(
            **{name: row[name] for name in names} | {"state": PipeFileState(row["state"])}
        )
        for row in connection.execute(query).mappings()
    ]


def save_pipe_files(connection: Connection, pipe_id: int, files: Sequence[PipeFileRecord]) -> None:
    """Record files that a pipe could not load. Replaces records of the same paths."""
    for each in files:
        values = {
            "size": each.size,
            "tag": each.tag,
            "state": each.state,
            "error": replace_nul(each.error),
            "at": each.at,
        }
        connection.execute(
            make_insert(connection, _PIPE_FILES)
            .values(pipe_id=pipe_id, path=each.path, **values)
            .on_conflict_do_update(index_elements=["pipe_id", "path"], set_=values)
        )


def delete_pipe_files(
    connection: Connection, pipe_id: int, paths: Collection[str] | None = None
) -> None:
    """Delete a pipe's records of these paths, or by default all of its records."""
    query = sa.delete(_PIPE_FILES).where(_PIPE_FILES.c.pipe_id == pipe_id)
    if paths is not None:
        query = query.where(in_array(_PIPE_FILES.c.path, encode_array(sorted(paths))))
    connection.execute(query)


# Files named in requests.


@dataclass(frozen=True, slots=True)
class FileNotice:
    """A file that was named in a request and is not loaded yet. `path` is an absolute path or a URL."""

    path: str
    received_at: dt.datetime


def save_notices(
    connection: Connection, pipe_id: int, paths: Collection[str], now: dt.datetime
) -> list[str]:
    """Record files that a request names. Return those that are skipped.

    A file is skipped if a request within the retention time has named it, unless its load failed
    since then.
    """
    names = encode_array(sorted(set(paths)))
    connection.execute(
        sa.delete(_NOTICES).where(
            _NOTICES.c.pipe_id == pipe_id,
            _NOTICES.c.ended_at.is_not(None),
            _NOTICES.c.received_at < now - NOTICE_RETENTION,
        )
    )
    known = set(
        connection.execute(
            sa.select(_NOTICES.c.path).where(
                _NOTICES.c.pipe_id == pipe_id, in_array(_NOTICES.c.path, names)
            )
        ).scalars()
    )
    failed = set(
        connection.execute(
            sa.select(_PIPE_FILES.c.path).where(
                _PIPE_FILES.c.pipe_id == pipe_id, in_array(_PIPE_FILES.c.path, names)
            )
        ).scalars()
    )
    values = {"received_at": now, "ended_at": None}
    rows = [
        {"pipe_id": pipe_id, "path": path, **values}
        for path in sorted(set(paths) - (known - failed))
    ]
    if rows:
        insert = make_insert(connection, _NOTICES)
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=["pipe_id", "path"],
                set_={name: insert.excluded[name] for name in values},
            ),
            rows,
        )
    return sorted(known - failed)


def list_waiting_notices(connection: Connection, pipe_id: int) -> list[FileNotice]:
    """Return the named files that are neither loaded nor abandoned, oldest first."""
    query = (
        sa.select(_NOTICES.c.path, _NOTICES.c.received_at)
        .where(_NOTICES.c.pipe_id == pipe_id, _NOTICES.c.ended_at.is_(None))
        .order_by(_NOTICES.c.received_at, _NOTICES.c.path)
    )
    return [FileNotice(*row) for row in connection.execute(query)]


def end_notices(
    connection: Connection, pipe_id: int, paths: Collection[str], now: dt.datetime
) -> None:
    """Record that named files are loaded or abandoned."""
    connection.execute(
        sa.update(_NOTICES)
        .where(
            _NOTICES.c.pipe_id == pipe_id, in_array(_NOTICES.c.path, encode_array(sorted(paths)))
        )
        .values(ended_at=now)
    )


@dataclass(frozen=True, slots=True)
class PipeFileEvent:
    """Outcome of a file of a pipe. `error` is the reason why it was not loaded, or its first reject."""

    path: str
    at: dt.datetime
    received_at: dt.datetime
    state: LoadFileState
    size: int | None
    rows: int
    rejects: int
    error: str | None


def list_file_events(
    connection: Connection,
    pipe: PipeRecord,
    table_id: int,
    *,
    start: dt.datetime,
    end: dt.datetime,
) -> list[PipeFileEvent]:
    """Return the outcomes of a pipe's files from `start` (inclusive) to `end` (exclusive), in order."""
    loads, files = model.loads, model.loaded_files
    received = sa.and_(_NOTICES.c.pipe_id == pipe.pipe_id, _NOTICES.c.path == files.c.path)
    loaded = (
        sa.select(files, loads.c.ended_at, loads.c.started_at, _NOTICES.c.received_at)
        .join(loads, loads.c.load_id == files.c.load_id)
        .join(_NOTICES, received, isouter=True)
        .where(
            loads.c.table_id == table_id,
            loads.c.stream_name == str(pipe),
            loads.c.state == RunState.COMMITTED,
            loads.c.started_at >= pipe.created_at,
            loads.c.ended_at >= start,
            loads.c.ended_at < end,
            files.c.state != LoadFileState.FAILED,
        )
    )
    failed = (
        sa.select(_PIPE_FILES, _NOTICES.c.received_at)
        .join(
            _NOTICES,
            sa.and_(_NOTICES.c.pipe_id == pipe.pipe_id, _NOTICES.c.path == _PIPE_FILES.c.path),
            isouter=True,
        )
        .where(
            _PIPE_FILES.c.pipe_id == pipe.pipe_id,
            _PIPE_FILES.c.at >= start,
            _PIPE_FILES.c.at < end,
        )
    )
    events = [
        PipeFileEvent(
            row.path,
            row.ended_at,
            row.received_at or row.started_at,
            LoadFileState(row.state),
            row.size,
            row.rows,
            row.rejects,
            row.first_error,
        )
        for row in connection.execute(loaded)
    ]
    events += [
        PipeFileEvent(
            row.path,
            row.at,
            row.received_at or row.at,
            LoadFileState.FAILED,
            row.size,
            0,
            0,
            row.error,
        )
        for row in connection.execute(failed)
    ]
    return sorted(events, key=lambda event: (event.at, event.path))
