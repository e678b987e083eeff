"""Benchmark of the cost of readers of fresh rows: CPU of fresh files and GETs, ingest throughput.

uv run python benchmarks/iceberg_costs.py [--seconds 12]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import itertools
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from arriving_files import read_cpu_s
from botocore.config import Config
from functions_caller import cpu_s
from harness import Running
from iceberg_freshness import make_token, open_engine
from pyiceberg.catalog import load_catalog
from report import Report
from workload import DDL, SCHEMA, rows

from fixtures.engines import EngineError
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.published_snapshots import record_demand
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.clock import SystemClock
from snowmelt.schema.types import TableName
from snowmelt.table.snapshot_publication import PublicationSettings, SnapshotPublisher
from support.ports import free_port

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database
    from snowmelt.client.channel import Channel

ROWS_PER_CHUNK = 20_000
_GETS = 2000
_TURNS = 3
_BATCH_ROWS, _BATCHES = 5000, 40
_MIGRATION_TIMEOUT_S = 300


def create(running: Running, name: str) -> str:
    running.execute(f"CREATE TABLE bench.public.{name} ({DDL})")
    return f"bench.public.{name}"


def measure_rounds(running: Running, chunks: int) -> tuple[float, float, float]:
    """Return µs of CPU per row for rounds without and with compaction, and for the baseline.

    The baseline reads the rows from a Parquet file in memory, and writes them to another one.
    """
    table = create(running, "rounds")
    data = pa.Table.from_pylist(rows(ROWS_PER_CHUNK), SCHEMA)
    settings = running.settings
    database = open_and_upgrade_database(settings.catalog_url)
    keyring = KeyRing(load_master_key(settings.keys_dir))
    places = PublicationSettings(settings.stage_url, settings.warehouse_url)
    publisher = SnapshotPublisher(database, keyring, places, SystemClock())
    with database.reading() as connection:
        table_id = find_table(connection, TableName("BENCH", "PUBLIC", "ROUNDS")).table_id
    with database.writing() as connection:
        now = dt.datetime.now(dt.UTC)
        record_demand(connection, table_id, native_only=False, now=now)
    publisher.publish(table_id)
    spent, bare = [], []
    source = pa.BufferOutputStream()
    pq.write_table(data, source, compression="zstd")
    with running.client(max_client_lag=dt.timedelta(minutes=10)) as client:
        channel = client.open_channel("c", table=table)
        for number in range(chunks):
            channel.insert_arrow(data, offset_token=str(number))
            channel.flush()
            channel.wait_for_commit(str(number))
            before = time.process_time()
            publisher.publish(table_id)
            spent.append(time.process_time() - before)
            before = time.process_time()
            read = pq.read_table(pa.BufferReader(source.getvalue()))
            pq.write_table(read, pa.BufferOutputStream(), use_dictionary=False)
            bare.append(time.process_time() - before)
    database.close()
    per_row = [each / ROWS_PER_CHUNK * 1e6 for each in spent[2:]]
    bare_per_row = statistics.median(bare[2:]) / ROWS_PER_CHUNK * 1e6
    return statistics.median(per_row), statistics.mean(per_row), bare_per_row


def measure_gets(running: Running) -> list[tuple[str, float, float]]:
    """Measure a GET of one fresh file. Return size, ms of service CPU and elapsed ms."""
    token = make_token(running.settings, "BENCH")
    url = f"{running.url}/iceberg/v1/BENCH/namespaces/PUBLIC/tables/ROUNDS"
    loaded = httpx.get(url, headers={"authorization": f"Bearer {token}"}, timeout=60).json()
    given = loaded["config"]
    files = boto3.client(
        "s3",
        endpoint_url=given["s3.endpoint"],
        region_name=given["s3.region"],
        aws_access_key_id=given["s3.access-key-id"],
        aws_secret_access_key=given["s3.secret-access-key"],
        aws_session_token=given["s3.session-token"],
        config=Config(s3={"addressing_style": "path"}),
    )
    catalog = load_catalog(
        "lake", type="rest", uri=f"{running.url}/iceberg", warehouse="BENCH", token=token
    )
    [first, *_] = catalog.load_table("PUBLIC.ROUNDS").scan().plan_files()
    place = urlsplit(first.file.file_path)
    whole = first.file.file_size_in_bytes
    found = []
    for size in (8 * 1024, min(whole, 1024 * 1024)):
        arguments = {
            "Bucket": place.netloc,
            "Key": place.path.lstrip("/"),
            "Range": f"bytes=0-{size - 1}",
        }
        for _ in range(100):
            files.get_object(**arguments)["Body"].read()
        began, before = time.perf_counter(), cpu_s(running.started.pid)
        for _ in range(_GETS):
            files.get_object(**arguments)["Body"].read()
        took, spent = time.perf_counter() - began, cpu_s(running.started.pid) - before
        found.append((f"{size // 1024:,} KiB", spent / _GETS * 1000, took / _GETS * 1000))
    return found


class Reader(threading.Thread):
    """Reader that counts a table's rows with an engine once a second."""

    def __init__(self, engine: Any) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.counted = threading.Event()
        self._engine = engine

    def run(self) -> None:
        while not self.ended.wait(1.0):
            # The first load fails if it takes longer than 20 s to publish the table.
            with contextlib.suppress(EngineError):
                self._engine.count("PUBLIC.INGEST")
                self.counted.set()


