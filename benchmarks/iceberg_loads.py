"""Benchmark of loading a table from the Iceberg REST catalog, by number of chunks and native files.

uv run python benchmarks/iceberg_loads.py [--loads 1000]
"""

from __future__ import annotations

import argparse
import time
import uuid
from dataclasses import replace

import httpx
from harness import Running
from iceberg_freshness import make_token
from report import Report
from workload import DDL, rows

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.model.records import MetadataPointer
from snowmelt.catalog.objects.tables import find_table, swap_metadata_pointer
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.clock import SystemClock, to_epoch_ms
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.iceberg import IcebergAppend, IcebergSummary, commit_append
from snowmelt.table.migration import MigrationSettings, migrate_table
from snowmelt.table.native_file_writer import write_native_file
from snowmelt.table.snapshot import load_current_native_table
from snowmelt.table.table_reader import read_table
from snowmelt.table.warehouse_paths import open_warehouse
from support.ports import free_port

NAME = TableName("BENCH", "PUBLIC", "LOADED")
PATH = "iceberg/v1/BENCH/namespaces/PUBLIC/tables/LOADED"


def put_chunks(running: Running, count: int, token: str) -> None:
    """Commit chunks of one row."""
    with running.client() as client:
        channel = client.open_channel(f"c-{token}", table=str(NAME))
        for number in range(count):
            channel.insert_rows(rows(1), offset_token=str(number))
            channel.flush()
        channel.wait_for_commit(str(count - 1))


def add_native_files(running: Running, count: int) -> None:
    """Add native files of one row each in one commit."""
    settings, clock = running.settings, SystemClock()
    database = open_and_upgrade_database(settings.catalog_url)
    keyring = KeyRing(load_master_key(settings.keys_dir))
    try:
        with database.reading() as connection:
            table = find_table(connection, NAME)
        warehouse = open_warehouse(settings.warehouse_url)
        where = MigrationSettings(settings.stage_url, settings.warehouse_url)
        migrate_table(database, keyring, NAME, where)
        with database.reading() as connection:
            table = find_table(connection, NAME)
        native = load_current_native_table(table)
        assert native is not None
        data = read_table(database, keyring, open_store(settings.stage_url), NAME).slice(0, 1)
        folder = warehouse.table_folder(table)
        run_id = str(uuid.uuid4())
        written = write_native_file(warehouse.store, f"{folder}/data/{run_id}/0.parquet", data)
        body = warehouse.store.get(written.path)
        files = []
        for number in range(count):
            path = f"{folder}/data/{run_id}/{number + 1}.parquet"
            warehouse.store.put(path, body)
            files.append(replace(written, path=path))
        facts = replace(
            native.facts,
            run_id=run_id,
            rows=count,
            total_rows=native.facts.total_rows + count,
        )
        append = IcebergAppend(
            warehouse=warehouse,
            folder=folder,
            base=native,
            schema=table.schema,
            files=files,
            facts=IcebergSummary(**{name: getattr(facts, name) for name in facts.__slots__}),
            now_ms=to_epoch_ms(clock.now()),
        )

        def swap(location: str, _snapshot_id: int) -> None:
            with database.writing() as connection:
                swap_metadata_pointer(
                    connection,
                    table,
                    expected=MetadataPointer(table.pointer, table.migrated_seq),
                    new=MetadataPointer(location, table.migrated_seq),
                )

        commit_append(append, swap)
    finally:
        database.close()


def measure(client: httpx.Client, count: int, **headers: str) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        response = client.get(PATH, headers=headers)
        times.append((time.perf_counter() - began) * 1000)
        assert response.status_code in {200, 304}, response.text
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, default=1000)
    options = parser.parse_args()
    report = Report(
        "iceberg_loads",
        "Loading a table",
        (
            "native files",
            "waiting chunks",
            "p50 ms",
            "p99 ms",
            "304 p50 ms",
            "304 p99 ms",
            "first s",
        ),
    )
    for files, chunks in ((0, 1), (0, 1000), (10_000, 1), (10_000, 1000)):
        with Running(s3_port=free_port()) as running:
            running.execute(f"CREATE TABLE {NAME} ({DDL})")
            put_chunks(running, 1, "a")
            if files:
                add_native_files(running, files)
            put_chunks(running, chunks, "b")
            headers = {"authorization": f"Bearer {make_token(running.settings, 'BENCH')}"}
            with httpx.Client(base_url=running.url, headers=headers, timeout=120) as client:
                began = time.perf_counter()
                first = client.get(PATH)
                first_s = time.perf_counter() - began
                assert first.status_code == 200, first.text
                time.sleep(3)
                etag = client.get(PATH).headers["etag"]
                loads = measure(client, options.loads)
                cached = measure(client, options.loads, **{"if-none-match": etag})
            middle, high = options.loads // 2, options.loads * 99 // 100
            report.add(
                f"{files:,}",
                f"{chunks:,}",
                f"{loads[middle]:.1f}",
                f"{loads[high]:.1f}",
                f"{cached[middle]:.1f}",
                f"{cached[high]:.1f}",
                f"{first_s:.1f}",
            )
    report.remark(
        "One connection. The first load starts the publisher and waits for its first publication."
    )
    report.keep()


if __name__ == "__main__":
    main()
