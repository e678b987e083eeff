"""What is dropped is kept for a while: how long, how it comes back, and when that has an end.

`kept_until` is set when something is dropped and does not move. Until then UNDROP brings it
back; after that clean-up may delete it. The two meet at the row of a table: whoever locks it first
has it, since clean-up marks it (`purged_at`) before it deletes anything.

Locks are taken from the outside in: database, schema, table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.objects.channel_tombstones import restore_channels_of
from snowmelt.catalog.objects.external_functions import restore_in_schemas
from snowmelt.catalog.objects.namespaces import find_database, find_schema
from snowmelt.catalog.objects.tables import schema_of, table_by_id
from snowmelt.errors import AlreadyExists, DatabaseNotFound, NotRestorable
from snowmelt.schema.types import TableName, display_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from snowmelt.catalog.model.privileges import Kind
    from snowmelt.catalog.model.records import DatabaseRecord, SchemaRecord, TableRecord


_T = model.tables
_S = model.schemas
_D = model.databases
_OF: dict[str, tuple[sa.Table, sa.Column[int]]] = {
    "DATABASE": (_D, _D.c.database_id),
    "SCHEMA": (_S, _S.c.schema_id),
    "TABLE": (_T, _T.c.table_id),
}


def set_properties(
    connection: sa.Connection, kind: Kind, object_id: int, values: Mapping[str, object]
) -> None:
    """Set fields of a database, schema or table: `retention_days`, `comment` and so on.

    None for the retention leaves it to what the object is in.
    """
    table, key = _OF[kind]
    if values:
        connection.execute(sa.update(table).where(key == object_id).values(dict(values)))


def hand_on_properties(connection: sa.Connection, table_id: int, heir_id: int) -> None:
    """Give a table's properties to the one that takes its place."""
    names = ("retention_days", "comment", "schema_evolution", "error_table_id")
    query = sa.select(*(_T.c[name] for name in names)).where(_T.c.table_id == table_id)
    values = connection.execute(query).mappings().one()
    connection.execute(sa.update(_T).where(_T.c.table_id == heir_id).values(dict(values)))


def restorable_table(connection: sa.Connection, name: TableName, now: dt.datetime) -> TableRecord:
    """Return the table of this name that was dropped last, and lock its row.

    Raises:
        DatabaseNotFound: There is no such database.
        SchemaNotFound: There is no such schema in it.
        NotRestorable: None was dropped, or its retention has passed.
    """
    _, schema_id = schema_of(connection, name.database, name.schema, lock=True)
    found = connection.execute(
        sa.select(_T.c.table_id)
        .where(
            _T.c.schema_id == schema_id,
            _T.c.name == name.table,
            _T.c.kept_until > now,
            _T.c.purged_at.is_(None),
            _T.c.dropped_at.is_not(None),
        )
        .order_by(_T.c.dropped_at.desc(), _T.c.table_id.desc())
        .limit(1)
        .with_for_update()
    ).scalar()
    if found is None:
        raise NotRestorable(kind="table", name=name)
    return table_by_id(connection, found)


def undrop_table(connection: sa.Connection, table: TableRecord, now: dt.datetime) -> TableRecord:
    """Bring a table back that `restorable_table` has found: rows, grants, channels with tokens.

    Channels that were open must be opened again.

    Raises:
        AlreadyExists: There is a table of its name by now.
    """
    taken = sa.select(_T.c.table_id).where(
        _T.c.schema_id == table.schema_id,
        _T.c.name == table.name.table,
        _T.c.dropped_at.is_(None),
    )
    if connection.execute(taken).first() is not None:
        raise _taken("Table", str(table.name))
    _revive_tables(connection, [table.table_id], now)
    return table_by_id(connection, table.table_id)


def restorable_schema(connection: sa.Connection, database: str, name: str, now: dt.datetime) -> int:
    """Return the id of the schema of this name that was dropped last, and lock its database.

    Raises:
        DatabaseNotFound: There is no such database.
        NotRestorable: None was dropped, or its retention has passed.
    """
    database_id = _locked_database(connection, database)
    found = connection.execute(
        _last(_S, now).where(_S.c.database_id == database_id, _S.c.name == name)
    ).scalar()
    if found is None or _is_purged(connection, [found]):
        shown = f"{display_name(database)}.{display_name(name)}"
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
    taken = sa.select(_S.c.schema_id).where(
        _S.c.name == name,
        _S.c.dropped_at.is_(None),
        _S.c.database_id
        == sa.select(_S.c.database_id).where(_S.c.schema_id == schema_id).scalar_subquery(),
    )
    if connection.execute(taken).first() is not None:
        raise _taken("Schema", f"{display_name(database)}.{display_name(name)}")
    _revive_schemas(connection, [schema_id], now)
    return find_schema(connection, database, name)


