"""Tables of channels, encryption keys, chunks, blob sightings, pipes and row API state.

Row API state is kept beside the channels: request IDs, row counts, and client byte encodings.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, LargeBinary, Table, Text

from snowmelt.catalog.model.base import (
    AutoincrementId,
    UtcTimestamp,
    metadata,
    partial_index,
    unique_live_index,
)

# Channels of a dropped table stay until it is purged: UNDROP brings them back with their tokens.
channels = Table(
    "channels",
    metadata,
    Column("channel_id", AutoincrementId, primary_key=True),
    Column("table_id", ForeignKey("tables.table_id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("client_sequencer", BigInteger, nullable=False),
    Column("row_sequencer", BigInteger, nullable=False),
    Column("offset_token", Text),
    Column("owner_user", Text, nullable=False),
    Column("client_prefix", Text),
    Column("opened_at", UtcTimestamp, nullable=False),
    # The last committed chunk: enough to know a repeated registration after clean-up.
    Column("last_client_sequencer", BigInteger),
    Column("last_path", Text),
    Column("last_chunk_offset", BigInteger),
    Column("last_chunk_md5", Text),
    Column("last_key_id", BigInteger),
    Column("last_commit_at", UtcTimestamp),
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
    Column("dropped_at", UtcTimestamp, nullable=False),
)

# Append-only. An `opened` row is also the stored answer to that open request.
channel_history = Table(
    "channel_history",
    metadata,
    Column("history_id", AutoincrementId, primary_key=True),
    Column("table_id", BigInteger, nullable=False),
    Column("channel", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("at", UtcTimestamp, nullable=False),
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
    Column("issued_at", UtcTimestamp, nullable=False),
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
    Column("key_id", AutoincrementId, primary_key=True),
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
    Column("registered_at", UtcTimestamp, nullable=False),
    Column("retired_at", UtcTimestamp),
    Column("quarantine_reason", Text),
    Column("channels", Text, nullable=False),
    Column("statistics", LargeBinary, nullable=False),
    Index("uq_chunks_path_offset", "path", "offset", unique=True),
    partial_index("ix_chunks_retired", "path", where="retired_at IS NOT NULL"),
    partial_index(
        "ix_chunks_quarantined", "table_id", "seq", where="quarantine_reason IS NOT NULL"
    ),
)

# Blobs the service has seen without accepting them, or whose rows are forgotten. A tombstone comes
# before the deletion of an unregistered object, and keeps its path from being registered.
sightings = Table(
    "sightings",
    metadata,
    Column("path", Text, primary_key=True),
    Column("prefix", Text, nullable=False),
    Column("first_seen", UtcTimestamp, nullable=False),
    Column("tombstoned_at", UtcTimestamp),
    partial_index("ix_sightings_first_seen", "first_seen", where="tombstoned_at IS NULL"),
    partial_index("ix_sightings_tombstoned_at", "tombstoned_at", where="tombstoned_at IS NOT NULL"),
)


# --- What the row API keeps beside channels: pipes, what channels were told, requests seen.

# The statement as it was given, from which a service builds what it computes.
pipes = Table(
    "pipes",
    metadata,
    Column("pipe_id", AutoincrementId, primary_key=True),
    Column("schema_id", ForeignKey("schemas.schema_id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("comment", Text),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("dropped_at", UtcTimestamp),
    unique_live_index("uq_pipes_live", "schema_id", "name"),
    sqlite_autoincrement=True,
)

# Of channels that rows came to: the last request, by which its repetition is known, and counts.
# No foreign key: a channel's number is never given again, and what stays of one is a small row.
row_channels = Table(
    "row_channels",
    metadata,
    Column("channel_id", BigInteger, primary_key=True, autoincrement=False),
    Column("request_id", Text),
    Column("rows_parsed", BigInteger, nullable=False),
    Column("rows_inserted", BigInteger, nullable=False),
    Column("rows_error", BigInteger, nullable=False),
    Column("last_error", Text),
    Column("last_error_at", UtcTimestamp),
    Column("last_error_offset", Text),
)

# Requests that name no channel: each is taken once.
row_requests = Table(
    "row_requests",
    metadata,
    Column("table_id", BigInteger, primary_key=True, autoincrement=False),
    Column("request_id", Text, primary_key=True),
    Column("at", UtcTimestamp, nullable=False),
    Index("ix_row_requests_at", "at"),
)

# How clients write bytes, by the path of the pipe that they asked about. Token "": somebody was
# told base64, last at that time. Others: tokens whose clients write digits, from that time on.
row_clients = Table(
    "row_clients",
    metadata,
    Column("path", Text, primary_key=True),
    Column("token", Text, primary_key=True),
    Column("at", UtcTimestamp, nullable=False),
)
