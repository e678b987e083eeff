"""What one task of the data source `snowmelt` reads: chunks and native files, rows selected.

Kept apart from the driver's half, so that executors need neither catalog nor database.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from snowmelt.clock import SystemClock
from snowmelt.errors import LoadFailed, PlanExpired
from snowmelt.spark.filtering import columns_of, filtered
from snowmelt.table.chunk import ChunkTask, part_of, read_task

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from snowmelt.schema.types import TableSchema
    from snowmelt.table.iceberg import NativeFile
    from snowmelt.table.scan import Predicate

_MAX_BATCH_ROWS = 65_536
_MAX_BATCH_BYTES = 16 * 1024 * 1024
_PARTITION_BYTES = 24 * 1024 * 1024
_LEAST_BYTES = 4 * 1024 * 1024
_OPEN_COST_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What is read of a table: `fields` are native fields in the order of Spark's schema.

    After `deadline` files and chunks may have been cleaned away.
    """

    table: str
    schema: TableSchema
    fields: tuple[str, ...]
    columns: tuple[str, ...]
    predicates: tuple[Predicate, ...]
    deadline: dt.datetime


class Part(InputPartition):
    """What one task reads."""

    def __init__(
        self, shape: Shape, files: Sequence[NativeFile], chunks: Sequence[ChunkTask]
    ) -> None:
        self.shape = shape
        self.files = tuple(files)
        self.chunks = tuple(chunks)


def needed(columns: Sequence[str], predicates: Sequence[Predicate]) -> tuple[str, ...]:
    """Return the table's columns that rows and conditions need, each once."""
    asked = [name for predicate in predicates for name in columns_of(predicate)]
    return tuple(dict.fromkeys([*columns, *asked]))


def divided(
    shape: Shape, files: Sequence[NativeFile], chunks: Sequence[ChunkTask], *, cores: int
) -> list[Part]:
    """Return the work in parts of about equal size, one at least."""
    items: list[NativeFile | ChunkTask] = [*files, *chunks]
    weights = [_weight(item) for item in items]
    total = sum(weights)
    wanted = max(-(-total // _PARTITION_BYTES), min(cores, total // _LEAST_BYTES), 1)
    count = max(1, min(len(items), wanted if wanted == 1 else -(-wanted // cores) * cores))
    groups: list[list[NativeFile | ChunkTask]] = [[] for _ in range(count)]
    heap = [(0, index) for index in range(count)]
    for index in sorted(range(len(items)), key=lambda each: -weights[each]):
        weight, group = heapq.heappop(heap)
        groups[group].append(items[index])
        heapq.heappush(heap, (weight + weights[index], group))
    return [
        Part(
            shape,
            [item for item in group if not isinstance(item, ChunkTask)],
            [item for item in group if isinstance(item, ChunkTask)],
        )
        for group in groups
    ]


def light(file: NativeFile) -> NativeFile:
    """Return a file without its statistics, which no task needs."""
    return replace(file, lower={}, upper={}, nulls={}, nans={})


def read_part(part: Part, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part as batches of exactly this schema, small ones joined.

    Raises:
        PlanExpired: The query is older than its files are kept.
        BlobCorrupt: A blob is not what was registered.
        LoadFailed: A value does not fit the column's type as it was when the query began.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in _tables(part):
        chosen = filtered(table, part.shape.predicates)
        if not chosen.num_rows:
            continue
        shaped = _shaped(chosen, part.shape, wanted)
        waiting.append(shaped)
        rows, size = rows + shaped.num_rows, size + shaped.nbytes
        if rows >= _MAX_BATCH_ROWS or size >= _MAX_BATCH_BYTES:
            yield from _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield from _joined(waiting)


def _tables(part: Part) -> Iterator[pa.Table]:
    shape = part.shape
    if part.files:
        # Only where there are native files: it takes a moment to import.
        from snowmelt.table.reading import read_batches

        schema = part_of(shape.schema, shape.columns)
        for file in part.files:
            _check(shape)
            yield from read_batches(file, schema, _MAX_BATCH_ROWS)
    for chunk in part.chunks:
        _check(shape)
        yield read_task(chunk, shape.columns)


def _check(shape: Shape) -> None:
    if SystemClock().now() > shape.deadline:
        raise PlanExpired(table=shape.table)


def _shaped(table: pa.Table, shape: Shape, wanted: pa.Schema) -> pa.Table:
    if not shape.fields:
        return table.select([])
    arrays = []
    for name, field in zip(shape.fields, wanted, strict=True):
        try:
            arrays.append(table.column(name).cast(field.type))
        except pa.ArrowInvalid as error:
            raise LoadFailed(
                where=f"{shape.table}, column {name}",
                reason=f"a value does not fit {field.type}, the column's type when the query "
                f"began: {error}",
            ) from error
    return pa.Table.from_arrays(arrays, schema=wanted)


def _joined(parts: Sequence[pa.Table]) -> list[pa.RecordBatch]:
    whole: pa.Table = pa.concat_tables(parts).combine_chunks()
    batches: list[pa.RecordBatch] = whole.to_batches(max_chunksize=_MAX_BATCH_ROWS)
    return batches


def _weight(item: NativeFile | ChunkTask) -> int:
    return (item.length if isinstance(item, ChunkTask) else item.size) + _OPEN_COST_BYTES