class Ingest:
    """Ingest of distinct rows into one table, in batches of 5,000 rows."""

    def __init__(self, channel: Channel, database: Database) -> None:
        self._channel = channel
        self._database = database
        # Rows that repeat would compress to a few bytes.
        data = pa.Table.from_pylist(rows(_BATCH_ROWS * _BATCHES), SCHEMA)
        self._batches = [data.slice(i * _BATCH_ROWS, _BATCH_ROWS) for i in range(_BATCHES)]

    def measure(self, seconds: float) -> tuple[float, float]:
        """Return rows per second from the first insertion to the last commit, and µs of CPU per row.

        The CPU time includes this process and its descendants, which are client, service,
        migrations and engine, until all rows are migrated.
        """
        self.wait_for_migration()
        began, inserted, cpu_s = time.monotonic(), 0, read_cpu_s(os.getpid())
        for batch in itertools.cycle(self._batches):
            if time.monotonic() - began > seconds:
                break
            inserted += batch.num_rows
            self._channel.insert_arrow(batch, offset_token=f"{time.monotonic()}")
        self._channel.wait_for_commit(timeout=dt.timedelta(minutes=2))
        rate = inserted / (time.monotonic() - began)
        self.wait_for_migration()
        cpu_s = read_cpu_s(os.getpid()) - cpu_s
        return rate, cpu_s / inserted * 1e6

    def wait_for_migration(self) -> None:
        deadline = time.monotonic() + _MIGRATION_TIMEOUT_S
        while time.monotonic() < deadline:
            with self._database.reading() as connection:
                table = find_table(connection, TableName("BENCH", "PUBLIC", "INGEST"))
            if table.migrated_seq == table.last_seq:
                return
            time.sleep(0.2)
        raise SystemExit(f"the rows were not migrated after {_MIGRATION_TIMEOUT_S} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--chunks", type=int, default=50)
    options = parser.parse_args()
    report = Report(
        "iceberg_costs", "What readers of fresh rows cost", ("what", "measured", "goal", "kept")
    )

    def add(what: str, value: float, unit: str, goal: float) -> None:
        report.add(what, f"{value:.2f} {unit}", f"{goal:g}", "yes" if value <= goal else "no")

    with Running(s3_port=free_port(), migrate=False) as running:
        median, mean, bare = measure_rounds(running, options.chunks)
        add("fresh rounds: CPU for a row, median round", median, "µs", 1.0)
        add("fresh rounds: CPU for a row, with joins", mean, "µs", 1.0)
        report.add("Parquet read and written: CPU for a row", f"{bare:.2f} µs", "", "")
        for size, spent, took in measure_gets(running):
            add(f"GET of {size}: CPU of the service", spent, "ms", 1.2)
            report.add(f"GET of {size}: time in boto3", f"{took:.2f} ms", "", "")
    with (
        tempfile.TemporaryDirectory() as folder,
        Running(s3_port=free_port(), migrate=True) as running,
    ):
        table = create(running, "ingest")
        token = make_token(running.settings, "BENCH")
        engine = open_engine("pyiceberg", running, token, Path(folder))
        database = open_and_upgrade_database(running.settings.catalog_url)
        with running.client() as client:
            ingest = Ingest(client.open_channel("c", table=table), database)
            ingest.measure(options.seconds / 2)
            # Measure without readers first, because a load keeps the table in demand for ten
            # minutes.
            alone = [ingest.measure(options.seconds) for _ in range(_TURNS)]
            reader = Reader(engine)
            reader.start()
            reader.counted.wait()
            watched = [ingest.measure(options.seconds) for _ in range(_TURNS)]
            reader.ended.set()
            reader.join()
        database.close()
        engine.close()
        without, with_readers = (
            statistics.median(rate for rate, _ in each) for each in (alone, watched)
        )
        cpu_alone, cpu_watched = (
            statistics.median(cpu for _, cpu in each) for each in (alone, watched)
        )
        report.add("rows a second without readers", f"{without:,.0f}", "", "")
        report.add("rows a second with a reader", f"{with_readers:,.0f}", "", "")
        report.add("CPU for a row without readers", f"{cpu_alone:.2f} µs", "", "")
        report.add("CPU for a row with a reader", f"{cpu_watched:.2f} µs", "", "")
        add("cost to ingest", (1 - with_readers / without) * 100, "%", 10)
        add("cost to ingest, from CPU for a row", (1 - cpu_alone / cpu_watched) * 100, "%", 10)
    report.remark(
        f"Rounds of one chunk of {ROWS_PER_CHUNK:,} rows. GETs: {_GETS:,} in a row by one client. Ingest: one "
        f"channel, as fast as it goes, {_TURNS} × {options.seconds:g} s without a reader, then with one, on the same two cores as "
        "service, migrations, publisher and a process with PyIceberg that counts once a second. Each turn begins when all rows are "
        "migrated. CPU: until the rows of the turn are migrated, too."
    )
    report.keep()


if __name__ == "__main__":
    main()
