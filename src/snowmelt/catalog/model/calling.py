"""What external functions need.

Definitions are JSON as `functions.definition` writes it; what is looked for has columns as well.
"""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Integer, Table, Text

from snowmelt.catalog.model.declaring import Id, Instant, in_parent, live, metadata

api_integrations = Table(
    "api_integrations",
    metadata,
    Column("integration_id", Id, primary_key=True),
    Column("name", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("dropped_at", Instant),
    live("uq_api_integrations_live", "name"),
    sqlite_autoincrement=True,
)

# Overloads of a name never share a number of arguments; the index guards part of that rule only,
# so whoever creates one holds the lock of the schema.
external_functions = Table(
    "external_functions",
    metadata,
    Column("function_id", Id, primary_key=True),
    Column("schema_id", ForeignKey("schemas.schema_id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("least_arguments", Integer, nullable=False),
    Column("most_arguments", Integer, nullable=False),
    Column("integration", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("dropped_at", Instant),
    in_parent(),
    live("uq_external_functions_live", "schema_id", "name", "most_arguments"),
    sqlite_autoincrement=True,
)

translators = Table(
    "translators",
    metadata,
    Column("translator_id", Id, primary_key=True),
    Column("schema_id", ForeignKey("schemas.schema_id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("comment", Text),
    Column("owner", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("dropped_at", Instant),
    in_parent(),
    live("uq_translators_live", "schema_id", "name"),
    sqlite_autoincrement=True,
)
