"""Finds the chunks and native files that have each row between two stream positions exactly once.

A stream reads chunks while they are retained, even after their migration. It finds the rows of
deleted chunks in the native files of their migrations, if these migrations are completely inside
the range. Files that were compacted remain available while a retained snapshot contains them. If a
range is not provably complete, an error is raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog.jobs import run_history
from snowmelt.catalog.jobs.run_history import MigrationRecord, RunState
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects.tables import find_table, list_table_schema_versions
from snowmelt.catalog.streaming.chunks import (
    ChunkRecord,
    list_chunks,
    list_quarantined_chunk_records,
)
from snowmelt.errors import LoadRefused, TableNotFound
from snowmelt.schema.types import TableName, TableSchema
from snowmelt.spark.tables.time_travel import list_retained_snapshots
from snowmelt.table.active_run_files import parse_run_id
from snowmelt.table.iceberg import NativeTable, list_native_files, load_native_table
from snowmelt.table.native_file import NativeFile
from snowmelt.table.snapshot import load_current_native_table
from snowmelt.table.warehouse_paths import parse_fresh_range

# --- Read position of a stream, as a Spark offset.
#
# A table grows by chunks, which are numbered without gaps, and by loads, whose native files have
# the number of their commit. A position contains both numbers. Migration moves chunks into native
# files, and compaction rewrites files. Neither changes which rows are before a position, so each
# row is read once, in whichever file it is. A stream that starts at `earliest` first reads the
# native files of one snapshot. `files` is the number of these files that were read.

EARLIEST, LATEST = "earliest", "latest"
_OFFSET_VERSION = 1


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Position after the chunks up to `seq` and the loads up to the native commit `native`.

    `watermark`, `rows` and `replaced` (rows in files that other engines have replaced) are the
    values at that native commit. They serve to verify that the rows between two positions are
    complete. `base` is the metadata file of a snapshot whose first `files` files were read. It is
    None after all of them were read.
    """

    seq: int
    native: int
    watermark: int
    rows: int
    base: str | None = None
    files: int = 0
    replaced: int = 0


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Position of a stream of one table incarnation, and the position where the stream began.

    `stream` is the stream's ID. The stream saves its read position for garbage collection under it.
    """

    stream: str
    incarnation: str
    begin: StreamPosition
    at: StreamPosition

    def with_position(self, position: StreamPosition) -> StreamOffset:
        """Return the offset of another position of the same stream."""
        return replace(self, at=position)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value that Spark writes to its checkpoint."""
        return {
            "version": _OFFSET_VERSION,
            "stream": self.stream,
            "incarnation": self.incarnation,
            "begin": asdict(self.begin),
            "at": asdict(self.at),
        }


def make_initial_offset(starting_offset: str) -> dict[str, Any]:
    """Make the initial offset, which contains only the option `startingOffset`.

    Spark requests it again after each restart until a batch is done, so it must be the same each
    time. Later offsets contain the resolved position.
    """
    return {"version": _OFFSET_VERSION, "starting": starting_offset}


def find_starting_offset(offset_json: Mapping[str, Any]) -> str | None:
    """Return the `startingOffset` of an initial offset, or None for other offsets."""
    return offset_json.get("starting")


def parse_offset(offset_json: Mapping[str, Any]) -> StreamOffset:
    """Parse an offset from Spark's checkpoint.

    Raises:
        LoadRefused: If another version of this package or another source wrote the offset.
    """
    try:
        if offset_json["version"] == _OFFSET_VERSION:
            return StreamOffset(
                str(offset_json["stream"]),
                str(offset_json["incarnation"]),
                StreamPosition(**offset_json["begin"]),
                StreamPosition(**offset_json["at"]),
            )
    except (KeyError, TypeError):
        pass
    raise LoadRefused(
        what="The checkpoint",
        reason=f"expected an offset of a stream of Snowmelt, got {offset_json}. Start the stream with "
        "a new checkpoint",
    )


@dataclass(frozen=True, slots=True)
class StreamIncrement:
    """Native files and chunks that a stream reads next."""

    files: tuple[NativeFile, ...]
    chunks: tuple[ChunkRecord, ...]


