"""State of pipes that load files, and the files that they could not load.

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
from snowmelt.catalog.objects.tables import PipeRecord, list_pipes

_FILE_PIPES = model.file_pipes
_PIPE_FILES = model.pipe_files


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
    began and did not end. `attempted_file` is the file of such a load if it had only one.
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


def create_file_pipe(connection: Connection, pipe_id: int) -> None:
    """Add the state of a new pipe that loads files."""
    connection.execute(sa.insert(_FILE_PIPES).values(pipe_id=pipe_id, paused=False))


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
