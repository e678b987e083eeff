"""Benchmark of reading chunks and native files, compared with Parquet files of the same rows.

uv run python benchmarks/mixed_read.py [--rows 5000000]
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import time
from typing import TYPE_CHECKING

from harness import Running
from report import Report
from workload import DDL, rows

from snowmelt.spark.snowmelt_session import Snowmelt

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Row

QUERIES = {
    "full scan": "SELECT bit_xor(xxhash64(*)) FROM {t}",
    "group by": "SELECT CITY, KIND, count(*), round(avg(X), 9) FROM {t} GROUP BY CITY, KIND",
    "count": "SELECT count(*) FROM {t}",
    "sum": "SELECT sum(PRICE) FROM {t}",
    "filter": "SELECT count(*), max(NOTE) FROM {t} WHERE ID BETWEEN 1000 AND 1999",
}
GOALS = {"full scan": 1.5, "group by": 1.5, "count": 0.3, "sum": 0.3, "filter": 0.3}

# Warm-up runs: the JVM compiles code only after it has run often.
_UNMEASURED = 2


def fill(running: Running, table: str, total: int, fresh_chunks: int, lake: Snowmelt) -> None:
    """Insert `total` rows: nine tenths migrated, and one tenth in `fresh_chunks` chunks."""
    settled = total * 9 // 10
    with running.client(max_client_lag=dt.timedelta(minutes=10)) as client:
        channel = client.open_channel("c", table=table)
        for first in range(0, settled, 50_000):
            channel.insert_rows(rows(50_000, first=first), offset_token=str(first))
            channel.flush()
        channel.wait_for_commit(timeout=dt.timedelta(minutes=2))
        lake.migrate(table)
        size = (total - settled) // fresh_chunks
        for number in range(fresh_chunks):
            first = settled + number * size
            channel.insert_rows(rows(size, first=first), offset_token=str(first))
            channel.flush()
        channel.wait_for_commit(timeout=dt.timedelta(minutes=2))


def _timed(measure: Callable[[], object]) -> float:
    began = time.perf_counter()
    measure()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    report = Report(
        "mixed_read",
        "Reading a mixed table, a tenth of it in chunks, beside plain Parquet",
        (
            "query",
            "chunks",
            "mixed s",
            "plain s",
            "mixed ÷ plain",
            "mixed − plain s",
            "first s",
            "goal",
            "kept",
        ),
    )
    with Running() as running:
        lake = Snowmelt.local(running.folder)
        for chunks in (50, 1000):
            table = f"bench.public.mixed_{chunks}"
            running.execute(f"CREATE TABLE {table} ({DDL})")
            fill(running, table, options.rows, chunks, lake)
            plain = str(running.folder / f"plain_{chunks}")
            lake.table(table).write.parquet(plain)
            lake.spark.read.parquet(plain).createOrReplaceTempView(f"plain_{chunks}")
            for name, text in QUERIES.items():
                ours = text.format(t=table)
                theirs = text.format(t=f"plain_{chunks}")
                # A new lake without decoded chunks, in a warm session.
                with Snowmelt.local(running.folder, spark=lake.spark) as fresh:

                    def mixed_run(ours: str = ours, fresh: Snowmelt = fresh) -> list[Row]:
                        return fresh.sql(ours).collect()

                    def plain_run(theirs: str = theirs) -> list[Row]:
                        return lake.spark.sql(theirs).collect()

                    first = _timed(mixed_run)
                    if sorted(map(str, mixed_run())) != sorted(map(str, plain_run())):
                        raise SystemExit(f"{name}: the answers differ")
                    for _ in range(_UNMEASURED):
                        mixed_run(), plain_run()
                    # Take turns, so that other load on the machine affects both.
                    pairs = [(_timed(mixed_run), _timed(plain_run)) for _ in range(options.turns)]
                mixed, bare = (statistics.median(each) for each in zip(*pairs, strict=True))
                goal = GOALS[name]
                kept = mixed <= bare * goal if goal > 1 else mixed <= bare + goal
                report.add(
                    name,
                    chunks,
                    f"{mixed:.2f}",
                    f"{bare:.2f}",
                    f"{mixed / bare:.2f}",
                    f"{mixed - bare:+.2f}",
                    f"{first:.2f}",
                    f"≤ {goal} ×" if goal > 1 else f"≤ plain + {goal} s",
                    "yes" if kept else "no",
                )
    report.remark(f"{options.rows:,} rows, medians of {options.turns} runs by turns, local[2].")
    report.remark("First: when none of the table's chunks has been decoded yet; all answers equal.")
    report.keep()


if __name__ == "__main__":
    main()
