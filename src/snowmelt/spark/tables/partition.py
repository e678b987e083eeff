"""Python data source that reads partitions of chunks and native files as Arrow batches.

Executors import this module, so it must not import the catalog or the database.

Spark reads native files itself if it has a Hadoop file system for their URLs, which it does not
have for buckets. Spark's reader skips row groups by their statistics; this source does not.

The source must not implement `pushFilters`: Spark 4.3.0 reuses a pushed filter for later queries on
the same DataFrame, which loses rows. Pruning happens before the source is created. The partitions
are passed in an option that plans and event logs do not show. Each Spark task receives only its own
chunks, with the keys of its own blobs.
"""

from __future__ import annotations

import datetime as dt
import heapq
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from snowmelt.clock import SystemClock
from snowmelt.errors import LoadFailed, PlanExpired
from snowmelt.schema.types import TableSchema
from snowmelt.spark.task_job import create_payload_frame, load_payload
from snowmelt.table.chunk_reader import ChunkReadTask, project_schema, run_chunk_read_task
from snowmelt.table.pruning import (
    And,
    Comparison,
    InList,
    IsNull,
    LiteralValue,
    Or,
    Predicate,
    StartsWith,
    list_predicate_columns,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from snowmelt.table.native_file import NativeFile

_MAX_BATCH_ROWS = 65_536
_MAX_BATCH_BYTES = 16 * 1024 * 1024
_TARGET_PARTITION_BYTES = 24 * 1024 * 1024
_MIN_PARTITION_BYTES = 4 * 1024 * 1024
_OPEN_COST_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class ReadShape:
    """Columns, predicates and deadline of a table read.

    `fields` are native fields in the order of Spark's schema. After `deadline`, garbage collection may
    have deleted files and chunks.
    """

    table: str
    schema: TableSchema
    fields: tuple[str, ...]
    columns: tuple[str, ...]
    predicates: tuple[Predicate, ...]
    deadline: dt.datetime


class ReadPartition(InputPartition):
    """Files and chunks that one task reads."""

    def __init__(
        self, shape: ReadShape, files: Sequence[NativeFile], chunks: Sequence[ChunkReadTask]
    ) -> None:
        self.shape = shape
        self.files = tuple(files)
        self.chunks = tuple(chunks)


def list_needed_columns(columns: Sequence[str], predicates: Sequence[Predicate]) -> tuple[str, ...]:
    """Return the table's columns that rows and predicates need, without duplicates."""
    return tuple(dict.fromkeys([*columns, *list_predicate_columns(predicates)]))


def plan_partitions(
    shape: ReadShape, files: Sequence[NativeFile], chunks: Sequence[ChunkReadTask], *, cores: int
) -> list[ReadPartition]:
    """Split the work into one or more partitions of similar size. Keeps the order in each."""
    items: list[NativeFile | ChunkReadTask] = [*files, *chunks]
    weights = [
        (item.length if isinstance(item, ChunkReadTask) else item.size) + _OPEN_COST_BYTES
        for item in items
    ]
    total = sum(weights)
    wanted = max(-(-total // _TARGET_PARTITION_BYTES), min(cores, total // _MIN_PARTITION_BYTES), 1)
    count = max(1, min(len(items), wanted if wanted == 1 else -(-wanted // cores) * cores))
    groups: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, index) for index in range(count)]
    for index in sorted(range(len(items)), key=lambda each: -weights[each]):
        weight, group = heapq.heappop(heap)
        groups[group].append(index)
        heapq.heappush(heap, (weight + weights[index], group))
    return [
        ReadPartition(
            shape,
            [_strip_statistics(files[index]) for index in sorted(group) if index < len(files)],
            [chunks[index - len(files)] for index in sorted(group) if index >= len(files)],
        )
        for group in groups
    ]


def read_partition(partition: ReadPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition as batches of exactly this schema, combining small tables.

    Raises:
        PlanExpired: If the deadline has passed. Files may be deleted after it.
        BlobCorrupt: If a blob differs from its registration.
        LoadFailed: If a value does not fit the column's type at the start of the query.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in _read_tables(partition):
        chosen = filter_rows(table, partition.shape.predicates)
        if not chosen.num_rows:
            continue
        shaped = _cast_to_schema(chosen, partition.shape, wanted)
        waiting.append(shaped)
        rows, size = rows + shaped.num_rows, size + shaped.nbytes
        if rows >= _MAX_BATCH_ROWS or size >= _MAX_BATCH_BYTES:
            yield from _concat_to_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield from _concat_to_batches(waiting)


def _read_tables(partition: ReadPartition) -> Iterator[pa.Table]:
    shape = partition.shape
    if partition.files:
        # Import only for native files, because the import is slow.
        from snowmelt.table.native_file import read_native_batches

        schema = project_schema(shape.schema, shape.columns)
        for file in partition.files:
            _check_deadline(shape)
            yield from read_native_batches(file, schema, _MAX_BATCH_ROWS)
    for chunk in partition.chunks:
        _check_deadline(shape)
        yield run_chunk_read_task(chunk, shape.columns)


def _strip_statistics(file: NativeFile) -> NativeFile:
    # Tasks do not need statistics.
    return replace(file, lower={}, upper={}, nulls={}, nans={})


def _check_deadline(shape: ReadShape) -> None:
    if SystemClock().now() > shape.deadline:
        raise PlanExpired(table=shape.table)


def _cast_to_schema(table: pa.Table, shape: ReadShape, arrow_schema: pa.Schema) -> pa.Table:
    if not shape.fields:
        return table.select([])
    arrays = []
    for name, field in zip(shape.fields, arrow_schema, strict=True):
        try:
            arrays.append(table.column(name).cast(field.type))
        except pa.ArrowInvalid as error:
            raise LoadFailed(
                where=f"{shape.table}, column {name}",
                reason=f"a value does not fit {field.type}, the column's type when the query "
                f"began: {error}",
            ) from error
    return pa.Table.from_arrays(arrays, schema=arrow_schema)


def _concat_to_batches(tables: Sequence[pa.Table]) -> list[pa.RecordBatch]:
    whole: pa.Table = pa.concat_tables(tables).combine_chunks()
    batches: list[pa.RecordBatch] = whole.to_batches(max_chunksize=_MAX_BATCH_ROWS)
    return batches


# --- Row filter with the semantics of Spark.

_COMPARISON_KERNELS: dict[str, Callable[..., Any]] = {
    "=": pc.equal,
    "<=>": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def filter_rows(table: pa.Table, predicates: Sequence[Predicate]) -> pa.Table:
    """Return the rows for which every predicate is true. Rows are in native form."""
    for predicate in predicates:
        table = table.filter(_compute_mask(table, predicate))
    return table


def _compute_mask(table: pa.Table, predicate: Predicate) -> Any:
    match predicate:
        case Comparison(column, op, value):
            return _compute_comparison_mask(table.column(column), op, value)
        case InList(column, values):
            array = table.column(column)
            found = [_compute_comparison_mask(array, "=", value) for value in values]
            return reduce(pc.or_kleene, found, pa.array([False] * len(array)))
        case StartsWith(column, prefix):
            return pc.starts_with(table.column(column), prefix)
        case IsNull(column, negated):
            array = table.column(column)
            return pc.is_valid(array) if negated else pc.is_null(array)
        case And(conditions):
            return reduce(pc.and_kleene, (_compute_mask(table, each) for each in conditions))
        case Or(conditions):
            return reduce(pc.or_kleene, (_compute_mask(table, each) for each in conditions))


def _compute_comparison_mask(array: pa.ChunkedArray, op: str, value: LiteralValue) -> Any:
    compare = _COMPARISON_KERNELS[op]
    if pa.types.is_decimal(array.type) and not isinstance(value, float):
        # Compare as 256-bit decimals, which hold all digits of both sides.
        exact = Decimal(value)  # type: ignore[arg-type]
        try:
            return compare(array, pa.scalar(exact, pa.decimal256(76, array.type.scale)))
        except pa.ArrowInvalid:
            # The value has more fraction digits than the column. Doubles would be inexact.
            wider = array.cast(
                pa.decimal256(76, max(array.type.scale, _count_fraction_digits(exact)))
            )
            return compare(wider, pa.scalar(exact, wider.type))
    if pa.types.is_decimal(array.type) or pa.types.is_floating(array.type):
        numbers = array.cast(pa.float64())
        mask = compare(numbers, pa.scalar(float(value), pa.float64()))  # type: ignore[arg-type]
        # Spark orders NaN above every number.
        return pc.or_kleene(mask, pc.is_nan(numbers)) if op in {">", ">="} else mask
    return compare(array, pa.scalar(value, array.type))


def _count_fraction_digits(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return max(0, operator.neg(exponent)) if isinstance(exponent, int) else 0


class PartitionDataSource(DataSource):
    """Internal Spark data source `snowmelt_chunks`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "snowmelt_chunks"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the partitions in the payload option."""
        return PartitionSourceReader(load_payload(self), schema)


class PartitionSourceReader(DataSourceReader):
    """Reader of partitions of files and chunks."""

    def __init__(self, partitions: Sequence[ReadPartition], schema: StructType) -> None:
        self._partitions = partitions
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions."""
        return self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        assert isinstance(partition, ReadPartition)  # noqa: S101  always our own partition
        return read_partition(partition, self._schema)


def create_partition_frame(
    spark: SparkSession, partitions: Sequence[ReadPartition], schema: StructType
) -> DataFrame:
    """Return a DataFrame of partitions. `schema` has the native names and types, all nullable."""
    return create_payload_frame(spark, PartitionDataSource, partitions, schema)
