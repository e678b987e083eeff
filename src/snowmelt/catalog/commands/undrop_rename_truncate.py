"""Statements on whole databases, schemas and tables: UNDROP, RENAME, COMMENT, TRUNCATE, LIKE.

TRUNCATE replaces a table with an empty one in one transaction, and retains the old one as dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from snowmelt.catalog.commands.ddl import execute_ddl
from snowmelt.catalog.commands.statement_context import StatementResult, StatementSession
from snowmelt.catalog.objects import error_table_lookup, renames_and_evolution, retention, tables
from snowmelt.catalog.objects.channel_tombstones import transfer_channels
from snowmelt.catalog.security import access_control
from snowmelt.catalog.sql.ast import (
    AlterNamespace,  # `execute_ddl.register` reads them
    CommentOn,  # `execute_ddl.register` reads them
    CreateTable,
    CreateTableLike,  # `execute_ddl.register` reads them
    RenameNamespace,  # `execute_ddl.register` reads them
    TruncateTable,  # `execute_ddl.register` reads them
    Undrop,  # `execute_ddl.register` reads them
)
from snowmelt.catalog.sql.object_name_types import NameLevel, display_schema
from snowmelt.errors import (
    DatabaseNotFound,
    NotRestorable,
    PrivilegeMissing,
    SchemaNotFound,
    TableNotFound,
)
from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.catalog.sql.object_name_types import ObjectName

_MISSING_OBJECT_ERRORS = (DatabaseNotFound, SchemaNotFound, TableNotFound)


@execute_ddl.register
def _undrop_object(statement: Undrop, session: StatementSession) -> StatementResult:
    kind = statement.level.capitalize()
    match statement.level:
        case NameLevel.TABLE:
            shown = _undrop_table(statement.name, session)
        case NameLevel.SCHEMA:
            shown = _undrop_schema(statement.name, session)
        case _:
            shown = _undrop_database(statement.name, session)
    return StatementResult(message=f"{kind} {shown} restored.")


def _undrop_table(requested_name: ObjectName, session: StatementSession) -> str:
    name = session.resolve_table_name(requested_name)
    schema = session.find_schema(name.database, name.schema)
    shown = display_schema(name.database, name.schema)
    table = retention.lock_restorable_table(session.connection, name, session.now)
    if not access_control.has_privilege(session.connection, session.role, "TABLE", table.table_id):
        raise NotRestorable(kind="table", name=name)
    session.require_privilege("SCHEMA", schema.schema_id, "CREATE TABLE", shown)
    retention.undrop_table(session.connection, table, session.now)
    return str(name)


def _undrop_schema(requested_name: ObjectName, session: StatementSession) -> str:
    database, name = session.resolve_schema_name(requested_name)
    parent = session.find_database(database)
    shown = display_schema(database, name)
    schema_id = retention.find_restorable_schema(session.connection, database, name, session.now)
    if not access_control.has_privilege(session.connection, session.role, "SCHEMA", schema_id):
        raise NotRestorable(kind="schema", name=shown)
    session.require_privilege(
        "DATABASE", parent.database_id, "CREATE SCHEMA", to_display_name(database)
    )
    retention.undrop_schema(session.connection, schema_id, database, name, session.now)
    return shown


def _undrop_database(requested_name: ObjectName, session: StatementSession) -> str:
    name = session.resolve_database_name(requested_name)
    session.require_administrator("CREATE DATABASE")
    database_id = retention.find_restorable_database(session.connection, name, session.now)
    retention.undrop_database(session.connection, database_id, name, session.now)
    return to_display_name(name)


@execute_ddl.register
def _alter_namespace(statement: AlterNamespace, session: StatementSession) -> StatementResult:
    return _alter_properties(statement, session, statement.properties)


@execute_ddl.register
def _comment_on(statement: CommentOn, session: StatementSession) -> StatementResult:
    return _alter_properties(statement, session, {"comment": statement.comment or None})


def _alter_properties(
    statement: AlterNamespace | CommentOn,
    session: StatementSession,
    properties: Mapping[str, object],
) -> StatementResult:
    try:
        object_id, shown = session.find_object(statement.level, statement.name)
    except _MISSING_OBJECT_ERRORS as error:
        if not statement.if_exists:
            raise
        return StatementResult(message=f"{error} Nothing was done.")
    kind = statement.level.object_kind
    session.require_privilege(kind, object_id, "OWNERSHIP", shown)
    retention.set_object_properties(session.connection, kind, object_id, properties)
    return StatementResult(message=f"{statement.level.capitalize()} {shown} altered.")


@execute_ddl.register
def _rename_namespace(statement: RenameNamespace, session: StatementSession) -> StatementResult:
    try:
        object_id, shown = session.find_object(statement.level, statement.name)
    except _MISSING_OBJECT_ERRORS as error:
        if not statement.if_exists:
            raise
        return StatementResult(message=f"{error} Nothing was done.")
    session.require_privilege(statement.level.object_kind, object_id, "OWNERSHIP", shown)
    if statement.level is NameLevel.DATABASE:
        new = _rename_database(statement, session)
    else:
        new = _rename_schema(statement, session)
    return StatementResult(message=f"{statement.level.capitalize()} {shown} is called {new} now.")


def _rename_database(statement: RenameNamespace, session: StatementSession) -> str:
    session.require_administrator("CREATE DATABASE")
    database = session.find_database(session.resolve_database_name(statement.name))
    name = session.resolve_database_name(statement.new_name)
    renames_and_evolution.rename_database(session.connection, database, name, session.now)
    return to_display_name(name)


def _rename_schema(statement: RenameNamespace, session: StatementSession) -> str:
    schema = session.find_schema(*session.resolve_schema_name(statement.name))
    new = statement.new_name
    database, name = (schema.database, new.parts[0]) if len(new.parts) == 1 else new.parts
    target = session.find_database(database)
    session.require_privilege(
        "DATABASE", target.database_id, "CREATE SCHEMA", to_display_name(database)
    )
    renames_and_evolution.rename_schema(session.connection, schema, target, name, session.now)
    return display_schema(database, name)


@execute_ddl.register
def _truncate_table(statement: TruncateTable, session: StatementSession) -> StatementResult:
    """Put an empty table in the place of a full one, which is kept as if it were dropped.

    So it is one transaction beside all that goes on: what was registered before is gone, what
    comes later counts, and a migration, COPY or compaction that is at work finds its table gone.
    """
    try:
        name = session.resolve_table_name(statement.name)
        table = session.find_table(name)
    except _MISSING_OBJECT_ERRORS as error:
        if not statement.if_exists:
            raise
        return StatementResult(message=f"{error} Nothing was done.")
    session.require_privilege("TABLE", table.table_id, "OWNERSHIP", table.name)
    # The schema before the table, as everywhere.
    tables.find_namespace_ids(session.connection, name.database, name.schema, lock=True)
    old = renames_and_evolution.lock_table(session.connection, table)
    new = tables.create_table(
        session.connection,
        name,
        old.schema.columns,
        cluster_by=old.cluster_by,
        owner=old.owner,
        now=session.now,
        replace=True,
    )
    retention.transfer_table_properties(session.connection, old.table_id, new.table_id)
    access_control.copy_grants(session.connection, "TABLE", old.table_id, new.table_id)
    transfer_channels(session.connection, old.table_id, new.table_id, session.now)
    error_table_lookup.redirect_error_rows(session.connection, old.table_id, new.table_id)
    return StatementResult(message=f"Table {name} truncated.")


@execute_ddl.register
def _create_table_like(statement: CreateTableLike, session: StatementSession) -> StatementResult:
    source = session.find_table(session.resolve_table_name(statement.source))
    if not access_control.has_privilege(
        session.connection, session.role, "TABLE", source.table_id, "SELECT"
    ):
        raise PrivilegeMissing(
            role=to_display_name(session.role), privilege="SELECT", object=f"table {source.name}"
        )
    columns = tuple(
        replace(column, ordinal=ordinal)
        for ordinal, column in enumerate(source.schema.columns, start=1)
    )
    properties = {"schema_evolution": source.schema_evolution}
    return execute_ddl(
        CreateTable(statement.name, columns, source.cluster_by, statement.create_mode, properties),
        session,
    )


# --- Statements that change buckets, the privileges on them, and access keys.
