"""`snowmelt maintain`: compaction, snapshot expiration and garbage collection; background use."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from snowmelt.cli.command_context import load_settings, opening_catalog
from snowmelt.cli.output import add_format_option, format_count, print_rows
from snowmelt.clock import Clock
from snowmelt.config import Settings
from snowmelt.errors import SnowmeltError, TableNotFound
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.jobs.run_history import MaintenanceTotals
    from snowmelt.table.file_replacement_run import MaintenanceSettings

NAME = "maintain"
SUMMARY = "compact small files, expire old snapshots and delete unreferenced files"
EXAMPLES = """examples:
  snowmelt maintain
  snowmelt maintain --dry-run
  snowmelt maintain --table demo.public.flights --full

Small files are compacted when there are SNOWMELT_COMPACT_MIN_FILES of similar size, to files of up to
SNOWMELT_COMPACT_TARGET_BYTES. With --full, two files are enough. Queries, streams, migrations and loads
can run at the same time. Replaced files are kept for SNOWMELT_RETENTION_S (more than 3,000 s) for
running queries.
snowmelt serve does the same in the background, unless SNOWMELT_COMPACT=no.
"""
_DRY_RUN_COLUMNS = ("table", "small files", "bytes", "files after", "snapshots to expire")
_MIB = 1024 * 1024
# Migrations wait while a background compaction runs.
_MAX_RUN_BYTES = 256 * _MIB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="NAME",
        help="database.schema.table, repeatable (default: all tables, and garbage collection)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show which files would be compacted, and change nothing",
    )
    parser.add_argument(
        "--full", action="store_true", help="compact all files below the target size"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_format_option(parser)


def run(options: argparse.Namespace) -> int:
    """Run maintenance until nothing is left to do."""
    from snowmelt.catalog.db.database import open_catalog_clock
    from snowmelt.catalog.sql.cursor import parse_table_name

    names = [parse_table_name(text) for text in options.table]
    settings = load_settings(options)
    with opening_catalog(settings) as database:
        chosen = _make_maintenance_settings(settings, full=options.full)
        tables = _list_native_tables(database, names)
        clock = open_catalog_clock(database)
        if options.dry_run:
            rows = [_make_plan_row(database, name, chosen, clock) for name in tables]
            print_rows(_DRY_RUN_COLUMNS, [row for row in rows if any(row[1:])], options.format)
            return 0
        failed = False
        for name in tables:
            try:
                with _showing_progress(name, quiet=options.quiet) as progress:
                    for done in _iter_maintenance_runs(
                        database, name, chosen, clock, progress=progress
                    ):
                        _print_result(name, done)
            except SnowmeltError as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                failed = True
        if not names:
            failed |= not _collect_garbage(database, settings, clock)
    return int(failed)


class BackgroundMaintainer:
    """Runs maintenance periodically within another command, one run per table at a time."""

    def __init__(self, database: Database, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._maintenance_settings = _make_maintenance_settings(settings, run_bytes=_MAX_RUN_BYTES)
        self._interval_s = settings.compact_interval_s
        self._clock = clock
        self._next_run_s = clock.monotonic() + self._interval_s

    def maintain_if_due(self, table_names: Sequence[TableName]) -> None:
        """Maintain these tables, or all tables, if the interval has passed. Print errors."""
        if self._clock.monotonic() < self._next_run_s:
            return
        more = False
        for name in _list_native_tables(self._database, table_names):
            try:
                for done in _iter_maintenance_runs(
                    self._database, name, self._maintenance_settings, self._clock, single_run=True
                ):
                    more |= bool(done.files_before)
                    _print_result(name, done)
            except TableNotFound:
                continue
            except Exception as error:  # noqa: BLE001 - an error of one table must not stop the others
                print(f"{name}: {error}", file=sys.stderr, flush=True)
        self._next_run_s = self._clock.monotonic() + (0.0 if more else self._interval_s)


def _make_maintenance_settings(
    settings: Settings, *, full: bool = False, run_bytes: int = 0
) -> MaintenanceSettings:
    from snowmelt.table.file_replacement_run import MaintenanceSettings
    from snowmelt.table.snapshot import check_retention_outlasts_queries

    check_retention_outlasts_queries(settings.retention_s)
    return MaintenanceSettings(
        settings.warehouse_url,
        target_bytes=settings.compact_target_bytes,
        min_files=2 if full else max(settings.compact_min_files, 2),
        run_bytes=run_bytes or 8 * settings.compact_target_bytes,
        memory_bytes=settings.compact_memory_bytes,
        retention_s=settings.retention_s,
        lease_s=settings.lease_s,
    )


def _list_native_tables(database: Database, names: Sequence[TableName]) -> list[TableName]:
    from snowmelt.catalog.objects.tables import find_table, list_tables

    with database.reading() as connection:
        found = [find_table(connection, name) for name in names] or list_tables(connection)
    return [table.name for table in found if table.pointer is not None]


def _make_plan_row(
    database: Database, name: TableName, settings: MaintenanceSettings, clock: Clock
) -> tuple[object, ...]:
    from snowmelt.table.compaction import plan_compaction
    from snowmelt.table.file_replacement_run import count_expired_snapshots

    groups = plan_compaction(database, name, settings)
    return (
        str(name),
        sum(len(group) for group in groups),
        sum(file.size for group in groups for file in group),
        len(groups),
        count_expired_snapshots(database, name, settings, clock),
    )


def _iter_maintenance_runs(
    database: Database,
    name: TableName,
    settings: MaintenanceSettings,
    clock: Clock,
    *,
    single_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[MaintenanceTotals]:
    """Yield the totals of each run on a table until no work is left or another process has the lease."""
    from snowmelt.table.compaction import compact
    from snowmelt.table.file_replacement_run import expire_snapshots

    while (done := compact(database, name, settings, clock=clock, progress=progress)) is not None:
        yield done
        if single_run:
            break
    expired = expire_snapshots(database, name, settings, clock)
    if expired is not None:
        yield expired


def _print_result(name: TableName, result: MaintenanceTotals) -> None:
    parts = []
    if result.files_before:
        parts.append(
            f"{format_count(result.rows, 'row')} of {format_count(result.files_before, 'file')}, "
            f"{result.bytes_before:,} bytes, now "
            f"in {result.files_after:,}, {result.bytes_after:,} bytes"
        )
    if result.snapshots_expired:
        parts.append(f"{format_count(result.snapshots_expired, 'old snapshot')} expired")
    if parts:
        print(f"{name}: {'; '.join(parts)}", flush=True)


@contextlib.contextmanager
def _showing_progress(
    name: TableName, *, quiet: bool
) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar of a compaction if standard error is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(str(name), total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def _collect_garbage(database: Database, settings: Settings, clock: Clock) -> bool:
    """Collect garbage and print the totals. Return True if there were no errors."""
    from snowmelt.storage.store_factory import open_store
    from snowmelt.table import garbage_collection

    collected = garbage_collection.collect_garbage(
        database,
        open_store(settings.stage_url),
        open_store(settings.warehouse_url),
        clock=clock,
        retention_s=settings.retention_s,
    )
    if collected.waits_for_backup:
        print(
            "garbage collection waits until the running backup has ended",
            file=sys.stderr,
            flush=True,
        )
    for problem in collected.problems:
        print(f"garbage collection failed: {problem}", file=sys.stderr, flush=True)
    expired = garbage_collection.expire_idle_channels(
        database, clock, idle_s=settings.channel_idle_s
    )
    if expired:
        print(f"{expired} idle channels have expired", flush=True)
    print(
        f"deleted {collected.blobs} blobs, {collected.unregistered} that were never registered, "
        f"and {collected.files} native files",
        flush=True,
    )
    return not collected.problems
