"""Upgrade of the catalog's tables by Alembic migrations."""

from __future__ import annotations

import logging
import secrets
import threading
from importlib import resources
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory

from snowmelt.catalog import model
from snowmelt.catalog.db.schema_versions import list_schema_versions, read_schema_version
from snowmelt.errors import ConfigurationError

if TYPE_CHECKING:
    import datetime as dt

_log = logging.getLogger(__name__)

# Any fixed number; it names the lock under which one process at a time migrates the schema.
_MIGRATION_LOCK_ID = 0x534E4F574D454C54 >> 1

# What migration scripts write to is one global of Alembic's for all threads of a process.
_alembic_lock = threading.Lock()


def upgrade_schema(connection: sa.Connection, now: dt.datetime) -> None:
    """Run the migrations that are missing, in the caller's transaction, one process at a time.

    Raises:
        ConfigurationError: The catalog is newer than this program.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK_ID)))
    folder = str(resources.files("snowmelt.catalog"))
    script = ScriptDirectory(folder, version_locations=[f"{folder}/versions"])
    current = read_schema_version(connection)
    if current is not None and current not in list_schema_versions():
        raise ConfigurationError(
            setting="catalog_url",
            reason=f"the catalog was written by a newer Snowmelt (its version is {current})",
        )

    def steps(revision: Any, _context: object) -> Any:
        return script._upgrade_revs("head", revision)  # noqa: SLF001 - as Alembic's own command

    with (
        _alembic_lock,
        EnvironmentContext(Config(), script, fn=steps, destination_rev="head") as environment,
    ):
        environment.configure(connection=connection, target_metadata=model.metadata)
        environment.run_migrations()
    came_to = read_schema_version(connection)
    if current != came_to:
        _log.info("the catalog is of version %s now; before: %s", came_to, current or "none")
    if connection.execute(sa.select(model.deployment.c.deployment_id)).first() is None:
        connection.execute(
            sa.insert(model.deployment).values(
                deployment_id=secrets.randbelow(2**31 - 1) + 1, created_at=now
            )
        )
        connection.execute(
            sa.insert(model.roles),
            [{"name": name, "created_at": now} for name in ("ACCOUNTADMIN", "PUBLIC")],
        )
