"""Benchmark of commits by another engine while rows stream, compared with PyIceberg's own catalog.

uv run python benchmarks/engine_commits.py [--commits 20] [--channels 10]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from harness import Running
from iceberg_freshness import Inserts, make_token, pick
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table import Table
from report import Report
from workload import DDL

from support.ports import free_port

SIZES = (10, 10_000, 1_000_000)
# First ID of appended rows. The IDs of streamed rows are smaller.
_FIRST = 1_000_000_000


def make_rows(table: Table, first: int, count: int) -> pa.Table:
    """Return rows numbered from `first`. Other columns are NULL."""
    schema = table.schema().as_arrow()
    ids = pa.array(range(first, first + count)).cast(pa.decimal128(38, 0))
    others = [pa.nulls(count, field.type) for field in schema][1:]
    return pa.Table.from_arrays([ids.cast(schema.field(0).type), *others], schema=schema)


def measure(
    table: Table, size: int, commits: int, reload: Callable[[], Table]
) -> tuple[list[float], list[float], int]:
    """Measure appends and deletes of their rows. Return the times and the number of conflicts."""
    appends, deletes, conflicts = [], [], 0
    column = table.schema().fields[0].name
    for number in range(commits):
        first = _FIRST + number * size
        rows = make_rows(table, first, size)
        began = time.monotonic()
        table.append(rows)
        appends.append(time.monotonic() - began)
        table = reload()
        began = time.monotonic()
        try:
            table.delete(f"{column} >= {first} AND {column} < {first + size // 2}")
        except (CommitFailedException, ValidationException):
            conflicts += 1
            continue
        deletes.append(time.monotonic() - began)
        table = reload()
    return sorted(appends), sorted(deletes), conflicts


def add_line(
    report: Report, name: str, size: int, found: tuple[list[float], list[float], int]
) -> None:
    appends, deletes, conflicts = found
    report.add(
        name,
        f"{size:,}",
        f"{pick(appends, 50):,.0f}",
        f"{pick(appends, 99):,.0f}",
        f"{pick(deletes, 50):,.0f}",
        f"{pick(deletes, 99):,.0f}",
        str(conflicts),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--channels", type=int, default=10)
    options = parser.parse_args()
    report = Report(
        "engine_commits",
        "Commits of PyIceberg while rows stream",
        ("catalog", "rows", "append p50 ms", "p99", "delete p50 ms", "p99", "conflicts"),
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        Running(s3_port=free_port(), migrate=True) as running,
    ):
        running.execute(f"CREATE TABLE bench.public.fresh ({DDL})")
        token = make_token(running.settings, "BENCH")
        uri = f"{running.url}/iceberg"
        ours = load_catalog("lake", type="rest", uri=uri, warehouse="BENCH", token=token)
        inserts = Inserts(running, "bench.public.fresh", options.channels, 3600)
        inserts.start()
        time.sleep(5)
        table = ours.load_table("PUBLIC.FRESH")
        peer = load_catalog(
            "peer", type="sql", uri=f"sqlite:///{folder}/peer.db", warehouse=Path(folder).as_uri()
        )
        peer.create_namespace("public")
        theirs = peer.create_table("public.fresh", table.schema())
        for size in SIZES:
            commits = options.commits if size < SIZES[-1] else max(options.commits // 4, 1)
            add_line(
                report,
                "Snowmelt, rows streaming",
                size,
                measure(table, size, commits, lambda: ours.load_table("PUBLIC.FRESH")),
            )
            add_line(
                report,
                "PyIceberg's SQL catalog, no stream",
                size,
                measure(theirs, size, commits, lambda: peer.load_table("public.fresh")),
            )
        inserts.stopped.set()
        inserts.join()
    report.remark(
        f"{options.channels} channels insert ten rows twice a second each; the service migrates. A delete "
        "removes half of the rows of the append before it. Both tables grow. Two cores for all."
    )
    report.keep()


if __name__ == "__main__":
    main()
