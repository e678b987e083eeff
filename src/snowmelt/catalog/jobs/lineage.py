"""Permanent records of committed chunks (the ledger), and of native files with their sources.

They are kept as long as the table, so that checks and traces work after garbage collection has
deleted the chunks. Functions that write must run in the transaction that swaps the table's metadata
pointer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db import dialect as sets

_LEDGER = model.chunk_ledger
_FILES = model.native_files
_TABLES = model.tables
_CHUNKS = model.chunks
_ROWLESS = model.rowless_commits
_BATCH_CHUNKS = 10_000

# Source of consecutive rows of a file: (first, last) sequence of chunks, or (load ID, number of
# rows).
ChunkSource: TypeAlias = tuple[int, int]
LoadSource: TypeAlias = tuple[str, int]
FileSource: TypeAlias = ChunkSource | LoadSource

# Source of files that were written before the lineage began.
UNKNOWN_LOAD = ""

_encoder = msgspec.json.Encoder()
_sources_decoder = msgspec.json.Decoder(list[tuple[int | str, int]])
_channels_decoder = msgspec.json.Decoder(list[tuple[str, int, int, str | None, str | None]])


class ChannelCommit(msgspec.Struct, frozen=True, gc=False):
    """The commit of one channel within a chunk."""

    channel: str
    client_sequencer: int
    row_sequencer: int
    start_token: str | None
    end_token: str | None


class LedgerChunk(msgspec.Struct, frozen=True, gc=False):
    """A migrated chunk in the ledger: `length` bytes at `offset` of the blob at `path` in the stage.

    `run_id` is the migration or row change that wrote its rows to native files. `fingerprint` is
    None if that run did not read its rows. `discarded_at` is when an administrator discarded its
    rows.
    """

    seq: int
    path: str
    offset: int
    length: int
    md5: str
    rows: int
    schema_version: int
    channels: tuple[ChannelCommit, ...]
    registered_at: dt.datetime
    run_id: str
    fingerprint: bytes | None
    discarded_at: dt.datetime | None


@dataclass(frozen=True, slots=True)
class NativeFileRecord:
    """A native file at `path` in the warehouse, and the sources of its rows.

    `sha256` and `fingerprint` are None if they were not computed. `schema_version` has the columns
    that the fingerprint covers. `removed_by` is the run that replaced the file, or None if the file
    is current. `changed_rows` is True if that run changed rows. The rows are in the order of
    `sources` unless `reordered` is True.
    """

    path: str
    run_id: str
    rows: int
    size: int
    sha256: str | None
    fingerprint: bytes | None
    schema_version: int
    sources: tuple[FileSource, ...]
    added_at: dt.datetime
    removed_at: dt.datetime | None = None
    removed_by: str | None = None
    changed_rows: bool = False
    reordered: bool = False

    @property
    def chunk_ranges(self) -> list[ChunkSource]:
        """First and last sequence of each range of chunks, in row order."""
        return [(each[0], each[1]) for each in self.sources if isinstance(each[0], int)]

    def has_chunk(self, seq: int) -> bool:
        """Return True if the file contains the rows of a chunk."""
        return any(first <= seq <= last for first, last in self.chunk_ranges)


@dataclass(frozen=True, slots=True)
class RowlessCommit:
    """A commit of a channel without rows: all of its rows were rejected."""

    channel: str
    client_sequencer: int
    row_sequencer: int
    offset_token: str | None
    at: dt.datetime


def merge_sources(sources: Iterable[FileSource]) -> tuple[FileSource, ...]:
    """Merge adjacent sources with consecutive chunks or the same load."""
    merged: list[FileSource] = []
    for source in sources:
        last = merged[-1] if merged else None
        if last is not None and isinstance(source[0], int) and isinstance(last[0], int):
            if source[0] == last[1] + 1:
                merged[-1] = (last[0], source[1])
                continue
        elif last is not None and source[0] == last[0]:
            merged[-1] = (str(last[0]), last[1] + source[1])
            continue
        merged.append(source)
    return tuple(merged)


def find_lineage_start(connection: sa.Connection, table_id: int) -> int | None:
    """Return the sequence from which the ledger is complete, or None if there is no lineage yet."""
    query = sa.select(_TABLES.c.lineage_from_seq).where(_TABLES.c.table_id == table_id)
    return connection.execute(query).scalar()


def begin_lineage(
    connection: sa.Connection,
    table_id: int,
    from_seq: int,
    existing: Sequence[tuple[str, int, int]],
    now: dt.datetime,
) -> None:
    """Begin the lineage of a table that an older version created.

    `existing` has path, rows and bytes of each native file. Their chunks are unknown.
    """
    connection.execute(
        sa.update(_TABLES)
        .where(_TABLES.c.table_id == table_id, _TABLES.c.lineage_from_seq.is_(None))
        .values(lineage_from_seq=from_seq)
    )
    records = [
        NativeFileRecord(
            path, UNKNOWN_LOAD, rows, size, None, None, 0, ((UNKNOWN_LOAD, rows),), now
        )
        for path, rows, size in existing
    ]
    add_native_files(connection, table_id, records)


def add_committed_chunks(
    connection: sa.Connection,
    table_id: int,
    from_seq: int,
    to_seq: int,
    *,
    run_id: str,
    fingerprints: Mapping[int, bytes],
) -> None:
    """Copy the chunks in (`from_seq`, `to_seq`] to the ledger, with fingerprints by sequence."""
    copied = ("seq", "prefix", "path", "offset", "length", "md5", "rows", "schema_version")
    query = sa.select(*(_CHUNKS.c[name] for name in (*copied, "channels", "registered_at"))).where(
        _CHUNKS.c.table_id == table_id, _CHUNKS.c.seq > from_seq, _CHUNKS.c.seq <= to_seq
    )
    rows = [
        (
            table_id,
            row.seq,
            f"{row.prefix}/{row.path}",
            *(row.offset, row.length, row.md5, row.rows, row.schema_version, row.channels),
            model.to_microseconds(row.registered_at),
            run_id,
            fingerprints.get(row.seq),
        )
        for row in connection.execute(query)
    ]
    if rows:
        sets.insert_rows(connection, _LEDGER, _LEDGER_COLUMNS, rows)


_LEDGER_COLUMNS = (
    *("table_id", "seq", "path", "offset", "length", "md5", "rows", "schema_version", "channels"),
    *("registered_at", "run_id", "fingerprint"),
)


def mark_chunks_discarded(
    connection: sa.Connection, table_id: int, seqs: Collection[int], now: dt.datetime
) -> None:
    """Record that quarantined chunks were discarded."""
    connection.execute(
        sa.update(_LEDGER)
        .where(_LEDGER.c.table_id == table_id, _LEDGER.c.seq.in_(seqs))
        .values(discarded_at=now)
    )


def add_rowless_commits(
    connection: sa.Connection, commits: Iterable[tuple[int, str, int, int, str | None, int]]
) -> None:
    """Record commits without rows.

    Each tuple is table ID, channel, client sequencer, row sequencer, offset token, and time in
    microseconds.
    """
    rows = list(commits)
    if rows:
        sets.insert_rows(connection, _ROWLESS, _ROWLESS_COLUMNS, rows)


_ROWLESS_COLUMNS = (
    *("table_id", "channel", "client_sequencer", "row_sequencer", "offset_token", "at"),
)


def add_native_files(
    connection: sa.Connection, table_id: int, files: Sequence[NativeFileRecord]
) -> None:
    """Record native files that a commit adds."""
    rows = [
        (
            table_id,
            *(file.path, file.run_id, file.rows, file.size, file.sha256, file.fingerprint),
            file.schema_version,
            _encoder.encode(file.sources).decode(),
            model.to_microseconds(file.added_at),
            file.reordered,
        )
        for file in files
    ]
    if rows:
        sets.insert_rows(connection, _FILES, _FILE_COLUMNS, rows)


_FILE_COLUMNS = (
    *("table_id", "path", "run_id", "rows", "size", "sha256", "fingerprint", "schema_version"),
    *("sources", "added_at", "reordered"),
)


def mark_files_removed(
    connection: sa.Connection,
    table_id: int,
    paths: Collection[str],
    *,
    run_id: str,
    now: dt.datetime,
    changed_rows: bool,
) -> None:
    """Record that a commit removes native files of a table."""
    connection.execute(
        sa.update(_FILES)
        .where(
            _FILES.c.table_id == table_id,
            sets.in_array(_FILES.c.path, sets.encode_array(sorted(paths))),
        )
        .values(removed_at=now, removed_by=run_id, changed_rows=changed_rows)
    )


def list_native_file_records(
    connection: sa.Connection,
    table_id: int,
    *,
    current_only: bool = False,
    paths: Collection[str] | None = None,
) -> list[NativeFileRecord]:
    """Return the records of a table's native files in commit order."""
    query = sa.select(*(_FILES.c[name] for name in NativeFileRecord.__dataclass_fields__))
    query = query.where(_FILES.c.table_id == table_id)
    if current_only:
        query = query.where(_FILES.c.removed_at.is_(None))
    if paths is not None:
        query = query.where(sets.in_array(_FILES.c.path, sets.encode_array(sorted(paths))))
    found = connection.execute(query.order_by(_FILES.c.added_at, _FILES.c.path))
    return [
        NativeFileRecord(**{**row, "sources": _decode_sources(row["sources"])})
        for row in found.mappings()
    ]


