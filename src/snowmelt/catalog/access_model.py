"""The table of the catalog that grants on future objects need."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Table, Text

from snowmelt.catalog.model import metadata

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
