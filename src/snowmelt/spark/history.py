"""The view of migrations: what was made of streamed chunks, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from snowmelt.catalog.access import require_table
from snowmelt.catalog.history import migrations_of
from snowmelt.catalog.tables import table_by_id
from snowmelt.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlalchemy import Connection

    from snowmelt.catalog.database import Database
    from snowmelt.catalog.tables import TableRecord

HISTORY_VIEW = "SNOWPIPE_STREAMING_FILE_MIGRATION_HISTORY"
_PLACES = frozenset({(), ("ACCOUNT_USAGE",), ("SNOWMELT", "ACCOUNT_USAGE")})

_SCHEMA = StructType(
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


def is_history(parts: tuple[str, ...]) -> bool:
    """Tell whether a table's name is that of the view."""
    return parts[-1:] == (HISTORY_VIEW,) and parts[:-1] in _PLACES


def history_frame(spark: SparkSession, database: Database, role: str) -> DataFrame:
    """Return the runs of the tables that the role may read, the newest first.

    Numbers are missing until a run has committed; tables that are gone for good are left out.
    """
    with database.reading() as connection:
        runs = migrations_of(connection)
        tables = _readable(connection, {run.table_id for run in runs}, role)
    rows = [
        (
            run.started_at,
            run.ended_at,
            run.table_id,
            table.name.database,
            table.name.schema,
            table.name.table,
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
        if (table := tables.get(run.table_id)) is not None
    ]
    return spark.createDataFrame(rows, _SCHEMA)


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
