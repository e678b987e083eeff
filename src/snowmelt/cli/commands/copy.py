"""`snowmelt copy`: run a COPY statement in this process or on Spark."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.cli.command_context import (
    add_service_options,
    add_statement_options,
    is_remote,
    load_settings,
    make_copy_context,
    opening_catalog,
    opening_statement_runner,
    stopping_on_signals,
)
from snowmelt.cli.output import add_format_option, format_count, print_message, print_rows
from snowmelt.cli.spark_session import opening_spark_session, translating_spark_errors
from snowmelt.errors import SnowmeltError, UserError
from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    from snowmelt.catalog.statements.statement_context import StatementResult
    from snowmelt.config import Settings
    from snowmelt.loaders.copy_job import CopyContext, CopyResult, TaskRunner
    from snowmelt.loaders.file_watch import MemoryJournal
    from snowmelt.loaders.load_task_execution import PortionResult

_MAX_SHOWN_TEXT = 80

NAME = "copy"
QUOTING_EXAMPLE = "snowmelt copy \"COPY demo.public.t FROM 'data.csv' DELIMITER ','\""
SUMMARY = "load files into a table by a COPY statement"
EXAMPLES = """examples:
  snowmelt copy "COPY demo.public.t FROM '/data/*.csv.gz' DELIMITER ',' SKIP 1"
  snowmelt copy "COPY demo.public.t FROM STDIN PARSER fjsonparser()" < rows.json
  snowmelt copy -f load.sql --spark
  snowmelt copy --create "COPY demo.public.t FROM '/data/*.parquet' PARQUET"
  snowmelt copy --watch "COPY demo.public.t FROM '/data/in/*.csv' DELIMITER ','"
  snowmelt copy --profile production "COPY demo.public.t FROM 's3://bucket/day/*.parquet' PARQUET"

