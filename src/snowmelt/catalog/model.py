"""The tables of the catalog, as SQLAlchemy sees them; `versions/` holds how they came about.

Instants are whole microseconds since 1970, UTC: the same integer on every database. Names of
databases, schemas, tables and channels are internal names. Whatever may be dropped and created
again (namespaces, tables) keeps its dropped rows; a partial unique index guards the live ones.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    false,
    text,
)

if TYPE_CHECKING:
    from sqlalchemy import Dialect

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def microseconds(instant: dt.datetime) -> int:
    """Return an aware instant as it is stored; a naive one raises TypeError."""
    return (instant - _EPOCH) // _MICROSECOND


class Instant(TypeDecorator[dt.datetime]):
    """An aware instant, stored as microseconds since 1970."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: Dialect) -> int | None:
        """Return microseconds; a naive value raises TypeError rather than shift by a zone."""
        del dialect
        return None if value is None else microseconds(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> dt.datetime | None:
        """Return an aware instant in UTC."""
        del dialect
        return None if value is None else _EPOCH + value * _MICROSECOND


# SQLite numbers rows by itself only where the type says INTEGER, and never gives a number again
# only with AUTOINCREMENT; key ids and table ids must never be used twice.
Id = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _kept() -> list[Column[Any]]:
    """What dropping and restoring needs: days that hold for it alone, and until when it is kept."""
    return [
        Column("retention_days", Integer),
        Column("kept_until", Instant),
        Column("comment", Text),
    ]


def _in_parent() -> Column[bool]:
    """Whether it was dropped with what it lies in, and is restored with that."""
    return Column("dropped_with_parent", Boolean, nullable=False, server_default=false())


def _live(name: str, *columns: str) -> Index:
    alive = text("dropped_at IS NULL")
    return Index(name, *columns, unique=True, sqlite_where=alive, postgresql_where=alive)


deployment = Table(
    "deployment",
    metadata,
    Column("deployment_id", BigInteger, primary_key=True, autoincrement=False),
    Column("created_at", Instant, nullable=False),
    # Tells the master key without being of use for anything else.
    Column("master_key_check", Text),
)

# Running services, and those that ended without a word. Both instants are by the catalog's clock.
services = Table(
    "services",
    metadata,
    Column("service_id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("process", BigInteger, nullable=False),
    Column("url", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("seen_at", Instant, nullable=False),
    Column("ahead_ms", BigInteger, nullable=False),
)

# Definitions are JSON as `catalog.security_integrations` writes it.
security_integrations = Table(
    "security_integrations",
    metadata,
    Column("name", Text, primary_key=True),
    Column("issuer", Text, nullable=False, unique=True),
    Column("definition", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
)

databases = Table(
    "databases",
    metadata,
    Column("database_id", Id, primary_key=True),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("dropped_at", Instant),
    *_kept(),
    _live("uq_databases_live", "name"),
    sqlite_autoincrement=True,
)

schemas = Table(
    "schemas",
    metadata,
    Column("schema_id", Id, primary_key=True),
    Column("database_id", ForeignKey("databases.database_id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("dropped_at", Instant),
    *_kept(),
    _in_parent(),
    _live("uq_schemas_live", "database_id", "name"),
    sqlite_autoincrement=True,
)

# last_seq is the per-table commit sequence: it moves only under this row's lock, in the
# transaction that writes the chunks, so that a later number is never visible first.
tables = Table(
    "tables",
    metadata,
    Column("table_id", Id, primary_key=True),
    Column("schema_id", ForeignKey("schemas.schema_id"), nullable=False),
    Column("incarnation", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("cluster_by", Text, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("migrated_seq", BigInteger, nullable=False),
    Column("pointer", Text),
    Column("created_at", Instant, nullable=False),
    Column("dropped_at", Instant),
    Column("schema_evolution", Boolean, nullable=False, server_default=false()),
    *_kept(),
    _in_parent(),
    # From then on clean-up deletes it, and nothing brings it back.
    Column("purged_at", Instant),
    # Where its refused rows go; that table may be gone.
    Column("error_table_id", BigInteger),
    _live("uq_tables_live", "schema_id", "name"),
    sqlite_autoincrement=True,
)

schema_versions = Table(
    "schema_versions",
    metadata,
    Column("table_id", ForeignKey("tables.table_id"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("columns", Text, nullable=False),
    Column("since_seq", BigInteger, nullable=False),
    Column("created_at", Instant, nullable=False),
)

users = Table(
    "users",
    metadata,
    Column("user_id", Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("default_role", Text),
    Column("created_at", Instant, nullable=False),
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

roles = Table(
    "roles",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created_at", Instant, nullable=False),
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

# Channels of a dropped table stay until it is purged: UNDROP brings them back with their tokens.
channels = Table(
    "channels",
    metadata,
    Column("channel_id", Id, primary_key=True),
    Column("table_id", ForeignKey("tables.table_id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("client_sequencer", BigInteger, nullable=False),
    Column("row_sequencer", BigInteger, nullable=False),
    Column("offset_token", Text),
    Column("owner_user", Text, nullable=False),
    Column("client_prefix", Text),
    Column("opened_at", Instant, nullable=False),
    # The last committed chunk: enough to know a repeated registration after clean-up.
    Column("last_client_sequencer", BigInteger),
    Column("last_path", Text),
    Column("last_chunk_offset", BigInteger),
    Column("last_chunk_md5", Text),
    Column("last_key_id", BigInteger),
    Column("last_commit_at", Instant),
    Column("rows", BigInteger),
    Column("bytes", BigInteger),
    Index("uq_channels_table_id_name", "table_id", "name", unique=True),
    sqlite_autoincrement=True,
)

# The last client sequencer of channels that are gone, by names: a table of the same name that is
# created later goes on counting, so no old writer can ever match again.
channel_tombstones = Table(
    "channel_tombstones",
    metadata,
    Column("database_name", Text, primary_key=True),
    Column("schema_name", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("channel", Text, primary_key=True),
    Column("client_sequencer", BigInteger, nullable=False),
    Column("dropped_at", Instant, nullable=False),
)

# Append-only. An `opened` row is also the stored answer to that open request.
channel_history = Table(
    "channel_history",
    metadata,
    Column("history_id", Id, primary_key=True),
    Column("table_id", BigInteger, nullable=False),
    Column("channel", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("client_sequencer", BigInteger, nullable=False),
    Column("row_sequencer", BigInteger, nullable=False),
    Column("offset_token", Text),
    Column("user", Text),
    Column("client_prefix", Text),
    Column("request_id", Text),
    Column("previous_user", Text),
    Column("previous_owner", Text),
    Index(
        "uq_channel_history_request",
        "client_prefix",
        "request_id",
        "table_id",
        "channel",
        unique=True,
    ),
    Index("ix_channel_history_table_id_channel", "table_id", "channel"),
    sqlite_autoincrement=True,
)

client_prefixes = Table(
    "client_prefixes",
    metadata,
    Column("prefix", Text, primary_key=True),
    Column("user", Text, nullable=False),
    Column("issued_at", Instant, nullable=False),
)

table_keys = Table(
    "table_keys",
    metadata,
    Column("table_id", ForeignKey("tables.table_id"), primary_key=True, autoincrement=False),
    Column("wrapped_key", LargeBinary, nullable=False),
)

data_keys = Table(
    "data_keys",
    metadata,
    Column("key_id", Id, primary_key=True),
    Column("table_id", ForeignKey("tables.table_id"), nullable=False),
    Column("user", Text, nullable=False),
    Index("uq_data_keys_table_id_user", "table_id", "user", unique=True),
    sqlite_autoincrement=True,
)

# `channels` is JSON: [[name, client sequencer, row sequencer, start token, end token], …]. It is
# read only to recognise a repeated registration and by history, never searched, and a row of its
# own for each channel would multiply what a registration writes.
chunks = Table(
    "chunks",
    metadata,
    Column("table_id", ForeignKey("tables.table_id"), primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("prefix", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("md5", Text, nullable=False),
    Column("key_id", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("first_insert_ms", BigInteger),
    Column("last_insert_ms", BigInteger),
    Column("registered_at", Instant, nullable=False),
    Column("retired_at", Instant),
    Column("quarantine_reason", Text),
    Column("channels", Text, nullable=False),
    Column("statistics", LargeBinary, nullable=False),
    Index("uq_chunks_path_offset", "path", "offset", unique=True),
    Index(
        "ix_chunks_retired",
        "path",
        sqlite_where=text("retired_at IS NOT NULL"),
        postgresql_where=text("retired_at IS NOT NULL"),
    ),
    Index(
        "ix_chunks_quarantined",
        "table_id",
        "seq",
        sqlite_where=text("quarantine_reason IS NOT NULL"),
        postgresql_where=text("quarantine_reason IS NOT NULL"),
    ),
)

# Blobs the service has seen without accepting them, or whose rows are forgotten. A tombstone comes
# before the deletion of an unregistered object, and keeps its path from being registered.
sightings = Table(
    "sightings",
    metadata,
    Column("path", Text, primary_key=True),
    Column("prefix", Text, nullable=False),
    Column("first_seen", Instant, nullable=False),
    Column("tombstoned_at", Instant),
    Index(
        "ix_sightings_first_seen",
        "first_seen",
        sqlite_where=text("tombstoned_at IS NULL"),
        postgresql_where=text("tombstoned_at IS NULL"),
    ),
    Index(
        "ix_sightings_tombstoned_at",
        "tombstoned_at",
        sqlite_where=text("tombstoned_at IS NOT NULL"),
        postgresql_where=text("tombstoned_at IS NOT NULL"),
    ),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("ttl_ms", BigInteger, nullable=False),
    Column("expires_at", Instant),
)

migrations = Table(
    "migrations",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("table_id", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("from_seq", BigInteger, nullable=False),
    Column("to_seq", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("rows", BigInteger),
    Column("files", BigInteger),
    Column("bytes", BigInteger),
    Column("snapshot_id", BigInteger),
    Column("message", Text),
    Index("ix_migrations_table_id_to_seq", "table_id", "to_seq"),
)

# --- the S3 endpoint: keys, buckets, and the index of the objects that lie in local files

# Secrets are sealed with the master key: the signature of a request is made from them.
access_keys = Table(
    "access_keys",
    metadata,
    Column("access_key_id", Text, primary_key=True),
    Column("user_id", ForeignKey("users.user_id"), nullable=False),
    Column("sealed_secret", LargeBinary, nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_access_keys_user_id", "user_id"),
)

# A bucket with a backend is a place elsewhere, whose own listing is the truth.
buckets = Table(
    "buckets",
    metadata,
    Column("bucket_id", Id, primary_key=True),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("backend", Text),
    Column("select_dialect", Text),
    Column("created_at", Instant, nullable=False),
    Column("dropped_at", Instant),
    _live("uq_buckets_live", "name"),
    sqlite_autoincrement=True,
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

# Keys are bytes: every database then compares them as S3 lists them.
objects = Table(
    "objects",
    metadata,
    Column("bucket_id", ForeignKey("buckets.bucket_id"), primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("etag", Text, nullable=False),
    Column("modified_at", Instant, nullable=False),
    Column("headers", Text, nullable=False),
    Column("checksum", Text),
    Column("file", Text, nullable=False, unique=True),
)

uploads = Table(
    "uploads",
    metadata,
    Column("upload_id", Text, primary_key=True),
    Column("bucket_id", ForeignKey("buckets.bucket_id"), nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("user", Text, nullable=False),
    Column("initiated_at", Instant, nullable=False),
    Column("headers", Text, nullable=False),
    Column("checksum", Text),
    Index("ix_uploads_bucket_id_key", "bucket_id", "key", "upload_id"),
)

upload_parts = Table(
    "upload_parts",
    metadata,
    Column("upload_id", ForeignKey("uploads.upload_id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("size", BigInteger, nullable=False),
    Column("etag", Text, nullable=False),
    Column("modified_at", Instant, nullable=False),
    Column("checksum", Text),
    Column("file", Text, nullable=False, unique=True),
)

# Files that no object needs any more; a row goes when its file is gone.
dropped_files = Table(
    "dropped_files",
    metadata,
    Column("file", Text, primary_key=True),
    Column("dropped_at", Instant, nullable=False),
)
