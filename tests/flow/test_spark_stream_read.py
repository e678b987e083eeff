"""`readStream`: each row once, even if chunks and files are migrated or deleted between batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from fixtures.chunks import NUMBERS, Lakehouse, numbers
from snowmelt.clock import SystemClock
from snowmelt.spark.format import register
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from snowmelt.spark.snowmelt_session import Snowmelt


pytestmark = pytest.mark.spark
TABLE = "demo.public.numbers"


class Stream:
    """A stream from the table to a folder, which stops after the current rows."""

    def __init__(self, spark: SparkSession, lakehouse: Lakehouse, folder: Path) -> None:
        self.spark, self.lakehouse, self.folder = spark, lakehouse, folder

    def run(self, **options: str) -> Any:
        """Read the current rows in a query that restarts from its checkpoint. Return the progress."""
        done = []
        while True:
            query = self.start(**options)
            try:
                assert query.awaitTermination(300)
            except StreamingQueryException as error:
                # Spark waits only ten seconds for a source's process to start. A loaded machine may
                # need more.
                if "failed to connect back" not in str(error):
                    raise
                done += self.batches(query)
                continue
            return done + self.batches(query)

    def start(self, **options: Any) -> StreamingQuery:
        reader = self.spark.readStream.format("snowmelt").option(
            "data_dir", str(self.lakehouse.folder)
        )
        frame = reader.options(table=TABLE, **options).load()
        return (
            frame.writeStream.format("parquet")
            .option("path", str(self.folder / "out"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    @staticmethod
    def batches(query: StreamingQuery) -> list[Any]:
        return [batch.numInputRows for batch in query.recentProgress if batch.numInputRows]

    def read(self) -> list[Any]:
        return sorted(
            int(row.N) for row in self.spark.read.parquet(str(self.folder / "out")).collect()
        )


@pytest.fixture
def stream(spark: SparkSession, lakehouse: Lakehouse, tmp_path: Path) -> Stream:
    register(spark)
    lakehouse.create()
    return Stream(spark, lakehouse, tmp_path / "stream")


def load(lakehouse: Lakehouse, lake: Snowmelt, first: int, count: int) -> None:
    lake.sql(f"INSERT INTO {TABLE} SELECT id, 'loaded' FROM range({first}, {first + count})")


def join_files(lakehouse: Lakehouse) -> None:
    settings = MaintenanceSettings(lakehouse.warehouse.url, min_files=2)
    assert compact(lakehouse.database, NUMBERS, settings, clock=SystemClock()) is not None


def test_rows_are_read_once_across_migration_loads_and_compaction(
    lakehouse: Lakehouse, lake: Snowmelt, stream: Stream
) -> None:
    lakehouse.put(numbers(0, 10))
    lakehouse.migrate()
    load(lakehouse, lake, 1000, 5)
    lakehouse.put(numbers(10, 10))
    assert sum(stream.run()) == 25

    lakehouse.put(numbers(20, 10))
    lakehouse.migrate()
    load(lakehouse, lake, 2000, 5)
    join_files(lakehouse)
    lakehouse.put(numbers(30, 10))
    stream.run()
    assert stream.read() == [*range(40), *range(1000, 1005), *range(2000, 2005)]

    # The chunks are deleted, and their rows are in one file with older rows.
    lakehouse.migrate()
    lakehouse.put(numbers(40, 10))
    lakehouse.migrate()
    lakehouse.collect(retention_s=0.0)
    stream.run()
    join_files(lakehouse)
    stream.run()
    assert stream.read() == [*range(50), *range(1000, 1005), *range(2000, 2005)]


def test_limits_cut_batches_without_losing_or_doubling(
    lakehouse: Lakehouse, lake: Snowmelt, stream: Stream
) -> None:
    for start in range(0, 30, 10):
        lakehouse.put(numbers(start, 10))
        lakehouse.migrate()
    for start in range(30, 60, 10):
        lakehouse.put(numbers(start, 10))
    assert stream.run(maxChunksPerTrigger="2") == [20, 20, 20]
    load(lakehouse, lake, 100, 15)
    for start in range(60, 90, 10):
        lakehouse.put(numbers(start, 10))
    assert stream.run(maxRowsPerTrigger="12") == [15, 10, 10, 10]
    assert stream.read() == [*range(90), *range(100, 115)]


def test_a_stream_may_begin_at_the_end_or_at_a_commit(
    lakehouse: Lakehouse, spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    for start in range(0, 30, 10):
        lakehouse.put(numbers(start, 10))
    lakehouse.migrate()
    later = Stream(spark, lakehouse, tmp_path / "later")
    assert stream.run(startingOffset="latest") == []
    lakehouse.put(numbers(30, 10))
    stream.run(startingOffset="latest")
    later.run(startingOffset="2")
    assert stream.read() == list(range(30, 40))
    assert later.read() == list(range(20, 40))


def test_what_cannot_be_streamed_is_told_in_a_sentence(
    lakehouse: Lakehouse, spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    lakehouse.put(numbers(0, 10))
    assert stream.run(startingOffset="0") == [10]
    lakehouse.drop()
    lakehouse.create(replace=True)
    with pytest.raises(StreamingQueryException, match="Start the stream with a new checkpoint"):
        stream.run()
    with pytest.raises(PySparkException, match="startingOffset = soon: expected earliest"):
        Stream(spark, lakehouse, tmp_path / "never").run(startingOffset="soon")
