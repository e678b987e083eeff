"""Benchmark of external function calls, compared with a minimal HTTP client.

An echo service (minimal ASGI on uvicorn) runs in a separate process. The minimal client repeatedly
sends one recorded request over keep-alive connections and only counts response bytes. It runs in
two processes, because there are two tasks. The same rounds measure the caller on Arrow columns
without Spark, and as `arrow_udf` in Spark. The best round of each counts.

    python benchmarks/functions_caller.py [--seconds 2] [--rounds 5] [--without-spark]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import tempfile
import threading
import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pyarrow as pa
import uvicorn
import uvloop
from report import Report

from snowmelt.config import Settings
from snowmelt.functions.caller.pipeline import call_function
from snowmelt.functions.caller.plan import CallerOptions, CallPlan, QueryPosition
from snowmelt.functions.definition import ApiIntegration, ExternalFunction
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG = SimpleNamespace(add_record=lambda _record: None)
TASKS = 2
TEXT = "x" * 39
# Rows per array, as for Parquet files in a UDF.
ARROW_ROWS = 4096


_batches = 0


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Echo the first argument, delayed by N ms for the path `/N`. GET returns the batch count."""
    global _batches
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message["body"])
        more = message.get("more_body", False)
    if scope["method"] == "GET":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % _batches})
        return
    _batches += 1
    late_ms = int(scope["path"][1:] or 0)
    if late_ms:
        await asyncio.sleep(late_ms / 1000)
    rows = orjson.loads(b"".join(pieces))["data"]
    body = orjson.dumps({"data": [[row[0], row[1]] for row in rows]})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _serve(listening: socket.socket) -> None:
    config = uvicorn.Config(
        echo, loop="uvloop", http="httptools", ws="none", lifespan="off", access_log=False,
        log_config=None,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listening])


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def recorded(late_ms: int, rows: int) -> bytes:
    """Record and return the bytes of one request of the engine."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        heard: list[bytes] = []
        service = threading.Thread(target=_hear, args=(listening, heard))
        service.start()
        chosen = plan(listening.getsockname()[1], late_ms, rows, 1)
        # The same length as the query IDs of Spark.
        place = QueryPosition(str(uuid.uuid4()), 1, 0)
        list(call_function(chosen, place, [columns().slice(0, rows)], _LOG))
        service.join()
    return heard[0]


def _hear(listening: socket.socket, heard: list[bytes]) -> None:
    """Record one request, and echo its rows."""
    connection, _ = listening.accept()
    with connection, connection.makefile("rb") as reader:
        lines = [reader.readline()]
        while lines[-1].strip():
            lines.append(reader.readline())
        lengths = [line for line in lines if line.lower().startswith(b"content-length:")]
        body = reader.read(int(lengths[0].partition(b":")[2]))
        heard.append(b"".join(lines) + body)
        reply = orjson.dumps({"data": [row[:2] for row in orjson.loads(body)["data"]]})
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(reply) + reply)


def bare_client(port: int, late_ms: int, rows: int, in_flight: int, seconds: float) -> int:
    """Return the rows that a minimal client received in `seconds` seconds."""
    request = recorded(late_ms, rows)
    done = 0

    async def work(end: float) -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        while time.perf_counter() < end:
            writer.write(request)
            reply = await reader.readuntil(b"\r\n\r\n")
            length = reply.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            done += rows
        writer.close()

    async def push() -> None:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(work(end) for _ in range(in_flight)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(push())
    return done


def plan(port: int, late_ms: int, rows: int, in_flight: int) -> CallPlan:
    """Return the call plan of the function, as a session makes it."""
    url = f"http://127.0.0.1:{port}/{late_ms}"
    arguments = (
        FunctionArgument("TEXT", parse_sql_type_text("VARCHAR")),
        FunctionArgument("N", parse_sql_type_text("NUMBER(18,0)")),
    )
    function = ExternalFunction(
        FunctionSignature("echo", arguments, parse_sql_type_text("VARCHAR")),
        url,
        "bench",
        max_batch_rows=rows,
    )
    integration = ApiIntegration("bench", "aws_api_gateway", (f"http://127.0.0.1:{port}/",))
    return CallPlan(function, integration, "UTC", options=CallerOptions(max_in_flight=in_flight))


def columns() -> pa.RecordBatch:
    """Return the rows that the minimal client sends, as columns."""
    numbers = [at * 7 for at in range(ARROW_ROWS)]
    return pa.record_batch({"text": [TEXT] * ARROW_ROWS, "n": pa.array(numbers, pa.int64())})


def engine(port: int, late_ms: int, rows: int, in_flight: int, seconds: float) -> int:
    """Return the rows that the engine received in `seconds` seconds."""
    batch = columns()
    end = time.perf_counter() + seconds

    def stream() -> Iterator[pa.RecordBatch]:
        while time.perf_counter() < end:
            yield batch

    place = QueryPosition(f"{os.getpid()}-{time.perf_counter_ns()}", 1, 0)
    chosen = plan(port, late_ms, rows, in_flight)
    return sum(len(values) for values in call_function(chosen, place, stream(), _LOG))


CLIENTS = {"bare client": bare_client, "engine": engine}


@contextlib.contextmanager
def service() -> Iterator[tuple[int, int]]:
    """Run the service. Yield its port and process ID."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    process = get_context("spawn").Process(target=_serve, args=(listening,), daemon=True)
    process.start()
    try:
        yield listening.getsockname()[1], process.pid or 0
    finally:
        process.terminate()
        process.join()


