"""How long what is dropped is kept, comments, and privileges on objects that are yet to come.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_KEPT = ("databases", "schemas", "tables")
_INSIDE = ("schemas", "tables", "external_functions", "translators")


def upgrade() -> None:
    for table in _KEPT:
        op.add_column(table, sa.Column("retention_days", sa.Integer(), nullable=True))
        op.add_column(table, sa.Column("kept_until", sa.BigInteger(), nullable=True))
        op.add_column(table, sa.Column("comment", sa.Text(), nullable=True))
    for table in _INSIDE:
        op.add_column(
            table,
            sa.Column(
                "dropped_with_parent", sa.Boolean(), nullable=False, server_default=sa.false()
            ),
        )
    op.add_column("tables", sa.Column("purged_at", sa.BigInteger(), nullable=True))
    op.create_table(
        "future_grants",
        sa.Column("role", sa.Text(), sa.ForeignKey("roles.name"), nullable=False),
        sa.Column("scope_kind", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("privilege", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "role", "scope_kind", "scope_id", "kind", "privilege", name="pk_future_grants"
        ),
    )


def downgrade() -> None:
    op.drop_table("future_grants")
    op.drop_column("tables", "purged_at")
    for table in _INSIDE:
        op.drop_column(table, "dropped_with_parent")
    for table in _KEPT:
        for column in ("comment", "kept_until", "retention_days"):
            op.drop_column(table, column)
