"""Chunks and native files of a table as a Python data source: partitions in, Arrow batches out.

Spark reads native files itself where it has a Hadoop file system for their addresses, which it has
not for buckets. Its reader skips row groups by their statistics, which this source does not.

It must not implement `pushFilters`: Spark 4.3.0 keeps a pushed filter for later queries on the same
DataFrame, and so loses rows. Pruning happens before the source is created. The partitions are passed
in an option that plans and event logs do not show. Each Spark task receives only its own chunks,
with the keys of its own blobs.
"""

from __future__ import annotations

import base64
import pickle
import threading
import weakref
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from snowmelt.spark.tables.partition import ReadPartition, read_partition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "snowmelt_chunks"
# Redacted by Spark wherever options are shown: it matches `spark.redaction.regex`.
_PARTITIONS_OPTION = "secret_partitions"

_registered_sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_registration_lock = threading.Lock()


class PartitionDataSource(DataSource):
    """The data source that Spark knows under the name `snowmelt_chunks`; used by us alone."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the partitions that the option brings."""
        # Only bytes that this very process's driver has pickled come here.
        payload = base64.b85decode(self.options[_PARTITIONS_OPTION])
        return PartitionSourceReader(pickle.loads(payload), schema)  # noqa: S301


class PartitionSourceReader(DataSourceReader):
    """Reads partitions, each some files and chunks."""

    def __init__(self, partitions: Sequence[ReadPartition], schema: StructType) -> None:
        self._partitions = partitions
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions."""
        return self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        assert isinstance(partition, ReadPartition)  # noqa: S101  Spark hands back our own
        return read_partition(partition, self._schema)


def create_partition_frame(
    spark: SparkSession, partitions: Sequence[ReadPartition], schema: StructType
) -> DataFrame:
    """Return a DataFrame of partitions; `schema` names and types the native fields, all nullable."""
    with _registration_lock:
        if spark not in _registered_sessions:
            spark.dataSource.register(PartitionDataSource)
            _registered_sessions.add(spark)
    payload = base64.b85encode(pickle.dumps(partitions)).decode()
    return spark.read.format(FORMAT).schema(schema).option(_PARTITIONS_OPTION, payload).load()
