"""What maintenance did to native files.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "maintenance_runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("table_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("files_before", sa.BigInteger(), nullable=True),
        sa.Column("bytes_before", sa.BigInteger(), nullable=True),
        sa.Column("files_after", sa.BigInteger(), nullable=True),
        sa.Column("bytes_after", sa.BigInteger(), nullable=True),
        sa.Column("snapshots_expired", sa.BigInteger(), nullable=True),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name="pk_maintenance_runs"),
    )
    op.create_index(
        "ix_maintenance_runs_table_id_started_at", "maintenance_runs", ["table_id", "started_at"]
    )
    op.create_index(
        "ix_maintenance_runs_running",
        "maintenance_runs",
        ["table_id"],
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )


def downgrade() -> None:
    op.drop_table("maintenance_runs")
