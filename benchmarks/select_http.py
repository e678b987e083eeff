"""Benchmark of SELECT over HTTP: overhead, fairness, memory, and time until the service is ready.

    python benchmarks/select_http.py [--rows 5500000] [--folder DIR] [--at-once 50]

The service runs in a separate process; the object is in a bucket of its data folder. boto3 and a
client that only receives run each query. In turns, the same query runs in the engine alone (a
separate process with the same number of threads), and on a minimal server: an event loop that only
writes the engine's frames to a socket, with the same client. Clients share the processors with the
service. The processor time of client and service is measured separately.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import boto3
import select_data
import uvloop
from botocore.config import Config
from harness import Running
from memory import resident_mib
from report import Report
from select_engine import QUERIES, TEXTS

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, create_access_key, load_master_key
from snowmelt.select.execution.engine import EngineSettings
from snowmelt.select.local_query import open_local_select
from snowmelt.select.request import CsvInput, HeaderMode, SelectRequest
from snowmelt.select.xml_request_and_event_stream import END_FRAME, encode_records_events

# Client program: sends its standard input, and receives until the peer closes.
_RECEIVER = """
import json, socket, sys, time
request, buffer, size = sys.stdin.buffer.read(), bytearray(1 << 20), 0
began, spent = time.perf_counter(), time.process_time()
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(request)
while count := connection.recv_into(buffer):
    size += count
print(json.dumps([time.perf_counter() - began, time.process_time() - spent, size]))
"""
CSV = {"CSV": {"FileHeaderInfo": "USE"}, "CompressionType": "NONE"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def client_of(running: Running) -> Any:
    """Return a boto3 client with an access key of the bench user."""
    keyring = KeyRing(load_master_key(running.settings.keys_dir))
    database = open_and_upgrade_database(running.settings.catalog_url)
    with database.writing() as connection:
        key = create_access_key(connection, keyring, "BENCH", now=dt.datetime.now(dt.UTC))
    database.close()
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{running.settings.s3_port}",
        region_name="us-east-1",
        aws_access_key_id=key.access_key_id,
        aws_secret_access_key=key.secret,
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=100, read_timeout=600),
    )


def ask(client: Any, text: str) -> Any:
    """Return the response to a SELECT."""
    return client.select_object_content(
        Bucket="bench",
        Key="trips.csv",
        Expression=text,
        ExpressionType="SQL",
        InputSerialization=CSV,
        OutputSerialization={"CSV": {}},
    )


class _RequestMade(BaseException):
    """Exception with a signed request, raised instead of sending it.

    boto3 retries after any `Exception`.
    """


def request_bytes(client: Any, text: str) -> bytes:
    """Return the HTTP request that boto3 would send for a SELECT."""

    def catch(request: Any, **_: object) -> None:
        raise _RequestMade(request)

    client.meta.events.register("before-send.s3.SelectObjectContent", catch)
    request: Any = None
    try:
        ask(client, text)
    except _RequestMade as made:
        request = made.args[0]
    finally:
        client.meta.events.unregister("before-send.s3.SelectObjectContent", catch)
    url = urlsplit(request.url)
    lines = [f"POST {url.path}?{url.query} HTTP/1.1", "Connection: close"]
    for name, value in request.headers.items():
        lines.append(f"{name}: {value.decode() if isinstance(value, bytes) else value}")
    return "\r\n".join([*lines, "", ""]).encode() + bytes(request.body)


def receive(port: int, request: bytes, pid: int) -> Measured:
    """Measure one response with the client that only receives."""
    service = processor_s(pid)
    command = [sys.executable, "-c", _RECEIVER, str(port)]
    done = subprocess.run(command, input=request, stdout=subprocess.PIPE, check=True)
    wall, client_s, size = json.loads(done.stdout)
    return Measured(wall, client_s, processor_s(pid) - service, size)


def serve_bare(path: Path, port: int) -> None:
    """Respond to each line, a query, with the engine's frames. Never returns."""
    threads = os.cpu_count() or 1

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        text = (await reader.readline()).decode().strip()
        request = SelectRequest(text, CsvInput(header=HeaderMode.USE))
        execution = open_local_select(request, path, settings=EngineSettings(threads=threads))
        batches, loop = execution.stream_payload_batches(), asyncio.get_running_loop()
        ahead = loop.run_in_executor(None, next, batches, None)
        while (batch := await ahead) is not None:
            ahead = loop.run_in_executor(None, next, batches, None)
            writer.writelines(encode_records_events(batch))
            await writer.drain()
        writer.write(END_FRAME)
        await writer.drain()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", port)
        print("ready", flush=True)
        await server.serve_forever()

    uvloop.run(serve())


def select(client: Any, text: str) -> tuple[float, int]:
    """Return the seconds and bytes of one SELECT. Requires its End event."""
    began = time.perf_counter()
    answer = ask(client, text)
    size, ended = 0, False
    for event in answer["Payload"]:
        size += len(event.get("Records", {}).get("Payload", b""))
        ended |= "End" in event
    if not ended:
        raise RuntimeError(f"no End event: {text}")
    return time.perf_counter() - began, size


