"""DDL and DCL execution: CREATE, ALTER, DROP, GRANT and REVOKE.

`execute_ddl` dispatches on the statement's class. The other modules of this folder register
their statements with it, so they must be imported before the first statement runs.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Literal

from snowmelt.catalog.commands.error_table_property import resolve_error_table_property
from snowmelt.catalog.commands.statement_context import StatementResult, StatementSession
from snowmelt.catalog.objects import namespaces, retention, tables
from snowmelt.catalog.objects.external_functions import list_external_functions, list_translators
from snowmelt.catalog.security import access_control, future_grants
from snowmelt.catalog.sql.ast import (
    AlterUser,
    CreateDatabase,
    CreateRole,
    CreateSchema,
    CreateTable,
    CreateUser,
    DropObject,
    DropPrincipal,
    GrantOnMany,
    GrantPrivileges,
    GrantRole,
)
from snowmelt.catalog.sql.object_name_types import CreateMode, NameLevel, display_schema
from snowmelt.errors import (
    DatabaseNotFound,
    InternalError,
    NotEmpty,
    NotFound,
    SchemaNotFound,
    TableNotFound,
)
from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from snowmelt.catalog.sql.ast import Statement
    from snowmelt.catalog.sql.object_name_types import ObjectName

_PUBLIC_KEY_SLOTS: dict[str, Literal[1, 2]] = {"RSA_PUBLIC_KEY": 1, "RSA_PUBLIC_KEY_2": 2}
_MISSING_OBJECT_ERRORS = (DatabaseNotFound, SchemaNotFound, TableNotFound)


@singledispatch
def execute_ddl(statement: Statement, session: StatementSession) -> StatementResult:
    """Carry out a statement in the session's writing transaction.

    Raises:
        PrivilegeMissing: The role may not do this.
        UserError: Something it needs is missing, or is there already.
    """
    del session
    raise InternalError(f"{type(statement).__name__} changes nothing.")


@execute_ddl.register
def _create_database(statement: CreateDatabase, session: StatementSession) -> StatementResult:
    session.require_administrator("CREATE DATABASE")
    there = statement.name in {each.name for each in namespaces.list_databases(session.connection)}
    namespaces.create_database(
        session.connection,
        statement.name,
        owner=session.role,
        now=session.now,
        replace=statement.create_mode is CreateMode.OR_REPLACE,
        if_not_exists=statement.create_mode is CreateMode.IF_NOT_EXISTS,
    )
    if not (there and statement.create_mode is CreateMode.IF_NOT_EXISTS):
        new = namespaces.find_database(session.connection, statement.name)
        retention.set_object_properties(
            session.connection, "DATABASE", new.database_id, statement.properties
        )
    return _creation_result(
        "Database", to_display_name(statement.name), statement.create_mode, already_exists=there
    )


@execute_ddl.register
def _create_schema(statement: CreateSchema, session: StatementSession) -> StatementResult:
    database, name = session.resolve_schema_name(statement.name)
    parent = session.find_database(database)
    session.require_privilege(
        "DATABASE", parent.database_id, "CREATE SCHEMA", to_display_name(database)
    )
    shown = display_schema(database, name)
    there = [
        each for each in namespaces.list_schemas(session.connection, database) if each.name == name
    ]
    if there and statement.create_mode is CreateMode.OR_REPLACE:
        session.require_privilege("SCHEMA", there[0].schema_id, "OWNERSHIP", shown)
    namespaces.create_schema(
        session.connection,
        database,
        name,
        owner=session.role,
        now=session.now,
        replace=statement.create_mode is CreateMode.OR_REPLACE,
        if_not_exists=statement.create_mode is CreateMode.IF_NOT_EXISTS,
    )
    if not (there and statement.create_mode is CreateMode.IF_NOT_EXISTS):
        new = namespaces.find_schema(session.connection, database, name)
        retention.set_object_properties(
            session.connection, "SCHEMA", new.schema_id, statement.properties
        )
        future_grants.apply_future_grants(
            session.connection, "SCHEMA", new.schema_id, [("DATABASE", new.database_id)]
        )
    return _creation_result("Schema", shown, statement.create_mode, already_exists=bool(there))


@execute_ddl.register
def _create_table(statement: CreateTable, session: StatementSession) -> StatementResult:
    name = session.resolve_table_name(statement.name)
    parent = session.find_schema(name.database, name.schema)
    shown = display_schema(name.database, name.schema)
    session.require_privilege("SCHEMA", parent.schema_id, "CREATE TABLE", shown)
    try:
        there = tables.find_table(session.connection, name)
    except TableNotFound:
        there = None
    if there is not None and statement.create_mode is CreateMode.OR_REPLACE:
        session.require_privilege("TABLE", there.table_id, "OWNERSHIP", name)
    properties: Mapping[str, object] = {}
    if there is None or statement.create_mode is not CreateMode.IF_NOT_EXISTS:
        properties = resolve_error_table_property(statement.properties, session, name)
    new = tables.create_table(
        session.connection,
        name,
        statement.columns,
        cluster_by=statement.cluster_by,
        owner=session.role,
        now=session.now,
        replace=statement.create_mode is CreateMode.OR_REPLACE,
        if_not_exists=statement.create_mode is CreateMode.IF_NOT_EXISTS,
    )
    if there is None or statement.create_mode is not CreateMode.IF_NOT_EXISTS:
        retention.set_object_properties(session.connection, "TABLE", new.table_id, properties)
        if there is not None and statement.copies_grants:
            access_control.copy_grants(session.connection, "TABLE", there.table_id, new.table_id)
        else:
            future_grants.apply_future_table_grants(session.connection, new)
    return _creation_result(
        "Table", str(name), statement.create_mode, already_exists=there is not None
    )


@execute_ddl.register
def _create_user(statement: CreateUser, session: StatementSession) -> StatementResult:
    session.require_administrator("CREATE USER")
    names = {user.name for user in access_control.list_users(session.connection)}
    there = statement.name in names
    if not (there and statement.create_mode is CreateMode.IF_NOT_EXISTS):
        access_control.create_user(
            session.connection,
            statement.name,
            public_key=statement.public_key,
            default_role=statement.default_role,
            now=session.now,
        )
        if statement.second_public_key is not None:
            access_control.set_public_key(
                session.connection, statement.name, statement.second_public_key, slot=2
            )
    return _creation_result(
        "User", to_display_name(statement.name), statement.create_mode, already_exists=there
    )


@execute_ddl.register
def _create_role(statement: CreateRole, session: StatementSession) -> StatementResult:
    session.require_administrator("CREATE ROLE")
    there = statement.name in access_control.list_roles(session.connection)
    if not (there and statement.create_mode is CreateMode.IF_NOT_EXISTS):
        access_control.create_role(session.connection, statement.name, now=session.now)
    return _creation_result(
        "Role", to_display_name(statement.name), statement.create_mode, already_exists=there
    )


@execute_ddl.register
def _alter_user(statement: AlterUser, session: StatementSession) -> StatementResult:
    session.require_administrator("ALTER USER")
    shown = to_display_name(statement.name)
    try:
        access_control.find_user(session.connection, statement.name)
    except NotFound:
        if not statement.if_exists:
            raise
        return StatementResult(message=f"User {shown} does not exist; nothing was done.")
    for word, value in statement.properties:
        if word == "DEFAULT_ROLE":
            access_control.set_default_role(session.connection, statement.name, value)
        else:
            slot = _PUBLIC_KEY_SLOTS[word]
            access_control.set_public_key(session.connection, statement.name, value, slot=slot)
    return StatementResult(message=f"User {shown} altered.")


@execute_ddl.register
def _drop_object(statement: DropObject, session: StatementSession) -> StatementResult:
    kind = statement.level.capitalize()
    try:
        shown = _DROP_HANDLERS[statement.level](statement.name, session, statement.restrict)
    except _MISSING_OBJECT_ERRORS as error:
        if not statement.if_exists:
            raise
        return StatementResult(message=f"{error} Nothing was done.")
    return StatementResult(message=f"{kind} {shown} dropped.")


def _drop_database(name: ObjectName, session: StatementSession, restrict: bool) -> str:
    database = session.find_database(session.resolve_database_name(name))
    shown = to_display_name(database.name)
    session.require_privilege("DATABASE", database.database_id, "OWNERSHIP", shown)
    if restrict:
        _require_empty("Database", shown, session, database.name)
    namespaces.drop_database(session.connection, database.name, session.now)
    return shown


def _drop_schema(name: ObjectName, session: StatementSession, restrict: bool) -> str:
    schema = session.find_schema(*session.resolve_schema_name(name))
    shown = display_schema(schema.database, schema.name)
    session.require_privilege("SCHEMA", schema.schema_id, "OWNERSHIP", shown)
    if restrict:
        _require_empty("Schema", shown, session, schema.database, schema.name)
    namespaces.drop_schema(session.connection, schema.database, schema.name, session.now)
    return shown


def _drop_table(name: ObjectName, session: StatementSession, restrict: bool) -> str:
    del restrict  # nothing hangs on a table but its channels, which go with it
    table = session.find_table(session.resolve_table_name(name))
    session.require_privilege("TABLE", table.table_id, "OWNERSHIP", table.name)
    tables.drop_table(session.connection, table.name, session.now)
    return str(table.name)


_DROP_HANDLERS: dict[NameLevel, Callable[[ObjectName, StatementSession, bool], str]] = {
    NameLevel.DATABASE: _drop_database,
    NameLevel.SCHEMA: _drop_schema,
    NameLevel.TABLE: _drop_table,
}


@execute_ddl.register
def _drop_principal(statement: DropPrincipal, session: StatementSession) -> StatementResult:
    session.require_administrator(f"DROP {statement.kind}")
    shown = f"{statement.kind.capitalize()} {to_display_name(statement.name)}"
    if statement.kind == "USER":
        there = statement.name in {
            user.name for user in access_control.list_users(session.connection)
        }
        drop = access_control.drop_user
    else:
        there = statement.name in access_control.list_roles(session.connection)
        drop = access_control.drop_role
    if statement.if_exists and not there:
        return StatementResult(message=f"{shown} does not exist; nothing was done.")
    drop(session.connection, statement.name)
    return StatementResult(message=f"{shown} dropped.")


@execute_ddl.register
def _grant_role(statement: GrantRole, session: StatementSession) -> StatementResult:
    session.require_administrator("GRANT ROLE")
    role, user = to_display_name(statement.role), to_display_name(statement.user)
    if statement.revoke:
        access_control.revoke_role(session.connection, statement.role, statement.user)
        return StatementResult(message=f"Role {role} revoked from user {user}.")
    access_control.grant_role(session.connection, statement.role, statement.user)
    return StatementResult(message=f"Role {role} granted to user {user}.")


@execute_ddl.register
def _grant_privileges(statement: GrantPrivileges, session: StatementSession) -> StatementResult:
    object_id, shown = session.find_object(statement.level, statement.name)
    kind = statement.level.object_kind
    session.require_privilege(kind, object_id, "OWNERSHIP", shown)
    write = access_control.revoke_privilege if statement.revoke else access_control.grant_privilege
    for privilege in statement.privileges:
        write(session.connection, privilege, kind, object_id, statement.role)
    done = "revoked from" if statement.revoke else "granted to"
    privileges = ", ".join(statement.privileges)
    role = to_display_name(statement.role)
    return StatementResult(message=f"{privileges} on {kind.lower()} {shown} {done} role {role}.")


@execute_ddl.register
def _grant_on_all_or_future(statement: GrantOnMany, session: StatementSession) -> StatementResult:
    """Grant on all that is there, or promise it on all that will be; the scope's owner may."""
    connection = session.connection
    object_id, shown = session.find_object(statement.scope, statement.name)
    scope: future_grants.FutureGrantScope = (
        "SCHEMA" if statement.scope is NameLevel.SCHEMA else "DATABASE"
    )
    session.require_privilege(scope, object_id, "OWNERSHIP", shown)
    kind = statement.level.object_kind
    access_control.require_role(connection, statement.role)
    ids = [] if statement.is_future else _list_grant_target_ids(statement, session)
    for privilege in statement.privileges:
        if statement.is_future:
            given = future_grants.FutureGrant(statement.role, scope, object_id, kind, privilege)
            future_grants.add_or_revoke_future_grant(connection, given, revoke=statement.revoke)
        for each in ids:
            write = (
                access_control.revoke_privilege
                if statement.revoke
                else access_control.grant_privilege
            )
            write(connection, privilege, kind, each, statement.role)
    what = "future" if statement.is_future else str(len(ids))
    done = "revoked from" if statement.revoke else "granted to"
    return StatementResult(
        message=f"{', '.join(statement.privileges)} on {what} {kind.lower()}s in {scope.lower()} "
        f"{shown} {done} role {to_display_name(statement.role)}."
    )