@dataclass(frozen=True)
class Run:
    """Totals of all tasks of a client, with times in seconds."""

    rows: int
    wall_s: float
    cpu_s: float
    service_cpu_s: float

    @property
    def speed(self) -> float:
        """Rows per second."""
        return self.rows / self.wall_s

    def cpu_per_million(self) -> str:
        """Return the CPU seconds of clients and service per million rows."""
        return f"{self.cpu_s / self.rows * 1e6:.2f} / {self.service_cpu_s / self.rows * 1e6:.2f}"


def _task(client: str, case: tuple[Any, ...]) -> tuple[int, float]:
    before = time.process_time()
    return CLIENTS[client](*case), time.process_time() - before


def run(pool: ProcessPoolExecutor, client: str, case: tuple[Any, ...], pid: int) -> Run:
    """Run all tasks of a client."""
    before, start = cpu_s(pid), time.perf_counter()
    futures = [pool.submit(_task, client, case) for _ in range(TASKS)]
    done = [future.result() for future in futures]
    return Run(
        sum(rows for rows, _ in done),
        time.perf_counter() - start,
        sum(cpu for _, cpu in done),
        cpu_s(pid) - before,
    )


def _tree_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its children in seconds."""
    total, left = 0.0, [pid]
    while left:
        one = left.pop()
        with contextlib.suppress(FileNotFoundError):
            total += cpu_s(one)
            for children in Path(f"/proc/{one}/task").glob("*/children"):
                left.extend(int(child) for child in children.read_text().split())
    return total


class OnSpark:
    """Spark session with two cores and the registered function."""

    def __init__(self, folder: str, port: int) -> None:
        from snowmelt.spark.session import local_session

        self._spark = local_session("bench", f"local[{TASKS}]")
        self._settings, self._port = Settings.load(folder), port
        lake = self._lake(CallerOptions())
        lake.sql("create database bench")
        lake.sql(
            "create api integration bench api_provider = http "
            f"api_allowed_prefixes = ('http://127.0.0.1:{port}/') enabled = true"
        )

    def _lake(self, calling: CallerOptions) -> Any:
        from snowmelt.spark import Snowmelt

        settings = self._settings
        return Snowmelt(
            self._spark, catalog=settings.catalog_url, stage=settings.stage_url,
            warehouse=settings.warehouse_url, keys=settings.keys_dir, calling=calling,
        )  # fmt: skip

    def frame(self, late_ms: int, rows: int, in_flight: int, count: int) -> Any:
        """Return a DataFrame with the function's values of `rows` rows."""
        lake = self._lake(CallerOptions(max_batch_rows=rows, max_in_flight=in_flight))
        lake.sql(
            "create or replace external function bench.public.echo(text varchar, n number(18,0)) "
            f"returns varchar api_integration = bench as 'http://127.0.0.1:{self._port}/{late_ms}'"
        )
        source = self._spark.range(0, count, 1, TASKS)
        source.selectExpr(f"repeat('x', {len(TEXT)}) text", "id * 7 n").createOrReplaceTempView("t")
        return lake.sql("select bench.public.echo(text, n) v from t")

    def run(self, case: tuple[int, int, int], count: int, service_pid: int) -> Run:
        """Compute the values of `rows` rows and discard them."""
        frame = self.frame(*case, count)
        before, service, start = _tree_cpu_s(os.getpid()), cpu_s(service_pid), time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        wall = time.perf_counter() - start
        service = cpu_s(service_pid) - service
        return Run(count, wall, _tree_cpu_s(os.getpid()) - before - service, service)

    def close(self) -> None:
        """Stop the session."""
        self._spark.stop()


