"""System views: history of migrations, loads, files, maintenance, channels; INFORMATION_SCHEMA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from snowmelt.catalog.jobs.load_history import list_file_history, list_loads
from snowmelt.catalog.jobs.maintenance_history import list_maintenance_runs
from snowmelt.catalog.jobs.migration_history import list_migrations
from snowmelt.catalog.objects.error_table_lookup import find_error_table
from snowmelt.catalog.objects.namespaces import list_databases, list_schemas
from snowmelt.catalog.objects.tables import find_table_by_id, list_dropped_tables, list_tables
from snowmelt.catalog.security.access_control import VisibleObjects, require_table_privilege
from snowmelt.catalog.streaming.channels import list_channel_history
from snowmelt.catalog.streaming.chunks import measure_backlog
from snowmelt.errors import DatabaseNotFound, SnowmeltError, UserError
from snowmelt.schema.types import LogicalType
from snowmelt.table.snapshot import load_current_native_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession
    from sqlalchemy import Connection

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.model.records import TableRecord
    from snowmelt.schema.types import Column

# The ledger of calls, which is not in the catalog: see `function_history`.
CALL_LOG_VIEW = "EXTERNAL_FUNCTION_CALLS"
_HISTORY_NAMESPACES = frozenset({(), ("ACCOUNT_USAGE",), ("SNOWMELT", "ACCOUNT_USAGE")})

_MIGRATION_SCHEMA = StructType(
    [
        StructField("START_TIME", TimestampType()),
        StructField("END_TIME", TimestampType()),
        StructField("TABLE_ID", LongType()),
        StructField("TABLE_DATABASE", StringType()),
        StructField("TABLE_SCHEMA", StringType()),
        StructField("TABLE_NAME", StringType()),
        StructField("NUM_BYTES_MIGRATED", LongType()),
        StructField("NUM_ROWS_MIGRATED", LongType()),
        StructField("NUM_FILES", LongType()),
        StructField("FROM_SEQUENCE", LongType()),
        StructField("TO_SEQUENCE", LongType()),
        StructField("STATE", StringType()),
        StructField("MESSAGE", StringType()),
        StructField("RUN_ID", StringType()),
        StructField("SNAPSHOT_ID", LongType()),
    ]
)


_LOAD_SCHEMA = StructType(
    [
        StructField("START_TIME", TimestampType()),
        StructField("END_TIME", TimestampType()),
        StructField("TABLE_ID", LongType()),
        StructField("TABLE_DATABASE", StringType()),
        StructField("TABLE_SCHEMA", StringType()),
        StructField("TABLE_NAME", StringType()),
        StructField("STREAM_NAME", StringType()),
        StructField("STATE", StringType()),
        StructField("FILES", LongType()),
        StructField("ROW_COUNT", LongType()),
        StructField("REJECTED_COUNT", LongType()),
        StructField("BYTES", LongType()),
        StructField("FIRST_ERROR", StringType()),
        StructField("MESSAGE", StringType()),
        StructField("ROLE", StringType()),
        StructField("STATEMENT", StringType()),
        StructField("LOAD_ID", StringType()),
        StructField("SNAPSHOT_ID", LongType()),
    ]
)
_FILE_SCHEMA = StructType(
    [
        StructField("FILE_NAME", StringType()),
        StructField("TABLE_DATABASE", StringType()),
        StructField("TABLE_SCHEMA", StringType()),
        StructField("TABLE_NAME", StringType()),
        StructField("STATUS", StringType()),
        StructField("ROW_COUNT", LongType()),
        StructField("REJECTED_COUNT", LongType()),
        StructField("BYTES", LongType()),
        StructField("FILE_SIZE", LongType()),
        StructField("FIRST_ERROR", StringType()),
        StructField("START_TIME", TimestampType()),
        StructField("END_TIME", TimestampType()),
        StructField("STREAM_NAME", StringType()),
        StructField("LOAD_ID", StringType()),
    ]
)
_MAINTENANCE_SCHEMA = StructType(
    [
        StructField("START_TIME", TimestampType()),
        StructField("END_TIME", TimestampType()),
        StructField("TABLE_ID", LongType()),
        StructField("TABLE_DATABASE", StringType()),
        StructField("TABLE_SCHEMA", StringType()),
        StructField("TABLE_NAME", StringType()),
        StructField("KIND", StringType()),
        StructField("STATE", StringType()),
        StructField("NUM_ROWS", LongType()),
        StructField("FILES_BEFORE", LongType()),
        StructField("BYTES_BEFORE", LongType()),
        StructField("FILES_AFTER", LongType()),
        StructField("BYTES_AFTER", LongType()),
        StructField("SNAPSHOTS_EXPIRED", LongType()),
        StructField("MESSAGE", StringType()),
        StructField("RUN_ID", StringType()),
        StructField("SNAPSHOT_ID", LongType()),
    ]
)


_CHANNEL_SCHEMA = StructType(
    [
        StructField("EVENT_TIMESTAMP", TimestampType()),
        StructField("EVENT_TYPE", StringType()),
        StructField("TABLE_ID", LongType()),
        StructField("TABLE_DATABASE", StringType()),
        StructField("TABLE_SCHEMA", StringType()),
        StructField("TABLE_NAME", StringType()),
        StructField("CHANNEL_NAME", StringType()),
        StructField("CLIENT_SEQUENCER", LongType()),
        StructField("ROW_SEQUENCER", LongType()),
        StructField("OFFSET_TOKEN", StringType()),
        StructField("USER_NAME", StringType()),
    ]
)


def is_history_view(parts: tuple[str, ...]) -> bool:
    """Tell whether a table's name is that of a view of what was done."""
    return (
        parts[-1:] != ()
        and (parts[-1] in _HISTORY_VIEWS or parts[-1] == CALL_LOG_VIEW)
        and parts[:-1] in _HISTORY_NAMESPACES
    )


