"""Registered chunks: lookup for queries and migrations, backlog, quarantine and retirement.

Garbage collection deletes a blob in three steps, each in a separate transaction: it marks the
chunks as retired, deletes the object, and deletes the rows. After an interruption, the next run
continues.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs.lineage import mark_chunks_discarded
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.streaming.registration import StagedBlob, write_blob_tombstones
from snowmelt.errors import TableInconsistent

_CHUNKS = model.chunks
_TABLES = model.tables
_IS_QUARANTINED = sa.and_(_CHUNKS.c.quarantine_reason.is_not(None), _CHUNKS.c.retired_at.is_(None))
_RETIRE_BATCH_SIZE = 100_000
_READ_BATCH_SIZE = 1_000
_NO_LIMIT = 2**62


class ChunkRecord(msgspec.Struct, frozen=True, gc=False):
    """A registered chunk: `length` bytes at `offset` of the blob at `prefix/path`.

    `seq` is its number in the commit sequence of the table. `StoredStatisticsDecoder` decodes
    `statistics`.
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
    registered_at: dt.datetime

    @property
    def pruning_fields(self) -> tuple[int, int, bytes]:
        """Fields that decide on pruning: rows, schema version and statistics."""
        return self.rows, self.schema_version, self.statistics


@dataclass(frozen=True, slots=True)
class ChunkRange:
    """The chunks of a table in (`after_seq`, `up_to_seq`], and older quarantined chunks (`held`).

    Iteration reads the chunks from the catalog in batches: a million records would take gigabytes
    of memory, and most queries need few. The records do not change, and exist as long as a snapshot
    may be read.
    """

    database: Database
    table: TableRecord
    after_seq: int
    up_to_seq: int
    held: tuple[ChunkRecord, ...]

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self.held) + self.up_to_seq - self.after_seq

    def __iter__(self) -> Iterator[ChunkRecord]:
        """Yield the chunks in sequence order.

        Raises:
            TableInconsistent: If a chunk is missing.
        """
        yield from self.held
        for start, end in self._split():
            with self.database.reading() as connection:
                batch = list_chunks(connection, self.table.table_id, start, end)
            _check_chunk_count(self.table, len(batch), start, end)
            yield from batch

    @property
    def numbers(self) -> frozenset[int]:
        """The sequence numbers of the chunks."""
        return frozenset(range(self.after_seq + 1, self.up_to_seq + 1)).union(
            chunk.seq for chunk in self.held
        )

    def select(
        self, choose: Callable[[Iterable[tuple[int, int, int, bytes]]], list[int]]
    ) -> list[ChunkRecord]:
        """Return the chunks that `choose` selects, in sequence order.

        `choose` receives sequence, rows, schema version and statistics of each chunk of a batch. It
        must consume the whole batch, and returns the selected sequences.

        Raises:
            TableInconsistent: If a chunk is missing.
        """
        held = {chunk.seq: chunk for chunk in self.held}
        rows = ((seq, *chunk.pruning_fields) for seq, chunk in held.items())
        found = [held[seq] for seq in choose(rows)]
        for start, end in self._split():
            query = _select_range(_PRUNING_COLUMNS, self.table.table_id, start, end)
            with self.database.reading() as connection:
                # Use the driver's rows, because creating SQLAlchemy rows would take a third of the
                # time.
                cursor: Any = connection.execute(query).cursor
                rows = cursor.fetchall()
                _check_chunk_count(self.table, len(rows), start, end)
                if chosen := choose(rows):
                    records = _select_range(_RECORD_COLUMNS, self.table.table_id, start, end)
                    result = connection.execute(records.where(_CHUNKS.c.seq.in_(chosen)))
                    found += [ChunkRecord(*row) for row in result]
        return found

    def _split(self) -> Iterator[tuple[int, int]]:
        for start in range(self.after_seq, self.up_to_seq, _READ_BATCH_SIZE):
            yield start, min(start + _READ_BATCH_SIZE, self.up_to_seq)


@dataclass(frozen=True, slots=True)
class MigrationBacklog:
    """Totals of a table's unmigrated chunks. `oldest_registered_at` is None if there are none."""

    chunks: int
    rows: int
    bytes: int
    oldest_registered_at: dt.datetime | None


@dataclass(frozen=True, slots=True)
class QuarantinedChunk:
    """A chunk that cannot be decoded. Its blob is kept."""

    table_id: int
    seq: int
    prefix: str
    path: str
    offset: int
    rows: int
    reason: str


