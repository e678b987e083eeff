"""Chunks and native files of a table as a Python data source: partitions in, Arrow batches out.

Spark reads native files itself where it has a Hadoop file system for their addresses, which it has
not for buckets. Its reader skips row groups by their statistics, which this source does not.

It must not implement `pushFilters`: Spark 4.3.0 keeps a pushed filter for later queries on the same
DataFrame, and so loses rows. Pruning happens before the source is created. The partitions are passed
in an option that plans and event logs do not show. Each Spark task receives only its own chunks,
with the keys of its own blobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from snowmelt.spark.tables.partition import ReadPartition, read_partition
from snowmelt.spark.task_job import create_payload_frame, load_payload

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PartitionDataSource(DataSource):
    """The data source that Spark knows under the name `snowmelt_chunks`; used by us alone."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "snowmelt_chunks"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the partitions that the option brings."""
        return PartitionSourceReader(load_payload(self), schema)


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
    return create_payload_frame(spark, PartitionDataSource, partitions, schema)
