"""Query planner: finds the files and chunks to open for the table references of a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.clock import Clock
from snowmelt.errors import UserError
from snowmelt.schema.types import Column, TableName
from snowmelt.spark.sql.predicates import extract_predicates
from snowmelt.spark.sql.system_views import is_history_view, is_information_schema_view
from snowmelt.spark.sql.table_references import (
    SparkQuery,
    TableReference,
    list_needed_columns,
    qualify_reference,
)
from snowmelt.spark.tables.spark_column_mapping import (
    PlannedFiles,
    TableReadPlan,
    VisibleColumn,
    list_visible_columns,
    map_parquet_names,
)
from snowmelt.table.fresh_files import describe_fresh_file
from snowmelt.table.pruning import Predicate, prune_chunks, prune_files
from snowmelt.table.snapshot import TableSnapshot, take_snapshots
from snowmelt.table.table_reader import make_chunk_read_tasks
from snowmelt.table.warehouse_paths import Warehouse

_FULL_NAME_PARTS = 3


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """Read plan of one table reference. `index` is its index among the query's references."""

    index: int
    read: TableReadPlan
    predicates: tuple[Predicate, ...]
    fresh_files_total: int
    chunks_total: int


class QueryPlanner:
    """Planner of one role's queries. Thread-safe."""

    def __init__(
        self,
        database: Database,
        keyring: KeyRing,
        stage_url: str,
        warehouse: Warehouse | None,
        *,
        role: str,
        clock: Clock,
    ) -> None:
        """Create a planner. `warehouse` is that of fresh files, or None to read only chunks."""
        self._database = database
        self._keyring = keyring
        self._stage_url = stage_url
        self._warehouse = warehouse
        self._role = role
        self._clock = clock
        self._executor = ThreadPoolExecutor(1, "snowmelt-manifests")

    def plan_table(self, name: TableName) -> TableReadPlan:
        """Plan to read a whole table.

        Raises:
            TableNotFound: If the table does not exist or the role lacks privileges on it.
        """
        [snapshot] = self._take_snapshots([name])
        columns = tuple(list_visible_columns(snapshot.table.schema))
        return self._plan_read(0, snapshot, columns, ()).read

    def plan_query(
        self,
        query: SparkQuery,
        *,
        is_utc: bool,
        is_spark_catalog: Callable[[str], bool],
        namespace: tuple[str, ...] = (),
        snapshots: MutableMapping[TableName, TableSnapshot] | None = None,
    ) -> list[PlannedTable]:
        """Plan all references to catalog tables in a query, in one snapshot.

        Args:
            query: The query.
            is_utc: True if the session's time zone is UTC.
            is_spark_catalog: Returns True if the first part of a name is a Spark catalog.
            namespace: Database and schema of short table names, as internal names.
            snapshots: Snapshots to read, for several queries of one statement. Receives those of
                other tables.

        Raises:
            TableNotFound: If a table does not exist or the role lacks privileges on it.
        """
        taken = {} if snapshots is None else snapshots
        names = self._resolve_table_names(query, namespace)
        try:
            self._add_snapshots(taken, names.values())
        except UserError:
            # Check this last, because it is slow, and nearly all tables are in Snowmelt's catalog.
            names = {
                index: name for index, name in names.items() if not is_spark_catalog(name.database)
            }
            self._add_snapshots(taken, names.values())
        visible = {
            name: list_visible_columns(taken[name].table.schema) for name in set(names.values())
        }
        by_name = {
            name: {
                each.name.lower(): None if each.is_companion else each.column for each in columns
            }
            for name, columns in visible.items()
        }
        names_of = {query.references[index].start: name for index, name in names.items()}

        def columns_of(reference: TableReference) -> dict[str, Column | None] | None:
            name = names_of.get(reference.start)
            return None if name is None else by_name[name]

        planned = []
        for index, name in names.items():
            reference = query.references[index]
            needed = list_needed_columns(query, reference, [each.name for each in visible[name]])
            columns = tuple(each for each in visible[name] if each.name in needed)
            found = tuple(extract_predicates(query, reference, columns_of, is_utc=is_utc))
            planned.append(self._plan_read(index, taken[name], columns, found))
        return planned

    def _resolve_table_names(
        self, query: SparkQuery, namespace: tuple[str, ...]
    ) -> dict[int, TableName]:
        names = {}
        for index, reference in enumerate(query.references):
            parts = qualify_reference(reference, namespace)
            if (
                len(parts) != _FULL_NAME_PARTS
                or is_history_view(parts)
                or is_information_schema_view(parts)
            ):
                continue
            name = TableName(*parts)
            certain = reference.is_certain and parts == reference.parts
            if certain or self._table_exists(name):
                names[index] = name
        return names

    def _table_exists(self, name: TableName) -> bool:
        try:
            with self._database.reading() as connection:
                find_table(connection, name)
        except UserError:
            return False
        return True

    def _add_snapshots(
        self, snapshots: MutableMapping[TableName, TableSnapshot], names: Iterable[TableName]
    ) -> None:
        missing = sorted(set(names) - snapshots.keys())
        if missing:
            snapshots.update(zip(missing, self._take_snapshots(missing), strict=True))

    def _take_snapshots(self, names: Sequence[TableName]) -> list[TableSnapshot]:
        return take_snapshots(
            self._database,
            names,
            clock=self._clock,
            role=self._role,
            with_fresh_files=self._warehouse is not None,
        )

    def _plan_read(
        self,
        index: int,
        snapshot: TableSnapshot,
        columns: tuple[VisibleColumn, ...],
        predicates: tuple[Predicate, ...],
    ) -> PlannedTable:
        schema = snapshot.table.schema

        def plan_files() -> PlannedFiles:
            files = snapshot.list_native_files()
            return PlannedFiles(tuple(prune_files(files, schema, predicates)), len(files))

        native = self._executor.submit(plan_files)
        fresh = (
            []
            if self._warehouse is None
            else [describe_fresh_file(file, self._warehouse) for file in snapshot.fresh]
        )
        chunks = prune_chunks(snapshot.chunks, schema, snapshot.schemas, predicates)
        read = TableReadPlan(
            table=str(snapshot.table.name),
            incarnation=snapshot.table.incarnation,
            pointer=snapshot.pointer,
            schema=schema,
            columns=columns,
            native=native,
            fresh=tuple(prune_files(fresh, schema, predicates)),
            parquet_names=map_parquet_names(schema, snapshot.schemas.values()),
            tasks=tuple(
                make_chunk_read_tasks(
                    self._database, self._keyring, self._stage_url, chunks, schema
                )
                if chunks
                else ()
            ),
            present_chunks=snapshot.chunk_numbers,
            deadline=snapshot.deadline,
        )
        return PlannedTable(index, read, predicates, len(fresh), len(snapshot.chunks))


