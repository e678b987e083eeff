"""Benchmark of replication: cost for the primary, lag of a secondary, and time of a failover.

    uv run python benchmarks/replication.py [--seconds 20] [--rows-per-s 50000] [--turns 3]

Lag: a client streams rows. The lag of a chunk is the time from its registration at the primary
until the catalog of the secondary has it. Cost: registrations through HTTP, in turns without and
with a group that a secondary follows. The steady load has the default settings and a blob for each
registration. The load at the limit is faster than the service, which does not read the stage. The
sites are different machines in reality. Therefore the primary and its PostgreSQL have a processor
and a disk of their own. The load and the secondary, whose catalog is SQLite, share the other
processors, and the secondary's folder is in memory. Failover: the primary is killed while a client with both addresses streams. Two times start
with the statement PRIMARY: the time until the first commit in the catalog of the new primary, and
the time until the client receives its first committed offset token from the new primary.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from harness import Running, processor_s
from postgres_server import postgres_settings
from registering_load import TABLE, Stage, drive
from report import Report

from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.catalog.objects import failover_groups
from snowmelt.client.client import Client
from snowmelt.errors import SnowmeltError

_CREATE = f"CREATE OR REPLACE TABLE {TABLE} (id NUMBER(18,0) NOT NULL)"
_BATCH = 1_000
# Folder in memory on Linux.
_MEMORY = Path("/dev/shm")


def _join(primary: Running, secondary: Running) -> None:
    """Create a group of two sites, and wait until the secondary has the complete state."""
    key = primary.folder / "replica.pem"
    key.write_text(primary.private_key)
    key.chmod(0o600)
    clauses = f"USER = 'bench' PRIVATE_KEY = 'file:{key}'"
    primary.execute(
        f"CREATE FAILOVER GROUP g ALLOWED_ACCOUNTS = two SITE = one ADDRESSES = ('{primary.url}') "
        f"{clauses}"
    )
    secondary.execute(
        f"CREATE FAILOVER GROUP g AS REPLICA OF one.g URL = '{primary.url}' SITE = two "
        f"ADDRESSES = ('{secondary.url}') {clauses}"
    )
    database = open_and_upgrade_database(secondary.settings.catalog_url)
    while True:
        with database.reading() as connection:
            group = failover_groups.find_group(connection)
        if group is not None and group.is_promotable:
            break
        time.sleep(0.1)
    database.close()


def _read_seq(database: Database) -> int:
    with database.reading() as connection:
        found = connection.execute(sa.select(sa.func.max(model.tables.c.last_seq))).scalar()
    return int(found or 0)


def _read_last_seq(running: Running) -> int:
    database = open_and_upgrade_database(running.settings.catalog_url)
    try:
        return _read_seq(database)
    finally:
        database.close()


def _measure_lag(report: Report, options: argparse.Namespace) -> None:
    with Running() as primary, Running(empty=True) as secondary:
        primary.execute(_CREATE)
        _join(primary, secondary)
        seen: list[tuple[int, float]] = []
        done = threading.Event()
        database = open_and_upgrade_database(secondary.settings.catalog_url)

        def watch() -> None:
            last = 0
            while not done.wait(0.005):
                seq = _read_seq(database)
                if seq > last:
                    last = seq
                    seen.append((seq, time.time()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        rows = [{"id": number} for number in range(_BATCH)]
        with primary.client(max_client_lag=dt.timedelta(milliseconds=200)) as client:
            channel = client.open_channel("lag", table=TABLE)
            began = time.monotonic()
            sent = 0
            while (now := time.monotonic() - began) < options.seconds:
                if sent < now * options.rows_per_s:
                    channel.insert_rows(rows, offset_token=str(sent))
                    sent += _BATCH
                else:
                    time.sleep(0.002)
            channel.flush()
        wanted = _read_last_seq(primary)
        while not seen or seen[-1][0] < wanted:
            time.sleep(0.1)
        done.set()
        watcher.join()
        database.close()
        source = open_and_upgrade_database(primary.settings.catalog_url)
        with source.reading() as connection:
            chunks = connection.execute(
                sa.select(model.chunks.c.seq, model.chunks.c.registered_at).order_by(
                    model.chunks.c.seq
                )
            ).all()
        source.close()
    lags = sorted(
        next(at for seq, at in seen if seq >= chunk.seq) - chunk.registered_at.timestamp()
        for chunk in chunks
    )
    report.add("rows/s streamed", f"{sent / options.seconds:,.0f}", f"{options.rows_per_s:,}")
    report.add("lag p50, s", f"{lags[len(lags) // 2]:.2f}", "≤ 1")
    report.add("lag p99, s", f"{lags[int(len(lags) * 0.99)]:.2f}", "≤ 2")


@dataclass(frozen=True)
class _Load:
    """Registrations at a rate. `settings` are those of the primary."""

    name: str
    per_s: int
    seconds: float
    stage: Stage
    settings: dict[str, Any]


@contextlib.contextmanager
def _on_processors(*, of_primary: bool) -> Iterator[None]:
    """Run what is started here on the processor of the primary, or on the other processors."""
    all_processors = os.sched_getaffinity(0)
    first = {min(all_processors)}
    os.sched_setaffinity(0, first if of_primary else all_processors - first or first)
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_processors)


@contextlib.contextmanager
def _running_sites(settings: Mapping[str, Any]) -> Iterator[tuple[Running, Running]]:
    with contextlib.ExitStack() as stack:
        with _on_processors(of_primary=True):
            primary = stack.enter_context(Running(**settings))
        stack.enter_context(_on_processors(of_primary=False))
        # The primary waits for its disk, which must not have the writes of the secondary, too.
        memory = _MEMORY if _MEMORY.is_dir() else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))
        yield primary, stack.enter_context(Running(folder, empty=True, niceness=19))


def _note_processor_time(running: Running, noted: list[float]) -> None:
    noted.append(processor_s(running.started.pid))


def _measure_cost(
    report: Report,
    database: str,
    goal: str,
    load: _Load,
    turns: int,
    make_settings: Callable[[], dict[str, Any]],
) -> None:
    rates: dict[str, list[float]] = {"without a group": [], "with a group": []}
    used: dict[str, list[float]] = {kind: [] for kind in rates}
    delays: dict[str, list[float]] = {kind: [] for kind in rates}
    where = f"{load.name}, {database}"
    for _ in range(turns):
        for kind in rates:
            with _running_sites({**load.settings, **make_settings()}) as (primary, secondary):
                primary.execute(_CREATE)
                if kind == "with a group":
                    _join(primary, secondary)
                # Both processes that export states start before the measurement.
                drive(primary, load.per_s, 4, load.stage)
                before: list[float] = []
                measured = drive(
                    primary,
                    *(load.per_s, load.seconds, load.stage),
                    on_prepared=partial(_note_processor_time, primary, before),
                )
                spent_s = processor_s(primary.started.pid) - before[-1]
                used[kind].append(spent_s / int(load.per_s * load.seconds) * 1e6)
                rates[kind].append(measured.per_s)
                delays[kind].append(measured.p99_ms)
                print(where, kind, f"{measured.per_s:,.0f}", f"{used[kind][-1]:.0f} µs", flush=True)
    for kind, found in rates.items():
        report.add(
            f"registrations/s {kind}, {where}",
            f"{statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})",
            "",
        )
        report.add(
            f"response time p99 {kind}, {where}, ms", f"{statistics.median(delays[kind]):.0f}", ""
        )
        report.add(
            f"processor time of the primary per registration {kind}, {where}, µs",
            f"{statistics.median(used[kind]):.0f}",
            "",
        )
    slower = 1 - statistics.median(rates["with a group"]) / statistics.median(
        rates["without a group"]
    )
    dearer = (
        statistics.median(used["with a group"]) / statistics.median(used["without a group"]) - 1
    )
    report.add(f"cost of the group in registrations/s, {where}", f"{slower * 100:.1f} %", goal)
    report.add(f"cost of the group in processor time, {where}", f"{dearer * 100:.1f} %", "")


class _Streaming:
    """Client with both addresses that streams, and reopens its channel at the new primary."""

    def __init__(self, primary: Running, secondary: Running) -> None:
        self.last_token = 0
        self._stop = threading.Event()
        self._client = Client(
            f"{primary.url},{secondary.url}",
            user="bench",
            private_key=primary.private_key,
            max_client_lag=dt.timedelta(milliseconds=100),
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Stop the client."""
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        channel = self._client.open_channel("failover", table=TABLE)
        number = 0
        while not self._stop.wait(0.02):
            try:
                channel.insert_rows([{"id": number + 1}], offset_token=str(number + 1))
                number += 1
                self.last_token = int(channel.latest_committed_offset_token() or 0)
            except SnowmeltError:
                with contextlib.suppress(SnowmeltError):
                    number = int(channel.resume() or 0)