_RECORD_COLUMNS = [_CHUNKS.c[name] for name in ChunkRecord.__struct_fields__]
_PRUNING_COLUMNS = [_CHUNKS.c[name] for name in ("seq", "rows", "schema_version", "statistics")]
# The publisher executes these statements in each round, so they are built once.
_LIST_CHUNKS = (
    sa.select(*_RECORD_COLUMNS)
    .where(
        _CHUNKS.c.table_id == sa.bindparam("id"),
        _CHUNKS.c.seq > sa.bindparam("after"),
        _CHUNKS.c.seq <= sa.bindparam("up_to"),
    )
    .order_by(_CHUNKS.c.seq)
    .limit(sa.bindparam("most", type_=sa.BigInteger))
)
_LIST_RETAINED_CHUNKS = _LIST_CHUNKS.where(_CHUNKS.c.retired_at.is_(None))
_LIST_QUARANTINED = (
    sa.select(*_RECORD_COLUMNS)
    .where(_CHUNKS.c.table_id == sa.bindparam("id"), _IS_QUARANTINED)
    .order_by(_CHUNKS.c.seq)
)


def read_chunk_range(
    connection: Connection, database: Database, table: TableRecord, after_seq: int
) -> ChunkRange:
    """Return the chunks of a table after a sequence, and its quarantined chunks.

    `after_seq` is the watermark, or the end of the table's fresh files.

    Raises:
        TableInconsistent: If a chunk is missing.
    """
    start, end = after_seq, table.last_seq
    # Sequences have no gaps, so the number of chunks shows if one is missing.
    counted = _select_range([sa.func.count()], table.table_id, start, end).order_by(None)
    _check_chunk_count(table, connection.execute(counted).scalar_one(), start, end)
    held = list_quarantined_chunk_records(connection, table.table_id)
    return ChunkRange(
        database,
        table,
        start,
        end,
        tuple(chunk for chunk in held if chunk.seq <= table.migrated_seq),
    )


def list_chunks(
    connection: Connection,
    table_id: int,
    after_seq: int,
    up_to_seq: int,
    *,
    limit: int | None = None,
    retained_only: bool = False,
) -> list[ChunkRecord]:
    """Return the chunks of a table in (after_seq, up_to_seq], ordered by sequence.

    `retained_only` excludes retired chunks, whose blobs may be deleted.
    """
    query = _LIST_RETAINED_CHUNKS if retained_only else _LIST_CHUNKS
    values = {
        "id": table_id,
        "after": after_seq,
        "up_to": up_to_seq,
        "most": _NO_LIMIT if limit is None else limit,
    }
    return [ChunkRecord(*row) for row in connection.execute(query, values)]


def measure_backlog(connection: Connection, table_id: int) -> MigrationBacklog:
    """Return the backlog of a table."""
    unmigrated = sa.and_(
        _CHUNKS.c.table_id == _TABLES.c.table_id,
        _CHUNKS.c.seq > _TABLES.c.migrated_seq,
        _CHUNKS.c.seq <= _TABLES.c.last_seq,
    )
    query = (
        sa.select(
            sa.func.count(_CHUNKS.c.seq),
            sa.func.coalesce(sa.func.sum(_CHUNKS.c.rows), 0),
            sa.func.coalesce(sa.func.sum(_CHUNKS.c.length), 0),
            sa.func.min(_CHUNKS.c.registered_at, type_=model.UtcTimestamp),
        )
        .select_from(_TABLES.outerjoin(_CHUNKS, unmigrated))
        .where(_TABLES.c.table_id == table_id)
    )
    count, rows, size, oldest = connection.execute(query).one()
    return MigrationBacklog(count, int(rows), int(size), oldest)


def list_backlogged_table_ids(connection: Connection) -> list[int]:
    """Return the IDs of the live tables with unmigrated chunks."""
    query = sa.select(_TABLES.c.table_id).where(
        _TABLES.c.dropped_at.is_(None), _TABLES.c.last_seq > _TABLES.c.migrated_seq
    )
    return list(connection.execute(query.order_by(_TABLES.c.table_id)).scalars())


def quarantine_chunk(connection: Connection, table_id: int, seq: int, reason: str) -> None:
    """Quarantine a chunk that cannot be decoded. Its rows are not migrated, and its blob is kept.

    Queries of the table fail until the blob is restored or `discard_quarantined_chunks` is called.
    """
    connection.execute(
        sa.update(_CHUNKS)
        .where(_CHUNKS.c.table_id == table_id, _CHUNKS.c.seq == seq)
        .values(quarantine_reason=reason)
    )


