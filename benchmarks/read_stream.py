"""Benchmark of micro-batches of `readStream`: duration, and age of the rows at the end.

uv run python benchmarks/read_stream.py [--ticks 20] [--rows 5000]

Two of Spark's sources run in the same session for comparison: the file source on Parquet files of
the same rows, and the rate source, which reads nothing. The rows of a tick are available
(committed, or in a file with its final name) before the measurement starts.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from harness import Running
from report import Report
from workload import DDL, SCHEMA, rows

from snowmelt.spark.snowmelt_session import Snowmelt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TABLE = "bench.public.stream"
_UNMEASURED = 3


def _started(frame: DataFrame, folder: Path) -> StreamingQuery:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
    return writer.start()


def _read(query: StreamingQuery) -> int:
    return sum(each.numInputRows for each in query.recentProgress)


def _durations(query: StreamingQuery) -> list[int]:
    """Return the milliseconds of each batch with rows, except the first batches."""
    found = [each for each in query.recentProgress if each.numInputRows]
    return [each.durationMs["triggerExecution"] for each in found][_UNMEASURED:]


def _fed(query: StreamingQuery, ticks: int, count: int, feed: Callable[[int], None]) -> list[float]:
    """Add rows tick by tick. Return the seconds until the batch with each tick ended."""
    waited = []
    for tick in range(ticks):
        feed(tick)
        began = time.perf_counter()
        while _read(query) < (tick + 1) * count:
            if query.exception() is not None:
                raise SystemExit(str(query.exception()))
            time.sleep(0.005)
        waited.append(time.perf_counter() - began)
    return waited[_UNMEASURED:]


def _add(report: Report, name: str, durations: list[int], waited: list[float] | None) -> None:
    ages = (
        ("", "") if waited is None else (f"{statistics.median(waited):.2f}", f"{max(waited):.2f}")
    )
    report.add(
        name,
        len(durations),
        f"{statistics.median(durations) / 1000:.2f}",
        f"{max(durations) / 1000:.2f}",
        *ages,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=20)
    parser.add_argument("--rows", type=int, default=5000)
    options = parser.parse_args()
    report = Report(
        "read_stream",
        "Micro-batches of readStream",
        ("source", "batches", "median s", "most s", "rows' age, median s", "age, most s"),
    )
    parts = [rows(options.rows, seed=tick) for tick in range(options.ticks)]
    with Running() as running, running.client(max_client_lag=dt.timedelta(minutes=10)) as client:
        running.execute(f"CREATE TABLE {TABLE} ({DDL})")
        channel = client.open_channel("c", table=TABLE)
        lake = Snowmelt.local(running.folder)
        spark, house = lake.spark, running.folder

        def streamed(tick: int) -> None:
            channel.insert_rows(parts[tick])
            channel.flush()

        frame = spark.readStream.format("snowmelt").option("table", TABLE).load()
        query = _started(frame, house / "checkpoint-1")
        waited = _fed(query, options.ticks, options.rows, streamed)
        _add(report, "snowmelt", _durations(query), waited)
        query.stop()

        files = house / "files"
        files.mkdir()

        def filed(tick: int) -> None:
            path = files / f".{tick}.parquet"
            pq.write_table(pa.Table.from_pylist(parts[tick], SCHEMA), path)
            path.rename(files / f"{tick}.parquet")

        pq.write_table(SCHEMA.empty_table(), house / "empty.parquet")
        schema = spark.read.parquet(str(house / "empty.parquet")).schema
        query = _started(
            spark.readStream.schema(schema).parquet(str(files)), house / "checkpoint-2"
        )
        waited = _fed(query, options.ticks, options.rows, filed)
        _add(report, "Parquet files, Spark", _durations(query), waited)
        query.stop()

        rate = spark.readStream.format("rate").option("rowsPerSecond", options.rows).load()
        query = _started(rate, house / "checkpoint-3")
        while len(_durations(query)) < options.ticks // 2:
            time.sleep(0.1)
        _add(report, "rate, Spark", _durations(query), None)
        query.stop()
    report.remark(
        f"{options.ticks} ticks of {options.rows:,} rows, sink noop, a batch as soon as there are "
        f"rows; the first {_UNMEASURED} are not counted. local[2], the service on the same machine."
    )
    report.keep()


if __name__ == "__main__":
    main()
