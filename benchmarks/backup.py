"""Benchmark of backing up, verifying and restoring an installation.

uv run python benchmarks/backup.py [--chunks 40] [--rows-per-chunk 20000] [--turns 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from report import Report

from snowmelt.backup.backup_keys import create_key_pair, load_private_key, load_public_key
from snowmelt.backup.creation import BackupSource, create_point
from snowmelt.backup.destination import BackupDestination
from snowmelt.backup.restoration import RestoreTarget, restore_point
from snowmelt.backup.verification import verify_point
from snowmelt.catalog.objects.s3_buckets import create_bucket
from snowmelt.catalog.objects.s3_objects import ObjectRecord, put_object
from snowmelt.clock import SystemClock
from snowmelt.embedded import EmbeddedService
from snowmelt.schema.types import TableName
from snowmelt.storage.local_store import LocalStore
from snowmelt.table.migration import MigrationSettings, migrate_table
from snowmelt.table.warehouse_paths import open_warehouse

CLOCK = SystemClock()
TABLE = TableName("BENCH", "PUBLIC", "T")
_TEXT_BYTES = 160
_OBJECT_BYTES = 20_000


def _make_rows(number: int, count: int) -> pa.Table:
    """Return rows with text that compresses to about half of its size."""
    digits = np.random.default_rng(number).bytes(count * _TEXT_BYTES // 2).hex()
    texts = [digits[at : at + _TEXT_BYTES] for at in range(0, len(digits), _TEXT_BYTES)]
    return pa.table({"ID": pa.array(range(number * count, (number + 1) * count)), "X": texts})


def _put_objects(source: BackupSource, count: int) -> None:
    """Put small objects into a bucket, as the S3 endpoint does."""
    bytes_ = np.random.default_rng(1).bytes(_OBJECT_BYTES)
    now = CLOCK.now()
    with source.database.writing() as connection:
        bucket = create_bucket(connection, "bench", owner="ACCOUNTADMIN", now=now)
        for number in range(count):
            source.bucket.put(str(number), number.to_bytes(4) + bytes_)
            key, size = str(number).encode(), 4 + len(bytes_)
            record = ObjectRecord(key, size, "etag", now, {}, None, str(number))
            put_object(connection, bucket.bucket_id, record)


def _measure(work: Callable[[int], Any], turns: int) -> tuple[float, Any]:
    taken, result = [], None
    for turn in range(turns):
        began = time.perf_counter()
        result = work(turn)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=40)
    parser.add_argument("--rows-per-chunk", type=int, default=20_000)
    parser.add_argument("--objects", type=int, default=5_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    report = Report(
        "backup",
        "Backup, verification and restoration on one disk",
        ("what", "seconds", "MB", "MB/s"),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        create_key_pair(folder / "backup.key", folder / "backup.pub")
        public_key = load_public_key(folder / "backup.pub")
        private_key = load_private_key(folder / "backup.key")
        with EmbeddedService(folder / "data") as embedded, embedded.client() as client:
            embedded.sql("CREATE DATABASE bench")
            embedded.sql("CREATE TABLE bench.public.t (id INT, x VARCHAR)")
            service, settings = embedded.service, embedded.service.settings
            source = BackupSource(
                service.database,
                LocalStore(settings.stage_url),
                open_warehouse(settings.warehouse_url),
                LocalStore(settings.objects_dir),
                service.keyring,
                CLOCK,
            )
            with client.open_channel("c", table="bench.public.t") as channel:
                for number in range(options.chunks):
                    channel.insert_arrow(_make_rows(number, options.rows_per_chunk), str(number))
                    channel.flush()
            places = MigrationSettings(settings.stage_url, settings.warehouse_url)
            migrate_table(service.database, service.keyring, TABLE, places)

            def back_up(number: int) -> Any:
                destination = BackupDestination(LocalStore(folder / f"backup{number}"))
                return create_point(source, destination, public_key)

            def add(what: str, seconds: float, size: int) -> None:
                megabytes = size / 1e6
                report.add(what, f"{seconds:.2f}", f"{megabytes:.1f}", f"{megabytes / seconds:.0f}")

            seconds, point = _measure(back_up, options.turns)
            add(f"first point, {point.objects} objects", seconds, point.copied_bytes)
            seconds, point = _measure(lambda _: back_up(0), options.turns)
            add("point without news", seconds, point.copied_bytes)
            _put_objects(source, options.objects)
            seconds, more = _measure(lambda _: back_up(0), 1)
            add(f"point with {options.objects:,} new small objects", seconds, more.copied_bytes)
            seconds, more = _measure(lambda _: back_up(0), options.turns)
            add("point without news after that", seconds, more.copied_bytes)
        destination = BackupDestination(LocalStore(folder / "backup0"))

        def restore(number: int) -> int:
            target = folder / f"restored{number}"
            return restore_point(
                destination,
                point,
                private_key,
                RestoreTarget(
                    f"sqlite:///{target / 'catalog.db'}",
                    LocalStore(target / "stage"),
                    open_warehouse(str(target / "warehouse")),
                    LocalStore(target / "objects"),
                    target / "keys",
                    CLOCK,
                ),
            )

        seconds, _ = _measure(restore, options.turns)
        add("restoration", seconds, point.bytes)
        seconds, result = _measure(
            lambda _: verify_point(destination, point, private_key, CLOCK), options.turns
        )
        if result.problems:
            raise SystemExit("\n".join(result.problems))
        add("verification", seconds, point.bytes)
        report.remark(f"{result.rows:,} rows; medians of {options.turns}; all stores on one disk.")
    report.keep()


if __name__ == "__main__":
    main()
