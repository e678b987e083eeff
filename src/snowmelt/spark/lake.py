"""`Snowmelt`: tables of the catalog in a Spark session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from snowmelt.bulk.copying import Copied, CopyContext, copy_into
from snowmelt.bulk.statements import is_copy
from snowmelt.catalog.access import ACCOUNTADMIN
from snowmelt.catalog.chunks import tables_with_backlog
from snowmelt.catalog.database import Database, open_database
from snowmelt.catalog.execution import execute, is_query
from snowmelt.catalog.keys import KeyRing, load_master_key
from snowmelt.catalog.results import Result
from snowmelt.catalog.tables import find_table, table_by_id
from snowmelt.clock import SystemClock
from snowmelt.config import Settings
from snowmelt.errors import ConflictError, TableNotFound
from snowmelt.schema.types import TableName, internal_name
from snowmelt.spark import load_source, select
from snowmelt.spark.history import history_frame, is_history
from snowmelt.spark.load import SparkRunner
from snowmelt.spark.migrate import migrate_table
from snowmelt.spark.planning import Planner
from snowmelt.spark.queries import name_of, read_query, rewrite
from snowmelt.spark.refusals import understood
from snowmelt.spark.session import local_session, require_settings
from snowmelt.spark.table import TableReader
from snowmelt.spark.visible import visible_columns
from snowmelt.table.migration import MigrationSettings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from pyspark.sql import DataFrame, SparkSession

    from snowmelt.clock import Clock
    from snowmelt.spark.planning import Planned
    from snowmelt.spark.queries import Query
    from snowmelt.table.migration import Migrated
    from snowmelt.table.scan import Predicate

_UTC = frozenset({"UTC", "ETC/UTC", "Z", "GMT", "+00:00"})
# Catalogs that every Spark session has.
_SPARK_CATALOGS = frozenset({"SPARK_CATALOG", "SYSTEM", "SESSION"})


@dataclass(frozen=True, slots=True)
class TableFiles:
    """What a query would open for one mention of a table: so many of so many."""

    table: str
    native_files: int
    native_files_total: int
    chunks: int
    chunks_total: int
    columns: tuple[str, ...]
    predicates: tuple[Predicate, ...]

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.native_files} of {self.native_files_total} native files, "
            f"{self.chunks} of {self.chunks_total} chunks, {len(self.columns)} columns"
        )


class Snowmelt:
    """A lake seen through a Spark session; thread-safe.

    Whoever makes one holds the catalog's URL and the master key, and so is an administrator;
    `role` limits what its statements may do, not what its process could.
    """

    def __init__(  # noqa: PLR0913  the parts of a lake, and who asks
        self,
        spark: SparkSession,
        *,
        catalog: str | Database,
        stage: str | None = None,
        warehouse: str | None = None,
        keys: str | Path | KeyRing | None = None,
        role: str = ACCOUNTADMIN,
        clock: Clock | None = None,
    ) -> None:
        """Join a Spark session with a catalog.

        Args:
            spark: Any session; settings that right answers depend on are set on it.
            catalog: The catalog's URL, or the open catalog.
            stage: URL or path of the stage; what SNOWMELT_STAGE_URL says when not given.
            warehouse: URL or path of native files; SNOWMELT_WAREHOUSE_URL when not given.
            keys: Folder of the master key, or the open ring; SNOWMELT_KEYS_DIR when not given.
            role: Internal name of the role whose privileges count.
            clock: The machine's clock when not given.

        Raises:
            CatalogUnavailable: The database cannot be reached.
            ConfigurationError: Others may read the folder of keys.
        """
        settings = Settings.load()
        require_settings(spark)
        select.register(spark)
        load_source.register(spark)
        keys = keys or settings.keys_dir
        self.spark = spark
        self.role = role
        self._clock = clock or SystemClock()
        self._keyring = keys if isinstance(keys, KeyRing) else KeyRing(load_master_key(Path(keys)))
        self._owned = not isinstance(catalog, Database)
        self._database = catalog if isinstance(catalog, Database) else open_database(catalog)
        self._migration = MigrationSettings(
            stage_url=stage or settings.stage_url,
            warehouse_url=warehouse or settings.warehouse_url,
            max_chunks=settings.migrate_max_chunks,
            lease_s=settings.lease_s,
        )
        self._planner = Planner(
            self._database,
            self._keyring,
            self._migration.stage_url,
            role=role,
            clock=self._clock,
        )
        self._tables = TableReader(spark)

    @classmethod
    def local(
        cls,
        data_dir: str | Path = "./snowmelt-data",
        *,
        spark: SparkSession | None = None,
        role: str = ACCOUNTADMIN,
    ) -> Self:
        """Open the lake in a data folder, in a Spark session on this machine unless one is given.

        Raises:
            JavaMissing: There is no Java, and the wheel that brings one is not installed.
        """
        settings = Settings.load(data_dir)
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        return cls(
            spark or local_session(),
            catalog=settings.catalog_url,
            stage=settings.stage_url,
            warehouse=settings.warehouse_url,
            keys=settings.keys_dir,
            role=role,
        )

    def close(self) -> None:
        """Close the catalog, unless it came open; the Spark session and DataFrames go on."""
        self._tables.clear()
        if self._owned:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sql(
        self, text: str, *, database: str | None = None, schema: str | None = None
    ) -> DataFrame:
        """Run one statement: a query becomes a DataFrame over one snapshot, the rest is done.

        A COPY answers with one row that says what it loaded.

        Tables are named in full (`database.schema.table`), or, where a database is given, in
        short; other names are the session's own. A DataFrame sees the same rows as long as it
        is used, which may be for 50 minutes.

        Args:
            text: The statement.
            database: Where tables without a database are, written as in SQL.
            schema: Where tables without a schema are; PUBLIC when not given.

        Raises:
            StatementError: It cannot be understood.
            TableNotFound: A table does not exist, or the role may not read it.
            ColumnNotFound: A column does not exist.
            PrivilegeMissing: The role may not do this.
        """
        if is_copy(text):
            copied = self.copy(text, database=database, schema=schema)
            return self._shown(Result(Copied.COLUMNS, (copied.row(),)))
        if not is_query(text):
            done = execute(
                self._database,
                text,
                role=self.role,
                default_database=database,
                default_schema=schema,
                clock=self._clock,
            )
            return self._shown(done)
        query = read_query(text)
        planned = self._planned(query, _within(database, schema))
        frames = {each.index: self._tables.frame(each.read) for each in planned}
        for index, reference in enumerate(query.references):
            if is_history(reference.parts):
                view = reference.parts[-1]
                frames[index] = history_frame(self.spark, self._database, self.role, view)
        with understood(lambda: self.spark.sql(text), lambda: _column_names(planned)):
            if not frames:
                return self.spark.sql(text)
            rewritten = rewrite(query, {index: f"{{table_{index}}}" for index in frames})
            named: dict[str, Any] = {f"table_{index}": each for index, each in frames.items()}
            return self.spark.sql(rewritten, **named)

    def copy(self, text: str, *, database: str | None = None, schema: str | None = None) -> Copied:
        """Run a COPY on Spark: one task for each portion of its files, one commit for all.

        Args:
            text: The statement.
            database: Where tables without a database are, written as in SQL.
            schema: Where tables without a schema are; PUBLIC when not given.

        Raises:
            StatementError: It cannot be understood.
            TableNotFound: The table does not exist, or the role may not insert into it.
            LoadRefused: Something that it names does not exist, or does not fit.
            LoadFailed: A file cannot be loaded, or too many records were rejected. Nothing was
                loaded.
            LoadOvertaken: Another load was faster with the same files.
        """
        context = CopyContext(
            self._database,
            self._migration.warehouse_url,
            self.role,
            self._clock,
            None if database is None else internal_name(database),
            None if schema is None else internal_name(schema),
            self._migration.lease_s,
        )
        return copy_into(context, text, SparkRunner(self.spark))

    def table(self, name: str) -> DataFrame:
        """Return a table as a DataFrame, all its columns, in one snapshot.

        Raises:
            TableNotFound: It does not exist, or the role may not read it.
        """
        return self._tables.frame(self._planner.table(_table_name(name)))

    def explain_files(self, text: str) -> list[TableFiles]:
        """Tell which files and chunks a query would open, without running it.

        Raises:
            TableNotFound: A table does not exist, or the role may not read it.
        """
        return [
            TableFiles(
                table=each.read.table,
                native_files=len(each.read.files),
                native_files_total=each.files_total,
                chunks=len(each.read.tasks),
                chunks_total=each.chunks_total,
                columns=tuple(column.name for column in each.read.columns),
                predicates=each.predicates,
            )
            for each in self._planned(read_query(text))
        ]

    def migrate(self, name: str | None = None) -> list[Migrated]:
        """Turn all chunks of a table, or of every table, into native files.

        A table that another migrator is at is left out; of all tables also one that goes away.

        Raises:
            TableNotFound: There is no table of this name.
        """
        if name is not None:
            return self._migrated(_table_name(name))
        done = []
        for table in self._waiting():
            try:
                done += self._migrated(table)
            except (ConflictError, TableNotFound):
                continue
        return done

    def _migrated(self, name: TableName) -> list[Migrated]:
        """Migrate what is there now, in as many runs as that takes."""
        with self._database.reading() as connection:
            last = find_table(connection, name).last_seq
        done: list[Migrated] = []
        while not done or done[-1].to_seq < last:
            run = migrate_table(
                self.spark, self._database, self._keyring, name, self._migration, clock=self._clock
            )
            if run is None:
                break
            done.append(run)
        return done

    def _waiting(self) -> list[TableName]:
        with self._database.reading() as connection:
            waiting = tables_with_backlog(connection)
            return [table_by_id(connection, table_id).name for table_id in waiting]

    def _planned(self, query: Query, within: tuple[str, ...] = ()) -> list[Planned]:
        zone = str(self.spark.conf.get("spark.sql.session.timeZone"))
        return self._planner.query(
            query, utc=zone.upper() in _UTC, is_foreign=self._is_foreign, within=within
        )

    def _is_foreign(self, catalog: str) -> bool:
        if catalog.upper() in _SPARK_CATALOGS:
            return True
        return any(
            self.spark.conf.get(f"spark.sql.catalog.{name}", None) is not None
            for name in (catalog, catalog.lower())
        )

    def _shown(self, result: Result) -> DataFrame:
        """Return what a statement answered; a message as the one column `status`."""
        columns = result.columns or ("status",)
        rows = result.rows if result.columns else ((result.message,),)
        arrays = [_array([row[index] for row in rows]) for index in range(len(columns))]
        return self.spark.createDataFrame(pa.Table.from_arrays(arrays, names=list(columns)))


def _array(values: Sequence[object]) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        array = pa.array([None if value is None else str(value) for value in values], pa.string())
    return array.cast(pa.string()) if pa.types.is_null(array.type) else array


def _table_name(text: str) -> TableName:
    parts = name_of(text)
    if len(parts) != 3:
        raise TableNotFound(
            f"Table {text} does not exist; tables of the lake are named in full: "
            "database.schema.table.",
            table=text,
        )
    return TableName(*parts)


def _within(database: str | None, schema: str | None) -> tuple[str, ...]:
    if database is None:
        return ()
    return internal_name(database), internal_name("PUBLIC" if schema is None else schema)


def _column_names(planned: Sequence[Planned]) -> list[str]:
    """Return the visible columns of every table of a query."""
    schemas = {each.read.table: each.read.schema for each in planned}
    return [column.name for schema in schemas.values() for column in visible_columns(schema)]
