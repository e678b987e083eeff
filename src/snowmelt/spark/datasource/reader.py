"""Batch reads of the data source `snowmelt`: one snapshot, taken when Spark plans the query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from snowmelt.clock import SystemClock
from snowmelt.errors import LoadRefused
from snowmelt.schema.types import TableName
from snowmelt.spark.datasource.catalog_connection import LakeConnection
from snowmelt.spark.datasource.options import (
    check_options,
    make_read_shape,
    parse_integer_option,
    parse_where_option,
    requested_table,
    requested_time,
    to_spark_schema,
)
from snowmelt.spark.tables.partition import (
    ReadPartition,
    plan_partitions,
    read_partition,
)
from snowmelt.spark.tables.time_travel import take_snapshot_at_sequence, take_snapshot_at_time
from snowmelt.table.iceberg import NativeFile
from snowmelt.table.pruning import prune_chunks, prune_files
from snowmelt.table.snapshot import TableSnapshot, take_snapshots
from snowmelt.table.table_reader import make_chunk_read_tasks

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


READ_OPTIONS = frozenset({"where", "columns", "snapshot", "as_of"})


def take_table_snapshot(connection: LakeConnection, name: TableName) -> TableSnapshot:
    """Return a table as it is now.

    Raises:
        TableNotFound: It does not exist, or the role may not read it.
    """
    [found] = take_snapshots(connection.database, [name], clock=SystemClock(), role=connection.role)
    return found


def read_requested_schema(connection: LakeConnection, options: Mapping[str, str]) -> StructType:
    """Return the columns that options ask for.

    Raises:
        TableNotFound: The table does not exist, or the role may not read it.
        ColumnNotFound: A column does not exist.
    """
    name = requested_table(options)
    found = take_table_snapshot(connection, name)
    return to_spark_schema(found.table.schema, options.get("columns"), table=name)


def plan_pruned_read(
    connection: LakeConnection,
    snapshot: TableSnapshot,
    files: Sequence[NativeFile],
    where: str | None,
    schema: StructType,
) -> Sequence[InputPartition]:
    """Plan what tasks read of `files` and the chunks of a snapshot, pruned by the option `where`."""
    written = snapshot.table.schema
    predicates = parse_where_option(where, written)
    shape = make_read_shape(snapshot, schema, predicates)
    kept = prune_files(files, written, predicates)
    chunks = prune_chunks(snapshot.chunks, written, snapshot.schemas, predicates)
    # Without chunks no folder of keys is needed.
    tasks = (
        make_chunk_read_tasks(
            connection.database, connection.keyring, connection.stage, chunks, written
        )
        if chunks
        else []
    )
    return plan_partitions(shape, kept, tasks, cores=connection.cores)


class SnapshotReader(DataSourceReader):
    """Reads a table as it was when Spark planned; `schema` is what the session holds of it."""

    def __init__(
        self, connection: LakeConnection, options: Mapping[str, str], schema: StructType
    ) -> None:
        check_options(options, READ_OPTIONS, "reading")
        self._connection = connection
        self._name = requested_table(options)
        self._where, self._as_of = options.get("where"), options.get("as_of")
        self._sequence = parse_integer_option(options, "snapshot")
        if self._sequence is not None and self._as_of is not None:
            raise LoadRefused(what="snapshot and as_of", reason="give one of them")
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return what tasks read: pruned as a query's table would be.

        Raises:
            LoadRefused: What is asked for is no longer kept.
        """
        lake = self._connection
        snapshot = take_table_snapshot(lake, self._name)
        if self._sequence is not None:
            snapshot = take_snapshot_at_sequence(lake.database, snapshot, self._sequence)
        elif self._as_of is not None:
            snapshot = take_snapshot_at_time(lake.database, snapshot, requested_time(self._as_of))
        files = snapshot.list_native_files()
        return plan_pruned_read(lake, snapshot, files, self._where, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        assert isinstance(partition, ReadPartition)  # noqa: S101  Spark hands back our own
        return read_partition(partition, self._schema)
