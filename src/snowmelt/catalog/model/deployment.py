"""Tables of the deployment: its identity, running services and leases."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Table, Text

from snowmelt.catalog.model.base import UtcTimestamp, metadata

deployment = Table(
    "deployment",
    metadata,
    Column("deployment_id", BigInteger, primary_key=True, autoincrement=False),
    Column("created_at", UtcTimestamp, nullable=False),
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
    Column("started_at", UtcTimestamp, nullable=False),
    Column("seen_at", UtcTimestamp, nullable=False),
    Column("ahead_ms", BigInteger, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("ttl_ms", BigInteger, nullable=False),
    Column("expires_at", UtcTimestamp),
)
