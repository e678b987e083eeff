"""The views of what was done: migrations, channels, loads, files of loads, and maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from snowmelt.catalog.access import require_table
from snowmelt.catalog.channels import channel_history
from snowmelt.catalog.history import migrations_of
from snowmelt.catalog.loads import file_history, loads_of
from snowmelt.catalog.maintenance import runs_of
from snowmelt.catalog.tables import dropped_tables, table_by_id, tables_of
from snowmelt.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession
    from sqlalchemy import Connection

    from snowmelt.catalog.database import Database
    from snowmelt.catalog.tables import TableRecord

# The ledger of calls, which is not in the catalog: see `function_history`.
CALLS = "EXTERNAL_FUNCTION_CALLS"
_PLACES = frozenset({(), ("ACCOUNT_USAGE",), ("SNOWMELT", "ACCOUNT_USAGE")})

_MIGRATIONS = StructType(
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


_LOADS = StructType(
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
_FILES = StructType(
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
_MAINTENANCE = StructType(
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


_CHANNELS = StructType(
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


def is_history(parts: tuple[str, ...]) -> bool:
    """Tell whether a table's name is that of a view of what was done."""
    return (
        parts[-1:] != () and (parts[-1] in _VIEWS or parts[-1] == CALLS) and parts[:-1] in _PLACES
    )


def history_frame(spark: SparkSession, database: Database, role: str, view: str) -> DataFrame:
    """Return what was done to the tables that the role may read, the newest first.

    Numbers are missing until a run has ended; tables that are gone for good are left out.
    """
    schema, rows_of = _VIEWS[view]
    with database.reading() as connection:
        rows = list(rows_of(connection, role))
    return spark.createDataFrame(rows, schema)


def _migrations(connection: Connection, role: str) -> Iterable[tuple[object, ...]]:
    runs = migrations_of(connection)
    tables = _readable(connection, {run.table_id for run in runs}, role)
    return [
        (
            run.started_at,
            run.ended_at,
            run.table_id,
            *_named(tables[run.table_id]),
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


def _loads(connection: Connection, role: str) -> Iterable[tuple[object, ...]]:
    found = loads_of(connection)
    tables = _readable(connection, {load.table_id for load in found}, role)
    return [
        (
            load.started_at,
            load.ended_at,
            load.table_id,
            *_named(tables[load.table_id]),
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


def _files(connection: Connection, role: str) -> Iterable[tuple[object, ...]]:
    found = file_history(connection)
    tables = _readable(connection, {each.load.table_id for each in found}, role)
    return [
        (
            each.file.path,
            *_named(tables[each.load.table_id]),
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


def _maintenance(connection: Connection, role: str) -> Iterable[tuple[object, ...]]:
    runs = runs_of(connection)
    tables = _readable(connection, {run.table_id for run in runs}, role)
    return [
        (
            run.started_at,
            run.ended_at,
            run.table_id,
            *_named(tables[run.table_id]),
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


def _channels(connection: Connection, role: str) -> Iterable[tuple[object, ...]]:
    tables = [table.table_id for table in [*tables_of(connection), *dropped_tables(connection)]]
    return [
        (
            event.at,
            event.event,
            table_id,
            *_named(table),
            event.channel,
            event.client_sequencer,
            event.row_sequencer,
            event.offset_token,
            event.user,
        )
        for table_id, table in _readable(connection, set(tables), role).items()
        for event in channel_history(connection, table_id)
    ]


_VIEWS: dict[str, tuple[StructType, Callable[[Connection, str], Iterable[tuple[object, ...]]]]] = {
    "SNOWPIPE_STREAMING_FILE_MIGRATION_HISTORY": (_MIGRATIONS, _migrations),
    "SNOWPIPE_STREAMING_CHANNEL_HISTORY": (_CHANNELS, _channels),
    "LOAD_HISTORY": (_LOADS, _loads),
    "COPY_HISTORY": (_FILES, _files),
    "MAINTENANCE_HISTORY": (_MAINTENANCE, _maintenance),
}


def _named(table: TableRecord) -> tuple[str, str, str]:
    return table.name.database, table.name.schema, table.name.table


def _readable(connection: Connection, table_ids: set[int], role: str) -> dict[int, TableRecord]:
    readable = {}
    for table_id in table_ids:
        try:
            table = table_by_id(connection, table_id)
            require_table(connection, role, table, "SELECT")
        except UserError:
            continue
        readable[table_id] = table
    return readable
