"""Benchmark of the delay until an engine sees a row: Snowmelt's Spark, or others through REST.

uv run python benchmarks/iceberg_freshness.py [--seconds 30] [--channels 50] [--engine duckdb …]
"""

from __future__ import annotations

import argparse
import datetime as dt
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from harness import Running
from report import Report
from workload import DDL, rows

from engines.test_more_iceberg_engines import OTHERS, SPARK, find_jars
from fixtures.engines import REQUIREMENTS, make_environment, start_engine
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import (
    KeyRing,
    create_access_key,
    load_master_key,
)
from snowmelt.config import Settings
from snowmelt.spark.snowmelt_session import Snowmelt
from support.ports import free_port

LAG_MS = 1000
# Seconds to ignore at the start: the first rows wait for the service's processes to start.
WARM_UP_S = 5.0
# Goal of each engine: 99th percentile in ms from insertion to result.
GOALS_MS = {
    "snowmelt": 1800,
    "pyiceberg": 2000,
    "duckdb": 2000,
    "clickhouse": 2000,
    "polars": 2000,
    "spark": 3000,
}


class Inserts(threading.Thread):
    """Inserter of ten rows per channel, twice a second. Records the time by number of rows."""

    def __init__(self, running: Running, table: str, channels: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.running, self.table = running, table
        self.channels, self.seconds = channels, seconds
        self.inserted: list[tuple[int, float]] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        data = rows(10)
        lag = dt.timedelta(milliseconds=LAG_MS)
        with self.running.client(max_client_lag=lag) as client:
            channels = [
                client.open_channel(f"c{number}", table=self.table)
                for number in range(self.channels)
            ]
            until, count = time.monotonic() + self.seconds, 0
            pause_s = 0.5 / self.channels
            while time.monotonic() < until and not self.stopped.is_set():
                for channel in channels:
                    count += len(data)
                    self.inserted.append((count, time.monotonic()))
                    channel.insert_rows(data, offset_token=str(count))
                    time.sleep(pause_s)


def watch(engine: Any, table: str, inserts: Inserts) -> tuple[list[float], list[float]]:
    """Return the delay of each insertion until a query counts it, and the time of each query."""
    delays: list[float] = []
    queries: list[float] = []
    position = 0
    while inserts.is_alive() or position < len(inserts.inserted):
        began = time.monotonic()
        visible = engine.count(table)
        now = time.monotonic()
        queries.append(now - began)
        while position < len(inserts.inserted) and inserts.inserted[position][0] <= visible:
            delays.append(now - inserts.inserted[position][1])
            position += 1
    first = inserts.inserted[0][1] + WARM_UP_S
    warm = [delay for delay, (_, at) in zip(delays, inserts.inserted, strict=False) if at >= first]
    return sorted(warm), sorted(queries)


def pick(values: list[float], percent: int) -> float:
    return values[min(len(values) * percent // 100, len(values) - 1)] * 1000


class OwnSpark:
    """Snowmelt's Spark session, which decodes new chunks itself."""

    def __init__(self, folder: Path) -> None:
        self._lake = Snowmelt.local(folder)

    def count(self, table: str) -> int:
        """Count rows with a condition, because the catalog has the count of all rows."""
        query = f"SELECT count(*) FROM bench.{table} WHERE ID >= 0"
        return int(self._lake.sql(query).collect()[0][0])

    def ask(self, query: str) -> list[Any]:
        return self._lake.sql(query).collect()

    def close(self) -> None:
        self._lake.close()


def open_engine(name: str, running: Running, token: str, folder: Path, *more: str) -> Any:
    if name == "snowmelt":
        return OwnSpark(running.folder)
    extra: tuple[str, ...] = ()
    requirements, environment = REQUIREMENTS, "engines"
    if name == "spark":
        requirements, environment = SPARK, "spark-4.0"
        extra = (find_jars("1.10.1"),)
    elif name == "clickhouse":
        requirements, environment = OTHERS, "more-engines"
        extra = (f"http://127.0.0.1:{running.settings.s3_port}/snowmelt-warehouse",)
    python = make_environment(environment, requirements)
    uri = f"{running.url}/iceberg"
    return start_engine(python, folder, name, uri, "BENCH", token, *extra, *more)


def make_token(settings: Settings, user: str) -> str:
    """Create an access key of a user. Return it as a bearer token."""
    keyring = KeyRing(load_master_key(settings.keys_dir))
    database = open_and_upgrade_database(settings.catalog_url)
    try:
        with database.writing() as connection:
            key = create_access_key(connection, keyring, user, now=dt.datetime.now(dt.UTC))
    finally:
        database.close()
    return f"{key.access_key_id}.{key.secret}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--channels", type=int, default=50)
    parser.add_argument("--engine", action="append", choices=tuple(GOALS_MS))
    options = parser.parse_args()
    report = Report(
        "iceberg_freshness",
        "From insertion to sight in each engine",
        ("engine", "p50 ms", "p99 ms", "goal of p99", "query p50 ms", "queries"),
    )
    for name in options.engine or GOALS_MS:
        with (
            tempfile.TemporaryDirectory() as folder,
            Running(s3_port=free_port(), migrate=True) as running,
        ):
            table = "bench.public.fresh"
            running.execute(f"CREATE TABLE {table} ({DDL})")
            engine = open_engine(name, running, make_token(running.settings, "BENCH"), Path(folder))
            try:
                engine.count("PUBLIC.FRESH")
                inserts = Inserts(running, table, options.channels, options.seconds)
                inserts.start()
                delays, queries = watch(engine, "PUBLIC.FRESH", inserts)
            finally:
                engine.close()
        report.add(
            name,
            f"{pick(delays, 50):,.0f}",
            f"{pick(delays, 99):,.0f}",
            f"{GOALS_MS[name]:,}",
            f"{pick(queries, 50):,.0f}",
            f"{len(queries):,}",
        )
    report.remark(
        f"{options.channels} channels with ten rows twice a second each, max_client_lag {LAG_MS} ms; "
        "the engine counts rows without a pause (snowmelt: its own Spark, by their values), on the same two cores as client and service. "
        f"Rows of the first {WARM_UP_S:g} s do not count: the processes of service and publisher start."
    )
    report.keep()


if __name__ == "__main__":
    main()
