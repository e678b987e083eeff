"""`<database>.INFORMATION_SCHEMA`: databases, schemas, tables and columns that a role may see.

Column names are Snowflake's. The name is taken: tables of a schema that somebody calls so are not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from snowmelt.catalog.chunks import backlog
from snowmelt.catalog.error_tables import error_table_of
from snowmelt.catalog.namespaces import databases_of, schemas_of
from snowmelt.catalog.sight import Sight
from snowmelt.catalog.tables import tables_of
from snowmelt.errors import DatabaseNotFound, SnowmeltError
from snowmelt.schema.types import Kind
from snowmelt.table.snapshot import native_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession
    from sqlalchemy import Connection

    from snowmelt.catalog.database import Database
    from snowmelt.catalog.tables import TableRecord
    from snowmelt.schema.types import Column

SCHEMA = "INFORMATION_SCHEMA"
_PARTS = 3


def _fields(texts: str, numbers: str = "", times: str = "") -> dict[str, StructField]:
    return {
        name: StructField(name, kind)
        for names, kind in (
            (texts, StringType()),
            (numbers, LongType()),
            (times, TimestampType()),
        )
        for name in names.split()
    }


def _ordered(fields: dict[str, StructField], order: str) -> StructType:
    return StructType([fields[name] for name in order.split()])


_DATABASES = _ordered(
    _fields("DATABASE_NAME DATABASE_OWNER COMMENT", "RETENTION_TIME", "CREATED"),
    "DATABASE_NAME DATABASE_OWNER CREATED RETENTION_TIME COMMENT",
)
_SCHEMATA = _ordered(
    _fields("CATALOG_NAME SCHEMA_NAME SCHEMA_OWNER COMMENT", "RETENTION_TIME", "CREATED"),
    "CATALOG_NAME SCHEMA_NAME SCHEMA_OWNER CREATED RETENTION_TIME COMMENT",
)
_TABLES = _ordered(
    _fields(
        "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME TABLE_OWNER TABLE_TYPE CLUSTERING_KEY "
        "ENABLE_SCHEMA_EVOLUTION ERROR_TABLE COMMENT",
        "ROW_COUNT BYTES RETENTION_TIME",
        "CREATED",
    ),
    "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME TABLE_OWNER TABLE_TYPE CLUSTERING_KEY ROW_COUNT BYTES "
    "CREATED RETENTION_TIME ENABLE_SCHEMA_EVOLUTION ERROR_TABLE COMMENT",
)
_COLUMNS = _ordered(
    _fields(
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
_TYPE_NAMES = {Kind.FIXED: "NUMBER", Kind.REAL: "FLOAT"}


def is_information(parts: tuple[str, ...]) -> bool:
    """Tell whether a table's name is that of a view of this schema."""
    return len(parts) == _PARTS and parts[1] == SCHEMA and parts[2] in _VIEWS


def information_frame(
    spark: SparkSession, database: Database, role: str, parts: tuple[str, ...]
) -> DataFrame:
    """Return a view's rows: what the role may see of one database.

    Raises:
        DatabaseNotFound: It does not exist, or the role has no privilege on it.
    """
    schema, rows_of = _VIEWS[parts[2]]
    with database.reading() as connection:
        sight = Sight(connection, role)
        seen = [each for each in databases_of(connection) if sight.sees_database(each)]
        if parts[0] not in {each.name for each in seen}:
            raise DatabaseNotFound(database=parts[0])
        rows = list(rows_of(connection, sight, parts[0]))
    return spark.createDataFrame(rows, schema)


def _databases(connection: Connection, sight: Sight, _: str) -> Iterable[tuple[object, ...]]:
    return [
        (each.name, each.owner, each.created_at, each.retention_days, each.comment)
        for each in databases_of(connection)
        if sight.sees_database(each)
    ]


def _schemata(connection: Connection, sight: Sight, name: str) -> Iterable[tuple[object, ...]]:
    return [
        (each.database, each.name, each.owner, each.created_at, each.retention_days, each.comment)
        for each in schemas_of(connection, name)
        if sight.sees_schema(each)
    ]


def _tables(connection: Connection, sight: Sight, name: str) -> Iterable[tuple[object, ...]]:
    return [
        (
            *_named(table),
            table.owner,
            "BASE TABLE",
            f"LINEAR({', '.join(table.cluster_by)})" if table.cluster_by else None,
            *_size(connection, table),
            table.created_at,
            table.retention_days,
            "YES" if table.schema_evolution else "NO",
            _error_table(connection, table),
            table.comment,
        )
        for table in tables_of(connection, name)
        if sight.sees_table(table)
    ]


def _columns(connection: Connection, sight: Sight, name: str) -> Iterable[tuple[object, ...]]:
    return [
        _column(table, column, position)
        for table in tables_of(connection, name)
        if sight.sees_table(table)
        for position, column in enumerate(table.schema.columns, start=1)
    ]


def _column(table: TableRecord, column: Column, position: int) -> tuple[object, ...]:
    fixed = column.kind is Kind.FIXED
    timed = column.scale if not fixed else None
    return (
        *_named(table),
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


def _named(table: TableRecord) -> tuple[str, str, str]:
    return table.name.database, table.name.schema, table.name.table


def _error_table(connection: Connection, table: TableRecord) -> str | None:
    found = error_table_of(connection, table)
    return None if found is None else str(found.name)


def _size(connection: Connection, table: TableRecord) -> tuple[int | None, int | None]:
    """Return rows and bytes, native files and chunks; nothing where the files cannot be asked."""
    waiting = backlog(connection, table.table_id)
    try:
        native = native_of(table)
    except (SnowmeltError, OSError):
        return None, None
    snapshot = None if native is None else native.metadata.current_snapshot()
    if native is None or snapshot is None or snapshot.summary is None:
        return waiting.rows, waiting.bytes
    size = int(snapshot.summary.additional_properties.get("total-files-size", "0"))
    return native.facts.total_rows + waiting.rows, size + waiting.bytes


_VIEWS: dict[
    str, tuple[StructType, Callable[[Connection, Sight, str], Iterable[tuple[object, ...]]]]
] = {
    "DATABASES": (_DATABASES, _databases),
    "SCHEMATA": (_SCHEMATA, _schemata),
    "TABLES": (_TABLES, _tables),
    "COLUMNS": (_COLUMNS, _columns),
}