def create_history_frame(
    spark: SparkSession, database: Database, role: str, view: str
) -> DataFrame:
    """Return what was done to the tables that the role may read, the newest first.

    Numbers are missing until a run has ended; tables that are gone for good are left out.
    """
    schema, rows_of = _HISTORY_VIEWS[view]
    with database.reading() as connection:
        rows = list(rows_of(connection, role))
    return spark.createDataFrame(rows, schema)


def _list_migration_rows(connection: Connection, role: str) -> Iterable[tuple[object, ...]]:
    runs = list_migrations(connection)
    tables = _find_readable_tables(connection, {run.table_id for run in runs}, role)
    return [
        (
            run.started_at,
            run.ended_at,
            run.table_id,
            *_split_table_name(tables[run.table_id]),
            run.bytes,
            run.rows,
            run.files,
            run.from_seq,
            run.to_seq,
            str(run.state),
            run.message,
            run.run_id,
            run.snapshot_id,
        )
        for run in runs
        if run.table_id in tables
    ]


def _list_load_rows(connection: Connection, role: str) -> Iterable[tuple[object, ...]]:
    found = list_loads(connection)
    tables = _find_readable_tables(connection, {load.table_id for load in found}, role)
    return [
        (
            load.started_at,
            load.ended_at,
            load.table_id,
            *_split_table_name(tables[load.table_id]),
            load.stream_name,
            str(load.state),
            load.files,
            load.rows,
            load.rejects,
            load.bytes,
            load.first_error,
            load.message,
            load.role,
            load.statement,
            load.load_id,
            load.snapshot_id,
        )
        for load in found
        if load.table_id in tables
    ]


def _list_file_rows(connection: Connection, role: str) -> Iterable[tuple[object, ...]]:
    found = list_file_history(connection)
    tables = _find_readable_tables(connection, {each.load.table_id for each in found}, role)
    return [
        (
            each.file.path,
            *_split_table_name(tables[each.load.table_id]),
            str(each.file.state),
            each.file.rows,
            each.file.rejects,
            each.file.bytes,
            each.file.size,
            each.file.first_error,
            each.load.started_at,
            each.load.ended_at,
            each.load.stream_name,
            each.load.load_id,
        )
        for each in found
        if each.load.table_id in tables
    ]


def _list_maintenance_rows(connection: Connection, role: str) -> Iterable[tuple[object, ...]]:
    runs = list_maintenance_runs(connection)
    tables = _find_readable_tables(connection, {run.table_id for run in runs}, role)
    return [
        (
            run.started_at,
            run.ended_at,
            run.table_id,
            *_split_table_name(tables[run.table_id]),
            str(run.kind),
            str(run.state),
            run.rows,
            run.files_before,
            run.bytes_before,
            run.files_after,
            run.bytes_after,
            run.snapshots_expired,
            run.message,
            run.run_id,
            run.snapshot_id,
        )
        for run in runs
        if run.table_id in tables
    ]


def _list_channel_rows(connection: Connection, role: str) -> Iterable[tuple[object, ...]]:
    tables = [
        table.table_id for table in [*list_tables(connection), *list_dropped_tables(connection)]
    ]
    return [
        (
            event.at,
            event.event,
            table_id,
            *_split_table_name(table),
            event.channel,
            event.client_sequencer,
            event.row_sequencer,
            event.offset_token,
            event.user,
        )
        for table_id, table in _find_readable_tables(connection, set(tables), role).items()
        for event in list_channel_history(connection, table_id)
    ]


