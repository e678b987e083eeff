"""Benchmark of small row API requests: processor time of the service, and response time.

    python benchmarks/row_requests.py [--rates 300 1000] [--seconds 8] [--channels 1000]

Each request has 50 rows (12 kB of JSON, 3 kB of zstd) for a separate channel, over TLS, at a given
rate. The load generator is a separate process that sends prepared requests. Processor time is
measured per request for each thread of the service.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import ssl
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx
import msgspec
import pyarrow as pa
from harness import Secure
from report import Report
from row_api import PIPE
from workload import DDL, rows

from snowmelt.client.auth import KeyPairTokenProvider, load_private_key
from snowmelt.clock import SystemClock

if TYPE_CHECKING:
    from multiprocessing.connection import Connection as Pipe

ROWS = 50
PATH = "/v2/streaming/{}databases/BENCH/schemas/PUBLIC/pipes/P/channels/C{}"
_TICKS = os.sysconf("SC_CLK_TCK")


def _bodies() -> list[tuple[bytes, int]]:
    """Return request bodies of the official SDK in zstd, and the JSON size of each."""
    encoder = msgspec.json.Encoder(decimal_format="string")
    codec = pa.Codec("zstd", compression_level=3)
    data = rows(20 * ROWS)
    plain = [
        encoder.encode_lines(data[first : first + ROWS]) for first in range(0, len(data), ROWS)
    ]
    return [(codec.compress(body, asbytes=True), len(body)) for body in plain]


class Channel(asyncio.Protocol):
    """Connection with a channel and one request in flight."""

    def __init__(self, number: int, token: str, head: str) -> None:
        self.number, self.token, self.head = number, token, head
        self.received = b""
        self.answered: asyncio.Future[str] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def send(self, sequence: int, body: bytes, length: int) -> asyncio.Future[str]:
        self.answered = asyncio.get_running_loop().create_future()
        path = PATH.format("data/", self.number)
        query = f"continuationToken={self.token}&requestId={self.number}-{sequence}"
        head = (
            f"POST {path}/rows?{query}&startOffsetToken={sequence}&endOffsetToken={sequence} HTTP/1.1\r\n"
            f"{self.head}x-snowflake-uncompressed-content-length: {length}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        return self.answered

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, content = self.received.partition(b"\r\n\r\n")
        if not end or not content.endswith(b"}"):
            return
        self.received = b""
        assert self.answered is not None
        if head.startswith(b"HTTP/1.1 200 "):
            self.token = msgspec.json.decode(content)["next_continuation_token"]
            self.answered.set_result(self.token)
        else:
            self.answered.set_exception(RuntimeError(f"{head!r} {content[:300]!r}"))


def _itself(channel: Channel) -> Channel:
    return channel


async def _run(told: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context(cafile=str(told["ca"]))
    host, _, port = str(told["url"]).removeprefix("https://").partition(":")
    tokens, channels = told["tokens"], list[Channel]()
    for number, token in enumerate(tokens):
        channel = Channel(number, token, str(told["head"]))
        await loop.create_connection(partial(_itself, channel), host, int(port), ssl=context)
        channels.append(channel)
    bodies = itertools.cycle(_bodies())
    count, gap = int(told["rate"] * told["seconds"]), 1 / told["rate"]
    told["pipe"].send("opened")
    began, cpu = time.perf_counter() + 0.1, time.process_time()
    taken: list[float] = []

    async def one(number: int, body: bytes, length: int) -> None:
        channel = channels[number % len(channels)]
        sent = time.perf_counter()
        await channel.send(told["first"] + number, body, length)
        taken.append(time.perf_counter() - sent)

    tasks = []
    for number in range(count):
        ahead = began + number * gap - time.perf_counter()
        if ahead > 0:
            await asyncio.sleep(ahead)
        channel = channels[number % len(channels)]
        if channel.answered is not None and not channel.answered.done():
            await channel.answered
        tasks.append(loop.create_task(one(number, *next(bodies))))
    await asyncio.gather(*tasks)
    total = time.perf_counter() - began
    taken.sort()
    return {
        "per_s": count / total,
        "p50_ms": statistics.median(taken) * 1e3,
        "p99_ms": taken[len(taken) * 99 // 100] * 1e3,
        "load_ms": (time.process_time() - cpu) / count * 1e3,
        "tokens": [channel.token for channel in channels],
    }


def _child(pipe: Pipe, told: dict[str, Any]) -> None:
    import uvloop

    pipe.send(uvloop.run(_run(told | {"pipe": pipe})))


def threads_s(process_id: int) -> dict[str, float]:
    """Return the processor seconds of each thread of a process."""
    found: dict[str, float] = {}
    for task in Path(f"/proc/{process_id}/task").iterdir():
        name, _, fields = (task / "stat").read_text().partition("(")[2].rpartition(")")
        spent = fields.split()
        found[f"{name} {task.name}"] = (int(spent[11]) + int(spent[12])) / _TICKS
    return found


def open_channels(running: Secure, count: int) -> tuple[str, list[str]]:
    """Return the head of each request and the first continuation token of each channel."""
    jwt = KeyPairTokenProvider(
        "127", "bench", load_private_key(running.private_key), SystemClock()
    ).get_token()
    with httpx.Client(base_url=running.url, verify=str(running.ca), timeout=60) as http:
        http.headers["authorization"] = f"Bearer {jwt}"
        http.headers["x-snowflake-authorization-token-type"] = "KEYPAIR_JWT"
        token = http.post("/oauth/token").text
        opened = [http.put(PATH.format("", number), content=b"{}") for number in range(count)]
    head = (
        f"host: 127.0.0.1\r\nauthorization: Bearer {token}\r\ncontent-encoding: zstd\r\n"
        "content-type: application/x-ndjson\r\n"
        "user-agent: snowpipe-streaming-sdk/1.9.1\r\n"
    )
    return head, [each.json()["next_continuation_token"] for each in opened]


def measure(running: Secure, told: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the load generator's results, and processor ms of the service by thread."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, told))
    process.start()
    ours.recv()
    before = threads_s(running.started.pid)
    found = ours.recv()
    after = threads_s(running.started.pid)
    process.join()
    count = told["rate"] * told["seconds"]
    spent = {name: (seconds - before.get(name, 0)) / count * 1e3 for name, seconds in after.items()}
    return found, {name: each for name, each in spent.items() if each >= 0.005}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=int, nargs="*", default=[300, 1_000])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--channels", type=int, default=1_000)
    options = parser.parse_args()
    report = Report(
        "row_requests",
        "Small requests of the row API: 50 rows each, over TLS",
        ("asked /s", "reached /s", "p50 ms", "p99 ms", "service CPU ms a request", "load CPU ms"),
    )
    with (
        tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as name,
        Secure(Path(name)) as running,
    ):
        running.execute(f"CREATE TABLE bench.public.t ({DDL})", PIPE)
        head, tokens = open_channels(running, options.channels)
        told: dict[str, Any] = {"url": running.url, "ca": str(running.ca), "head": head}
        first = 0
        for rate, seconds in [(300, 2.0), *((rate, options.seconds) for rate in options.rates)]:
            told |= {"rate": rate, "seconds": seconds, "tokens": tokens, "first": first}
            found, spent = measure(running, told)
            tokens, first = found["tokens"], first + int(rate * seconds)
            if seconds != options.seconds:
                continue
            report.add(
                f"{rate:,}",
                *(f"{found[what]:,.1f}" for what in ("per_s", "p50_ms", "p99_ms")),
                f"{sum(spent.values()):.2f}",
                f"{found['load_ms']:.2f}",
            )
            threads = sorted(spent.items(), key=lambda each: -each[1])
            told_threads = ", ".join(f"{name} {each:.2f}" for name, each in threads)
            report.remark(f"{rate:,}/s, ms a request by thread: {told_threads}.")
    report.remark("Goals: 0.8 ms at 300/s, 0.4 ms at 1,000/s.")
    report.keep()


if __name__ == "__main__":
    main()