class StreamedTable:
    """State of a streamed table at one time. Does not use `connection` after construction."""

    def __init__(self, connection: sa.Connection, name: TableName) -> None:
        self.table: TableRecord = find_table(connection, name)
        self.schemas: dict[int, TableSchema] = list_table_schema_versions(
            connection, self.table.table_id
        )
        self.native: NativeTable | None = load_current_native_table(self.table)

    @property
    def end_position(self) -> StreamPosition:
        """The position after all current rows."""
        native = self.native
        if native is None:
            return StreamPosition(self.table.last_seq, 0, 0, 0)
        facts, number = native.facts, _find_snapshot_sequence_number(native)
        return StreamPosition(
            self.table.last_seq,
            number,
            facts.watermark,
            facts.total_rows,
            replaced=facts.replaced_rows,
        )

    @property
    def earliest_position(self) -> StreamPosition:
        """The position before all rows, from which a stream reads the whole table."""
        native = self.native
        if native is None:
            return StreamPosition(0, 0, 0, 0)
        facts, number = native.facts, _find_snapshot_sequence_number(native)
        return StreamPosition(
            facts.watermark,
            number,
            facts.watermark,
            facts.total_rows,
            native.location,
            replaced=facts.replaced_rows,
        )

    def check_incarnation(self, incarnation: str) -> None:
        """Verify that the stream began with this incarnation of the table.

        Raises:
            TableNotFound: If that table was dropped, and another table has its name.
        """
        if self.table.incarnation != incarnation:
            raise TableNotFound(
                f"Table {self.table.name} was dropped and created again since this stream began. "
                "Start the stream with a new checkpoint.",
                table=self.table.name,
            )


def _find_snapshot_sequence_number(native: NativeTable) -> int:
    snapshot = native.metadata.current_snapshot()
    return 0 if snapshot is None else snapshot.sequence_number or 0


def list_initial_snapshot_files(
    name: TableName, incarnation: str, position: StreamPosition
) -> list[NativeFile]:
    """Return the files of the stream's initial snapshot, in a stable order.

    Raises:
        LoadRefused: If the snapshot is no longer retained.
    """
    if position.base is None:
        return []
    try:
        return list_native_files(load_native_table(position.base, incarnation))
    except OSError as error:
        raise _make_rows_missing_error(
            name, "the initial snapshot was deleted after its retention"
        ) from error


def find_chunks_or_migrated_files(
    connection: sa.Connection, streamed_table: StreamedTable, after_seq: int, end_seq: int
) -> StreamIncrement:
    """Return the chunks or native files with the rows of commits (after_seq, end_seq].

    Raises:
        LoadRefused: If some of these rows are available only in a file with rows outside the range.
    """
    table = streamed_table.table
    found = list_chunks(connection, table.table_id, after_seq, end_seq, retained_only=True)
    if len(found) == end_seq - after_seq:
        return StreamIncrement((), tuple(found))
    kept = {chunk.seq: chunk for chunk in found}
    missing = set(range(after_seq + 1, end_seq + 1)) - set(kept)
    held = {chunk.seq for chunk in list_quarantined_chunk_records(connection, table.table_id)}
    runs = [
        run
        for run in _list_committed_migrations(connection, table)
        if any(run.from_seq < seq <= run.to_seq for seq in missing)
    ]
    for run in runs:
        if run.from_seq < after_seq or run.to_seq > end_seq:
            raise _make_rows_missing_error(
                table.name,
                f"it needs commits {after_seq + 1} to {end_seq}, but one migration wrote commits "
                f"{run.from_seq + 1} to {run.to_seq} into the same files, and their chunks are deleted",
            )
        taken = set(range(run.from_seq + 1, run.to_seq + 1))
        missing -= taken
        for seq in taken - held:
            kept.pop(seq, None)
    if missing:
        raise _make_rows_missing_error(
            table.name,
            f"the chunk of commit {min(missing)} is deleted, and no migration in the history wrote it",
        )
    files = _list_migration_files(streamed_table, runs)
    return StreamIncrement(tuple(files), tuple(kept[seq] for seq in sorted(kept)))


def find_migration_end_sequence(connection: sa.Connection, table: TableRecord, seq: int) -> int:
    """Return the last commit number of the migration that contains `seq`, by default `seq`."""
    ends = [
        run.to_seq
        for run in _list_committed_migrations(connection, table)
        if run.from_seq < seq <= run.to_seq
    ]
    return max(ends, default=seq)


