"""Pipes, and what the row API keeps of channels and requests.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "pipes",
        sa.Column("pipe_id", _ID, nullable=False),
        sa.Column("schema_id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("dropped_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["schema_id"], ["schemas.schema_id"], name="fk_pipes_schema_id_schemas"
        ),
        sa.PrimaryKeyConstraint("pipe_id", name="pk_pipes"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_pipes_live",
        "pipes",
        ["schema_id", "name"],
        unique=True,
        sqlite_where=sa.text("dropped_at IS NULL"),
        postgresql_where=sa.text("dropped_at IS NULL"),
    )
    op.create_table(
        "row_channels",
        sa.Column("channel_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("rows_parsed", sa.BigInteger(), nullable=False),
        sa.Column("rows_inserted", sa.BigInteger(), nullable=False),
        sa.Column("rows_error", sa.BigInteger(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("last_error_at", sa.BigInteger(), nullable=True),
        sa.Column("last_error_offset", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("channel_id", name="pk_row_channels"),
    )
    op.create_table(
        "row_requests",
        sa.Column("table_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("table_id", "request_id", name="pk_row_requests"),
    )
    op.create_index("ix_row_requests_at", "row_requests", ["at"])


def downgrade() -> None:
    op.drop_table("row_requests")
    op.drop_table("row_channels")
    op.drop_table("pipes")
