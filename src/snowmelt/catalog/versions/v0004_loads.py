"""Libraries of user code, loads, the files that they loaded, and offsets of streams.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "libraries",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_libraries"),
    )
    op.create_table(
        "load_functions",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("factory", sa.Text(), nullable=False),
        sa.Column("library", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["library"], ["libraries.name"], name="fk_load_functions_library_libraries"
        ),
        sa.PrimaryKeyConstraint("kind", "name", name="pk_load_functions"),
    )
    _create_loads()
    op.create_table(
        "loaded_files",
        sa.Column("load_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("table_id", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("tag", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("rejects", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("first_error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["load_id"], ["loads.load_id"], name="fk_loaded_files_load_id_loads"
        ),
        sa.PrimaryKeyConstraint("load_id", "number", name="pk_loaded_files"),
    )
    op.create_index("ix_loaded_files_table_id_path", "loaded_files", ["table_id", "path"])
    op.create_table(
        "stream_offsets",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("load_id", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("stream", "topic", "partition", name="pk_stream_offsets"),
    )


def _create_loads() -> None:
    op.create_table(
        "loads",
        sa.Column("load_id", sa.Text(), nullable=False),
        sa.Column("table_id", sa.BigInteger(), nullable=False),
        sa.Column("reject_table_id", sa.BigInteger(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("stream_name", sa.Text(), nullable=True),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("files", sa.BigInteger(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("rejects", sa.BigInteger(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("first_error", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("load_id", name="pk_loads"),
    )
    op.create_index("ix_loads_table_id_started_at", "loads", ["table_id", "started_at"])
    op.create_index(
        "ix_loads_running",
        "loads",
        ["table_id"],
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )


def downgrade() -> None:
    for table in ("stream_offsets", "loaded_files", "loads", "load_functions", "libraries"):
        op.drop_table(table)
