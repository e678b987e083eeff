"""Steps of the demo (stream, kill, resume, query, migrate, COPY, Kafka, call) and latency measurement.

While rows are streamed, PyIceberg counts them through the Iceberg REST catalog. After the
migration, PyIceberg and Polars read the native files.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import acos, cos, radians, sin
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import StaticTable
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from snowmelt.catalog.objects import tables
from snowmelt.catalog.security.encryption_keys import create_access_key
from snowmelt.catalog.streaming import channels
from snowmelt.cli.flights_demo import dataset
from snowmelt.cli.flights_demo.dataset import read_csv_rows
from snowmelt.cli.flights_demo.kafka_chapter import run_kafka_chapter
from snowmelt.clock import SystemClock
from snowmelt.config import copy_environment
from snowmelt.embedded import EMBEDDED_USER, EmbeddedService
from snowmelt.errors import InternalError, ServiceUnavailable
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from rich.console import Console

    from snowmelt.spark.snowmelt_session import Snowmelt

_TABLE_NAME = TableName("DEMO", "PUBLIC", "FLIGHTS")
# Time without a committed row after which the load counts as stuck.
_STUCK_AFTER_S = 150.0
_REPORT_INTERVAL_S = 2.0
_MAX_SHOWN_REJECTS = 5
_MANUFACTURER_QUERY = (
    f"SELECT p.manufacturer, count(*) AS flights FROM {dataset.TABLE} f "
    f"JOIN {dataset.PLANES} p ON f.tailnum = p.tailnum GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 3"
)
_FOG_QUERY = (
    f"SELECT count(*) FROM {dataset.TABLE} f JOIN {dataset.WEATHER} w "
    "ON f.origin = w.origin AND f.time_hour = w.time_hour WHERE w.visib < 1"
)
_clock = SystemClock()


class LatencyProbe:
    """Polls the number of visible rows of each channel.

    Records the time *after* a poll has returned, so a slow query counts as latency.
    """

    def __init__(self, read_row_counts: Callable[[], Mapping[str, int]], interval_s: float) -> None:
        self._read_row_counts = read_row_counts
        self._interval_s = interval_s
        self._observations: dict[str, list[tuple[int, float]]] = {}

    def run(self, stop: threading.Event) -> None:
        """Poll until `stop` is set."""
        while not stop.wait(self._interval_s):
            counts = self._read_row_counts()
            seen_at = _clock.monotonic()
            for channel, count in counts.items():
                looks = self._observations.setdefault(channel, [])
                if not looks or looks[-1][0] != count:
                    looks.append((count, seen_at))

    def count_visible_rows(self) -> int:
        """Return the total number of rows in the latest poll."""
        return sum(looks[-1][0] for looks in list(self._observations.values()) if looks)

    def measure_delays_s(self, journal: Path) -> list[float]:
        """Return the sorted latencies in seconds of all batches, except those that the crash lost.

        Batches after the token from which the next loader resumed were lost: they were not
        committed.
        """
        batches: list[tuple[str, int, float]] = []
        for line in journal.read_text().splitlines():
            channel, token, at = json.loads(line)
            if at is None:
                batches = [batch for batch in batches if batch[0] != channel or batch[1] <= token]
            else:
                batches.append((channel, token, at))
        delays = []
        for channel, token, at in batches:
            looks = self._observations.get(channel, [])
            index = bisect_left(looks, token, key=lambda look: look[0])
            if index < len(looks):
                delays.append(looks[index][1] - at)
        return sorted(delays)


class DemoScenario:
    """Runs the steps of the demo, and compares the results with the expected ones."""

    def __init__(self, folder: Path, rows_per_s: float, console: Console) -> None:
        self._folder = folder
        self._rows_per_s = rows_per_s
        self._console = console
        self._promises: list[tuple[str, str, str, str]] = []
        self._is_broken = False

    def record_promise(self, what: str, promised: object, seen: object, *, kept: bool) -> None:
        """Add a line with a guarantee and its check to the final table."""
        mark = "[green]kept[/green]" if kept else "[red]BROKEN[/red]"
        self._promises.append((what, str(promised), str(seen), mark))
        self._is_broken |= not kept

    def run(self) -> bool:
        """Run the whole demo. Return True if every check succeeded."""
        self._print_step("Reading the flights of 2013 from New York …")
        expected = dataset.compute_expected_results(dataset.load_flights())
        with EmbeddedService(self._folder, s3_port=_find_free_port()) as service:
            self._console.print(
                f"Service on {service.url}, data in {self._folder}. Starting Spark …"
            )
            self._run_steps(service, expected)
        self._print_table("Guarantees and results", "|promised|seen|", self._promises)
        self._console.print(
            f"The data is kept in {self._folder}; query it with\n"
            f'  ./run --data-dir {self._folder} sql "SELECT carrier, count(*) '
            f'FROM {dataset.TABLE} GROUP BY carrier ORDER BY 2 DESC"',
            # Let the terminal wrap the line, so that the copied command has no line break.
            soft_wrap=True,
        )
        return not self._is_broken

    def _run_steps(self, service: EmbeddedService, expected: dataset.ExpectedResults) -> None:
        from snowmelt.spark.snowmelt_session import Snowmelt  # Spark takes seconds to import

        service.sql("CREATE DATABASE demo")
        service.sql(dataset.format_create_table())
        lake = Snowmelt.local(self._folder)
        self._stream_flights(service, lake, expected.rows)
        fresh = self._check_queries(lake, expected, "mixed table")
        self._print_step("Migrating to native files with Spark …")
        began = _clock.monotonic()
        lake.migrate(dataset.TABLE)
        self._console.print(f"  done in {_clock.monotonic() - began:.1f} s")
        settled = self._check_queries(lake, expected, "native files")
        same = fresh == settled
        self.record_promise("migration changes no result", "equal", _equality(same), kept=same)
        self._check_other_engine(service, expected)
        self._print_step("Loading files of other systems: COPY on Spark …")
        self._load_files(lake, self._folder / "files")
        self._print_step("Streaming a Kafka topic with a connector …")
        run_kafka_chapter(
            service,
            lambda text: lake.sql(text).collect(),
            self._folder,
            self._console,
            self.record_promise,
        )
        self._print_step("Calling a service for airports: external functions …")
        log = self._folder / "airports.log"
        run_function_chapter(lake, log, self._console, self.record_promise)

    def _stream_flights(self, service: EmbeddedService, lake: Snowmelt, total_rows: int) -> None:
        """Load all flights, kill the loader at the midpoint, and report the latency."""
        journal = self._folder / "demo-journal.jsonl"
        journal.touch()

        def read_committed_rows() -> dict[str, int]:
            with service.service.database.reading() as connection:
                table = tables.find_table(connection, _TABLE_NAME)
                records = channels.list_channels(connection, [table.table_id])
            return {record.name: int(record.offset_token or 0) for record in records}

        def query_visible_rows() -> dict[str, int]:
            query = f"SELECT origin, count(*) FROM {dataset.TABLE} GROUP BY origin"
            return {str(origin): int(count) for origin, count in lake.sql(query).collect()}

        def count_rows_in_engine() -> dict[str, int]:
            scan = catalog.load_table("PUBLIC.FLIGHTS").scan(selected_fields=("ORIGIN",))
            return dict(Counter(scan.to_arrow()["ORIGIN"].to_pylist()))

        catalog = _open_rest_catalog(service)
        count_rows_in_engine()
        query_visible_rows()  # a session's first query is slow, so run it before measuring
        probes = (
            LatencyProbe(read_committed_rows, 0.02),
            LatencyProbe(query_visible_rows, 0.3),
            LatencyProbe(count_rows_in_engine, 0.5),
        )
        self._print_step("Streaming, one channel for each airport …")
        stop = threading.Event()
        with ThreadPoolExecutor(len(probes)) as pool:
            watching = [pool.submit(probe.run, stop) for probe in probes]
            try:
                self._run_loaders(service, journal, probes[:2], total_rows)
            finally:
                stop.set()
            for each in watching:
                each.result()
        for what, probe, limit_s in (
            ("insert → catalog snapshot", probes[0], 2.0),
            ("insert → row in a Spark query", probes[1], None),
            ("insert → row in PyIceberg (REST)", probes[2], None),
        ):
            delays = probe.measure_delays_s(journal)
            promised = f"p50 under {limit_s:.0f} s" if limit_s else "reported"
            p50_s, p99_s = _percentiles(delays)
            seen = f"p50 {p50_s:.2f} s · p99 {p99_s:.2f} s ({len(delays):,} batches)"
            kept = bool(delays) and (limit_s is None or p50_s < limit_s)
            self.record_promise(what, promised, seen if delays else "nothing seen", kept=kept)
        self._record_number(
            "rows in PyIceberg before a migration", total_rows, sum(count_rows_in_engine().values())
        )

    def _run_loaders(
        self,
        service: EmbeddedService,
        journal: Path,
        probes: tuple[LatencyProbe, LatencyProbe],
        total_rows: int,
    ) -> None:
        """Start the loader, kill it at the midpoint, restart it, and wait for its end."""
        committed_probe, spark_probe = probes
        progressed_at = reported_at = _clock.monotonic()
        killed_at, last_committed, freshness = 0, 0, ""
        loader = self._start_loader(service, journal)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        times = TimeElapsedColumn(), TextColumn("{task.fields[seen]}")
        with Progress(*columns, *times, console=self._console) as progress:
            task = progress.add_task("rows committed", total=total_rows, seen="")
            while loader.poll() is None:
                _clock.sleep(0.1)
                committed, now = committed_probe.count_visible_rows(), _clock.monotonic()
                if now >= reported_at + _REPORT_INTERVAL_S:
                    reported_at = now
                    (c50, c99), (s50, s99) = (
                        _percentiles(probe.measure_delays_s(journal)) for probe in probes
                    )
                    freshness = (
                        f"fresh after {c50:.2f} s (p99 {c99:.2f}), "
                        f"in Spark {s50:.2f} s (p99 {s99:.2f})"
                    )
                progress.update(task, completed=committed, seen=freshness)
                if not killed_at and committed > total_rows // 2:
                    killed_at = committed
                    loader.kill()
                    loader.wait()
                    progress.console.print(
                        f"  [red]kill -9[/red] of the loading process at {committed:,} rows; "
                        "starting it again from its committed offset tokens"
                    )
                    loader = self._start_loader(service, journal)
                if committed > last_committed:
                    last_committed, progressed_at = committed, now
                elif now - progressed_at > _STUCK_AFTER_S:
                    loader.kill()
                    raise InternalError(
                        f"The loading process has committed no row for {_STUCK_AFTER_S:.0f} s."
                    )
            for probe, timeout_s in ((committed_probe, 5.0), (spark_probe, 15.0)):
                until = _clock.monotonic() + timeout_s
                while probe.count_visible_rows() < total_rows and _clock.monotonic() < until:
                    _clock.sleep(0.05)
            progress.update(task, completed=committed_probe.count_visible_rows())
        code = loader.returncode
        self.record_promise("loading ends by itself", "exit code 0", code, kept=code == 0)
        seen = f"at {killed_at:,} rows" if killed_at else "never"
        self.record_promise("loader killed in the middle", "once", seen, kept=killed_at > 0)

    def _start_loader(self, service: EmbeddedService, journal: Path) -> subprocess.Popen[bytes]:
        """Start the loading process."""
        command = [sys.executable, "-m", "snowmelt.cli.flights_demo.loader", service.url]
        paths = [str(service.private_key_file), str(journal)]
        with (self._folder / "loader.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own interpreter and modules
                [*command, *paths, str(self._rows_per_s)],
                env=copy_environment(),
                stdout=log,
                stderr=log,
            )

    def _check_queries(
        self, lake: Snowmelt, expected: dataset.ExpectedResults, where: str
    ) -> dataset.ExpectedResults:
        """Run the three queries and compare their results with the source."""
        ((rows, checksum),), routes, late = (
            [tuple(row) for row in lake.sql(query).collect()] for query in dataset.build_queries()
        )
        seen = dataset.ExpectedResults(
            rows=int(rows),
            checksum=int(checksum or 0),
            routes=tuple((str(a), str(b), int(c)) for a, b, c in routes),
            late_by_month=tuple((int(a), int(b)) for a, b in late),
        )
        self._record_number(f"rows, {where}", expected.rows, seen.rows)
        what, same = f"checksum of all values, {where}", seen.checksum == expected.checksum
        self.record_promise(what, expected.checksum, seen.checksum, kept=same)
        same = (seen.routes, seen.late_by_month) == (expected.routes, expected.late_by_month)
        busiest = ", ".join(f"{a}–{b} {count:,}" for a, b, count in seen.routes)
        self.record_promise(f"two more queries, {where}", "as the source", busiest, kept=same)
        return seen

    def _check_other_engine(
        self, service: EmbeddedService, expected: dataset.ExpectedResults
    ) -> None:
        """Read the native files with PyIceberg into Polars, without any Snowmelt code."""
        with service.service.database.reading() as connection:
            pointer = tables.find_table(connection, _TABLE_NAME).pointer
        if pointer is None:
            self.record_promise("another engine reads it", "native files", "none", kept=False)
            return
        rows = StaticTable.from_metadata(pointer).scan().to_arrow()
        frame = pl.DataFrame(pl.from_arrow(rows))
        top = (
            frame.group_by("ORIGIN", "DEST")
            .len("flights")
            .sort(["flights", "ORIGIN", "DEST"], descending=[True, False, False])
        )
        routes = tuple((str(a), str(b), int(c)) for a, b, c in top.head(3).iter_rows())
        named = rows.rename_columns([name.lower() for name in rows.column_names])
        total = dataset.compute_checksum(named)
        self.record_promise(
            "PyIceberg and Polars read the same",
            f"{expected.rows:,} rows, same checksum",
            f"{frame.height:,} rows, checksum {_equality(total == expected.checksum)}",
            kept=(frame.height, total, routes)
            == (expected.rows, expected.checksum, expected.routes),
        )

    def _load_files(self, lake: Snowmelt, folder: Path) -> None:
        """Load files, show rejected records, and join the rows with the streamed flights."""
        expected = dataset.write_raw_files(folder)
        for statement in dataset.build_preparing_statements(folder):
            lake.sql(statement)
        rows = {
            dataset.WEATHER: len(expected.weather_keys),
            dataset.PLANES: len(expected.manufacturer_by_plane),
        }
        rejects = 0
        for table, statement in dataset.build_copy_statements(folder).items():
            self._console.print(f"[dim]{statement}[/dim]")
            copied, again = lake.copy(statement), lake.copy(statement)
            rejects += copied.totals.rejects
            self._record_number(f"rows of {table} from files", rows[table], copied.totals.rows)
            seen = f"{again.totals.rows:,} rows"
            kept = again.load_id is None
            self.record_promise("the same files again", "nothing", seen, kept=kept)
        found = lake.sql(
            "SELECT substring_index(file_name, '/', -1), row_number, rejected_data, rejected_reason "
            f"FROM {dataset.REJECTS} ORDER BY row_number, 1 LIMIT {_MAX_SHOWN_REJECTS}"
        ).collect()
        self._print_table(f"The first of {dataset.REJECTS}", "file|row|record|reason", found)
        self._record_number("broken records kept, with reasons", expected.rejects, rejects)
        self._check_joins(lake, dataset.load_flights(), expected)

    def _check_joins(
        self, lake: Snowmelt, flights: pa.Table, expected: dataset.ExpectedFileResults
    ) -> None:
        tails = Counter(flights["tailnum"].to_pylist())
        flown: Counter[str] = Counter()
        for tail, maker in expected.manufacturer_by_plane.items():
            flown[maker] += tails[tail]
        wanted = sorted(flown.items(), key=lambda item: (-item[1], item[0]))[:3]
        makers = [(str(maker), int(n)) for maker, n in lake.sql(_MANUFACTURER_QUERY).collect()]
        shown = ", ".join(f"{maker} {count:,}" for maker, count in makers)
        kept = makers == wanted
        self.record_promise("flights joined with planes", "as the source", shown, kept=kept)
        hours = pc.strftime(flights["time_hour"], format="%Y-%m-%dT%H:%M:%SZ").to_pylist()
        left = Counter(zip(flights["origin"].to_pylist(), hours, strict=True))
        foggy = sum(left[hour] for hour in expected.foggy_hours)
        seen = int(lake.sql(_FOG_QUERY).collect()[0][0])
        self._record_number("flights joined with weather, in fog", foggy, seen)

    def _record_number(self, what: str, promised: int, seen: int) -> None:
        self.record_promise(what, f"{promised:,}", f"{seen:,}", kept=seen == promised)

    def _print_step(self, text: str) -> None:
        self._console.print(f"[bold]{text}[/bold]")

    def _print_table(self, title: str, headings: str, rows: list[Any]) -> None:
        table = Table(title=title)
        for heading in headings.split("|"):
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(*map(str, row))
        self._console.print(table)


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _open_rest_catalog(service: EmbeddedService) -> Catalog:
    """Return PyIceberg's client of the service's Iceberg REST catalog."""
    components = service.service
    with components.database.writing() as connection:
        key = create_access_key(
            connection, components.keyring, EMBEDDED_USER, now=components.clock.now()
        )
    return load_catalog(
        "demo",
        type="rest",
        uri=f"{service.url}/iceberg",
        warehouse="DEMO",
        token=f"{key.access_key_id}.{key.secret}",
    )


def _percentiles(delays_s: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile of sorted delays, or zeros if there are none."""
    if not delays_s:
        return 0.0, 0.0
    count = len(delays_s)
    return delays_s[count // 2], delays_s[min(count - 1, count * 99 // 100)]


def _equality(equal: bool) -> str:
    return "equal" if equal else "different"


# Step of the external functions: SQL calls the airport service in another process.

_DEFAULT_NAMESPACE = {"database": "demo", "schema": "public"}
_EARTH_RADIUS_MILES = 3958.76
# The column `distance` of the flights has whole miles, computed on an ellipsoid. The service
# computes on a sphere.
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
    """Runs `snowmelt functions serve` in a child process until the context ends."""

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
        assert self._process.stdout is not None  # noqa: S101 - requested above
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
    """Build the statements that register the service's functions in SQL."""
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
    """Expected results of the external functions, computed from the source."""

    flights: int
    miles: int
    farthest: list[tuple[str, str]]


def compute_expected_calls(flights: pa.Table) -> ExpectedCalls:
    """Compute the expected results with a different formula than the service's."""
    airports = {row["faa"]: row for row in read_csv_rows("airports.csv")}
    count = total = 0
    far: Counter[str] = Counter()
    columns = (flights[name].to_pylist() for name in ("origin", "dest", "distance"))
    routes = Counter(zip(*columns, strict=True))
    for (origin, dest, distance), flown in routes.items():
        far[dest] = max(far[dest], distance)
        if dest in airports:
            count += flown
            (north, east), (to_north, to_east) = (
                (radians(float(each["lat"])), radians(float(each["lon"])))
                for each in (airports[origin], airports[dest])
            )
            cosine = sin(north) * sin(to_north) + cos(north) * cos(to_north) * cos(to_east - east)
            total += flown * round(_EARTH_RADIUS_MILES * acos(cosine))
    farthest = sorted((dest, airports[dest]["name"]) for dest, _ in far.most_common(5))
    return ExpectedCalls(count, total, farthest)


def run_function_chapter(
    lake: Snowmelt, log_file: Path, console: Console, promise: Callable[..., None]
) -> None:
    """Start the service, call it for all flights, and print the call log."""
    flights = dataset.load_flights()
    wanted = compute_expected_calls(flights)
    with AirportServiceProcess(log_file) as service:
        for statement in build_function_statements(service.url):
            console.print(f"[dim]{statement}[/dim]")
            lake.sql(statement)
        count, miles, apart = lake.sql(_DISTANCE_QUERY, **_DEFAULT_NAMESPACE).collect()[0]
        for what, expected, found in (
            ("flights whose route the service knows", wanted.flights, count),
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
    table = Table(title="Call log")
    for heading in ("function", "calls", "rows", "sent", "attempts", "bytes out", "in", "ms each"):
        table.add_column(heading, justify="left" if heading == "function" else "right")
    rows = sent = 0
    for function, *numbers in lake.sql(_CALL_LOG_QUERY).collect():
        rows, sent = rows + numbers[1], sent + numbers[2]
        table.add_row(str(function), *(f"{number:,}" for number in numbers))
    console.print(table)
    limit = flights.num_rows // 20
    promised, seen = f"under {limit:,} of {rows:,}", f"{sent:,} rows sent"
    promise("equal routes are sent once", promised, seen, kept=sent < limit)
