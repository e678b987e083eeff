"""The data source `snowmelt`: tables for `spark.read`, `df.write`, `readStream`, `writeStream`.

It must not implement `pushFilters`: Spark 4.3.0 keeps a pushed filter for later queries on the same
DataFrame, and so loses rows. Use the option `where` instead.
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
from snowmelt.spark.datasource.options import FORMAT, check_options
from snowmelt.spark.datasource.reader import READ_OPTIONS, SnapshotReader, read_requested_schema
from snowmelt.spark.datasource.stream_reader import STREAM_OPTIONS, TableStreamReader
from snowmelt.spark.datasource.writer import TableStreamWriter, TableWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TableSource(DataSource):
    """What Spark knows as the format `snowmelt`; `lake` is that of the session's `Snowmelt`."""

    lake: ClassVar[LakeConnection | None] = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the table's columns.

        Raises:
            TableNotFound: It does not exist, or the role may not read it.
            LoadRefused: There is no such option.
        """
        # Asked by `load()`, which does not say whether a stream is read: the reader, which is made
        # by the first action, knows which of them are its own.
        check_options(self.options, READ_OPTIONS | STREAM_OPTIONS, "reading")
        return read_requested_schema(self._resolve_connection(), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the table that options name."""
        return SnapshotReader(self._resolve_connection(), self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer to the table that options name.

        Raises:
            Unsupported: Rows would be overwritten.
            TableNotFound: It does not exist, or the role may not insert into it.
            LoadRefused: The columns are not the table's.
        """
        return TableWriter(self._resolve_connection(), self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's
        """Return the writer of a stream's batches; errors are those of `writer`."""
        return TableStreamWriter(
            self._resolve_connection(), self.options, schema, overwrite=overwrite
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's
        """Return the reader of the table as it grows."""
        return TableStreamReader(self._resolve_connection(), self.options, schema)

    def _resolve_connection(self) -> LakeConnection:
        return resolve_connection(self.options, self.lake)


def register(spark: SparkSession, lake: LakeConnection | None = None) -> None:
    """Make the format known to a session; `lake` is meant where options name none."""
    if lake is None:
        spark.dataSource.register(TableSource)
        return
    # A class of its own, which goes to Spark as a whole: what it knows is in no plan.
    bound = type(TableSource.__name__, (TableSource,), {"lake": lake})
    spark.dataSource.register(bound)
