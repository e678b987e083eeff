"""Native rows with their positions, for statements that change rows.

A statement finds the positions of its rows with a query, and rewrites each file that has such a
row. Unchanged rows are copied exactly, because they are not converted to Spark values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from snowmelt.errors import LoadRefused
from snowmelt.loaders.arrow_conversion import cast_column, supply_companion
from snowmelt.loaders.row_and_reject_files import FileSpool, RowSpool
from snowmelt.schema.conversion.arrow_to_python import parse_arrow_zone
from snowmelt.schema.conversion.default_values import make_default_native_arrays
from snowmelt.schema.iceberg_table_form import native_fields, native_schema
from snowmelt.schema.types import TableSchema
from snowmelt.spark.datasource.write_task import WritePlan, decode_variant_columns
from snowmelt.spark.tables.spark_column_mapping import VisibleColumn
from snowmelt.spark.task_job import create_payload_frame, load_payload
from snowmelt.table.native_file import read_native_field_batches

if TYPE_CHECKING:
    from snowmelt.table.native_file_writer import WrittenFile

FILE_COLUMN, ROW_COLUMN, ACTION_COLUMN = "__snowmelt_file", "__snowmelt_row", "__snowmelt_action"
VALUE_PREFIX = "__snowmelt_value_"
_BATCH_ROWS = 65_536


class _FilePartition(InputPartition):
    """Files that one task reads."""

    def __init__(self, files: Sequence[str], fields: pa.Schema) -> None:
        self.files = tuple(files)
        self.fields = fields


class PositionedRowSource(DataSource):
    """Internal Spark data source `snowmelt_positions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "snowmelt_positions"

    def reader(self, schema: st.StructType) -> DataSourceReader:
        """Return the reader of the partitions in the payload option."""
        return _PositionedRowReader(load_payload(self), schema)


class _PositionedRowReader(DataSourceReader):
    def __init__(self, partitions: Sequence[_FilePartition], schema: st.StructType) -> None:
        self._partitions = partitions
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _FilePartition)  # noqa: S101  always our own partition
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        for path in partition.files:
            start = 0
            for table in read_native_field_batches(path, partition.fields, _BATCH_ROWS):
                rows = table.num_rows
                arrays = [*table.columns, pa.repeat(path, rows)]
                arrays.append(pa.array(np.arange(start, start + rows)))
                start += rows
                cast = [a.cast(field.type) for a, field in zip(arrays, wanted, strict=True)]
                yield from pa.Table.from_arrays(cast, schema=wanted).combine_chunks().to_batches()


def create_positioned_frame(
    spark: SparkSession,
    columns: Sequence[VisibleColumn],
    paths: Sequence[str],
    schema: TableSchema,
    partition_count: int,
) -> DataFrame:
    """Return a DataFrame of native files, with the file and the row number of each row."""
    whole = native_schema(schema)
    fields = pa.schema([whole.field(column.native_name) for column in columns])
    shares = [list(paths[at::partition_count]) for at in range(min(partition_count, len(paths)))]
    partitions = [_FilePartition(share, fields) for share in shares or [[]]]
    positions = [
        st.StructField(FILE_COLUMN, st.StringType()),
        st.StructField(ROW_COLUMN, st.LongType()),
    ]
    spark_schema = st.StructType(
        [*(st.StructField(each.name, each.raw_type) for each in columns), *positions]
    )
    frame = create_payload_frame(spark, PositionedRowSource, partitions, spark_schema)
    visible = [each.expression for each in columns]
    return frame.selectExpr(*visible, FILE_COLUMN, ROW_COLUMN)


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """Plan to rewrite files. Picklable.

    `assignments` maps the number of an action to the columns and companions that it sets, with the index of
    each value, or None for the default of the column. An action without an entry deletes the row.
    """

    write: WritePlan
    assignments: Mapping[int, Mapping[str, int | None]]
    statement: str


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A file that a statement changed, and the files that replace it. Picklable."""

    path: str
    written: tuple[WrittenFile, ...]
    updated: int
    deleted: int


def rewrite_file(plan: RewritePlan, changes: pa.Table) -> RewrittenFile:
    """Rewrite one file. `changes` has the positions of rows, their actions and their new values.

    Raises:
        LoadRefused: If two changes concern one row.
        LoadFailed: If a value does not fit its column.
    """
    path = str(changes.column(FILE_COLUMN)[0])
    changes = changes.sort_by(ROW_COLUMN)
    rows = changes.column(ROW_COLUMN).to_numpy()
    if len(rows) > 1 and (np.diff(rows) == 0).any():
        raise LoadRefused(
            what=plan.statement, reason="a row of the table matches more than one row of the source"
        )
    actions = changes.column(ACTION_COLUMN).to_numpy()
    deletes = ~np.isin(actions, list(plan.assignments))
    values = _convert_values(plan, changes, actions)
    write = plan.write
    spool = FileSpool(write.warehouse_url, write.folder, "rows", native_schema(write.schema))
    output = RowSpool(spool, write.schema, write.cluster_by)
    start = 0
    try:
        for batch in read_native_field_batches(path, native_schema(write.schema), _BATCH_ROWS):
            end = start + batch.num_rows
            low, high = np.searchsorted(rows, [start, end])
            output.add(_change_batch(batch, rows[low:high] - start, deletes[low:high], values, low))
            start = end
        written = output.finish()
    finally:
        spool.abort_current_file()
    deleted = int(deletes.sum())
    return RewrittenFile(path, written, len(rows) - deleted, deleted)


def _convert_values(
    plan: RewritePlan, changes: pa.Table, actions: Any
) -> list[tuple[str, Any, pa.Array]]:
    """Return, for each assignment, the native field, the mask of its changes, and their values."""
    schema, zone = plan.write.schema, parse_arrow_zone(plan.write.zone or "UTC")
    assert zone is not None  # noqa: S101  the session's zone was checked by the driver
    batch = decode_variant_columns(changes.combine_chunks().to_batches()[0])

    def read(mask: Any, at: int) -> pa.Array:
        return batch.column(f"{VALUE_PREFIX}{at}").filter(pa.array(mask))

    found = []
    for action, columns in plan.assignments.items():
        mask = actions == action
        for name, at in columns.items():
            column = schema.column(name)
            if column is None:  # A companion: it is set together with its column.
                continue
            fields = native_fields(column)
            if at is None:
                now = plan.write.started_at
                parts = make_default_native_arrays(column, int(mask.sum()), now)
            else:
                parts = cast_column(column, read(mask, at), zone)
            for place, field in enumerate(fields[1:], start=1):
                index = columns.get(field.name)
                if index is not None:
                    given = read(mask, index)
                    supply_companion(column, field.name, parts, place, given)
            found += [(field.name, mask, part) for field, part in zip(fields, parts, strict=True)]
    return found


def _change_batch(
    batch: pa.Table,
    rows: Any,
    deletes: Any,
    values: Sequence[tuple[str, Any, pa.Array]],
    first: int,
) -> pa.Table:
    """Apply changes to a batch. `rows` has the index of each changed row in the batch."""
    if not len(rows):
        return batch
    for name, mask, array in values:
        chosen = mask[first : first + len(rows)]
        if not chosen.any():
            continue
        before = int(mask[:first].sum())
        part = array.slice(before, int(chosen.sum()))
        place = np.zeros(batch.num_rows, bool)
        place[rows[chosen]] = True
        at = batch.schema.get_field_index(name)
        column = batch.column(at).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else column
        replaced = pc.replace_with_mask(column, pa.array(place), part.cast(column.type))
        batch = batch.set_column(at, batch.schema.field(at), replaced)
    kept = np.ones(batch.num_rows, bool)
    kept[rows[deletes]] = False
    return batch.filter(pa.array(kept))
