"""The data source `snowmelt`: tables for `spark.read`, `df.write`, `readStream`, `writeStream`.

It must not implement `pushFilters`: Spark 4.3.0 reuses a pushed filter for later queries on the same
DataFrame, which loses rows. Use the option `where` instead.

Spark starts a Python process for each step of planning a query: to look up the format, for its schema,
for a reader or writer, for a commit. Methods import only what their step needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from snowmelt.spark.datasource.catalog_connection import LakeConnection, resolve_connection
from snowmelt.spark.datasource.options import FORMAT, READ_OPTIONS, STREAM_OPTIONS, check_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TableSource(DataSource):
    """Spark data source `snowmelt`. `lake` is the connection of the session's `Snowmelt`, or None."""

    lake: ClassVar[LakeConnection | None] = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the table's columns.

        Raises:
            TableNotFound: If the table does not exist or the role lacks privileges on it.
            LoadRefused: If an option is unknown.
        """
        from snowmelt.spark.datasource.reader import read_requested_schema

        # `load()` does not report whether a stream is read, so accept the options of batch and
        # stream reads. The first action creates the reader, which checks its own options.
        check_options(self.options, READ_OPTIONS | STREAM_OPTIONS, "reading")
        return read_requested_schema(self._resolve_connection(), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader of the table in the options."""
        from snowmelt.spark.datasource.reader import SnapshotReader

        return SnapshotReader(self._resolve_connection(), self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer to the table in the options.

        Raises:
            Unsupported: If the mode would overwrite rows.
            TableNotFound: If the table does not exist or the role lacks INSERT on it.
            LoadRefused: If the columns do not match the table's.
        """
        from snowmelt.spark.datasource.writer import TableWriter

        return TableWriter(self._resolve_connection(), self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's
        """Return a writer of a stream's batches. Raises the same errors as `writer`."""
        from snowmelt.spark.datasource.writer import TableStreamWriter

        return TableStreamWriter(
            self._resolve_connection(), self.options, schema, overwrite=overwrite
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's
        """Return a streaming reader of the rows added to the table."""
        from snowmelt.spark.datasource.stream_reader import TableStreamReader

        return TableStreamReader(self._resolve_connection(), self.options, schema)

    def _resolve_connection(self) -> LakeConnection:
        return resolve_connection(self.options, self.lake)


def register(spark: SparkSession, lake: LakeConnection | None = None) -> None:
    """Register the format with a session. `lake` applies if the options have no catalog."""
    if lake is None:
        spark.dataSource.register(TableSource)
        return
    # A subclass keeps the connection out of query plans, because Spark pickles the whole class.
    bound = type(TableSource.__name__, (TableSource,), {"lake": lake})
    spark.dataSource.register(bound)
