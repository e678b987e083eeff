"""Benchmark of migration on Spark, compared with Spark compacting plain Parquet files.

uv run python benchmarks/migration_speed.py [--chunks 100] [--rows 20000]
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from harness import Running
from report import Report
from workload import DDL, SCHEMA, rows

from snowmelt.spark.snowmelt_session import Snowmelt

if TYPE_CHECKING:
    from collections.abc import Callable

_GOAL = 500_000
_CLUSTERINGS = {"none": "", "CITY, ID": " CLUSTER BY (city, id)"}
_WARMING = 1


def _fill(running: Running, table: str, batches: list[list[dict[str, object]]]) -> None:
    """Insert each batch as a separate chunk."""
    with running.client(max_client_lag=dt.timedelta(minutes=10)) as client:
        channel = client.open_channel("c", table=table)
        for number, batch in enumerate(batches):
            channel.insert_rows(batch, offset_token=str(number))
            channel.flush()
        channel.wait_for_commit(timeout=dt.timedelta(minutes=5))


def _timed(measure: Callable[[], object]) -> float:
    began = time.perf_counter()
    measure()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--rows", type=int, default=20_000, help="in each chunk")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    total = options.chunks * options.rows
    report = Report(
        "migration_speed",
        "Migration of chunks by Spark, beside Spark joining plain Parquet files of the same rows",
        ("clustered by", "what", "median s", "M rows/s", "goal", "kept"),
    )
    batches = [rows(options.rows, first=first) for first in range(0, total, options.rows)]
    with Running() as running, tempfile.TemporaryDirectory() as folder:
        lake = Snowmelt.local(running.folder)
        plain = Path(folder, "plain")
        plain.mkdir()
        for number, batch in enumerate(batches):
            file = plain / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(batch, SCHEMA), file, compression="zstd")

        def join(clustering: str, turn: int) -> None:
            frame = lake.spark.read.parquet(str(plain)).coalesce(2)
            if clustering:
                frame = frame.sortWithinPartitions("CITY", "ID")
            frame.write.option("compression", "zstd").parquet(f"{folder}/joined-{turn}")

        turn = 0
        for label, clustering in _CLUSTERINGS.items():
            ours, theirs = [], []
            for _ in range(_WARMING + options.turns):
                turn += 1
                table = f"bench.public.t{turn}"
                running.execute(f"CREATE TABLE {table} ({DDL}){clustering}")
                _fill(running, table, batches)
                ours.append(_timed(partial(lake.migrate, table)))
                [[found]] = lake.sql(f"SELECT count(*) FROM {table}").collect()
                [files] = lake.explain_files(f"SELECT * FROM {table}")
                if found != total or files.chunks:
                    raise SystemExit(f"{table}: {found} rows of {total} were migrated")
                theirs.append(_timed(partial(join, clustering, turn)))
            for what, taken, goal in (("migration", ours, _GOAL), ("plain Spark", theirs, None)):
                seconds = statistics.median(taken[_WARMING:])
                speed = total / seconds
                kept = "" if goal is None else "yes" if speed >= goal else "no"
                told = "" if goal is None else f"{goal / 1e6:.1f}"
                report.add(label, what, f"{seconds:.2f}", f"{speed / 1e6:.2f}", told, kept)
    report.remark(
        f"{total:,} rows in {options.chunks} chunks (plain: files); medians of {options.turns} "
        "turns after one that warms the session, local[2]."
    )
    report.keep()


if __name__ == "__main__":
    main()