def _list_grant_target_ids(statement: GrantOnMany, session: StatementSession) -> list[int]:
    if statement.scope is NameLevel.DATABASE:
        place: tuple[str, ...] = (session.resolve_database_name(statement.name),)
    else:
        place = session.resolve_schema_name(statement.name)
    if statement.level is NameLevel.SCHEMA:
        return [each.schema_id for each in namespaces.list_schemas(session.connection, *place)]
    return [each.table_id for each in tables.list_tables(session.connection, *place)]


def _creation_result(
    kind: str, object_name: str, create_mode: CreateMode, *, already_exists: bool
) -> StatementResult:
    if already_exists and create_mode is CreateMode.IF_NOT_EXISTS:
        return StatementResult(message=f"{kind} {object_name} exists already; nothing was done.")
    return StatementResult(
        message=f"{kind} {object_name} {'replaced' if already_exists else 'created'}."
    )


def _require_empty(
    kind: str, object_name: str, session: StatementSession, *name_parts: str
) -> None:
    table_count = len(tables.list_tables(session.connection, *name_parts))
    function_count = len(list_external_functions(session.connection, *name_parts))
    function_count += len(list_translators(session.connection, *name_parts))
    if function_count:
        raise NotEmpty(
            f"{kind} {object_name} still holds {table_count} tables and {function_count} functions; "
            "drop them first, or leave RESTRICT out.",
            kind=kind,
            name=object_name,
            tables=table_count,
        )
    if table_count:
        raise NotEmpty(kind=kind, name=object_name, tables=table_count)
