"""Benchmark of scans in each engine: with a tenth of fresh rows, and of the compacted table.

uv run python benchmarks/iceberg_scans.py [--rows 5000000] [--chunks 1000] [--engine duckdb …]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import Running
from iceberg_freshness import GOALS_MS, make_token, open_engine
from mixed_read import fill
from report import Report
from workload import DDL

from snowmelt.spark.snowmelt_session import Snowmelt
from support.ports import free_port

TABLE = "bench.public.scanned"
GOAL = 1.2
# Warm-up runs, which load code, fill caches and let the JVM compile: the first table is not to pay
# for both.
_UNMEASURED = 20


def scan(name: str, engine: Any) -> int:
    """Return the sum of all IDs, which an engine cannot take from statistics."""
    if name in {"pyiceberg", "polars"}:
        return int(float(engine.ask(table="PUBLIC.SCANNED", columns=(), total="ID")[0][0]))
    column, table = {
        "snowmelt": ("ID", TABLE),
        "clickhouse": ("`ID`", "lake.`PUBLIC.SCANNED`"),
    }.get(name, ("ID", "lake.PUBLIC.SCANNED"))
    return int(float(engine.ask(query=f"SELECT sum({column}) FROM {table}")[0][0]))


def measure(name: str, engine: Any, expected: int, turns: int) -> float:
    times = []
    for turn in range(_UNMEASURED + turns):
        began = time.perf_counter()
        found = scan(name, engine)
        if turn >= _UNMEASURED:
            times.append(time.perf_counter() - began)
        if found != expected:
            raise SystemExit(f"{name}: the sum is {found:,} instead of {expected:,}")
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--chunks", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--engine", action="append", choices=tuple(GOALS_MS))
    options = parser.parse_args()
    report = Report(
        "iceberg_scans",
        "Scanning a table, a tenth of it fresh, beside the same table compacted",
        ("engine", "fresh s", "compacted s", "fresh ÷ compacted", f"≤ {GOAL} ×"),
    )
    # Snowmelt's own Spark requests fresh files at its first query, and reads those of other engines.
    engines = options.engine or [*GOALS_MS, "snowmelt"]
    runs = {
        "snowmelt, no other reader" if name == "snowmelt" and not position else name: name
        for position, name in enumerate(engines)
    }
    expected = options.rows * (options.rows - 1) // 2
    with (
        tempfile.TemporaryDirectory() as folder,
        Running(s3_port=free_port(), migrate=False) as running,
    ):
        running.execute(f"CREATE TABLE {TABLE} ({DDL})")
        lake = Snowmelt.local(running.folder)
        fill(running, TABLE, options.rows, options.chunks, lake)
        found: dict[str, list[float]] = {label: [] for label in runs}
        for state in ("fresh", "compacted"):
            if state == "compacted":
                lake.migrate(TABLE)
                command = [sys.executable, "-m", "snowmelt", "maintain", "--table", TABLE, "--full"]
                where = ["--data-dir", str(running.folder), "--quiet"]
                for _ in range(2):
                    subprocess.run([*command, *where], check=True, capture_output=True)
            for label, name in runs.items():
                token = make_token(running.settings, "BENCH")
                engine = open_engine(name, running, token, Path(folder))
                try:
                    found[label].append(measure(name, engine, expected, options.turns))
                finally:
                    engine.close()
        for label, (fresh, compacted) in found.items():
            kept = "yes" if fresh <= GOAL * compacted else "no"
            row = (f"{fresh:.2f}", f"{compacted:.2f}", f"{fresh / compacted:.2f}")
            report.add(label, *row, kept)
    report.remark(
        f"{options.rows:,} rows, a tenth of them in {options.chunks:,} chunks; sum(ID), median of "
        f"{options.turns} runs after {_UNMEASURED}. snowmelt: its own Spark."
    )
    report.keep()


if __name__ == "__main__":
    main()
