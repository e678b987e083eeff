"""Benchmark of an idle client, and of a client with many channels.

    python benchmarks/idle_client.py [--seconds 10] [--channels 100] [--many 3000]

Processor time is that of the client's process. The service runs in another process.
"""

from __future__ import annotations

import argparse
import datetime as dt
import resource
import subprocess
import sys
import time
from pathlib import Path

import snowmelt

_SERVICE = """
import sys
from snowmelt.testing import LocalService
with LocalService() as service:
    service.create_table("bench.public.t", "id INT, name VARCHAR")
    print(service.url, service.folder / "data" / "keys" / "embedded.pem", flush=True)
    sys.stdin.read()
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--channels", type=int, default=100)
    parser.add_argument("--many", type=int, default=3000)
    options = parser.parse_args()
    service = subprocess.Popen(
        [sys.executable, "-c", _SERVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert service.stdin is not None
    assert service.stdout is not None
    url, key = service.stdout.readline().split()
    try:
        with snowmelt.Client(url, user="EMBEDDED", private_key=Path(key)) as client:
            idle(client, options.channels, options.seconds)
        with snowmelt.Client(
            url, user="EMBEDDED", private_key=Path(key), max_client_lag=dt.timedelta(seconds=1)
        ) as client:
            many(client, options.many)
    finally:
        service.stdin.close()
        service.wait()


def idle(client: snowmelt.Client, count: int, seconds: float) -> None:
    """Measure an idle client whose channels were each used once."""
    channels = [
        client.open_channel(f"idle{number}", table="bench.public.t") for number in range(count)
    ]
    for channel in channels:
        channel.insert_row({"id": 1}, "1")
    client.flush()
    before = time.process_time()
    time.sleep(seconds)
    used = time.process_time() - before
    print(f"{count} open channels, idle for {seconds:g} s: {100 * used / seconds:.4f} % of a core")


def many(client: snowmelt.Client, count: int) -> None:
    """Measure opening many channels, inserting into each, and one flush of all."""
    started, cpu = time.monotonic(), time.process_time()
    channels = [
        client.open_channel(f"many{number}", table="bench.public.t") for number in range(count)
    ]
    opened, opened_cpu = time.monotonic(), time.process_time()
    for turn in range(3):
        for number, channel in enumerate(channels):
            channel.insert_rows([{"id": number, "name": "x" * 20}] * 10, str(turn))
        client.flush()
    done, done_cpu = time.monotonic(), time.process_time()
    rows = client.status().committed_rows
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{count} channels: opened in {opened - started:.1f} s ({1e3 * (opened_cpu - cpu) / count:.2f} ms of CPU"
        f" each); 3 flushes of all, {rows:,} rows, in {done - opened:.1f} s"
        f" ({1e6 * (done_cpu - opened_cpu) / rows:.1f} µs of CPU a row); {memory:.0f} MiB at most,"
        f" {len([each for each in channels if each.is_valid])} valid"
    )


if __name__ == "__main__":
    main()
