"""Tables that take the rows which other tables refuse: named, created, found.

Whoever may insert into a table may bring refused rows into its error table by that: they are
rows that were sent to the table, and nobody needs a privilege more to send bad ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.commands.session import schema_shown
from snowmelt.catalog.objects import tables
from snowmelt.catalog.security import future_grants
from snowmelt.catalog.security.access_control import has
from snowmelt.errors import StatementError, TableNotFound
from snowmelt.schema.error_table import ERROR_SCHEMA, lacking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.catalog.commands.session import Session
    from snowmelt.catalog.model.records import TableRecord
    from snowmelt.catalog.sql.identifiers import Name
    from snowmelt.schema.types import TableName

_FIELD = "error_table"
_T = model.tables


def error_table_of(connection: sa.Connection, table: TableRecord) -> TableRecord | None:
    """Return the table that takes what this one refuses; None when there is none any more."""
    if table.error_table_id is None:
        return None
    try:
        found = tables.table_by_id(connection, table.error_table_id)
    except TableNotFound:
        return None
    return found if found.dropped_at is None else None


def may_feed(connection: sa.Connection, role: str, table_id: int) -> bool:
    """Tell whether a role may insert into a table whose refused rows go to this one."""
    feeding = sa.select(_T.c.table_id).where(
        _T.c.error_table_id == table_id, _T.c.dropped_at.is_(None)
    )
    ids = connection.execute(feeding).scalars().all()
    return any(has(connection, role, "TABLE", each, "INSERT") for each in ids)


def hand_on(connection: sa.Connection, table_id: int, heir_id: int) -> None:
    """Let refused rows go into the table that takes an error table's place."""
    connection.execute(
        sa.update(_T).where(_T.c.error_table_id == table_id).values(error_table_id=heir_id)
    )


def resolved(
    properties: Mapping[str, object], session: Session, table: TableName
) -> dict[str, object]:
    """Return a table's properties with ERROR_TABLE as the id of a table, created if need be.

    Before the table itself is locked: creating one locks its schema, which comes first.

    Raises:
        StatementError: It is the table itself, or one with other columns.
        PrivilegeMissing: The role may not create it, or not insert into it.
        SchemaNotFound: There is no such schema (DatabaseNotFound: alike).
    """
    found = dict(properties)
    if _FIELD not in found:
        return found
    written = found.pop(_FIELD)
    found["error_table_id"] = (
        None if written is None else _named(written, session, table).table_id  # type: ignore[arg-type]
    )
    return found


def _named(written: Name, session: Session, table: TableName) -> TableRecord:
    name = session.table_name(written)
    if name == table:
        raise _error(written, f"Table {table} cannot take its own refused rows; name another")
    schema = session.find_schema(name.database, name.schema)
    try:
        there = tables.find_table(session.connection, name)
    except TableNotFound:
        shown = schema_shown(name.database, name.schema)
        session.require("SCHEMA", schema.schema_id, "CREATE TABLE", shown)
        new = tables.create_table(
            session.connection,
            name,
            ERROR_SCHEMA.columns,
            owner=session.role,
            now=session.now,
        )
        future_grants.give_table(session.connection, new)
        return new
    session.require("TABLE", there.table_id, "INSERT", name)
    wanting = lacking(there.schema)
    if wanting:
        raise _error(
            written,
            f"Table {name} is there already and cannot take refused rows: it would need "
            f"{', '.join(wanting)}; name a table that does not exist, and it is created",
        )
    return there


def _error(written: Name, reason: str) -> StatementError:
    return StatementError(reason=reason, line=written.place.line, column=written.place.column)
