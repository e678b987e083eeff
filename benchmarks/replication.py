"""Benchmark of replication: how far a secondary is behind.

    uv run python benchmarks/replication.py [--seconds 20] [--rows-per-s 50000]

A client streams rows. For each chunk, the time from its registration at the primary until the catalog of
the secondary has it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import threading
import time

import sqlalchemy as sa
from harness import Running
from registering_load import TABLE
from report import Report

from snowmelt.catalog import model
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects import failover_groups

_CREATE = f"CREATE OR REPLACE TABLE {TABLE} (id NUMBER(18,0) NOT NULL)"
_BATCH = 1_000


def _join(primary: Running, secondary: Running) -> None:
    """Make a group of two sites, and wait until the second one has everything."""
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


def _read_last_seq(running: Running) -> int:
    database = open_and_upgrade_database(running.settings.catalog_url)
    with database.reading() as connection:
        found = connection.execute(sa.select(sa.func.max(model.tables.c.last_seq))).scalar_one()
    database.close()
    return int(found)


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
                with database.reading() as connection:
                    seq = connection.execute(
                        sa.select(sa.func.max(model.tables.c.last_seq))
                    ).scalar()
                if seq is not None and seq > last:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rows-per-s", type=int, default=50_000)
    options = parser.parse_args()
    report = Report("replication", "Replication between two sites", ("what", "measured", "goal"))
    _measure_lag(report, options)
    report.keep()


if __name__ == "__main__":
    main()
