"""Benchmark of converting rows to columns by rows per call: checked one by one, or packed.

    uv run python benchmarks/row_packing.py [--rows 100000]

Results are CPU ns per row of ten columns, in one process, as the best of five runs. Each row is
used once. `flush` builds the table of 10,000 rows, as the encoding thread does.
"""

from __future__ import annotations

import argparse
import gc
import time
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from workload import rows

from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, LogicalType, TableSchema

if TYPE_CHECKING:
    from collections.abc import Callable

FLUSH_ROWS = 10_000
COLUMNS = (
    Column("ID", LogicalType.FIXED, 1, precision=18, scale=0, nullable=False),
    Column("AT", LogicalType.TIMESTAMP_LTZ, 2, scale=6),
    Column("LOCAL", LogicalType.TIMESTAMP_NTZ, 3, scale=6),
    Column("PRICE", LogicalType.FIXED, 4, precision=12, scale=2),
    Column("X", LogicalType.REAL, 5),
    Column("Y", LogicalType.REAL, 6),
    Column("OK", LogicalType.BOOLEAN, 7),
    Column("KIND", LogicalType.TEXT, 8, length=16, byte_length=64),
    Column("CITY", LogicalType.TEXT, 9, length=32, byte_length=128),
    Column("NOTE", LogicalType.TEXT, 10, length=200, byte_length=800),
)


def cost(data: list[dict[str, object]], batch: int, take: Callable[..., Any]) -> tuple[int, int]:
    """Return the cost of accepting the rows, and of the flushes."""
    best: list[float] = [9e9, 9e9]
    for _ in range(5):
        spent = [0.0, 0.0]
        for start in range(0, len(data), FLUSH_ROWS):
            end = min(start + FLUSH_ROWS, len(data))
            calls = [data[first : min(first + batch, end)] for first in range(start, end, batch)]
            began = time.process_time()
            first, *others = map(take, calls)
            taken = time.process_time()
            for other in others:
                first.try_extend(other)
            first.to_table()
            spent[0] += taken - began
            spent[1] += time.process_time() - taken
        best = list(map(min, best, spent))
    taking, flushing = (round(seconds / len(data) * 1e9) for seconds in best)
    return taking, flushing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    data = rows(options.rows)
    gc.collect()
    gc.freeze()
    converter = RowConverter(TableSchema(1, COLUMNS), zone=ZoneInfo("UTC"))
    ways = {"by row": converter.fast_checker.try_check_all, "by column": converter.try_defer}
    for batch in (10, 32, 64, 100, 1_000, 10_000):
        for name, take in ways.items():
            call, flush = cost(data, batch, take)
            print(f"{batch:6,} rows a call, {name:9}: {call:5} in the call, {flush:5} at the flush")


if __name__ == "__main__":
    main()
