"""The table that rejected records go to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.future import give_table
from snowmelt.catalog.tables import create_table, find_table
from snowmelt.errors import LoadRefused, TableNotFound
from snowmelt.table.rejects import REJECT_SCHEMA

if TYPE_CHECKING:
    import datetime as dt

    import sqlalchemy as sa

    from snowmelt.catalog.tables import TableRecord
    from snowmelt.schema.types import TableName


def require_reject_table(
    connection: sa.Connection, name: TableName, *, owner: str, now: dt.datetime
) -> TableRecord:
    """Return the table of rejects of this name, created if there is none.

    Raises:
        LoadRefused: A table of that name has other columns.
        SchemaNotFound: There is no such schema.
    """
    try:
        found = find_table(connection, name)
    except TableNotFound:
        new = create_table(connection, name, REJECT_SCHEMA.columns, owner=owner, now=now)
        give_table(connection, new)
        return new
    if found.schema.columns != REJECT_SCHEMA.columns:
        raise LoadRefused(
            what=f"REJECTED DATA AS TABLE {name}",
            reason="this table is there already, and its columns are not those of a table of "
            "rejects; name another, or drop it and let COPY create it",
        )
    return found
