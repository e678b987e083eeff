"""Retention of dropped objects: properties, UNDROP, and the mark for garbage collection.

`kept_until` is set when an object is dropped and never changes. Until then UNDROP restores the
object; after that garbage collection may delete it. Both lock the table's row, and the first one
wins, because garbage collection sets `purged_at` before it deletes anything.

Locks are taken from the outside in: database, schema, table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.model.privilege_kinds import ObjectKind
from snowmelt.catalog.model.records import DatabaseRecord, SchemaRecord, TableRecord
from snowmelt.catalog.objects.channel_tombstones import restore_channels
from snowmelt.catalog.objects.external_functions import restore_functions_and_translators
from snowmelt.catalog.objects.namespaces import (
    find_database,
    find_schema,
    lock_database,
    lock_schemas,
)
from snowmelt.catalog.objects.tables import find_namespace_ids, find_table_by_id
from snowmelt.errors import AlreadyExists, NotRestorable
from snowmelt.schema.types import TableName, to_display_name

_TABLES = model.tables
_SCHEMAS = model.schemas
_DATABASES = model.databases
_TABLES_BY_KIND = {"DATABASE": _DATABASES, "SCHEMA": _SCHEMAS, "TABLE": _TABLES}


def set_object_properties(
    connection: sa.Connection, kind: ObjectKind, object_id: int, values: Mapping[str, object]
) -> None:
    """Set fields of a database, schema or table: `retention_days`, `comment` and so on.

    None for the retention leaves it to what the object is in.
    """
    table = _TABLES_BY_KIND[kind]
    (key,) = table.primary_key
    if values:
        connection.execute(sa.update(table).where(key == object_id).values(dict(values)))


def transfer_table_properties(connection: sa.Connection, table_id: int, new_table_id: int) -> None:
    """Give a table's properties to the one that takes its place."""
    names = ("retention_days", "comment", "schema_evolution", "error_table_id")
    query = sa.select(*(_TABLES.c[name] for name in names)).where(_TABLES.c.table_id == table_id)
    values = connection.execute(query).mappings().one()
    connection.execute(
        sa.update(_TABLES).where(_TABLES.c.table_id == new_table_id).values(dict(values))
    )


def lock_restorable_table(
    connection: sa.Connection, name: TableName, now: dt.datetime
) -> TableRecord:
    """Return the table of this name that was dropped last, and lock its row.

    Raises:
        DatabaseNotFound, SchemaNotFound: There is no such one.
        NotRestorable: None was dropped, or its retention has passed.
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
    """Bring a table back that `lock_restorable_table` has found: rows, grants, channels with tokens.

    Channels that were open must be opened again.

    Raises:
        AlreadyExists: There is a table of its name by now.
    """
    in_schema = _TABLES.c.schema_id == table.schema_id
    _require_free_name(connection, _TABLES, table.name.table, str(table.name), in_schema)
    _restore_tables(connection, [table.table_id], now)
    return find_table_by_id(connection, table.table_id)


def find_restorable_schema(
    connection: sa.Connection, database: str, name: str, now: dt.datetime
) -> int:
    """Return the id of the schema of this name that was dropped last, and lock its database.

    Raises:
        DatabaseNotFound: There is no such database.
        NotRestorable: None was dropped, or its retention has passed.
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
    """Bring a schema back with the tables and functions that it took along.

    What was dropped by itself before stays dropped.

    Raises:
        AlreadyExists: There is a schema of its name by now.
    """
    database_id = sa.select(_SCHEMAS.c.database_id).where(_SCHEMAS.c.schema_id == schema_id)
    shown = f"{to_display_name(database)}.{to_display_name(name)}"
    in_database = _SCHEMAS.c.database_id == database_id.scalar_subquery()
    _require_free_name(connection, _SCHEMAS, name, shown, in_database)
    _restore_schemas(connection, [schema_id], now)
    return find_schema(connection, database, name)


def find_restorable_database(connection: sa.Connection, name: str, now: dt.datetime) -> int:
    """Return the id of the database of this name that was dropped last.

    Raises:
        NotRestorable: None was dropped, or its retention has passed.
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
    """Bring a database back with the schemas that it took along, and all that was in them.

    Raises:
        AlreadyExists: There is a database of its name by now.
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
    """Give a dropped table up for clean-up if its retention has passed, and tell whether it is.

    From the end of this transaction on nothing brings it back.
    """
    locked = connection.execute(
        sa.select(_TABLES.c.dropped_at, _TABLES.c.kept_until, _TABLES.c.purged_at)
        .where(_TABLES.c.table_id == table_id)
        .with_for_update()
    ).first()
    if locked is None or locked.dropped_at is None:
        return False
    if locked.purged_at is None:
        # Tables that older versions have dropped were not meant to be kept.
        if locked.kept_until is not None and locked.kept_until > now:
            return False
        connection.execute(
            sa.update(_TABLES).where(_TABLES.c.table_id == table_id).values(purged_at=now)
        )
    return True


def _restore_schemas(
    connection: sa.Connection, schema_ids: Sequence[int], now: dt.datetime
) -> None:
    lock_schemas(connection, schema_ids)
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
    """Return the query for the id of what was dropped last and is still kept."""
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
    """Tell whether clean-up, by a clock that is ahead, has begun with tables in these schemas."""
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
            f"{kind.capitalize()} {shown_name} exists already: give it another name (ALTER "
            f"{kind.upper()} {shown_name} RENAME TO …) or drop it, then UNDROP.",
            kind=kind.capitalize(),
            name=shown_name,
        )
