"""`spark.readStream.format("snowmelt")`: every row of a table once, in batches.

Spark asks for the end of the next batch, writes it into the checkpoint, and then for what lies
between two ends, again after a restart. The answer is the same each time, whatever migration and
compaction have done meanwhile, or an error that says why it cannot be.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from snowmelt.catalog.jobs import read_positions
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.catalog.streaming.chunks import list_chunks, list_quarantined_records
from snowmelt.clock import SystemClock
from snowmelt.errors import LoadRefused
from snowmelt.spark.datasource.options import (
    check_options,
    conditions,
    number_asked,
    pruned,
    shape_of,
    table_asked,
)
from snowmelt.spark.datasource.partition import Part, divided, light, read_part
from snowmelt.spark.datasource.stream_ranges import (
    EARLIEST,
    LATEST,
    GrowingTable,
    Grown,
    Offset,
    Position,
    base_files,
    chunks_grown,
    initial,
    loads_grown,
    offset_of,
    rows_loaded,
    run_end,
    starting_of,
)
from snowmelt.table.snapshot import MAX_SNAPSHOT_AGE_S, TableSnapshot
from snowmelt.table.table_reader import make_chunk_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    import sqlalchemy as sa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from snowmelt.spark.datasource.connection import Connection

STREAM_OPTIONS = frozenset(
    {"where", "columns", "startingOffset", "maxRowsPerTrigger", "maxChunksPerTrigger"}
)


# A stream without rows keeps its mark alive.
_MARK_AGAIN = dt.timedelta(hours=1)


@dataclass(slots=True)
class _Budget:
    """What one batch may still take; the first thing it takes always fits."""

    rows: float
    pieces: float
    taken: int = 0

    def take(self, rows: int) -> bool:
        """Count a file or a chunk; False where it is for the next batch."""
        if self.taken and (rows > self.rows or not self.pieces):
            return False
        self.rows -= rows
        self.pieces -= 1
        self.taken += 1
        return True


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table as it grows; `schema` is what the session holds of it."""

    def __init__(
        self, connection: Connection, options: Mapping[str, str], schema: StructType
    ) -> None:
        check_options(options, STREAM_OPTIONS, "reading a stream")
        self._connection = connection
        self._name = table_asked(options)
        self._where = options.get("where")
        self._schema = schema
        self._starting = _starting(options.get("startingOffset", EARLIEST))
        self._max_rows = number_asked(options, "maxRowsPerTrigger", least=1)
        self._max_chunks = number_asked(options, "maxChunksPerTrigger", least=1)
        self._target: Position | None = None
        self._clock = SystemClock()
        self._marked_at = dt.datetime.min.replace(tzinfo=dt.UTC)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's
        """Return where the stream begins, before that is looked up."""
        return initial(self._starting)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's
        """Return a limit that says only whether there is one; options say which."""
        if self._max_rows is not None:
            return ReadMaxRows(self._max_rows)
        return ReadAllAvailable() if self._max_chunks is None else ReadMaxFiles(self._max_chunks)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's
        """Remember what is there now: the query ends when it has read that."""
        with self._connection.database.reading() as connection:
            self._target = self._table(connection).end

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's
        """Return how far the next batch goes.

        Raises:
            TableNotFound: The table was dropped, or the role may not read it any more.
            LoadRefused: What comes next is no longer kept, or where to begin does not exist.
        """
        with self._connection.database.reading() as connection:
            grown = self._table(connection)
            begun = None if starting_of(start) is not None else offset_of(start)
            offset = begun or self._begin(connection, grown, starting_of(start) or EARLIEST)
            grown.check(offset.incarnation)
            budget = self._budget(unlimited=isinstance(limit, ReadAllAvailable))
            end = self._next(connection, grown, offset, budget)
        if self._clock.now() - self._marked_at > _MARK_AGAIN:
            self._mark(offset)
        return start if begun == end else end.json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what tasks read of the batch between two offsets.

        Raises:
            LoadRefused: It is no longer kept.
        """
        last = offset_of(end)
        first = last.begin if starting_of(start) is not None else offset_of(start).at
        lake = self._connection
        with lake.database.reading() as connection:
            grown = self._table(connection)
            grown.check(last.incarnation)
            files = self._files(connection, grown, last, first)
            chunks = chunks_grown(connection, grown, first.seq, last.at.seq)
        snapshot = _snapshot(grown, chunks)
        found = conditions(self._where, grown.table.schema)
        shape = shape_of(snapshot, self._schema, found)
        left = pruned(snapshot, [*files, *chunks.files], chunks.chunks, found)
        if not left.files and not left.chunks:
            return []
        tasks = (
            make_chunk_tasks(
                lake.database, lake.keyring, lake.stage, left.chunks, grown.table.schema
            )
            if left.chunks
            else []
        )
        return divided(shape, list(map(light, left.files)), tasks, cores=lake.cores)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        # Of a batch without parts Spark may make one of its own.
        return read_part(partition, self._schema) if isinstance(partition, Part) else iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """Tell clean-up that everything up to here has been read."""
        if starting_of(end) is None:
            self._mark(offset_of(end))

    def stop(self) -> None:
        """Do nothing: what is open ends with the process."""

    def _mark(self, offset: Offset) -> None:
        now = self._clock.now()
        with self._connection.database.writing() as connection:
            read_positions.save_position(
                connection, offset.incarnation, offset.stream, offset.at.seq, now
            )
        self._marked_at = now

    def _table(self, connection: sa.Connection) -> GrowingTable:
        grown = GrowingTable(connection, self._name)
        require_table_privilege(connection, self._connection.role, grown.table, "SELECT")
        return grown

    def _begin(self, connection: sa.Connection, grown: GrowingTable, starting: str) -> Offset:
        end = grown.end
        if starting == EARLIEST:
            begin = grown.start
            held = list_quarantined_records(connection, grown.table.table_id)
            if any(chunk.seq <= begin.seq for chunk in held):
                raise LoadRefused(
                    what=f"The stream of {self._name}",
                    reason="a chunk of the table is in quarantine, and its rows in no file; restore "
                    "its blob, or give it up",
                )
        elif starting == LATEST:
            begin = end
        else:
            begin = replace(end, seq=int(starting))
            if begin.seq > end.seq:
                raise LoadRefused(
                    what=f"startingOffset = {starting}",
                    reason=f"the last commit of {self._name} is number {end.seq}",
                )
        return Offset(uuid.uuid4().hex, grown.table.incarnation, begin, begin)

    def _budget(self, *, unlimited: bool) -> _Budget:
        rows = None if unlimited else self._max_rows
        pieces = None if unlimited else self._max_chunks
        return _Budget(
            float("inf") if rows is None else rows, float("inf") if pieces is None else pieces
        )

    def _next(
        self, connection: sa.Connection, grown: GrowingTable, offset: Offset, budget: _Budget
    ) -> Offset:
        """Return the next offset: first files of the beginning, then loads, then chunks."""
        at, target = offset.at, self._target or grown.end
        if at.base is not None:
            files = base_files(self._name, offset.incarnation, at)
            count = at.files
            while count < len(files) and budget.take(files[count].rows):
                count += 1
            at = replace(at, files=count)
            if count < len(files):
                return offset.moved(at)
            at = replace(at, base=None, files=0)
        loaded = rows_loaded(connection, grown, at, target) if target.native > at.native else 0
        if loaded and not budget.take(loaded):
            return offset.moved(at)
        seq = self._chunks(connection, grown, (at.seq, target.seq), budget)
        if loaded or seq > at.seq:
            at = replace(target, seq=seq) if target.native >= at.native else replace(at, seq=seq)
        return offset.moved(at)

    def _chunks(
        self,
        connection: sa.Connection,
        grown: GrowingTable,
        span: tuple[int, int],
        budget: _Budget,
    ) -> int:
        """Return the last chunk that a batch takes."""
        after, up_to = span
        if up_to <= after:
            return after
        if budget.rows == float("inf") and budget.pieces == float("inf"):
            return up_to
        limit = None if budget.pieces == float("inf") else int(max(budget.pieces, 1)) + 1
        found = list_chunks(
            connection, grown.table.table_id, after, up_to, limit=limit, retained_only=True
        )
        if not found or found[0].seq != after + 1:
            # Chunks that are gone lie in native files, of one migration each.
            end = min(run_end(connection, grown.table, after + 1), up_to)
            return end if budget.take(1) else after
        seq = after
        for chunk in found:
            if chunk.seq != seq + 1 or not budget.take(chunk.rows):
                break
            seq = chunk.seq
        return seq

    def _files(
        self, connection: sa.Connection, grown: GrowingTable, last: Offset, first: Position
    ) -> list[Any]:
        """Return the native files of a batch: of the beginning, and of loads."""
        files: list[Any] = []
        if first.base is not None:
            files = base_files(self._name, last.incarnation, first)
            until = last.at.files if last.at.base is not None else len(files)
            files = files[first.files : until]
        return [*files, *loads_grown(connection, grown, first, last.at).files]


def _starting(text: str) -> str:
    word = text.strip().lower()
    if word not in {EARLIEST, LATEST} and not word.isdecimal():
        raise LoadRefused(
            what=f"startingOffset = {text}",
            reason=f"it is {EARLIEST}, {LATEST} or the number of a commit",
        )
    return word


def _snapshot(grown: GrowingTable, chunks: Grown) -> TableSnapshot:
    """Return the rows of a batch as what a query's snapshot would be."""
    return TableSnapshot(
        table=grown.table,
        schemas=grown.schemas,
        native=grown.native,
        watermark=grown.table.migrated_seq,
        up_to=grown.table.last_seq,
        chunks=chunks.chunks,
        deadline=SystemClock().now() + dt.timedelta(seconds=MAX_SNAPSHOT_AGE_S),
    )
