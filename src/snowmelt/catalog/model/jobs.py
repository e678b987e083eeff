"""Tables of loads, stream offsets, migrations and maintenance runs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, Table, Text

from snowmelt.catalog.model.base import (
    UtcTimestamp,
    metadata,
    partial_index,
)

# Rows are only added and closed; a committed load is closed in the transaction that swaps the
# pointer of its table.
loads = Table(
    "loads",
    metadata,
    Column("load_id", Text, primary_key=True),
    Column("table_id", BigInteger, nullable=False),
    Column("reject_table_id", BigInteger),
    Column("role", Text, nullable=False),
    Column("stream_name", Text),
    Column("statement", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at", UtcTimestamp, nullable=False),
    Column("ended_at", UtcTimestamp),
    Column("files", BigInteger),
    Column("rows", BigInteger),
    Column("rejects", BigInteger),
    Column("bytes", BigInteger),
    Column("snapshot_id", BigInteger),
    Column("first_error", Text),
    Column("message", Text),
    Index("ix_loads_table_id_started_at", "table_id", "started_at"),
    partial_index("ix_loads_running", "table_id", where="state = 'running'"),
)

# What each load did with each of its files; those that were loaded are not loaded again.
loaded_files = Table(
    "loaded_files",
    metadata,
    Column("load_id", ForeignKey("loads.load_id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("table_id", BigInteger, nullable=False),
    Column("path", Text, nullable=False),
    Column("size", BigInteger),
    Column("tag", Text),
    Column("state", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("rejects", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("first_error", Text),
    Index("ix_loaded_files_table_id_path", "table_id", "path"),
)

stream_offsets = Table(
    "stream_offsets",
    metadata,
    Column("stream", Text, primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("load_id", Text, nullable=False),
    Column("updated_at", UtcTimestamp, nullable=False),
)


# --- What was done to native files, and when: migrations and maintenance.

migrations = Table(
    "migrations",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("table_id", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("from_seq", BigInteger, nullable=False),
    Column("to_seq", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at", UtcTimestamp, nullable=False),
    Column("ended_at", UtcTimestamp),
    Column("rows", BigInteger),
    Column("files", BigInteger),
    Column("bytes", BigInteger),
    Column("snapshot_id", BigInteger),
    Column("message", Text),
    Index("ix_migrations_table_id_to_seq", "table_id", "to_seq"),
)

# Rows are only added and closed; a committed run is closed in the transaction that swaps the
# pointer of its table. Counts are of the files that the run replaced and of those it wrote.
maintenance_runs = Table(
    "maintenance_runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("table_id", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at", UtcTimestamp, nullable=False),
    Column("ended_at", UtcTimestamp),
    Column("rows", BigInteger),
    Column("files_before", BigInteger),
    Column("bytes_before", BigInteger),
    Column("files_after", BigInteger),
    Column("bytes_after", BigInteger),
    Column("snapshots_expired", BigInteger),
    Column("snapshot_id", BigInteger),
    Column("message", Text),
    Index("ix_maintenance_runs_table_id_started_at", "table_id", "started_at"),
    partial_index("ix_maintenance_runs_running", "table_id", where="state = 'running'"),
)


# --- What external functions need.
#
# Definitions are JSON as `functions.definition` writes it; what is looked for has columns as well.
