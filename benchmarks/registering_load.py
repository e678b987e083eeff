"""Load generator of `registrations.py`: 64 connections that register chunks at a given rate.

Requests are prepared in advance and responses are decoded once, which takes about 20 µs of
processor time per request. The service is therefore the bottleneck, although both share two cores.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import multiprocessing
import time
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from snowmelt.blob.encryption import make_blob_path
from snowmelt.blob.writer import Blob, ChunkInput, build_blob
from snowmelt.client.auth import KeyPairTokenProvider, load_private_key
from snowmelt.clock import SystemClock
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.statistics import collect_statistics
from snowmelt.schema.types import Column, LogicalType, TableSchema
from snowmelt.wire.column_statistics import statistics_to_message
from snowmelt.wire.streaming import (
    BlobMetadata,
    ChunkChannelMessage,
    ChunkMetadata,
    ConfigureClientResponse,
    OpenChannelResponse,
    RegisterBlobsRequest,
    RegisterBlobsResponse,
    ResponseCode,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection as Pipe

    from harness import Running

CONNECTIONS = 64
SCHEMA = TableSchema(
    1, (Column("ID", LogicalType.FIXED, 1, nullable=False, precision=18, scale=0),)
)
ROWS = pa.table({"ID": [Decimal(n) for n in range(100)]}, schema=chunk_arrow_schema(SCHEMA))
STATISTICS = statistics_to_message(SCHEMA, collect_statistics(ROWS, SCHEMA))
TABLE = "bench.public.registrations"
_LENGTH = b"content-length: "
_answers = msgspec.json.Decoder(RegisterBlobsResponse)


class Stage(Enum):
    """Content of the stage: no blobs, one blob for all paths, or a blob for each request.

    A service that verifies needs a blob for each request. A secondary needs a blob at each path.
    """

    NOTHING = "nothing"
    SAME_BLOB = "same blob"
    OWN_BLOBS = "own blobs"


@dataclass(frozen=True)
class Measured:
    """Registrations per second, and milliseconds from sending, or from the due time, to response.

    `late_ms` is the 99th percentile from the due time, so it includes the wait for earlier requests
    of the same connection. `load_us` is the generator's processor time per request.
    """

    per_s: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    late_ms: float
    load_us: float


class _ServiceBusy(RuntimeError):
    """The service asks to retry later."""


class Connection(asyncio.Protocol):
    """Keep-alive connection with at most one request in flight."""

    def __init__(self, url: str, token: str) -> None:
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port = int(port)
        self.head = (
            f"Host: {self.host}:{self.port}\r\nAuthorization: Bearer {token}\r\n"
            "X-Snowflake-Authorization-Token-Type: KEYPAIR_JWT\r\nAccept: application/json\r\n"
            "Content-Type: application/json; charset=UTF-8\r\n"
        )
        self._received = b""
        self._answered: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, self.host, self.port)

    def request(self, path: str, body: bytes) -> bytes:
        return (
            f"POST {path} HTTP/1.1\r\n{self.head}Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        self._answered = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        self._transport.write(request)
        return self._answered

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, content = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        length = int(head[head.lower().index(_LENGTH) + len(_LENGTH) :].split(b"\r\n", 1)[0])
        if len(content) < length:
            return
        self._received = b""
        assert self._answered is not None
        if head.startswith(b"HTTP/1.1 200 "):
            self._answered.set_result(content)
        else:
            kind = _ServiceBusy if head.startswith(b"HTTP/1.1 503 ") else RuntimeError
            self._answered.set_exception(kind(f"{head!r} {content[:300]!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or RuntimeError("the service hung up"))


class Channel:
    """One channel that registers one-chunk blobs of 100 rows."""

    def __init__(self, connection: Connection, number: int, stage: Stage) -> None:
        self.connection, self.number, self.uses = connection, number, stage
        self.sequence = 0
        self.blob: Blob | None = None

    async def open(self) -> None:
        await self.connection.open()
        answer = await self._post("/v1/streaming/client/configure/", {"role": None})
        configured = msgspec.json.decode(answer, type=ConfigureClientResponse)
        assert configured.stage_location is not None
        assert configured.stage_location.location is not None
        self.stage = Path(configured.stage_location.location)
        self.prefix = f"{configured.prefix}_{configured.deployment_id}"
        database, schema, table = TABLE.split(".")
        request = {"request_id": f"{self.prefix}_0", "role": None, "channel": f"c{self.number}"}
        request |= {"database": database, "schema": schema, "table": table}
        while True:
            # In a failover group, opening a channel waits until its last commit is replicated.
            with contextlib.suppress(_ServiceBusy):
                answer = await self._post("/v1/streaming/channels/open/", request)
                self.opened = msgspec.json.decode(answer, type=OpenChannelResponse)
                if self.opened.status_code != ResponseCode.TRY_AGAIN:
                    break
            await asyncio.sleep(0.1)
        if self.opened.status_code:
            raise RuntimeError(self.opened.message)
        assert self.opened.encryption_key is not None
        assert self.opened.row_sequencer is not None
        self.key = base64.b64decode(self.opened.encryption_key)
        self.row_sequencer = self.opened.row_sequencer

    async def _post(self, path: str, message: object) -> bytes:
        return await self.connection.ask(
            self.connection.request(path, msgspec.json.encode(message))
        )

    def next_request(self) -> bytes:
        self.sequence += 1
        self.row_sequencer += 1
        path = make_blob_path(dt.datetime.now(dt.UTC), self.prefix, self.number, self.sequence)
        # If the service does not read the stage, one blob serves for all requests.
        if self.uses is Stage.OWN_BLOBS or self.blob is None:
            self.blob = build_blob(path, [ChunkInput(ROWS, SCHEMA, self.key)])
        if self.uses is not Stage.NOTHING:
            target = self.stage / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.blob.data)
        chunk = self.blob.chunks[0]
        token = str(self.sequence)
        metadata = ChunkMetadata(
            database=self.opened.database,
            schema=self.opened.schema,
            table=self.opened.table,
            chunk_start_offset=chunk.offset,
            chunk_length=chunk.length,
            chunk_length_uncompressed=chunk.length,
            channels=[
                ChunkChannelMessage(
                    channel_name=self.opened.channel,
                    client_sequencer=self.opened.client_sequencer,
                    row_sequencer=self.row_sequencer,
                    offset_token=token,
                    end_offset_token=token,
                )
            ],
            chunk_md5=chunk.md5,
            eps=STATISTICS,
            encryption_key_id=self.opened.encryption_key_id,
            first_insert_time_in_ms=1,
            last_insert_time_in_ms=1,
        )
        request = RegisterBlobsRequest(
            request_id=f"{self.prefix}_{self.sequence}",
            blobs=[BlobMetadata(path=path, md5=self.blob.md5, chunks=[metadata], bdec_version=3)],
            client_key=self.prefix,
        )
        return self.connection.request(
            "/v1/streaming/channels/write/blobs/", msgspec.json.encode(request)
        )

    async def register(self, request: bytes) -> None:
        response = _answers.decode(await self.connection.ask(request))
        verdict = response.blobs[0].chunks[0].channels[0]
        if verdict.status_code:
            raise RuntimeError(f"refused: {verdict}")


async def _run(
    on_prepared: Callable[[], None],
    url: str,
    token: str,
    per_s: float,
    seconds: float,
    stage: Stage,
) -> Measured:
    channels = [Channel(Connection(url, token), n, stage) for n in range(CONNECTIONS)]
    for channel in channels:
        await channel.open()
    count = int(per_s * seconds / CONNECTIONS)
    requests = [[channel.next_request() for _ in range(count)] for channel in channels]
    on_prepared()
    cpu = time.process_time()
    began = time.perf_counter() + 0.2
    taken: list[float] = []
    late: list[float] = []

    async def run(index: int) -> None:
        gap = CONNECTIONS / per_s
        for number, request in enumerate(requests[index]):
            due = began + (number + index / CONNECTIONS) * gap
            if (ahead := due - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            sent = time.perf_counter()
            await channels[index].register(request)
            answered = time.perf_counter()
            taken.append(answered - sent)
            late.append(answered - due)

    await asyncio.gather(*(run(index) for index in range(CONNECTIONS)))
    total = time.perf_counter() - began
    cpu = time.process_time() - cpu
    taken.sort()
    late.sort()
    return Measured(
        per_s=len(taken) / total,
        p50_ms=taken[len(taken) // 2] * 1000,
        p99_ms=taken[len(taken) * 99 // 100] * 1000,
        worst_ms=taken[-1] * 1000,
        late_ms=late[len(late) * 99 // 100] * 1000,
        load_us=cpu / len(taken) * 1e6,
    )


def _child(pipe: Pipe, *arguments: Any) -> None:
    """Send None when the requests are prepared, and then what was measured or the error."""
    import gc

    import uvloop

    gc.disable()
    try:
        pipe.send(uvloop.run(_run(lambda: pipe.send(None), *arguments)))
    except Exception as error:
        pipe.send(error)


def drive(
    running: Running,
    per_s: float,
    seconds: float,
    stage: Stage,
    on_prepared: Callable[[], None] = lambda: None,
) -> Measured:
    """Register chunks from a separate process.

    Calls `on_prepared` after the channels were opened and the requests were made.

    Raises:
        RuntimeError: If the service does not open a channel, or rejects a chunk.
    """
    token = KeyPairTokenProvider(
        "127", "bench", load_private_key(running.private_key), SystemClock()
    ).get_token()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, running.url, token, per_s, seconds, stage)
    process = context.Process(target=_child, args=arguments)
    process.start()
    theirs.close()
    while (received := ours.recv()) is None:
        on_prepared()
    process.join()
    if isinstance(received, Exception):
        raise received
    measured: Measured = received
    return measured
