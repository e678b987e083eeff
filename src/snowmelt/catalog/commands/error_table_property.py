"""Resolution of the ERROR_TABLE property, which names the table that stores rejected rows.

Creates the error table if it does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.objects import tables
from snowmelt.catalog.security import future_grants
from snowmelt.catalog.sql.object_name_types import display_schema
from snowmelt.errors import StatementError, TableNotFound
from snowmelt.schema.error_table import ERROR_SCHEMA, find_missing_error_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.catalog.commands.statement_context import StatementSession
    from snowmelt.catalog.model.records import TableRecord
    from snowmelt.catalog.sql.object_name_types import ObjectName
    from snowmelt.schema.types import TableName

_ERROR_TABLE_FIELD = "error_table"


def resolve_error_table_property(
    properties: Mapping[str, object], session: StatementSession, table: TableName
) -> dict[str, object]:
    """Return a table's properties with ERROR_TABLE as the id of a table, created if need be.

    Before the table itself is locked: creating one locks its schema, which comes first.

    Raises:
        StatementError: It is the table itself, or one with other columns.
        PrivilegeMissing: The role may not create it, or not insert into it.
        SchemaNotFound: There is no such schema (DatabaseNotFound: alike).
    """
    found = dict(properties)
    if _ERROR_TABLE_FIELD not in found:
        return found
    written = found.pop(_ERROR_TABLE_FIELD)
    found["error_table_id"] = (
        None if written is None else _find_or_create_error_table(written, session, table).table_id  # type: ignore[arg-type]
    )
    return found


def _find_or_create_error_table(
    requested_name: ObjectName, session: StatementSession, table: TableName
) -> TableRecord:
    name = session.resolve_table_name(requested_name)
    if name == table:
        raise _statement_error(
            requested_name, f"Table {table} cannot take its own refused rows; name another"
        )
    schema = session.find_schema(name.database, name.schema)
    try:
        there = tables.find_table(session.connection, name)
    except TableNotFound:
        shown = display_schema(name.database, name.schema)
        session.require_privilege("SCHEMA", schema.schema_id, "CREATE TABLE", shown)
        new = tables.create_table(
            session.connection,
            name,
            ERROR_SCHEMA.columns,
            owner=session.role,
            now=session.now,
        )
        future_grants.apply_future_table_grants(session.connection, new)
        return new
    session.require_privilege("TABLE", there.table_id, "INSERT", name)
    wanting = find_missing_error_columns(there.schema)
    if wanting:
        raise _statement_error(
            requested_name,
            f"Table {name} is there already and cannot take refused rows: it would need "
            f"{', '.join(wanting)}; name a table that does not exist, and it is created",
        )
    return there


def _statement_error(requested_name: ObjectName, reason: str) -> StatementError:
    return StatementError(
        reason=reason, line=requested_name.position.line, column=requested_name.position.column
    )
