"""The catalog's data about a table, read in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from snowmelt.catalog import model
from snowmelt.catalog.jobs import lineage, load_history, run_history
from snowmelt.catalog.jobs.lineage import LedgerChunk, NativeFileRecord, RowlessCommit
from snowmelt.catalog.jobs.load_history import LoadRecord
from snowmelt.catalog.jobs.run_history import MigrationRecord, RunState
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects.tables import list_table_schema_versions
from snowmelt.catalog.streaming.channels import ChannelRecord, list_channels
from snowmelt.catalog.streaming.chunks import ChunkRecord
from snowmelt.schema.row_fingerprint import Fingerprint
from snowmelt.schema.types import TableSchema

_CHUNKS = model.chunks
_HISTORY = model.channel_history
_RECORD_COLUMNS = [_CHUNKS.c[name] for name in ChunkRecord.__struct_fields__]


@dataclass(frozen=True, slots=True)
class StoredChunkRow:
    """A row of `chunks`, with the columns that the checks need."""

    record: ChunkRecord
    channels: tuple[lineage.ChannelCommit, ...]
    is_retired: bool
    quarantine_reason: str | None

    @property
    def stage_path(self) -> str:
        """Path of the blob in the stage."""
        return f"{self.record.prefix}/{self.record.path}"


@dataclass(slots=True)
class LedgerTotals:
    """Rows, schema version and fingerprint of each chunk in the ledger, by sequence.

    Index 0 is unused. `rows` is -1 for sequences that are not in the ledger. `sums` are the two
    sums of each known fingerprint.
    """

    rows: NDArray[np.int64]
    versions: NDArray[np.int32]
    sums: NDArray[np.uint64]
    is_known: NDArray[np.bool_]
    discarded: set[int] = field(default_factory=set)

    @classmethod
    def of_length(cls, last_seq: int) -> LedgerTotals:
        """Return empty totals with space for sequences up to `last_seq`."""
        size = last_seq + 1
        return cls(
            np.full(size, -1, np.int64),
            np.zeros(size, np.int32),
            np.zeros((size, 2), np.uint64),
            np.zeros(size, np.bool_),
        )

    def add(self, chunk: LedgerChunk) -> None:
        """Add a chunk of the ledger."""
        self.rows[chunk.seq] = chunk.rows
        self.versions[chunk.seq] = chunk.schema_version
        fingerprint = Fingerprint.from_bytes(chunk.fingerprint)
        if fingerprint is not None and fingerprint.rows == chunk.rows:
            self.sums[chunk.seq] = fingerprint.first, fingerprint.second
            self.is_known[chunk.seq] = True
        if chunk.discarded_at is not None:
            self.discarded.add(chunk.seq)

    def find_fingerprint(self, seq: int) -> Fingerprint | None:
        """Return the fingerprint of a chunk, or None if it is unknown."""
        if not 0 < seq < len(self.rows):
            return None
        return self.sum_fingerprints([(seq, seq)])

    def sum_rows(self, ranges: Sequence[tuple[int, int]]) -> int:
        """Return the number of rows of the chunks from first to last. Unknown chunks count as 0."""
        parts = (self.rows[first : last + 1] for first, last in ranges)
        return sum(int(part[part > 0].sum()) for part in parts)

    def sum_fingerprints(self, ranges: Sequence[tuple[int, int]]) -> Fingerprint | None:
        """Return the combined fingerprint of the chunks from first to last, or None if one is unknown."""
        total = Fingerprint()
        for first, last in ranges:
            part = slice(first, last + 1)
            if not self.is_known[part].all() or last >= len(self.rows):
                return None
            first_sum, second_sum = self.sums[part].sum(axis=0, dtype=np.uint64)
            total += Fingerprint(int(self.rows[part].sum()), int(first_sum), int(second_sum))
        return total


@dataclass(frozen=True, slots=True)
class ChannelOpening:
    """A record of the history: the opening of a channel."""

    client_sequencer: int
    offset_token: str | None


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a table in one transaction. Excludes the ledger and the chunks, which are read separately.

    `lineage_from` is the sequence from which the ledger is complete. It is None if an older version
    created the table and no commit followed. `rows_of_load_files` maps loads to the rows of their
    input files.
    """

    table: TableRecord
    lineage_from: int | None
    schemas: dict[int, TableSchema]
    channels: list[ChannelRecord]
    openings: dict[str, dict[int, ChannelOpening]]
    row_counts: list[tuple[str, int, int, int]]
    rowless: list[RowlessCommit]
    migrations: list[MigrationRecord]
    loads: list[LoadRecord]
    rows_of_load_files: dict[str, tuple[int, int]]
    files: list[NativeFileRecord]
    chunks: list[StoredChunkRow]

    @property
    def current_files(self) -> list[NativeFileRecord]:
        """The files that no commit has removed."""
        return [file for file in self.files if file.removed_at is None]

    @property
    def waiting_chunks(self) -> list[StoredChunkRow]:
        """The chunks above the watermark, by sequence."""
        start = self.table.migrated_seq
        return [chunk for chunk in self.chunks if chunk.record.seq > start]

    @property
    def quarantined(self) -> dict[int, str]:
        """The reasons of quarantined chunks by sequence."""
        return {
            chunk.record.seq: chunk.quarantine_reason
            for chunk in self.chunks
            if chunk.quarantine_reason is not None and not chunk.is_retired
        }


