"""Statements on databases and schemas, and statements that tables share with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import partial

from snowmelt.catalog.model.records import DatabaseRecord, SchemaRecord
from snowmelt.catalog.objects import namespaces, renames_and_evolution
from snowmelt.catalog.objects import tables as table_objects
from snowmelt.catalog.objects.external_functions import list_external_functions, list_translators
from snowmelt.catalog.security import access_control
from snowmelt.catalog.security.access_control import VisibleObjects
from snowmelt.catalog.sql.cursor import (
    CreateMode,
    NameLevel,
    ObjectName,
    TokenCursor,
    display_schema,
)
from snowmelt.catalog.statements import tables
from snowmelt.catalog.statements.alter_table import parse_alter_table
from snowmelt.catalog.statements.statement_context import (
    Listing,
    ShowObjects,
    ShowRow,
    Statement,
    StatementKind,
    StatementResult,
    StatementSession,
    creation_result,
    skip_if_exists,
    skipping_missing,
)
from snowmelt.catalog.statements.tables import parse_properties, parse_set_or_unset
from snowmelt.errors import NotEmpty, NotRestorable
from snowmelt.schema.types import to_display_name


class CreateDatabase(Statement):
    """CREATE DATABASE. `properties` has the values of its clauses."""

    name: str
    create_mode: CreateMode
    properties: Mapping[str, object] = field(default_factory=dict)

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("CREATE DATABASE")
        label = f"Database {to_display_name(self.name)}"
        there = self.name in {each.name for each in namespaces.list_databases(session.connection)}
        skip_if_exists(label, self.create_mode, exists=there)
        new = namespaces.create_database(
            session.connection,
            self.name,
            owner=session.role,
            now=session.now,
            replace=self.create_mode is CreateMode.OR_REPLACE,
            if_not_exists=self.create_mode is CreateMode.IF_NOT_EXISTS,
        )
        namespaces.set_object_properties(
            session.connection, "DATABASE", new.database_id, self.properties
        )
        return creation_result(label, replaced=there)


class CreateSchema(Statement):
    """CREATE SCHEMA. `properties` has the values of its clauses."""

    name: ObjectName
    create_mode: CreateMode
    properties: Mapping[str, object] = field(default_factory=dict)

    def execute(self, session: StatementSession) -> StatementResult:
        connection = session.connection
        database, name = session.resolve_schema_name(self.name)
        session.find_database(database)
        # The lock prevents that another transaction creates or replaces the schema.
        namespaces.lock_database(connection, database)
        _require_create_schema(session, session.find_database(database))
        shown = display_schema(database, name)
        there = [
            each for each in namespaces.list_schemas(connection, database) if each.name == name
        ]
        skip_if_exists(f"Schema {shown}", self.create_mode, exists=bool(there))
        replace = self.create_mode is CreateMode.OR_REPLACE
        if there and replace:
            session.require_ownership("SCHEMA", there[0].schema_id, shown)
        new = namespaces.create_schema(
            connection,
            database,
            name,
            owner=session.role,
            now=session.now,
            replace=replace,
            if_not_exists=self.create_mode is CreateMode.IF_NOT_EXISTS,
        )
        namespaces.set_object_properties(connection, "SCHEMA", new.schema_id, self.properties)
        access_control.apply_future_grants(
            connection, "SCHEMA", new.schema_id, [("DATABASE", new.database_id)]
        )
        return creation_result(f"Schema {shown}", replaced=bool(there))


class DropObject(Statement):
    """DROP DATABASE, SCHEMA or TABLE. If `restrict` is true, the object must be empty."""

    level: NameLevel
    name: ObjectName
    if_exists: bool
    restrict: bool

    def execute(self, session: StatementSession) -> StatementResult:
        kind, connection, now = self.level.capitalize(), session.connection, session.now
        with skipping_missing(self.if_exists):
            _, shown = session.lock_owned_object(self.level, self.name)
            # RESTRICT has no effect on a table: it contains only channels, which are dropped with
            # it.
            if self.restrict and self.level is not NameLevel.TABLE:
                _require_empty(kind, shown, session, *resolve_parts(self.level, self.name, session))
            if self.level is NameLevel.TABLE:
                table_objects.drop_table(connection, session.resolve_table_name(self.name), now)
            elif self.level is NameLevel.SCHEMA:
                namespaces.drop_schema(connection, *session.resolve_schema_name(self.name), now)
            else:
                namespaces.drop_database(connection, session.resolve_database_name(self.name), now)
        return StatementResult(message=f"{kind} {shown} dropped.")


class Undrop(Statement):
    """UNDROP DATABASE, SCHEMA or TABLE."""

    level: NameLevel
    name: ObjectName

    def execute(self, session: StatementSession) -> StatementResult:
        connection, now = session.connection, session.now
        if self.level is NameLevel.DATABASE:
            database = session.resolve_database_name(self.name)
            shown = to_display_name(database)
            session.require_administrator("CREATE DATABASE")
            database_id = namespaces.find_restorable_database(connection, database, now)
            namespaces.undrop_database(connection, database_id, database, now)
        elif self.level is NameLevel.SCHEMA:
            database, name = session.resolve_schema_name(self.name)
            parent = session.find_database(database)
            shown = display_schema(database, name)
            schema_id = namespaces.find_restorable_schema(connection, database, name, now)
            if not access_control.has_privilege(connection, session.role, "SCHEMA", schema_id):
                raise NotRestorable(kind="schema", name=shown)
            _require_create_schema(session, parent)
            namespaces.undrop_schema(connection, schema_id, database, name, now)
        else:
            table_name = session.resolve_table_name(self.name)
            shown = str(table_name)
            session.find_schema(table_name.database, table_name.schema)
            table = namespaces.lock_restorable_table(connection, table_name, now)
            if not access_control.has_privilege(connection, session.role, "TABLE", table.table_id):
                raise NotRestorable(kind="table", name=table_name)
            session.require_in_schema(table_name, "CREATE TABLE")
            namespaces.undrop_table(connection, table, now)
        return StatementResult(message=f"{self.level.capitalize()} {shown} restored.")


class AlterNamespace(Statement):
    """ALTER DATABASE or SCHEMA … SET or UNSET, or COMMENT ON, with the new values of properties."""

    level: NameLevel
    name: ObjectName
    properties: Mapping[str, object]
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        kind = self.level.object_kind
        with skipping_missing(self.if_exists):
            object_id, shown = session.find_owned_object(self.level, self.name)
        namespaces.set_object_properties(session.connection, kind, object_id, self.properties)
        return StatementResult(message=f"{self.level.capitalize()} {shown} altered.")


class RenameNamespace(Statement):
    """ALTER DATABASE or SCHEMA … RENAME TO."""

    level: NameLevel
    name: ObjectName
    new_name: ObjectName
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            _, shown = session.find_owned_object(self.level, self.name)
        connection, now = session.connection, session.now
        if self.level is NameLevel.DATABASE:
            session.require_administrator("CREATE DATABASE")
            database = session.find_database(session.resolve_database_name(self.name))
            name = session.resolve_database_name(self.new_name)
            renames_and_evolution.rename_database(connection, database, name, now)
            new = to_display_name(name)
        else:
            schema = session.find_schema(*session.resolve_schema_name(self.name))
            *place, name = self.new_name.parts
            target = session.find_database(place[0] if place else schema.database)
            _require_create_schema(session, target)
            renames_and_evolution.rename_schema(connection, schema, target, name, now)
            new = display_schema(target.name, name)
        return StatementResult(message=f"{self.level.capitalize()} {shown} renamed to {new}.")


class DescribeObject(Statement):
    """DESCRIBE DATABASE, SCHEMA or TABLE."""

    reads_only = True

    level: NameLevel
    name: ObjectName

    def execute(self, session: StatementSession) -> StatementResult:
        if self.level is NameLevel.TABLE:
            table = session.find_table(session.resolve_table_name(self.name))
            columns = table.schema.columns
            return StatementResult(
                ("name", "type", "nullable", "ordinal", "default"),
                tuple(
                    (each.name, each.sql_type, each.nullable, each.ordinal, each.default_sql)
                    for each in columns
                ),
            )
        rows: Iterator[ShowRow]
        if self.level is NameLevel.DATABASE:
            database = session.find_database(session.resolve_database_name(self.name))
            schemas = list_visible_schemas(session, database.name)
            rows = ((each.created_at, each.name, "SCHEMA") for each in schemas)
        else:
            schema = session.find_schema(*session.resolve_schema_name(self.name))
            found = tables.list_visible_tables(session, schema.database, schema.name)
            rows = ((each.created_at, each.name.table, "TABLE") for each in found)
        return StatementResult(("created_on", "name", "kind"), tuple(rows))


def list_visible_schemas(session: StatementSession, database: str | None) -> list[SchemaRecord]:
    """Return the schemas on which the role has a privilege, optionally of one database."""
    sight = VisibleObjects(session.connection, session.role)
    found = namespaces.list_schemas(session.connection, database)
    return [each for each in found if sight.includes_schema(each)]


def resolve_parts(level: NameLevel, name: ObjectName, session: StatementSession) -> tuple[str, ...]:
    """Return the name of a database, or the database and schema names of a schema.

    Raises:
        StatementError: If neither the statement nor the session specifies the database.
    """
    if level is NameLevel.DATABASE:
        return (session.resolve_database_name(name),)
    return session.resolve_schema_name(name)


def _require_create_schema(session: StatementSession, parent: DatabaseRecord) -> None:
    session.require_privilege(
        "DATABASE", parent.database_id, to_display_name(parent.name), "CREATE SCHEMA"
    )


def _require_empty(
    kind: str, object_name: str, session: StatementSession, *name_parts: str
) -> None:
    table_count = len(table_objects.list_tables(session.connection, *name_parts))
    function_count = len(list_external_functions(session.connection, *name_parts))
    function_count += len(list_translators(session.connection, *name_parts))
    if function_count:
        raise NotEmpty(
            f"{kind} {object_name} is not empty: it has {table_count} tables and {function_count} "
            "functions. Drop them first, or omit RESTRICT.",
            kind=kind,
            name=object_name,
            tables=table_count,
        )
    if table_count:
        raise NotEmpty(kind=kind, name=object_name, tables=table_count)


def _list_database_rows(statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    sight = VisibleObjects(session.connection, session.role, with_dropped=statement.with_history)
    found = namespaces.list_databases(session.connection)
    if statement.with_history:
        found += namespaces.list_restorable_databases(session.connection, session.now)
    for each in filter(sight.includes_database, found):
        row = (each.created_at, each.name, each.owner, each.comment or "", each.retention_days)
        yield (*row, each.dropped_at) if statement.with_history else row


def _list_schema_rows(statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    database, _, _ = statement.resolve_scope(session)
    found = list_visible_schemas(session, database)
    if statement.with_history:
        sight = VisibleObjects(session.connection, session.role, with_dropped=True)
        found += [
            each
            for each in namespaces.list_restorable_schemas(session.connection, session.now)
            if database in {None, each.database} and sight.includes_schema(each)
        ]
    for each in found:
        name = (each.created_at, each.name, each.database, each.owner)
        row = (*name, each.comment or "", each.retention_days)
        yield (*row, each.dropped_at) if statement.with_history else row


def _parse_create_database(cursor: TokenCursor, create_mode: CreateMode) -> CreateDatabase:
    name = cursor.parse_identifier("a database")
    properties = parse_properties(cursor, NameLevel.DATABASE)
    cursor.expect_end("the properties of a database")
    return CreateDatabase(name, create_mode, properties)


def _parse_create_schema(cursor: TokenCursor, create_mode: CreateMode) -> CreateSchema:
    name = cursor.parse_name("a schema", 2)
    properties = parse_properties(cursor, NameLevel.SCHEMA)
    cursor.expect_end("the properties of a schema")
    return CreateSchema(name, create_mode, properties)


def _parse_alter(
    level: NameLevel, cursor: TokenCursor, if_exists: bool
) -> AlterNamespace | RenameNamespace:
    label = f"a {level.lower()}"
    name = cursor.parse_name(label, level.part_count)
    if cursor.is_next("SWAP"):
        raise cursor.make_error("SWAP WITH is not supported: RENAME both")
    word = cursor.expect_one_of("RENAME", "SET", "UNSET")
    if word == "RENAME":
        cursor.expect("TO")
        new_name = cursor.parse_last_name(label, level.part_count, "RENAME TO")
        return RenameNamespace(level, name, new_name, if_exists)
    return AlterNamespace(level, name, parse_set_or_unset(cursor, level, word), if_exists)


def parse_drop_object(level: NameLevel, cursor: TokenCursor, if_exists: bool) -> DropObject:
    """Parse the text of DROP after the kind of object."""
    name = cursor.parse_name(f"a {level.lower()}", level.part_count)
    behaviour = cursor.accept_one_of("CASCADE", "RESTRICT")
    cursor.expect_end("DROP")
    restrict = behaviour is not None and behaviour.text == "RESTRICT"
    return DropObject(level, name, if_exists, restrict)


def parse_describe_object(level: NameLevel, cursor: TokenCursor) -> DescribeObject:
    """Parse the text of DESCRIBE after the kind of object."""
    label = f"a {level.lower()}"
    return DescribeObject(level, cursor.parse_last_name(label, level.part_count, "DESCRIBE"))


def parse_undrop(cursor: TokenCursor) -> Undrop:
    """Parse the text after UNDROP."""
    level, name = _parse_target_object(cursor)
    cursor.expect_end("UNDROP")
    return Undrop(level, name)


def parse_comment_on(cursor: TokenCursor) -> AlterNamespace:
    """Parse the text after COMMENT."""
    if_exists = cursor.accept("IF", "EXISTS")
    cursor.expect("ON")
    if cursor.is_next("COLUMN"):
        raise cursor.make_error(
            "Comments on columns are not supported: use the comment of the table"
        )
    level, name = _parse_target_object(cursor)
    cursor.expect("IS")
    comment = cursor.parse_string("the comment")
    cursor.expect_end("COMMENT")
    return AlterNamespace(level, name, {"comment": comment or None}, if_exists)


def _parse_target_object(cursor: TokenCursor) -> tuple[NameLevel, ObjectName]:
    level = NameLevel(cursor.expect_one_of("DATABASE", "SCHEMA", "TABLE"))
    return level, cursor.parse_name(f"a {level.lower()}", level.part_count)


KINDS = tuple(
    StatementKind(
        level.value,
        create,
        alter,
        partial(parse_drop_object, level),
        partial(parse_describe_object, level),
    )
    for level, create, alter in (
        (NameLevel.DATABASE, _parse_create_database, partial(_parse_alter, NameLevel.DATABASE)),
        (NameLevel.SCHEMA, _parse_create_schema, partial(_parse_alter, NameLevel.SCHEMA)),
        (NameLevel.TABLE, tables.parse_create_table, parse_alter_table),
    )
)
DATABASES = Listing(
    "DATABASES",
    NameLevel.ACCOUNT,
    "created_on name owner comment retention_time",
    _list_database_rows,
    has_history=True,
)
SCHEMAS = Listing(
    "SCHEMAS",
    NameLevel.DATABASE,
    "created_on name database_name owner comment retention_time",
    _list_schema_rows,
    has_history=True,
)