def restorable_database(connection: sa.Connection, name: str, now: dt.datetime) -> int:
    """Return the id of the database of this name that was dropped last.

    Raises:
        NotRestorable: None was dropped, or its retention has passed.
    """
    found = connection.execute(_last(_D, now).where(_D.c.name == name)).scalar()
    if found is None or _is_purged(connection, _gone_along(connection, found)):
        raise NotRestorable(kind="database", name=display_name(name))
    return found


def undrop_database(
    connection: sa.Connection, database_id: int, name: str, now: dt.datetime
) -> DatabaseRecord:
    """Bring a database back with the schemas that it took along, and all that was in them.

    Raises:
        AlreadyExists: There is a database of its name by now.
    """
    taken = sa.select(_D.c.database_id).where(_D.c.name == name, _D.c.dropped_at.is_(None))
    if connection.execute(taken).first() is not None:
        raise _taken("Database", display_name(name))
    connection.execute(
        sa.update(_D)
        .where(_D.c.database_id == database_id)
        .values(dropped_at=None, kept_until=None)
    )
    _revive_schemas(connection, _gone_along(connection, database_id), now)
    return find_database(connection, name)


def purge(connection: sa.Connection, table_id: int, now: dt.datetime) -> bool:
    """Give a dropped table up for clean-up if its retention has passed, and tell whether it is.

    From the end of this transaction on nothing brings it back.
    """
    locked = connection.execute(
        sa.select(_T.c.dropped_at, _T.c.kept_until, _T.c.purged_at)
        .where(_T.c.table_id == table_id)
        .with_for_update()
    ).first()
    if locked is None or locked.dropped_at is None:
        return False
    if locked.purged_at is None:
        # Tables that older versions have dropped were not meant to be kept.
        if locked.kept_until is not None and locked.kept_until > now:
            return False
        connection.execute(sa.update(_T).where(_T.c.table_id == table_id).values(purged_at=now))
    return True


def _revive_schemas(connection: sa.Connection, schema_ids: Sequence[int], now: dt.datetime) -> None:
    connection.execute(
        sa.select(_S.c.schema_id)
        .where(_S.c.schema_id.in_(schema_ids))
        .order_by(_S.c.schema_id)
        .with_for_update()
    )
    connection.execute(
        sa.update(_S)
        .where(_S.c.schema_id.in_(schema_ids))
        .values(dropped_at=None, kept_until=None, dropped_with_parent=False)
    )
    restore_in_schemas(connection, schema_ids)
    along = sa.select(_T.c.table_id).where(
        _T.c.schema_id.in_(schema_ids),
        _T.c.dropped_with_parent.is_(True),
        _T.c.dropped_at.is_not(None),
    )
    _revive_tables(connection, connection.execute(along).scalars().all(), now)


def _revive_tables(connection: sa.Connection, table_ids: Sequence[int], now: dt.datetime) -> None:
    ids = connection.execute(
        sa.select(_T.c.table_id)
        .where(_T.c.table_id.in_(table_ids), _T.c.purged_at.is_(None))
        .order_by(_T.c.table_id)
        .with_for_update()
    )
    there = list(ids.scalars())
    connection.execute(
        sa.update(_T)
        .where(_T.c.table_id.in_(there))
        .values(dropped_at=None, kept_until=None, dropped_with_parent=False)
    )
    restore_channels_of(connection, there, now)


def _last(table: sa.Table, now: dt.datetime) -> sa.Select[int]:
    """Return the query for the id of what was dropped last and is still kept."""
    key = next(iter(table.primary_key.columns))
    return (
        sa.select(key)
        .where(table.c.dropped_at.is_not(None), table.c.kept_until > now)
        .order_by(table.c.dropped_at.desc(), key.desc())
        .limit(1)
        .with_for_update()
    )


def _gone_along(connection: sa.Connection, database_id: int) -> list[int]:
    query = sa.select(_S.c.schema_id).where(
        _S.c.database_id == database_id,
        _S.c.dropped_with_parent.is_(True),
        _S.c.dropped_at.is_not(None),
    )
    return list(connection.execute(query).scalars())


def _is_purged(connection: sa.Connection, schema_ids: Sequence[int]) -> bool:
    """Tell whether clean-up, by a clock that is ahead, has begun with tables in these schemas."""
    query = sa.select(_T.c.table_id).where(
        _T.c.schema_id.in_(schema_ids),
        _T.c.dropped_with_parent.is_(True),
        _T.c.purged_at.is_not(None),
    )
    return connection.execute(query).first() is not None


def _locked_database(connection: sa.Connection, name: str) -> int:
    query = sa.select(_D.c.database_id).where(_D.c.name == name, _D.c.dropped_at.is_(None))
    found: int | None = connection.execute(query.with_for_update()).scalar()
    if found is None:
        raise DatabaseNotFound(database=display_name(name))
    return found


def _taken(kind: str, name: str) -> AlreadyExists:
    return AlreadyExists(
        f"{kind} {name} exists already: give it another name (ALTER {kind.upper()} {name} RENAME "
        "TO …) or drop it, then UNDROP.",
        kind=kind,
        name=name,
    )
