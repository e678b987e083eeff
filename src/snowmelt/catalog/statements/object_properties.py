"""Properties of databases, schemas and tables: comment, retention, evolution, error table.

The error table stores rejected rows of a table, and is created if it does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import tables
from snowmelt.catalog.security import access_control
from snowmelt.catalog.sql.cursor import NameLevel, ObjectName, TokenCursor, display_schema
from snowmelt.catalog.sql.property_clauses import (
    MAX_RETENTION_DAYS,
    Clause,
    ClauseReader,
    integer_parser,
    parse_boolean,
    text_parser,
)
from snowmelt.catalog.statements.statement_context import StatementSession, make_statement_error
from snowmelt.errors import TableNotFound
from snowmelt.schema.error_table import ERROR_SCHEMA, find_missing_error_columns
from snowmelt.schema.types import TableName

_NAMESPACE_CLAUSES = {
    "DATA_RETENTION_TIME_IN_DAYS": Clause(
        integer_parser("the retention in days", 0, MAX_RETENTION_DAYS), field="retention_days"
    ),
    "COMMENT": Clause(text_parser("a comment")),
}
_TABLE_CLAUSES = {
    **_NAMESPACE_CLAUSES,
    "ENABLE_SCHEMA_EVOLUTION": Clause(parse_boolean, default=False, field="schema_evolution"),
    "ERROR_TABLE": Clause(lambda cursor: cursor.parse_name("a table", 3)),
}


def make_property_reader(level: NameLevel) -> ClauseReader:
    """Return the properties of a kind of object, none of them read yet."""
    return ClauseReader(
        _TABLE_CLAUSES if level is NameLevel.TABLE else _NAMESPACE_CLAUSES, f"a {level.lower()}"
    )


def parse_properties(cursor: TokenCursor, level: NameLevel) -> dict[str, object]:
    """Go past properties, if there are any, and return them."""
    found = make_property_reader(level)
    while found.parse_next(cursor):
        cursor.accept(",")
    return found.field_values()


def parse_set_or_unset(cursor: TokenCursor, level: NameLevel, word: str) -> dict[str, object]:
    """Go past what follows SET or UNSET, which `word` is."""
    found = make_property_reader(level)
    while found.parse_next(cursor, unset=word == "UNSET"):
        cursor.accept(",")
    if not found.values:
        found.raise_unknown_clause(cursor)
    cursor.expect_end(f"the properties of a {level.lower()}")
    return found.field_values()


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
    if "error_table" in found:
        written = cast("ObjectName | None", found.pop("error_table"))
        found["error_table_id"] = (
            written and _find_or_create_error_table(written, session, table).table_id
        )
    return found


def _find_or_create_error_table(
    requested_name: ObjectName, session: StatementSession, table: TableName
) -> TableRecord:
    name = session.resolve_table_name(requested_name)
    if name == table:
        raise make_statement_error(
            f"Table {table} cannot take its own refused rows; name another", requested_name.position
        )
    schema = session.find_schema(name.database, name.schema)
    try:
        there = tables.find_table(session.connection, name)
    except TableNotFound:
        shown = display_schema(name.database, name.schema)
        session.require_privilege("SCHEMA", schema.schema_id, shown, "CREATE TABLE")
        new = tables.create_table(
            session.connection, name, ERROR_SCHEMA.columns, owner=session.role, now=session.now
        )
        access_control.apply_future_table_grants(session.connection, new)
        return new
    session.require_privilege("TABLE", there.table_id, name, "INSERT")
    wanting = find_missing_error_columns(there.schema)
    if wanting:
        raise make_statement_error(
            f"Table {name} is there already and cannot take refused rows: it would need "
            f"{', '.join(wanting)}; name a table that does not exist, and it is created",
            requested_name.position,
        )
    return there
