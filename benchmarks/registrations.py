"""How many registrations a second does one service take, and how long does one take?

    uv run python benchmarks/registrations.py [--seconds 10] [--per-s 5000] [--postgres]

Each of 64 connections owns a channel and registers one chunk after another, paced. "metadata" asks
the service not to look at the stage (`verify=off`, a setting for this benchmark alone); "blobs"
has real blobs on the stage, verified as shipped. Then the time of one registration on a table with
10³ and with 10⁶ chunks already there.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import hashlib
import multiprocessing
import subprocess
import time
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from harness import Running
from report import Report

from snowmelt.blob.layout import blob_path
from snowmelt.blob.writer import ChunkSource, build_blob
from snowmelt.catalog import model
from snowmelt.catalog.database import open_database
from snowmelt.catalog.tables import find_table
from snowmelt.client.tokens import KeyPairTokens, load_private_key
from snowmelt.clock import SystemClock
from snowmelt.schema.arrow import chunk_schema
from snowmelt.schema.statistics import collect
from snowmelt.schema.types import Column, Kind, TableName, TableSchema
from snowmelt.wire.eps import to_wire
from snowmelt.wire.streaming import (
    BlobMetadata,
    ChunkChannel,
    ChunkMetadata,
    ConfigureResponse,
    OpenResponse,
    RegisterRequest,
    RegisterResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTIONS = 64
SCHEMA = TableSchema(1, (Column("ID", Kind.FIXED, 1, nullable=False, precision=18, scale=0),))
ROWS = pa.table({"ID": [Decimal(n) for n in range(100)]}, schema=chunk_schema(SCHEMA))
TABLE = "bench.public.registrations"


class Connection:
    """One keep-alive connection, spoken plainly so that the client costs little."""

    def __init__(self, url: str, token: str) -> None:
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port = int(port)
        self.head = (
            f"Host: {self.host}:{self.port}\r\nAuthorization: Bearer {token}\r\n"
            "X-Snowflake-Authorization-Token-Type: KEYPAIR_JWT\r\nAccept: application/json\r\n"
            "X-Snowmelt-Client: benchmark\r\nContent-Type: application/json; charset=UTF-8\r\n"
        )

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)

    async def post(self, path: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\n{self.head}Content-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        lines = answer.decode().lower().split("\r\n")
        length = next(int(x.partition(":")[2]) for x in lines if x.startswith("content-length"))
        content = await self.reader.readexactly(length)
        if " 200 " not in lines[0]:
            raise RuntimeError(f"{lines[0]} {content[:300]!r}")
        return content


class Channel:
    """One channel that registers one-chunk blobs of 100 rows."""

    def __init__(self, connection: Connection, number: int, *, staged: bool) -> None:
        self.connection, self.number, self.staged = connection, number, staged
        self.sequence = 0

    async def open(self) -> None:
        await self.connection.open()
        encode = msgspec.json.encode
        answer = await self.connection.post("/v1/streaming/client/configure/", b'{"role":null}')
        configured = msgspec.json.decode(answer, type=ConfigureResponse)
        self.stage = Path(configured.stage_location.location)
        self.prefix = f"{configured.prefix}_{configured.deployment_id}"
        database, schema, table = TABLE.split(".")
        request = {"request_id": f"{self.prefix}_0", "role": None, "channel": f"c{self.number}"}
        request |= {"database": database, "schema": schema, "table": table}
        answer = await self.connection.post("/v1/streaming/channels/open/", encode(request))
        self.opened = msgspec.json.decode(answer, type=OpenResponse)
        if self.opened.status_code:
            raise RuntimeError(self.opened.message)
        import base64

        self.key = base64.b64decode(self.opened.encryption_key)
        self.row_sequencer = self.opened.row_sequencer

    def next_request(self) -> bytes:
        self.sequence += 1
        self.row_sequencer += 1
        path = blob_path(dt.datetime.now(dt.UTC), self.prefix, self.number, self.sequence)
        blob = build_blob(path, [ChunkSource(ROWS, SCHEMA, self.key)])
        if self.staged:
            target = self.stage / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(blob.data)
        chunk = blob.chunks[0]
        token = str(self.sequence)
        metadata = ChunkMetadata(
            database=self.opened.database,
            schema=self.opened.schema,
            table=self.opened.table,
            chunk_start_offset=chunk.offset,
            chunk_length=chunk.length,
            chunk_length_uncompressed=chunk.length,
            channels=[
                ChunkChannel(
                    channel_name=self.opened.channel,
                    client_sequencer=self.opened.client_sequencer,
                    row_sequencer=self.row_sequencer,
                    offset_token=token,
                    end_offset_token=token,
                )
            ],
            chunk_md5=chunk.md5,
            eps=to_wire(SCHEMA, collect(ROWS, SCHEMA)),
            encryption_key_id=self.opened.encryption_key_id,
            first_insert_time_in_ms=1,
            last_insert_time_in_ms=1,
        )
        request = RegisterRequest(
            request_id=f"{self.prefix}_{self.sequence}",
            blobs=[BlobMetadata(path=path, md5=blob.md5, chunks=[metadata], bdec_version=3)],
            client_key=self.prefix,
        )
        return msgspec.json.encode(request)

    async def register(self, body: bytes) -> None:
        answer = await self.connection.post("/v1/streaming/channels/write/blobs/", body)
        response = msgspec.json.decode(answer, type=RegisterResponse)
        verdict = response.blobs[0].chunks[0].channels[0]
        if verdict.status_code:
            raise RuntimeError(f"refused: {verdict}")


async def _drive(url: str, token: str, per_s: float, seconds: float, staged: bool) -> list[float]:
    """Return the seconds that each registration took, from when it was due to be sent."""
    channels = [Channel(Connection(url, token), n, staged=staged) for n in range(CONNECTIONS)]
    for channel in channels:
        await channel.open()
    count = int(per_s * seconds / CONNECTIONS)
    bodies = [[channel.next_request() for _ in range(count)] for channel in channels]
    began = time.perf_counter() + 0.2
    taken: list[float] = []

    async def run(index: int) -> None:
        gap = CONNECTIONS / per_s
        for number, body in enumerate(bodies[index]):
            due = began + (number + index / CONNECTIONS) * gap
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent = time.perf_counter()
            await channels[index].register(body)
            taken.append(time.perf_counter() - sent)

    await asyncio.gather(*(run(index) for index in range(CONNECTIONS)))
    taken.append(time.perf_counter() - began)
    return taken


def _child(pipe, url: str, token: str, per_s: float, seconds: float, staged: bool) -> None:
    import uvloop

    pipe.send(uvloop.run(_drive(url, token, per_s, seconds, staged)))


def drive(running: Running, per_s: float, seconds: float, *, staged: bool) -> tuple[float, ...]:
    """Return rate reached, p50, p99 and worst in milliseconds, from a load process of its own."""
    token = KeyPairTokens(
        "127", "bench", load_private_key(running.private_key), SystemClock()
    ).current()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    arguments = (theirs, running.url, token, per_s, seconds, staged)
    process = multiprocessing.get_context("spawn").Process(target=_child, args=arguments)
    process.start()
    *taken, total = ours.recv()
    process.join()
    taken.sort()
    picks = (taken[len(taken) // 2], taken[len(taken) * 99 // 100], taken[-1])
    return (len(taken) / total, *(pick * 1000 for pick in picks))


def _grow(running: Running, chunks: int) -> None:
    """Put chunk rows beneath the table, as if registered and not yet migrated, up to `chunks`."""
    database = open_database(running.settings.catalog_url)
    name = TableName("BENCH", "PUBLIC", "REGISTRATIONS")
    statistics = msgspec.json.encode(to_wire(SCHEMA, collect(ROWS, SCHEMA)))
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
                    "statistics": statistics,
                }
                for seq in range(first, last)
            ]
            connection.execute(model.chunks.insert(), rows)
        connection.execute(
            model.tables.update()
            .where(model.tables.c.table_id == table.table_id)
            .values(last_seq=max(chunks, table.last_seq))
        )
    database.close()


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL of its own with shipped durability; yields the URL of an empty database."""
    from postgres_server import running_postgres

    with running_postgres() as url:
        yield url


