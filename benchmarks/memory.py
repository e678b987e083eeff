"""Benchmark of the memory growth of a client that inserts for ten minutes, and of its service.

uv run python benchmarks/memory.py [--minutes 10]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Running
from report import Report
from workload import DDL, rows

BATCH = 1_000


def _insert(url: str, key: str, seconds: float, rows_per_s: float) -> None:
    from snowmelt.client.client import Client

    data = rows(BATCH)
    with Client(url, user="bench", private_key=Path(key).read_text()) as client:
        channels = [client.open_channel(f"c{n}", table="bench.public.memory") for n in range(4)]
        due = time.monotonic()
        until = due + seconds
        count = 0
        while time.monotonic() < until:
            count += BATCH
            channels[(count // BATCH) % 4].insert_rows(data, offset_token=str(count))
            due += BATCH / rows_per_s
            time.sleep(max(0.0, due - time.monotonic()))
    print(count)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rows-per-s", type=float, default=50_000)
    parser.add_argument("--child", nargs=2, metavar=("URL", "KEY"))
    options = parser.parse_args()
    if options.child:
        url, key_path = options.child
        _insert(url, key_path, options.minutes * 60, options.rows_per_s)
        return
    samples: dict[str, list[float]] = {"client": [], "service": []}
    with Running() as running, tempfile.NamedTemporaryFile("w", suffix=".pem") as key:
        key.write(running.private_key)
        key.flush()
        running.execute(f"CREATE TABLE bench.public.memory ({DDL})")
        command = [sys.executable, __file__, "--minutes", str(options.minutes)]
        command += ["--rows-per-s", str(options.rows_per_s), "--child", running.url, key.name]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        began = time.monotonic()
        while child.poll() is None and running.process is not None:
            time.sleep(1)
            if child.poll() is None:
                samples["client"].append(resident_mib(child.pid))
                samples["service"].append(resident_mib(running.process.pid))
        took = time.monotonic() - began
        inserted = int(child.stdout.read()) if child.stdout else 0
    report = Report(
        "memory",
        "Resident memory of a client that inserts for ten minutes, and of its service",
        ("process", "after one minute, MiB", "at the end, MiB", "end ÷ minute", "most, MiB"),
    )
    for name, measured in samples.items():
        minute = statistics.median(measured[55:65])
        end = statistics.median(measured[-15:-5])
        cells = (f"{minute:,.0f}", f"{end:,.0f}", f"{end / minute:.2f}", f"{max(measured):,.0f}")
        report.add(name, *cells)
    report.remark(
        f"{inserted:,} rows of ten columns in {took / 60:.1f} minutes through four channels; "
        "goal: at the end at most 1.1 of that after one minute (medians of ten seconds)."
    )
    report.keep()


if __name__ == "__main__":
    main()
