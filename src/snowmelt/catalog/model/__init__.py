"""SQLAlchemy tables of the catalog, record types and constants. Imports no other catalog package.

`records`: kinds of objects, their privileges, and record types of several packages.

`db.database` creates these tables. Timestamps are integers: microseconds since 1970 in UTC. Names
of databases, schemas, tables and channels are internal names. Objects that can be dropped and
created again keep their dropped rows; a partial unique index covers the live rows.

Columns are written as `name type`. Types are `id` (the primary key, numbered by the database), `text`,
`int`, `bigint`, `bytes`, `time`, `flag` (false by default), or the referenced column. `!` means part
of the primary key, `?` nullable.
"""

from __future__ import annotations

import datetime as dt
import functools
from typing import Any

import sqlalchemy as sa

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def to_microseconds(timestamp: dt.datetime) -> int:
    """Convert an aware datetime to its stored form. Raise TypeError for a naive datetime."""
    return (timestamp - _EPOCH) // _MICROSECOND


def from_microseconds(stored: int) -> dt.datetime:
    """Convert a stored timestamp to an aware datetime in UTC."""
    return _EPOCH + stored * _MICROSECOND


class UtcTimestamp(sa.TypeDecorator[dt.datetime]):
    """Column type: an aware datetime, stored as microseconds since 1970."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: sa.Dialect) -> int | None:
        """Return microseconds. Raise TypeError for a naive value."""
        del dialect
        return None if value is None else to_microseconds(value)

    def process_result_value(self, value: int | None, dialect: sa.Dialect) -> dt.datetime | None:
        """Return an aware datetime in UTC."""
        del dialect
        return None if value is None else from_microseconds(value)


metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_COLUMN_TYPES: dict[str, Any] = {
    # SQLite assigns row numbers only if the type is INTEGER, and avoids reuse only with
    # AUTOINCREMENT. IDs of keys and tables must never be reused.
    "id": sa.BigInteger().with_variant(sa.Integer, "sqlite"),
    "text": sa.Text,
    "int": sa.Integer,
    "bigint": sa.BigInteger,
    "bytes": sa.LargeBinary,
    "time": UtcTimestamp,
    "flag": sa.Boolean,
}
# Columns for DROP and UNDROP: retention time in days, and the end of the retention of a dropped
# object.
_RETENTION = "retention_days int?, kept_until time?, comment text?"
# True if the object was dropped with its schema or database. It is then restored with it.
_WITH_PARENT = "dropped_with_parent flag"


def _define_table(name: str, columns: str, *constraints: sa.schema.SchemaItem) -> sa.Table:
    made: list[sa.Column[Any]] = []
    for column in columns.split(","):
        column_name, kind = column.split()
        word = kind.rstrip("!?")
        is_id, is_key = word == "id", kind.endswith("!")
        made.append(
            sa.Column(
                column_name,
                _COLUMN_TYPES[word] if word in _COLUMN_TYPES else sa.ForeignKey(word),
                primary_key=is_id or is_key,
                autoincrement=is_id,
                nullable=kind.endswith("?"),
                server_default=sa.false() if word == "flag" else None,
            )
        )
    has_id = " id" in columns.partition(",")[0]
    return sa.Table(name, metadata, *made, *constraints, sqlite_autoincrement=has_id)


def _partial_index(name: str, *columns: str, where: str, unique: bool = False) -> sa.Index:
    """Create an index of the rows that satisfy an SQL condition."""
    condition = sa.text(where)
    return sa.Index(
        name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition
    )


def _unique_live_index(name: str, *columns: str) -> sa.Index:
    """Create a unique index of the rows that are not dropped."""
    return _partial_index(name, *columns, where="dropped_at IS NULL", unique=True)


# The deployment. `master_key_check` identifies the master key and reveals nothing about it. New
# client sequencers are above `sequencer_floor`, which the restoration of a backup sets. `history`
# counts how often another site's history has replaced the whole catalog; NULL means never.
deployment = _define_table(
    "deployment",
    "deployment_id bigint!, created_at time, master_key_check text?, sequencer_floor bigint?,"
    "history bigint?",
)
# Running and crashed services. Timestamps are by the catalog's clock.
services = _define_table(
    "services",
    "service_id text!, host text, process bigint, url text, version text, started_at time,"
    "seen_at time, ahead_ms bigint",
)
leases = _define_table(
    "leases", "name text!, owner text, epoch bigint, ttl_ms bigint, expires_at time?"
)

# Users, roles and privileges.
users = _define_table(
    "users",
    "user_id id, name text, default_role text?, created_at time",
    sa.UniqueConstraint("name"),
)
public_keys = _define_table(
    "public_keys", "user_id users.user_id!, slot int!, public_key text, fingerprint text"
)
# Secrets are encrypted with the master key, not hashed, because verifying a signature needs the
# plain secret.
access_keys = _define_table(
    "access_keys",
    "access_key_id text!, user_id users.user_id, sealed_secret bytes, created_at time",
    sa.Index("ix_access_keys_user_id", "user_id"),
)
# Definitions are JSON, written by `catalog.security.oauth_integrations`.
security_integrations = _define_table(
    "security_integrations",
    "name text!, issuer text, definition text, owner text, created_at time",
    sa.UniqueConstraint("issuer"),
)
roles = _define_table("roles", "name text!, created_at time")
role_members = _define_table("role_members", "user_id users.user_id!, role roles.name!")
grants = _define_table("grants", "role roles.name!, kind text!, object_id bigint!, privilege text!")
# Privileges on future objects of a kind in a schema or database.
future_grants = _define_table(
    "future_grants",
    "role roles.name!, scope_kind text!, scope_id bigint!, kind text!, privilege text!",
)
# Privileges on objects by prefix of their keys; those on whole buckets are in `grants`.
prefix_grants = _define_table(
    "prefix_grants",
    "role roles.name!, bucket_id buckets.bucket_id!, prefix bytes!, privilege text!",
)

# Databases, schemas and tables.
databases = _define_table(
    "databases",
    f"database_id id, name text, owner text, created_at time, dropped_at time?, {_RETENTION}",
    _unique_live_index("uq_databases_live", "name"),
)
schemas = _define_table(
    "schemas",
    "schema_id id, database_id databases.database_id, name text, owner text, created_at time,"
    f"dropped_at time?, {_RETENTION}, {_WITH_PARENT}",
    _unique_live_index("uq_schemas_live", "database_id", "name"),
)
# `last_seq` is the sequence of the table's last commit. It changes only under the lock of this row,
# in the transaction that inserts the chunks, so chunks become visible in sequence order. After
# `purged_at` garbage collection deletes the table, and UNDROP cannot restore it. `error_table_id`
# is the table of its rejected rows, which may have been deleted. `engine_properties` is a JSON
# object of properties that other engines have set. `lineage_from_seq` is the sequence from which
# `chunk_ledger` is complete. It is NULL in a table of an older version until its next commit.
# `freshness_s` is the maximum expected time between two commits in seconds. `folder_name` is a JSON
# array of the names of database, schema and table before the first rename, or NULL.
tables = _define_table(
    "tables",
    "table_id id, schema_id schemas.schema_id, incarnation text, name text, owner text,"
    "cluster_by text, schema_version int, last_seq bigint, migrated_seq bigint, pointer text?,"
    "created_at time, dropped_at time?, schema_evolution flag,"
    f"{_RETENTION}, {_WITH_PARENT}, purged_at time?, error_table_id bigint?,"
    "hides_fresh_rows flag, engine_properties text?, lineage_from_seq bigint?, freshness_s bigint?,"
    "folder_name text?",
    sa.UniqueConstraint("incarnation"),
    _unique_live_index("uq_tables_live", "schema_id", "name"),
)
schema_versions = _define_table(
    "schema_versions",
    "table_id tables.table_id!, version int!, columns text, since_seq bigint, created_at time",
)

# Channels of a dropped table are kept until it is purged: UNDROP restores them with their tokens.
# `last_…` describe the last committed chunk. They identify a repeated registration after garbage
# collection.
channels = _define_table(
    "channels",
    "channel_id id, table_id tables.table_id, name text, client_sequencer bigint,"
    "row_sequencer bigint, offset_token text?, owner_user text, client_prefix text?, opened_at time,"
    "last_client_sequencer bigint?, last_path text?, last_chunk_offset bigint?, last_chunk_md5 text?,"
    "last_key_id bigint?, last_commit_at time?, rows bigint?, bytes bigint?",
    sa.Index("uq_channels_table_id_name", "table_id", "name", unique=True),
)
# The last client sequencer of deleted channels, by names. A new table with the same name continues
# from it, so the sequencer of an old writer is never valid again.
channel_tombstones = _define_table(
    "channel_tombstones",
    "database_name text!, schema_name text!, table_name text!, channel text!,"
    "client_sequencer bigint, dropped_at time",
)
# History of channels, append-only. An `opened` row is also the stored response to that open
# request.
channel_history = _define_table(
    "channel_history",
    "history_id id, table_id bigint, channel text, event text, at time, client_sequencer bigint,"
    "row_sequencer bigint, offset_token text?, user text?, client_prefix text?, request_id text?,"
    "previous_user text?, previous_owner text?",
    sa.Index(
        "uq_channel_history_request",
        *("client_prefix", "request_id", "table_id", "channel"),
        unique=True,
    ),
    sa.Index("ix_channel_history_table_id_channel", "table_id", "channel"),
)
client_prefixes = _define_table("client_prefixes", "prefix text!, user text, issued_at time")
table_keys = _define_table("table_keys", "table_id tables.table_id!, wrapped_key bytes")
data_keys = _define_table(
    "data_keys",
    "key_id id, table_id tables.table_id, user text",
    sa.Index("uq_data_keys_table_id_user", "table_id", "user", unique=True),
)
# `channels` is JSON: [[name, client sequencer, row sequencer, start token, end token], …]. Only the
# detection of repeated registrations and the history read it; no query searches it. A row for each
# channel would multiply the rows that a registration inserts.
chunks = _define_table(
    "chunks",
    "table_id tables.table_id!, seq bigint!, prefix text, path text, offset bigint, length bigint,"
    "md5 text, key_id bigint, rows bigint, schema_version int, first_insert_ms bigint?,"
    "last_insert_ms bigint?, registered_at time, retired_at time?, quarantine_reason text?,"
    "channels text, statistics bytes",
    sa.Index("uq_chunks_path_offset", "path", "offset", unique=True),
    _partial_index("ix_chunks_retired", "path", where="retired_at IS NOT NULL"),
    _partial_index(
        "ix_chunks_quarantined", "table_id", "seq", where="quarantine_reason IS NOT NULL"
    ),
)
# Blobs that are on the stage without a registration, or whose registration was deleted. A tombstone is written
# before an unregistered object is deleted, and prevents the registration of its path.
sightings = _define_table(
    "sightings",
    "path text!, prefix text, first_seen time, tombstoned_at time?",
    _partial_index("ix_sightings_first_seen", "first_seen", where="tombstoned_at IS NULL"),
    _partial_index(
        "ix_sightings_tombstoned_at", "tombstoned_at", where="tombstoned_at IS NOT NULL"
    ),
)

# The ledger: permanent record of migrated chunks, kept as long as the table. A row is written when
# its chunk becomes part of the native table. `path` is the path of the blob in the stage.
chunk_ledger = _define_table(
    "chunk_ledger",
    "table_id tables.table_id!, seq bigint!, path text, offset bigint, length bigint, md5 text,"
    "rows bigint, schema_version int, channels text, registered_at time, run_id text,"
    "fingerprint bytes?, discarded_at time?",
    sa.Index("ix_chunk_ledger_run_id", "table_id", "run_id"),
)
# Commits of channels without rows. They have no chunk, but count in `row_sequencer`.
rowless_commits = _define_table(
    "rowless_commits",
    "table_id tables.table_id!, channel text!, client_sequencer bigint!, row_sequencer bigint!,"
    "offset_token text?, at time",
)
# Native files by path in the warehouse, current and removed. `sources` is JSON: [first, last] of
# chunks and [load, rows], in the order of their rows unless `reordered`. `removed_by` is the run
# that replaced the file. `changed_rows` is true if that run changed rows.
native_files = _define_table(
    "native_files",
    "table_id tables.table_id!, path text!, run_id text, rows bigint, size bigint, sha256 text?,"
    "fingerprint bytes?, schema_version int, sources text, added_at time, removed_at time?,"
    "removed_by text?, changed_rows flag, reordered flag",
    sa.Index("ix_native_files_run_id", "table_id", "run_id"),
)

# The row API. The definition of a pipe is its COPY statement, which services parse.
pipes = _define_table(
    "pipes",
    "pipe_id id, schema_id schemas.schema_id, name text, owner text, definition text, comment text?,"
    "created_at time, dropped_at time?",
    _unique_live_index("uq_pipes_live", "schema_id", "name"),
)
# Pipes that load files, with the state of the worker. A file with an error is in `pipe_files` until
# it is loaded or deleted. Loaded files are in `loaded_files` only. With `named_only`, the pipe
# loads only files named in requests, which are in `pipe_notices`.
file_pipes = _define_table(
    "file_pipes",
    "pipe_id pipes.pipe_id!, paused flag, refresh_at time?, refreshed_at time?, listed_at time?,"
    "waiting_files bigint?, oldest_waiting_at time?, last_file text?, last_load_at time?,"
    "last_error text?, last_error_at time?, attempts int?, attempted_file text?, named_only flag",
)
pipe_files = _define_table(
    "pipe_files",
    "pipe_id pipes.pipe_id!, path text!, size bigint?, tag text?, state text, error text?, at time",
)
pipe_notices = _define_table(
    "pipe_notices",
    "pipe_id pipes.pipe_id!, path text!, received_at time, ended_at time?",
    _partial_index("ix_pipe_notices_waiting", "pipe_id", where="ended_at IS NULL"),
)
# Channels of the row API: counts, and the last request, to detect its repetition. No foreign key:
# channel IDs are never reused, and an orphaned row is small.
row_channels = _define_table(
    "row_channels",
    "channel_id bigint!, request_id text?, rows_parsed bigint, rows_inserted bigint,"
    "rows_error bigint, last_error text?, last_error_at time?, last_error_offset text?",
)
# Counts of rows that classic clients have rejected and reported: `rows` since the opening with
# `client_sequencer`, `earlier_rows` before it. No foreign key, as for `row_channels`.
client_rejections = _define_table(
    "client_rejections",
    "channel_id bigint!, client_sequencer bigint, earlier_rows bigint, rows bigint,"
    "last_error text?, last_error_at time?",
)
# IDs of requests without a channel, so that each is accepted once.
row_requests = _define_table(
    "row_requests",
    "table_id bigint!, request_id text!, at time",
    sa.Index("ix_row_requests_at", "at"),
)
# How clients encode BINARY values, per pipe. The row with token "" holds the last time at which the
# service instructed a client to use base64. Each other token identifies a client that has used
# hexadecimal digits since then.
row_clients = _define_table("row_clients", "path text!, token text!, at time")

# Loads. A row is inserted once and closed once. A committed load is closed in the transaction that
# swaps the metadata pointer of its table.
loads = _define_table(
    "loads",
    "load_id text!, table_id bigint, reject_table_id bigint?, role text, stream_name text?,"
    "statement text, state text, started_at time, ended_at time?, files bigint?, rows bigint?,"
    "rejects bigint?, bytes bigint?, snapshot_id bigint?, first_error text?, message text?",
    sa.Index("ix_loads_table_id_started_at", "table_id", "started_at"),
    _partial_index("ix_loads_running", "table_id", where="state = 'running'"),
)
# The outcome of each file of a load; loaded files are not loaded again.
loaded_files = _define_table(
    "loaded_files",
    "load_id loads.load_id!, number int!, table_id bigint, path text, size bigint?, tag text?,"
    "state text, rows bigint, rejects bigint, bytes bigint, first_error text?",
    sa.Index("ix_loaded_files_table_id_path", "table_id", "path"),
)
stream_offsets = _define_table(
    "stream_offsets",
    "stream text!, topic text!, partition int!, next_offset bigint, load_id text, updated_at time",
)

# Runs on native files, written like loads. In maintenance runs, `…_before` counts replaced files
# and `…_after` counts written files.
migrations = _define_table(
    "migrations",
    "run_id text!, table_id bigint, epoch bigint, from_seq bigint, to_seq bigint, state text,"
    "started_at time, ended_at time?, rows bigint?, files bigint?, bytes bigint?,"
    "snapshot_id bigint?, message text?",
    sa.Index("ix_migrations_table_id_to_seq", "table_id", "to_seq"),
)
maintenance_runs = _define_table(
    "maintenance_runs",
    "run_id text!, table_id bigint, kind text, state text, started_at time, ended_at time?,"
    "rows bigint?, files_before bigint?, bytes_before bigint?, files_after bigint?,"
    "bytes_after bigint?, snapshots_expired bigint?, snapshot_id bigint?, message text?",
    sa.Index("ix_maintenance_runs_table_id_started_at", "table_id", "started_at"),
    _partial_index("ix_maintenance_runs_running", "table_id", where="state = 'running'"),
)

# Runs of `snowmelt backup` on this installation. `destination` is the URL of the backup.
backups = _define_table(
    "backups",
    "backup_id text!, destination text, state text, started_at time, ended_at time?,"
    "point_id text?, objects bigint?, bytes bigint?, message text?",
    sa.Index("ix_backups_started_at", "started_at"),
)

# Snapshots published by the Iceberg REST catalog, and files of rows that are not migrated yet.
# A fresh file has the rows of the chunks in (from_seq, to_seq]; `entry` is its manifest entry.
fresh_files = _define_table(
    "fresh_files",
    "file_id id, table_id tables.table_id, from_seq bigint, to_seq bigint, level int, path text,"
    "size bigint, entry bytes, created_at time, retired_at time?",
    sa.Index("ix_fresh_files_table_id", "table_id"),
)
# `snapshot` is the entry in the metadata file, or NULL if the current snapshot is a native one.
# `held_at` is when a role that may change rows first loaded it.
published_snapshots = _define_table(
    "published_snapshots",
    "publication_id id, table_id tables.table_id, native_only flag, pointer text?, up_to_seq bigint,"
    "schema_version int, timestamp_ms bigint, metadata_path text, files text, snapshot text?,"
    "created_at time, held_at time?",
    sa.Index("ix_published_snapshots_table_id", "table_id", "native_only", "publication_id"),
)
# Tables that engines have loaded, with the time of the last load. `stalled_reason` is why their
# newest chunks are not published. `written_at` is when an engine last created a file.
snapshot_demand = _define_table(
    "snapshot_demand",
    "table_id tables.table_id!, native_only flag!, requested_at time, stalled_reason text?,"
    "written_at time?",
)
# Changes of tables that engines requested with an idempotency key. `error` is the response if the
# request was rejected, as JSON.
engine_requests = _define_table(
    "engine_requests",
    "key text!, user text, table_id bigint, body_sha256 bytes, created_at time, finished_at time?,"
    "error text?",
    sa.Index("ix_engine_requests_created_at", "created_at"),
)

# User code. `files` is JSON: {name: base64}. Replacing a library replaces all its files.
libraries = _define_table(
    "libraries", "name text!, language text, origin text, files text, owner text, created_at time"
)
load_functions = _define_table(
    "load_functions",
    "kind text!, name text!, factory text, library libraries.name, owner text, created_at time",
)

# External functions. Definitions are JSON, written by `functions.definition`. Fields that queries
# search by also have columns.
api_integrations = _define_table(
    "api_integrations",
    "integration_id id, name text, definition text, owner text, created_at time, dropped_at time?",
    _unique_live_index("uq_api_integrations_live", "name"),
)
# No two overloads may accept the same number of arguments. The index enforces only a part of this
# rule, so CREATE also locks the schema.
external_functions = _define_table(
    "external_functions",
    "function_id id, schema_id schemas.schema_id, name text, least_arguments int,"
    "most_arguments int, integration text, definition text, owner text, created_at time,"
    f"dropped_at time?, {_WITH_PARENT}",
    _unique_live_index("uq_external_functions_live", "schema_id", "name", "most_arguments"),
)
translators = _define_table(
    "translators",
    "translator_id id, schema_id schemas.schema_id, name text, definition text, comment text?,"
    f"owner text, created_at time, dropped_at time?, {_WITH_PARENT}",
    _unique_live_index("uq_translators_live", "schema_id", "name"),
)

# The S3 endpoint. Objects of a bucket with a backend have no rows here: the backend lists them.
buckets = _define_table(
    "buckets",
    "bucket_id id, name text, owner text, backend text?, select_dialect text?, created_at time,"
    "dropped_at time?",
    _unique_live_index("uq_buckets_live", "name"),
)
# Keys are bytes, so that every database sorts them as S3 does.
objects = _define_table(
    "objects",
    "bucket_id buckets.bucket_id!, key bytes!, size bigint, etag text, modified_at time,"
    "headers text, checksum text?, file text",
    sa.UniqueConstraint("file"),
)
uploads = _define_table(
    "uploads",
    "upload_id text!, bucket_id buckets.bucket_id, key bytes, user text, initiated_at time,"
    "headers text, checksum text?",
    sa.Index("ix_uploads_bucket_id_key", "bucket_id", "key", "upload_id"),
)
upload_parts = _define_table(
    "upload_parts",
    "upload_id uploads.upload_id!, number int!, size bigint, etag text, modified_at time,"
    "checksum text?, file text",
    sa.UniqueConstraint("file"),
)
# Unreferenced files that are to be deleted. A row is deleted after its file.
dropped_files = _define_table("dropped_files", "file text!, dropped_at time")

# Replication to other sites. There is at most one group, which contains the whole installation. `role` is the
# role of this site: `primary`, `closing` (before a planned failover), `secondary` or `fenced` (a former primary).
# `epoch` is the number of the history; each promotion begins a new one. `point` is the number of the last state
# of a primary; on other sites, the number of the applied state. From state `protected_from` on, a primary reports
# only offset tokens that its followers have. A secondary with the state `promotable_from` may be promoted.
# `settings` is JSON, written by `objects.failover_groups`.
failover_groups = _define_table(
    "failover_groups",
    "name text!, kind text, role text, site text, site_number int, epoch bigint, point bigint,"
    "protected_from bigint?, promotable_from bigint?, primary_url text?, settings text, owner text,"
    "created_at time, state_at time?, applied_at time?, last_error text?, handed_to text?, suspended flag,"
    "switch_requested flag, applying flag",
)
# Sites that follow this one. `point` is the last state that the site has, NULL before its first one.
replica_slots = _define_table(
    "replica_slots",
    "site text!, site_number int, url text?, point bigint?, protected_from bigint?, requested_at time",
)
# Keys of written rows of replicated tables, as JSON arrays. The transaction that takes the next
# state sets `point`.
changed_rows = _define_table(
    "changed_rows",
    "change_id id, table_name text, row_key text, point bigint?",
    sa.Index("ix_changed_rows_point", "point"),
)
# The state of each channel that a secondary has.
reported_channels = _define_table(
    "reported_channels",
    "site text!, channel_id bigint!, client_sequencer bigint, row_sequencer bigint, offset_token text?",
)
# Changes that only a former primary had when it began to follow the new primary. `detail` is JSON.
diverged_changes = _define_table(
    "diverged_changes",
    "change_id id, epoch bigint, kind text, table_name text, channel text?, detail text,"
    "path text?, at time",
)

# State of processes and stores of one installation, which is not backed up or replicated: services,
# unregistered blobs, unfinished uploads, published snapshots, requests of engines. `deployment` is new in a restored
# installation.
LOCAL_TABLES = frozenset(
    {
        *("deployment", "services", "sightings", "dropped_files", "backups"),
        *("fresh_files", "published_snapshots", "snapshot_demand", "uploads", "upload_parts"),
        "engine_requests",
        *(
            "failover_groups",
            "replica_slots",
            "changed_rows",
            "reported_channels",
            "diverged_changes",
        ),
    }
)


@functools.cache
def list_portable_tables() -> tuple[sa.Table, ...]:
    """Return the tables that are backed up and replicated, referenced tables before the referring ones."""
    return tuple(table for table in metadata.sorted_tables if table.name not in LOCAL_TABLES)
