"""Benchmark of committing dict rows, compared with the minimum work and with table formats.

    uv run python benchmarks/insert_rows.py [--rows 1000000]

All variants use the same dict rows and take turns in one run. The table has medians.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import io
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from deltalake import DeltaTable, write_deltalake
from harness import Running
from pyiceberg.catalog.sql import SqlCatalog
from report import Report
from workload import DDL, SCHEMA, rows

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 1_000
COMMIT = 10_000


def bare_ceiling(data: list[dict[str, object]], folder: Path) -> float:
    """Do the required work in one thread: convert, statistics, Parquet, AES-CTR, MD5, write."""
    key = bytes(32)
    began = time.perf_counter()
    for first in range(0, len(data), 100_000):
        batch = pa.RecordBatch.from_pylist(data[first : first + 100_000], schema=SCHEMA)
        for column in batch.columns:
            if not pa.types.is_boolean(column.type):
                pc.min_max(column)
        sink = io.BytesIO()
        pq.write_table(
            pa.Table.from_batches([batch]),
            sink,
            compression="zstd",
            compression_level=1,
            use_dictionary=["KIND", "CITY"],
        )
        cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        encrypted = cipher.update(sink.getbuffer())
        hashlib.md5(encrypted).hexdigest()
        (folder / f"{first}.bdec").write_bytes(encrypted)
    return len(data) / (time.perf_counter() - began)


def snowmelt_rate(
    running: Running, data: list[dict[str, object]], turn: int, parts: dict[str, list[float]]
) -> float:
    """Run insert_rows in batches of 1,000, until the last offset token is committed."""
    running.execute(f"CREATE TABLE bench.public.insert_{turn} ({DDL})")
    with running.client() as client:
        channel = client.open_channel("c", table=f"bench.public.insert_{turn}")
        began, used = time.perf_counter(), time.thread_time()
        for first in range(0, len(data), BATCH):
            channel.insert_rows(data[first : first + BATCH], offset_token=str(first + BATCH))
        parts.setdefault("inserting", []).append(time.thread_time() - used)
        inserted = time.perf_counter()
        channel.flush()
        parts.setdefault("after", []).append(time.perf_counter() - inserted)
        channel.wait_for_commit(timeout=dt.timedelta(seconds=120))
        return len(data) / (time.perf_counter() - began)


def iceberg_rate(data: list[dict[str, object]], folder: Path) -> float:
    """Append with PyIceberg, 10,000 rows per commit."""
    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema=SCHEMA)
    began = time.perf_counter()
    for first in range(0, len(data), COMMIT):
        table.append(pa.Table.from_pylist(data[first : first + COMMIT], schema=SCHEMA))
    return len(data) / (time.perf_counter() - began)


def delta_rate(data: list[dict[str, object]], folder: Path, *, kept: bool) -> float:
    """Append with deltalake, 10,000 rows per commit, by path or with an open table object."""
    target: str | DeltaTable = str(folder / "t")
    began = time.perf_counter()
    for first in range(0, len(data), COMMIT):
        batch = pa.Table.from_pylist(data[first : first + COMMIT], schema=SCHEMA)
        write_deltalake(target, batch, mode="append")
        if kept and first == 0:
            target = DeltaTable(str(folder / "t"))
    return len(data) / (time.perf_counter() - began)


def insert_rows_rate(
    running: Running,
    data: list[dict[str, object]],
    turn: int,
    parts: dict[str, list[float]],
    _folder: Path,
) -> float:
    return snowmelt_rate(running, data, turn, parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    data = rows(options.rows)
    part = data[: max(COMMIT * 20, options.rows // 5)]
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    parts: dict[str, list[float]] = {}
    with Running() as running:
        for turn in range(options.turns):
            peers: dict[str, Callable[[Path], float]] = {
                "Snowmelt, insert_rows to committed": partial(
                    insert_rows_rate, running, data, turn, parts
                ),
                "bare ceiling, one thread": lambda folder: bare_ceiling(data, folder),
                "PyIceberg append, 10,000 a commit": lambda folder: iceberg_rate(part, folder),
                "deltalake by path, 10,000 a commit": lambda folder: delta_rate(
                    part, folder, kept=False
                ),
                "deltalake, kept handle": lambda folder: delta_rate(part, folder, kept=True),
            }
            whole = list(peers)[:2]
            for name, measure in peers.items():
                with tempfile.TemporaryDirectory() as folder:
                    used = time.process_time()
                    rates.setdefault(name, []).append(measure(Path(folder)))
                    count = len(data if name in whole else part)
                    costs.setdefault(name, []).append((time.process_time() - used) / count)
    medians = {name: statistics.median(measured) for name, measured in rates.items()}
    ours = next(iter(medians.values()))
    report = Report(
        "insert_rows",
        "Dict rows to committed rows, one client process",
        ("who", "rows/s (median)", "spread", "Snowmelt ÷ it", "CPU µs a row"),
    )
    for name, median in medians.items():
        spread = f"{min(rates[name]):,.0f}–{max(rates[name]):,.0f}"
        cost = f"{statistics.median(costs[name]) * 1e6:.2f}"
        report.add(name, f"{median:,.0f}", spread, f"{ours / median:.2f}", cost)
    report.remark(
        f"{options.rows:,} rows of ten columns ({len(part):,} for the table formats), "
        f"{options.turns} turns; goals: ≥ 0.8 of the ceiling, ≥ 2 of PyIceberg and deltalake by path."
    )
    inserting, after = (statistics.median(parts[name]) for name in ("inserting", "after"))
    report.remark(
        f"Snowmelt's inserting thread: {inserting / options.rows * 1e6:.2f} µs of CPU a row; from the "
        f"last insert to the last commit: {after:.2f} s. The service's own time is not in its CPU."
    )
    report.keep()


if __name__ == "__main__":
    main()
