"""The demo's external function step: SQL calls the airport service in another process."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import acos, cos, radians, sin
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from rich.table import Table

from snowmelt.cli.flights_demo import dataset
from snowmelt.cli.flights_demo.raw_files import read_csv_rows
from snowmelt.config import copy_environment
from snowmelt.errors import ServiceUnavailable

if TYPE_CHECKING:
    from rich.console import Console

    from snowmelt.spark.snowmelt_session import Snowmelt

_DEFAULT_NAMESPACE = {"database": "demo", "schema": "public"}
_EARTH_RADIUS_MILES = 3958.76
# The column `distance` is in whole miles, and of an ellipsoid.
_DISTANCE_QUERY = (
    "SELECT count(m), sum(CAST(round(m) AS BIGINT)), "
    "count_if(abs(m - distance) > greatest(1, distance / 200)) "
    f"FROM (SELECT distance, miles(origin, dest) AS m FROM {dataset.TABLE})"
)
_FARTHEST_QUERY = (
    "SELECT dest, val:city, val:latitude, val:longitude FROM (SELECT dest, place(dest) AS val FROM "
    f"(SELECT dest, max(distance) AS far FROM {dataset.TABLE} GROUP BY dest "
    "ORDER BY far DESC LIMIT 5))"
)
_CALL_LOG_QUERY = (
    "SELECT function_name, count_if(rows_sent > 0), sum(row_count), sum(rows_sent), "
    "sum(attempts), sum(bytes_sent), sum(bytes_received), "
    "round(avg(CASE WHEN rows_sent > 0 THEN calling_ms END), 1) "
    "FROM external_function_calls GROUP BY 1 ORDER BY 1"
)


class AirportServiceProcess:
    """`snowmelt functions serve` in a child process, which ends with the context."""

    def __init__(self, log_file: Path) -> None:
        self._log = log_file
        self.url = ""

    def __enter__(self) -> Self:
        file = Path(__file__).with_name("airport_service.py")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and modules
                [sys.executable, "-m", "snowmelt", "functions", "serve", str(file), "--port", "0"],
                env=copy_environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        said = self._process.stdout.readline().strip()
        if not said:
            self.__exit__()
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise ServiceUnavailable(url="The service of airports", reason="".join(last))
        self.url = said.rpartition(" ")[2]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def build_function_statements(url: str) -> tuple[str, ...]:
    """Return what makes the service's functions known to SQL."""
    clauses = "RETURNS NULL ON NULL INPUT IMMUTABLE API_INTEGRATION = airports CACHE = 1000000"
    functions = (
        "place(code VARCHAR) RETURNS VARIANT",
        "miles(origin VARCHAR, dest VARCHAR) RETURNS FLOAT",
    )
    return (
        f"CREATE API INTEGRATION airports API_PROVIDER = http API_ALLOWED_PREFIXES = ('{url}')",
        *(
            f"CREATE EXTERNAL FUNCTION demo.public.{each} {clauses} "
            f"AS '{url}/{each.partition('(')[0]}'"
            for each in functions
        ),
    )


@dataclass(frozen=True, slots=True)
class ExpectedCalls:
    """What the service's answers must come to, computed from the source alone."""

    flights: int
    miles: int
    farthest: list[tuple[str, str]]


def compute_expected_calls(flights: pa.Table) -> ExpectedCalls:
    """Compute it, with another formula than the service's."""
    airports = {row["faa"]: row for row in read_csv_rows("airports.csv")}
    count = total = 0
    far: Counter[str] = Counter()
    columns = (flights[name].to_pylist() for name in ("origin", "dest", "distance"))
    routes = Counter(zip(*columns, strict=True))
    for (origin, dest, distance), flown in routes.items():
        far[dest] = max(far[dest], distance)
        if dest in airports:
            count += flown
            total += flown * round(_great_circle_miles(airports[origin], airports[dest]))
    farthest = sorted((dest, airports[dest]["name"]) for dest, _ in far.most_common(5))
    return ExpectedCalls(count, total, farthest)


def _great_circle_miles(origin: dict[str, str], destination: dict[str, str]) -> float:
    (north, east), (to_north, to_east) = (
        (radians(float(each["lat"])), radians(float(each["lon"]))) for each in (origin, destination)
    )
    cosine = sin(north) * sin(to_north) + cos(north) * cos(to_north) * cos(to_east - east)
    return _EARTH_RADIUS_MILES * acos(cosine)


def run_function_chapter(
    lake: Snowmelt, log_file: Path, console: Console, promise: Callable[..., None]
) -> None:
    """Start the service, ask it about all flights, and show what that took."""
    flights = dataset.load_flights()
    wanted = compute_expected_calls(flights)
    with AirportServiceProcess(log_file) as service:
        for statement in build_function_statements(service.url):
            console.print(f"[dim]{statement}[/dim]")
            lake.sql(statement)
        count, miles, apart = lake.sql(_DISTANCE_QUERY, **_DEFAULT_NAMESPACE).collect()[0]
        for what, expected, found in (
            ("flights that the service knows the route of", wanted.flights, count),
            ("miles of great circles, summed", wanted.miles, miles),
        ):
            promise(what, f"{expected:,}", f"{found:,}", kept=found == expected)
        what, seen = "against the flights' own column", f"{apart:,} flights are not"
        promise(what, "within 0.5 % or a mile", seen, kept=apart == 0)
        console.print(f"[dim]{_FARTHEST_QUERY}[/dim]")
        places = (
            lake.sql(_FARTHEST_QUERY, **_DEFAULT_NAMESPACE)
            .selectExpr("dest", "CAST(city AS STRING)")
            .collect()
        )
        found = [(str(dest), str(city)) for dest, city in places]
        shown, kept = ", ".join(city for _, city in found[:3]), sorted(found) == wanted.farthest
        promise("most distant destinations", "as the source", shown, kept=kept)
    table = Table(title="The ledger of calls")
    for heading in ("function", "calls", "rows", "sent", "attempts", "bytes out", "in", "ms each"):
        table.add_column(heading, justify="left" if heading == "function" else "right")
    rows = sent = 0
    for function, *numbers in lake.sql(_CALL_LOG_QUERY).collect():
        rows, sent = rows + numbers[1], sent + numbers[2]
        table.add_row(str(function), *(f"{number:,}" for number in numbers))
    console.print(table)
    limit = flights.num_rows // 20
    promised, seen = f"under {limit:,} of {rows:,}", f"{sent:,} rows sent"
    promise("equal routes leave once", promised, seen, kept=sent < limit)
