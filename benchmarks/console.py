"""Benchmark of the console's pages with a large catalog.

Fills a catalog with 1,000 tables, 10,000 channels, and a million chunks, and loads each page as a browser does.
Pages must take 200 ms and 200 kB at most (median).

    ./run bench console [--chunks N] [--runs N]
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import time

import httpx
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.testing import LocalService

TABLES, CHANNELS, RUNS, EVENTS = 1_000, 10_000, 20_000, 100_000
PAGES = (
    "/",
    "/channels",
    "/channels?sort=lag",
    "/channels?sort=rejected",
    "/channels?find=c-99",
    "/channels/BENCH/PUBLIC/T0/c-0",
    "/tables",
    "/tables?sort=backlog",
    "/tables/BENCH/PUBLIC/T0",
    "/loads",
    "/migrations",
    "/functions",
    "/select",
    "/api/v1/overview",
    "/api/v1/channels?limit=50",
)
MAX_SECONDS, MAX_BYTES = 0.2, 200_000


def fill(service: LocalService, chunks: int) -> None:
    """Insert the rows of a large installation directly into the catalog."""
    service.sql("CREATE DATABASE bench")
    for number in range(TABLES):
        service.sql(f"CREATE TABLE bench.public.t{number} (id INT, at TIMESTAMP_NTZ, name VARCHAR)")
    now = dt.datetime.now(dt.UTC)
    each = chunks // TABLES
    hour = dt.timedelta(hours=1)

    def insert(table: sa.Table, rows: list[dict[str, object]]) -> None:
        for start in range(0, len(rows), 20_000):
            with service.embedded.service.database.writing() as connection:
                connection.execute(sa.insert(table), rows[start : start + 20_000])

    with service.embedded.service.database.reading() as connection:
        ids = list(connection.execute(sa.select(model.tables.c.table_id)).scalars())
    insert(
        model.channels,
        [
            {
                "table_id": ids[number % TABLES],
                "name": f"c-{number // TABLES}",
                "client_sequencer": 1,
                "row_sequencer": 10,
                "offset_token": str(number),
                "owner_user": f"user-{number % 37}",
                "opened_at": now - hour,
                "last_commit_at": now - dt.timedelta(seconds=number % 3600),
                "rows": number,
                "bytes": number * 100,
            }
            for number in range(CHANNELS)
        ],
    )
    insert(
        model.row_channels,
        [
            {
                "channel_id": number + 1,
                "rows_parsed": 10,
                "rows_inserted": 9,
                "rows_error": number % 7,
                "last_error": "a value is not a number",
                "last_error_at": now,
            }
            for number in range(CHANNELS // 2)
        ],
    )
    for table_id in ids:
        insert(
            model.chunks,
            [
                {
                    "table_id": table_id,
                    "seq": seq,
                    "prefix": "p",
                    "path": f"{table_id}/{seq}.bdec",
                    "offset": 0,
                    "length": 1000,
                    "md5": "0" * 32,
                    "key_id": 1,
                    "rows": 100,
                    "schema_version": 1,
                    "first_insert_ms": int(now.timestamp() * 1000) - (each - seq) * 1000,
                    "last_insert_ms": int(now.timestamp() * 1000),
                    "registered_at": now
                    - dt.timedelta(seconds=each - seq)
                    + dt.timedelta(seconds=0.6),
                    "channels": f'[["c-{seq % 10}",1,{seq},"a","b"]]',
                    "statistics": b"x" * 60,
                }
                for seq in range(1, each + 1)
            ],
        )
    with service.embedded.service.database.writing() as connection:
        connection.execute(sa.update(model.tables).values(last_seq=each, migrated_seq=each - 10))
    insert(
        model.channel_history,
        [
            {
                "table_id": ids[number % TABLES],
                "channel": f"c-{number % 10}",
                "event": "opened",
                "at": now,
                "client_sequencer": 1,
                "row_sequencer": 1,
            }
            for number in range(EVENTS)
        ],
    )
    insert(
        model.migrations,
        [
            {
                "run_id": f"m{number}",
                "table_id": ids[number % TABLES],
                "epoch": 1,
                "from_seq": number,
                "to_seq": number + 1,
                "state": "committed",
                "started_at": now - dt.timedelta(seconds=number * 10),
                "ended_at": now,
                "rows": 1000,
                "files": 2,
                "bytes": 10_000,
            }
            for number in range(RUNS)
        ],
    )
    insert(
        model.loads,
        [
            {
                "load_id": f"l{number}",
                "table_id": ids[number % TABLES],
                "role": "ACCOUNTADMIN",
                "statement": "COPY …",
                "state": "committed",
                "started_at": now - dt.timedelta(seconds=number * 10),
                "ended_at": now,
                "files": 3,
                "rows": 10_000,
                "rejects": 1,
                "bytes": 1_000_000,
            }
            for number in range(RUNS)
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    with LocalService(console="read") as service:
        began = time.perf_counter()
        fill(service, options.chunks)
        print(f"{options.chunks:,} chunks written in {time.perf_counter() - began:.0f} s")
        [(key, secret)] = service.sql("ALTER USER embedded ADD ACCESS KEY").rows
        with httpx.Client(base_url=service.url, timeout=60, follow_redirects=True) as browser:
            fields = {"key": key, "secret": secret}
            browser.post("/console/login", data=fields, headers={"origin": service.url})
            print(f"{'page':34} {'median ms':>10} {'worst ms':>9} {'kB':>7}")
            for path in PAGES:
                seconds, size = [], 0
                for _ in range(options.runs):
                    began = time.perf_counter()
                    answer = browser.get(f"/console{path}")
                    seconds.append(time.perf_counter() - began)
                    answer.raise_for_status()
                    size = len(answer.content)
                median = statistics.median(seconds)
                mark = "" if median <= MAX_SECONDS and size <= MAX_BYTES else "  TOO MUCH"
                print(
                    f"{path:34} {median * 1000:10.1f} {max(seconds) * 1000:9.1f}"
                    f" {size / 1000:7.1f}{mark}"
                )


if __name__ == "__main__":
    main()
