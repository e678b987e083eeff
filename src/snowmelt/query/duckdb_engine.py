"""Runs plain queries in DuckDB on one snapshot of a table, and streams the rows.

DuckDB can access only one relation: no files, no network, no extensions.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.clock import Clock
from snowmelt.query.plain_query import PlainQuery, QueryNotPlain, parse_plain_query
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import LogicalType
from snowmelt.table.chunk_reader import ChunkReadTask, project_schema, run_chunk_read_task
from snowmelt.table.fresh_files import describe_fresh_file
from snowmelt.table.native_file import NativeFile, read_native_batches
from snowmelt.table.snapshot import TableSnapshot, take_snapshots
from snowmelt.table.table_reader import make_chunk_read_tasks
from snowmelt.table.warehouse_paths import open_warehouse

_BATCH_ROWS = 65_536
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "python_enable_replacements": "false",
}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Columns of a result, and a stream of its rows. Values are as in Spark."""

    columns: Sequence[str]
    types: Sequence[LogicalType]
    rows: Iterator[tuple[object, ...]]


class DuckDBEngine:
    """Engine for plain queries of one role."""

    def __init__(
        self,
        database: Database,
        keyring: KeyRing,
        stage_url: str,
        warehouse_url: str,
        *,
        role: str,
        clock: Clock,
        namespace: Sequence[str] = (),
        memory_bytes: int | None = None,
    ) -> None:
        """Create an engine.

        Args:
            database: The catalog.
            keyring: Keys of the chunks.
            stage_url: Location of the chunks.
            warehouse_url: Location of the files.
            role: The role whose privileges apply.
            clock: The clock of the catalog.
            namespace: Database and schema of short names.
            memory_bytes: Memory limit of DuckDB. With a limit, DuckDB runs on one thread and writes
                no temporary files. None: no limit.
        """
        self._database = database
        self._keyring = keyring
        self._stage_url = stage_url
        self._warehouse_url = warehouse_url
        self._role = role
        self._clock = clock
        self._namespace = namespace
        self._limits: dict[str, str | bool | int | float | list[str]] = {}
        if memory_bytes is not None:
            self._limits = {
                "memory_limit": f"{memory_bytes}B",
                "max_temp_directory_size": "0B",
                "threads": 1,
            }

    @contextlib.contextmanager
    def running(self, text: str) -> Iterator[QueryResult]:
        """Run a query. Its rows can be read inside the `with` block.

        Raises:
            QueryNotPlain: If the query is not plain, or DuckDB cannot run it.
            TableNotFound: If the table does not exist, or the role lacks SELECT on it.
        """
        parsed = parse_plain_query(text, self._namespace)
        [snapshot] = take_snapshots(
            self._database,
            [parsed.table],
            clock=self._clock,
            role=self._role,
            with_fresh_files=True,
        )
        query = parsed.analyze(snapshot.table.schema)
        with (
            tempfile.TemporaryDirectory(prefix="snowmelt-query-") as folder,
            contextlib.closing(
                duckdb.connect(config=_CONFIG | {"temp_directory": folder} | self._limits)
            ) as connection,
        ):
            connection.execute("SET lock_configuration = true")
            source = _SnapshotSource(self, snapshot, query)
            connection.register("ROWS", source.open_reader())
            with source.raising_read_errors():
                reader = connection.sql(query.sql).to_arrow_reader(_BATCH_ROWS)
                first = next(reader, None)
            rows = _iterate_rows(first, reader, source)
            yield QueryResult(query.output_names, query.output_types, rows)

    def list_files(self, snapshot: TableSnapshot) -> list[NativeFile]:
        """Return the native and fresh files of a snapshot."""
        warehouse = open_warehouse(self._warehouse_url)
        fresh = [describe_fresh_file(file, warehouse) for file in snapshot.fresh]
        return [*snapshot.list_native_files(), *fresh]

    def make_read_tasks(self, snapshot: TableSnapshot) -> list[ChunkReadTask]:
        """Return the tasks that read the chunks of a snapshot."""
        return make_chunk_read_tasks(
            self._database,
            self._keyring,
            self._stage_url,
            snapshot.chunks,
            snapshot.table.schema,
        )


class _SnapshotSource:
    """Stream of the rows of a snapshot, and the error that ended it, if any."""

    def __init__(self, engine: DuckDBEngine, snapshot: TableSnapshot, query: PlainQuery) -> None:
        self._engine = engine
        self._snapshot = snapshot
        self._columns = query.columns
        self._wanted = project_schema(snapshot.table.schema, query.columns)
        self._schema = pa.schema([_make_naive_field(each) for each in native_schema(self._wanted)])
        self._error: Exception | None = None

    def open_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._iterate_batches())

    @contextlib.contextmanager
    def raising_read_errors(self) -> Iterator[None]:
        """Replace a DuckDB error that a source caused with the source's error."""
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if self._error is not None:
                raise self._error from None
            reason = str(error).partition("\n")[0]
            raise QueryNotPlain(reason=f"DuckDB cannot run it ({reason})") from error

    def _iterate_batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for file in self._engine.list_files(self._snapshot):
                for table in read_native_batches(file, self._wanted, _BATCH_ROWS):
                    yield from _conform(table, self._schema)
            for task in self._engine.make_read_tasks(self._snapshot):
                yield from _conform(run_chunk_read_task(task, self._columns), self._schema)
        except Exception as error:
            self._error = error
            raise


def _make_naive_field(field: pa.Field) -> pa.Field:
    # Convert timestamps with a zone to UTC and drop the zone, as the Spark session of commands
    # does.
    if pa.types.is_timestamp(field.type):
        return pa.field(field.name, pa.timestamp(field.type.unit))
    return pa.field(field.name, field.type)


def _conform(table: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    arrays = [
        column.cast(pa.timestamp(field.type.unit, "UTC")).cast(field.type)
        if pa.types.is_timestamp(field.type) and column.type.tz is not None
        else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    batches: list[pa.RecordBatch] = pa.Table.from_arrays(arrays, schema=schema).to_batches()
    return batches


def _iterate_rows(
    batch: pa.RecordBatch | None, rest: Iterator[pa.RecordBatch], source: _SnapshotSource
) -> Iterator[tuple[object, ...]]:
    while batch is not None:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
        with source.raising_read_errors():
            batch = next(rest, None)
