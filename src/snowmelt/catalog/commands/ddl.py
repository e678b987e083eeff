"""Statements that change the catalog: CREATE, ALTER, DROP, GRANT, REVOKE."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Literal

from snowmelt.catalog.commands.error_tables import resolved
from snowmelt.catalog.commands.session import Result, Session
from snowmelt.catalog.objects import namespaces, retention, tables
from snowmelt.catalog.objects.external_functions import functions_of, translators_of
from snowmelt.catalog.security import access_control, future_grants
from snowmelt.catalog.sql.ast import (
    AlterUser,
    CreateDatabase,
    CreateRole,
    CreateSchema,
    CreateTable,
    CreateUser,
    Drop,
    DropPrincipal,
    GrantOnMany,
    GrantPrivileges,
    GrantRole,
)
from snowmelt.catalog.sql.identifiers import Existing, Level, schema_shown
from snowmelt.errors import (
    DatabaseNotFound,
    InternalError,
    NotEmpty,
    NotFound,
    SchemaNotFound,
    TableNotFound,
)
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from snowmelt.catalog.sql.ast import Statement
    from snowmelt.catalog.sql.identifiers import Name

_KEY_SLOTS: dict[str, Literal[1, 2]] = {"RSA_PUBLIC_KEY": 1, "RSA_PUBLIC_KEY_2": 2}
_GONE = (DatabaseNotFound, SchemaNotFound, TableNotFound)


@singledispatch
def change(statement: Statement, session: Session) -> Result:
    """Carry out a statement in the session's writing transaction.

    Raises:
        PrivilegeMissing: The role may not do this.
        UserError: Something it needs is missing, or is there already.
    """
    del session
    raise InternalError(f"{type(statement).__name__} changes nothing.")


@change.register
def _create_database(statement: CreateDatabase, session: Session) -> Result:
    session.require_administrator("CREATE DATABASE")
    there = statement.name in {each.name for each in namespaces.databases_of(session.connection)}
    namespaces.create_database(
        session.connection,
        statement.name,
        owner=session.role,
        now=session.now,
        replace=statement.existing is Existing.REPLACE,
        if_not_exists=statement.existing is Existing.KEEP,
    )
    if not (there and statement.existing is Existing.KEEP):
        new = namespaces.find_database(session.connection, statement.name)
        retention.set_properties(
            session.connection, "DATABASE", new.database_id, statement.properties
        )
    return _created("Database", display_name(statement.name), statement.existing, there=there)


@change.register
def _create_schema(statement: CreateSchema, session: Session) -> Result:
    database, name = session.schema_name(statement.name)
    parent = session.find_database(database)
    session.require("DATABASE", parent.database_id, "CREATE SCHEMA", display_name(database))
    shown = schema_shown(database, name)
    there = [
        each for each in namespaces.schemas_of(session.connection, database) if each.name == name
    ]
    if there and statement.existing is Existing.REPLACE:
        session.require("SCHEMA", there[0].schema_id, "OWNERSHIP", shown)
    namespaces.create_schema(
        session.connection,
        database,
        name,
        owner=session.role,
        now=session.now,
        replace=statement.existing is Existing.REPLACE,
        if_not_exists=statement.existing is Existing.KEEP,
    )
    if not (there and statement.existing is Existing.KEEP):
        new = namespaces.find_schema(session.connection, database, name)
        retention.set_properties(session.connection, "SCHEMA", new.schema_id, statement.properties)
        future_grants.give(
            session.connection, "SCHEMA", new.schema_id, [("DATABASE", new.database_id)]
        )
    return _created("Schema", shown, statement.existing, there=bool(there))


@change.register
def _create_table(statement: CreateTable, session: Session) -> Result:
    name = session.table_name(statement.name)
    parent = session.find_schema(name.database, name.schema)
    shown = schema_shown(name.database, name.schema)
    session.require("SCHEMA", parent.schema_id, "CREATE TABLE", shown)
    try:
        there = tables.find_table(session.connection, name)
    except TableNotFound:
        there = None
    if there is not None and statement.existing is Existing.REPLACE:
        session.require("TABLE", there.table_id, "OWNERSHIP", name)
    properties: Mapping[str, object] = {}
    if there is None or statement.existing is not Existing.KEEP:
        properties = resolved(statement.properties, session, name)
    new = tables.create_table(
        session.connection,
        name,
        statement.columns,
        cluster_by=statement.cluster_by,
        owner=session.role,
        now=session.now,
        replace=statement.existing is Existing.REPLACE,
        if_not_exists=statement.existing is Existing.KEEP,
    )
    if there is None or statement.existing is not Existing.KEEP:
        retention.set_properties(session.connection, "TABLE", new.table_id, properties)
        if there is not None and statement.copies_grants:
            access_control.copy_grants(session.connection, "TABLE", there.table_id, new.table_id)
        else:
            future_grants.give_table(session.connection, new)
    return _created("Table", str(name), statement.existing, there=there is not None)


@change.register
def _create_user(statement: CreateUser, session: Session) -> Result:
    session.require_administrator("CREATE USER")
    names = {user.name for user in access_control.users_of(session.connection)}
    there = statement.name in names
    if not (there and statement.existing is Existing.KEEP):
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
    return _created("User", display_name(statement.name), statement.existing, there=there)


@change.register
def _create_role(statement: CreateRole, session: Session) -> Result:
    session.require_administrator("CREATE ROLE")
    there = statement.name in access_control.roles(session.connection)
    if not (there and statement.existing is Existing.KEEP):
        access_control.create_role(session.connection, statement.name, now=session.now)
    return _created("Role", display_name(statement.name), statement.existing, there=there)


@change.register
def _alter_user(statement: AlterUser, session: Session) -> Result:
    session.require_administrator("ALTER USER")
    shown = display_name(statement.name)
    try:
        access_control.user_by_name(session.connection, statement.name)
    except NotFound:
        if not statement.if_exists:
            raise
        return Result(message=f"User {shown} does not exist; nothing was done.")
    for word, value in statement.properties:
        if word == "DEFAULT_ROLE":
            access_control.set_default_role(session.connection, statement.name, value)
        else:
            slot = _KEY_SLOTS[word]
            access_control.set_public_key(session.connection, statement.name, value, slot=slot)
    return Result(message=f"User {shown} altered.")


@change.register
def _drop(statement: Drop, session: Session) -> Result:
    kind = statement.level.capitalize()
    try:
        shown = _DROPPERS[statement.level](statement.name, session, statement.restrict)
    except _GONE as error:
        if not statement.if_exists:
            raise
        return Result(message=f"{error} Nothing was done.")
    return Result(message=f"{kind} {shown} dropped.")


def _drop_database(name: Name, session: Session, restrict: bool) -> str:
    database = session.find_database(session.database_name(name))
    shown = display_name(database.name)
    session.require("DATABASE", database.database_id, "OWNERSHIP", shown)
    if restrict:
        _require_empty("Database", shown, session, database.name)
    namespaces.drop_database(session.connection, database.name, session.now)
    return shown


def _drop_schema(name: Name, session: Session, restrict: bool) -> str:
    schema = session.find_schema(*session.schema_name(name))
    shown = schema_shown(schema.database, schema.name)
    session.require("SCHEMA", schema.schema_id, "OWNERSHIP", shown)
    if restrict:
        _require_empty("Schema", shown, session, schema.database, schema.name)
    namespaces.drop_schema(session.connection, schema.database, schema.name, session.now)
    return shown


def _drop_table(name: Name, session: Session, restrict: bool) -> str:
    del restrict  # nothing hangs on a table but its channels, which go with it
    table = session.find_table(session.table_name(name))
    session.require("TABLE", table.table_id, "OWNERSHIP", table.name)
    tables.drop_table(session.connection, table.name, session.now)
    return str(table.name)


_DROPPERS: dict[Level, Callable[[Name, Session, bool], str]] = {
    Level.DATABASE: _drop_database,
    Level.SCHEMA: _drop_schema,
    Level.TABLE: _drop_table,
}


@change.register
def _drop_principal(statement: DropPrincipal, session: Session) -> Result:
    session.require_administrator(f"DROP {statement.kind}")
    shown = f"{statement.kind.capitalize()} {display_name(statement.name)}"
    if statement.kind == "USER":
        there = statement.name in {
            user.name for user in access_control.users_of(session.connection)
        }
        drop = access_control.drop_user
    else:
        there = statement.name in access_control.roles(session.connection)
        drop = access_control.drop_role
    if statement.if_exists and not there:
        return Result(message=f"{shown} does not exist; nothing was done.")
    drop(session.connection, statement.name)
    return Result(message=f"{shown} dropped.")


@change.register
def _grant_role(statement: GrantRole, session: Session) -> Result:
    session.require_administrator("GRANT ROLE")
    role, user = display_name(statement.role), display_name(statement.user)
    if statement.revoke:
        access_control.revoke_role(session.connection, statement.role, statement.user)
        return Result(message=f"Role {role} revoked from user {user}.")
    access_control.grant_role(session.connection, statement.role, statement.user)
    return Result(message=f"Role {role} granted to user {user}.")


@change.register
def _grant_privileges(statement: GrantPrivileges, session: Session) -> Result:
    object_id, shown = session.find_object(statement.level, statement.name)
    kind = statement.level.kind
    session.require(kind, object_id, "OWNERSHIP", shown)
    write = access_control.revoke if statement.revoke else access_control.grant
    for privilege in statement.privileges:
        write(session.connection, privilege, kind, object_id, statement.role)
    done = "revoked from" if statement.revoke else "granted to"
    privileges = ", ".join(statement.privileges)
    role = display_name(statement.role)
    return Result(message=f"{privileges} on {kind.lower()} {shown} {done} role {role}.")


@change.register
def _grant_on_many(statement: GrantOnMany, session: Session) -> Result:
    """Grant on all that is there, or promise it on all that will be; the scope's owner may."""
    connection = session.connection
    object_id, shown = session.find_object(statement.scope, statement.name)
    scope: future_grants.Scope = "SCHEMA" if statement.scope is Level.SCHEMA else "DATABASE"
    session.require(scope, object_id, "OWNERSHIP", shown)
    kind = statement.level.kind
    access_control.require_role(connection, statement.role)
    ids = [] if statement.is_future else _inside(statement, session)
    for privilege in statement.privileges:
        if statement.is_future:
            given = future_grants.FutureGrant(statement.role, scope, object_id, kind, privilege)
            future_grants.promise(connection, given, revoke=statement.revoke)
        for each in ids:
            write = access_control.revoke if statement.revoke else access_control.grant
            write(connection, privilege, kind, each, statement.role)
    what = "future" if statement.is_future else str(len(ids))
    done = "revoked from" if statement.revoke else "granted to"
    return Result(
        message=f"{', '.join(statement.privileges)} on {what} {kind.lower()}s in {scope.lower()} "
        f"{shown} {done} role {display_name(statement.role)}."
    )


