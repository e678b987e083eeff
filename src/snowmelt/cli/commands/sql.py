"""`snowmelt sql`: run a script of SQL statements. Queries run on DuckDB or Spark."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.catalog.sql.lexer import ScriptStatement, read_first_words
from snowmelt.cli.command_context import (
    StatementOutput,
    add_service_options,
    add_statement_options,
    is_remote,
    load_settings,
    make_copy_context,
    opening_catalog,
    opening_statement_runner,
)
from snowmelt.cli.commands.copy import print_file_result
from snowmelt.cli.output import MAX_TABLE_ROWS, add_format_option, print_message, print_rows
from snowmelt.cli.spark_session import opening_lake, translating_spark_errors
from snowmelt.config import Settings
from snowmelt.errors import MissingExtra, StatementError, UserError
from snowmelt.schema.types import LogicalType, to_internal_name

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.model.records import TableRecord
    from snowmelt.catalog.security.encryption_keys import KeyRing
    from snowmelt.catalog.statements.statement_context import StatementSession
    from snowmelt.query.duckdb_engine import DuckDBEngine
    from snowmelt.schema.types import TableName
    from snowmelt.spark.snowmelt_session import Snowmelt

_DEFAULT_ROLE = "ACCOUNTADMIN"
_INSTANT_TYPES = {LogicalType.TIMESTAMP_LTZ, LogicalType.TIMESTAMP_TZ}
_CATALOG_CREATING_STATEMENTS = (("CREATE", "DATABASE"), ("CREATE", "ROLE"), ("CREATE", "USER"))

NAME = "sql"
QUOTING_EXAMPLE = 'snowmelt sql "SELECT * FROM demo.public.t"'
SUMMARY = "run SQL statements: definitions, COPY, and queries"
EXAMPLES = """examples:
  snowmelt sql "CREATE DATABASE demo; CREATE TABLE demo.public.t (id NUMBER NOT NULL)"
  snowmelt sql "SHOW CHANNELS IN TABLE demo.public.t" --format json
  snowmelt sql "SELECT origin, count(*) FROM demo.public.flights GROUP BY origin"
  snowmelt sql -f tables.sql --database demo
  snowmelt sql --profile production "SHOW TABLES IN DATABASE demo"
  echo "SHOW TABLES" | snowmelt sql

Statements are separated by semicolons. They run in order until one fails.
DuckDB runs plain queries of one table; the first other query starts Spark.
CREATE DATABASE, CREATE ROLE and CREATE USER create a missing catalog.
With --url or --profile, a service runs the statements with the privileges of the user.
It supports plain queries of one table.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("text", nargs="?", help="statements; standard input when not given")
    source.add_argument("-f", "--file", type=Path, help="read the statements from this file")
    add_format_option(parser)
    parser.add_argument(
        "--engine",
        choices=("auto", "duckdb", "spark"),
        default="auto",
        help="engine of queries; auto: DuckDB for plain queries of one table, else Spark "
        "(default: %(default)s)",
    )
    add_statement_options(parser)
    service = parser.add_argument_group("service that runs the statements (default: this process)")
    add_service_options(service, is_optional=True)


def run(options: argparse.Namespace) -> int:
    """Run the statements in order."""
    from snowmelt.catalog.sql.lexer import split_script

    pieces = split_script(_read_script(options))
    if not pieces:
        raise UserError("No statement to run.")
    with contextlib.ExitStack() as opened:
        runner = _make_script_runner(options, opened)
        for piece in pieces:
            try:
                runner(piece)
            except StatementError as error:
                raise _locate_in_script(error, piece) from None
    return 0


def _make_script_runner(
    options: argparse.Namespace, opened: contextlib.ExitStack
) -> Callable[[ScriptStatement], None]:
    if is_remote(options) and options.engine == "spark":
        raise UserError("A service runs queries with DuckDB. Omit --engine spark.")
    if not is_remote(options):
        return _ScriptRunner(options, load_settings(options), opened).run_statement
    execute = opened.enter_context(opening_statement_runner(options))
    return lambda statement: _print_result(execute(statement.text), options.format)


def _print_result(result: StatementOutput, output_format: str) -> None:
    if result.columns:
        print_rows(result.columns, result.rows, output_format)
    else:
        print_message(result.message, output_format)


def _check_file_copy(session: StatementSession, text: str, pipe: TableName) -> TableRecord:
    # Imported here because it loads the load stack, which most statements do not need.
    from snowmelt.loaders.file_pipe_check import check_file_copy

    return check_file_copy(session, text, pipe)


