"""Databases and their schemas: find, list, create and drop."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_record
from snowmelt.catalog.model.records import DEFAULT_RETENTION_DAYS, DatabaseRecord, SchemaRecord
from snowmelt.catalog.objects.external_functions import drop_functions_and_translators
from snowmelt.catalog.objects.tables import drop_tables, find_namespace_ids
from snowmelt.errors import AlreadyExists, DatabaseNotFound
from snowmelt.schema.types import to_display_name

DEFAULT_SCHEMA = "PUBLIC"

_DATABASES = model.databases
_SCHEMAS = model.schemas
_TABLES = model.tables


def find_database(connection: sa.Connection, name: str) -> DatabaseRecord:
    """Return the live database of this internal name.

    Raises:
        DatabaseNotFound: There is none.
    """
    row = connection.execute(_select_live_databases().where(_DATABASES.c.name == name)).first()
    if row is None:
        raise DatabaseNotFound(database=to_display_name(name))
    return _to_database_record(row)


def lock_database(connection: sa.Connection, name: str) -> int:
    """Lock the live database of this internal name, and return its id.

    Raises:
        DatabaseNotFound: There is none.
    """
    query = sa.select(_DATABASES.c.database_id).where(
        _DATABASES.c.name == name, _DATABASES.c.dropped_at.is_(None)
    )
    found: int | None = connection.execute(query.with_for_update()).scalar()
    if found is None:
        raise DatabaseNotFound(database=to_display_name(name))
    return found


def lock_databases(connection: sa.Connection, database_ids: Collection[int]) -> None:
    """Lock the rows of databases in id order."""
    query = sa.select(_DATABASES.c.database_id).where(_DATABASES.c.database_id.in_(database_ids))
    connection.execute(query.order_by(_DATABASES.c.database_id).with_for_update())


def lock_schemas(connection: sa.Connection, schema_ids: Collection[int]) -> None:
    """Lock the rows of schemas in id order."""
    query = sa.select(_SCHEMAS.c.schema_id).where(_SCHEMAS.c.schema_id.in_(schema_ids))
    connection.execute(query.order_by(_SCHEMAS.c.schema_id).with_for_update())


def list_databases(connection: sa.Connection) -> list[DatabaseRecord]:
    """Return the live databases, ordered by name."""
    query = _select_live_databases().order_by(_DATABASES.c.name)
    return [_to_database_record(row) for row in connection.execute(query)]


def create_database(
    connection: sa.Connection,
    name: str,
    *,
    owner: str,
    now: dt.datetime,
    replace: bool = False,
    if_not_exists: bool = False,
) -> DatabaseRecord:
    """Create a database with a schema PUBLIC in it; `replace` drops one of that name first.

    Raises:
        AlreadyExists: There is one, and neither `replace` nor `if_not_exists` was given.
    """
    existing = connection.execute(_select_live_databases().where(_DATABASES.c.name == name)).first()
    if existing is not None:
        if if_not_exists:
            return _to_database_record(existing)
        if not replace:
            raise AlreadyExists(kind="Database", name=to_display_name(name))
        drop_database(connection, name, now)
    connection.execute(sa.insert(_DATABASES).values(name=name, owner=owner, created_at=now))
    create_schema(connection, name, DEFAULT_SCHEMA, owner=owner, now=now)
    return find_database(connection, name)


def drop_database(connection: sa.Connection, name: str, now: dt.datetime) -> DatabaseRecord:
    """Drop a database with all that is in it, which is kept as long as the database says.

    Raises:
        DatabaseNotFound: There is none.
    """
    database = find_database(connection, name)
    lock_databases(connection, [database.database_id])
    query = sa.select(_SCHEMAS.c.schema_id).where(
        _SCHEMAS.c.database_id == database.database_id, _SCHEMAS.c.dropped_at.is_(None)
    )
    until = now + dt.timedelta(days=database.retention_days)
    _drop_schemas(connection, connection.execute(query).scalars().all(), now, kept_until=until)
    connection.execute(
        sa.update(_DATABASES)
        .where(_DATABASES.c.database_id == database.database_id)
        .values(dropped_at=now, kept_until=until)
    )
    return database


def find_schema(connection: sa.Connection, database: str, name: str) -> SchemaRecord:
    """Return the live schema of these internal names.

    Raises:
        DatabaseNotFound, SchemaNotFound: There is no such one.
    """
    _, schema_id = find_namespace_ids(connection, database, name)
    return _to_schema_record(
        connection.execute(_select_live_schemas().where(_SCHEMAS.c.schema_id == schema_id)).one()
    )


def list_schemas(connection: sa.Connection, database: str | None = None) -> list[SchemaRecord]:
    """Return the live schemas, ordered by name, of one database when given."""
    query = _select_live_schemas()
    if database is not None:
        query = query.where(_DATABASES.c.name == database)
    ordered = query.order_by(_DATABASES.c.name, _SCHEMAS.c.name)
    return [_to_schema_record(row) for row in connection.execute(ordered)]


def create_schema(
    connection: sa.Connection,
    database: str,
    name: str,
    *,
    owner: str,
    now: dt.datetime,
    replace: bool = False,
    if_not_exists: bool = False,
) -> SchemaRecord:
    """Create a schema; `replace` drops one of that name first.

    Raises:
        AlreadyExists: There is one, and neither `replace` nor `if_not_exists` was given.
        DatabaseNotFound: There is no such database.
    """
    database_id = lock_database(connection, database)
    query = _select_live_schemas().where(
        _SCHEMAS.c.database_id == database_id, _SCHEMAS.c.name == name
    )
    existing = connection.execute(query).first()
    if existing is not None:
        if if_not_exists:
            return _to_schema_record(existing)
        if not replace:
            raise AlreadyExists(
                kind="Schema", name=f"{to_display_name(database)}.{to_display_name(name)}"
            )
        _drop_schema(connection, _to_schema_record(existing), now)
    connection.execute(
        sa.insert(_SCHEMAS).values(database_id=database_id, name=name, owner=owner, created_at=now)
    )
    return find_schema(connection, database, name)


def drop_schema(
    connection: sa.Connection, database: str, name: str, now: dt.datetime
) -> SchemaRecord:
    """Drop a schema with all that is in it, which is kept as long as the schema says.

    Raises:
        DatabaseNotFound, SchemaNotFound: There is no such one.
    """
    schema = find_schema(connection, database, name)
    _drop_schema(connection, schema, now)
    return schema


def _drop_schema(connection: sa.Connection, schema: SchemaRecord, now: dt.datetime) -> None:
    until = now + dt.timedelta(days=schema.retention_days)
    _drop_schemas(connection, [schema.schema_id], now, kept_until=until, is_standalone=True)


def _drop_schemas(
    connection: sa.Connection,
    schema_ids: Collection[int],
    now: dt.datetime,
    *,
    kept_until: dt.datetime,
    is_standalone: bool = False,
) -> None:
    # The lock keeps a table from being created in a schema that is going.
    lock_schemas(connection, schema_ids)
    inside = sa.select(_TABLES.c.table_id).where(
        _TABLES.c.schema_id.in_(schema_ids), _TABLES.c.dropped_at.is_(None)
    )
    drop_tables(connection, connection.execute(inside).scalars().all(), now, kept_until=kept_until)
    drop_functions_and_translators(connection, schema_ids, now)
    connection.execute(
        sa.update(_SCHEMAS)
        .where(_SCHEMAS.c.schema_id.in_(schema_ids))
        .values(dropped_at=now, kept_until=kept_until, dropped_with_parent=not is_standalone)
    )


def list_restorable_databases(connection: sa.Connection, now: dt.datetime) -> list[DatabaseRecord]:
    """Return the dropped databases that UNDROP can bring back, the last one dropped first."""
    query = sa.select(_DATABASES).where(
        _DATABASES.c.dropped_at.is_not(None), _DATABASES.c.kept_until > now
    )
    ordered = query.order_by(_DATABASES.c.dropped_at.desc(), _DATABASES.c.database_id.desc())
    return [_to_database_record(row) for row in connection.execute(ordered)]


def list_restorable_schemas(connection: sa.Connection, now: dt.datetime) -> list[SchemaRecord]:
    """Return the dropped schemas that are still kept, the last one dropped first."""
    query = _select_schemas().where(_SCHEMAS.c.dropped_at.is_not(None), _SCHEMAS.c.kept_until > now)
    ordered = query.order_by(_SCHEMAS.c.dropped_at.desc(), _SCHEMAS.c.schema_id.desc())
    return [_to_schema_record(row) for row in connection.execute(ordered)]


def _select_live_databases() -> sa.Select[Any]:
    return sa.select(_DATABASES).where(_DATABASES.c.dropped_at.is_(None))


def _select_live_schemas() -> sa.Select[Any]:
    return _select_schemas().where(
        _SCHEMAS.c.dropped_at.is_(None), _DATABASES.c.dropped_at.is_(None)
    )


def _select_schemas() -> sa.Select[Any]:
    joined = _SCHEMAS.join(_DATABASES, _SCHEMAS.c.database_id == _DATABASES.c.database_id)
    days = sa.func.coalesce(
        _SCHEMAS.c.retention_days, _DATABASES.c.retention_days, DEFAULT_RETENTION_DAYS
    )
    return sa.select(
        *_SCHEMAS.c, _DATABASES.c.name.label("database"), days.label("effective_retention_days")
    ).select_from(joined)


def _to_database_record(row: sa.Row[Any]) -> DatabaseRecord:
    days = DEFAULT_RETENTION_DAYS if row.retention_days is None else row.retention_days
    return make_record(DatabaseRecord, row, retention_days=days)


def _to_schema_record(row: sa.Row[Any]) -> SchemaRecord:
    return make_record(SchemaRecord, row, retention_days=row.effective_retention_days)
