r"""Benchmark of load parsers, compared with the libraries that they call.

    python benchmarks/load_parsers.py [--rows 300000] [--repeats 5]

Uses one thread. Results are MB of text per second of processor time. Library and parser take turns;
the best run of each counts. Both read the same file in slices of 1 MiB and produce columns of the
same types. The parser also checks values and tracks the position of each record.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
from hosted_code import bare_rows, row_parser
from load_filters import MIB, best, cut, drop
from report import Report

from snowmelt.load.parsers import definition
from snowmelt.load.phase_protocols import ByteReader, ColumnOptions, ParseTarget
from snowmelt.load.portion import InputFile, Portion
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import Column, LogicalType, TableSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WHOLE = Portion(InputFile("x"))
FLIGHTS = TableSchema(
    1,
    (
        Column("ID", LogicalType.FIXED, 1, precision=18, scale=0),
        Column("SEAT", LogicalType.FIXED, 2, precision=9, scale=0),
        Column("PRICE", LogicalType.FIXED, 3, precision=12, scale=2),
        Column("DISTANCE", LogicalType.REAL, 4),
        Column("PASSENGER", LogicalType.TEXT, 5, length=100),
        Column("CITY", LogicalType.TEXT, 6, length=100),
        Column("DAY", LogicalType.DATE, 7),
        Column("DEPARTED", LogicalType.TIMESTAMP_NTZ, 8, scale=6),
    ),
)
OBJECTS = TableSchema(1, FLIGHTS.columns[:6])
USER = TableSchema(
    1,
    tuple(
        Column(f"C{place}", kind, place, precision=18, scale=0, length=100)
        if kind is LogicalType.FIXED
        else Column(f"C{place}", kind, place, length=100)
        for place, kind in enumerate(
            (LogicalType.FIXED, LogicalType.FIXED, LogicalType.REAL, LogicalType.TEXT, LogicalType.TEXT, LogicalType.FIXED, LogicalType.REAL, LogicalType.TEXT),
            1,
        )
    ),
)  # fmt: skip


def fields(number: int, seeded: random.Random) -> list[str]:
    return [
        str(number),
        str(seeded.randrange(10**6)),
        f"{seeded.randrange(10**7) / 100:.2f}",
        f"{seeded.random() * 1000:.6f}",
        f"name of {seeded.randrange(1000)}",
        f"city {seeded.randrange(100)} somewhere",
        f"2013-{seeded.randrange(1, 13):02}-{seeded.randrange(1, 29):02}",
        f"2013-01-{seeded.randrange(1, 29):02} {seeded.randrange(24):02}:07:09.123",
    ]


def spoiled(records: list[bytes], old: bytes, new: bytes) -> list[bytes]:
    """Make one record of a hundred invalid."""
    return [
        record if place % 100 else record.replace(old, new, 1)
        for place, record in enumerate(records)
    ]


def pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(MIB):
            yield piece


def parsed(
    name: str,
    path: Path,
    schema: TableSchema,
    columns: dict[str, ColumnOptions] | None = None,
    **parameters: object,
) -> tuple[int, int]:
    """Parse a file. Return the numbers of rows and rejects."""
    rows = rejects = 0
    defined = definition(name)
    assert defined is not None
    parser = defined.build_phase(parameters)
    for part in parser.parse(ByteReader(pieces(path)), ParseTarget(schema, columns or {}), WHOLE):
        rows += part.rows.num_rows
        rejects += len(part.rejects)
    return rows, rejects


def by_arrow(path: Path, quote: str | bool) -> None:
    """Read a file with Arrow's reader and the types of native form."""
    fields = native_schema(FLIGHTS)
    drop(
        arrow_csv.open_csv(
            path,
            arrow_csv.ReadOptions(column_names=fields.names, use_threads=False, block_size=MIB),
            arrow_csv.ParseOptions(delimiter="|", quote_char=quote),
            arrow_csv.ConvertOptions(
                column_types={field.name: field.type for field in fields}, strings_can_be_null=True
            ),
        )
    )


class Bench:
    """Benchmark runs, and the rows of the report."""

    def __init__(self, report: Report, repeats: int) -> None:
        self._report = report
        self._repeats = repeats

    def compare(
        self,
        what: str,
        size: int,
        library: Callable[[], object],
        ours: Callable[[], object],
        goal: str = "–",
    ) -> None:
        """Add a row for a parser and the library that it calls."""
        theirs_s, ours_s = best((library, ours), self._repeats)
        megabytes = size / 1e6
        self._report.add(
            what,
            f"{megabytes / theirs_s:,.0f}",
            f"{megabytes / ours_s:,.0f}",
            f"{theirs_s / ours_s:.2f}",
            goal,
        )


