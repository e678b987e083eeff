"""Changes of a table that is there: its name, its order, whether its columns follow its rows.

Columns change by `tables.add_schema_version`. Functions take a connection and commit nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.tables import find_table, lock_tables, schema_of, table_by_id
from snowmelt.catalog.tombstones import carry_over
from snowmelt.errors import AlreadyExists, TableNotFound

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from snowmelt.catalog.tables import TableRecord
    from snowmelt.schema.types import TableName

_T = model.tables


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


def set_schema_evolution(
    connection: sa.Connection, table: TableRecord, *, is_enabled: bool
) -> None:
    """Keep whether the table's columns may follow its rows."""
    _update(connection, table, schema_evolution=is_enabled)


def rename_table(
    connection: sa.Connection, table: TableRecord, name: TableName, now: dt.datetime
) -> TableRecord:
    """Give a table another name, perhaps in another schema; rows, grants and channels stay.

    Client sequencers stay above those that channels under either name have had.

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
    carry_over(connection, table.table_id, name, now)
    _update(connection, table, name=name.table, schema_id=schema_id)
    return table_by_id(connection, table.table_id)


def _update(connection: sa.Connection, table: TableRecord, **values: object) -> None:
    connection.execute(sa.update(_T).where(_T.c.table_id == table.table_id).values(values))
