"""First form of the catalog.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "channel_history",
        sa.Column(
            "history_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("table_id", sa.BigInteger(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("client_sequencer", sa.BigInteger(), nullable=False),
        sa.Column("row_sequencer", sa.BigInteger(), nullable=False),
        sa.Column("offset_token", sa.Text(), nullable=True),
        sa.Column("user", sa.Text(), nullable=True),
        sa.Column("client_prefix", sa.Text(), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("previous_user", sa.Text(), nullable=True),
        sa.Column("previous_owner", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("history_id", name="pk_channel_history"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_channel_history_table_id_channel",
        "channel_history",
        ["table_id", "channel"],
        unique=False,
    )
    op.create_index(
        "uq_channel_history_request",
        "channel_history",
        ["client_prefix", "request_id", "table_id", "channel"],
        unique=True,
    )
    op.create_table(
        "channel_tombstones",
        sa.Column("database_name", sa.Text(), nullable=False),
        sa.Column("schema_name", sa.Text(), nullable=False),
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("client_sequencer", sa.BigInteger(), nullable=False),
        sa.Column("dropped_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "database_name", "schema_name", "table_name", "channel", name="pk_channel_tombstones"
        ),
    )
    op.create_table(
        "client_prefixes",
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("prefix", name="pk_client_prefixes"),
    )
    op.create_table(
        "databases",
        sa.Column(
            "database_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("dropped_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("database_id", name="pk_databases"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_databases_live",
        "databases",
        ["name"],
        unique=True,
        sqlite_where=sa.text("dropped_at IS NULL"),
        postgresql_where=sa.text("dropped_at IS NULL"),
    )
    op.create_table(
        "deployment",
        sa.Column("deployment_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("deployment_id", name="pk_deployment"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("ttl_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "migrations",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("table_id", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("from_seq", sa.BigInteger(), nullable=False),
        sa.Column("to_seq", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("files", sa.BigInteger(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name="pk_migrations"),
    )
    op.create_index(
        "ix_migrations_table_id_to_seq", "migrations", ["table_id", "to_seq"], unique=False
    )
    op.create_table(
        "roles",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_roles"),
    )
    op.create_table(
        "sightings",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("first_seen", sa.BigInteger(), nullable=False),
        sa.Column("tombstoned_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("path", name="pk_sightings"),
    )
    op.create_index(
        "ix_sightings_first_seen",
        "sightings",
        ["first_seen"],
        unique=False,
        sqlite_where=sa.text("tombstoned_at IS NULL"),
        postgresql_where=sa.text("tombstoned_at IS NULL"),
    )
    op.create_table(
        "users",
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("default_role", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("user_id", name="pk_users"),
        sa.UniqueConstraint("name", name="uq_users_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "grants",
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("object_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("privilege", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["role"], ["roles.name"], name="fk_grants_role_roles"),
        sa.PrimaryKeyConstraint("role", "kind", "object_id", "privilege", name="pk_grants"),
    )
    op.create_table(
        "public_keys",
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.user_id"], name="fk_public_keys_user_id_users"
        ),
        sa.PrimaryKeyConstraint("user_id", "slot", name="pk_public_keys"),
    )
    op.create_table(
        "role_members",
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["role"], ["roles.name"], name="fk_role_members_role_roles"),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.user_id"], name="fk_role_members_user_id_users"
        ),
        sa.PrimaryKeyConstraint("user_id", "role", name="pk_role_members"),
    )
    op.create_table(
        "schemas",
        sa.Column(
            "schema_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "database_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("dropped_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["database_id"], ["databases.database_id"], name="fk_schemas_database_id_databases"
        ),
        sa.PrimaryKeyConstraint("schema_id", name="pk_schemas"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_schemas_live",
        "schemas",
        ["database_id", "name"],
        unique=True,
        sqlite_where=sa.text("dropped_at IS NULL"),
        postgresql_where=sa.text("dropped_at IS NULL"),
    )
    op.create_table(
        "tables",
        sa.Column("table_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "schema_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("incarnation", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("cluster_by", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("migrated_seq", sa.BigInteger(), nullable=False),
        sa.Column("pointer", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("dropped_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["schema_id"], ["schemas.schema_id"], name="fk_tables_schema_id_schemas"
        ),
        sa.PrimaryKeyConstraint("table_id", name="pk_tables"),
        sa.UniqueConstraint("incarnation", name="uq_tables_incarnation"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_tables_live",
        "tables",
        ["schema_id", "name"],
        unique=True,
        sqlite_where=sa.text("dropped_at IS NULL"),
        postgresql_where=sa.text("dropped_at IS NULL"),
    )
    op.create_table(
        "channels",
        sa.Column(
            "channel_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("table_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("client_sequencer", sa.BigInteger(), nullable=False),
        sa.Column("row_sequencer", sa.BigInteger(), nullable=False),
        sa.Column("offset_token", sa.Text(), nullable=True),
        sa.Column("owner_user", sa.Text(), nullable=False),
        sa.Column("client_prefix", sa.Text(), nullable=True),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("last_client_sequencer", sa.BigInteger(), nullable=True),
        sa.Column("last_path", sa.Text(), nullable=True),
        sa.Column("last_chunk_offset", sa.BigInteger(), nullable=True),
        sa.Column("last_chunk_md5", sa.Text(), nullable=True),
        sa.Column("last_key_id", sa.BigInteger(), nullable=True),
        sa.Column("last_commit_at", sa.BigInteger(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["table_id"], ["tables.table_id"], name="fk_channels_table_id_tables"
        ),
        sa.PrimaryKeyConstraint("channel_id", name="pk_channels"),
        sqlite_autoincrement=True,
    )
    op.create_index("uq_channels_table_id_name", "channels", ["table_id", "name"], unique=True)
    op.create_table(
        "chunks",
        sa.Column(
            "table_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("md5", sa.Text(), nullable=False),
        sa.Column("key_id", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("first_insert_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_insert_ms", sa.BigInteger(), nullable=True),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.Column("retired_at", sa.BigInteger(), nullable=True),
        sa.Column("quarantine_reason", sa.Text(), nullable=True),
        sa.Column("channels", sa.Text(), nullable=False),
        sa.Column("statistics", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["table_id"], ["tables.table_id"], name="fk_chunks_table_id_tables"
        ),
        sa.PrimaryKeyConstraint("table_id", "seq", name="pk_chunks"),
    )
    op.create_index(
        "ix_chunks_quarantined",
        "chunks",
        ["table_id", "seq"],
        unique=False,
        sqlite_where=sa.text("quarantine_reason IS NOT NULL"),
        postgresql_where=sa.text("quarantine_reason IS NOT NULL"),
    )
    op.create_index(
        "ix_chunks_retired",
        "chunks",
        ["path"],
        unique=False,
        sqlite_where=sa.text("retired_at IS NOT NULL"),
        postgresql_where=sa.text("retired_at IS NOT NULL"),
    )
    op.create_index("uq_chunks_path_offset", "chunks", ["path", "offset"], unique=True)
    op.create_table(
        "data_keys",
        sa.Column("key_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("table_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["table_id"], ["tables.table_id"], name="fk_data_keys_table_id_tables"
        ),
        sa.PrimaryKeyConstraint("key_id", name="pk_data_keys"),
        sqlite_autoincrement=True,
    )
    op.create_index("uq_data_keys_table_id_user", "data_keys", ["table_id", "user"], unique=True)
    op.create_table(
        "schema_versions",
        sa.Column("table_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("columns", sa.Text(), nullable=False),
        sa.Column("since_seq", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["table_id"], ["tables.table_id"], name="fk_schema_versions_table_id_tables"
        ),
        sa.PrimaryKeyConstraint("table_id", "version", name="pk_schema_versions"),
    )
    op.create_table(
        "table_keys",
        sa.Column(
            "table_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["table_id"], ["tables.table_id"], name="fk_table_keys_table_id_tables"
        ),
        sa.PrimaryKeyConstraint("table_id", name="pk_table_keys"),
    )
