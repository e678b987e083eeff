"""Benchmark of the compaction of small native files, and of its effect on queries.

uv run python benchmarks/compaction.py [--files 1000] [--rows-per-file 2500]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from report import Report
from workload import DDL, rows

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.jobs.load_history import LoadTotals
from snowmelt.catalog.jobs.run_history import list_maintenance_runs
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.clock import SystemClock
from snowmelt.config import Settings
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.iceberg_table_form import to_native_table
from snowmelt.schema.types import TableName
from snowmelt.spark.snowmelt_session import Snowmelt
from snowmelt.table.load_commit import LoadRequest, LoadResult, begin_load, commit_load
from snowmelt.table.native_file_writer import write_native_file
from snowmelt.table.snapshot import take_snapshots
from snowmelt.table.warehouse_paths import open_warehouse

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database

QUERIES = {
    "full scan": "SELECT bit_xor(xxhash64(*)) FROM {t}",
    "filter on ID": "SELECT count(*), max(NOTE) FROM {t} WHERE ID BETWEEN 1000 AND 1999",
    "filter on CITY": "SELECT count(*), max(NOTE) FROM {t} WHERE CITY = 'Oslo'",
}
TABLES = {"plain": "", "clustered": " CLUSTER BY (city, id)"}
CLOCK = SystemClock()
_UNMEASURED = 1


def _fill(database: Database, settings: Settings, name: TableName, files: int, count: int) -> None:
    """Load `files` files of `rows` rows each in one commit, with ascending IDs."""
    request = LoadRequest(name, "benchmark", "ACCOUNTADMIN")
    load = begin_load(database, request, warehouse_url=settings.warehouse_url, clock=CLOCK)
    schema = load.table.schema
    converted = RowConverter(schema, zone=ZoneInfo("UTC")).convert(rows(count))
    native = to_native_table(converted.table, schema)
    store = open_warehouse(settings.warehouse_url).store
    written = []
    pick = np.random.default_rng(1)
    for number in range(files):
        part = _different(native, number, pick)
        written.append(write_native_file(store, f"{load.folder}/{number:05d}.parquet", part))
    totals = LoadTotals(files=files, rows=files * count, rejects=0, bytes=0)
    commit_load(database, load, LoadResult(written, (), totals), clock=CLOCK)


def _different(native: pa.Table, number: int, pick: np.random.Generator) -> pa.Table:
    """Return the rows with IDs, numbers and notes that are unique to this file."""
    count = native.num_rows
    ids = pa.array(np.arange(number * count, (number + 1) * count)).cast(pa.decimal128(19, 0))
    sessions = pa.array(pick.integers(0, 10**9, count)).cast(pa.string())
    own = {
        "ID": ids.cast(pa.decimal128(18, 0)),
        "X": pa.array(pick.random(count)),
        "Y": pa.array(pick.normal(size=count)),
        "NOTE": pc.binary_join_element_wise('{"session": ', sessions, "}", ""),
    }
    for name, column in own.items():
        at = native.schema.get_field_index(name)
        native = native.set_column(at, native.schema.field(at), column)
    return native


def _median_s(lake: Snowmelt, text: str, turns: int) -> tuple[float, str]:
    taken, answer = [], ""
    for _ in range(_UNMEASURED + turns):
        began = time.perf_counter()
        answer = str(sorted(map(str, lake.sql(text).collect())))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[_UNMEASURED:]), answer


def _maintain(settings: Settings, table: str) -> tuple[float, float]:
    """Run the command. Return its processor time in seconds and its peak memory in MiB."""
    command = [sys.executable, "-m", "snowmelt", "maintain", "--full", "--table", table]
    process = subprocess.Popen(command, env=os.environ | settings.to_environment())
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"maintain failed: {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rows-per-file", type=int, default=2500)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    report = Report(
        "compaction",
        "Joining small native files, and queries before and after",
        ("table", "what", "before", "after", "before ÷ after"),
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.load(data_dir=folder)
        database = open_and_upgrade_database(settings.catalog_url)
        execute_statement(database, "CREATE DATABASE bench", user=None, clock=CLOCK)
        lake = Snowmelt.local(folder, create=True)
        for kind, clustering in TABLES.items():
            table, name = f"bench.public.{kind}", TableName("BENCH", "PUBLIC", kind.upper())
            text = f"CREATE TABLE {table} ({DDL}){clustering}"
            execute_statement(database, text, user=None, clock=CLOCK)
            _fill(database, settings, name, options.files, options.rows_per_file)
            before = {
                query: _median_s(lake, text.format(t=table), options.turns)
                for query, text in QUERIES.items()
            }
            processor_s, memory_mib = _maintain(settings, table)
            with database.reading() as connection:
                run = list_maintenance_runs(connection)[0]
            assert run.bytes_before is not None
            assert run.bytes_after is not None
            assert run.started_at is not None
            assert run.ended_at is not None
            assert run.rows is not None
            [snapshot] = take_snapshots(database, [name], clock=CLOCK)
            report.add(kind, "files", options.files, len(snapshot.list_native_files()), "")
            sizes = (f"{size / 2**20:.1f}" for size in (run.bytes_before, run.bytes_after))
            report.add(kind, "MiB", *sizes, "")
            for query, text in QUERIES.items():
                seconds, answer = _median_s(lake, text.format(t=table), options.turns)
                was, same = before[query]
                if answer != same:
                    raise SystemExit(f"{query}: the answers differ")
                report.add(
                    kind, f"{query}, s", f"{was:.2f}", f"{seconds:.2f}", f"{was / seconds:.1f}"
                )
            wall_s = (run.ended_at - run.started_at).total_seconds()
            report.remark(
                f"{kind}: {run.rows:,} rows joined in {wall_s:.1f} s, "
                f"{run.rows / wall_s / 1e6:.2f} M rows/s; the command took {processor_s:.1f} s of "
                f"processor time and {memory_mib:.0f} MiB at most."
            )
        database.close()
    report.remark(
        f"Queries: medians of {options.turns}, warm session, local[2]; answers are equal."
    )
    report.keep()


if __name__ == "__main__":
    main()
