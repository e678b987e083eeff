"""History of loads, the state of each loaded file, stream offsets, and read positions.

A committed load is closed, its files are recorded and its offsets advance in the transaction that
swaps the table's metadata pointer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import (
    encode_array,
    in_array,
    make_insert,
    make_record,
    replace_nul,
)
from snowmelt.catalog.jobs.run_history import RunHistory, RunState
from snowmelt.errors import CommitLost, NotFound

_LOADS = model.loads
_LOADED_FILES = model.loaded_files
_STREAM_OFFSETS = model.stream_offsets
_MAX_LISTED_FILES = 100_000


class LoadFileState(StrEnum):
    """Outcome of a file in a load. The value is shown in the history."""

    LOADED = "LOADED"
    PARTIALLY_LOADED = "PARTIALLY_LOADED"
    FAILED = "LOAD_FAILED"


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """One load into a table. A count that is not known is None."""

    load_id: str
    table_id: int
    reject_table_id: int | None
    role: str
    stream_name: str | None
    statement: str
    state: RunState
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
    """Totals of a load. Bytes are counted as read from the source."""

    files: int
    rows: int
    rejects: int
    bytes: int
    snapshot_id: int | None = None
    first_error: str | None = None


@dataclass(frozen=True, slots=True)
class LoadFileRecord:
    """One file of a load. `tag` is the version tag of the contents, or None if the source has none."""

    number: int
    path: str
    size: int | None
    tag: str | None
    state: LoadFileState
    rows: int
    rejects: int
    bytes: int
    first_error: str | None = None


@dataclass(frozen=True, slots=True)
class LoadFileHistoryEntry:
    """A file of a load together with the record of the load."""

    load: LoadRecord
    file: LoadFileRecord


@dataclass(frozen=True, slots=True, order=True)
class LoadedFileKey:
    """Identity of a file version: path, size and version tag."""

    path: str
    size: int
    tag: str


@dataclass(frozen=True, slots=True)
class OffsetAdvance:
    """New offset of a partition of a stream. `expected` is the offset that was stored when it was read.

    `expected` is None if no offset was stored.
    """

    stream: str
    topic: str
    partition: int
    expected: int | None
    next_offset: int


_RUNS = RunHistory(
    _LOADS, LoadRecord, {"state": RunState}, _LOADS.c.table_id, _LOADS.c.reject_table_id
)
start_load = _RUNS.start
finish_load = _RUNS.finish
list_loads = _RUNS.list_runs
list_running_loads = _RUNS.list_running


def find_load(connection: Connection, load_id: str) -> LoadRecord:
    """Return a load. Raise NotFound if it does not exist."""
    found = _RUNS.find(connection, load_id)
    if found is None:
        raise NotFound(kind="Load", name=load_id)
    return found


def find_load_of_snapshot(connection: Connection, table_id: int, snapshot_id: int) -> str | None:
    """Return the committed load that made a snapshot of a table, or None."""
    query = sa.select(_LOADS.c.load_id).where(
        _LOADS.c.table_id == table_id,
        _LOADS.c.snapshot_id == snapshot_id,
        _LOADS.c.state == RunState.COMMITTED,
    )
    return connection.execute(query).scalar()


def find_load_commit_times(connection: Connection, table_id: int) -> dict[str, dt.datetime]:
    """Return when each load committed rows or rejects to a table, by load ID."""
    query = sa.select(_LOADS.c.load_id, _LOADS.c.ended_at).where(
        _LOADS.c.ended_at.is_not(None),
        sa.or_(
            sa.and_(_LOADS.c.table_id == table_id, _LOADS.c.state == RunState.COMMITTED),
            # Rejected records may be committed without the rows.
            _LOADS.c.reject_table_id == table_id,
        ),
    )
    return {row.load_id: row.ended_at for row in connection.execute(query)}


def save_load_files(
    connection: Connection, load_id: str, table_id: int, files: Sequence[LoadFileRecord]
) -> None:
    """Save the outcome of each file of a load."""
    if files:
        connection.execute(
            sa.insert(_LOADED_FILES),
            [
                {
                    "load_id": load_id,
                    "table_id": table_id,
                    **asdict(file),
                    "first_error": replace_nul(file.first_error),
                }
                for file in files
            ],
        )


def find_loaded_files(
    connection: Connection,
    table_id: int,
    paths: Collection[str],
    *,
    with_rejected: bool = False,
    without_rejects: bool = False,
) -> dict[LoadedFileKey, str]:
    """Return the files of these paths that a table contains, with the ID of the load.

    A path has several entries if its file changed between loads. `with_rejected` adds files whose
    records were all rejected. `without_rejects` omits files with a rejected record.
    """
    query = sa.select(
        _LOADED_FILES.c.path, _LOADED_FILES.c.size, _LOADED_FILES.c.tag, _LOADED_FILES.c.load_id
    ).where(
        _LOADED_FILES.c.table_id == table_id,
        in_array(_LOADED_FILES.c.path, encode_array(sorted(set(paths)))),
        _LOADED_FILES.c.state != LoadFileState.FAILED,
        _LOADED_FILES.c.size.is_not(None),
        _LOADED_FILES.c.tag.is_not(None),
    )
    if not with_rejected:
        query = query.where(sa.or_(_LOADED_FILES.c.rows > 0, _LOADED_FILES.c.rejects == 0))
    if without_rejects:
        query = query.where(_LOADED_FILES.c.rejects == 0)
    return {LoadedFileKey(*key): load_id for *key, load_id in connection.execute(query)}


def find_files_of_pipe(
    connection: Connection, pipe: str, created_at: dt.datetime, paths: Collection[str]
) -> dict[LoadedFileKey, str]:
    """Return the files of these paths that a pipe has loaded, with the ID of the load.

    Unlike `find_loaded_files`, this includes files in tables that TRUNCATE or CREATE OR REPLACE has
    replaced. Loads of an earlier pipe of the same name, before `created_at`, are omitted.
    """
    loads = (_LOADS.c.stream_name == pipe) & (_LOADS.c.started_at >= created_at)
    # All tables of the pipe, because the index of loaded files starts with the table.
    tables = sa.select(_LOADS.c.table_id).where(loads).distinct()
    query = (
        sa.select(
            _LOADED_FILES.c.path, _LOADED_FILES.c.size, _LOADED_FILES.c.tag, _LOADED_FILES.c.load_id
        )
        .join(_LOADS, _LOADS.c.load_id == _LOADED_FILES.c.load_id)
        .where(
            loads,
            _LOADED_FILES.c.table_id.in_(tables),
            in_array(_LOADED_FILES.c.path, encode_array(sorted(set(paths)))),
            _LOADED_FILES.c.state != LoadFileState.FAILED,
        )
    )
    return {LoadedFileKey(*key): load_id for *key, load_id in connection.execute(query)}


def rename_pipe_in_loads(
    connection: Connection, pipe: str, name: str, *, since: dt.datetime
) -> None:
    """Give the loads of a pipe its new name. `since` is the creation of the pipe."""
    connection.execute(
        sa.update(_LOADS)
        .where(_LOADS.c.stream_name == pipe, _LOADS.c.started_at >= since)
        .values(stream_name=name)
    )


def list_file_history(connection: Connection) -> list[LoadFileHistoryEntry]:
    """Return the outcome of up to 100,000 files, the newest loads first."""
    newest = sa.select(_LOADS).order_by(_LOADS.c.started_at.desc(), _LOADS.c.load_id).subquery()
    query = (
        sa.select(_LOADED_FILES)
        .join(newest, newest.c.load_id == _LOADED_FILES.c.load_id)
        .order_by(newest.c.started_at.desc(), _LOADED_FILES.c.load_id, _LOADED_FILES.c.number)
        .limit(_MAX_LISTED_FILES)
    )
    rows = connection.execute(query).all()
    loads = {load_id: find_load(connection, load_id) for load_id in {row.load_id for row in rows}}
    return [
        LoadFileHistoryEntry(
            loads[row.load_id], make_record(LoadFileRecord, row, state=LoadFileState(row.state))
        )
        for row in rows
    ]


def read_stream_offsets(connection: Connection, stream: str) -> dict[tuple[str, int], int]:
    """Return the next offset of each partition of a stream, by topic and partition."""
    query = sa.select(
        _STREAM_OFFSETS.c.topic, _STREAM_OFFSETS.c.partition, _STREAM_OFFSETS.c.next_offset
    ).where(_STREAM_OFFSETS.c.stream == stream)
    return {(row.topic, row.partition): row.next_offset for row in connection.execute(query)}


def advance_stream_offsets(
    connection: Connection, load_id: str, advances: Sequence[OffsetAdvance], now: dt.datetime
) -> None:
    """Set new offsets of streams if the stored offsets are the expected ones.

    Raises:
        CommitLost: If another load has changed an offset since it was read.
    """
    for each in advances:
        values = {"next_offset": each.next_offset, "load_id": load_id, "updated_at": now}
        key = {"stream": each.stream, "topic": each.topic, "partition": each.partition}
        if each.expected is None:
            insert = make_insert(connection, _STREAM_OFFSETS).values(**key, **values)
            moved = connection.execute(
                insert.on_conflict_do_nothing().returning(_STREAM_OFFSETS.c.next_offset)
            ).first()
        else:
            moved = connection.execute(
                sa.update(_STREAM_OFFSETS)
                .where(*(_STREAM_OFFSETS.c[name] == value for name, value in key.items()))
                .where(_STREAM_OFFSETS.c.next_offset == each.expected)
                .values(**values)
                .returning(_STREAM_OFFSETS.c.next_offset)
            ).first()
        if moved is None:
            raise CommitLost(
                table=f"stream {each.stream}",
                reason=f"another load has changed the offset of partition {each.partition} of topic "
                f"{each.topic}, expected {each.expected}",
            )


# Read positions of streams. Garbage collection keeps the chunks that active streams have not read.
# A stream counts as inactive after `POSITION_TTL`.

POSITION_TTL = dt.timedelta(days=1)

# Positions are stored in the table of stream offsets, under this topic, which loads do not use.
_POSITION_TOPIC = "commit sequence"


def save_position(
    connection: Connection, incarnation: str, stream: str, seq: int, now: dt.datetime
) -> None:
    """Record that a stream has read the chunks of a table up to a commit number."""
    values = {"next_offset": seq, "updated_at": now}
    connection.execute(
        make_insert(connection, _STREAM_OFFSETS)
        .values(
            stream=_stream_key(incarnation, stream),
            topic=_POSITION_TOPIC,
            partition=0,
            load_id="",
            **values,
        )
        .on_conflict_do_update(index_elements=["stream", "topic", "partition"], set_=values)
    )


def find_lowest_position(connection: Connection, incarnation: str, now: dt.datetime) -> int | None:
    """Return the lowest commit number that active streams of a table have read; None without streams."""
    query = sa.select(sa.func.min(_STREAM_OFFSETS.c.next_offset)).where(
        _STREAM_OFFSETS.c.stream.startswith(_stream_key(incarnation, ""), autoescape=True),
        _STREAM_OFFSETS.c.topic == _POSITION_TOPIC,
        _STREAM_OFFSETS.c.updated_at > now - POSITION_TTL,
    )
    return connection.execute(query).scalar()


def has_expired_positions(connection: Connection, incarnation: str, now: dt.datetime) -> bool:
    """Return True if a table has positions of inactive streams."""
    query = sa.select(sa.literal(1)).where(*_expired_conditions(incarnation, now)).limit(1)
    return connection.execute(query).first() is not None


def delete_expired_positions(connection: Connection, incarnation: str, now: dt.datetime) -> int:
    """Delete the positions of inactive streams of a table. Return the number of deleted positions."""
    return connection.execute(
        sa.delete(_STREAM_OFFSETS).where(*_expired_conditions(incarnation, now))
    ).rowcount


def _expired_conditions(incarnation: str, now: dt.datetime) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        _STREAM_OFFSETS.c.stream.startswith(_stream_key(incarnation, ""), autoescape=True),
        _STREAM_OFFSETS.c.topic == _POSITION_TOPIC,
        _STREAM_OFFSETS.c.updated_at <= now - POSITION_TTL,
    )


def _stream_key(incarnation: str, stream: str) -> str:
    return f"{incarnation}/read:{stream}"
