"""Benchmark of chunk registrations: maximum rate of one service, and response time.

    uv run python benchmarks/registrations.py [--seconds 10] [--per-s 5000] [--only sqlite] [--only-blobs]

Each of 64 connections has a channel and registers one chunk after another at a given rate.
"metadata" disables reading of the stage (`verify=off`, a setting only for this benchmark). "blobs"
uses blobs on the stage, in turns verified (the default) and from a user without verification
(`unverified_users`). Then the time of one registration is measured on tables with 10³ and 10⁶
chunks. Processor time per registration includes the service, its verification processes and the
load generator, but not a PostgreSQL server.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import os
import statistics
from typing import TYPE_CHECKING, Any

import msgspec
from harness import Running, processor_s
from postgres_server import postgres_settings
from registering_load import STATISTICS, TABLE, Measured, Stage, drive
from report import Report

from snowmelt.catalog import model
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from collections.abc import Callable

_TICKS = os.sysconf("SC_CLK_TCK")


def _grow(running: Running, chunks: int) -> None:
    """Insert catalog rows of chunks that are not migrated, up to `chunks`."""
    database = open_and_upgrade_database(running.settings.catalog_url)
    name = TableName("BENCH", "PUBLIC", "REGISTRATIONS")
    bounds = msgspec.json.encode(STATISTICS)
    now = dt.datetime.now(dt.UTC)
    with database.writing() as connection:
        table = find_table(connection, name)
        for first in range(table.last_seq + 1, chunks + 1, 50_000):
            last = min(first + 50_000, chunks + 1)
            rows = [
                {
                    "table_id": table.table_id,
                    "seq": seq,
                    "prefix": "grown",
                    "path": f"2026/1/1/0/0/{seq}_grown_0_1_{seq}.bdec",
                    "offset": 0,
                    "length": 2000,
                    "md5": hashlib.md5(str(seq).encode()).hexdigest(),
                    "key_id": 1,
                    "rows": 100,
                    "schema_version": 1,
                    "first_insert_ms": 1,
                    "last_insert_ms": 1,
                    "registered_at": now,
                    "channels": "[]",
                    "statistics": bounds,
                }
                for seq in range(first, last)
            ]
            connection.execute(model.chunks.insert(), rows)
        connection.execute(
            model.tables.update()
            .where(model.tables.c.table_id == table.table_id)
            .values(last_seq=max(chunks, table.last_seq))
        )
    if database.dialect == "sqlite":
        with database.reading() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    # Write the inserted rows to disk, so that measured COMMITs do not wait for them.
    os.sync()


def _driven(
    report: Report,
    names: tuple[str, str],
    running: Running,
    per_s: int,
    seconds: float,
    stage: Stage,
) -> Measured:
    """Run the load once and add a row to the report."""
    before = processor_s(running.started.pid)
    measured = drive(running, per_s, seconds, stage)
    service_s = processor_s(running.started.pid) - before
    report.add(
        *names,
        f"{per_s:,}",
        f"{measured.per_s:,.0f}",
        f"{measured.p50_ms:.1f}",
        f"{measured.p99_ms:.1f}",
        f"{measured.worst_ms:.1f}",
        f"{measured.late_ms:,.1f}",
        f"{service_s / max(per_s * seconds, 1) * 1e6:.0f} + {measured.load_us:.0f}",
    )
    return measured


def _measure(
    report: Report,
    name: str,
    options: argparse.Namespace,
    settings: Callable[[], dict[str, Any]],
) -> None:
    create = f"CREATE OR REPLACE TABLE {TABLE} (id NUMBER(18,0) NOT NULL)"
    verified: tuple[str, dict[str, Any]] = ("blobs, verified as shipped", {})
    opted_out: tuple[str, dict[str, Any]] = ("blobs, user opted out", {"unverified_users": "bench"})
    loads: list[tuple[str, dict[str, Any]]] = (
        [("metadata", {"verify": "off"})] if not options.only_blobs else []
    )
    for kind, given in (*loads, *[verified, opted_out] * options.turns):
        stage = Stage.NOTHING if "verify" in given else Stage.OWN_BLOBS
        rates = (
            options.blobs_per_s if stage is Stage.OWN_BLOBS else (*options.slower, options.per_s)
        )
        with Running(**given, **settings()) as running:
            running.execute(create)
            drive(running, 500, 2, stage)
            for per_s in rates:
                _driven(report, (name, kind), running, per_s, options.seconds, stage)
    if options.only_blobs:
        return
    with Running(verify="off", **settings()) as running:
        running.execute(create)
        times = {}
        for chunks in (1_000, 1_000_000):
            _grow(running, chunks)
            drive(running, 300, 2, Stage.NOTHING)
            kind = f"metadata, {chunks:,} chunks there"
            times[chunks] = statistics.median(
                _driven(report, (name, kind), running, 300, 5, Stage.NOTHING).p50_ms
                for _ in range(3)
            )
        report.remark(
            f"{name}: one registration at 10⁶ chunks takes "
            f"{times[1_000_000] / times[1_000]:.2f} of the time at 10³ (goal ≤ 1.5)."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--per-s", type=int, default=5_000)
    parser.add_argument("--slower", type=int, nargs="*", default=[1_000, 2_500])
    parser.add_argument("--blobs-per-s", type=int, nargs="*", default=[1_000, 3_000])
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only-blobs", action="store_true")
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    options = parser.parse_args()
    report = Report(
        "registrations_verified" if options.only_blobs else "registrations",
        "Registrations per second through HTTP, 64 connections, paced",
        (
            *("catalog", "what", "asked /s", "reached /s"),
            *("p50 ms", "p99 ms", "worst ms", "p99 ms from when due", "processor µs"),
        ),
    )
    if options.only != "postgresql":
        _measure(report, "SQLite", options, dict)
    if options.only != "sqlite":
        with postgres_settings() as settings:
            _measure(report, "PostgreSQL", options, settings)
    report.keep()


if __name__ == "__main__":
    main()
