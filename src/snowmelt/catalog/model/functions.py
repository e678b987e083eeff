"""Tables of libraries, load functions, API integrations, external functions and translators.

Definitions of external functions are JSON as `functions.definition` writes it. Fields that are
searched have columns as well.
"""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Integer, Table, Text

from snowmelt.catalog.model.base import (
    AutoincrementId,
    UtcTimestamp,
    dropped_with_parent_column,
    metadata,
    unique_live_index,
)

# `files` is JSON: {name: base64}. A library is whole: replacing it replaces all its files.
libraries = Table(
    "libraries",
    metadata,
    Column("name", Text, primary_key=True),
    Column("language", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("files", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
)


load_functions = Table(
    "load_functions",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("factory", Text, nullable=False),
    Column("library", ForeignKey("libraries.name"), nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
)


api_integrations = Table(
    "api_integrations",
    metadata,
    Column("integration_id", AutoincrementId, primary_key=True),
    Column("name", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("dropped_at", UtcTimestamp),
    unique_live_index("uq_api_integrations_live", "name"),
    sqlite_autoincrement=True,
)


# Overloads of a name never share a number of arguments; the index guards part of that rule only,
# so whoever creates one holds the lock of the schema.
external_functions = Table(
    "external_functions",
    metadata,
    Column("function_id", AutoincrementId, primary_key=True),
    Column("schema_id", ForeignKey("schemas.schema_id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("least_arguments", Integer, nullable=False),
    Column("most_arguments", Integer, nullable=False),
    Column("integration", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("dropped_at", UtcTimestamp),
    dropped_with_parent_column(),
    unique_live_index("uq_external_functions_live", "schema_id", "name", "most_arguments"),
    sqlite_autoincrement=True,
)


translators = Table(
    "translators",
    metadata,
    Column("translator_id", AutoincrementId, primary_key=True),
    Column("schema_id", ForeignKey("schemas.schema_id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("comment", Text),
    Column("owner", Text, nullable=False),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("dropped_at", UtcTimestamp),
    dropped_with_parent_column(),
    unique_live_index("uq_translators_live", "schema_id", "name"),
    sqlite_autoincrement=True,
)