def iterate_ledger(connection: sa.Connection, table_id: int) -> Iterator[LedgerChunk]:
    """Yield the ledger's chunks of a table in sequence order."""
    query = _select_ledger(table_id).order_by(_LEDGER.c.seq).limit(_BATCH_CHUNKS)
    after_seq = 0
    while True:
        batch = [
            _to_ledger_chunk(row)
            for row in connection.execute(query.where(_LEDGER.c.seq > after_seq))
        ]
        yield from batch
        if len(batch) < _BATCH_CHUNKS:
            return
        after_seq = batch[-1].seq


def iterate_channel_commits(
    connection: sa.Connection,
    table_id: int,
    channel: str,
    *,
    last_seq: int,
    token: str | None = None,
    newest_first: bool = False,
) -> Iterator[tuple[int, ChannelCommit]]:
    """Yield sequence and commit of the ledger's chunks of a channel, up to a sequence.

    With a token, only commits that end with it.
    """
    query = sa.select(_LEDGER.c.seq, _LEDGER.c.channels).where(
        _LEDGER.c.table_id == table_id, _LEDGER.c.seq <= last_seq
    )
    # The database finds the text, which is faster than decoding all chunks. Other columns may contain it, too.
    for text in (channel, token):
        if text is not None:
            query = query.where(
                _LEDGER.c.channels.contains(_encoder.encode(text).decode(), autoescape=True)
            )
    order = _LEDGER.c.seq.desc() if newest_first else _LEDGER.c.seq
    for seq, stored in connection.execute(query.order_by(order)):
        for commit in decode_channels(stored):
            if commit.channel == channel and token in {None, commit.end_token}:
                yield seq, commit


