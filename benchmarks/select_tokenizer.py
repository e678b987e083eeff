r"""Benchmark of the CSV tokenizer alone: finding records and fields in a block.

    python benchmarks/select_tokenizer.py [--rows 250000] [--repeats 5]

Uses one thread, and blocks of 1 MiB of the 15-column file, which stays in memory. Results are GB of
text per second of processor time; the best run counts. `count \\n` is Python's bytes.count.
`duckdb` is read_csv with all_varchar and one thread, and count(*) with a condition on the named
column.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import select_data

from snowmelt.kernels.csv_tokenizer import (
    CsvBlockCutter,
    CsvRecordCounter,
    CsvRecordFinder,
    find_invalid_utf8_byte,
)
from snowmelt.kernels.slices import PADDING_BYTES
from snowmelt.select.dialect import Dialect
from snowmelt.select.formats.csv_dialect import make_csv_rules
from snowmelt.select.request import CsvInput

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK = 1 << 20
_PLACES = {
    "no field": (),
    "1st field": (0,),
    "7th field": (6,),
    "1st and 9th": (0, 8),
    "4 fields to the 11th": (0, 2, 8, 10),
    "14th field": (13,),
    "15 fields": tuple(range(15)),
    "all, however many": None,
}


def blocks_of(text: bytes) -> list[tuple[np.ndarray, int]]:
    """Split a text into padded blocks of whole lines."""
    blocks, at = [], 0
    while at < len(text):
        end = text.rfind(b"\n", at, at + _BLOCK) + 1
        blocks.append(
            (np.frombuffer(bytearray(text[at:end]) + bytes(PADDING_BYTES), np.uint8), end - at)
        )
        at = end
    return blocks


def cut_all(cut: CsvBlockCutter, memories: list[tuple[bytearray, int]]) -> None:
    for each, size in memories:
        cut(each, 0, size)


def fetched(connection: duckdb.DuckDBPyConnection, query: str) -> list[Any]:
    return connection.execute(query).fetchall()


def speed(work: Callable[[], object], size: int, repeats: int) -> float:
    """Return GB per second of processor time in the best run."""
    work()
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    return size / min(seconds) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = select_data.trips_csv(Path(folder), options.rows)
        text = path.read_bytes()
        blocks = blocks_of(text)

        def show(name: str, work: Callable[[], object]) -> None:
            print(f"{name:24} {speed(work, len(text), options.repeats):6.2f} GB/s")

        def each(function: Callable[[np.ndarray, int, int], object]) -> Callable[[], object]:
            # Discard the result, so that the next block can reuse the memory of the tables.
            return lambda: sum(function(data, 0, size) is None for data, size in blocks)

        show("count \\n", lambda: text.count(b"\n"))
        show("UTF-8", each(find_invalid_utf8_byte))
        for dialect in Dialect:
            options_csv = (
                CsvInput() if dialect is Dialect.AWS else CsvInput(escape=b"\\", comment=b"")
            )
            rules = make_csv_rules(options_csv, dialect)
            print(f"-- {dialect}")
            show("count of records", each(CsvRecordCounter(rules)))
            cut = CsvBlockCutter(rules)
            memories = [(bytearray(data), size) for data, size in blocks]
            show("cut with quotes", partial(cut_all, cut, memories))
            for name, places in _PLACES.items():
                show(name, each(CsvRecordFinder(rules, places)))
        with duckdb.connect(config={"threads": 1}) as connection:
            for column in ("tripid", "total", "ref"):
                query = f"SELECT count(*) FROM read_csv('{path}', all_varchar=true) WHERE {column} > 'x'"
                show(f"duckdb {column}", partial(fetched, connection, query))


if __name__ == "__main__":
    main()
