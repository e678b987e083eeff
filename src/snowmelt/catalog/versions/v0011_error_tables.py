"""Where rows go that a table refuses.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tables", sa.Column("error_table_id", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("tables", "error_table_id")
