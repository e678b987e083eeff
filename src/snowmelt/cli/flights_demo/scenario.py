"""The demo's steps and latency measurement: stream, kill, resume, query, migrate, COPY, call.

After the migration, another engine (PyIceberg and Polars) reads the native files, too.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl
from pyiceberg.table import StaticTable
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.catalog.objects import tables
from snowmelt.catalog.streaming import channels
from snowmelt.cli.flights_demo import dataset
from snowmelt.cli.flights_demo.copy_chapter import run_copy_chapter
from snowmelt.cli.flights_demo.function_chapter import run_function_chapter
from snowmelt.cli.flights_demo.processes import DemoService
from snowmelt.clock import SystemClock
from snowmelt.errors import InternalError
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pyarrow as pa
    from rich.console import Console

    from snowmelt.config import Settings
    from snowmelt.spark.snowmelt_session import Snowmelt

# --- How long after its insertion a row can be seen: told from the loader's journal and from probes.


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """Seconds from insertion to sight; `batch_count` were measured."""

    batch_count: int
    p50_s: float
    p99_s: float
    max_s: float

    def __str__(self) -> str:
        return f"p50 {self.p50_s:.2f} s · p99 {self.p99_s:.2f} s ({self.batch_count:,} batches)"


@dataclass
class LatencyProbe:
    """A thread that looks again and again at how many rows of each channel can be seen.

    `read_row_counts` returns rows visible per channel; the instant noted is the one *after* it returned,
    so a slow query counts against freshness.
    """

    read_row_counts: Callable[[], Mapping[str, int]]
    interval_s: float
    observations: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    error: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more; raises what a look raised."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def count_visible_rows(self) -> int:
        """Return the rows seen by the latest look, all channels together."""
        return sum(looks[-1][0] for looks in list(self.observations.values()) if looks)

    def _poll(self) -> None:
        clock = SystemClock()
        try:
            while not self._stop.wait(self.interval_s):
                counts = self.read_row_counts()
                at = clock.monotonic()
                for channel, count in counts.items():
                    looks = self.observations.setdefault(channel, [])
                    if not looks or looks[-1][0] != count:
                        looks.append((count, at))
        except Exception as error:  # noqa: BLE001 - handed to whoever stops the probe
            self.error = error


def measure_latency(journal: Path, probe: LatencyProbe) -> LatencyReport | None:
    """Return the freshness of every batch that was not lost with a killed loader's memory.

    A batch beyond the token at which the next loader resumed had been promised to nobody.
    Returns None when nothing was seen.
    """
    batches: list[tuple[str, int, float]] = []
    for line in journal.read_text().splitlines():
        channel, token, at = json.loads(line)
        if at is None:
            batches = [batch for batch in batches if batch[0] != channel or batch[1] <= token]
        else:
            batches.append((channel, token, at))
    delays = sorted(
        delay
        for batch in batches
        if (delay := _find_delay_s(batch, probe.observations)) is not None
    )
    if not delays:
        return None
    return LatencyReport(
        batch_count=len(delays),
        p50_s=delays[len(delays) // 2],
        p99_s=delays[min(len(delays) - 1, len(delays) * 99 // 100)],
        max_s=delays[-1],
    )


def _find_delay_s(
    batch: tuple[str, int, float], observations: Mapping[str, list[tuple[int, float]]]
) -> float | None:
    channel, token, at = batch
    looks = observations.get(channel, [])
    index = bisect_left(looks, token, key=lambda look: look[0])
    return looks[index][1] - at if index < len(looks) else None


_TABLE_NAME = TableName("DEMO", "PUBLIC", "FLIGHTS")
_LOAD_TIMEOUT_S = 150.0
_REPORT_INTERVAL_S = 2.0


@dataclass
class DemoScenario:
    """What was promised and what was seen, gathered while the demo goes on."""

    settings: Settings
    rows_per_s: float
    console: Console
    clock: SystemClock = field(default_factory=SystemClock)
    promises: list[tuple[str, str, str, bool]] = field(default_factory=list)
    _latency_text: str = ""
    _latency_reported_s: float = 0.0

    def record_promise(self, what: str, promised: object, seen: object, *, kept: bool) -> None:
        """Note one line of the closing table."""
        self.promises.append((what, str(promised), str(seen), kept))

    def run(self) -> bool:
        """Run the whole demo; return whether every promise was kept."""
        self.console.print("[bold]Reading the flights of 2013 from New York …[/bold]")
        expected = dataset.compute_expected_results(dataset.load_flights())
        with DemoService(self.settings) as service:
            self.console.print(
                f"Service on {service.url}, data in {self.settings.data_dir}. Starting Spark …"
            )
            database = open_and_upgrade_database(self.settings.catalog_url)
            try:
                self._run_steps(service, database, expected)
            finally:
                database.close()
        return self._print_results()

    def _run_steps(
        self, service: DemoService, database: Database, expected: dataset.ExpectedResults
    ) -> None:
        from snowmelt.spark.snowmelt_session import Snowmelt  # Spark takes seconds to import

        lake = Snowmelt.local(self.settings.data_dir)
        _query_visible_rows(lake)  # a session's first query pays for all later ones
        journal = self.settings.data_dir / "demo-journal.jsonl"
        journal.touch()
        catalog_probe = LatencyProbe(lambda: _read_committed_rows(database), interval_s=0.02)
        spark_probe = LatencyProbe(lambda: _query_visible_rows(lake), interval_s=0.3)
        catalog_probe.start()
        spark_probe.start()
        self.console.print("[bold]Streaming, one channel for each airport …[/bold]")
        loader = service.start_loader(journal, self.rows_per_s)
        self._kill_and_resume_load(
            service, loader, journal, (catalog_probe, spark_probe), expected.rows
        )
        self._record_latency(journal, catalog_probe, spark_probe)
        fresh = self._check_queries(lake, expected, "mixed table")
        self.console.print("[bold]Migrating to native files with Spark …[/bold]")
        began = self.clock.monotonic()
        lake.migrate(dataset.TABLE)
        self.console.print(f"  done in {self.clock.monotonic() - began:.1f} s")
        settled = self._check_queries(lake, expected, "native files")
        self.record_promise(
            "migration changes no answer",
            "equal",
            _format_equality(fresh == settled),
            kept=fresh == settled,
        )
        self._check_other_engine(database, expected)
        self.console.print("[bold]Loading files that other systems left: COPY on Spark …[/bold]")
        run_copy_chapter(lake, self.settings.data_dir / "files", self.console, self.record_promise)
        self.console.print("[bold]Asking a service about airports: external functions …[/bold]")
        log = self.settings.data_dir / "airports.log"
        run_function_chapter(lake, log, self.console, self.record_promise)

    def _kill_and_resume_load(
        self,
        service: DemoService,
        loader: subprocess.Popen[bytes],
        journal: Path,
        probes: tuple[LatencyProbe, LatencyProbe],
        total_rows: int,
    ) -> None:
        """Follow the load, kill its process half-way, start it again, and wait for its end."""
        catalog_probe, spark_probe = probes
        began = self.clock.monotonic()
        killed_at: int | None = None
        with self._create_progress() as progress:
            task = progress.add_task("rows committed", total=total_rows, seen="")
            while loader.poll() is None:
                self.clock.sleep(0.1)
                committed = catalog_probe.count_visible_rows()
                progress.update(
                    task, completed=committed, seen=self._format_latency(journal, probes)
                )
                if killed_at is None and committed > total_rows // 2:
                    killed_at = committed
                    os.kill(loader.pid, signal.SIGKILL)
                    loader.wait()
                    progress.console.print(
                        f"  [red]kill -9[/red] of the loading process at {committed:,} rows; "
                        "starting it again from its committed offset tokens"
                    )
                    loader = service.start_loader(journal, self.rows_per_s)
                if self.clock.monotonic() - began > _LOAD_TIMEOUT_S:
                    loader.kill()
                    raise InternalError("The load did not end in time.")
            _wait_until(self.clock, lambda: catalog_probe.count_visible_rows() >= total_rows, 5.0)
            _wait_until(self.clock, lambda: spark_probe.count_visible_rows() >= total_rows, 15.0)
            progress.update(task, completed=catalog_probe.count_visible_rows())
        for probe in probes:
            probe.stop()
        self.record_promise(
            "loading ends by itself", "exit code 0", loader.returncode, kept=loader.returncode == 0
        )
        self.record_promise(
            "loader killed in the middle",
            "once",
            f"at {killed_at:,} rows" if killed_at else "never",
            kept=killed_at is not None,
        )

    def _format_latency(self, journal: Path, probes: tuple[LatencyProbe, LatencyProbe]) -> str:
        """Return freshness up to now, told anew every two seconds."""
        if self.clock.monotonic() >= self._latency_reported_s + _REPORT_INTERVAL_S:
            self._latency_reported_s = self.clock.monotonic()
            catalog, spark = (measure_latency(journal, probe) for probe in probes)
            if catalog is not None and spark is not None:
                self._latency_text = (
                    f"fresh after {catalog.p50_s:.2f} s (p99 {catalog.p99_s:.2f}), "
                    f"in Spark {spark.p50_s:.2f} s (p99 {spark.p99_s:.2f})"
                )
        return self._latency_text

    def _record_latency(
        self, journal: Path, catalog_probe: LatencyProbe, spark_probe: LatencyProbe
    ) -> None:
        for what, probe, limit in (
            ("insert → catalog snapshot", catalog_probe, 2.0),
            ("insert → row in a Spark query", spark_probe, None),
        ):
            seen: LatencyReport | None = measure_latency(journal, probe)
            promised = f"p50 under {limit:.0f} s" if limit else "reported"
            kept = seen is not None and (limit is None or seen.p50_s < limit)
            self.record_promise(what, promised, seen or "nothing seen", kept=kept)

    def _check_queries(
        self, lake: Snowmelt, expected: dataset.ExpectedResults, where: str
    ) -> dataset.ExpectedResults:
        """Ask the three questions and hold the answers against the source."""
        texts = list(dataset.build_queries().values())
        answers = [[tuple(row) for row in lake.sql(text).collect()] for text in texts]
        seen = dataset.ExpectedResults(
            rows=int(answers[0][0][0]),
            checksum=int(answers[0][0][1] or 0),
            routes=tuple((str(a), str(b), int(c)) for a, b, c in answers[1]),
            late_by_month=tuple((int(a), int(b)) for a, b in answers[2]),
        )
        self.record_promise(
            f"rows, {where}",
            f"{expected.rows:,}",
            f"{seen.rows:,}",
            kept=seen.rows == expected.rows,
        )
        self.record_promise(
            f"checksum of all values, {where}",
            expected.checksum,
            seen.checksum,
            kept=seen.checksum == expected.checksum,
        )
        same = (seen.routes, seen.late_by_month) == (expected.routes, expected.late_by_month)
        busiest = ", ".join(f"{a}–{b} {count:,}" for a, b, count in seen.routes)
        self.record_promise(f"two more questions, {where}", "as the source", busiest, kept=same)
        return seen

    def _check_other_engine(self, database: Database, expected: dataset.ExpectedResults) -> None:
        """Read the native files through PyIceberg into Polars, with nothing of ours between."""
        with database.reading() as connection:
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
        total = dataset.compute_checksum(
            dataset.iterate_checksum_rows(_lowercase_column_names(rows))
        )
        kept = (frame.height, total, routes) == (expected.rows, expected.checksum, expected.routes)
        self.record_promise(
            "PyIceberg and Polars read the same",
            f"{expected.rows:,} rows, same checksum",
            f"{frame.height:,} rows, checksum {_format_equality(total == expected.checksum)}",
            kept=kept,
        )

    def _print_results(self) -> bool:
        table = Table(title="What was promised and what was seen")
        for heading in ("", "promised", "seen", ""):
            table.add_column(heading)
        for what, promised, seen, kept in self.promises:
            mark = "[green]kept[/green]" if kept else "[red]BROKEN[/red]"
            table.add_row(what, promised, seen, mark)
        self.console.print(table)
        self.console.print(
            f"The data is kept in {self.settings.data_dir}; ask it more with\n"
            f'  ./run --data-dir {self.settings.data_dir} sql "SELECT carrier, count(*) '
            f'FROM {dataset.TABLE} GROUP BY carrier ORDER BY 2 DESC"',
            # A terminal wraps what it shows; a line break in the command would be copied, too.
            soft_wrap=True,
        )
        return all(kept for *_, kept in self.promises)

    def _create_progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[seen]}"),
            console=self.console,
        )


def _read_committed_rows(database: Database) -> Mapping[str, int]:
    """Return rows committed per channel, as the catalog tells."""
    with database.reading() as connection:
        table = tables.find_table(connection, _TABLE_NAME)
        records = channels.list_channels(connection, [table.table_id])
    return {record.name: int(record.offset_token or 0) for record in records}


def _query_visible_rows(lake: Snowmelt) -> Mapping[str, int]:
    """Return rows per channel in the result of a Spark SQL query."""
    rows = lake.sql(f"SELECT origin, count(*) FROM {dataset.TABLE} GROUP BY origin").collect()
    return {str(origin): int(count) for origin, count in rows}


def _lowercase_column_names(rows: pa.Table) -> pa.Table:
    return rows.rename_columns([name.lower() for name in rows.column_names])


def _format_equality(equal: bool) -> str:
    return "equal" if equal else "different"


def _wait_until(clock: SystemClock, condition: Callable[[], bool], timeout_s: float) -> None:
    until = clock.monotonic() + timeout_s
    while not condition() and clock.monotonic() < until:
        clock.sleep(0.05)