def find_ledger_chunks(
    connection: sa.Connection, table_id: int, seqs: Collection[int]
) -> list[LedgerChunk]:
    """Return the chunks with these sequences that are in the ledger, by sequence."""
    query = _select_ledger(table_id).where(_LEDGER.c.seq.in_(sorted(seqs)))
    return [_to_ledger_chunk(row) for row in connection.execute(query.order_by(_LEDGER.c.seq))]


def list_rowless_commits(connection: sa.Connection, table_id: int) -> list[RowlessCommit]:
    """Return the commits without rows of a table, by channel and row sequencer."""
    query = sa.select(*(_ROWLESS.c[name] for name in RowlessCommit.__dataclass_fields__))
    query = query.where(_ROWLESS.c.table_id == table_id)
    order = (_ROWLESS.c.channel, _ROWLESS.c.client_sequencer, _ROWLESS.c.row_sequencer)
    return [RowlessCommit(*row) for row in connection.execute(query.order_by(*order))]


def decode_channels(stored: str) -> tuple[ChannelCommit, ...]:
    """Decode the stored channels of a chunk."""
    return tuple(ChannelCommit(*each) for each in _channels_decoder.decode(stored))


def _select_ledger(table_id: int) -> sa.Select[Any]:
    columns = (_LEDGER.c[name] for name in LedgerChunk.__struct_fields__)
    return sa.select(*columns).where(_LEDGER.c.table_id == table_id)


def _to_ledger_chunk(row: sa.Row[Any]) -> LedgerChunk:
    values = dict(row._mapping)  # noqa: SLF001 - the documented name
    values["channels"] = decode_channels(values["channels"])
    return LedgerChunk(**values)


def _decode_sources(stored: str) -> tuple[FileSource, ...]:
    # The decoder returns `FileSource` values, but mypy cannot infer that.
    sources: Any = _sources_decoder.decode(stored)
    return tuple(sources)