_HISTORY_VIEWS: dict[
    str, tuple[StructType, Callable[[Connection, str], Iterable[tuple[object, ...]]]]
] = {
    "SNOWPIPE_STREAMING_FILE_MIGRATION_HISTORY": (_MIGRATION_SCHEMA, _list_migration_rows),
    "SNOWPIPE_STREAMING_CHANNEL_HISTORY": (_CHANNEL_SCHEMA, _list_channel_rows),
    "LOAD_HISTORY": (_LOAD_SCHEMA, _list_load_rows),
    "COPY_HISTORY": (_FILE_SCHEMA, _list_file_rows),
    "MAINTENANCE_HISTORY": (_MAINTENANCE_SCHEMA, _list_maintenance_rows),
}


def _split_table_name(table: TableRecord) -> tuple[str, str, str]:
    return table.name.database, table.name.schema, table.name.table


def _find_readable_tables(
    connection: Connection, table_ids: set[int], role: str
) -> dict[int, TableRecord]:
    readable = {}
    for table_id in table_ids:
        try:
            table = find_table_by_id(connection, table_id)
            require_table_privilege(connection, role, table, "SELECT")
        except UserError:
            continue
        readable[table_id] = table
    return readable


# --- `<database>.INFORMATION_SCHEMA`: databases, schemas, tables and columns that a role may see.
#
# Column names are Snowflake's. The name is taken: tables of a schema that somebody calls so are not read.

INFORMATION_SCHEMA = "INFORMATION_SCHEMA"
_FULL_NAME_PARTS = 3


def _make_fields(
    string_names: str, number_names: str = "", timestamp_names: str = ""
) -> dict[str, StructField]:
    return {
        name: StructField(name, kind)
        for names, kind in (
            (string_names, StringType()),
            (number_names, LongType()),
            (timestamp_names, TimestampType()),
        )
        for name in names.split()
    }


def _order_fields(fields: dict[str, StructField], order: str) -> StructType:
    return StructType([fields[name] for name in order.split()])


_DATABASES_SCHEMA = _order_fields(
    _make_fields("DATABASE_NAME DATABASE_OWNER COMMENT", "RETENTION_TIME", "CREATED"),
    "DATABASE_NAME DATABASE_OWNER CREATED RETENTION_TIME COMMENT",
)
_SCHEMATA_SCHEMA = _order_fields(
    _make_fields("CATALOG_NAME SCHEMA_NAME SCHEMA_OWNER COMMENT", "RETENTION_TIME", "CREATED"),
    "CATALOG_NAME SCHEMA_NAME SCHEMA_OWNER CREATED RETENTION_TIME COMMENT",
)
_TABLES_SCHEMA = _order_fields(
    _make_fields(
        "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME TABLE_OWNER TABLE_TYPE CLUSTERING_KEY "
        "ENABLE_SCHEMA_EVOLUTION ERROR_TABLE COMMENT",
        "ROW_COUNT BYTES RETENTION_TIME",
        "CREATED",
    ),
    "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME TABLE_OWNER TABLE_TYPE CLUSTERING_KEY ROW_COUNT BYTES "
    "CREATED RETENTION_TIME ENABLE_SCHEMA_EVOLUTION ERROR_TABLE COMMENT",
)
_COLUMNS_SCHEMA = _order_fields(
    _make_fields(
        "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME COLUMN_NAME COLUMN_DEFAULT IS_NULLABLE DATA_TYPE "
        "COMMENT",
        "ORDINAL_POSITION CHARACTER_MAXIMUM_LENGTH CHARACTER_OCTET_LENGTH NUMERIC_PRECISION "
        "NUMERIC_PRECISION_RADIX NUMERIC_SCALE DATETIME_PRECISION",
    ),
    "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME COLUMN_NAME ORDINAL_POSITION COLUMN_DEFAULT IS_NULLABLE "
    "DATA_TYPE CHARACTER_MAXIMUM_LENGTH CHARACTER_OCTET_LENGTH NUMERIC_PRECISION "
    "NUMERIC_PRECISION_RADIX NUMERIC_SCALE DATETIME_PRECISION COMMENT",
)
# What the standard's views call types, where that is not the name of the kind.
_TYPE_NAMES = {LogicalType.FIXED: "NUMBER", LogicalType.REAL: "FLOAT"}


