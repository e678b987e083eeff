"""System views: history of migrations, loads, files, maintenance, channels; INFORMATION_SCHEMA."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from operator import attrgetter
from types import SimpleNamespace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType
from sqlalchemy import Connection

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs.load_history import list_file_history, list_loads
from snowmelt.catalog.jobs.run_history import list_maintenance_runs, list_migrations
from snowmelt.catalog.model.records import DatabaseRecord, TableRecord
from snowmelt.catalog.objects.namespaces import list_databases, list_schemas
from snowmelt.catalog.objects.tables import (
    find_error_table,
    find_table_by_id,
    list_dropped_tables,
    list_tables,
)
from snowmelt.catalog.security.access_control import VisibleObjects, require_table_privilege
from snowmelt.catalog.streaming.channels import list_channel_history, list_channels
from snowmelt.catalog.streaming.chunks import measure_backlog
from snowmelt.errors import DatabaseNotFound, SnowmeltError, UserError
from snowmelt.schema.types import LogicalType
from snowmelt.table.snapshot import load_current_native_table

# View of the call log, which is not in the catalog: see `snowmelt.spark.functions.call_log`.
CALL_LOG_VIEW = "EXTERNAL_FUNCTION_CALLS"
# Reserved name: tables in a user schema of this name cannot be read.
INFORMATION_SCHEMA = "INFORMATION_SCHEMA"
_HISTORY_NAMESPACES = frozenset({(), ("ACCOUNT_USAGE",), ("SNOWMELT", "ACCOUNT_USAGE")})
_FULL_NAME_PARTS = 3
_TYPES = {"string": StringType(), "long": LongType(), "timestamp": TimestampType()}
# Type names in INFORMATION_SCHEMA that differ from the names of `LogicalType`.
_TYPE_NAMES = {LogicalType.FIXED: "NUMBER", LogicalType.REAL: "FLOAT"}

# Columns of each view in order: name, type, and attribute path in a row object. Row objects of
# history views have the attributes `it` (the record) and `table`. Column names are Snowflake's.
_TABLE_COLUMNS = """
TABLE_DATABASE string table.name.database
TABLE_SCHEMA string table.name.schema
TABLE_NAME string table.name.table
"""
_MIGRATION_COLUMNS = f"""
START_TIME timestamp it.started_at
END_TIME timestamp it.ended_at
TABLE_ID long table.table_id
{_TABLE_COLUMNS}
NUM_BYTES_MIGRATED long it.bytes
NUM_ROWS_MIGRATED long it.rows
NUM_FILES long it.files
FROM_SEQUENCE long it.from_seq
TO_SEQUENCE long it.to_seq
STATE string it.state
MESSAGE string it.message
RUN_ID string it.run_id
SNAPSHOT_ID long it.snapshot_id
"""
_LOAD_COLUMNS = f"""
START_TIME timestamp it.started_at
END_TIME timestamp it.ended_at
TABLE_ID long table.table_id
{_TABLE_COLUMNS}
STREAM_NAME string it.stream_name
STATE string it.state
FILES long it.files
ROW_COUNT long it.rows
REJECTED_COUNT long it.rejects
BYTES long it.bytes
FIRST_ERROR string it.first_error
MESSAGE string it.message
ROLE string it.role
STATEMENT string it.statement
LOAD_ID string it.load_id
SNAPSHOT_ID long it.snapshot_id
"""
_FILE_COLUMNS = f"""
FILE_NAME string it.file.path
{_TABLE_COLUMNS}
STATUS string it.file.state
ROW_COUNT long it.file.rows
REJECTED_COUNT long it.file.rejects
BYTES long it.file.bytes
FILE_SIZE long it.file.size
FIRST_ERROR string it.file.first_error
START_TIME timestamp it.load.started_at
END_TIME timestamp it.load.ended_at
STREAM_NAME string it.load.stream_name
LOAD_ID string it.load.load_id
"""
_MAINTENANCE_COLUMNS = f"""
START_TIME timestamp it.started_at
END_TIME timestamp it.ended_at
TABLE_ID long table.table_id
{_TABLE_COLUMNS}
KIND string it.kind
STATE string it.state
NUM_ROWS long it.rows
FILES_BEFORE long it.files_before
BYTES_BEFORE long it.bytes_before
FILES_AFTER long it.files_after
BYTES_AFTER long it.bytes_after
SNAPSHOTS_EXPIRED long it.snapshots_expired
MESSAGE string it.message
RUN_ID string it.run_id
SNAPSHOT_ID long it.snapshot_id
"""
_CHANNEL_COLUMNS = f"""
EVENT_TIMESTAMP timestamp it.at
EVENT_TYPE string it.event
TABLE_ID long table.table_id
{_TABLE_COLUMNS}
CHANNEL_NAME string it.channel
CLIENT_SEQUENCER long it.client_sequencer
ROW_SEQUENCER long it.row_sequencer
OFFSET_TOKEN string it.offset_token
USER_NAME string it.user
"""
_DATABASES_COLUMNS = """
DATABASE_NAME string name
DATABASE_OWNER string owner
CREATED timestamp created_at
RETENTION_TIME long retention_days
COMMENT string comment
"""
_SCHEMATA_COLUMNS = """
CATALOG_NAME string database
SCHEMA_NAME string name
SCHEMA_OWNER string owner
CREATED timestamp created_at
RETENTION_TIME long retention_days
COMMENT string comment
"""
_TABLES_COLUMNS = """
TABLE_CATALOG string table.name.database
TABLE_SCHEMA string table.name.schema
TABLE_NAME string table.name.table
TABLE_OWNER string table.owner
TABLE_TYPE string kind
CLUSTERING_KEY string clustering_key
ROW_COUNT long rows
BYTES long bytes
CREATED timestamp table.created_at
RETENTION_TIME long table.retention_days
ENABLE_SCHEMA_EVOLUTION string schema_evolution
ERROR_TABLE string error_table
ICEBERG_FRESH string iceberg_fresh
COMMENT string table.comment
"""
_COLUMNS_COLUMNS = """
TABLE_CATALOG string table.name.database
TABLE_SCHEMA string table.name.schema
TABLE_NAME string table.name.table
COLUMN_NAME string column.name
ORDINAL_POSITION long position
COLUMN_DEFAULT string column.default_sql
IS_NULLABLE string nullable
DATA_TYPE string type
CHARACTER_MAXIMUM_LENGTH long column.length
CHARACTER_OCTET_LENGTH long column.byte_length
NUMERIC_PRECISION long precision
NUMERIC_PRECISION_RADIX long radix
NUMERIC_SCALE long scale
DATETIME_PRECISION long datetime_precision
COMMENT string unknown
"""
_KAFKA_COLUMNS = """
TABLE_CATALOG string table.name.database
TABLE_SCHEMA string table.name.schema
TABLE_NAME string table.name.table
TOPIC string topic
PARTITION long partition
COMMITTED_OFFSET long committed_offset
END_OFFSET long end_offset
LAG long lag
LAST_COMMIT_ON timestamp last_commit_at
END_OFFSET_ON timestamp end_offset_at
"""
_END_CHANNEL = re.compile(r"(?P<topic>.+):P(?P<partition>\d+):end")


def is_history_view(parts: tuple[str, ...]) -> bool:
    """Return True if a table name denotes a history view."""
    return (
        parts[-1:] != ()
        and (parts[-1] in _HISTORY_VIEWS or parts[-1] == CALL_LOG_VIEW)
        and parts[:-1] in _HISTORY_NAMESPACES
    )


def is_information_schema_view(parts: tuple[str, ...]) -> bool:
    """Return True if a table name denotes a view of `<database>.INFORMATION_SCHEMA`."""
    return (
        len(parts) == _FULL_NAME_PARTS
        and parts[1] == INFORMATION_SCHEMA
        and parts[2] in _INFORMATION_SCHEMA_VIEWS
    )


def create_history_frame(
    spark: SparkSession, database: Database, role: str, view: str
) -> DataFrame:
    """Return a history view of the tables that the role may read, newest first.

    Counts are NULL until a run has ended. Permanently deleted tables are omitted.
    """
    columns, list_records = _HISTORY_VIEWS[view]
    with database.reading() as connection:
        found = list(list_records(connection))
        tables = _find_readable_tables(connection, {table_id for table_id, _ in found}, role)
    rows = [
        SimpleNamespace(table=tables[table_id], it=record)
        for table_id, record in found
        if table_id in tables
    ]
    return _create_frame(spark, columns, rows)


def create_information_schema_frame(
    spark: SparkSession, database: Database, role: str, parts: tuple[str, ...]
) -> DataFrame:
    """Return a view of the objects of one database that are visible to the role.

    Raises:
        DatabaseNotFound: If the database does not exist or the role lacks privileges on it.
    """
    columns, rows_of = _INFORMATION_SCHEMA_VIEWS[parts[2]]
    with database.reading() as connection:
        visibility = VisibleObjects(connection, role)
        seen = list(_list_visible_databases(connection, visibility, parts[0]))
        if parts[0] not in {each.name for each in seen}:
            raise DatabaseNotFound(database=parts[0])
        rows = list(rows_of(connection, visibility, parts[0]))
    return _create_frame(spark, columns, rows)


def _create_frame(spark: SparkSession, columns: str, rows: Iterable[object]) -> DataFrame:
    lines = [line.split() for line in columns.splitlines() if line]
    find_values = attrgetter(*(path for _, _, path in lines))
    values = [
        tuple(str(value) if isinstance(value, Enum) else value for value in find_values(row))
        for row in rows
    ]
    schema = StructType([StructField(name, _TYPES[kind]) for name, kind, _ in lines])
    return spark.createDataFrame(values, schema)


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


def _list_channel_events(connection: Connection) -> Iterable[tuple[int, object]]:
    return [
        (table.table_id, event)
        for table in [*list_tables(connection), *list_dropped_tables(connection)]
        for event in list_channel_history(connection, table.table_id)
    ]


_HISTORY_VIEWS: dict[str, tuple[str, Callable[[Connection], Iterable[tuple[int, object]]]]] = {
    "SNOWPIPE_STREAMING_FILE_MIGRATION_HISTORY": (
        _MIGRATION_COLUMNS,
        lambda connection: [(each.table_id, each) for each in list_migrations(connection)],
    ),
    "SNOWPIPE_STREAMING_CHANNEL_HISTORY": (_CHANNEL_COLUMNS, _list_channel_events),
    "LOAD_HISTORY": (
        _LOAD_COLUMNS,
        lambda connection: [(each.table_id, each) for each in list_loads(connection)],
    ),
    "COPY_HISTORY": (
        _FILE_COLUMNS,
        lambda connection: [(each.load.table_id, each) for each in list_file_history(connection)],
    ),
    "MAINTENANCE_HISTORY": (
        _MAINTENANCE_COLUMNS,
        lambda connection: [(each.table_id, each) for each in list_maintenance_runs(connection)],
    ),
}


def _list_visible_databases(
    connection: Connection, visibility: VisibleObjects, _: str
) -> Iterable[DatabaseRecord]:
    return filter(visibility.includes_database, list_databases(connection))


def _list_visible_tables(
    connection: Connection, visibility: VisibleObjects, database_name: str
) -> Iterable[TableRecord]:
    return filter(visibility.includes_table, list_tables(connection, database_name))


def _list_table_rows(
    connection: Connection, visibility: VisibleObjects, database_name: str
) -> Iterable[object]:
    for table in _list_visible_tables(connection, visibility, database_name):
        rows, size_bytes = _measure_table_size(connection, table)
        errors = find_error_table(connection, table)
        yield SimpleNamespace(
            table=table,
            kind="BASE TABLE",
            clustering_key=f"LINEAR({', '.join(table.cluster_by)})" if table.cluster_by else None,
            rows=rows,
            bytes=size_bytes,
            schema_evolution="YES" if table.schema_evolution else "NO",
            error_table=None if errors is None else str(errors.name),
            iceberg_fresh="NO" if table.hides_fresh_rows else "YES",
        )


def _list_column_rows(
    connection: Connection, visibility: VisibleObjects, database_name: str
) -> Iterable[object]:
    for table in _list_visible_tables(connection, visibility, database_name):
        for position, column in enumerate(table.schema.columns, start=1):
            is_fixed = column.kind is LogicalType.FIXED
            yield SimpleNamespace(
                table=table,
                column=column,
                position=position,
                unknown=None,
                nullable="YES" if column.nullable else "NO",
                type=_TYPE_NAMES.get(column.kind, str(column.kind)),
                precision=column.precision if is_fixed else None,
                radix=10 if is_fixed else None,
                scale=column.scale if is_fixed else None,
                datetime_precision=None if is_fixed else column.scale,
            )


def _list_kafka_partitions(
    connection: Connection, visibility: VisibleObjects, database_name: str
) -> Iterable[object]:
    """Yield the partitions whose connector stores end offsets, of tables that the role may read."""
    visible = list_tables(connection, database_name)
    tables = {each.table_id: each for each in visible if visibility.can_select_from(each)}
    channels = {
        (each.table_id, each.name): each for each in list_channels(connection, tables.keys())
    }
    for (table_id, name), end in channels.items():
        found = _END_CHANNEL.fullmatch(name)
        if found is None or not (end.offset_token or "").isdecimal():
            continue
        channel = channels.get((table_id, name.removesuffix(":end")))
        token = None if channel is None else channel.offset_token
        committed = int(token) if token and token.isdecimal() else None
        end_offset = int(end.offset_token or 0)
        yield SimpleNamespace(
            table=tables[table_id],
            topic=found["topic"],
            partition=int(found["partition"]),
            committed_offset=committed,
            end_offset=end_offset,
            lag=max(end_offset - (-1 if committed is None else committed) - 1, 0),
            last_commit_at=None if channel is None else channel.last_commit_at,
            end_offset_at=end.last_commit_at,
        )


def _measure_table_size(
    connection: Connection, table: TableRecord
) -> tuple[int | None, int | None]:
    """Return the total rows and bytes of a table, or None for both if its files are unavailable."""
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
    str, tuple[str, Callable[[Connection, VisibleObjects, str], Iterable[object]]]
] = {
    "DATABASES": (_DATABASES_COLUMNS, _list_visible_databases),
    "SCHEMATA": (
        _SCHEMATA_COLUMNS,
        lambda connection, visibility, name: filter(
            visibility.includes_schema, list_schemas(connection, name)
        ),
    ),
    "TABLES": (_TABLES_COLUMNS, _list_table_rows),
    "COLUMNS": (_COLUMNS_COLUMNS, _list_column_rows),
    "KAFKA_PARTITIONS": (_KAFKA_COLUMNS, _list_kafka_partitions),
}
