"""Databases and their schemas, and the retention of dropped objects.

Lock order: database, schema, table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_record
from snowmelt.catalog.model.records import (
    DEFAULT_RETENTION_DAYS,
    DatabaseRecord,
    ObjectKind,
    SchemaRecord,
    TableRecord,
)
from snowmelt.catalog.objects.channel_tombstones import restore_channels
from snowmelt.catalog.objects.external_functions import (
    drop_functions_and_translators,
    restore_functions_and_translators,
)
from snowmelt.catalog.objects.tables import drop_tables, find_namespace_ids, find_table_by_id
from snowmelt.errors import AlreadyExists, DatabaseNotFound, NotRestorable
from snowmelt.schema.types import TableName, to_display_name

DEFAULT_SCHEMA = "PUBLIC"

_DATABASES = model.databases
_SCHEMAS = model.schemas
_TABLES = model.tables


def find_database(connection: sa.Connection, name: str) -> DatabaseRecord:
    """Return the live database of this internal name.

    Raises:
        DatabaseNotFound: If it does not exist.
    """
    row = connection.execute(_select_live_databases().where(_DATABASES.c.name == name)).first()
    if row is None:
        raise DatabaseNotFound(database=to_display_name(name))
    return _to_database_record(row)


def lock_database(connection: sa.Connection, name: str) -> int:
    """Lock the live database of this internal name, and return its ID.

    Raises:
        DatabaseNotFound: If it does not exist.
    """
    query = sa.select(_DATABASES.c.database_id).where(
        _DATABASES.c.name == name, _DATABASES.c.dropped_at.is_(None)
    )
    found: int | None = connection.execute(query.with_for_update()).scalar()
    if found is None:
        # The next statement sees the database that replaced this one before the lock.
        found = connection.execute(query.with_for_update()).scalar()
    if found is None:
        raise DatabaseNotFound(database=to_display_name(name))
    return found


def lock_rows(connection: sa.Connection, table: sa.Table, ids: Collection[int]) -> None:
    """Lock databases or schemas in the order of their IDs."""
    (key,) = table.primary_key
    connection.execute(sa.select(key).where(key.in_(ids)).order_by(key).with_for_update())


def lock_schemas(connection: sa.Connection, database_id: int) -> None:
    """Lock the live schemas of a database, so that no table is created in them."""
    query = (
        sa.select(_SCHEMAS.c.schema_id)
        .where(_SCHEMAS.c.database_id == database_id, _SCHEMAS.c.dropped_at.is_(None))
        .order_by(_SCHEMAS.c.schema_id)
    )
    connection.execute(query.with_for_update())


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
    """Create a database with a schema PUBLIC. With `replace`, first drop a database of that name.

    Raises:
        AlreadyExists: If it exists, and neither `replace` nor `if_not_exists` is set.
    """
    existing = connection.execute(_select_live_databases().where(_DATABASES.c.name == name)).first()
    if existing is not None:
        if if_not_exists:
            return _to_database_record(existing)
        if not replace:
            raise AlreadyExists(kind="Database", name=to_display_name(name))
        # Another transaction may have dropped or renamed it since.
        with suppress(DatabaseNotFound):
            drop_database(connection, name, now)
    connection.execute(sa.insert(_DATABASES).values(name=name, owner=owner, created_at=now))
    create_schema(connection, name, DEFAULT_SCHEMA, owner=owner, now=now)
    return find_database(connection, name)


def drop_database(connection: sa.Connection, name: str, now: dt.datetime) -> DatabaseRecord:
    """Drop a database with its contents, which are kept for the database's retention time.

    Raises:
        DatabaseNotFound: If it does not exist.
    """
    lock_database(connection, name)
    database = find_database(connection, name)
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
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
    """
    _, schema_id = find_namespace_ids(connection, database, name)
    return _to_schema_record(
        connection.execute(_select_live_schemas().where(_SCHEMAS.c.schema_id == schema_id)).one()
    )


