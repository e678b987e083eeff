"""Versions of the catalog's tables, and the upgrade to those that `model` describes.

From version to version tables, columns and indexes were only added, so Alembic's comparison of a
catalog with the model finds every step from any older version. Version 0013 stores statistics of
chunks in another form; what is stored already is not read. A change of another kind needs a step of
its own in `upgrade_schema`, and any change a new `SCHEMA_VERSION`.
"""

from __future__ import annotations

import datetime as dt
import logging
import secrets
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.errors import ConfigurationError

_log = logging.getLogger(__name__)

# What this program works with; versions have four digits.
SCHEMA_VERSION = "0013"
# Any fixed number; it names the lock under which one process at a time changes the schema.
_UPGRADE_LOCK_ID = 0x534E4F574D454C54 >> 1
# Alembic's own name of the table.
_VERSION_TABLE = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)


def read_schema_version(connection: sa.Connection) -> str | None:
    """Return which version the catalog's tables have, None when there are none."""
    if not sa.inspect(connection).has_table(_VERSION_TABLE.name):
        return None
    return connection.execute(sa.select(_VERSION_TABLE.c.version_num)).scalar()


def upgrade_schema(connection: sa.Connection, now: dt.datetime) -> None:
    """Bring the tables to `SCHEMA_VERSION` in the caller's transaction, one process at a time.

    Raises:
        ConfigurationError: The catalog is newer than this program.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK_ID)))
    current = read_schema_version(connection)
    if current == SCHEMA_VERSION:
        return
    if current is None:
        _VERSION_TABLE.create(connection)
        model.metadata.create_all(connection, checkfirst=False)
        connection.execute(
            sa.insert(model.deployment).values(
                deployment_id=secrets.randbelow(2**31 - 1) + 1, created_at=now
            )
        )
        connection.execute(
            sa.insert(model.roles),
            [{"name": name, "created_at": now} for name in ("ACCOUNTADMIN", "PUBLIC")],
        )
    elif current > SCHEMA_VERSION:
        raise ConfigurationError(
            setting="catalog_url",
            reason=f"the catalog was written by a newer Snowmelt (its version is {current})",
        )
    else:
        # Here, not above: Alembic is not needed where there is nothing to upgrade.
        from alembic.autogenerate import produce_migrations
        from alembic.migration import MigrationContext
        from alembic.operations import Operations

        def is_ours(_object: Any, _name: Any, _kind: Any, reflected: bool, known: object) -> bool:
            return not reflected or known is not None

        context = MigrationContext.configure(connection, opts={"include_object": is_ours})
        operations = Operations(context)
        steps = produce_migrations(context, model.metadata).upgrade_ops
        for step in steps.ops if steps is not None else ():
            for each in getattr(step, "ops", [step]):
                operations.invoke(each)
    connection.execute(sa.delete(_VERSION_TABLE))
    connection.execute(sa.insert(_VERSION_TABLE).values(version_num=SCHEMA_VERSION))
    _log.info("the catalog is of version %s now; before: %s", SCHEMA_VERSION, current or "none")
