"""What was done to native files, and when: migrations and maintenance."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table, Text

from snowmelt.catalog.model.declaring import Instant, metadata, partial

migrations = Table(
    "migrations",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("table_id", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("from_seq", BigInteger, nullable=False),
    Column("to_seq", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant),
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
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("rows", BigInteger),
    Column("files_before", BigInteger),
    Column("bytes_before", BigInteger),
    Column("files_after", BigInteger),
    Column("bytes_after", BigInteger),
    Column("snapshots_expired", BigInteger),
    Column("snapshot_id", BigInteger),
    Column("message", Text),
    Index("ix_maintenance_runs_table_id_started_at", "table_id", "started_at"),
    partial("ix_maintenance_runs_running", "table_id", where="state = 'running'"),
)
