"""What loads were tried, how they ended, what each did with its files, and offsets of streams.

Functions take a connection and commit nothing. A committed load is closed, its files are noted
and its offsets move in the very transaction that swaps the table's pointer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import insert_for, storable
from snowmelt.errors import CommitLost, NotFound

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

_L = model.loads
_F = model.loaded_files
_O = model.stream_offsets
# Below the least number of parameters that SQLite takes in one statement.
_AT_ONCE = 10_000


class LoadState(StrEnum):
    """How far a load got; `running` after a crash until somebody closes it."""

    RUNNING = "running"
    COMMITTED = "committed"
    LOST = "lost"
    FAILED = "failed"


class FileState(StrEnum):
    """What a load did with a file; the value is the word of the history."""

    LOADED = "LOADED"
    PARTIALLY_LOADED = "PARTIALLY_LOADED"
    FAILED = "LOAD_FAILED"


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """One load of a table; counts are set when it has ended and they are known."""

    load_id: str
    table_id: int
    reject_table_id: int | None
    role: str
    stream_name: str | None
    statement: str
    state: LoadState
    started_at: dt.datetime
    ended_at: dt.datetime | None = None
    files: int | None = None
    rows: int | None = None
    rejects: int | None = None
    bytes: int | None = None
    snapshot_id: int | None = None
    first_error: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class LoadTotals:
    """What a load read and wrote in all; bytes as they came from the source."""

    files: int
    rows: int
    rejects: int
    bytes: int
    snapshot_id: int | None = None
    first_error: str | None = None


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a load; `tag` is its change mark, None where it has none."""

    number: int
    path: str
    size: int | None
    tag: str | None
    state: FileState
    rows: int
    rejects: int
    bytes: int
    first_error: str | None = None


@dataclass(frozen=True, slots=True)
class FileHistory:
    """One file of a load with the load."""

    load: LoadRecord
    file: FileRecord


@dataclass(frozen=True, slots=True, order=True)
class FileKey:
    """What tells a file from another of its name, or from itself after a change."""

    path: str
    size: int
    tag: str


@dataclass(frozen=True, slots=True)
class OffsetAdvance:
    """A stream's partition moves on; `expected` is the offset it was at when it was read.

    None means that nothing was stored.
    """

    stream: str
    topic: str
    partition: int
    expected: int | None
    next_offset: int


def start_load(connection: Connection, record: LoadRecord) -> None:
    """Write down a load that begins; its id must be new."""
    connection.execute(
        sa.insert(_L).values(
            load_id=record.load_id,
            table_id=record.table_id,
            reject_table_id=record.reject_table_id,
            role=record.role,
            stream_name=record.stream_name,
            statement=record.statement,
            state=record.state,
            started_at=record.started_at,
        )
    )


def finish_load(
    connection: Connection,
    load_id: str,
    state: LoadState,
    *,
    now: dt.datetime,
    totals: LoadTotals | None = None,
    message: str | None = None,
) -> bool:
    """Close a running load; False, and nothing is changed, when somebody has closed it."""
    counts: dict[str, Any] = {}
    if totals is not None:
        counts = {field.name: getattr(totals, field.name) for field in fields(totals)}
        counts["first_error"] = storable(totals.first_error)
    closed = connection.execute(
        sa.update(_L)
        .where(_L.c.load_id == load_id, _L.c.state == LoadState.RUNNING)
        .values(state=state, ended_at=now, message=storable(message), **counts)
    )
    return closed.rowcount == 1


def find_load(connection: Connection, load_id: str) -> LoadRecord:
    """Return one load.

    Raises:
        NotFound: It never started.
    """
    row = connection.execute(sa.select(_L).where(_L.c.load_id == load_id)).mappings().first()
    if row is None:
        raise NotFound(kind="Load", name=load_id)
    return _record(row)


def loads_of(
    connection: Connection, table_id: int | None = None, *, limit: int = 10_000
) -> list[LoadRecord]:
    """Return the loads of a table, or of all, the newest first."""
    query = sa.select(_L).order_by(_L.c.started_at.desc(), _L.c.load_id).limit(limit)
    if table_id is not None:
        query = query.where(_L.c.table_id == table_id)
    return [_record(row) for row in connection.execute(query).mappings()]


def running_loads(connection: Connection, table_id: int) -> list[LoadRecord]:
    """Return the loads into a table, rows or rejects, that nobody has closed, the oldest first."""
    query = (
        sa.select(_L)
        .where(
            _L.c.state == LoadState.RUNNING,
            sa.or_(_L.c.table_id == table_id, _L.c.reject_table_id == table_id),
        )
        .order_by(_L.c.started_at)
    )
    return [_record(row) for row in connection.execute(query).mappings()]


