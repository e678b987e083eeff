"""`snowmelt copy`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.cli.connections import opened_catalog, settings_of
from snowmelt.cli.output import add_format, print_rows
from snowmelt.cli.spark_session import plain_errors, spark_session
from snowmelt.errors import UserError
from snowmelt.schema.types import internal_name

if TYPE_CHECKING:
    import argparse

    from snowmelt.loaders.copy_job import CopyResult, TaskRunner
    from snowmelt.loaders.task_runner import PortionResult

NAME = "copy"
SUMMARY = "load files into a table by a COPY statement"
EXAMPLES = """examples:
  snowmelt copy "COPY demo.public.t FROM '/data/*.csv.gz' DELIMITER ',' SKIP 1"
  snowmelt copy "COPY demo.public.t FROM STDIN PARSER fjsonparser()" < rows.json
  snowmelt copy -f load.sql --spark

The load runs in this process; with --spark it runs as a Spark job. Everything is loaded or
nothing is. Files that the table has already are skipped, unless the statement says FORCE.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument("text", nargs="?", help="the COPY statement")
    parser.add_argument("-f", "--file", type=Path, help="read the statement from this file")
    add_format(parser)
    parser.add_argument("--spark", action="store_true", help="run the load as a Spark job")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--role", help="run as this role (default: ACCOUNTADMIN)")
    parser.add_argument("--database", help="where names without a database are")
    parser.add_argument("--schema", help="where names without a schema are (default: PUBLIC)")


def run(options: argparse.Namespace) -> int:
    """Run the statement."""
    from snowmelt.catalog.db.catalog_clock import open_catalog_clock
    from snowmelt.load.udx.worker_progress import UserCodeLimits
    from snowmelt.loaders.copy_job import CopyContext, run_copy

    if (options.text is None) == (options.file is None):
        raise UserError("Give one COPY statement, or a file with -f.")
    text = options.file.read_text(encoding="utf-8") if options.text is None else options.text
    settings = settings_of(options)
    with contextlib.ExitStack() as opened:
        database = opened.enter_context(opened_catalog(settings))
        progress = None if options.quiet else _Progress()
        runner = _runner(options, opened, progress)
        context = CopyContext(
            database,
            settings.warehouse_url,
            "ACCOUNTADMIN" if options.role is None else internal_name(options.role),
            open_catalog_clock(database),
            None if options.database is None else internal_name(options.database),
            None if options.schema is None else internal_name(options.schema),
            settings.lease_s,
            user_code_limits=UserCodeLimits.from_settings(settings),
            reserved_paths=(*settings.deployment_paths(), *_given_files(options)),
        )
        with plain_errors():
            copied = run_copy(context, text, runner, on_progress=progress)
    show(copied, options.format)
    return 0


def _given_files(options: argparse.Namespace) -> tuple[str, ...]:
    return () if options.file is None else (str(options.file),)


def show(copied: CopyResult, form: str) -> None:
    """Print what a COPY did: a few lines to read, or a row for another program."""
    if form != "table":
        print_rows(copied.COLUMNS, [copied.to_row()], form)
        return
    totals = copied.totals
    for path, other in copied.duplicate_paths:
        print(f"left out: {path}: it is the same file as {other}", file=sys.stderr)
    if copied.load_id is None:
        print(
            f"{copied.table}: nothing to load, {_counted(copied.skipped_files, 'file')} loaded before"
        )
        return
    skipped = (
        f", {_counted(copied.skipped_files, 'file')} loaded before" if copied.skipped_files else ""
    )
    print(
        f"{copied.table}: {_counted(totals.rows, 'row')} of {_counted(totals.files, 'file')}, "
        f"{totals.bytes:,} bytes{skipped} (load {copied.load_id})",
        flush=True,
    )
    for path, reason in copied.failed_files:
        print(f"left out: {path}: {reason}", file=sys.stderr)
    if totals.rejects:
        where = copied.rejected_to or "kept nowhere: add REJECTED DATA AS TABLE to keep them"
        print(f"{_counted(totals.rejects, 'record')} rejected, {where}", file=sys.stderr)
        for reason, count in copied.reject_reasons:
            print(f"  {count:,} × {reason}", file=sys.stderr)


class _Progress:
    """Says how far a load is: each time that a portion is done, or as Spark counts its tasks."""

    def __init__(self) -> None:
        self._done = 0
        self._rows = 0

    def __call__(self, portion: PortionResult, count: int) -> None:
        self._done += 1
        self._rows += portion.counts.rows
        end = "\n" if self._done == count else ""
        self._show(f"{self._done} of {count} portions, {self._rows:,} rows", end)

    def tasks(self, done: int, count: int) -> None:
        """Take how many tasks of Spark are done."""
        self._show(f"{done} of {count} tasks", "")

    def _show(self, text: str, end: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{text}", end=end, file=sys.stderr, flush=True)


def _runner(
    options: argparse.Namespace, opened: contextlib.ExitStack, progress: _Progress | None
) -> TaskRunner:
    if not options.spark:
        from snowmelt.loaders.task_runner import LocalTaskRunner

        return LocalTaskRunner()
    from snowmelt.spark.load_job import SparkRunner

    spark = opened.enter_context(spark_session(quiet=not options.debug))
    return SparkRunner(spark, None if progress is None else progress.tasks)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