def list_schemas(connection: sa.Connection, database: str | None = None) -> list[SchemaRecord]:
    """Return the live schemas, ordered by name, optionally of one database."""
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
    """Create a schema. With `replace`, first drop a schema of that name.

    Raises:
        AlreadyExists: If it exists, and neither `replace` nor `if_not_exists` is set.
        DatabaseNotFound: If the database does not exist.
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
    """Drop a schema with its contents, which are kept for the schema's retention time.

    Raises:
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
    """
    find_namespace_ids(connection, database, name, lock=True)
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
    # The lock prevents the creation of a table in a schema that is being dropped.
    lock_rows(connection, _SCHEMAS, schema_ids)
    # The locks exclude tables that other transactions move to another schema.
    inside = (
        sa.select(_TABLES.c.table_id)
        .where(_TABLES.c.schema_id.in_(schema_ids), _TABLES.c.dropped_at.is_(None))
        .order_by(_TABLES.c.table_id)
        .with_for_update()
    )
    drop_tables(connection, connection.execute(inside).scalars().all(), now, kept_until=kept_until)
    drop_functions_and_translators(connection, schema_ids, now)
    connection.execute(
        sa.update(_SCHEMAS)
        .where(_SCHEMAS.c.schema_id.in_(schema_ids))
        .values(dropped_at=now, kept_until=kept_until, dropped_with_parent=not is_standalone)
    )


def list_restorable_databases(connection: sa.Connection, now: dt.datetime) -> list[DatabaseRecord]:
    """Return the dropped databases that UNDROP can restore, most recently dropped first."""
    query = sa.select(_DATABASES).where(
        _DATABASES.c.dropped_at.is_not(None), _DATABASES.c.kept_until > now
    )
    ordered = query.order_by(_DATABASES.c.dropped_at.desc(), _DATABASES.c.database_id.desc())
    return [_to_database_record(row) for row in connection.execute(ordered)]


def list_restorable_schemas(connection: sa.Connection, now: dt.datetime) -> list[SchemaRecord]:
    """Return the dropped schemas that UNDROP can restore, most recently dropped first."""
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


# Properties, UNDROP, and garbage collection of dropped objects. `kept_until` is set when an object
# is dropped and never changes. Until that time UNDROP can restore the object; afterwards garbage
# collection may delete it. Both lock the table's row. Garbage collection sets `purged_at` before it
# deletes anything, so UNDROP never restores a partly deleted table.

_TABLES_BY_KIND = {"DATABASE": _DATABASES, "SCHEMA": _SCHEMAS, "TABLE": _TABLES}


def set_object_properties(
    connection: sa.Connection, kind: ObjectKind, object_id: int, values: Mapping[str, object]
) -> None:
    """Set fields of a database, schema or table, such as `retention_days` and `comment`.

    A retention of None inherits the retention of the enclosing object.
    """
    table = _TABLES_BY_KIND[kind]
    (key,) = table.primary_key
    if values:
        connection.execute(sa.update(table).where(key == object_id).values(dict(values)))


def transfer_table_properties(connection: sa.Connection, table_id: int, new_table_id: int) -> None:
    """Copy the properties of a table to the table that replaces it."""
    names = (
        "retention_days",
        "comment",
        "schema_evolution",
        "error_table_id",
        "hides_fresh_rows",
        "engine_properties",
        "freshness_s",
    )
    query = sa.select(*(_TABLES.c[name] for name in names)).where(_TABLES.c.table_id == table_id)
    values = connection.execute(query).mappings().one()
    connection.execute(
        sa.update(_TABLES).where(_TABLES.c.table_id == new_table_id).values(dict(values))
    )


def lock_restorable_table(
    connection: sa.Connection, name: TableName, now: dt.datetime
) -> TableRecord:
    """Return the last dropped table of this name, and lock its row.

    Raises:
        DatabaseNotFound: If the database does not exist.
        SchemaNotFound: If the schema does not exist.
        NotRestorable: If no such table was dropped, or its retention time has passed.
    """
    _, schema_id = find_namespace_ids(connection, name.database, name.schema, lock=True)
    found = connection.execute(
        _select_last_dropped(_TABLES, now).where(
            _TABLES.c.schema_id == schema_id,
            _TABLES.c.name == name.table,
            _TABLES.c.purged_at.is_(None),
        )
    ).scalar()
    if found is None:
        raise NotRestorable(kind="table", name=name)
    return find_table_by_id(connection, found)


def undrop_table(connection: sa.Connection, table: TableRecord, now: dt.datetime) -> TableRecord:
    """Restore a table that `lock_restorable_table` returned: rows, grants, and channels with tokens.

    Clients that had channels open must reopen them.

    Raises:
        AlreadyExists: If another table has its name.
    """
    in_schema = _TABLES.c.schema_id == table.schema_id
    _require_free_name(connection, _TABLES, table.name.table, str(table.name), in_schema)
    _restore_tables(connection, [table.table_id], now)
    return find_table_by_id(connection, table.table_id)


def find_restorable_schema(
    connection: sa.Connection, database: str, name: str, now: dt.datetime
) -> int:
    """Return the ID of the last dropped schema of this name, and lock its database.

    Raises:
        DatabaseNotFound: If the database does not exist.
        NotRestorable: If no such schema was dropped, or its retention time has passed.
    """
    database_id = lock_database(connection, database)
    found = connection.execute(
        _select_last_dropped(_SCHEMAS, now).where(
            _SCHEMAS.c.database_id == database_id, _SCHEMAS.c.name == name
        )
    ).scalar()
    if found is None or _has_purged_tables(connection, [found]):
        shown = f"{to_display_name(database)}.{to_display_name(name)}"
        raise NotRestorable(kind="schema", name=shown)
    return found


def undrop_schema(
    connection: sa.Connection, schema_id: int, database: str, name: str, now: dt.datetime
) -> SchemaRecord:
    """Restore a schema with the tables and functions that were dropped with it.

    Objects that were dropped before stay dropped.

    Raises:
        AlreadyExists: If another schema has its name.
    """
    database_id = sa.select(_SCHEMAS.c.database_id).where(_SCHEMAS.c.schema_id == schema_id)
    shown = f"{to_display_name(database)}.{to_display_name(name)}"
    in_database = _SCHEMAS.c.database_id == database_id.scalar_subquery()
    _require_free_name(connection, _SCHEMAS, name, shown, in_database)
    _restore_schemas(connection, [schema_id], now)
    return find_schema(connection, database, name)


def find_restorable_database(connection: sa.Connection, name: str, now: dt.datetime) -> int:
    """Return the ID of the last dropped database of this name.

    Raises:
        NotRestorable: If no such database was dropped, or its retention time has passed.
    """
    found = connection.execute(
        _select_last_dropped(_DATABASES, now).where(_DATABASES.c.name == name)
    ).scalar()
    if found is None or _has_purged_tables(
        connection, _list_schemas_dropped_with(connection, found)
    ):
        raise NotRestorable(kind="database", name=to_display_name(name))
    return found


def undrop_database(
    connection: sa.Connection, database_id: int, name: str, now: dt.datetime
) -> DatabaseRecord:
    """Restore a database with the schemas and objects that were dropped with it.

    Raises:
        AlreadyExists: If another database has its name.
    """
    _require_free_name(connection, _DATABASES, name, to_display_name(name))
    connection.execute(
        sa.update(_DATABASES)
        .where(_DATABASES.c.database_id == database_id)
        .values(dropped_at=None, kept_until=None)
    )
    _restore_schemas(connection, _list_schemas_dropped_with(connection, database_id), now)
    return find_database(connection, name)


def mark_purged_if_expired(connection: sa.Connection, table_id: int, now: dt.datetime) -> bool:
    """Mark a dropped table as purged if its retention time has passed. Return True if it is purged.

    After this transaction, UNDROP cannot restore the table.
    """
    locked = connection.execute(
        sa.select(_TABLES.c.dropped_at, _TABLES.c.kept_until, _TABLES.c.purged_at)
        .where(_TABLES.c.table_id == table_id)
        .with_for_update()
    ).first()
    if locked is None or locked.dropped_at is None:
        return False
    if locked.purged_at is None:
        # Tables that older versions dropped have no retention time.
        if locked.kept_until is not None and locked.kept_until > now:
            return False
        connection.execute(
            sa.update(_TABLES).where(_TABLES.c.table_id == table_id).values(purged_at=now)
        )
    return True


def _restore_schemas(
    connection: sa.Connection, schema_ids: Sequence[int], now: dt.datetime
) -> None:
    lock_rows(connection, _SCHEMAS, schema_ids)
    connection.execute(
        sa.update(_SCHEMAS)
        .where(_SCHEMAS.c.schema_id.in_(schema_ids))
        .values(dropped_at=None, kept_until=None, dropped_with_parent=False)
    )
    restore_functions_and_translators(connection, schema_ids)
    along = sa.select(_TABLES.c.table_id).where(
        _TABLES.c.schema_id.in_(schema_ids),
        _TABLES.c.dropped_with_parent.is_(True),
        _TABLES.c.dropped_at.is_not(None),
    )
    _restore_tables(connection, connection.execute(along).scalars().all(), now)


def _restore_tables(connection: sa.Connection, table_ids: Sequence[int], now: dt.datetime) -> None:
    query = sa.select(_TABLES.c.table_id).where(
        _TABLES.c.table_id.in_(table_ids), _TABLES.c.purged_at.is_(None)
    )
    locked = query.order_by(_TABLES.c.table_id).with_for_update()
    there = list(connection.execute(locked).scalars())
    connection.execute(
        sa.update(_TABLES)
        .where(_TABLES.c.table_id.in_(there))
        .values(dropped_at=None, kept_until=None, dropped_with_parent=False)
    )
    restore_channels(connection, there, now)


def _select_last_dropped(table: sa.Table, now: dt.datetime) -> sa.Select[int]:
    """Build the query for the ID of the most recently dropped object within its retention time."""
    key = next(iter(table.primary_key.columns))
    return (
        sa.select(key)
        .where(table.c.dropped_at.is_not(None), table.c.kept_until > now)
        .order_by(table.c.dropped_at.desc(), key.desc())
        .limit(1)
        .with_for_update()
    )


def _list_schemas_dropped_with(connection: sa.Connection, database_id: int) -> list[int]:
    query = sa.select(_SCHEMAS.c.schema_id).where(
        _SCHEMAS.c.database_id == database_id,
        _SCHEMAS.c.dropped_with_parent.is_(True),
        _SCHEMAS.c.dropped_at.is_not(None),
    )
    return list(connection.execute(query).scalars())


def _has_purged_tables(connection: sa.Connection, schema_ids: Sequence[int]) -> bool:
    """Return True if garbage collection has begun to purge tables of these schemas."""
    query = sa.select(_TABLES.c.table_id).where(
        _TABLES.c.schema_id.in_(schema_ids),
        _TABLES.c.dropped_with_parent.is_(True),
        _TABLES.c.purged_at.is_not(None),
    )
    return connection.execute(query).first() is not None


def _require_free_name(
    connection: sa.Connection,
    table: sa.Table,
    name: str,
    shown_name: str,
    *conditions: sa.ColumnElement[bool],
) -> None:
    taken = sa.select(sa.literal(1)).where(
        table.c.name == name, table.c.dropped_at.is_(None), *conditions
    )
    if connection.execute(taken).first() is not None:
        kind = table.name.removesuffix("s")
        raise AlreadyExists(
            f"{kind.capitalize()} {shown_name} already exists. Rename it (ALTER "
            f"{kind.upper()} {shown_name} RENAME TO …) or drop it, then run UNDROP again.",
            kind=kind.capitalize(),
            name=shown_name,
        )
