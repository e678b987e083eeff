"""Benchmark of MERGE into a large table while rows stream in: Spark with Iceberg, and Snowmelt.

uv run python benchmarks/iceberg_merge.py [--rows 10000000] [--changes 100000] [--minutes 5]
"""

from __future__ import annotations

import argparse
import datetime as dt
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from harness import Running
from iceberg_freshness import make_token, open_engine
from report import Report

from snowmelt.spark.snowmelt_session import Snowmelt
from support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = "bench.public.merged"
# First ID of the stream's rows, which is larger than the IDs in the table.
_STREAMED_FROM = 1_000_000_000
_BATCH_ROWS = 100_000


def make_rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count, dtype=np.int64)
    return pa.table({"ID": ids, "X": ids / 8, "NOTE": [f"n{each % 1000}" for each in range(count)]})


class Stream(threading.Thread):
    """Stream of ten rows, ten times a second, until stopped."""

    def __init__(self, running: Running) -> None:
        super().__init__(daemon=True)
        self.running = running
        self.rows = 0
        self.ended = threading.Event()

    def run(self) -> None:
        with self.running.client(max_client_lag=dt.timedelta(seconds=1)) as client:
            channel = client.open_channel("stream", table=TABLE)
            while not self.ended.wait(0.1):
                first = _STREAMED_FROM + self.rows
                channel.insert_arrow(make_rows(first, 10), offset_token=str(first))
                self.rows += 10
            channel.wait_for_commit(timeout=dt.timedelta(minutes=2))


def merge_statement(table: str, changes: int, rows: int, turn: int) -> str:
    """Return a MERGE of `changes` rows, distributed over the table; half of them are new."""
    step = max(rows * 2 // changes, 1)
    return (
        f"MERGE INTO {table} t USING (SELECT CAST(if(id % 2 = 0, id * {step} + {turn}, "
        f"-id - {turn * changes} - 1) AS DECIMAL(18,0)) AS k FROM range({changes})) s ON t.ID = s.k "
        f"WHEN MATCHED THEN UPDATE SET X = -1 - {turn} "
        f"WHEN NOT MATCHED THEN INSERT (ID, X, NOTE) VALUES (s.k, -1 - {turn}, 'new')"
    )


def run_merges(
    merge: Callable[[str], Any], table: str, options: argparse.Namespace, turn: int, until: float
) -> tuple[list[float], int, int]:
    """Repeat merges until a time. Return their times, the number of failures, and the last turn."""
    times: list[float] = []
    failed = 0
    while time.monotonic() < until or not times:
        statement = merge_statement(table, options.changes, options.rows, turn)
        began = time.monotonic()
        try:
            merge(statement)
            times.append(time.monotonic() - began)
            turn += 1
        except Exception as error:
            print(f"failed after {time.monotonic() - began:.0f} s: {str(error)[:300]}")
            failed += 1
            if failed > 20:
                raise
    return times, failed, turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=5)
    options = parser.parse_args()
    report = Report(
        "iceberg_merge",
        "MERGE into a large table while rows stream",
        ("engine", "merges", "p50 s", "slowest s", "failed", "rows exact"),
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        Running(s3_port=free_port(), migrate=True) as running,
    ):
        running.execute(
            f"CREATE TABLE {TABLE} (id NUMBER(18,0) NOT NULL, x FLOAT, note VARCHAR(20))"
        )
        with running.client(max_client_lag=dt.timedelta(minutes=10)) as client:
            channel = client.open_channel("base", table=TABLE)
            for first in range(0, options.rows, _BATCH_ROWS):
                data = make_rows(first, min(_BATCH_ROWS, options.rows - first))
                channel.insert_arrow(data, offset_token=str(first))
            channel.flush(dt.timedelta(minutes=5))
        lake = Snowmelt.local(running.folder)
        lake.migrate(TABLE)
        stream = Stream(running)
        stream.start()
        turn = 0
        token = make_token(running.settings, "BENCH")
        # Enable the table cache: without it, Iceberg's Spark cannot plan a change during a stream.
        engine = open_engine("spark", running, token, Path(folder), "true")
        merges: dict[str, tuple[Callable[[str], Any], str]] = {
            "Spark 4.0, Iceberg 1.10.1": (
                lambda text: engine.ask(query=text),
                "lake.PUBLIC.MERGED",
            ),
            "Snowmelt's Spark": (lambda text: lake.sql(text).collect(), TABLE),
        }
        for name, (merge, table) in merges.items():
            until = time.monotonic() + options.minutes * 60
            before = turn
            times, failed, turn = run_merges(merge, table, options, turn, until)
            query = (
                f"SELECT count_if(X <= {-1 - before} AND X >= {-turn}) FROM {TABLE} "
                f"WHERE ID < {_STREAMED_FROM}"
            )
            changed = int(lake.sql(query).collect()[0][0])
            exact = "yes" if changed == options.changes * len(times) else f"no: {changed:,}"
            times.sort()
            p50 = times[len(times) // 2]
            report.add(name, len(times), f"{p50:.1f}", f"{times[-1]:.1f}", failed, exact)
        engine.close()
        stream.ended.set()
        stream.join()
        found = int(
            lake.sql(f"SELECT count(*) FROM {TABLE} WHERE ID >= {_STREAMED_FROM}").collect()[0][0]
        )
        if found != stream.rows:
            raise SystemExit(f"{found:,} of {stream.rows:,} streamed rows are there")
    report.remark(
        f"{options.rows:,} rows; each MERGE changes {options.changes // 2:,} rows all over the table and "
        f"inserts as many, for {options.minutes:g} minutes each, while 100 rows a second stream in. "
        f"All {stream.rows:,} rows of the stream are there at the end."
    )
    report.keep()


if __name__ == "__main__":
    main()