class _ScriptRunner:
    """Runs the statements of a script. Opens the catalog and Spark at first use."""

    def __init__(
        self, options: argparse.Namespace, settings: Settings, exit_stack: contextlib.ExitStack
    ) -> None:
        self._options = options
        self._role = _DEFAULT_ROLE if options.role is None else to_internal_name(options.role)
        self._settings = settings
        self._exit_stack = exit_stack
        self._database: Database | None = None
        self._lake: Snowmelt | None = None

    def run_statement(self, statement: ScriptStatement) -> None:
        from snowmelt.catalog.statements.executor import execute_statement, is_query
        from snowmelt.load.copy_ast import is_file_statement

        if is_query(statement.text):
            self._run_query(statement.text)
            return
        if is_file_statement(statement.text):
            from snowmelt.loaders.file_statements import run_file_statement
            from snowmelt.loaders.load_task_execution import LocalTaskRunner

            context = make_copy_context(
                self._options, self._settings, self._open_catalog_database()
            )
            print_file_result(
                run_file_statement(context, statement.text, LocalTaskRunner()), self._options.format
            )
            return
        result = execute_statement(
            self._open_catalog_database(statement.text),
            statement.text,
            role=self._role,
            default_database=self._options.database,
            default_schema=self._options.schema,
            open_keyring=self._open_keyring,
            check_file_copy=_check_file_copy,
        )
        _print_result(
            StatementOutput(result.columns, result.rows, result.message), self._options.format
        )

    def _open_catalog_database(self, statement: str = "") -> Database:
        """Open the catalog. Create a missing catalog only for statements that may be its first.

        For other statements, a missing catalog probably means a wrong folder, and an empty result
        would be misleading.
        """
        if self._database is None:
            creates = read_first_words(statement) in _CATALOG_CREATING_STATEMENTS
            catalog = opening_catalog(self._settings, create=creates)
            self._database = self._exit_stack.enter_context(catalog)
        return self._database

    def _open_keyring(self) -> KeyRing:
        from snowmelt.catalog.security.encryption_keys import open_or_create_keyring

        return open_or_create_keyring(self._open_catalog_database(), self._settings.keys_dir)

    def _run_query(self, text: str) -> None:
        # Report a missing catalog before Spark starts, which takes seconds.
        self._open_catalog_database()
        if self._options.engine == "spark" or not self._run_plain_query(text):
            self._run_spark_query(text)

    def _run_plain_query(self, text: str) -> bool:
        """Run a query with DuckDB. Return False if it needs Spark and Spark is installed."""
        from snowmelt.query.plain_query import QueryColumnMissing, QueryNotPlain

        try:
            with self._make_duckdb_engine().running(text) as result:
                instants = [kind in _INSTANT_TYPES for kind in result.types]
                self._print_query_rows(result.columns, result.rows, instants)
        except QueryNotPlain as error:
            # Spark would take seconds to start, and reject the query as well.
            if self._options.engine == "duckdb" or isinstance(error, QueryColumnMissing):
                raise
            if importlib.util.find_spec("pyspark") is None:
                what = f"Spark, which runs this query because {error.fields['reason']},"
                raise MissingExtra(what=what, package="pyspark", extra="spark") from None
            return False
        return True

    def _make_duckdb_engine(self) -> DuckDBEngine:
        from snowmelt.catalog.db.database import open_catalog_clock
        from snowmelt.query.duckdb_engine import DuckDBEngine

        database = self._open_catalog_database()
        names = self._options.database, self._options.schema or "PUBLIC"
        return DuckDBEngine(
            database,
            self._open_keyring(),
            self._settings.stage_url,
            self._settings.warehouse_url,
            role=self._role,
            clock=open_catalog_clock(database),
            namespace=() if names[0] is None else tuple(map(to_internal_name, names)),
        )

    def _run_spark_query(self, text: str) -> None:
        from pyspark.sql.types import TimestampType

        from snowmelt.spark.name_check import check_full_names

        if self._lake is None:
            check_full_names(self._open_catalog_database(), self._role, text)
            if sys.stderr.isatty():
                print("Starting Spark …", file=sys.stderr)
            lake = opening_lake(self._settings, role=self._role, quiet=not self._options.debug)
            self._lake = self._exit_stack.enter_context(lake)
        with translating_spark_errors():
            frame = self._lake.sql(
                text, database=self._options.database, schema=self._options.schema
            )
            # Fetch one row more than the limit, to know whether the result is truncated.
            few = self._options.format == "table"
            rows = frame.take(MAX_TABLE_ROWS + 1) if few else frame.toLocalIterator()
            instants = [isinstance(field.dataType, TimestampType) for field in frame.schema]
            self._print_query_rows(frame.columns, rows, instants)

    def _print_query_rows(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], is_instant: Sequence[bool]
    ) -> None:
        """Print rows. In JSON and CSV, zoned timestamps end with `+00:00`, for programs."""
        if self._options.format != "table" and any(is_instant):
            rows = (
                tuple(
                    value.replace(tzinfo=dt.UTC)
                    if instant and isinstance(value, dt.datetime) and value.tzinfo is None
                    else value
                    for value, instant in zip(row, is_instant, strict=True)
                )
                for row in rows
            )
        print_rows(columns, rows, self._options.format)


def _read_script(options: argparse.Namespace) -> str:
    if options.file is not None:
        return str(options.file.read_text(encoding="utf-8"))
    if options.text is not None:
        return str(options.text)
    if sys.stdin.isatty():
        raise UserError("Give a statement, or a file with -f, or statements on standard input.")
    return sys.stdin.read()


def _locate_in_script(error: StatementError, statement: ScriptStatement) -> StatementError:
    """Convert the error's position in the statement to a position in the script."""
    line, column = error.fields.get("line"), error.fields.get("column")
    if not (isinstance(line, int) and isinstance(column, int)):
        return error
    return StatementError(
        reason=error.fields["reason"],
        line=statement.position.line + line - 1,
        column=column + (statement.position.column - 1 if line == 1 else 0),
    )
