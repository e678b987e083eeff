"""Long loops of kills, faults and random comparisons, one after the other, with stored results.

./run soak [LOOP]… [--rounds N] [--minutes N] [--list]

Each loop runs in a separate process, and fails if it finds a lost, duplicate or wrong row. Its last
line and its duration are added to benchmarks/results/soak.md in any case.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from report import RESULTS, commit

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGE = RESULTS / "soak.md"
HEAD = """# Long loops of kills, faults and random comparisons

Made by `./run soak`; a line for each run of a loop, the newest last.

| date | commit | loop | minutes | found | last line |
| --- | --- | --- | --- | --- | --- |
"""


class Loop(NamedTuple):
    """Program that runs for minutes. `about` describes the errors that it detects."""

    about: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = MappingProxyType({})


def _search(*paths: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", "--hypothesis-profile=search", "-m", "not spark", *paths)


def _faults(*paths: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", *paths)


LOOPS = {
    "kills": Loop(
        "rows lost or doubled by 20 kills at each point of the streaming path",
        (str(HERE / "kills.py"), "--kills", "20"),
    ),
    "kills-spark": Loop(
        "the same with Spark as the migrator",
        (str(HERE / "kills.py"), "--kills", "20", "--engine", "spark"),
    ),
    "together": Loop(
        "COPY, migration, compaction, streaming and queries at once, all of them killed",
        (str(HERE / "copy_together.py"), "--seconds", "600"),
    ),
    "engines": Loop(
        "PyIceberg and DuckDB beside COPY, migration, compaction and streaming, all of them killed",
        (str(HERE / "iceberg_together.py"), "--seconds", "600"),
    ),
    "system-model": Loop(
        "rows, tokens and columns of random clients, loads, statements and kills against a model",
        (str(HERE / "system_model.py"), "--seconds", "900", "--spark"),
    ),
    "system-model-remote": Loop(
        "the same with a catalog in PostgreSQL, and stage and warehouse in a bucket",
        (
            *(str(HERE / "system_model.py"), "--seconds", "900"),
            *("--catalog", "postgres", "--storage", "bucket"),
        ),
    ),
    "tables": Loop(
        "rows of 100 tables, and findings of a check, after kills of service, children and client",
        (str(HERE / "many_tables.py"), "--seconds", "1200"),
    ),
    "kafka": Loop(
        "messages lost, doubled or out of order by 200 kills of Kafka connector, service and broker",
        (str(HERE / "kafka_kills.py"), "--kills", "200"),
    ),
    "failover": Loop(
        "rows of three SDKs lost or doubled while two sites are killed, cut off and promoted",
        (str(HERE / "failover_kills.py"),),
    ),
    "publications": Loop(
        "snapshots for engines in any order of chunks, migrations and clean-ups, with new seeds",
        _search("tests/unit/table/test_snapshot_publication.py"),
    ),
    "streaming-model": Loop(
        "a state machine of channels, crashes and migrations, with new seeds",
        _search("tests/model"),
    ),
    "select": Loop(
        "S3 Select against its evaluator and two independent ones, with new seeds",
        _search("tests/unit/select"),
        {"SNOWMELT_TEST_SELECT_SEEDS": "2000"},
    ),
    "values": Loop(
        "values by each way in, converted by rows and by columns, with new seeds",
        _search("tests/unit/schema", "tests/unit/ingest"),
    ),
    "copy": Loop(
        "COPY's filters, parsers and functions, with new seeds", _search("tests/unit/load")
    ),
    "functions": Loop(
        "values of external functions, with new seeds", _search("tests/unit/functions")
    ),
    "check": Loop(
        "60 kinds of damage, 25 times each, that `snowmelt check` must name; healthy tables",
        _faults("tests/fault/test_check_finds.py"),
        {"SNOWMELT_TEST_DAMAGES": "25"},
    ),
    "failover-model": Loop(
        "the protocol between two sites on 120,000 random schedules of crashes, cuts and promotions",
        _faults("tests/model/test_failover_model.py"),
        {"SNOWMELT_TEST_SCHEDULES": "120000"},
    ),
    "faults": Loop(
        "all tests that kill processes or take a disk, a stage or a catalog away",
        _faults("tests/fault"),
    ),
}


def run(name: str, loop: Loop, options: Sequence[str]) -> bool:
    """Run a loop, print its output and add a line to the page. Return True if it succeeded."""
    print(f"--- {name}: {loop.about}", flush=True)
    began, last = time.monotonic(), ""
    with subprocess.Popen(
        [sys.executable, *loop.command, *options],
        cwd=ROOT,
        env=os.environ | loop.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    minutes = (time.monotonic() - began) / 60
    found = "nothing" if process.returncode == 0 else f"exit code {process.returncode}"
    text = PAGE.read_text() if PAGE.exists() else HEAD
    cells = (
        *(dt.datetime.now(dt.UTC).date(), commit(), name, f"{minutes:.1f}", found),
        last.replace("|", "\\|")[:160],
    )
    PAGE.write_text(text + "| " + " | ".join(map(str, cells)) + " |\n")
    return process.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./run soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("loops", nargs="*", metavar="LOOP", help="default: all of them, in order")
    parser.add_argument("--rounds", type=int, default=1, help="how often (default: 1)")
    parser.add_argument(
        "--minutes", type=float, help="how long the loop `failover` runs (default: 10)"
    )
    parser.add_argument("--list", action="store_true", help="print the loops and what they find")
    options = parser.parse_args()
    if options.list:
        for name, loop in LOOPS.items():
            print(f"{name:20} {loop.about}")
        return 0
    unknown = [name for name in options.loops if name not in LOOPS]
    if unknown:
        parser.error(f"unknown loop {unknown[0]!r}. Valid: {', '.join(LOOPS)}.")
    chosen = options.loops or list(LOOPS)
    minutes = () if options.minutes is None else ("--minutes", str(options.minutes))
    failed = [
        name
        for _ in range(options.rounds)
        for name in chosen
        if not run(name, LOOPS[name], minutes if name == "failover" else ())
    ]
    if failed:
        print(f"Failed: {', '.join(failed)}. See {PAGE.relative_to(ROOT)}.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
