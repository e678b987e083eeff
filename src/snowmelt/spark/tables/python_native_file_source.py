"""Native files without a Hadoop file system, read in Python from Snowmelt's stores.

Spark needs a Hadoop file system for each URL scheme and has none for buckets. If the session has
one (for `s3:`, for example, by `spark.hadoop.fs.s3.impl`), Spark's own reader is used instead: it
skips row groups by their statistics, which this source does not.
"""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from snowmelt.schema.chunk_types import FIELD_ID
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.table.table_reader import read_native_field_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from snowmelt.spark.tables.spark_column_mapping import TableReadPlan

FORMAT = "snowmelt_native_files"
_FILES_OPTION = "files"
_MAX_BATCH_ROWS = 65_536
# A second or two of fetching and decoding.
_TARGET_PARTITION_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class NativeReadRequest:
    """Addresses of native files, and their fields to read, in order."""

    addresses: tuple[str, ...]
    fields: pa.Schema


class NativePartition(InputPartition):
    """What one Spark task reads."""

    def __init__(self, read: NativeReadRequest) -> None:
        self.read = read


class NativeSource(DataSource):
    """The data source that Spark knows under the name `snowmelt_native_files`; used by us alone."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the files that the option brings."""
        # Only bytes that this very process's driver has pickled come here.
        payload = base64.b85decode(self.options[_FILES_OPTION])
        return NativeReader(pickle.loads(payload), schema)  # noqa: S301


class NativeReader(DataSourceReader):
    """Reads partitions, each some files."""

    def __init__(self, reads: Sequence[NativeReadRequest], schema: StructType) -> None:
        self._reads = reads
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each group of files."""
        return [NativePartition(read) for read in self._reads]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition's files.

        Raises:
            FileNotFoundError: A file is gone: the query is older than files are kept.
            StageUnavailable: The store does not answer.
        """
        assert isinstance(partition, NativePartition)  # noqa: S101  Spark hands back our own
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for address in partition.read.addresses:
            for table in read_native_field_batches(address, partition.read.fields, _MAX_BATCH_ROWS):
                arrays = [
                    column.cast(field.type)
                    for column, field in zip(table.columns, schema, strict=True)
                ]
                yield from pa.Table.from_arrays(arrays, schema=schema).combine_chunks().to_batches()


def create_native_frame(spark: SparkSession, read: TableReadPlan, schema: StructType) -> DataFrame:
    """Return the chosen columns of a table's files, as `schema` names and types them."""
    fields = {int(part.metadata[FIELD_ID]): part for part in native_schema(read.schema)}
    wanted = pa.schema([fields[each.field_id] for each in read.columns])
    spark.dataSource.register(NativeSource)
    payload = base64.b85encode(pickle.dumps(_split_into_partitions(read, wanted))).decode()
    return spark.read.format(FORMAT).schema(schema).option(_FILES_OPTION, payload).load()


def _split_into_partitions(read: TableReadPlan, fields: pa.Schema) -> list[NativeReadRequest]:
    """Return the files in groups of about equal size, in the order of their chunks."""
    groups: list[list[str]] = [[]]
    size = 0
    for file in read.files:
        if groups[-1] and size + file.size > _TARGET_PARTITION_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file.path)
        size += file.size
    return [NativeReadRequest(tuple(group), fields) for group in groups]
