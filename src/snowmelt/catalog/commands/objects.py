"""Statements about whole databases, schemas and tables: UNDROP, ALTER, COMMENT, TRUNCATE, LIKE."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from snowmelt.catalog.commands.ddl import change
from snowmelt.catalog.commands.session import Result, Session
from snowmelt.catalog.model.privileges import PUBLIC
from snowmelt.catalog.objects import error_tables, tables
from snowmelt.catalog.objects import retention as keeping
from snowmelt.catalog.objects import s3_buckets as buckets
from snowmelt.catalog.objects import table_changes as altering
from snowmelt.catalog.objects.channel_tombstones import hand_on_channels
from snowmelt.catalog.security import access_control as access
from snowmelt.catalog.security import access_control as account
from snowmelt.catalog.security import access_keys
from snowmelt.catalog.sql.ast import (
    AlterBucket,
    AlterNamespace,  # `change.register` reads them
    CommentOn,  # `change.register` reads them
    CreateBucket,
    CreateTable,
    CreateTableLike,  # `change.register` reads them
    DropAccessKey,
    DropBucket,
    GrantOnAccount,
    GrantOnBucket,
    RenameNamespace,  # `change.register` reads them
    TruncateTable,  # `change.register` reads them
    Undrop,  # `change.register` reads them
)
from snowmelt.catalog.sql.identifiers import Existing, Level, schema_shown
from snowmelt.errors import (
    DatabaseNotFound,
    NotRestorable,
    PrivilegeMissing,
    SchemaNotFound,
    TableNotFound,
)
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.catalog.objects.s3_buckets import BucketRecord
    from snowmelt.catalog.sql.identifiers import Name

_GONE = (DatabaseNotFound, SchemaNotFound, TableNotFound)


@change.register
def _undrop(statement: Undrop, session: Session) -> Result:
    kind = statement.level.capitalize()
    match statement.level:
        case Level.TABLE:
            shown = _undrop_table(statement.name, session)
        case Level.SCHEMA:
            shown = _undrop_schema(statement.name, session)
        case _:
            shown = _undrop_database(statement.name, session)
    return Result(message=f"{kind} {shown} restored.")


def _undrop_table(written: Name, session: Session) -> str:
    name = session.table_name(written)
    schema = session.find_schema(name.database, name.schema)
    shown = schema_shown(name.database, name.schema)
    table = keeping.restorable_table(session.connection, name, session.now)
    if not access.has(session.connection, session.role, "TABLE", table.table_id):
        raise NotRestorable(kind="table", name=name)
    session.require("SCHEMA", schema.schema_id, "CREATE TABLE", shown)
    keeping.undrop_table(session.connection, table, session.now)
    return str(name)


def _undrop_schema(written: Name, session: Session) -> str:
    database, name = session.schema_name(written)
    parent = session.find_database(database)
    shown = schema_shown(database, name)
    schema_id = keeping.restorable_schema(session.connection, database, name, session.now)
    if not access.has(session.connection, session.role, "SCHEMA", schema_id):
        raise NotRestorable(kind="schema", name=shown)
    session.require("DATABASE", parent.database_id, "CREATE SCHEMA", display_name(database))
    keeping.undrop_schema(session.connection, schema_id, database, name, session.now)
    return shown


def _undrop_database(written: Name, session: Session) -> str:
    name = session.database_name(written)
    session.require_administrator("CREATE DATABASE")
    database_id = keeping.restorable_database(session.connection, name, session.now)
    keeping.undrop_database(session.connection, database_id, name, session.now)
    return display_name(name)


@change.register
def _alter_namespace(statement: AlterNamespace, session: Session) -> Result:
    return _altered(statement, session, statement.properties)


@change.register
def _comment_on(statement: CommentOn, session: Session) -> Result:
    return _altered(statement, session, {"comment": statement.comment or None})


def _altered(
    statement: AlterNamespace | CommentOn, session: Session, properties: Mapping[str, object]
) -> Result:
    try:
        object_id, shown = session.find_object(statement.level, statement.name)
    except _GONE as error:
        if not statement.if_exists:
            raise
        return Result(message=f"{error} Nothing was done.")
    kind = statement.level.kind
    session.require(kind, object_id, "OWNERSHIP", shown)
    keeping.set_properties(session.connection, kind, object_id, properties)
    return Result(message=f"{statement.level.capitalize()} {shown} altered.")


@change.register
def _rename_namespace(statement: RenameNamespace, session: Session) -> Result:
    try:
        object_id, shown = session.find_object(statement.level, statement.name)
    except _GONE as error:
        if not statement.if_exists:
            raise
        return Result(message=f"{error} Nothing was done.")
    session.require(statement.level.kind, object_id, "OWNERSHIP", shown)
    if statement.level is Level.DATABASE:
        new = _rename_database(statement, session)
    else:
        new = _rename_schema(statement, session)
    return Result(message=f"{statement.level.capitalize()} {shown} is called {new} now.")


def _rename_database(statement: RenameNamespace, session: Session) -> str:
    session.require_administrator("CREATE DATABASE")
    database = session.find_database(session.database_name(statement.name))
    name = session.database_name(statement.new_name)
    altering.rename_database(session.connection, database, name, session.now)
    return display_name(name)


def _rename_schema(statement: RenameNamespace, session: Session) -> str:
    schema = session.find_schema(*session.schema_name(statement.name))
    new = statement.new_name
    database, name = (schema.database, new.parts[0]) if len(new.parts) == 1 else new.parts
    target = session.find_database(database)
    session.require("DATABASE", target.database_id, "CREATE SCHEMA", display_name(database))
    altering.rename_schema(session.connection, schema, target, name, session.now)
    return schema_shown(database, name)


@change.register
def _truncate(statement: TruncateTable, session: Session) -> Result:
    """Put an empty table in the place of a full one, which is kept as if it were dropped.

    So it is one transaction beside all that goes on: what was registered before is gone, what
    comes later counts, and a migration, COPY or compaction that is at work finds its table gone.
    """
    try:
        name = session.table_name(statement.name)
        table = session.find_table(name)
    except _GONE as error:
        if not statement.if_exists:
            raise
        return Result(message=f"{error} Nothing was done.")
    session.require("TABLE", table.table_id, "OWNERSHIP", table.name)
    # The schema before the table, as everywhere.
    tables.schema_of(session.connection, name.database, name.schema, lock=True)
    old = altering.locked(session.connection, table)
    new = tables.create_table(
        session.connection,
        name,
        old.schema.columns,
        cluster_by=old.cluster_by,
        owner=old.owner,
        now=session.now,
        replace=True,
    )
    keeping.hand_on_properties(session.connection, old.table_id, new.table_id)
    access.copy_grants(session.connection, "TABLE", old.table_id, new.table_id)
    hand_on_channels(session.connection, old.table_id, new.table_id, session.now)
    error_tables.hand_on(session.connection, old.table_id, new.table_id)
    return Result(message=f"Table {name} truncated.")


@change.register
def _create_table_like(statement: CreateTableLike, session: Session) -> Result:
    source = session.find_table(session.table_name(statement.source))
    if not access.has(session.connection, session.role, "TABLE", source.table_id, "SELECT"):
        raise PrivilegeMissing(
            role=display_name(session.role), privilege="SELECT", object=f"table {source.name}"
        )
    columns = tuple(
        replace(column, ordinal=ordinal)
        for ordinal, column in enumerate(source.schema.columns, start=1)
    )
    properties = {"schema_evolution": source.schema_evolution}
    return change(
        CreateTable(statement.name, columns, source.cluster_by, statement.existing, properties),
        session,
    )


# --- Statements that change buckets, the privileges on them, and access keys.


@change.register(CreateBucket)
def _create_bucket(statement: CreateBucket, session: Session) -> Result:
    if not account.may(session.connection, {session.role, PUBLIC}, buckets.CREATE_BUCKET):
        raise PrivilegeMissing(
            role=display_name(session.role), privilege=buckets.CREATE_BUCKET, object="the account"
        )
    name = statement.name
    if statement.existing is Existing.KEEP and name in _names(session):
        return Result(message=f"Bucket {name} exists already; nothing was done.")
    buckets.create_bucket(session.connection, name, owner=session.role, now=session.now)
    return Result(message=f"Bucket {name} created.")


@change.register(AlterBucket)
def _alter_bucket(statement: AlterBucket, session: Session) -> Result:
    if statement.if_exists and statement.name not in _names(session):
        return Result(message=f"Bucket {statement.name} does not exist; nothing was done.")
    bucket = _owned(session, statement.name)
    buckets.set_select_dialect(session.connection, bucket, statement.select_dialect)
    return Result(message=f"Bucket {bucket.name} altered.")


@change.register(DropBucket)
def _drop_bucket(statement: DropBucket, session: Session) -> Result:
    if statement.if_exists and statement.name not in _names(session):
        return Result(message=f"Bucket {statement.name} does not exist; nothing was done.")
    bucket = _owned(session, statement.name)
    buckets.drop_bucket(session.connection, bucket, session.now)
    return Result(message=f"Bucket {bucket.name} dropped.")


@change.register(GrantOnBucket)
def _grant_on_bucket(statement: GrantOnBucket, session: Session) -> Result:
    bucket = _owned(session, statement.bucket)
    connection, role = session.connection, statement.role
    for privilege in statement.privileges:
        if statement.prefix is None:
            write = access.revoke if statement.revoke else access.grant
            write(connection, privilege, "BUCKET", bucket.bucket_id, role)
        else:
            narrow = buckets.revoke_prefix if statement.revoke else buckets.grant_prefix
            narrow(connection, privilege, bucket, statement.prefix.encode(), role)
    done = "revoked from" if statement.revoke else "granted to"
    where = "" if statement.prefix is None else f" prefix {statement.prefix!r}"
    privileges = ", ".join(statement.privileges)
    return Result(
        message=f"{privileges} on bucket {bucket.name}{where} {done} role {display_name(role)}."
    )


@change.register(GrantOnAccount)
def _grant_on_account(statement: GrantOnAccount, session: Session) -> Result:
    privilege = statement.privilege
    session.require_administrator(f"GRANT {privilege}")
    account.allow(session.connection, statement.role, privilege, revoke=statement.revoke)
    done = "revoked from" if statement.revoke else "granted to"
    return Result(message=f"{privilege} {done} role {display_name(statement.role)}.")


@change.register(DropAccessKey)
def _drop_access_key(statement: DropAccessKey, session: Session) -> Result:
    if session.user != statement.user:
        session.require_administrator("ALTER USER")
    access_keys.drop_access_key(session.connection, statement.user, statement.access_key_id)
    shown = display_name(statement.user)
    return Result(message=f"Access key {statement.access_key_id} of user {shown} dropped.")


def _owned(session: Session, name: str) -> BucketRecord:
    bucket = session.find_bucket(name)
    session.require("BUCKET", bucket.bucket_id, "OWNERSHIP", bucket.name)
    return bucket


def _names(session: Session) -> set[str]:
    return {bucket.name for bucket in buckets.buckets_of(session.connection)}
