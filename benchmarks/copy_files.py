"""Benchmark of loading and reading raw files on Spark, compared with Spark's own reader and writer.

uv run python benchmarks/copy_files.py [--megabytes 200] [--rounds 3]

All variants run in turns on two cores; the best round of each counts. The baseline uses only Arrow:
its CSV reader (after `isal` for gzip) in two processes, which write Parquet with Snowmelt's
settings, without Spark, commit or `fsync`. For DataFrames, the baseline is a minimal Python data
source that passes Arrow's batches to Spark.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import multiprocessing
import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from report import Report

from snowmelt.spark import Snowmelt
from snowmelt.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

COLUMNS = ("what", "Spark MB/s", "bare MB/s", "ours MB/s", "ours to bare", "ratio", "goal")
_SCHEMA = (
    "id bigint, customer int, amount double, day date, at timestamp_ntz, name string, "
    "city string, flag boolean"
)
_TABLE = (
    "id NUMBER(18,0), customer NUMBER(9,0), amount FLOAT, day DATE, at TIMESTAMP_NTZ(6), "
    "name VARCHAR(40), city VARCHAR(40), flag BOOLEAN"
)
_CITIES = np.array(["Berlin", "Paris", "Lima", "Quito", "Osaka", "Accra", "Turin", "Bergen"])
_BYTES_A_ROW = 78
# Rows per row group in Snowmelt's files.
_GROUP_BYTES = 5 * 1024 * 1024
_NATIVE = pa.schema(
    {
        "id": pa.decimal128(18, 0),
        "customer": pa.decimal128(9, 0),
        "amount": pa.float64(),
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "name": pa.string(),
        "city": pa.string(),
        "flag": pa.bool_(),
    }
)


def open_by_arrow(path: str, schema: pa.Schema, block_bytes: int) -> pc.CSVStreamingReader:
    """Read a file with Arrow's CSV reader and these types."""
    from isal import igzip

    return pc.open_csv(
        cast("Any", igzip).open(path, "rb") if path.endswith(".gz") else path,
        pc.ReadOptions(column_names=schema.names, use_threads=False, block_size=block_bytes),
        pc.ParseOptions(quote_char=False),
        pc.ConvertOptions(column_types=schema, strings_can_be_null=True),
    )


def copy_by_arrow(path: str) -> None:
    """Convert a file to Parquet with the settings of native files."""
    with pq.ParquetWriter(
        f"{path}.parquet",
        _NATIVE,
        use_dictionary=["day", "city"],
        compression="zstd",
        compression_level=1,
        store_schema=False,
        store_decimal_as_integer=True,
        write_page_index=True,
    ) as writer:
        for batch in open_by_arrow(path, _NATIVE, _GROUP_BYTES):
            writer.write_batch(batch)