def processor_s(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """Result of one query: seconds, processor seconds of client and service, response bytes."""

    wall_s: float
    client_s: float
    service_s: float
    answer_bytes: int


def measure(client: Any, text: str, pid: int) -> Measured:
    """Measure one query."""
    service, own = processor_s(pid), time.process_time()
    wall, size = select(client, text)
    return Measured(wall, time.process_time() - own, processor_s(pid) - service, size)


def engine_alone(path: Path, repeats: int) -> dict[str, float]:
    """Return the best seconds of each query without HTTP, in a separate process."""
    command = [sys.executable, str(Path(__file__).with_name("select_engine.py"))]
    command += ["--child", "snowmelt", "--file", str(path), "--form", "csv"]
    command += ["--threads", str(os.cpu_count()), "--repeats", str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {each["query"]: each["wall"] for each in lines}


def readiness(folder: Path, port: int) -> tuple[float, float]:
    """Return the seconds from a restart of the service to its first response, and of a query."""
    began = time.perf_counter()
    with Running(folder, s3_port=port) as running:
        ready = time.perf_counter() - began
        first, _ = select(client_of(running), "select count(*) from s3object s where s._2 = '1'")
    return ready, first


def at_once(client: Any, text: str, count: int, pid: int) -> tuple[list[float], float]:
    """Return the seconds of concurrent queries, and the service's peak MiB."""
    spent: list[float] = []
    threads = [
        threading.Thread(target=lambda: spent.append(select(client, text)[0])) for _ in range(count)
    ]
    peak = 0.0
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        peak = max(peak, resident_mib(pid))
        time.sleep(0.05)
    return spent, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_500_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--query", action="append", choices=list(TEXTS))
    parser.add_argument("--serve-bare", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_bare:
        serve_bare(options.folder, options.serve_bare)
        return
    report = Report(
        "select_http",
        "SELECT through HTTP, beside the engine alone and a bare server",
        (
            "query",
            "HTTP s",
            "engine s",
            "bare server s",
            "engine ÷ HTTP",
            "HTTP ÷ bare server",
            "boto3 s",
            "boto3 CPU s",
            "service CPU s",
            "answer MB",
            "service MiB",
        ),
    )
    with tempfile.TemporaryDirectory(prefix="snowmelt-select-") as own:
        folder = options.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        csv = select_data.trips_csv(folder, options.rows)
        data, port = Path(own) / "service", free_port()
        with Running(data, s3_port=port) as running:
            client = client_of(running)
            pid = running.started.pid
            client.create_bucket(Bucket="bench")
            client.upload_file(str(csv), "bench", "trips.csv")
            select(client, TEXTS["a"])
            before = resident_mib(pid)
            names = options.query or list(TEXTS)
            found: dict[tuple[str, str], list[Measured]] = {}
            bare_port = free_port()
            command = [
                sys.executable,
                __file__,
                "--folder",
                str(csv),
                "--serve-bare",
                str(bare_port),
            ]
            bare = subprocess.Popen(command, stdout=subprocess.PIPE)
            try:
                assert bare.stdout is not None
                bare.stdout.readline()
                for _ in range(options.repeats):
                    engine = engine_alone(csv, 1)
                    for name in names:
                        text = TEXTS[name]
                        request = request_bytes(client, text)
                        for who, measured in (
                            ("engine", Measured(engine[name], 0, 0, 0)),
                            ("bare", receive(bare_port, f"{text}\n".encode(), bare.pid)),
                            ("http", receive(port, request, pid)),
                            ("boto3", measure(client, text, pid)),
                        ):
                            found.setdefault((name, who), []).append(measured)
            finally:
                bare.kill()
                bare.wait()
            for name in names:
                alone, simple, http, whole = (
                    min(found[name, who]) for who in ("engine", "bare", "http", "boto3")
                )
                report.add(
                    f"{name}: {QUERIES[name]}",
                    f"{http.wall_s:.3f}",
                    f"{alone.wall_s:.3f}",
                    f"{simple.wall_s:.3f}",
                    f"{alone.wall_s / http.wall_s:.2f}",
                    f"{http.wall_s / simple.wall_s:.2f}",
                    f"{whole.wall_s:.3f}",
                    f"{whole.client_s:.2f}",
                    f"{http.service_s:.2f}",
                    f"{whole.answer_bytes / 1e6:.1f}",
                    f"{resident_mib(pid):.0f}",
                )
            size = csv.stat().st_size / 1e6
            report.remark(
                f"{size:.0f} MB of CSV; best of {options.repeats}, {os.cpu_count()} threads."
            )
            report.remark(
                f"Service before the first of these: {before:.0f} MiB. Goal: engine ÷ HTTP ≥ 0.75."
            )
            spent, peak = at_once(client, TEXTS["f"], options.at_once, pid)
            report.remark(
                f"{options.at_once} of query f at once: slowest {max(spent):.1f} s, fastest {min(spent):.1f} s "
                f"({max(spent) / min(spent):.2f}, goal ≤ 2), median {statistics.median(spent):.1f} s; "
                f"service {peak:.0f} MiB at most (goal ≤ 1,000)."
            )
        ready, first = readiness(data, port)
        report.remark(
            f"Second start: ready after {ready:.1f} s (goal ≤ 5), first query {first:.2f} s (goal ≤ 1)."
        )
    report.keep()


if __name__ == "__main__":
    main()
