"""`snowmelt migrate`: convert chunks into native files, once or in a loop, locally or on Spark."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.cli.command_context import load_settings, opening_catalog
from snowmelt.cli.commands.maintain import BackgroundMaintainer
from snowmelt.cli.output import format_count
from snowmelt.cli.spark_session import opening_spark_session, translating_spark_errors
from snowmelt.clock import SystemClock
from snowmelt.config import Settings
from snowmelt.errors import SnowmeltError, TableNotFound
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database
    from snowmelt.table.migration import MigrationResult

    # Runs one migration of a table, in this process or on Spark. Returns None if there is no work
    # or another migrator has the lease.
    MigrationRunner: TypeAlias = Callable[[TableName], MigrationResult | None]

NAME = "migrate"
SUMMARY = "convert streamed chunks into native Iceberg files"
EXAMPLES = """examples:
  snowmelt migrate
  snowmelt migrate demo.public.flights --engine local
  snowmelt migrate --loop

Without --loop, the command ends when all rows that were committed before its start are in native files.
With --loop, it checks every SNOWMELT_MIGRATE_INTERVAL_S seconds for tables whose backlog has reached
SNOWMELT_MIGRATE_MIN_BYTES, SNOWMELT_MIGRATE_MAX_CHUNKS or SNOWMELT_MIGRATE_MAX_AGE_S. Every
SNOWMELT_COMPACT_INTERVAL_S seconds it also does the work of `snowmelt maintain`, unless SNOWMELT_COMPACT=no.
"""
_RETRY_INTERVAL_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tables", nargs="*", metavar="table", help="database.schema.table (default: all)"
    )
    parser.add_argument("--loop", action="store_true", help="repeat until stopped")
    parser.add_argument(
        "--engine",
        choices=("auto", "spark", "local"),
        default="auto",
        help="engine of the tasks: Spark, or this process (default: Spark if it is installed)",
    )


def run(options: argparse.Namespace) -> int:
    """Migrate once, or run until stopped with --loop."""
    from snowmelt.catalog.sql.cursor import parse_table_name

    names = [parse_table_name(text) for text in options.tables]
    settings = load_settings(options)
    with contextlib.ExitStack() as opened:
        database = opened.enter_context(opening_catalog(settings))
        if options.loop:
            from snowmelt.server.child_process import install_lease_releasing_shutdown

            install_lease_releasing_shutdown(database)
            database.bind_to_history()
        run = _MigrateCommand(database, settings, options, opened)
        if options.loop:
            run.migrate_forever(names)
        run.migrate_once(names)
    return 0


class _MigrateCommand:
    """Runs the migrations of one command. The first migration starts the engine."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        options: argparse.Namespace,
        exit_stack: contextlib.ExitStack,
    ) -> None:
        from snowmelt.catalog.db.database import DatabaseServerClock

        self._database = database
        self._settings = settings
        self._engine_name = options.engine
        # With --loop the output is a log, so Java's messages are not suppressed.
        self._quiet = not (options.loop or options.debug)
        self._exit_stack = exit_stack
        self._runner: MigrationRunner | None = None
        self._clock = DatabaseServerClock(SystemClock())

    def migrate_once(self, names: Sequence[TableName]) -> None:
        """Migrate all chunks that were committed before the call. Waits for other migrators."""
        for name, (target, _) in self._read_sequences(names).items():
            self._migrate_up_to(name, target, ignore_dropped=not names)

    def migrate_forever(self, names: Sequence[TableName]) -> None:
        """Migrate due tables, wait for the interval, and repeat. Never returns."""
        seconds = self._settings.migrate_interval_s
        print(f"Checking for chunks to migrate every {seconds:g} s", flush=True)
        maintainer = BackgroundMaintainer(self._database, self._settings, self._clock)
        while True:
            try:
                with self._database.reading() as connection:
                    self._clock.synchronize(connection)
                for name in self._list_due_tables(names):
                    try:
                        self._migrate_table(name)
                    except SnowmeltError as error:
                        # The table was dropped, or another migrator was faster. Check again later.
                        print(f"{name}: {error}", file=sys.stderr, flush=True)
                if self._settings.compact:
                    maintainer.maintain_if_due(names)
            except SnowmeltError as error:
                if not error.retryable:
                    raise
                print(f"{error} Trying again.", file=sys.stderr, flush=True)
            self._clock.sleep(seconds)

    def _migrate_up_to(
        self, name: TableName, target_sequence: int, *, ignore_dropped: bool
    ) -> None:
        waiting = False
        while True:
            try:
                _, migrated = self._read_sequences([name])[name]
            except TableNotFound:
                if ignore_dropped:
                    return
                raise
            if migrated >= target_sequence:
                if waiting:
                    print(f"{name}: another migrator has migrated the table", flush=True)
                return
            if self._migrate_table(name):
                waiting = False
                continue
            if not waiting:
                print(
                    f"{name}: another migrator is working on the table; waiting for it", flush=True
                )
            waiting = True
            self._clock.sleep(_RETRY_INTERVAL_S)

    def _migrate_table(self, name: TableName) -> bool:
        """Run one migration and print its result. Return False if there was no work."""
        if self._runner is None:
            self._runner = self._start_runner()
        began = self._clock.monotonic()
        migrated = self._runner(name)
        if migrated is None:
            return False
        seconds = self._clock.monotonic() - began
        print(
            f"{name}: {format_count(migrated.rows, 'row')} of chunks {migrated.from_seq + 1} to "
            f"{migrated.to_seq} in {format_count(migrated.files, 'file')}, {migrated.bytes:,} bytes, "
            f"{seconds:.1f} s",
            flush=True,
        )
        for chunk in migrated.quarantined:
            print(f"{name}: chunk {chunk.seq} quarantined: {chunk.reason}", file=sys.stderr)
        return True

    def _start_runner(self) -> MigrationRunner:
        from snowmelt.catalog.security.encryption_keys import open_or_create_keyring
        from snowmelt.table.migration import MigrationSettings, migrate_table

        settings, database, clock = self._settings, self._database, self._clock
        keyring = open_or_create_keyring(database, settings.keys_dir)
        chosen = MigrationSettings(
            settings.stage_url,
            settings.warehouse_url,
            max_chunks=settings.migrate_max_chunks,
            lease_s=settings.lease_s,
        )
        wanted = self._engine_name
        if wanted == "auto":
            wanted = "spark" if find_spec("pyspark") is not None else "local"
        if wanted == "local":
            return lambda name: migrate_table(database, keyring, name, chosen, clock=clock)
        from snowmelt.spark.task_job import run_tasks

        spark = self._exit_stack.enter_context(opening_spark_session(quiet=self._quiet))

        @translating_spark_errors()
        def migrate(name: TableName) -> MigrationResult | None:
            on_spark = partial(run_tasks, spark)
            return migrate_table(database, keyring, name, chosen, clock=clock, run_tasks=on_spark)

        return migrate

    def _read_sequences(self, names: Sequence[TableName]) -> dict[TableName, tuple[int, int]]:
        """Return the last and the migrated commit sequence of these tables, or of all tables."""
        from snowmelt.catalog.objects.tables import find_table, list_tables

        with self._database.reading() as connection:
            found = [find_table(connection, name) for name in names] or list_tables(connection)
            return {table.name: (table.last_seq, table.migrated_seq) for table in found}

    def _list_due_tables(self, names: Sequence[TableName]) -> list[TableName]:
        from snowmelt.catalog.objects.tables import find_table_by_id
        from snowmelt.catalog.streaming.chunks import list_backlogged_table_ids, measure_backlog

        settings, due = self._settings, []
        with self._database.reading() as connection:
            for table_id in list_backlogged_table_ids(connection):
                name = find_table_by_id(connection, table_id).name
                if names and name not in names:
                    continue
                backlog, age_s = measure_backlog(connection, table_id), 0.0
                if backlog.oldest_registered_at is not None:
                    age_s = (self._clock.now() - backlog.oldest_registered_at).total_seconds()
                if (
                    backlog.bytes >= settings.migrate_min_bytes
                    or backlog.chunks >= settings.migrate_max_chunks
                    or age_s >= settings.migrate_max_age_s
                ):
                    due.append(name)
        return due
