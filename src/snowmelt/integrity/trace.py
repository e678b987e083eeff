"""Trace a token, file, load or row to its commit, blob, native files and snapshots."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import lineage, load_history, run_history
from snowmelt.catalog.jobs.lineage import ChannelCommit, LedgerChunk, NativeFileRecord
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.streaming.chunks import ChunkRecord
from snowmelt.errors import NotFound, StatementError
from snowmelt.integrity.table_state import StoredChunkRow, read_chunk_rows
from snowmelt.schema.types import TableName, to_display_name
from snowmelt.storage.store import Store
from snowmelt.table.chunk_reader import run_chunk_read_task
from snowmelt.table.iceberg import list_native_files
from snowmelt.table.native_file import read_native_bytes
from snowmelt.table.snapshot import load_current_native_table
from snowmelt.table.table_reader import make_chunk_read_tasks
from snowmelt.table.warehouse_paths import Warehouse

_ROW_NUMBER = "snowmelt_row_number"
_MAX_TRACED = 1000
# Conditions may come from users of the console.
_CONDITION_LIMITS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "memory_limit": "512MB",
    "max_temp_directory_size": "0MB",
    "threads": "1",
}


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Position of a chunk's rows in a current or removed native file.

    `rows` are the first and last row in the file, counted from 0, or None if the file is sorted.
    `row_groups` is None if they are unknown.
    """

    path: str
    run_id: str
    added_at: dt.datetime
    removed_at: dt.datetime | None
    removed_by: str | None
    changed_rows: bool
    rows: tuple[int, int] | None
    row_groups: tuple[int, ...] | None
    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChunkTrace:
    """Trace of one chunk: its commit, blob, native files and snapshots.

    `state` is `waiting` (on the stage), `native`, `changed` (a later run or statement replaced its files),
    `quarantined` or `discarded`.
    """

    seq: int
    state: str
    rows: int
    registered_at: dt.datetime
    channels: tuple[ChannelCommit, ...]
    users: tuple[str | None, ...]
    blob: str
    offset: int
    length: int
    md5: str
    migration: str | None
    migrated_at: dt.datetime | None
    files: tuple[FilePlace, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as a JSON object."""
        return {
            "seq": self.seq,
            "state": self.state,
            "rows": self.rows,
            "registered_at": self.registered_at.isoformat(),
            "channels": [
                {
                    "channel": to_display_name(each.channel),
                    "user": user,
                    "client_sequencer": each.client_sequencer,
                    "row_sequencer": each.row_sequencer,
                    "start_token": each.start_token,
                    "end_token": each.end_token,
                }
                for each, user in zip(self.channels, self.users, strict=True)
            ],
            "blob": {
                "path": self.blob,
                "offset": self.offset,
                "length": self.length,
                "md5": self.md5,
            },
            "migration": self.migration,
            "migrated_at": None if self.migrated_at is None else self.migrated_at.isoformat(),
            "files": [_place_to_dict(each) for each in self.files],
        }


@dataclass(frozen=True, slots=True)
class FileTrace:
    """Trace of a native file: the chunks and loads that its rows come from."""

    record: NativeFileRecord
    chunks: tuple[ChunkTrace, ...]
    loads: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as a JSON object."""
        record = self.record
        return {
            "path": record.path,
            "run": record.run_id,
            "rows": record.rows,
            "bytes": record.size,
            "sha256": record.sha256,
            "added_at": record.added_at.isoformat(),
            "removed_at": None if record.removed_at is None else record.removed_at.isoformat(),
            "removed_by": record.removed_by,
            "chunk_ranges": record.chunk_ranges,
            "loads": list(self.loads),
            "chunks": [each.to_dict() for each in self.chunks],
        }


@dataclass(frozen=True, slots=True)
class RowTrace:
    """Trace of a row: its values, its position, and the chunks that it may come from.

    Only rows of a clustered table have several possible chunks. If the row comes from no chunk,
    `loads` are the loads in its file.
    """

    values: dict[str, Any]
    path: str
    row: int
    chunks: tuple[ChunkTrace, ...]
    loads: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as a JSON object."""
        return {
            "values": self.values,
            "path": self.path,
            "row": self.row,
            "loads": list(self.loads),
            "chunks": [each.to_dict() for each in self.chunks],
        }


@dataclass(frozen=True, slots=True)
class _ChunkFacts:
    """Data of a chunk, from the ledger or from its row in `chunks`."""

    source: LedgerChunk | ChunkRecord
    path: str
    channels: tuple[ChannelCommit, ...]
    registered_at: dt.datetime


class Tracer:
    """Traces the rows of one table. Read-only."""

    def __init__(
        self,
        database: Database,
        keyring: KeyRing,
        stage: Store,
        warehouse: Warehouse,
        name: TableName,
    ) -> None:
        """Read the lineage of the table.

        Raises:
            TableNotFound: If it does not exist.
        """
        self._database = database
        self._keyring = keyring
        self._stage = stage
        self._warehouse = warehouse
        # Row counts of chunks that were read from the ledger.
        self._rows_of_chunks: dict[int, int] = {}
        with database.reading() as connection:
            self.table = find_table(connection, name)
            table_id, watermark = self.table.table_id, self.table.migrated_seq
            self._files = lineage.list_native_file_records(connection, table_id)
            rows = read_chunk_rows(connection, table_id, first_seq=watermark + 1)
            self._waiting = {chunk.record.seq: chunk for chunk in rows}

    def trace_channel(self, channel: str, token: str | None, *, limit: int) -> list[ChunkTrace]:
        """Return the last chunks of a channel, or the chunks of the commit that contains a token.

        That is the commit that ends with the token. If there is none and all tokens are integers,
        it is the first commit that ends with a greater token.

        Raises:
            NotFound: If the channel has no such commit.
        """
        newest = self._find_last_commits(channel, 1 if token is not None else limit)
        if not newest:
            what = f"channel {to_display_name(channel)} of table {self.table.name}"
            raise NotFound(f"No commit of {what} has rows.")
        if token is None:
            return [self._trace_chunk(seq) for seq in newest]
        found = [seq for seq, _ in self._list_commits(channel, token)]
        if found:
            return [self._trace_chunk(seq) for seq in found[:limit]]
        commits = self._list_commits(channel)
        found = _find_covering(commits, token)
        if not found:
            known = [commit.end_token for _, commit in commits if commit.end_token is not None]
            ends = f"; its commits end with {known[0]!r} to {known[-1]!r}" if known else ""
            raise NotFound(
                f"No commit of channel {to_display_name(channel)} has offset token {token!r}{ends}."
            )
        return [self._trace_chunk(seq) for seq in found[:limit]]

    def trace_chunks(self, seqs: Sequence[int]) -> list[ChunkTrace]:
        """Return chunks by sequence.

        Raises:
            NotFound: If the table has no such chunk, or it is older than the lineage.
        """
        return [self._trace_chunk(seq) for seq in seqs]

    def trace_file(self, path: str, *, limit: int) -> FileTrace:
        """Return the trace of a native file, given the end of its path or URL.

        Raises:
            NotFound: If no file or several files match.
        """
        found = [each for each in self._files if path.endswith(each.path)] or [
            each for each in self._files if each.path.endswith(path)
        ]
        if not found:
            raise NotFound(f"No file of table {self.table.name} ends with {path!r}.")
        if len(found) > 1:
            raise NotFound(
                f"{len(found)} files of table {self.table.name} end with {path!r}. Specify a longer path."
            )
        [record] = found
        seqs = itertools.chain.from_iterable(
            range(first, last + 1) for first, last in record.chunk_ranges
        )
        chunks = tuple(self._trace_chunk(seq) for seq in itertools.islice(seqs, limit))
        return FileTrace(record, chunks, _list_loads(record))

    def trace_load(self, load_id: str) -> dict[str, Any]:
        """Return a load with its input files and its native files, as a JSON object.

        Raises:
            NotFound: If the table has no such load.
        """
        with self._database.reading() as connection:
            load = load_history.find_load(connection, load_id)
            inputs = model.loaded_files.c
            query = sa.select(inputs.path).where(inputs.load_id == load_id).order_by(inputs.number)
            paths = list(connection.execute(query).scalars())
        files = [each for each in self._files if load_id in {*_list_loads(each), each.run_id}]
        return {
            "load": load.load_id,
            "state": str(load.state),
            "role": load.role,
            "statement": load.statement,
            "started_at": load.started_at.isoformat(),
            "ended_at": None if load.ended_at is None else load.ended_at.isoformat(),
            "rows": load.rows,
            "rejects": load.rejects,
            "snapshot": load.snapshot_id,
            "inputs": paths,
            "files": [_place_to_dict(self._locate(each, None)) for each in files],
            "replaced": [each.path for each in self._files if each.removed_by == load_id],
        }

    def trace_rows(self, condition: str, *, limit: int) -> list[RowTrace]:
        """Return a trace of each row that satisfies an SQL condition.

        The condition is DuckDB SQL over the table's columns. Reads the whole table.

        Raises:
            StatementError: If the condition is invalid.
            StageUnavailable: If stage or warehouse do not respond.
        """
        found: list[RowTrace] = []
        native = load_current_native_table(self.table)
        records = {each.path: each for each in self._files}
        for file in [] if native is None else list_native_files(native):
            path = self._warehouse.to_path(file.path)
            rows = read_native_bytes(self._warehouse.store.get(path), self.table.schema)
            for row, values in _filter(rows, condition, limit - len(found)):
                found.append(self._trace_native_row(path, records.get(path), row, values))
        for chunk in self._waiting.values():
            [task] = make_chunk_read_tasks(
                self._database, self._keyring, self._stage.url, [chunk.record], self.table.schema
            )
            for row, values in _filter(run_chunk_read_task(task), condition, limit - len(found)):
                trace = self._trace_chunk(chunk.record.seq)
                found.append(RowTrace(values, chunk.stage_path, row, (trace,)))
        return found

    def _trace_native_row(
        self, path: str, record: NativeFileRecord | None, row: int, values: dict[str, Any]
    ) -> RowTrace:
        if record is None:
            return RowTrace(values, path, row, (), ())
        if record.reordered:
            seqs = [seq for first, last in record.chunk_ranges for seq in range(first, last + 1)]
            chunks = tuple(self._trace_chunk(seq) for seq in seqs[:_MAX_TRACED])
            return RowTrace(values, path, row, chunks, _list_loads(record))
        for source, first_row, count in self._lay_out(record):
            if first_row <= row < first_row + count:
                if isinstance(source, int):
                    return RowTrace(values, path, row, (self._trace_chunk(source),))
                return RowTrace(values, path, row, (), (source,))
        return RowTrace(values, path, row, (), ())

    def _lay_out(self, record: NativeFileRecord) -> Iterator[tuple[int | str, int, int]]:
        """Yield each chunk or load of a file in row order, with its first row and row count."""
        position = 0
        for source in record.sources:
            if not isinstance(source[0], int):
                yield source[0], position, source[1]
                position += source[1]
                continue
            first, last = source[0], source[1]
            self._read_row_counts(first, last)
            for seq in range(first, last + 1):
                count = self._rows_of_chunks.get(seq, 0)
                yield seq, position, count
                position += count

    def _read_row_counts(self, first: int, last: int) -> None:
        known = self._rows_of_chunks
        if first in known and last in known:
            return
        ledger = model.chunk_ledger.c
        query = sa.select(ledger.seq, ledger.rows).where(
            ledger.table_id == self.table.table_id, ledger.seq >= first, ledger.seq <= last
        )
        with self._database.reading() as connection:
            known.update((row.seq, row.rows) for row in connection.execute(query))

    def _find_last_commits(self, channel: str, limit: int) -> list[int]:
        """Return the sequences of the last chunks of a channel, in order."""
        found = [seq for seq, _ in self._iterate_waiting(channel)][-limit:]
        with self._database.reading() as connection:
            older = lineage.iterate_channel_commits(
                connection,
                self.table.table_id,
                channel,
                last_seq=self.table.migrated_seq,
                newest_first=True,
            )
            for seq, _ in itertools.islice(older, limit - len(found)):
                found.insert(0, seq)
        return found

    def _list_commits(
        self, channel: str, token: str | None = None
    ) -> list[tuple[int, ChannelCommit]]:
        """Return sequence and commit of each chunk of a channel, in order.

        With a token, return only the chunks that end with the token.
        """
        with self._database.reading() as connection:
            commits = list(
                lineage.iterate_channel_commits(
                    connection,
                    self.table.table_id,
                    channel,
                    last_seq=self.table.migrated_seq,
                    token=token,
                )
            )
        waiting = self._iterate_waiting(channel)
        return commits + [each for each in waiting if token in {None, each[1].end_token}]

    def _iterate_waiting(self, channel: str) -> Iterator[tuple[int, ChannelCommit]]:
        for seq, chunk in self._waiting.items():
            for commit in chunk.channels:
                if commit.channel == channel:
                    yield seq, commit

    def _trace_chunk(self, seq: int) -> ChunkTrace:
        row = self._waiting.get(seq)
        with self._database.reading() as connection:
            if row is None:
                rows = read_chunk_rows(connection, self.table.table_id, first_seq=seq, last_seq=seq)
                row = next(iter(rows), None)
            kept = next(
                iter(lineage.find_ledger_chunks(connection, self.table.table_id, [seq])), None
            )
            run = None if kept is None else run_history.find_migration(connection, kept.run_id)
        # The ledger and the row in `chunks` have the same data. One of them may be missing.
        if kept is not None:
            facts = _ChunkFacts(kept, kept.path, kept.channels, kept.registered_at)
        elif row is not None:
            facts = _ChunkFacts(row.record, row.stage_path, row.channels, row.record.registered_at)
        else:
            raise NotFound(
                f"Chunk {seq} of table {self.table.name} not found: it does not exist, or it was migrated"
                " before there was a lineage."
            )
        places = self._find_places(seq)
        if kept is not None and not places:
            # A migration may have committed since the records of files were read.
            with self._database.reading() as connection:
                self._files = lineage.list_native_file_records(connection, self.table.table_id)
            places = self._find_places(seq)
        return ChunkTrace(
            seq=seq,
            state=_find_state(row, kept, places, is_behind=seq <= self.table.migrated_seq),
            rows=facts.source.rows,
            registered_at=facts.registered_at,
            channels=facts.channels,
            users=tuple(self._find_user(each) for each in facts.channels),
            blob=facts.path,
            offset=facts.source.offset,
            length=facts.source.length,
            md5=facts.source.md5,
            migration=None if kept is None else kept.run_id,
            migrated_at=None if run is None else run.ended_at,
            files=places,
        )

    def _find_places(self, seq: int) -> tuple[FilePlace, ...]:
        return tuple(self._locate(each, seq) for each in self._files if each.has_chunk(seq))

    def _find_user(self, commit: ChannelCommit) -> str | None:
        history = model.channel_history.c
        query = sa.select(history.user).where(
            history.table_id == self.table.table_id,
            history.channel == commit.channel,
            history.event == "opened",
            history.client_sequencer == commit.client_sequencer,
        )
        with self._database.reading() as connection:
            return connection.execute(query).scalar()

    def _locate(self, record: NativeFileRecord, seq: int | None) -> FilePlace:
        """Return the position of a chunk, or of all rows, in a file."""
        rows = None
        if seq is None:
            rows = (0, record.rows - 1)
        elif not record.reordered:
            rows = next(
                (
                    (first, first + count - 1)
                    for source, first, count in self._lay_out(record)
                    if source == seq
                ),
                None,
            )
        groups = None if rows is None else self._find_row_groups(record, rows)
        return FilePlace(
            record.path,
            record.run_id,
            record.added_at,
            record.removed_at,
            record.removed_by,
            record.changed_rows,
            rows,
            groups,
            self._list_snapshots(record),
        )

    def _find_row_groups(
        self, record: NativeFileRecord, rows: tuple[int, int]
    ) -> tuple[int, ...] | None:
        """Return the row groups of rows in a current file, or None if the file is removed."""
        if record.removed_at is not None or self._warehouse.store.head(record.path) is None:
            return None
        metadata = pq.read_metadata(pa.BufferReader(self._warehouse.store.get(record.path)))
        groups, start = [], 0
        for number in range(metadata.num_row_groups):
            end = start + metadata.row_group(number).num_rows
            if start <= rows[1] and rows[0] < end:
                groups.append(number)
            start = end
        return tuple(groups)

    def _list_snapshots(self, record: NativeFileRecord) -> tuple[int, ...]:
        """Return the retained snapshots that contain a file, oldest first."""
        native = load_current_native_table(self.table)
        if native is None or record.removed_at is not None:
            return ()
        address = self._warehouse.to_address(record.path)
        sequence = next(
            (file.sequence for file in list_native_files(native) if file.path == address), None
        )
        if sequence is None:
            return ()
        return tuple(
            snapshot.snapshot_id
            for snapshot in native.metadata.snapshots
            if (snapshot.sequence_number or 0) >= sequence
        )


def _find_covering(commits: Iterable[tuple[int, ChannelCommit]], token: str) -> list[int]:
    """Return the first commit whose token is a greater integer. Empty if any token is not an integer."""
    if not token.isdecimal():
        return []
    for seq, commit in commits:
        end = commit.end_token
        if end is None:
            continue
        if not end.isdecimal():
            return []
        if int(end) >= int(token):
            return [seq]
    return []


def _find_state(
    row: StoredChunkRow | None,
    ledger_chunk: lineage.LedgerChunk | None,
    places: Sequence[FilePlace],
    *,
    is_behind: bool,
) -> str:
    if ledger_chunk is not None and ledger_chunk.discarded_at is not None:
        return "discarded"
    if any(place.removed_at is None for place in places):
        return "native"
    if row is not None and row.quarantine_reason is not None:
        return "quarantined"
    if places or ledger_chunk is not None:
        # The records of removed files may have been deleted, so the current files are unknown.
        return "changed"
    # A chunk without records was migrated before the lineage began, if it is below the watermark.
    return "native" if is_behind else "waiting"


def _list_loads(record: NativeFileRecord) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(each[0]) for each in record.sources if isinstance(each[0], str)))


def _filter(rows: pa.Table, condition: str, limit: int) -> list[tuple[int, dict[str, Any]]]:
    """Return the row numbers and values of at most `limit` rows that satisfy a condition."""
    if limit <= 0:
        return []
    numbered = rows.append_column(_ROW_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    with duckdb.connect(config=_CONDITION_LIMITS) as engine:
        engine.register("numbered", numbered)
        engine.execute("SET lock_configuration = true")
        query = f"SELECT * FROM numbered WHERE ({condition}) ORDER BY {_ROW_NUMBER} LIMIT {limit}"
        try:
            if len(engine.extract_statements(query)) != 1:
                raise StatementError(
                    f"Invalid condition {condition!r}: it has more than one statement"
                )
            result = engine.execute(query)
            names = [each[0] for each in result.description or ()]
            found = result.fetchall()
        except duckdb.Error as error:
            reason = str(error).partition("\n")[0]
            raise StatementError(f"Invalid condition {condition!r}: {reason}") from error
    values = [dict(zip(names, row, strict=True)) for row in found]
    return [(each.pop(_ROW_NUMBER), each) for each in values]


def _place_to_dict(place: FilePlace) -> dict[str, Any]:
    return {
        "path": place.path,
        "run": place.run_id,
        "added_at": place.added_at.isoformat(),
        "removed_at": None if place.removed_at is None else place.removed_at.isoformat(),
        "removed_by": place.removed_by,
        "rows_changed": place.changed_rows,
        "rows": place.rows,
        "row_groups": place.row_groups,
        "snapshots": list(place.snapshots),
    }
