"""Access keys, buckets and objects of the S3 endpoint.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "buckets",
        sa.Column(
            "bucket_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=True),
        sa.Column("select_dialect", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("dropped_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("bucket_id", name="pk_buckets"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_buckets_live",
        "buckets",
        ["name"],
        unique=True,
        sqlite_where=sa.text("dropped_at IS NULL"),
        postgresql_where=sa.text("dropped_at IS NULL"),
    )
    op.create_table(
        "dropped_files",
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("dropped_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("file", name="pk_dropped_files"),
    )
    op.create_table(
        "access_keys",
        sa.Column("access_key_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("sealed_secret", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.user_id"], name="fk_access_keys_user_id_users"
        ),
        sa.PrimaryKeyConstraint("access_key_id", name="pk_access_keys"),
    )
    op.create_index("ix_access_keys_user_id", "access_keys", ["user_id"], unique=False)
    op.create_table(
        "objects",
        sa.Column(
            "bucket_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=False),
        sa.Column("modified_at", sa.BigInteger(), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=True),
        sa.Column("file", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["bucket_id"], ["buckets.bucket_id"], name="fk_objects_bucket_id_buckets"
        ),
        sa.PrimaryKeyConstraint("bucket_id", "key", name="pk_objects"),
        sa.UniqueConstraint("file", name="uq_objects_file"),
    )
    op.create_table(
        "prefix_grants",
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column(
            "bucket_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("prefix", sa.LargeBinary(), nullable=False),
        sa.Column("privilege", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["bucket_id"], ["buckets.bucket_id"], name="fk_prefix_grants_bucket_id_buckets"
        ),
        sa.ForeignKeyConstraint(["role"], ["roles.name"], name="fk_prefix_grants_role_roles"),
        sa.PrimaryKeyConstraint(
            "role", "bucket_id", "prefix", "privilege", name="pk_prefix_grants"
        ),
    )
    op.create_table(
        "uploads",
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column(
            "bucket_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("initiated_at", sa.BigInteger(), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["bucket_id"], ["buckets.bucket_id"], name="fk_uploads_bucket_id_buckets"
        ),
        sa.PrimaryKeyConstraint("upload_id", name="pk_uploads"),
    )
    op.create_index(
        "ix_uploads_bucket_id_key", "uploads", ["bucket_id", "key", "upload_id"], unique=False
    )
    op.create_table(
        "upload_parts",
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=False),
        sa.Column("modified_at", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=True),
        sa.Column("file", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.upload_id"], name="fk_upload_parts_upload_id_uploads"
        ),
        sa.PrimaryKeyConstraint("upload_id", "number", name="pk_upload_parts"),
        sa.UniqueConstraint("file", name="uq_upload_parts_file"),
    )
