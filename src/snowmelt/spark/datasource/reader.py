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
    READ_OPTIONS,
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
from snowmelt.table.pruning import prune_chunks, prune_files
from snowmelt.table.snapshot import TableSnapshot, take_snapshots
from snowmelt.table.table_reader import make_chunk_read_tasks

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from snowmelt.table.native_file import NativeFile


def take_table_snapshot(connection: LakeConnection, name: TableName) -> TableSnapshot:
    """Return the current snapshot of a table.

    Raises:
        TableNotFound: If the table does not exist or the role lacks privileges on it.
    """
    [found] = take_snapshots(connection.database, [name], clock=SystemClock(), role=connection.role)
    return found


def take_requested_snapshot(
    connection: LakeConnection, options: Mapping[str, str]
) -> TableSnapshot:
    """Return the snapshot that the options select: an earlier one, or the current one.

    Raises:
        TableNotFound: If the table does not exist or the role lacks privileges on it.
        LoadRefused: If the options select two snapshots, or one that was deleted after its retention.
    """
    as_of, sequence = options.get("as_of"), parse_integer_option(options, "snapshot")
    if sequence is not None and as_of is not None:
        raise LoadRefused(what="snapshot and as_of", reason="give one of them")
    snapshot = take_table_snapshot(connection, requested_table(options))
    if sequence is None and as_of is None:
        return snapshot
    # Import PyIceberg only for time travel: Spark requests the schema in a process of its own.
    from snowmelt.spark.tables.time_travel import take_snapshot_at_sequence, take_snapshot_at_time

    if sequence is not None:
        return take_snapshot_at_sequence(connection.database, snapshot, sequence)
    return take_snapshot_at_time(connection.database, snapshot, requested_time(as_of or ""))


def read_requested_schema(connection: LakeConnection, options: Mapping[str, str]) -> StructType:
    """Return the Spark schema of the columns that the options select.

    Raises:
        TableNotFound: If the table does not exist or the role lacks privileges on it.
        ColumnNotFound: If a column does not exist.
        LoadRefused: If the options select two snapshots, or one that was deleted after its retention.
    """
    found = take_requested_snapshot(connection, options)
    return to_spark_schema(found.table.schema, options.get("columns"), table=found.table.name)


def plan_pruned_read(
    connection: LakeConnection,
    snapshot: TableSnapshot,
    files: Sequence[NativeFile],
    where: str | None,
    schema: StructType,
) -> Sequence[InputPartition]:
    """Plan the partitions of `files` and of a snapshot's chunks, pruned by the option `where`."""
    written = snapshot.table.schema
    predicates = parse_where_option(where, written)
    shape = make_read_shape(snapshot, schema, predicates)
    kept = prune_files(files, written, predicates)
    chunks = prune_chunks(snapshot.chunks, written, snapshot.schemas, predicates)
    # Open the keys only if there are chunks: without chunks, no key folder is needed.
    tasks = (
        make_chunk_read_tasks(
            connection.database, connection.keyring, connection.stage, chunks, written
        )
        if chunks
        else []
    )
    return plan_partitions(shape, kept, tasks, cores=connection.cores)


class SnapshotReader(DataSourceReader):
    """Reader of one table snapshot. `schema` is the Spark schema that the session requested."""

    def __init__(
        self, connection: LakeConnection, options: Mapping[str, str], schema: StructType
    ) -> None:
        check_options(options, READ_OPTIONS, "reading")
        self._connection, self._options, self._schema = connection, options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Take the snapshot and return its partitions, pruned by the option `where`.

        Raises:
            LoadRefused: If the requested snapshot was deleted after its retention.
        """
        snapshot = take_requested_snapshot(self._connection, self._options)
        files = snapshot.list_native_files()
        where = self._options.get("where")
        return plan_pruned_read(self._connection, snapshot, files, where, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        assert isinstance(partition, ReadPartition)  # noqa: S101  always our own partition
        return read_partition(partition, self._schema)
