"""Registered chunks: what a reader or a migration still has to read, and what may be deleted.

A blob goes in three steps, each a transaction of its own: its chunks are marked as retired,
the object is deleted, the rows are removed. Interrupted anywhere, the next round goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.streaming.stages import StagedBlob, bury

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection

    from sqlalchemy import Connection

_C = model.chunks
_T = model.tables
_MANY = 100_000


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """One registered chunk: `length` bytes at `offset` of the blob at `prefix/path`.

    `seq` is the table's commit sequence; `statistics` is JSON as it was registered.
    """

    table_id: int
    seq: int
    prefix: str
    path: str
    offset: int
    length: int
    md5: str
    key_id: int
    rows: int
    schema_version: int
    statistics: bytes
    first_insert_ms: int | None
    last_insert_ms: int | None
    registered_at: dt.datetime


@dataclass(frozen=True, slots=True)
class ChunkChannel:
    """Whose rows a chunk holds, in the order in which they lie in it."""

    name: str
    client_sequencer: int
    row_sequencer: int
    start_offset_token: str | None
    end_offset_token: str | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """What of a table is not yet in native files; `oldest` is a registration time or None."""

    chunks: int
    rows: int
    bytes: int
    oldest: dt.datetime | None


@dataclass(frozen=True, slots=True)
class QuarantinedChunk:
    """A chunk that could not be decoded; its blob is kept."""

    table_id: int
    seq: int
    prefix: str
    path: str
    offset: int
    rows: int
    reason: str


_RECORD = [_C.c[field.name] for field in fields(ChunkRecord)]


def chunks_between(
    connection: Connection,
    table_id: int,
    after: int,
    up_to: int,
    *,
    limit: int | None = None,
    kept_only: bool = False,
) -> list[ChunkRecord]:
    """Return the chunks of a table in (after, up_to], ordered by sequence.

    With `kept_only` those are left out whose blobs may be deleted by now.
    """
    kept = _C.c.retired_at.is_(None) if kept_only else sa.true()
    query = (
        sa.select(*_RECORD)
        .where(_C.c.table_id == table_id, _C.c.seq > after, _C.c.seq <= up_to, kept)
        .order_by(_C.c.seq)
        .limit(limit)
    )
    return [ChunkRecord(*row) for row in connection.execute(query)]


def channels_in(connection: Connection, table_id: int, seq: int) -> tuple[ChunkChannel, ...]:
    """Return whose rows a chunk holds; nothing when it is not there."""
    query = sa.select(_C.c.channels).where(_C.c.table_id == table_id, _C.c.seq == seq)
    text = connection.execute(query).scalar()
    return tuple(ChunkChannel(*parts) for parts in msgspec.json.decode(text)) if text else ()


def backlog(connection: Connection, table_id: int) -> Backlog:
    """Return how much of a table waits for migration."""
    query = (
        sa.select(
            sa.func.count(_C.c.seq),
            sa.func.coalesce(sa.func.sum(_C.c.rows), 0),
            sa.func.coalesce(sa.func.sum(_C.c.length), 0),
            sa.func.min(_C.c.registered_at, type_=model.Instant),
        )
        .select_from(_T.outerjoin(_C, _is_waiting()))
        .where(_T.c.table_id == table_id)
    )
    count, rows, size, oldest = connection.execute(query).one()
    return Backlog(count, int(rows), int(size), oldest)


def tables_with_backlog(connection: Connection) -> list[int]:
    """Return the ids of the live tables that have chunks above their migrated sequence."""
    query = sa.select(_T.c.table_id).where(
        _T.c.dropped_at.is_(None), _T.c.last_seq > _T.c.migrated_seq
    )
    return list(connection.execute(query.order_by(_T.c.table_id)).scalars())


def quarantine(connection: Connection, table_id: int, seq: int, reason: str) -> None:
    """Set a chunk aside that cannot be decoded: no native file has its rows, its blob is kept.

    Readers go on reading it, and fail, until the blob is restored or `give_up` is called.
    """
    connection.execute(
        sa.update(_C)
        .where(_C.c.table_id == table_id, _C.c.seq == seq)
        .values(quarantine_reason=reason)
    )


def quarantined(connection: Connection, table_id: int | None = None) -> list[QuarantinedChunk]:
    """Return the chunks set aside, of one table or of all."""
    query = sa.select(
        _C.c.table_id,
        _C.c.seq,
        _C.c.prefix,
        _C.c.path,
        _C.c.offset,
        _C.c.rows,
        _C.c.quarantine_reason,
    ).where(_is_quarantined())
    if table_id is not None:
        query = query.where(_C.c.table_id == table_id)
    rows = connection.execute(query.order_by(_C.c.table_id, _C.c.seq))
    return [QuarantinedChunk(*row) for row in rows]


def quarantined_records(connection: Connection, table_id: int) -> list[ChunkRecord]:
    """Return the chunks of a table that are set aside, as a reader needs them, by sequence."""
    query = sa.select(*_RECORD).where(_C.c.table_id == table_id, _is_quarantined())
    return [ChunkRecord(*row) for row in connection.execute(query.order_by(_C.c.seq))]


def give_up(
    connection: Connection, table_id: int, now: dt.datetime, *, seq: int | None = None
) -> int:
    """Give up one chunk in quarantine, or all of a table, with their rows; return how many.

    Clean-up deletes their blobs.
    """
    chosen = sa.true() if seq is None else _C.c.seq == seq
    given = connection.execute(
        sa.update(_C)
        .where(_C.c.table_id == table_id, _is_quarantined(), chosen)
        .values(retired_at=now)
    )
    return given.rowcount


def retire(
    connection: Connection, table_id: int, up_to: int, now: dt.datetime, *, limit: int = _MANY
) -> int:
    """Mark the chunks of a table up to a sequence as needed by nobody; return how many.

    The caller knows that no query still reads them. Chunks in quarantine are left alone.
    """
    query = (
        sa.select(_C.c.seq)
        .where(
            _C.c.table_id == table_id,
            _C.c.seq <= up_to,
            _C.c.retired_at.is_(None),
            _C.c.quarantine_reason.is_(None),
        )
        .order_by(_C.c.seq)
        .limit(limit)
    )
    marked = connection.execute(
        sa.update(_C)
        .where(_C.c.table_id == table_id, _C.c.seq.in_(query.scalar_subquery()))
        .values(retired_at=now)
    )
    return marked.rowcount


def deletable_blobs(connection: Connection, *, limit: int = 1_000) -> list[StagedBlob]:
    """Return blobs of which every chunk, of whatever table, is retired."""
    other = _C.alias()
    needed = sa.select(sa.literal(1)).where(other.c.path == _C.c.path, other.c.retired_at.is_(None))
    query = (
        sa.select(_C.c.prefix, _C.c.path)
        .distinct()
        .where(_C.c.retired_at.is_not(None), ~needed.exists())
        .limit(limit)
    )
    return [StagedBlob(*row) for row in connection.execute(query)]


def forget_blobs(connection: Connection, blobs: Collection[StagedBlob], now: dt.datetime) -> None:
    """Remove the rows of blobs whose objects are gone; chunks that are not retired stay.

    A tombstone takes their place: a chunk of such a blob may still be on its way here, checked
    when the object was there.
    """
    if not blobs:
        return
    bury(connection, blobs, now)
    connection.execute(
        sa.delete(_C).where(_C.c.path == sa.bindparam("the_path"), _C.c.retired_at.is_not(None)),
        [{"the_path": blob.path} for blob in blobs],
    )


def _is_quarantined() -> sa.ColumnElement[bool]:
    return sa.and_(_C.c.quarantine_reason.is_not(None), _C.c.retired_at.is_(None))


def _is_waiting() -> sa.ColumnElement[bool]:
    return sa.and_(
        _C.c.table_id == _T.c.table_id, _C.c.seq > _T.c.migrated_seq, _C.c.seq <= _T.c.last_seq
    )