# --- Counts of the files and chunks that a query would open.


@dataclass(frozen=True, slots=True)
class TableFileCounts:
    """Numbers of files and chunks that a query would open for one table reference, and totals."""

    table: str
    native_files: int
    native_files_total: int
    chunks: int
    chunks_total: int
    columns: tuple[str, ...]
    predicates: tuple[Predicate, ...]
    fresh_files: int = 0
    fresh_files_total: int = 0

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.native_files} of {self.native_files_total} native files, "
            f"{self.fresh_files} of {self.fresh_files_total} fresh files, "
            f"{self.chunks} of {self.chunks_total} chunks, {len(self.columns)} columns"
        )


def count_table_files(planned: PlannedTable) -> TableFileCounts:
    """Return the file and chunk counts of one table reference."""
    read = planned.read
    return TableFileCounts(
        table=read.table,
        native_files=len(read.files),
        native_files_total=read.native.result().total,
        chunks=len(read.tasks),
        chunks_total=planned.chunks_total,
        columns=tuple(column.name for column in read.columns),
        predicates=planned.predicates,
        fresh_files=len(read.fresh),
        fresh_files_total=planned.fresh_files_total,
    )


def count_table_rows(planned: PlannedTable) -> int:
    """Return the number of rows in the files and chunks to open."""
    return planned.read.row_count
