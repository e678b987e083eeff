"""Reading by the data source `snowmelt`: one snapshot, planned where Spark plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from snowmelt.clock import SystemClock
from snowmelt.errors import LoadRefused
from snowmelt.spark.datasource.options import (
    check_options,
    conditions,
    moment_asked,
    number_asked,
    pruned,
    shape_of,
    spark_schema,
    table_asked,
)
from snowmelt.spark.datasource.partition import Part, divided, light, read_part
from snowmelt.spark.tables.time_travel import at_sequence, at_time
from snowmelt.table.snapshot import take_snapshots
from snowmelt.table.table_reader import make_chunk_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from snowmelt.schema.types import TableName
    from snowmelt.spark.datasource.connection import Connection
    from snowmelt.table.snapshot import TableSnapshot

READ_OPTIONS = frozenset({"where", "columns", "snapshot", "as_of"})


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a read is of."""

    table: TableName
    where: str | None
    sequence: int | None
    as_of: str | None


def table_snapshot(connection: Connection, name: TableName) -> TableSnapshot:
    """Return a table as it is now.

    Raises:
        TableNotFound: It does not exist, or the role may not read it.
    """
    [found] = take_snapshots(connection.database, [name], clock=SystemClock(), role=connection.role)
    return found


def schema_asked(connection: Connection, options: Mapping[str, str]) -> StructType:
    """Return the columns that options ask for.

    Raises:
        TableNotFound: The table does not exist, or the role may not read it.
        ColumnNotFound: A column does not exist.
    """
    name = table_asked(options)
    found = table_snapshot(connection, name)
    return spark_schema(found.table.schema, options.get("columns"), table=name)


class TableReader(DataSourceReader):
    """Reads a table as it was when Spark planned; `schema` is what the session holds of it."""

    def __init__(
        self, connection: Connection, options: Mapping[str, str], schema: StructType
    ) -> None:
        check_options(options, READ_OPTIONS, "reading")
        self._connection = connection
        self._asked = _Asked(
            table_asked(options),
            options.get("where"),
            number_asked(options, "snapshot"),
            options.get("as_of"),
        )
        if self._asked.sequence is not None and self._asked.as_of is not None:
            raise LoadRefused(what="snapshot and as_of", reason="give one of them")
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return what tasks read: pruned as a query's table would be.

        Raises:
            LoadRefused: What is asked for is no longer kept.
        """
        lake, asked = self._connection, self._asked
        snapshot = table_snapshot(lake, asked.table)
        if asked.sequence is not None:
            snapshot = at_sequence(lake.database, snapshot, asked.sequence)
        elif asked.as_of is not None:
            snapshot = at_time(lake.database, snapshot, moment_asked(asked.as_of))
        found = conditions(asked.where, snapshot.table.schema)
        shape = shape_of(snapshot, self._schema, found)
        left = pruned(snapshot, snapshot.list_native_files(), snapshot.chunks, found)
        tasks = (
            make_chunk_tasks(
                lake.database, lake.keyring, lake.stage, left.chunks, snapshot.table.schema
            )
            if left.chunks
            else []
        )
        return list(divided(shape, list(map(light, left.files)), tasks, cores=lake.cores))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        assert isinstance(partition, Part)  # noqa: S101  Spark hands back our own
        return read_part(partition, self._schema)