def read_table_state(connection: sa.Connection, table: TableRecord) -> TableState:
    """Read the catalog's data about a table."""
    table_id = table.table_id
    return TableState(
        table=table,
        lineage_from=lineage.find_lineage_start(connection, table_id),
        schemas=list_table_schema_versions(connection, table_id),
        channels=list_channels(connection, [table_id]),
        openings=_read_openings(connection, table_id),
        row_counts=_read_row_counts(connection, table_id),
        rowless=lineage.list_rowless_commits(connection, table_id),
        migrations=run_history.list_migrations(connection, table_id, limit=_ALL),
        loads=[
            load
            for load in load_history.list_loads(connection, table_id, limit=_ALL)
            if load.state is RunState.COMMITTED and load.table_id == table_id
        ],
        rows_of_load_files=_sum_load_files(connection, table_id),
        files=lineage.list_native_file_records(connection, table_id),
        chunks=read_chunk_rows(connection, table_id),
    )


_ALL = 1_000_000_000


def _read_openings(
    connection: sa.Connection, table_id: int
) -> dict[str, dict[int, ChannelOpening]]:
    """Return the openings of channels in the retained history, by client sequencer."""
    names = ("channel", "client_sequencer", "offset_token")
    query = sa.select(*(_HISTORY.c[name] for name in names)).where(
        _HISTORY.c.table_id == table_id, _HISTORY.c.event == "opened"
    )
    found: dict[str, dict[int, ChannelOpening]] = defaultdict(dict)
    for channel, client_sequencer, token in connection.execute(
        query.order_by(_HISTORY.c.history_id)
    ):
        found[channel][client_sequencer] = ChannelOpening(client_sequencer, token)
    return found


def _read_row_counts(connection: sa.Connection, table_id: int) -> list[tuple[str, int, int, int]]:
    """Return name and counts of parsed, inserted and rejected rows for each channel of the row API."""
    counts, channels = model.row_channels, model.channels
    query = (
        sa.select(
            channels.c.name, counts.c.rows_parsed, counts.c.rows_inserted, counts.c.rows_error
        )
        .select_from(counts.join(channels, counts.c.channel_id == channels.c.channel_id))
        .where(channels.c.table_id == table_id)
        .order_by(channels.c.name)
    )
    return [(row[0], row[1], row[2], row[3]) for row in connection.execute(query)]


def _sum_load_files(connection: sa.Connection, table_id: int) -> dict[str, tuple[int, int]]:
    files = model.loaded_files
    query = (
        sa.select(files.c.load_id, sa.func.sum(files.c.rows), sa.func.sum(files.c.rejects))
        .where(files.c.table_id == table_id)
        .group_by(files.c.load_id)
    )
    return {row[0]: (int(row[1]), int(row[2])) for row in connection.execute(query)}


def read_chunk_rows(
    connection: sa.Connection, table_id: int, *, first_seq: int = 0, last_seq: int | None = None
) -> list[StoredChunkRow]:
    """Return the retained rows of `chunks` of a table, by sequence."""
    further = (_CHUNKS.c.channels, _CHUNKS.c.retired_at, _CHUNKS.c.quarantine_reason)
    query = sa.select(*_RECORD_COLUMNS, *further).where(
        _CHUNKS.c.table_id == table_id, _CHUNKS.c.seq >= first_seq
    )
    if last_seq is not None:
        query = query.where(_CHUNKS.c.seq <= last_seq)
    rows = connection.execute(query.order_by(_CHUNKS.c.seq))
    return [_to_chunk_row(tuple(row)) for row in rows]


def _to_chunk_row(row: tuple[Any, ...]) -> StoredChunkRow:
    *values, channels, retired_at, reason = row
    return StoredChunkRow(
        ChunkRecord(*values), lineage.decode_channels(channels), retired_at is not None, reason
    )
