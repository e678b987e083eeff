"""Services of a deployment, which master key they share, and whose OAuth tokens they take.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("deployment", sa.Column("master_key_check", sa.Text(), nullable=True))
    op.create_table(
        "services",
        sa.Column("service_id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("process", sa.BigInteger(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("ahead_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("service_id", name="pk_services"),
    )
    op.create_table(
        "security_integrations",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_security_integrations"),
        sa.UniqueConstraint("issuer", name="uq_security_integrations_issuer"),
    )


def downgrade() -> None:
    op.drop_table("security_integrations")
    op.drop_table("services")
    op.drop_column("deployment", "master_key_check")
