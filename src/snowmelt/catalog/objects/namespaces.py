"""Databases and the schemas in them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.model.records import DEFAULT_RETENTION_DAYS, DatabaseRecord, SchemaRecord
from snowmelt.catalog.objects.external_functions import drop_in_schemas
from snowmelt.catalog.objects.tables import drop_tables, schema_of
from snowmelt.errors import AlreadyExists, DatabaseNotFound
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from collections.abc import Collection

DEFAULT_SCHEMA = "PUBLIC"

_D = model.databases
_S = model.schemas
_T = model.tables


def find_database(connection: sa.Connection, name: str) -> DatabaseRecord:
    """Return the live database of this internal name.

    Raises:
        DatabaseNotFound: There is none.
    """
    row = connection.execute(_live_databases().where(_D.c.name == name)).first()
    if row is None:
        raise DatabaseNotFound(database=display_name(name))
    return _database(row)


def databases_of(connection: sa.Connection) -> list[DatabaseRecord]:
    """Return the live databases, ordered by name."""
    return [_database(row) for row in connection.execute(_live_databases().order_by(_D.c.name))]


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
    existing = connection.execute(_live_databases().where(_D.c.name == name)).first()
    if existing is not None:
        if if_not_exists:
            return _database(existing)
        if not replace:
            raise AlreadyExists(kind="Database", name=display_name(name))
        drop_database(connection, name, now)
    connection.execute(sa.insert(_D).values(name=name, owner=owner, created_at=now))
    create_schema(connection, name, DEFAULT_SCHEMA, owner=owner, now=now)
    return find_database(connection, name)


def drop_database(connection: sa.Connection, name: str, now: dt.datetime) -> DatabaseRecord:
    """Drop a database with all that is in it, which is kept as long as the database says.

    Raises:
        DatabaseNotFound: There is none.
    """
    database = find_database(connection, name)
    connection.execute(
        sa.select(_D.c.database_id)
        .where(_D.c.database_id == database.database_id)
        .with_for_update()
    )
    query = sa.select(_S.c.schema_id).where(
        _S.c.database_id == database.database_id, _S.c.dropped_at.is_(None)
    )
    until = now + dt.timedelta(days=database.retention_days)
    _drop_schemas(connection, connection.execute(query).scalars().all(), now, kept_until=until)
    connection.execute(
        sa.update(_D)
        .where(_D.c.database_id == database.database_id)
        .values(dropped_at=now, kept_until=until)
    )
    return database


def find_schema(connection: sa.Connection, database: str, name: str) -> SchemaRecord:
    """Return the live schema of these internal names.

    Raises:
        DatabaseNotFound: There is no such database.
        SchemaNotFound: There is no such schema in it.
    """
    _, schema_id = schema_of(connection, database, name)
    return _schema(connection.execute(_live_schemas().where(_S.c.schema_id == schema_id)).one())


def schemas_of(connection: sa.Connection, database: str | None = None) -> list[SchemaRecord]:
    """Return the live schemas, ordered by name, of one database when given."""
    query = _live_schemas()
    if database is not None:
        query = query.where(_D.c.name == database)
    return [_schema(row) for row in connection.execute(query.order_by(_D.c.name, _S.c.name))]


def create_schema(  # noqa: PLR0913 - the clauses of CREATE SCHEMA
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
    database_id = connection.execute(
        sa.select(_D.c.database_id)
        .where(_D.c.name == database, _D.c.dropped_at.is_(None))
        .with_for_update()
    ).scalar()
    if database_id is None:
        raise DatabaseNotFound(database=display_name(database))
    query = _live_schemas().where(_S.c.database_id == database_id, _S.c.name == name)
    existing = connection.execute(query).first()
    if existing is not None:
        if if_not_exists:
            return _schema(existing)
        if not replace:
            raise AlreadyExists(
                kind="Schema", name=f"{display_name(database)}.{display_name(name)}"
            )
        _drop_schema(connection, _schema(existing), now)
    connection.execute(
        sa.insert(_S).values(database_id=database_id, name=name, owner=owner, created_at=now)
    )
    return find_schema(connection, database, name)


def drop_schema(
    connection: sa.Connection, database: str, name: str, now: dt.datetime
) -> SchemaRecord:
    """Drop a schema with all that is in it, which is kept as long as the schema says.

    Raises:
        DatabaseNotFound: There is no such database.
        SchemaNotFound: There is no such schema in it.
    """
    schema = find_schema(connection, database, name)
    _drop_schema(connection, schema, now)
    return schema


def _drop_schema(connection: sa.Connection, schema: SchemaRecord, now: dt.datetime) -> None:
    until = now + dt.timedelta(days=schema.retention_days)
    _drop_schemas(connection, [schema.schema_id], now, kept_until=until, alone=True)


def _drop_schemas(
    connection: sa.Connection,
    schema_ids: Collection[int],
    now: dt.datetime,
    *,
    kept_until: dt.datetime,
    alone: bool = False,
) -> None:
    # The lock keeps a table from being created in a schema that is going.
    locked = sa.select(_S.c.schema_id).where(_S.c.schema_id.in_(schema_ids))
    connection.execute(locked.order_by(_S.c.schema_id).with_for_update())
    inside = sa.select(_T.c.table_id).where(
        _T.c.schema_id.in_(schema_ids), _T.c.dropped_at.is_(None)
    )
    drop_tables(connection, connection.execute(inside).scalars().all(), now, kept_until=kept_until)
    drop_in_schemas(connection, schema_ids, now)
    connection.execute(
        sa.update(_S)
        .where(_S.c.schema_id.in_(schema_ids))
        .values(dropped_at=now, kept_until=kept_until, dropped_with_parent=not alone)
    )


def restorable_databases(connection: sa.Connection, now: dt.datetime) -> list[DatabaseRecord]:
    """Return the dropped databases that UNDROP can bring back, the last one dropped first."""
    query = sa.select(_D).where(_D.c.dropped_at.is_not(None), _D.c.kept_until > now)
    ordered = query.order_by(_D.c.dropped_at.desc(), _D.c.database_id.desc())
    return [_database(row) for row in connection.execute(ordered)]


def restorable_schemas(connection: sa.Connection, now: dt.datetime) -> list[SchemaRecord]:
    """Return the dropped schemas that are still kept, the last one dropped first."""
    query = _schemas().where(_S.c.dropped_at.is_not(None), _S.c.kept_until > now)
    ordered = query.order_by(_S.c.dropped_at.desc(), _S.c.schema_id.desc())
    return [_schema(row) for row in connection.execute(ordered)]


def _live_databases() -> sa.Select[Any]:
    return sa.select(_D).where(_D.c.dropped_at.is_(None))


def _live_schemas() -> sa.Select[Any]:
    return _schemas().where(_S.c.dropped_at.is_(None), _D.c.dropped_at.is_(None))


def _schemas() -> sa.Select[Any]:
    joined = _S.join(_D, _S.c.database_id == _D.c.database_id)
    days = sa.func.coalesce(_S.c.retention_days, _D.c.retention_days, DEFAULT_RETENTION_DAYS)
    return sa.select(
        *_S.c, _D.c.name.label("database"), days.label("effective_retention_days")
    ).select_from(joined)


def _database(row: sa.Row[Any]) -> DatabaseRecord:
    days = row.retention_days
    return DatabaseRecord(
        row.database_id,
        row.name,
        row.owner,
        row.created_at,
        DEFAULT_RETENTION_DAYS if days is None else days,
        row.comment,
        row.dropped_at,
    )


def _schema(row: sa.Row[Any]) -> SchemaRecord:
    return SchemaRecord(
        row.schema_id,
        row.database_id,
        row.database,
        row.name,
        row.owner,
        row.created_at,
        row.effective_retention_days,
        row.comment,
        row.dropped_at,
    )
