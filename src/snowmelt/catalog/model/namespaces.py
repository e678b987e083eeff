"""Tables of databases, schemas, tables, and the versions of a table's columns."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Integer, Table, Text, false

from snowmelt.catalog.model.base import (
    AutoincrementId,
    UtcTimestamp,
    dropped_with_parent_column,
    metadata,
    retention_columns,
    unique_live_index,
)

databases = Table(
    "databases",
    metadata,
    Column("database_id", AutoincrementId, primary_key=True),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("dropped_at", UtcTimestamp),
    *retention_columns(),
    unique_live_index("uq_databases_live", "name"),
    sqlite_autoincrement=True,
)

schemas = Table(
    "schemas",
    metadata,
    Column("schema_id", AutoincrementId, primary_key=True),
    Column("database_id", ForeignKey("databases.database_id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("dropped_at", UtcTimestamp),
    *retention_columns(),
    dropped_with_parent_column(),
    unique_live_index("uq_schemas_live", "database_id", "name"),
    sqlite_autoincrement=True,
)

# last_seq is the per-table commit sequence: it moves only under this row's lock, in the
# transaction that writes the chunks, so that a later number is never visible first.
tables = Table(
    "tables",
    metadata,
    Column("table_id", AutoincrementId, primary_key=True),
    Column("schema_id", ForeignKey("schemas.schema_id"), nullable=False),
    Column("incarnation", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("cluster_by", Text, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("migrated_seq", BigInteger, nullable=False),
    Column("pointer", Text),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("dropped_at", UtcTimestamp),
    Column("schema_evolution", Boolean, nullable=False, server_default=false()),
    *retention_columns(),
    dropped_with_parent_column(),
    # From then on clean-up deletes it, and nothing brings it back.
    Column("purged_at", UtcTimestamp),
    # Where its refused rows go; that table may be gone.
    Column("error_table_id", BigInteger),
    unique_live_index("uq_tables_live", "schema_id", "name"),
    sqlite_autoincrement=True,
)

schema_versions = Table(
    "schema_versions",
    metadata,
    Column("table_id", ForeignKey("tables.table_id"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("columns", Text, nullable=False),
    Column("since_seq", BigInteger, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
)