def _measure(report: Report, name: str, options: argparse.Namespace, **settings: object) -> None:
    for kind, verify, per_s in (
        ("metadata", "off", options.per_s),
        ("blobs, verified as shipped", "footer", options.blobs_per_s),
    ):
        with Running(verify=verify, **settings) as running:
            running.execute(f"CREATE OR REPLACE TABLE {TABLE} (id NUMBER(18,0) NOT NULL)")
            staged = verify != "off"
            drive(running, 500, 2, staged=staged)
            rate, p50, p99, worst = drive(running, per_s, options.seconds, staged=staged)
            cells = (f"{p50:.1f}", f"{p99:.1f}", f"{worst:.1f}")
            report.add(name, kind, f"{per_s:,}", f"{rate:,.0f}", *cells)
    with Running(verify="off", **settings) as running:
        running.execute(f"CREATE OR REPLACE TABLE {TABLE} (id NUMBER(18,0) NOT NULL)")
        times = {}
        for chunks in (1_000, 1_000_000):
            _grow(running, chunks)
            drive(running, 500, 2, staged=False)
            rate, p50, p99, worst = drive(running, 500, 5, staged=False)
            times[chunks] = p50
            cells = (f"{p50:.2f}", f"{p99:.1f}", f"{worst:.1f}")
            report.add(name, f"metadata, {chunks:,} chunks there", "500", f"{rate:,.0f}", *cells)
        report.remark(
            f"{name}: one registration at 10⁶ chunks takes "
            f"{times[1_000_000] / times[1_000]:.2f} of the time at 10³ (goal ≤ 1.5)."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--per-s", type=int, default=5_000)
    parser.add_argument("--blobs-per-s", type=int, default=1_000)
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    options = parser.parse_args()
    report = Report(
        "registrations",
        "Registrations per second through HTTP, 64 connections, paced",
        ("catalog", "what", "asked /s", "reached /s", "p50 ms", "p99 ms", "worst ms"),
    )
    if options.only != "postgresql":
        _measure(report, "SQLite", options)
    if options.only != "sqlite":
        with postgres() as url:
            _measure(report, "PostgreSQL", options, catalog_url=url)
    report.remark("Client and service share the two cores. Goal: metadata at 5,000/s, p99 < 20 ms.")
    report.keep()


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        raise SystemExit(str(error)) from None
