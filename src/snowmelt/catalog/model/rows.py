"""What the row API keeps beside channels: pipes, what channels were told, requests seen."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Table, Text

from snowmelt.catalog.model.declaring import Id, Instant, live, metadata

# The statement as it was given, from which a service builds what it computes.
pipes = Table(
    "pipes",
    metadata,
    Column("pipe_id", Id, primary_key=True),
    Column("schema_id", ForeignKey("schemas.schema_id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("comment", Text),
    Column("created_at", Instant, nullable=False),
    Column("dropped_at", Instant),
    live("uq_pipes_live", "schema_id", "name"),
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
    Column("last_error_at", Instant),
    Column("last_error_offset", Text),
)

# Requests that name no channel: each is taken once.
row_requests = Table(
    "row_requests",
    metadata,
    Column("table_id", BigInteger, primary_key=True, autoincrement=False),
    Column("request_id", Text, primary_key=True),
    Column("at", Instant, nullable=False),
    Index("ix_row_requests_at", "at"),
)

# How clients write bytes, by the path of the pipe that they asked about. Token "": somebody was
# told base64, last at that time. Others: tokens whose clients write digits, from that time on.
row_clients = Table(
    "row_clients",
    metadata,
    Column("path", Text, primary_key=True),
    Column("token", Text, primary_key=True),
    Column("at", Instant, nullable=False),
)
