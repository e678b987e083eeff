"""Benchmark of the delay from insertion until a catalog snapshot and a Spark SQL result have a row.

uv run python benchmarks/freshness.py [--seconds 60] [--lag-ms 1000]
"""

from __future__ import annotations

import argparse
import datetime as dt
import threading
import time
from collections.abc import Callable
from functools import partial

from harness import Running
from report import Report
from workload import DDL, rows

from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.clock import SystemClock
from snowmelt.schema.types import TableName
from snowmelt.spark.snowmelt_session import Snowmelt
from snowmelt.table.snapshot import take_snapshots

TABLE = "bench.public.fresh"
NAME = TableName("BENCH", "PUBLIC", "FRESH")


def _quantiles(delays: list[float]) -> tuple[str, str, str]:
    delays = sorted(delays)
    picks = (delays[len(delays) // 2], delays[len(delays) * 99 // 100], delays[-1])
    return tuple(f"{pick * 1000:,.0f}" for pick in picks)  # type: ignore[return-value]


class Inserts(threading.Thread):
    """Inserter of a batch of rows every 50 ms. Records the insertion time by number of rows."""

    def __init__(self, running: Running, lag_ms: int, seconds: float) -> None:
        super().__init__()
        self.running, self.lag_ms, self.seconds = running, lag_ms, seconds
        self.inserted: list[tuple[int, float]] = []

    def run(self) -> None:
        data = rows(10)
        lag = dt.timedelta(milliseconds=self.lag_ms)
        with self.running.client(max_client_lag=lag) as client:
            channel = client.open_channel("c", table=TABLE)
            until = time.monotonic() + self.seconds
            count = 0
            while time.monotonic() < until:
                count += len(data)
                self.inserted.append((count, time.monotonic()))
                channel.insert_rows(data, offset_token=str(count))
                time.sleep(0.05)
            channel.close()


def _rows_since(lake: Snowmelt, query: str, before: int) -> int:
    return int(lake.sql(query).collect()[0][0]) - before


def _watch(look: Callable[[], int], inserts: Inserts, pause_s: float) -> list[float]:
    """Return the delay of each batch until it is visible.

    `look` returns the number of visible rows.
    """
    delays, position = [], 0
    while inserts.is_alive() or position < len(inserts.inserted):
        visible = look()
        now = time.monotonic()
        while position < len(inserts.inserted) and inserts.inserted[position][0] <= visible:
            delays.append(now - inserts.inserted[position][1])
            position += 1
        time.sleep(pause_s)
    return delays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40)
    options = parser.parse_args()
    report = Report(
        "freshness",
        "From insertion to sight",
        ("max_client_lag", "seen in", "p50 ms", "p99 ms", "worst ms", "lag + 300 ms kept by p99"),
    )
    for lag_ms in (1000, 100):
        with Running() as running:
            running.execute(f"CREATE TABLE {TABLE} ({DDL})")
            database = open_and_upgrade_database(running.settings.catalog_url)

            def in_snapshot(database: Database = database) -> int:
                [snapshot] = take_snapshots(database, [NAME], clock=SystemClock())
                return sum(chunk.rows for chunk in snapshot.chunks)

            inserts = Inserts(running, lag_ms, options.seconds)
            inserts.start()
            delays = _watch(in_snapshot, inserts, 0.002)
            p50, p99, worst = _quantiles(delays)
            kept = "yes" if float(p99.replace(",", "")) <= lag_ms + 300 else "no"
            report.add(f"{lag_ms} ms", "a catalog snapshot", p50, p99, worst, kept)
            lake = Snowmelt.local(running.folder)
            query = f"SELECT count(*) FROM {TABLE} WHERE ID >= 0"
            lake.sql(query).collect()
            before = sum(count for count, _ in inserts.inserted[-1:])
            again = Inserts(running, lag_ms, options.seconds)
            again.start()
            delays = _watch(
                partial(_rows_since, lake, query, before),
                again,
                0.0,
            )
            report.add(f"{lag_ms} ms", "a warm Spark query", *_quantiles(delays), "reported")
            database.close()
    report.remark("A batch of 10 rows each 50 ms, one channel.")
    report.keep()


if __name__ == "__main__":
    main()