def list_quarantined_chunks(
    connection: Connection, table_id: int | None = None
) -> list[QuarantinedChunk]:
    """Return the quarantined chunks of one table or of all tables."""
    names = ("table_id", "seq", "prefix", "path", "offset", "rows", "quarantine_reason")
    query = sa.select(*(_CHUNKS.c[name] for name in names)).where(_IS_QUARANTINED)
    if table_id is not None:
        query = query.where(_CHUNKS.c.table_id == table_id)
    rows = connection.execute(query.order_by(_CHUNKS.c.table_id, _CHUNKS.c.seq))
    return [QuarantinedChunk(*row) for row in rows]


def list_quarantined_chunk_records(connection: Connection, table_id: int) -> list[ChunkRecord]:
    """Return the quarantined chunks of a table as `ChunkRecord`s, in sequence order."""
    return [ChunkRecord(*row) for row in connection.execute(_LIST_QUARANTINED, {"id": table_id})]


def discard_quarantined_chunks(
    connection: Connection, table_id: int, now: dt.datetime, *, seq: int | None = None
) -> int:
    """Discard one quarantined chunk, or all of a table. Their rows are lost. Return the number of chunks.

    Garbage collection deletes their blobs.
    """
    chosen = sa.true() if seq is None else _CHUNKS.c.seq == seq
    given = connection.execute(
        sa.update(_CHUNKS)
        .where(_CHUNKS.c.table_id == table_id, _IS_QUARANTINED, chosen)
        .values(retired_at=now)
        .returning(_CHUNKS.c.seq)
    )
    seqs = list(given.scalars())
    mark_chunks_discarded(connection, table_id, seqs, now)
    return len(seqs)


def retire_chunks(connection: Connection, table_id: int, up_to_seq: int, now: dt.datetime) -> int:
    """Mark a batch of chunks of a table, up to a sequence, as retired. Return their number.

    The caller must ensure that no query reads them. Quarantined chunks are skipped.
    """
    query = sa.select(_CHUNKS.c.seq).where(
        _CHUNKS.c.table_id == table_id,
        _CHUNKS.c.seq <= up_to_seq,
        _CHUNKS.c.retired_at.is_(None),
        _CHUNKS.c.quarantine_reason.is_(None),
    )
    query = query.order_by(_CHUNKS.c.seq).limit(_RETIRE_BATCH_SIZE)
    marked = connection.execute(
        sa.update(_CHUNKS)
        .where(_CHUNKS.c.table_id == table_id, _CHUNKS.c.seq.in_(query.scalar_subquery()))
        .values(retired_at=now)
    )
    return marked.rowcount


def list_deletable_blobs(connection: Connection, *, limit: int = 1_000) -> list[StagedBlob]:
    """Return blobs whose chunks are all retired. A blob may have chunks of several tables."""
    other = _CHUNKS.alias()
    needed = sa.select(sa.literal(1)).where(
        other.c.path == _CHUNKS.c.path, other.c.retired_at.is_(None)
    )
    query = (
        sa.select(_CHUNKS.c.prefix, _CHUNKS.c.path)
        .distinct()
        .where(_CHUNKS.c.retired_at.is_not(None), ~needed.exists())
        .limit(limit)
    )
    return [StagedBlob(*row) for row in connection.execute(query)]


def replace_with_tombstones(
    connection: Connection, blobs: Collection[StagedBlob], now: dt.datetime
) -> None:
    """Delete the retired chunks of blobs whose objects are deleted, and write tombstones.

    The tombstones are required because the registration of another chunk of the blob may be in
    progress.
    """
    if not blobs:
        return
    write_blob_tombstones(connection, blobs, now)
    connection.execute(
        sa.delete(_CHUNKS).where(
            _CHUNKS.c.path == sa.bindparam("the_path"), _CHUNKS.c.retired_at.is_not(None)
        ),
        [{"the_path": blob.path} for blob in blobs],
    )


def _select_range(
    columns: Sequence[sa.ColumnElement[Any]], table_id: int, after_seq: int, up_to_seq: int
) -> sa.Select[Any]:
    return (
        sa.select(*columns)
        .where(
            _CHUNKS.c.table_id == table_id, _CHUNKS.c.seq > after_seq, _CHUNKS.c.seq <= up_to_seq
        )
        .order_by(_CHUNKS.c.seq)
    )


def _check_chunk_count(table: TableRecord, count: int, after_seq: int, up_to_seq: int) -> None:
    if count != up_to_seq - after_seq:
        raise TableInconsistent(
            table=table.name,
            reason=f"{count} chunks have sequences from {after_seq + 1} to {up_to_seq}, expected "
            f"{up_to_seq - after_seq}. Run `snowmelt check`",
        )