The load runs in this process, with --spark as a Spark job, or with --url or --profile on the service
(only for role ACCOUNTADMIN). It loads all files or none. It skips files that the table already has,
unless the statement contains FORCE.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", help="the COPY statement")
    parser.add_argument("-f", "--file", type=Path, help="read the statement from this file")
    add_format_option(parser)
    parser.add_argument("--spark", action="store_true", help="run the load as a Spark job")
    parser.add_argument(
        "--create",
        action="store_true",
        help="create the table if it does not exist, with columns inferred from the first file",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    watch = parser.add_argument_group("files that appear later")
    watch.add_argument(
        "--watch", action="store_true", help="load files as they appear, until a signal ends it"
    )
    watch.add_argument(
        "--once",
        action="store_true",
        help="with --watch: exit when no file is waiting (exit code 1 if any failed)",
    )
    add_statement_options(parser)
    service = parser.add_argument_group(
        "service that runs the load on its machine (default: this process)"
    )
    add_service_options(service, is_optional=True)


def run(options: argparse.Namespace) -> int:
    """Run the statement."""
    from snowmelt.load.copy_ast import is_file_statement
    from snowmelt.loaders.file_statements import run_file_statement

    if (options.text is None) == (options.file is None):
        raise UserError("Give one COPY statement, or a file with -f.")
    text = options.file.read_text(encoding="utf-8") if options.text is None else options.text
    if not is_file_statement(text):
        raise UserError(
            f"Expected a COPY statement, got {text[:_MAX_SHOWN_TEXT]!r}. Write it as one argument in "
            f"quotes: {QUOTING_EXAMPLE}"
        )
    if options.once and not options.watch:
        raise UserError(
            "--once requires --watch. Add --watch, or omit --once: a load without --watch always ends."
        )
    if is_remote(options):
        if options.create:
            raise UserError(
                "--create reads files on this machine. On a service, create the table first."
            )
        if options.watch:
            raise UserError(
                "For a service, create a pipe: CREATE PIPE … AUTO_INGEST = TRUE AS COPY …."
            )
        _run_remotely(options, text)
        return 0
    settings = load_settings(options)
    with contextlib.ExitStack() as opened:
        database = opened.enter_context(opening_catalog(settings))
        progress = None if options.quiet else _CopyProgress()
        runner = _create_task_runner(options, opened, progress)
        script = () if options.file is None else (str(options.file),)
        context = make_copy_context(options, settings, database, *script)
        if options.create:
            _create_missing_table(context, text)
        if options.watch:
            return _watch_files(context, text, runner, options, settings)
        with translating_spark_errors():
            result = run_file_statement(context, text, runner, on_progress=progress)
    print_file_result(result, options.format)
    return 0


def _create_missing_table(context: CopyContext, text: str) -> None:
    """Create the table of a COPY, with inferred columns, unless it exists."""
    from snowmelt.catalog.objects.tables import find_table
    from snowmelt.catalog.statements.executor import execute_statement
    from snowmelt.errors import TableNotFound
    from snowmelt.load.copy_parser import parse_copy
    from snowmelt.loaders.schema_inference import build_create_table, infer_copy_columns
    from snowmelt.schema.types import TableName

    parts = parse_copy(text).table.parts
    namespace = (context.default_database or "", context.default_schema or "PUBLIC")
    try:
        with context.database.reading() as connection:
            find_table(connection, TableName(*namespace[: 3 - len(parts)], *parts))
    except TableNotFound:
        statement = build_create_table(text, infer_copy_columns(text))
        execute_statement(
            context.database,
            statement,
            role=context.role,
            default_database=_display(context.default_database),
            default_schema=_display(context.default_schema),
        )
        print(statement, file=sys.stderr, flush=True)


def _display(name: str | None) -> str | None:
    return None if name is None else to_display_name(name)


def _watch_files(
    context: CopyContext,
    text: str,
    runner: TaskRunner,
    options: argparse.Namespace,
    settings: Settings,
) -> int:
    """Load new files as they appear. Return 1 if `--once` was given and a file failed."""
    from snowmelt.loaders.file_watch import BatchLimits, FileWatch

    limits = BatchLimits.from_settings(settings)
    journal = _make_reporting_journal()
    watch = FileWatch(context, text, runner, limits=limits, journal=journal)
    with stopping_on_signals() as stopping:
        while True:
            try:
                with translating_spark_errors():
                    results = watch.run_round(until_empty=options.once)
            except SnowmeltError as error:
                if options.once or not error.retryable:
                    raise
                print(f"trying again: {error}", file=sys.stderr, flush=True)
                results = []
            for result in results:
                # The journal has already reported these files.
                print_copy_result(replace(result, failed_files=()), options.format)
            if options.once and not watch.status.waiting_files:
                return int(bool(journal.failed))
            waited = watch.wait_for_files(_WATCH_INTERVAL_S)
            if stopping.wait(0 if waited else _WATCH_INTERVAL_S):
                return 0


def _make_reporting_journal() -> MemoryJournal:
    from snowmelt.loaders.file_watch import MemoryJournal

    return MemoryJournal(
        on_failure=lambda file: print(f"left out: {file.error}", file=sys.stderr, flush=True)
    )


def _run_remotely(options: argparse.Namespace, text: str) -> None:
    if options.spark:
        raise UserError("--spark excludes --url and --profile: the service runs the load.")
    with opening_statement_runner(options) as execute:
        result = execute(text)
    if options.format != "table" or len(result.rows) != 1 or not result.columns:
        if result.columns:
            print_rows(result.columns, result.rows, options.format)
        else:
            print_message(result.message, options.format)
        return
    for name, value in zip(result.columns, result.rows[0], strict=True):
        print(f"{name + ':':<14} {'' if value is None else value}")


def print_file_result(result: CopyResult | StatementResult, output_format: str) -> None:
    """Print the result of a COPY, or of a statement that only reads files."""
    from snowmelt.loaders.copy_job import CopyResult

    if isinstance(result, CopyResult):
        print_copy_result(result, output_format)
    elif not result.columns:
        print_message(result.message, output_format)
    else:
        print_rows(result.columns, result.rows, output_format)


def print_copy_result(result: CopyResult, output_format: str) -> None:
    """Print the result of a COPY statement as lines of text, or as one row in JSON or CSV."""
    from snowmelt.loaders.load_result_check import describe_truncation

    if output_format != "table":
        print_rows(result.COLUMNS, [result.to_row()], output_format)
        return
    totals = result.totals
    for path, other in result.duplicate_paths:
        print(f"skipped: {path}: it is the same file as {other}", file=sys.stderr)
    if result.load_id is None:
        before = format_count(result.skipped_files, "file")
        hint = "it" if result.skipped_files == 1 else "them"
        print(f"{result.table}: nothing to load, {before} loaded before; FORCE loads {hint} again")
        return
    skipped = (
        f", {format_count(result.skipped_files, 'file')} loaded before"
        if result.skipped_files
        else ""
    )
    print(
        f"{result.table}: {format_count(totals.rows, 'row')} of {format_count(totals.files, 'file')}, "
        f"{totals.bytes:,} bytes{skipped} (load {result.load_id})",
        flush=True,
    )
    for path in result.changed_files:
        print(
            f"loaded again: {path} has changed since an earlier load, whose rows stay in the table",
            file=sys.stderr,
        )
    for difference in result.header_differences:
        print(difference, file=sys.stderr)
    if result.truncated_values:
        print(describe_truncation(result.truncated_values), file=sys.stderr)
    for path, reason in result.failed_files:
        # A reason from a filter or parser begins with the path.
        shown = reason if reason.startswith(path) else f"{path}: {reason}"
        print(f"left out: {shown}", file=sys.stderr)
    if totals.rejects:
        where = result.rejected_to or "not kept: add REJECTED DATA AS TABLE to keep them"
        print(f"{format_count(totals.rejects, 'record')} rejected, {where}", file=sys.stderr)
        for reason, count in result.reject_reasons:
            print(f"  {count:,} × {reason}", file=sys.stderr)


_WATCH_INTERVAL_S = 0.5


class _CopyProgress:
    """Shows the progress of a load in portions or, on Spark, in tasks."""

    def __init__(self) -> None:
        self._done_portions = 0
        self._loaded_rows = 0

    def __call__(self, portion: PortionResult, portion_count: int) -> None:
        self._done_portions += 1
        self._loaded_rows += portion.counts.rows
        end = "\n" if self._done_portions == portion_count else ""
        self._print_line(
            f"{self._done_portions} of {portion_count} portions, {self._loaded_rows:,} rows", end
        )

    def report_tasks(self, done_tasks: int, task_count: int) -> None:
        """Print the number of completed Spark tasks."""
        self._print_line(f"{done_tasks} of {task_count} tasks", "")

    def _print_line(self, text: str, end: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{text}", end=end, file=sys.stderr, flush=True)


def _create_task_runner(
    options: argparse.Namespace, exit_stack: contextlib.ExitStack, progress: _CopyProgress | None
) -> TaskRunner:
    if not options.spark:
        from snowmelt.loaders.load_task_execution import LocalTaskRunner

        return LocalTaskRunner()
    from snowmelt.spark.load_job import SparkLoadRunner

    spark = exit_stack.enter_context(opening_spark_session(quiet=not options.debug))
    return SparkLoadRunner(spark, None if progress is None else progress.report_tasks)
