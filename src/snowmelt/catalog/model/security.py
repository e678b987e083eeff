"""Tables of users, public keys, access keys, security integrations, roles and grants."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, LargeBinary, Table, Text

from snowmelt.catalog.model.base import AutoincrementId, UtcTimestamp, metadata

users = Table(
    "users",
    metadata,
    Column("user_id", AutoincrementId, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("default_role", Text),
    Column("created_at", UtcTimestamp, nullable=False),
    sqlite_autoincrement=True,
)

public_keys = Table(
    "public_keys",
    metadata,
    Column("user_id", ForeignKey("users.user_id"), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("public_key", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
)

# Secrets are sealed with the master key: the signature of a request is made from them.
access_keys = Table(
    "access_keys",
    metadata,
    Column("access_key_id", Text, primary_key=True),
    Column("user_id", ForeignKey("users.user_id"), nullable=False),
    Column("sealed_secret", LargeBinary, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Index("ix_access_keys_user_id", "user_id"),
)

# Definitions are JSON as `catalog.security.oauth_integrations` writes it.
security_integrations = Table(
    "security_integrations",
    metadata,
    Column("name", Text, primary_key=True),
    Column("issuer", Text, nullable=False, unique=True),
    Column("definition", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
)

roles = Table(
    "roles",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created_at", UtcTimestamp, nullable=False),
)

role_members = Table(
    "role_members",
    metadata,
    Column("user_id", ForeignKey("users.user_id"), primary_key=True),
    Column("role", ForeignKey("roles.name"), primary_key=True),
)

grants = Table(
    "grants",
    metadata,
    Column("role", ForeignKey("roles.name"), primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("object_id", BigInteger, primary_key=True, autoincrement=False),
    Column("privilege", Text, primary_key=True),
)

# Privileges on objects of a kind that are yet to be created in a schema or database.
future_grants = Table(
    "future_grants",
    metadata,
    Column("role", ForeignKey("roles.name"), primary_key=True),
    Column("scope_kind", Text, primary_key=True),
    Column("scope_id", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, primary_key=True),
    Column("privilege", Text, primary_key=True),
)

# Privileges on the objects whose keys begin with a prefix; those on whole buckets are in `grants`.
prefix_grants = Table(
    "prefix_grants",
    metadata,
    Column("role", ForeignKey("roles.name"), primary_key=True),
    Column("bucket_id", ForeignKey("buckets.bucket_id"), primary_key=True),
    Column("prefix", LargeBinary, primary_key=True),
    Column("privilege", Text, primary_key=True),
)