def _inside(statement: GrantOnMany, session: Session) -> list[int]:
    if statement.scope is Level.DATABASE:
        place: tuple[str, ...] = (session.database_name(statement.name),)
    else:
        place = session.schema_name(statement.name)
    if statement.level is Level.SCHEMA:
        return [each.schema_id for each in namespaces.schemas_of(session.connection, *place)]
    return [each.table_id for each in tables.tables_of(session.connection, *place)]


def _created(kind: str, shown: str, existing: Existing, *, there: bool) -> Result:
    if there and existing is Existing.KEEP:
        return Result(message=f"{kind} {shown} exists already; nothing was done.")
    return Result(message=f"{kind} {shown} {'replaced' if there else 'created'}.")


def _require_empty(kind: str, shown: str, session: Session, *place: str) -> None:
    table_count = len(tables.tables_of(session.connection, *place))
    function_count = len(functions_of(session.connection, *place))
    function_count += len(translators_of(session.connection, *place))
    if function_count:
        raise NotEmpty(
            f"{kind} {shown} still holds {table_count} tables and {function_count} functions; "
            "drop them first, or leave RESTRICT out.",
            kind=kind,
            name=shown,
            tables=table_count,
        )
    if table_count:
        raise NotEmpty(kind=kind, name=shown, tables=table_count)