# Service time in ms, rows per batch, batches in flight, and the target with Spark as a share of the
# minimal client's speed.
CASES = (
    (0, 100, 16, 0.35),
    (0, 1000, 16, 0.30),
    (50, 1000, 1, 0.95),
    (50, 1000, 4, 0.95),
    (50, 1000, 16, 0.85),
)
SPARK = "arrow_udf in Spark"
# Duration of a Spark job in seconds. Its startup takes a third of a second.
SHORT_S, LONG_S = 6.0, 12.0


def _measure(
    report: Report,
    pool: ProcessPoolExecutor,
    spark: OnSpark | None,
    service_of: tuple[int, int],
    options: argparse.Namespace,
) -> None:
    port, pid = service_of
    for late_ms, rows, in_flight, goal in map(
        CASES.__getitem__, options.cases or range(len(CASES))
    ):
        case = (port, late_ms, rows, in_flight, options.seconds)
        best: dict[str, Run] = {}
        for _ in range(options.rounds):
            for client in CLIENTS:
                _better(best, client, run(pool, client, case, pid))
            if spark is not None:
                count = int(best["engine"].speed * (LONG_S if late_ms else SHORT_S))
                _better(best, SPARK, spark.run((late_ms, rows, in_flight), count, pid))
        for client, found in best.items():
            report.add(
                f"{late_ms} ms", rows, in_flight, client, f"{found.speed / 1000:,.0f}",
                f"{found.speed / best['bare client'].speed:.2f}",
                f"{goal:.2f}" if client == SPARK else "", found.cpu_per_million(),
            )  # fmt: skip


def _better(best: dict[str, Run], client: str, found: Run) -> None:
    if client not in best or found.speed > best[client].speed:
        best[client] = found


def _limited(report: Report, spark: OnSpark, port: int) -> None:
    """Return the number of batches that a query with LIMIT sends."""
    asked = []
    for in_flight in (1, 4, 16):
        before = int(httpx.get(f"http://127.0.0.1:{port}/").text)
        spark.frame(50, 1000, in_flight, 100_000).where("v <> ''").limit(3).collect()
        asked.append(str(int(httpx.get(f"http://127.0.0.1:{port}/").text) - before))
    report.remark(
        f"LIMIT 3 above a filter, 50 ms, 1000 rows a batch, 1, 4, 16 in flight: "
        f"{', '.join(asked)} batches were asked for, where one would do."
    )


def main() -> None:
    """Measure, print and store the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", type=int, nargs="*", help="numbers of some of them")
    parser.add_argument("--without-spark", action="store_true", help="the engine alone")
    parser.add_argument("--keep", action="store_true", help="write the page of results")
    options = parser.parse_args()
    report = Report(
        "functions_caller",
        "How fast are calls of an external function?",
        (
            *("service", "rows a batch", "in flight", "client", "k rows/s", "of bare", "goal"),
            "CPU s a M rows",
        ),
    )
    with (
        service() as (port, pid),
        ProcessPoolExecutor(TASKS, get_context("spawn")) as pool,
        tempfile.TemporaryDirectory() as folder,
    ):
        spark = None if options.without_spark else OnSpark(folder, port)
        _measure(report, pool, spark, (port, pid), options)
        if spark is not None:
            _limited(report, spark, port)
            spark.close()
    report.remark(f"{TASKS} tasks; `in flight` is of each. CPU: of the clients / of the service.")
    report.remark("Rows of a text of 39 characters and an integer; the reply holds the text.")
    if options.keep:
        report.keep()


if __name__ == "__main__":
    main()