class BareReader(DataSourceReader):
    """Reader of the files that match a pattern, one file per partition.

    If `rows` is set, it returns at most this number of rows.
    """

    def __init__(self, pattern: str, rows: int, schema: StructType) -> None:
        self._pattern = pattern
        self._rows = rows
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in Path("/").glob(self._pattern[1:])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batches: Iterator[pa.RecordBatch] = iter(
            open_by_arrow(partition.value, self._schema, 1 << 20)
        )
        if not self._rows:
            return batches
        first = next(batches)
        return itertools.repeat(first, self._rows // first.num_rows)


class BareSource(DataSource):
    """Minimal Python data source for files."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def reader(self, schema: StructType) -> DataSourceReader:
        return BareReader(self.options["path"], int(self.options.get("rows", 0)), schema)


def make(folder: Path, megabytes: int) -> None:
    """Write two uncompressed CSV files and their gzip copies."""
    for name in ("plain", "gz"):
        (folder / name).mkdir()
    for part in range(2):
        rows = megabytes * 500_000 // _BYTES_A_ROW
        draw = np.random.default_rng(part)
        at = draw.integers(1_600_000_000, 1_700_000_000, rows)
        table = pa.table(
            {
                "id": np.arange(rows) + part * rows,
                "customer": draw.integers(0, 1_000_000, rows),
                "amount": np.round(draw.random(rows) * 1000, 2),
                "day": pa.array((at // 86400).astype("int32")).cast(pa.date32()),
                "at": pa.array(at * 1_000_000).cast(pa.timestamp("us")),
                "name": pc_names(draw, rows),
                "city": pa.array(_CITIES[draw.integers(0, len(_CITIES), rows)]),
                "flag": pa.array(draw.random(rows) < 0.5),
            }
        )
        path = folder / "plain" / f"{part}.csv"
        options = pc.WriteOptions(include_header=False, quoting_style="none")
        pc.write_csv(table, path, options)
        with path.open("rb") as plain, gzip.open(folder / "gz" / f"{part}.csv.gz", "wb", 6) as out:
            shutil.copyfileobj(plain, out, 1 << 20)


def pc_names(draw: np.random.Generator, rows: int) -> pa.Array:
    """Return names, few of which repeat."""
    numbers = pa.array(draw.integers(0, 10**9, rows)).cast(pa.string())
    return pa.compute.binary_join_element_wise("customer ", numbers, "")


def best(rounds: int, *ways: Callable[[], object]) -> list[float]:
    """Return the seconds of each variant's best round. Variants run in turns."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds + 1):
        for way, found in zip(ways, seconds, strict=True):
            began = time.perf_counter()
            way()
            found.append(time.perf_counter() - began)
    # The first round is a warm-up.
    return [min(found[1:]) for found in seconds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    report = Report("copy_files", "Raw files on Spark: ours against Spark's own", COLUMNS)
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as name:
        folder = Path(name)
        make(folder, options.megabytes)
        spark = local_session("copy-files")
        spark.dataSource.register(BareSource)
        size = sum(path.stat().st_size for path in (folder / "plain").iterdir()) / 1e6
        with Snowmelt.local(folder / "lake", spark=spark, create=True) as lake:
            lake.sql("CREATE DATABASE bench")
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                for kind, goal in (("plain", 5.5), ("gz", 3.0)):
                    bare = partial(pool.map, copy_by_arrow, list_files(folder / kind))
                    measure_copy(
                        report, spark, lake, folder / kind, bare, size, goal, options.rounds
                    )
        one = (folder / "plain" / "0.csv").stat().st_size / 1e6
        for what, pattern, part, goal in (
            ("plain files", "plain/*.csv", size, 1.7),
            ("one plain file", "plain/0.csv", one, 1.7),
            ("gz files", "gz/*.gz", size, 3.0),
            ("one gz file", "gz/0.csv.gz", one, 3.0),
        ):
            found = measure_read(spark, f"{folder}/{pattern}", options.rounds)
            add(report, f"{what} as a DataFrame", found, part, goal)
        rows = options.megabytes * 500_000 // _BYTES_A_ROW
        frame = spark.read.format("bare").schema(_SCHEMA).option("rows", rows)
        received = frame.load(f"{folder}/gz/*.gz").write.format("noop").mode("overwrite")
        [seconds] = best(options.rounds, received.save)
        what = "as many rows of two files as a DataFrame, one batch of each again and again"
        report.add(what, "–", f"{size / seconds:.0f}", "–", "–", "–", "–")
        spark.stop()
    report.remark(f"{size:,.0f} MB of CSV in two files, eight columns; MB are those of the CSV.")
    report.remark(f"{os.cpu_count()} cores, best of {options.rounds} rounds after one that warms.")
    report.keep()
    return 0


def measure_copy(
    report: Report,
    spark: SparkSession,
    lake: Snowmelt,
    source: Path,
    bare: Callable[[], object],
    size: float,
    goal: float,
    rounds: int,
) -> None:
    """Measure COPY of a folder's files into a table, and Spark's conversion to Parquet."""
    table = f"bench.public.{source.name}"

    def theirs() -> None:
        frame = spark.read.csv(list_files(source), schema=_SCHEMA)
        frame.write.mode("overwrite").parquet(str(source) + ".parquet")

    def ours() -> None:
        began.append(time.time())
        lake.sql(f"CREATE OR REPLACE TABLE {table} ({_TABLE})")
        lake.copy(
            f"COPY {table} FROM '{source}/*.{source.name.replace('plain', 'csv')}' DELIMITER ',' ABORT ON ERROR"
        )

    began: list[float] = []
    seconds = best(rounds, theirs, bare, ours)
    rows = lake.sql(f"SELECT count(*) AS n, sum(customer) AS c FROM {table}").collect()
    wanted = spark.read.parquet(str(source) + ".parquet").selectExpr(
        "count(*) n", "sum(customer) c"
    )
    assert [tuple(map(int, r)) for r in rows] == [tuple(map(int, r)) for r in wanted.collect()]
    add(report, f"COPY of {source.name} files into native files", seconds, size, goal)
    lake_files = [path.stat() for path in (source.parent / "lake").rglob("*.parquet")]
    sizes = (
        sum(path.stat().st_size for path in Path(f"{source}.parquet").glob("*.parquet")),
        sum(path.stat().st_size for path in source.glob("*.parquet")),
        sum(each.st_size for each in lake_files if each.st_mtime >= began[-1]),
    )
    theirs_mb, bare_mb, ours_mb = (f"{each / 1e6:.0f} MB" for each in sizes)
    codec = spark.conf.get("spark.sql.parquet.compression.codec")
    report.remark(
        f"Parquet of {source.name} files: Spark {theirs_mb} ({codec}, its default), bare {bare_mb}, "
        f"ours {ours_mb} (both zstd of level 1, with page indexes)."
    )


def measure_read(spark: SparkSession, pattern: str, rounds: int) -> list[float]:
    """Measure reading files as a DataFrame by Spark and by Snowmelt, with the output discarded."""

    def theirs() -> None:
        frame = spark.read.csv(pattern, schema=_SCHEMA)
        frame.write.format("noop").mode("overwrite").save()

    def ours() -> None:
        reader = spark.read.format("snowmelt-load").schema(_SCHEMA)
        frame = reader.option("copy", "DELIMITER ','").load(pattern)
        frame.write.format("noop").mode("overwrite").save()

    def bare() -> None:
        frame = spark.read.format("bare").schema(_SCHEMA).load(pattern)
        frame.write.format("noop").mode("overwrite").save()

    return best(rounds, theirs, bare, ours)


def list_files(folder: Path) -> list[str]:
    """Return the CSV files of a folder."""
    return sorted(str(path) for path in folder.iterdir() if path.suffix != ".parquet")


def add(report: Report, what: str, seconds: list[float], size: float, goal: float) -> None:
    """Add a measurement to the report."""
    spark_s, bare_s, our_s = seconds
    report.add(
        what,
        f"{size / spark_s:.0f}",
        f"{size / bare_s:.0f}",
        f"{size / our_s:.0f}",
        f"{bare_s / our_s:.2f}",
        f"{spark_s / our_s:.1f}",
        f"{goal:g}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