def find_new_load_files(
    connection: sa.Connection,
    streamed_table: StreamedTable,
    start: StreamPosition,
    end: StreamPosition,
) -> StreamIncrement:
    """Return the files of loads committed between two positions.

    Raises:
        LoadRefused: If the files were compacted with others and then deleted.
    """
    wanted = count_loaded_rows(connection, streamed_table, start, end)
    if not wanted:
        return StreamIncrement((), ())
    table_id = streamed_table.table.table_id
    others = {run.run_id for run in _list_committed_migrations(connection, streamed_table.table)}
    others |= {
        run.run_id
        for run in run_history.list_maintenance_runs(connection, table_id, limit=_MAX_LISTED_RUNS)
    }
    files = [
        file
        for file in _list_retained_files(streamed_table)
        if start.native < file.sequence <= end.native
        and parse_run_id(file.path) not in others
        and parse_fresh_range(file.path) is None
    ]
    if sum(file.rows for file in files) != wanted:
        raise _make_rows_missing_error(
            streamed_table.table.name,
            f"expected {wanted:,} rows of loads in native commits {start.native + 1} to {end.native}, "
            f"found {sum(file.rows for file in files):,}: a compaction merged the other rows with "
            "older ones",
        )
    return StreamIncrement(tuple(files), ())


def count_loaded_rows(
    connection: sa.Connection,
    streamed_table: StreamedTable,
    start: StreamPosition,
    end: StreamPosition,
) -> int:
    """Return the number of rows that loads committed between two positions.

    This is the number of added native rows minus the migrated rows.

    Raises:
        LoadRefused: If rows were deleted or changed between the positions.
    """
    if end.native == start.native:
        return 0
    if end.replaced != start.replaced:
        table = streamed_table.table.name
        raise LoadRefused(
            what=f"The stream of {table}",
            reason="DELETE, UPDATE, MERGE or another engine has deleted or changed rows, which a stream "
            "of new rows cannot show. Start it with a new checkpoint and the option `startingOffset`",
        )
    moved = sum(
        run.rows or 0
        for run in _list_committed_migrations(connection, streamed_table.table)
        if start.watermark <= run.from_seq and run.to_seq <= end.watermark
    )
    return end.rows - start.rows - moved


_MAX_LISTED_RUNS = 1_000_000


def _list_committed_migrations(
    connection: sa.Connection, table: TableRecord
) -> list[MigrationRecord]:
    found = run_history.list_migrations(connection, table.table_id, limit=_MAX_LISTED_RUNS)
    return [run for run in found if run.state is RunState.COMMITTED]


def _list_migration_files(
    streamed_table: StreamedTable, runs: Sequence[MigrationRecord]
) -> list[NativeFile]:
    """Return the files that migrations wrote or adopted."""
    by_run: dict[str, list[NativeFile]] = {run.run_id: [] for run in runs}
    for file in _list_retained_files(streamed_table):
        run_id = _find_migration(file, runs)
        if run_id is not None:
            by_run[run_id].append(file)
    for run in runs:
        there, wanted = sum(file.rows for file in by_run[run.run_id]), run.rows or 0
        if there != wanted:
            raise _make_rows_missing_error(
                streamed_table.table.name,
                f"expected {wanted:,} rows in the files of migration {run.run_id}, found {there:,}: a "
                "compaction merged the other rows with older ones",
            )
    return [file for run in runs for file in by_run[run.run_id]]


def _find_migration(file: NativeFile, runs: Sequence[MigrationRecord]) -> str | None:
    """Return the run among `runs` that wrote or adopted a file."""
    chunks = parse_fresh_range(file.path)
    run_id = parse_run_id(file.path)
    for run in runs:
        if run.run_id == run_id or (
            chunks is not None and run.from_seq <= chunks[0] and chunks[1] <= run.to_seq
        ):
            return run.run_id
    return None


def _list_retained_files(streamed_table: StreamedTable) -> list[NativeFile]:
    """Return the files of every retained snapshot, including the current one."""
    native = streamed_table.native
    if native is None:
        return []
    found: dict[str, NativeFile] = {file.path: file for file in list_native_files(native)}
    for snapshot, facts in list_retained_snapshots(native):
        metadata = native.metadata.model_copy(update={"current_snapshot_id": snapshot.snapshot_id})
        for file in list_native_files(NativeTable(native.location, metadata, facts)):
            found.setdefault(file.path, file)
    return sorted(found.values(), key=lambda file: (file.sequence, file.path))


def _make_rows_missing_error(table: TableName, reason: str) -> LoadRefused:
    return LoadRefused(
        what=f"The stream of {table}",
        reason=f"{reason}. No row was skipped. Start the stream with a new checkpoint and the option "
        "`startingOffset`. To keep files and chunks longer, raise SNOWMELT_RETENTION_S",
    )