def delimited(bench: Bench, count: int, folder: Path) -> None:
    seeded = random.Random(1)
    rows = [fields(number, seeded) for number in range(count)]
    plain = ["|".join(row).encode() for row in rows]
    quoted = ["|".join(f'"{text}"' for text in row).encode() for row in rows]
    good = folder / "good.csv"
    good.write_bytes(b"\n".join(plain))
    size = good.stat().st_size
    whole = lambda: by_arrow(good, quote=False)  # noqa: E731
    bench.compare(
        "DELIMITED against open_csv",
        size,
        whole,
        lambda: parsed("delimited", good, FLIGHTS),
        "1.3",
    )
    marks = folder / "quoted.csv"
    marks.write_bytes(b"\n".join(quoted))
    bench.compare(
        "the same with all fields in quotes",
        marks.stat().st_size,
        lambda: by_arrow(marks, quote='"'),
        lambda: parsed("delimited", marks, FLIGHTS, enclosed_by='"'),
        "1.1",
    )
    bench.compare(
        "DELIMITED, one column with a NULL of its own",
        size,
        whole,
        lambda: parsed("delimited", good, FLIGHTS, {"CITY": ColumnOptions(null="NA")}),
    )
    for what, old, new in (
        ("1 % with a letter in a number", b"|", b"|x"),
        ("1 % with a field too few", b"|", b""),
    ):
        bad = folder / "bad.csv"
        bad.write_bytes(b"\n".join(spoiled(plain, old, new)))
        bench.compare(
            f"DELIMITED, {what}, against open_csv of good ones",
            size,
            whole,
            partial(parsed, "delimited", bad, FLIGHTS),
        )


def messages(bench: Bench, count: int) -> None:
    seeded = random.Random(2)
    names = [column.name.lower() for column in OBJECTS.columns]
    good = []
    for number in range(count):
        numbers = fields(number, seeded)
        values = [*map(int, numbers[:2]), *map(float, numbers[2:4]), *numbers[4:6]]
        good.append(json.dumps(dict(zip(names, values, strict=True))).encode())
    size = sum(map(len, good))
    schema = pa.schema(
        [
            pa.field(name, field.type)
            for name, field in zip(names, native_schema(OBJECTS), strict=True)
        ]
    )

    texts = [b"\n".join(good[start : start + 5_000]) for start in range(0, len(good), 5_000)]

    def arrow() -> None:
        for text in texts:
            arrow_json.read_json(
                pa.BufferReader(text),
                arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                arrow_json.ParseOptions(explicit_schema=schema),
            )

    def ours(batches: list[pa.BinaryArray]) -> None:
        defined = definition("kafkajsonparser")
        assert defined is not None
        parser = defined.build_phase({})
        drop(parser.parse_records(iter(batches), ParseTarget(OBJECTS)))

    for what, given, goal in (
        ("KAFKAJSONPARSER against read_json", good, "–"),
        ("the same, 1 % cut off (read_json has good ones)", spoiled(good, b"}", b""), "250 MB/s"),
        ("the same, 1 % broken inside", spoiled(good, b": ", b" "), "250 MB/s"),
        (
            "the same, 1 % with a text for a number",
            spoiled(good, b'"id": ', b'"id": "x", "": '),
            "–",
        ),
    ):
        # Messages, as from a topic.
        batches = [
            pa.array(given[start : start + 5_000], pa.binary())
            for start in range(0, len(given), 5_000)
        ]
        bench.compare(what, size, arrow, partial(ours, batches), goal)


def rows_of_users(bench: Bench, count: int) -> None:
    seeded = random.Random(3)
    lines = []
    for number in range(count // 3):
        row = fields(number, seeded)
        lines.append(",".join([*row[:2], row[3], *row[4:6], row[1], row[3], row[4]]).encode())
    data = b"\n".join(lines) + b"\n"
    given = cut(data)
    bench.compare(
        "a parser of a user, row by row, against the same lines bare",
        len(data),
        lambda: bare_rows(given),
        lambda: drop(row_parser().parse(ByteReader(given), ParseTarget(USER), WHOLE)),
        "0.45",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    report = Report(
        "load_parsers",
        "What do parsers of a load cost over the libraries that they call?",
        ("parser", "library MB/s", "parser MB/s", "ratio", "goal"),
    )
    bench = Bench(report, options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        delimited(bench, options.rows, Path(folder))
    messages(bench, options.rows)
    rows_of_users(bench, options.rows)
    report.remark(
        "MB of text for each second of processor time, one thread, the best of "
        f"{options.repeats} runs by turns; {options.rows:,} records of eight fields, about 90 bytes "
        "each (messages of six, about 120). Decimals, which Arrow reads more slowly than 64-bit "
        "integers, on both sides."
    )
    report.keep()


if __name__ == "__main__":
    main()
