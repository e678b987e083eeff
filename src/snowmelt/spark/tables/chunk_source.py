"""Chunks of a table as a Python data source: chunk tasks in, Arrow batches out.

It must not implement `pushFilters`: Spark 4.3.0 keeps a pushed filter for later queries on the same
DataFrame, and so loses rows. Pruning happens before the source is created. The tasks are passed in
an option that plans and event logs do not show. Each Spark task receives only its own tasks, with
the keys of its own blobs.
"""

from __future__ import annotations

import base64
import heapq
import pickle
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from snowmelt.clock import SystemClock
from snowmelt.errors import PlanExpired
from snowmelt.table.chunk_reader import run_chunk_read_task

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from snowmelt.table.chunk_reader import ChunkReadTask

FORMAT = "snowmelt_chunks"
# Redacted by Spark wherever options are shown: it matches `spark.redaction.regex`.
_TASKS_OPTION = "secret_tasks"
_MAX_BATCH_ROWS = 65_536
_MAX_BATCH_BYTES = 16 * 1024 * 1024
# What opening a chunk costs, in bytes decoded meanwhile (2 ms at 45 MB/s).
_OPEN_COST_BYTES = 100_000
# Half a second of decoding.
_TARGET_PARTITION_BYTES = 24 * 1024 * 1024
# Less than this is decoded before a second worker has begun.
_MIN_PARTITION_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChunkReadRequest:
    """Chunks to read: `columns` are the table's, `fields` the native fields in order.

    After `deadline` the chunks may have been cleaned away; reading then fails with a sentence.
    """

    table: str
    tasks: tuple[ChunkReadTask, ...]
    columns: tuple[str, ...]
    fields: tuple[str, ...]
    deadline: dt.datetime


class ChunkPartition(InputPartition):
    """What one Spark task reads."""

    def __init__(self, read: ChunkReadRequest) -> None:
        self.read = read


class ChunkDataSource(DataSource):
    """The data source that Spark knows under the name `snowmelt_chunks`; used by us alone."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the chunks that the option brings."""
        # Only bytes that this very process's driver has pickled come here.
        payload = base64.b85decode(self.options[_TASKS_OPTION])
        return ChunkReader(pickle.loads(payload), schema)  # noqa: S301


class ChunkReader(DataSourceReader):
    """Reads partitions, each some chunks."""

    def __init__(self, reads: Sequence[ChunkReadRequest], schema: StructType) -> None:
        self._reads = reads
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each group of chunks."""
        return [ChunkPartition(read) for read in self._reads]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition's chunks.

        Raises:
            PlanExpired: The query is older than its chunks are kept.
            BlobCorrupt: A blob is not what was registered.
        """
        assert isinstance(partition, ChunkPartition)  # noqa: S101  Spark hands back our own
        # Made here: the reader itself is shipped with every task.
        return read_chunk_batches(partition.read, to_arrow_schema(self._schema, timezone="UTC"))


def read_chunk_batches(read: ChunkReadRequest, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of chunks as batches of exactly this schema, small chunks joined."""
    waiting: list[pa.Table] = []
    for task in read.tasks:
        if SystemClock().now() > read.deadline:
            raise PlanExpired(table=read.table)
        table = run_chunk_read_task(task, read.columns).select(list(read.fields))
        arrays = [
            column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)
        ]
        waiting.append(pa.Table.from_arrays(arrays, schema=schema))
        if (
            sum(part.num_rows for part in waiting) >= _MAX_BATCH_ROWS
            or sum(part.nbytes for part in waiting) >= _MAX_BATCH_BYTES
        ):
            yield from _concat_to_batches(waiting)
            waiting = []
    if waiting:
        yield from _concat_to_batches(waiting)


def _concat_to_batches(tables: Sequence[pa.Table]) -> list[pa.RecordBatch]:
    whole: pa.Table = pa.concat_tables(tables).combine_chunks()
    batches: list[pa.RecordBatch] = whole.to_batches(max_chunksize=_MAX_BATCH_ROWS)
    return batches


def create_chunk_frame(
    spark: SparkSession, read: ChunkReadRequest, schema: StructType, *, cores: int
) -> DataFrame:
    """Return a DataFrame of chunks; `schema` names and types the native fields, all nullable."""
    _register_source(spark)
    payload = base64.b85encode(pickle.dumps(split_into_partitions(read, cores))).decode()
    return spark.read.format(FORMAT).schema(schema).option(_TASKS_OPTION, payload).load()


_registered_sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_registration_lock = threading.Lock()


def _register_source(spark: SparkSession) -> None:
    with _registration_lock:
        if spark not in _registered_sessions:
            spark.dataSource.register(ChunkDataSource)
            _registered_sessions.add(spark)


def split_into_partitions(read: ChunkReadRequest, cores: int) -> list[ChunkReadRequest]:
    """Return the chunks in groups of about equal work, each in commit order."""
    weights = [task.length + _OPEN_COST_BYTES for task in read.tasks]
    wanted = max(
        -(-sum(weights) // _TARGET_PARTITION_BYTES),
        min(cores, sum(weights) // _MIN_PARTITION_BYTES),
        1,
    )
    # Whole rounds of the cores, once there is enough for more than one.
    count = min(len(read.tasks), wanted if wanted <= 1 else -(-wanted // cores) * cores)
    groups: list[list[ChunkReadTask]] = [[] for _ in range(count)]
    heap = [(0, index) for index in range(count)]
    for index in sorted(range(len(weights)), key=lambda each: -weights[each]):
        weight, group = heapq.heappop(heap)
        groups[group].append(read.tasks[index])
        heapq.heappush(heap, (weight + weights[index], group))
    return [
        ChunkReadRequest(
            read.table,
            tuple(sorted(group, key=lambda task: task.seq)),
            read.columns,
            read.fields,
            read.deadline,
        )
        for group in groups
    ]
