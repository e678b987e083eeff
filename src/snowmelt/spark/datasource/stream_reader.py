"""`spark.readStream.format("snowmelt")`: reads each row of a table exactly once, in batches.

Spark requests the end offset of the next batch and writes it to the checkpoint. Then it requests
the rows between two offsets, and requests the same rows again after a restart. The result must be
the same each time, even after migration or compaction. If that is impossible, the request raises an
error.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from snowmelt.catalog.jobs import load_history
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.catalog.streaming.chunks import list_chunks, list_quarantined_chunk_records
from snowmelt.clock import SystemClock
from snowmelt.errors import LoadRefused
from snowmelt.spark.datasource.catalog_connection import LakeConnection
from snowmelt.spark.datasource.options import (
    STREAM_OPTIONS,
    check_options,
    parse_integer_option,
    requested_table,
)
from snowmelt.spark.datasource.reader import plan_pruned_read
from snowmelt.spark.datasource.stream_ranges import (
    EARLIEST,
    LATEST,
    StreamedTable,
    StreamOffset,
    StreamPosition,
    count_loaded_rows,
    find_chunks_or_migrated_files,
    find_migration_end_sequence,
    find_new_load_files,
    find_starting_offset,
    list_initial_snapshot_files,
    make_initial_offset,
    parse_offset,
)
from snowmelt.spark.tables.partition import (
    ReadPartition,
    read_partition,
)
from snowmelt.table.snapshot import MAX_SNAPSHOT_AGE_S, TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


# Interval at which a stream without new rows renews its saved read position.
_MARK_INTERVAL = dt.timedelta(hours=1)


@dataclass(slots=True)
class _BatchBudget:
    """Remaining size of one batch. The first item always fits."""

    remaining_rows: float
    remaining_items: float
    taken_items: int = 0

    def try_take(self, rows: int) -> bool:
        """Add a file or chunk to the batch. Return False if it belongs in the next batch."""
        if self.taken_items and (rows > self.remaining_rows or not self.remaining_items):
            return False
        self.remaining_rows -= rows
        self.remaining_items -= 1
        self.taken_items += 1
        return True


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader of a table. `schema` is the Spark schema that the session requested."""

    def __init__(
        self, connection: LakeConnection, options: Mapping[str, str], schema: StructType
    ) -> None:
        check_options(options, STREAM_OPTIONS, "reading a stream")
        self._connection = connection
        self._name = requested_table(options)
        self._where = options.get("where")
        self._schema = schema
        self._starting_offset = _parse_starting_offset(options.get("startingOffset", EARLIEST))
        self._max_rows = parse_integer_option(options, "maxRowsPerTrigger", minimum=1)
        self._max_chunks = parse_integer_option(options, "maxChunksPerTrigger", minimum=1)
        self._end_position: StreamPosition | None = None
        self._clock = SystemClock()
        self._marked_at = dt.datetime.min.replace(tzinfo=dt.UTC)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's
        """Return the initial offset, with the start position unresolved."""
        return make_initial_offset(self._starting_offset)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's
        """Return the read limit for Spark. `latestOffset` applies the limits in the options."""
        if self._max_rows is not None:
            return ReadMaxRows(self._max_rows)
        return ReadAllAvailable() if self._max_chunks is None else ReadMaxFiles(self._max_chunks)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's
        """Save the current end position, at which the query ends."""
        with self._connection.database.reading() as connection:
            self._end_position = self._open_table(connection).end_position

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's
        """Return the end offset of the next batch.

        Raises:
            TableNotFound: If the table was dropped or the role lacks privileges on it.
            LoadRefused: If the next rows were deleted after their retention, or the starting offset
                does not exist.
        """
        with self._connection.database.reading() as connection:
            grown = self._open_table(connection)
            begun = None if find_starting_offset(start) is not None else parse_offset(start)
            offset = begun or self._make_first_offset(
                connection, grown, find_starting_offset(start) or EARLIEST
            )
            grown.check_incarnation(offset.incarnation)
            unlimited = isinstance(limit, ReadAllAvailable)
            budget = _BatchBudget(
                inf if unlimited or self._max_rows is None else self._max_rows,
                inf if unlimited or self._max_chunks is None else self._max_chunks,
            )
            end = self._advance_offset(connection, grown, offset, budget)
        if self._clock.now() - self._marked_at > _MARK_INTERVAL:
            self._save_read_position(offset)
        return start if begun == end else end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch between two offsets.

        Raises:
            LoadRefused: If its rows were deleted after their retention.
        """
        last = parse_offset(end)
        first = last.begin if find_starting_offset(start) is not None else parse_offset(start).at
        lake = self._connection
        with lake.database.reading() as connection:
            grown = self._open_table(connection)
            grown.check_incarnation(last.incarnation)
            files = self._list_batch_files(connection, grown, last, first)
            chunks = find_chunks_or_migrated_files(connection, grown, first.seq, last.at.seq)
        # Restrict the snapshot to the chunks of this batch.
        snapshot = TableSnapshot(
            table=grown.table,
            schemas=grown.schemas,
            native=grown.native,
            watermark=grown.table.migrated_seq,
            up_to=grown.table.last_seq,
            chunks=chunks.chunks,
            deadline=SystemClock().now() + dt.timedelta(seconds=MAX_SNAPSHOT_AGE_S),
        )
        return plan_pruned_read(lake, snapshot, [*files, *chunks.files], self._where, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        # Ignore a partition that Spark itself creates for a batch without partitions.
        return (
            read_partition(partition, self._schema)
            if isinstance(partition, ReadPartition)
            else iter(())
        )

    def commit(self, end: dict[str, Any]) -> None:
        """Save the stream's read position so that garbage collection can advance."""
        if find_starting_offset(end) is None:
            self._save_read_position(parse_offset(end))

    def stop(self) -> None:
        """Do nothing: resources are released when the process ends."""

    def _save_read_position(self, offset: StreamOffset) -> None:
        now = self._clock.now()
        with self._connection.database.writing() as connection:
            load_history.save_position(
                connection, offset.incarnation, offset.stream, offset.at.seq, now
            )
        self._marked_at = now

    def _open_table(self, connection: sa.Connection) -> StreamedTable:
        grown = StreamedTable(connection, self._name)
        require_table_privilege(connection, self._connection.role, grown.table, "SELECT")
        return grown

    def _make_first_offset(
        self, connection: sa.Connection, streamed_table: StreamedTable, starting_offset: str
    ) -> StreamOffset:
        end = streamed_table.end_position
        if starting_offset == EARLIEST:
            begin = streamed_table.earliest_position
            held = list_quarantined_chunk_records(connection, streamed_table.table.table_id)
            if any(chunk.seq <= begin.seq for chunk in held):
                raise LoadRefused(
                    what=f"The stream of {self._name}",
                    reason="a chunk of the table is quarantined, so its rows cannot be read. Restore "
                    "its blob, or discard the chunk with `snowmelt chunks give-up`",
                )
        elif starting_offset == LATEST:
            begin = end
        else:
            begin = replace(end, seq=int(starting_offset))
            if begin.seq > end.seq:
                raise LoadRefused(
                    what=f"startingOffset = {starting_offset}",
                    reason=f"the last commit of {self._name} is number {end.seq}",
                )
        return StreamOffset(uuid.uuid4().hex, streamed_table.table.incarnation, begin, begin)

    def _advance_offset(
        self,
        connection: sa.Connection,
        streamed_table: StreamedTable,
        offset: StreamOffset,
        budget: _BatchBudget,
    ) -> StreamOffset:
        """Return the next offset. Advances through initial files first, then loads, then chunks."""
        at, target = offset.at, self._end_position or streamed_table.end_position
        if at.base is not None:
            files = list_initial_snapshot_files(self._name, offset.incarnation, at)
            count = at.files
            while count < len(files) and budget.try_take(files[count].rows):
                count += 1
            at = replace(at, files=count)
            if count < len(files):
                return offset.with_position(at)
            at = replace(at, base=None, files=0)
        loaded = (
            count_loaded_rows(connection, streamed_table, at, target)
            if target.native > at.native
            else 0
        )
        if loaded and not budget.try_take(loaded):
            return offset.with_position(at)
        seq = self._find_last_chunk(connection, streamed_table, (at.seq, target.seq), budget)
        if loaded or seq > at.seq:
            at = replace(target, seq=seq) if target.native >= at.native else replace(at, seq=seq)
        return offset.with_position(at)

    def _find_last_chunk(
        self,
        connection: sa.Connection,
        streamed_table: StreamedTable,
        seq_range: tuple[int, int],
        budget: _BatchBudget,
    ) -> int:
        """Return the commit number of the last chunk in the batch."""
        after, up_to = seq_range
        if up_to <= after:
            return after
        if budget.remaining_rows == inf and budget.remaining_items == inf:
            return up_to
        limit = None if budget.remaining_items == inf else int(max(budget.remaining_items, 1)) + 1
        found = list_chunks(
            connection, streamed_table.table.table_id, after, up_to, limit=limit, retained_only=True
        )
        if not found or found[0].seq != after + 1:
            # Include whole migrations: the rows of deleted chunks are only in their native files.
            end = min(
                find_migration_end_sequence(connection, streamed_table.table, after + 1), up_to
            )
            return end if budget.try_take(1) else after
        seq = after
        for chunk in found:
            if chunk.seq != seq + 1 or not budget.try_take(chunk.rows):
                break
            seq = chunk.seq
        return seq

    def _list_batch_files(
        self,
        connection: sa.Connection,
        streamed_table: StreamedTable,
        last: StreamOffset,
        first: StreamPosition,
    ) -> list[Any]:
        """Return the native files of a batch: of the initial snapshot and of loads."""
        files: list[Any] = []
        if first.base is not None:
            files = list_initial_snapshot_files(self._name, last.incarnation, first)
            until = last.at.files if last.at.base is not None else len(files)
            files = files[first.files : until]
        return [*files, *find_new_load_files(connection, streamed_table, first, last.at).files]


def _parse_starting_offset(text: str) -> str:
    word = text.strip().lower()
    if word not in {EARLIEST, LATEST} and not word.isdecimal():
        raise LoadRefused(
            what=f"startingOffset = {text}",
            reason=f"expected {EARLIEST}, {LATEST} or a commit number",
        )
    return word