def is_information_schema_view(parts: tuple[str, ...]) -> bool:
    """Tell whether a table's name is that of a view of this schema."""
    return (
        len(parts) == _FULL_NAME_PARTS
        and parts[1] == INFORMATION_SCHEMA
        and parts[2] in _INFORMATION_SCHEMA_VIEWS
    )


def create_information_schema_frame(
    spark: SparkSession, database: Database, role: str, parts: tuple[str, ...]
) -> DataFrame:
    """Return a view's rows: what the role may see of one database.

    Raises:
        DatabaseNotFound: It does not exist, or the role has no privilege on it.
    """
    schema, rows_of = _INFORMATION_SCHEMA_VIEWS[parts[2]]
    with database.reading() as connection:
        sight = VisibleObjects(connection, role)
        seen = [each for each in list_databases(connection) if sight.includes_database(each)]
        if parts[0] not in {each.name for each in seen}:
            raise DatabaseNotFound(database=parts[0])
        rows = list(rows_of(connection, sight, parts[0]))
    return spark.createDataFrame(rows, schema)


def _list_database_rows(
    connection: Connection, visibility: VisibleObjects, _: str
) -> Iterable[tuple[object, ...]]:
    return [
        (each.name, each.owner, each.created_at, each.retention_days, each.comment)
        for each in list_databases(connection)
        if visibility.includes_database(each)
    ]


def _list_schema_rows(
    connection: Connection, visibility: VisibleObjects, database_name: str
) -> Iterable[tuple[object, ...]]:
    return [
        (each.database, each.name, each.owner, each.created_at, each.retention_days, each.comment)
        for each in list_schemas(connection, database_name)
        if visibility.includes_schema(each)
    ]


def _list_table_rows(
    connection: Connection, visibility: VisibleObjects, database_name: str
) -> Iterable[tuple[object, ...]]:
    return [
        (
            *_split_qualified_name(table),
            table.owner,
            "BASE TABLE",
            f"LINEAR({', '.join(table.cluster_by)})" if table.cluster_by else None,
            *_measure_table_size(connection, table),
            table.created_at,
            table.retention_days,
            "YES" if table.schema_evolution else "NO",
            _find_error_table_name(connection, table),
            table.comment,
        )
        for table in list_tables(connection, database_name)
        if visibility.includes_table(table)
    ]


def _list_column_rows(
    connection: Connection, visibility: VisibleObjects, database_name: str
) -> Iterable[tuple[object, ...]]:
    return [
        _make_column_row(table, column, position)
        for table in list_tables(connection, database_name)
        if visibility.includes_table(table)
        for position, column in enumerate(table.schema.columns, start=1)
    ]


def _make_column_row(table: TableRecord, column: Column, position: int) -> tuple[object, ...]:
    fixed = column.kind is LogicalType.FIXED
    timed = column.scale if not fixed else None
    return (
        *_split_qualified_name(table),
        column.name,
        position,
        None,
        "YES" if column.nullable else "NO",
        _TYPE_NAMES.get(column.kind, str(column.kind)),
        column.length,
        column.byte_length,
        column.precision if fixed else None,
        10 if fixed else None,
        column.scale if fixed else None,
        timed,
        None,
    )


def _split_qualified_name(table: TableRecord) -> tuple[str, str, str]:
    return table.name.database, table.name.schema, table.name.table


def _find_error_table_name(connection: Connection, table: TableRecord) -> str | None:
    found = find_error_table(connection, table)
    return None if found is None else str(found.name)


def _measure_table_size(
    connection: Connection, table: TableRecord
) -> tuple[int | None, int | None]:
    """Return rows and bytes, native files and chunks; nothing where the files cannot be asked."""
    waiting = measure_backlog(connection, table.table_id)
    try:
        native = load_current_native_table(table)
    except (SnowmeltError, OSError):
        return None, None
    snapshot = None if native is None else native.metadata.current_snapshot()
    if native is None or snapshot is None or snapshot.summary is None:
        return waiting.rows, waiting.bytes
    size = int(snapshot.summary.additional_properties.get("total-files-size", "0"))
    return native.facts.total_rows + waiting.rows, size + waiting.bytes


_INFORMATION_SCHEMA_VIEWS: dict[
    str,
    tuple[StructType, Callable[[Connection, VisibleObjects, str], Iterable[tuple[object, ...]]]],
] = {
    "DATABASES": (_DATABASES_SCHEMA, _list_database_rows),
    "SCHEMATA": (_SCHEMATA_SCHEMA, _list_schema_rows),
    "TABLES": (_TABLES_SCHEMA, _list_table_rows),
    "COLUMNS": (_COLUMNS_SCHEMA, _list_column_rows),
}
