"""Benchmark of planning a query of 10,000 native files and 1,000 chunks.

uv run python benchmarks/planning.py [--files 10000] [--chunks 1000]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import Running
from report import Report
from workload import DDL, rows

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.schema.types import TableName
from snowmelt.table.migration import MigrationSettings, migrate_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from snowmelt.config import Settings
    from snowmelt.spark.snowmelt_session import Snowmelt

GOAL_S = 2.0
ROWS = 20
TABLE = "bench.public.many"
_WARM_TURNS = 5


def _fill(running: Running, files: int, chunks: int) -> None:
    """Register `files` chunks, migrate each to a native file, and register `chunks` more."""
    settings = running.settings
    with running.client(max_client_lag=dt.timedelta(minutes=10)) as client:
        channel = client.open_channel("c", table=TABLE)
        for number in range(files + chunks):
            if number == files:
                channel.wait_for_commit(timeout=dt.timedelta(minutes=5))
                _migrate(settings, files)
            channel.insert_rows(rows(ROWS, first=number * ROWS), offset_token=str(number))
            channel.flush()
        channel.wait_for_commit(timeout=dt.timedelta(minutes=5))


def _migrate(settings: Settings, files: int) -> None:
    database = open_and_upgrade_database(settings.catalog_url)
    migrated = migrate_table(
        database,
        KeyRing(load_master_key(Path(settings.keys_dir))),
        TableName("BENCH", "PUBLIC", "MANY"),
        MigrationSettings(
            settings.stage_url, settings.warehouse_url, max_chunks=files, target_bytes=1
        ),
    )
    database.close()
    if migrated is None or migrated.files != files:
        raise SystemExit(f"made {migrated and migrated.files} native files instead of {files}")


def _timed(plan: Callable[[], DataFrame]) -> float:
    """Return the seconds until Spark has a physical plan with listed files."""
    began = time.perf_counter()
    plan()._jdf.queryExecution().executedPlan()  # noqa: SLF001  `explain` would print it, too
    return time.perf_counter() - began


def _timed_plain(lake: Snowmelt, folder: str) -> float:
    """Return the seconds of Spark alone, with the schema and all paths given."""
    paths = [str(path) for path in Path(folder, "warehouse").rglob("*.parquet")]
    reader = lake.spark.read.schema(lake.spark.read.parquet(paths[0]).schema)
    return _timed(lambda: reader.parquet(*paths).selectExpr("sum(PRICE)"))


def _measure_plain(folder: str) -> None:
    """Measure Spark alone in a separate process. Print JSON."""
    from snowmelt.spark.snowmelt_session import Snowmelt

    lake = Snowmelt.local(folder, create=True)
    lake.spark.range(10).selectExpr("sum(id)").collect()
    seconds = {"plain, first query of a process": _timed_plain(lake, folder)}
    print(json.dumps({"seconds": seconds}))


def _measure(folder: str, files: int, chunks: int) -> None:
    """Measure in a new process with empty caches. Print JSON."""
    from snowmelt.spark.snowmelt_session import Snowmelt

    lake = Snowmelt.local(folder, create=True)
    # Exclude class loading, which delays Spark's first query by one to two seconds.
    lake.spark.range(10).selectExpr("sum(id)").collect()
    total = (files + chunks) * ROWS
    whole = f"SELECT sum(PRICE) FROM {TABLE}"
    half = whole + " WHERE ID >= {}"
    seconds = {"first query of a process": _timed(lambda: lake.sql(whole))}
    with Snowmelt.local(folder, spark=lake.spark, create=True) as fresh:
        # Same state as after a migration: cached manifests, and a new list of files.
        seconds["a new list of files"] = _timed(lambda: fresh.sql(whole))
    seconds["again"] = statistics.median(
        _timed(lambda: lake.sql(whole)) for _ in range(_WARM_TURNS)
    )
    seconds["another half of the files"] = statistics.median(
        _timed(partial(lake.sql, half.format(first)))
        for first in range(total // 2, total // 2 + _WARM_TURNS * ROWS, ROWS)
    )
    point = whole + " WHERE ID = {}"
    seconds["one file"] = statistics.median(
        _timed(partial(lake.sql, point.format(number * ROWS))) for number in range(_WARM_TURNS)
    )
    [opened] = lake.explain_files(point.format(7 * ROWS))
    [every] = lake.explain_files(whole)
    seconds["plain, paths given"] = _timed_plain(lake, folder)
    some_file = next(Path(folder, "warehouse").rglob("*.parquet"))
    schema = lake.spark.read.parquet(str(some_file)).schema
    seconds["plain, folder given"] = _timed(
        lambda: (
            lake.spark.read.schema(schema)
            .option("recursiveFileLookup", "true")
            .parquet(str(Path(folder, "warehouse")))
            .selectExpr("sum(PRICE)")
        )
    )
    print(json.dumps({"seconds": seconds, "opened": str(opened), "every": str(every)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--chunks", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", help="measure what lies there already")
    parser.add_argument("--child", choices=("ours", "plain"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "plain":
        _measure_plain(options.folder)
        return
    if options.child:
        _measure(options.folder, options.files, options.chunks)
        return
    report = Report(
        "planning",
        f"Planning a query of {options.files:,} native files and {options.chunks:,} chunks",
        ("what", "s", "goal", "kept"),
    )
    with Running(Path(options.folder) if options.folder else None) as running:
        if not (running.folder / "filled").exists():
            running.execute(f"CREATE TABLE {TABLE} ({DDL})")
            _fill(running, options.files, options.chunks)
            (running.folder / "filled").touch()
        running.stop()
        sizes = [f"--files={options.files}", f"--chunks={options.chunks}"]
        environment = os.environ | running.settings.to_environment()
        answers: dict[str, list[dict[str, Any]]] = {"ours": [], "plain": []}
        # Take turns, so that other load and the page cache affect both.
        for child in [*answers] * options.turns:
            command = [sys.executable, __file__, f"--child={child}", f"--folder={running.folder}"]
            done = subprocess.run(
                [*command, *sizes], env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            answers[child].append(json.loads(done.stdout.splitlines()[-1]))
    found = answers["ours"][0]
    measured = {
        what: min(each["seconds"][what] for each in turns)
        for turns in answers.values()
        for what in turns[0]["seconds"]
    }
    for what, seconds in measured.items():
        bare = what.startswith("plain")
        kept = "" if bare else ("yes" if seconds < GOAL_S else "no")
        report.add(what, f"{seconds:.2f}", "" if bare else f"< {GOAL_S:g} s", kept)
    report.remark(f"Statistics at work: {found['opened']}, against {found['every']}.")
    report.remark(
        'Seconds until Spark has its physical plan with every file listed, local[2]; "again" '
        f"and what is below it are medians of {_WARM_TURNS}; of each the best of {options.turns} "
        "processes, those of plain Spark by turns with ours."
    )
    report.keep()


if __name__ == "__main__":
    main()
