"""Changes of what is there: names, a table's order, whether its columns follow its rows.

Columns change by `tables.add_schema_version`. Functions take a connection and commit nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.namespaces import databases_of, schemas_of
from snowmelt.catalog.tables import find_table, lock_tables, schema_of, table_by_id
from snowmelt.catalog.tombstones import carry_over
from snowmelt.errors import AlreadyExists, TableNotFound
from snowmelt.schema.types import TableName, display_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from snowmelt.catalog.namespaces import DatabaseRecord, SchemaRecord
    from snowmelt.catalog.tables import TableRecord

_T = model.tables
_S = model.schemas
_D = model.databases


def locked(connection: sa.Connection, table: TableRecord) -> TableRecord:
    """Lock a table and return it as it is now.

    Raises:
        TableNotFound: It was dropped meanwhile.
    """
    if not lock_tables(connection, [table.table_id]):
        raise TableNotFound(table=table.name)
    return table_by_id(connection, table.table_id)


def has_had_rows(table: TableRecord) -> bool:
    """Tell whether rows were ever committed to a table, by channels or by loads."""
    return table.last_seq > 0 or table.pointer is not None


def set_cluster_by(connection: sa.Connection, table: TableRecord, columns: Sequence[str]) -> None:
    """Sort the native files that are written from now on by these columns, by internal names."""
    packed = msgspec.json.encode(list(columns)).decode()
    _update(connection, table, cluster_by=packed)


def rename_table(
    connection: sa.Connection, table: TableRecord, name: TableName, now: dt.datetime
) -> TableRecord:
    """Give a table another name, perhaps in another schema; rows, grants and channels stay.

    A channel that is open stays so; one that is opened counts on above all that the name has seen.

    Raises:
        AlreadyExists: There is a table of that name.
        DatabaseNotFound: The new name's database does not exist.
        SchemaNotFound: The new name's schema does not exist.
        TableNotFound: The table was dropped meanwhile.
    """
    # The schema before the table, as everywhere.
    _, schema_id = schema_of(connection, name.database, name.schema, lock=True)
    table = locked(connection, table)
    try:
        find_table(connection, name)
    except TableNotFound:
        pass
    else:
        raise AlreadyExists(kind="Table", name=name)
    carry_over(connection, table.table_id, now)
    _update(connection, table, name=name.table, schema_id=schema_id)
    return table_by_id(connection, table.table_id)


def rename_schema(
    connection: sa.Connection,
    schema: SchemaRecord,
    database: DatabaseRecord,
    name: str,
    now: dt.datetime,
) -> None:
    """Give a schema another name, perhaps in another database; all that is in it goes along.

    Raises:
        AlreadyExists: There is a schema of that name.
    """
    lock = sa.select(_D.c.database_id).where(
        _D.c.database_id.in_([schema.database_id, database.database_id])
    )
    connection.execute(lock.order_by(_D.c.database_id).with_for_update())
    if name in {each.name for each in schemas_of(connection, database.name)}:
        shown = f"{display_name(database.name)}.{display_name(name)}"
        raise AlreadyExists(kind="Schema", name=shown)
    _carry_all(connection, [schema.schema_id], now)
    connection.execute(
        sa.update(_S)
        .where(_S.c.schema_id == schema.schema_id)
        .values(name=name, database_id=database.database_id)
    )


def rename_database(
    connection: sa.Connection, database: DatabaseRecord, name: str, now: dt.datetime
) -> None:
    """Give a database another name; all that is in it goes along.

    Raises:
        AlreadyExists: There is a database of that name.
    """
    lock = sa.select(_D.c.database_id).where(_D.c.database_id == database.database_id)
    connection.execute(lock.with_for_update())
    if name in {each.name for each in databases_of(connection)}:
        raise AlreadyExists(kind="Database", name=display_name(name))
    schemas = [each.schema_id for each in schemas_of(connection, database.name)]
    _carry_all(connection, schemas, now)
    connection.execute(
        sa.update(_D).where(_D.c.database_id == database.database_id).values(name=name)
    )


def _carry_all(connection: sa.Connection, schema_ids: Sequence[int], now: dt.datetime) -> None:
    """Before schemas get to another place: leave what their tables' channels count to."""
    connection.execute(
        sa.select(_S.c.schema_id)
        .where(_S.c.schema_id.in_(schema_ids))
        .order_by(_S.c.schema_id)
        .with_for_update()
    )
    inside = sa.select(_T.c.table_id).where(
        _T.c.schema_id.in_(schema_ids), _T.c.dropped_at.is_(None)
    )
    for table_id in lock_tables(connection, list(connection.execute(inside).scalars())):
        carry_over(connection, table_id, now)


def _update(connection: sa.Connection, table: TableRecord, **values: object) -> None:
    connection.execute(sa.update(_T).where(_T.c.table_id == table.table_id).values(values))