def commits_of(connection: Connection, table_id: int) -> dict[str, dt.datetime]:
    """Return when each load committed rows or rejects to a table, by load id."""
    query = sa.select(_L.c.load_id, _L.c.ended_at).where(
        _L.c.ended_at.is_not(None),
        sa.or_(
            sa.and_(_L.c.table_id == table_id, _L.c.state == LoadState.COMMITTED),
            # Rejects are published whether or not the rows are.
            _L.c.reject_table_id == table_id,
        ),
    )
    return {row.load_id: row.ended_at for row in connection.execute(query)}


# --- files


def add_files(
    connection: Connection, load_id: str, table_id: int, files: Sequence[FileRecord]
) -> None:
    """Note what a load did with its files."""
    if files:
        connection.execute(
            sa.insert(_F),
            [
                {
                    "load_id": load_id,
                    "table_id": table_id,
                    **{field.name: getattr(file, field.name) for field in fields(file)},
                    "first_error": storable(file.first_error),
                }
                for file in files
            ],
        )


def loaded_already(
    connection: Connection, table_id: int, paths: Collection[str]
) -> dict[FileKey, str]:
    """Return which files of these paths a table has, and by which load."""
    found: dict[FileKey, str] = {}
    wanted = sorted(set(paths))
    for start in range(0, len(wanted), _AT_ONCE):
        query = sa.select(_F.c.path, _F.c.size, _F.c.tag, _F.c.load_id).where(
            _F.c.table_id == table_id,
            _F.c.path.in_(wanted[start : start + _AT_ONCE]),
            _F.c.state != FileState.FAILED,
            _F.c.size.is_not(None),
            _F.c.tag.is_not(None),
        )
        for row in connection.execute(query):
            found[FileKey(row.path, row.size, row.tag)] = row.load_id
    return found


def file_history(connection: Connection, *, limit: int = 100_000) -> list[FileHistory]:
    """Return what was done with each file, the newest loads first."""
    newest = sa.select(_L).order_by(_L.c.started_at.desc(), _L.c.load_id).subquery()
    query = (
        sa.select(_F)
        .join(newest, newest.c.load_id == _F.c.load_id)
        .order_by(newest.c.started_at.desc(), _F.c.load_id, _F.c.number)
        .limit(limit)
    )
    rows = list(connection.execute(query).mappings())
    loads = {load_id: find_load(connection, load_id) for load_id in {row.load_id for row in rows}}
    return [FileHistory(loads[row.load_id], _file(row)) for row in rows]


# --- offsets


def offsets_of(connection: Connection, stream: str) -> dict[tuple[str, int], int]:
    """Return the next offset of each partition of a stream, by topic and partition."""
    query = sa.select(_O.c.topic, _O.c.partition, _O.c.next_offset).where(_O.c.stream == stream)
    return {(row.topic, row.partition): row.next_offset for row in connection.execute(query)}


def advance_offsets(
    connection: Connection, load_id: str, advances: Sequence[OffsetAdvance], now: dt.datetime
) -> None:
    """Move streams on, each from exactly where it was read.

    Raises:
        CommitLost: Another load has moved one of them meanwhile.
    """
    for each in advances:
        values = {"next_offset": each.next_offset, "load_id": load_id, "updated_at": now}
        key = {"stream": each.stream, "topic": each.topic, "partition": each.partition}
        if each.expected is None:
            insert = insert_for(connection, _O).values(**key, **values)
            moved = connection.execute(
                insert.on_conflict_do_nothing().returning(_O.c.next_offset)
            ).first()
        else:
            moved = connection.execute(
                sa.update(_O)
                .where(*(_O.c[name] == value for name, value in key.items()))
                .where(_O.c.next_offset == each.expected)
                .values(**values)
                .returning(_O.c.next_offset)
            ).first()
        if moved is None:
            raise CommitLost(
                table=f"stream {each.stream}",
                reason=f"partition {each.partition} of topic {each.topic} is no longer at "
                f"offset {each.expected}",
            )


def _record(row: sa.RowMapping) -> LoadRecord:
    return LoadRecord(**{**row, "state": LoadState(row["state"])})


def _file(row: sa.RowMapping) -> FileRecord:
    values = {field.name: row[field.name] for field in fields(FileRecord)}
    return FileRecord(**{**values, "state": FileState(row["state"])})
