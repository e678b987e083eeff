"""Tombstones of blobs are found by age, to be removed in the end.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_sightings_tombstoned_at",
        "sightings",
        ["tombstoned_at"],
        sqlite_where=sa.text("tombstoned_at IS NOT NULL"),
        postgresql_where=sa.text("tombstoned_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_sightings_tombstoned_at", "sightings")