def _measure_failover(report: Report, options: argparse.Namespace) -> None:
    commits: list[float] = []
    answers: list[float] = []
    for _ in range(options.turns):
        with Running() as primary, Running(empty=True) as secondary:
            primary.execute(_CREATE)
            _join(primary, secondary)
            streaming = _Streaming(primary, secondary)
            while streaming.last_token < 50:
                time.sleep(0.05)
            primary.started.kill()
            primary.started.wait()
            time.sleep(2)
            database = open_and_upgrade_database(secondary.settings.catalog_url)
            token, seq = streaming.last_token, _read_seq(database)
            began = time.monotonic()
            secondary.execute("ALTER FAILOVER GROUP g PRIMARY")
            while _read_seq(database) == seq:
                time.sleep(0.005)
            commits.append(time.monotonic() - began)
            while streaming.last_token <= token:
                time.sleep(0.005)
            answers.append(time.monotonic() - began)
            database.close()
            streaming.stop()
    for what, found, goal in (
        ("first commit at the new primary, s after the statement", commits, "≤ 30"),
        ("first committed token told to the SDK, s after the statement", answers, "≤ 5"),
    ):
        text = f"{statistics.median(found):.2f} (worst of {len(found)}: {max(found):.2f})"
        report.add(what, text, goal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rows-per-s", type=int, default=50_000)
    parser.add_argument("--per-s", type=int, default=6_000)
    parser.add_argument("--steady-per-s", type=int, default=500)
    parser.add_argument("--cost-seconds", type=float, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=("lag", "cost", "failover"))
    options = parser.parse_args()
    report = Report("replication", "Replication between two sites", ("what", "measured", "goal"))
    if options.only in {None, "lag"}:
        _measure_lag(report, options)
    if options.only in {None, "failover"}:
        _measure_failover(report, options)
    if options.only in {None, "cost"}:
        loads = (
            _Load("steady", options.steady_per_s, 10, Stage.OWN_BLOBS, {}),
            _Load(
                "at the limit",
                options.per_s,
                options.cost_seconds,
                Stage.SAME_BLOB,
                {"verify": "off"},
            ),
        )
        for load in loads:
            _measure_cost(report, "SQLite", "≤ 7 %", load, options.turns, dict)
        with contextlib.ExitStack() as stack:
            with _on_processors(of_primary=True):
                settings = stack.enter_context(postgres_settings())
            for load in loads:
                _measure_cost(report, "PostgreSQL", "≤ 10 %", load, options.turns, settings)
    if options.only is None:
        report.keep()


if __name__ == "__main__":
    main()
