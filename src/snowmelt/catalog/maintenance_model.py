"""The table of the catalog that maintenance needs: what was done to native files, and when."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table, Text, text

from snowmelt.catalog.model import Instant, metadata

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
    Index(
        "ix_maintenance_runs_running",
        "table_id",
        sqlite_where=text("state = 'running'"),
        postgresql_where=text("state = 'running'"),
    ),
)
