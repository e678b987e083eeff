"""Versions of the catalog's tables: current, latest and known."""

from __future__ import annotations

import re
from importlib import resources

import sqlalchemy as sa

_MIGRATION_FILE_NAME = re.compile(r"v([0-9]{4})_\w+\.py")


def read_schema_version(connection: sa.Connection) -> str | None:
    """Return which version the catalog's tables have, None when there are none."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def list_schema_versions() -> frozenset[str]:
    """Return all versions, by the names of the files with the steps to them."""
    files = resources.files("snowmelt.catalog.versions").iterdir()
    return frozenset(
        step[1] for file in files if (step := _MIGRATION_FILE_NAME.fullmatch(file.name))
    )


def latest_schema_version() -> str:
    """Return the version that this program works with."""
    return max(list_schema_versions())
