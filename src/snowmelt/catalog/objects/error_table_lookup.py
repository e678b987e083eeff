"""Lookup of error tables, which store the rows that other tables reject.

A role that may insert into a table may also cause rejected rows in its error table. They are rows
that were sent to the table, so no further privilege is needed.
"""

from __future__ import annotations

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import tables
from snowmelt.catalog.security.access_control import has_privilege
from snowmelt.errors import TableNotFound

_TABLES = model.tables


def find_error_table(connection: sa.Connection, table: TableRecord) -> TableRecord | None:
    """Return the table that takes what this one refuses; None when there is none any more."""
    if table.error_table_id is None:
        return None
    try:
        found = tables.find_table_by_id(connection, table.error_table_id)
    except TableNotFound:
        return None
    return found if found.dropped_at is None else None


def can_write_error_rows(connection: sa.Connection, role: str, error_table_id: int) -> bool:
    """Tell whether a role may insert into a table whose refused rows go to this one."""
    feeding = sa.select(_TABLES.c.table_id).where(
        _TABLES.c.error_table_id == error_table_id, _TABLES.c.dropped_at.is_(None)
    )
    ids = connection.execute(feeding).scalars().all()
    return any(has_privilege(connection, role, "TABLE", each, "INSERT") for each in ids)


def redirect_error_rows(connection: sa.Connection, table_id: int, new_table_id: int) -> None:
    """Let refused rows go into the table that takes an error table's place."""
    connection.execute(
        sa.update(_TABLES)
        .where(_TABLES.c.error_table_id == table_id)
        .values(error_table_id=new_table_id)
    )
