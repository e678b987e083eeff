"""Benchmark of services that use the SDK, compared with a minimal ASGI application.

uvicorn runs each application in a separate process. One client sends prepared batches over
keep-alive connections, with several in flight, and only counts response bytes. The applications
take turns, so that other load on the machine affects all of them. The best round counts. CPU time
is that of the service.

    python benchmarks/functions_kit.py [--seconds 1] [--rounds 5] [--rows 1 100 1000 4000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httptools
import msgspec
import orjson
import uvicorn
from report import Report

from snowmelt.functions.service import RemoteService, ServiceOptions
from snowmelt.functions.service.asgi import AsgiApp
from snowmelt.functions.service.http_protocol import ServiceProtocol

IN_FLIGHT = 8
TEXT = "x" * 39


async def bare(_scope: Any, receive: Any, send: Any) -> None:
    """Echo the first argument, with the minimum that ASGI requires."""
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message["body"])
        more = message.get("more_body", False)
    rows = orjson.loads(b"".join(pieces))["data"]
    body = orjson.dumps({"data": [[row[0], row[1]] for row in rows]})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Rows(msgspec.Struct):
    data: list[tuple[int, str, int]]


_decoder = msgspec.json.Decoder(_Rows)


class RawProtocol(asyncio.Protocol):
    """HTTP echo without a framework. Checks types, and ignores everything else in a batch."""

    def connection_made(self, transport: Any) -> None:
        """Store the transport."""
        self._transport = transport
        self._pieces: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes."""
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header."""
        self._headers[name] = value

    def on_body(self, body: bytes) -> None:
        """Store a slice of the body."""
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Write the response."""
        rows = _decoder.decode(b"".join(self._pieces)).data
        body = msgspec.json.encode({"data": [(row[0], row[1]) for row in rows]})
        self._pieces, self._headers = [], {}
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % len(body)
            + body
        )


async def _serve_raw(listening: socket.socket) -> None:
    server = await asyncio.get_running_loop().create_server(RawProtocol, sock=listening)
    await server.serve_forever()


def _fastapi() -> Any:
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Batch(BaseModel):
        data: list[tuple[int, str, int]]

    app = FastAPI()

    # FastAPI reads this annotation at run time.
    async def echo(batch: Batch) -> dict[str, Any]:
        return {"data": [[row[0], row[1]] for row in batch.data]}

    echo.__annotations__ = {"batch": Batch, "return": dict[str, Any]}
    app.post("/echo")(echo)
    return app


def _kit(kind: str) -> Any:
    service = RemoteService(
        "bench", options=ServiceOptions(content_md5=not kind.endswith("no MD5"))
    )
    if kind in {"per row", "per row, no MD5"}:

        @service.function(blocking=False)
        def echo(text: str, _n: int) -> str:
            return text

    elif kind == "per row, thread":

        @service.function(name="echo")
        def echo_in_thread(text: str, _n: int) -> str:
            return text

    else:

        @service.function(name="echo", mode="batch", blocking=False)
        def echo_columns(text: list[str], _n: list[int]) -> list[str]:
            return text

    return service.asgi()


RAW = "raw protocol, msgspec"
APPS = (
    "bare ASGI, orjson",
    "vector",
    "vector, no MD5",
    "vector, by ASGI",
    "per row",
    "per row, no MD5",
    "per row, thread",
    RAW,
    "FastAPI",
)


def _app(name: str) -> Any:
    if name == APPS[0]:
        return bare
    return _fastapi() if name == APPS[-1] else _kit(name)


def _serve(name: str, listening: socket.socket) -> None:
    if name == RAW:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve_raw(listening))
        return
    app = _app(name)
    protocol: Any = "httptools"
    if isinstance(app, AsgiApp) and not name.endswith("by ASGI"):
        protocol = ServiceProtocol
    config = uvicorn.Config(
        app, loop="uvloop", http=protocol, ws="none", lifespan="off", access_log=False,
        log_config=None,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listening])


def _request(rows: int, batch: str) -> bytes:
    data = json.dumps({"data": [[at, TEXT, at * 7] for at in range(rows)]}, separators=(",", ":"))
    head = (
        "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        "sf-external-function-format: json\r\nsf-external-function-format-version: 1.0\r\n"
        "sf-external-function-name: echo\r\nsf-external-function-name-base64: ZWNobw==\r\n"
        "sf-external-function-signature: (TEXT VARCHAR, N NUMBER)\r\n"
        f"sf-external-function-query-batch-id: {batch}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return (head + data).encode()


async def _push(port: int, rows: int, seconds: float) -> float:
    """Return the rows per second of one service."""
    end = time.perf_counter() + seconds
    head, _, body = _request(rows, "BATCH").partition(b"\r\n\r\n")
    before, after = head.split(b"BATCH")
    stamp = f"{os.getpid()}-{time.perf_counter_ns()}"
    done = 0

    async def work(number: int) -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        batch = 0
        while time.perf_counter() < end:
            batch += 1
            identity = f"{stamp}-{number}-{batch}".encode()
            writer.write(before + identity + after + b"\r\n\r\n" + body)
            reply = await reader.readuntil(b"\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 200"), reply
            length = reply.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            done += 1
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(work(number) for number in range(IN_FLIGHT)))
    return done * rows / (time.perf_counter() - start)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, print and store the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 100, 1000, 4000])
    options = parser.parse_args()
    import uvloop

    _fastapi()  # Fail here if it cannot start: otherwise, the client would wait for it.
    context = get_context("spawn")
    running = {}
    for name in APPS:
        listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        process = context.Process(target=_serve, args=(name, listening), daemon=True)
        process.start()
        running[name] = (process, listening.getsockname()[1])
    report = Report(
        "functions_kit",
        "How fast is a service of the kit?",
        (
            "rows a batch",
            "application",
            "k rows/s",
            "of FastAPI",
            "of bare",
            "CPU µs a batch",
            "of bare's CPU",
        ),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for rows in options.rows:
            _measure(runner, report, running, rows, options)
    report.remark(
        f"{IN_FLIGHT} requests in flight; rows of a text of 39 characters and an integer."
    )
    report.remark("`of bare's CPU`: bare ASGI's CPU time for a batch over the application's.")
    for process, _ in running.values():
        process.terminate()
        process.join()
    report.keep()


def _measure(
    runner: asyncio.Runner,
    report: Report,
    running: dict[str, Any],
    rows: int,
    options: argparse.Namespace,
) -> None:
    best = dict.fromkeys(APPS, 0.0)
    cpu = dict.fromkeys(APPS, float("inf"))
    for _ in range(options.rounds):
        for name, (process, port) in running.items():
            before = _cpu_s(process.pid)
            start = time.perf_counter()
            speed = runner.run(_push(port, rows, options.seconds))
            batches = speed * (time.perf_counter() - start) / rows
            best[name] = max(best[name], speed)
            cpu[name] = min(cpu[name], (_cpu_s(process.pid) - before) / batches * 1e6)
    for name in APPS:
        report.add(
            rows,
            name,
            f"{best[name] / 1000:,.0f}",
            f"{best[name] / best[APPS[-1]]:.2f}",
            f"{best[name] / best[APPS[0]]:.2f}",
            f"{cpu[name]:,.0f}",
            f"{cpu[APPS[0]] / cpu[name]:.2f}",
        )


if __name__ == "__main__":
    main()
