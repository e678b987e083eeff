"""External functions, the integrations that they call through, and their translators.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_ALIVE = sa.text("dropped_at IS NULL")


def upgrade() -> None:
    _create(
        "api_integrations",
        "integration_id",
        ["name"],
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
    )
    _create(
        "external_functions",
        "function_id",
        ["schema_id", "name", "most_arguments"],
        sa.Column("schema_id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("least_arguments", sa.Integer(), nullable=False),
        sa.Column("most_arguments", sa.Integer(), nullable=False),
        sa.Column("integration", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        _in_schema("external_functions"),
    )
    _create(
        "translators",
        "translator_id",
        ["schema_id", "name"],
        sa.Column("schema_id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        _in_schema("translators"),
    )


def _create(
    table: str, key: str, unique: list[str], *parts: sa.Column[Any] | sa.ForeignKeyConstraint
) -> None:
    op.create_table(
        table,
        sa.Column(key, _ID, nullable=False),
        *parts,
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("dropped_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint(key, name=f"pk_{table}"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        f"uq_{table}_live",
        table,
        unique,
        unique=True,
        sqlite_where=_ALIVE,
        postgresql_where=_ALIVE,
    )


def _in_schema(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["schema_id"], ["schemas.schema_id"], name=f"fk_{table}_schema_id_schemas"
    )


def downgrade() -> None:
    for table in ("translators", "external_functions", "api_integrations"):
        op.drop_table(table)
