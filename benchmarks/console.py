"""Benchmark of the console's pages with a large catalog.

Fills a catalog with 1,000 tables, 10,000 channels, 1,000 partitions of Kafka, a secondary, and a
million chunks, and loads each page as a browser does. Pages must take 200 ms of processor time and
200 kB at most (median). Processor time includes all threads of the service, but not traces and
other tasks, which run in separate processes.

With `--browsers`, measures the ingest of rows in rounds with and without open overviews. Open
overviews may reduce ingest by 5 % at most.

    ./run bench console [--chunks N] [--runs N] [--postgres]
    ./run bench console --browsers 50 [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import sqlalchemy as sa
from harness import Running
from postgres_server import running_postgres

from snowmelt.catalog import model
from snowmelt.client.console import ConsoleClient
from snowmelt.testing import LocalService

TABLES, CHANNELS, RUNS, EVENTS = 1_000, 10_000, 20_000, 100_000
PARTITIONS = 1_000
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
    "/channels?only=late",
    "/pipes",
    "/kafka",
    "/migrations",
    "/checks",
    "/query",
    "/select",
    "/functions",
    "/sites",
    "/tables/BENCH/PUBLIC/T0/trace?channel=c-1",
    "/api/v1/overview",
    "/api/v1/channels?limit=50",
)
MAX_SECONDS, MAX_BYTES = 0.2, 200_000
MAX_INGEST_COST = 0.05
ROUND_ROWS = 200_000


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
    partitions = [
        {
            "table_id": ids[number % TABLES],
            "name": f"topic-{number % 10}:P{number}{suffix}",
            "client_sequencer": 1,
            "row_sequencer": 10,
            "offset_token": str(1000 + number % 7),
            "owner_user": "kafka",
            "opened_at": now - hour,
            "last_commit_at": now,
        }
        for number in range(PARTITIONS)
        for suffix in ("", ":end")
    ]
    insert(model.channels, partitions)
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


def add_secondary(service: LocalService) -> None:
    """Create a failover group whose secondary has confirmed nine of ten channels."""
    service.sql("CREATE FAILOVER GROUP g ALLOWED_ACCOUNTS = site2 SITE = site1")
    now = dt.datetime.now(dt.UTC)
    with service.embedded.service.database.writing() as connection:
        slot = {"site": "SITE2", "site_number": 2, "url": "http://two", "point": 0}
        slots, reported = model.replica_slots, model.reported_channels
        connection.execute(sa.insert(slots).values(**slot, protected_from=0, requested_at=now))
        connection.execute(sa.update(model.failover_groups).values(protected_from=0))
        columns = ("channel_id", "client_sequencer", "row_sequencer", "offset_token")
        chosen = sa.select(sa.literal("SITE2"), *(model.channels.c[each] for each in columns))
        chosen = chosen.where(model.channels.c.channel_id % 10 > 0)
        connection.execute(sa.insert(reported).from_select(("site", *columns), chosen))


def measure_pages(options: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Print time and size of each page."""
    # A check during the measurement would take time on the same processor.
    with LocalService(console="read", console_check_interval_s=0, **settings) as service:
        began = time.perf_counter()
        fill(service, options.chunks)
        print(f"{options.chunks:,} chunks written in {time.perf_counter() - began:.0f} s")
        service.sql("ALTER TABLE bench.public.t0 SET FRESHNESS = '1 minute'")
        add_secondary(service)
        with httpx.Client(base_url=service.url, timeout=60, follow_redirects=True) as browser:
            log_in(browser, service)
            print(f"{'page':44} {'CPU ms':>8} {'median ms':>10} {'worst ms':>9} {'kB':>7}")
            for path in PAGES:
                # The first request of a page imports its modules.
                browser.get(f"/console{path}").raise_for_status()
                seconds, processor_s, size = [], [], 0
                for _ in range(options.runs):
                    began, used = time.perf_counter(), time.process_time() - time.thread_time()
                    answer = browser.get(f"/console{path}")
                    seconds.append(time.perf_counter() - began)
                    processor_s.append(time.process_time() - time.thread_time() - used)
                    answer.raise_for_status()
                    size = len(answer.content)
                median, used = statistics.median(seconds), statistics.median(processor_s)
                mark = "" if used <= MAX_SECONDS and size <= MAX_BYTES else "  TOO MUCH"
                print(
                    f"{path:44} {used * 1000:8.1f} {median * 1000:10.1f}"
                    f" {max(seconds) * 1000:9.1f} {size / 1000:7.1f}{mark}",
                    flush=True,
                )


def log_in(browser: httpx.Client, service: LocalService) -> None:
    """Log in with an access key of the embedded user."""
    [(key, secret)] = service.sql("ALTER USER embedded ADD ACCESS KEY").rows
    fields = {"key": key, "secret": secret}
    browser.post("/console/login", data=fields, headers={"origin": str(browser.base_url)})


# Program of a separate process. Arguments: URL, number of browsers, and login code.
READER = """
import asyncio, sys, httpx
async def read(browser, url):
    async with browser.stream("GET", url, timeout=None) as response:
        assert response.status_code == 200, response.status_code
        print("open", flush=True)
        async for _ in response.aiter_bytes():
            pass
async def main(url, count, code):
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60) as browser:
        (await browser.post(f"{url}/console/login", data={"code": code}, headers={"origin": url}))
        await asyncio.gather(*(read(browser, f"{url}/console/live?page=/console/") for _ in range(count)))
asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
"""


@contextlib.contextmanager
def open_browsers(service: Running, count: int) -> Iterator[None]:
    """Keep live overviews open in a separate process."""
    with ConsoleClient(service.url, user="bench", private_key=service.private_key) as console:
        code = str(console.fetch("/login-codes")["code"])
    command = [sys.executable, "-c", READER, service.url, str(count), code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(count):
            assert process.stdout.readline(), "a live page was refused"
        yield
        process.kill()


def measure_ingest(options: argparse.Namespace) -> None:
    """Print rows per second of a client, with and without open overviews."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    rows = [{"id": number, "name": f"name {number}"} for number in range(ROUND_ROWS)]
    with Running(console="read") as service:
        service.execute("CREATE TABLE bench.public.t (id INT, name VARCHAR)")
        with service.client() as client:
            channel = client.open_channel("c", table="bench.public.t")
            # The first two rounds are warm-up rounds.
            for number in range(2 * options.rounds + 2):
                has_browsers = number % 2 == 1
                watching = open_browsers(service, options.browsers)
                with watching if has_browsers else contextlib.nullcontext():
                    began = time.perf_counter()
                    channel.insert_rows(rows, offset_token=str(number))
                    channel.wait_for_commit(str(number))
                    rate = ROUND_ROWS / (time.perf_counter() - began)
                if number > 1:
                    rates[has_browsers].append(rate)
    alone, watched = (statistics.median(rates[each]) for each in (False, True))
    for name, has_browsers in (("alone", False), (f"{options.browsers} browsers", True)):
        print(f"{name:14} {' '.join(f'{rate:10,.0f}' for rate in rates[has_browsers])} rows/s")
    cost = 1 - watched / alone
    mark = "  TOO MUCH" if cost > MAX_INGEST_COST else ""
    print(f"cost of {options.browsers} browsers (medians): {cost:.1%}{mark}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--postgres", action="store_true", help="catalog on PostgreSQL")
    parser.add_argument("--browsers", type=int, default=0, help="measure their cost for ingest")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.browsers:
        measure_ingest(options)
    elif options.postgres:
        with running_postgres() as url:
            measure_pages(options, {"catalog_url": url})
    else:
        measure_pages(options, {})


if __name__ == "__main__":
    main()
