"""Statements that only look: SHOW and DESCRIBE. Each role sees what it may use, no more."""

from __future__ import annotations

import re
from functools import singledispatch
from typing import TYPE_CHECKING, TypeAlias, cast

from snowmelt.catalog.commands.session import Result, Session
from snowmelt.catalog.commands.show_functions import (
    FUNCTION_COLUMNS,
    INTEGRATION_COLUMNS,
    all_integrations,
    describe_function,
    describe_integration,
    shown_functions,
    shown_integrations,
    shown_security_integrations,
    shown_translators,
)
from snowmelt.catalog.model.privileges import PUBLIC
from snowmelt.catalog.objects import libraries, namespaces, pipes, tables
from snowmelt.catalog.objects import s3_buckets as buckets
from snowmelt.catalog.objects.error_tables import error_table_of
from snowmelt.catalog.objects.external_functions import functions_of, translators_of
from snowmelt.catalog.objects.integrations import integrations_of
from snowmelt.catalog.security import access_control as access
from snowmelt.catalog.security import access_control as account
from snowmelt.catalog.security import access_keys
from snowmelt.catalog.security import future_grants as future
from snowmelt.catalog.security.visibility import Sight
from snowmelt.catalog.sql.ast import (
    Describe,
    DescribeFunction,
    DescribeIntegration,
    Overload,
    Show,
    ShowFutureGrants,
    ShowGrants,
)
from snowmelt.catalog.sql.identifiers import Level, schema_shown
from snowmelt.catalog.streaming.channels import channels_of
from snowmelt.errors import InternalError, PrivilegeMissing
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy import Connection

    from snowmelt.catalog.model.privileges import Kind
    from snowmelt.catalog.model.records import DatabaseRecord, SchemaRecord, TableRecord
    from snowmelt.catalog.objects.libraries import FunctionKind
    from snowmelt.catalog.objects.s3_buckets import PrefixGrant
    from snowmelt.catalog.security.access_control import GrantRecord
    from snowmelt.catalog.security.future_grants import Scope
    from snowmelt.catalog.sql.ast import Statement

# --- What is left of the rows of a SHOW: by pattern, prefix and limit, and with TERSE.

Row: TypeAlias = tuple[object, ...]

_TERSE = ("created_on", "name", "kind", "database_name", "schema_name")
# As in Snowflake, where schemas have no kind. Others are of the kind that was asked for.
_KINDS = {"DATABASES": "STANDARD", "SCHEMAS": None, "LIBRARIES": "LIBRARY"}


def narrowed(rows: Iterable[Row], at: int, statement: Show) -> Iterator[Row]:
    """Yield the rows that the statement wants, by the name in their column `at`."""
    pattern = None if statement.like is None else _pattern(statement.like)
    left = statement.limit
    for row in rows:
        name = str(row[at])
        if pattern is not None and not pattern.fullmatch(name):
            continue
        if statement.starts_with is not None and not name.startswith(statement.starts_with):
            continue
        if left is not None:
            if not left:
                return
            left -= 1
        yield row


def terse(
    statement: Show, columns: Sequence[str], rows: Iterable[Row]
) -> tuple[tuple[str, ...], Iterator[Row]]:
    """Return the columns of SHOW TERSE, and the rows with these; what a kind lacks is NULL."""
    kind = _KINDS.get(statement.kind, statement.kind.removesuffix("S"))
    wanted = (*_TERSE, "dropped_on") if statement.with_history else _TERSE

    def cut(row: Row) -> Row:
        told: dict[str, object] = dict(zip(columns, row, strict=True)) | {"kind": kind}
        return tuple(told.get(column) for column in wanted)

    return wanted, map(cut, rows)


def _pattern(like: str) -> re.Pattern[str]:
    r"""Translate `%`, `_` and `\` of LIKE; SHOW compares without regard to case."""
    parts: list[str] = []
    letters = iter(like)
    for letter in letters:
        if letter == "\\":
            parts.append(re.escape(next(letters, letter)))
        else:
            parts.append({"%": ".*", "_": "."}.get(letter) or re.escape(letter))
    return re.compile("".join(parts), re.IGNORECASE | re.DOTALL)


# --- SHOW PIPES: which there are, for those whose they are.

PIPE_COLUMNS = (
    "created_on",
    "name",
    "database_name",
    "schema_name",
    "definition",
    "owner",
    "comment",
)


def shown_pipes(statement: Show, session: Session) -> Iterator[tuple[object, ...]]:
    """Yield the pipes that the session may know of, where the statement looks."""
    database = schema = None
    if statement.scope is not None and statement.level is Level.DATABASE:
        database = session.find_database(session.database_name(statement.scope)).name
    elif statement.scope is not None:
        found = session.find_schema(*session.schema_name(statement.scope))
        database, schema = found.database, found.name
    for each in pipes.pipes_of(session.connection, database, schema):
        if session.is_administrator or each.owner == session.role:
            yield pipe_row(each)


def pipe_row(pipe: pipes.PipeRecord) -> tuple[object, ...]:
    """Return what is shown of a pipe."""
    return (
        pipe.created_at,
        pipe.name,
        pipe.database,
        pipe.schema,
        pipe.definition,
        pipe.owner,
        pipe.comment,
    )


_GRANT_COLUMNS = ("privilege", "granted_on", "name", "granted_to", "grantee_name")


@singledispatch
def show(statement: Statement, session: Session) -> Result:
    """Answer a statement that changes nothing, in the session's reading transaction.

    Raises:
        PrivilegeMissing: The role may not look at this.
        UserError: What it asks about does not exist, or the role may not know of it.
    """
    del session
    raise InternalError(f"{type(statement).__name__} shows nothing.")


@show.register
def _describe(statement: Describe, session: Session) -> Result:
    if statement.level is Level.TABLE:
        table = session.find_table(session.table_name(statement.name))
        return Result(
            ("name", "type", "nullable", "ordinal"),
            tuple(
                (column.name, column.sql_type, column.nullable, column.ordinal)
                for column in table.schema.columns
            ),
        )
    columns = ("created_on", "name", "kind")
    if statement.level is Level.DATABASE:
        database = session.find_database(session.database_name(statement.name))
        schemas = _schemas(session, database.name)
        return Result(columns, tuple((each.created_at, each.name, "SCHEMA") for each in schemas))
    schema = session.find_schema(*session.schema_name(statement.name))
    found = _tables(session, schema.database, schema.name)
    return Result(columns, tuple((each.created_at, each.name.table, "TABLE") for each in found))


@show.register
def _describe_function(statement: DescribeFunction, session: Session) -> Result:
    return describe_function(statement, session)


@show.register
def _describe_integration(statement: DescribeIntegration, session: Session) -> Result:
    return describe_integration(statement, session)


@show.register
def _show(statement: Show, session: Session) -> Result:
    columns, rows_of = _SHOWN[statement.kind]
    if statement.with_history:
        columns = (*columns, "dropped_on")
    rows = narrowed(rows_of(statement, session), columns.index("name"), statement)
    if statement.terse:
        columns, rows = terse(statement, columns, rows)
    return Result(columns, tuple(rows))


@show.register
def _show_grants(statement: ShowGrants, session: Session) -> Result:
    connection = session.connection
    name = statement.name
    if statement.kind == "BUCKET" and name is not None:
        bucket = session.find_bucket(name.parts[0])
        grants = access.grants_of(connection, kind="BUCKET", object_id=bucket.bucket_id)
        beneath = buckets.prefix_grants_of(connection, bucket_id=bucket.bucket_id)
        return Result(_GRANT_COLUMNS, tuple(_grant_rows(grants, session, beneath)))
    if statement.kind in {"FUNCTION", "INTEGRATION"} and name is not None:
        kind, object_id = _to_call(statement, session)
        grants = access.grants_of(connection, kind=kind, object_id=object_id)
        return Result(_GRANT_COLUMNS, tuple(_grant_rows(grants, session)))
    if statement.relation == "ON" and name is not None:
        level = Level(statement.kind or "")
        object_id, _ = session.find_object(level, name)
        grants = access.grants_of(connection, kind=level.kind, object_id=object_id)
        return Result(_GRANT_COLUMNS, tuple(_grant_rows(grants, session)))
    who = session.role if name is None else name.parts[0]
    if statement.kind == "USER":
        _require_self(session, who == session.user, f"user {display_name(who)}")
        access.user_by_name(connection, who)
        granted = access.roles_of(connection, who)
        return Result(_GRANT_COLUMNS, tuple(_member_row(role, who) for role in granted))
    _require_self(session, who == session.role, f"role {display_name(who)}")
    if statement.relation == "OF":
        users = access.users_of(connection)
        members = [user.name for user in users if who in access.roles_of(connection, user.name)]
        return Result(_GRANT_COLUMNS, tuple(_member_row(who, user) for user in members))
    grants = access.grants_of(connection, role=who)
    rows = list(_grant_rows(grants, session, buckets.prefix_grants_of(connection, role=who)))
    rows += [(each, "ACCOUNT", "", "ROLE", who) for each in account.allowed(connection, who)]
    return Result(_GRANT_COLUMNS, tuple(rows))


@show.register
def _show_future_grants(statement: ShowFutureGrants, session: Session) -> Result:
    connection = session.connection
    columns = ("privilege", "grant_on", "name", "grant_to", "grantee_name")
    if statement.scope is None:
        role = statement.name.parts[0]
        _require_self(session, role == session.role, f"role {display_name(role)}")
        found = future.promised(connection, role=role)
    else:
        object_id, _ = session.find_object(statement.scope, statement.name)
        kind: Scope = "SCHEMA" if statement.scope is Level.SCHEMA else "DATABASE"
        found = future.promised(connection, scope=(kind, object_id))
    names = _scope_names(connection)
    rows = (
        (
            each.privilege,
            each.kind,
            f"{names[each.scope_kind, each.scope_id]}.<{each.kind}>",
            "ROLE",
            each.role,
        )
        for each in found
        if (each.scope_kind, each.scope_id) in names
    )
    return Result(columns, tuple(rows))


def _to_call(statement: ShowGrants, session: Session) -> tuple[Kind, int]:
    """Return kind and id of the function, translator or integration that grants are shown of."""
    if statement.name is None:
        raise InternalError("Grants on a function are asked for without its name.")
    if statement.kind == "FUNCTION":
        overload = Overload(statement.name, statement.types)
        return session.find_function_or_translator(overload).securable
    record = session.find_integration(statement.name.parts[0])
    return "INTEGRATION", record.integration_id


def _databases(statement: Show, session: Session) -> Iterator[Row]:
    sight = Sight(session.connection, session.role, with_dropped=statement.with_history)
    found = namespaces.databases_of(session.connection)
    if statement.with_history:
        found += namespaces.restorable_databases(session.connection, session.now)
    for each in found:
        if sight.sees_database(each):
            kept = (each.comment or "", each.retention_days)
            yield (each.created_at, each.name, each.owner, *kept, *_gone(statement, each))


def _shown_schemas(statement: Show, session: Session) -> Iterator[Row]:
    database, _, _ = _scope(statement, session)
    found = _schemas(session, database)
    if statement.with_history:
        sight = Sight(session.connection, session.role, with_dropped=True)
        found += [
            each
            for each in namespaces.restorable_schemas(session.connection, session.now)
            if database in {None, each.database} and sight.sees_schema(each)
        ]
    for each in found:
        kept = (each.comment or "", each.retention_days)
        yield (
            each.created_at,
            each.name,
            each.database,
            each.owner,
            *kept,
            *_gone(statement, each),
        )


def _shown_tables(statement: Show, session: Session) -> Iterator[Row]:
    database, schema, _ = _scope(statement, session)
    found = _tables(session, database, schema)
    if statement.with_history:
        sight = Sight(session.connection, session.role, with_dropped=True)
        found += [
            each
            for each in tables.restorable_tables(session.connection, session.now)
            if database in {None, each.name.database}
            and schema in {None, each.name.schema}
            and sight.sees_table(each)
        ]
    for each in found:
        clustered = ", ".join(display_name(column) for column in each.cluster_by)
        name = each.name
        yield (
            each.created_at,
            name.table,
            name.database,
            name.schema,
            each.comment or "",
            clustered,
            each.schema_evolution,
            each.owner,
            each.retention_days,
            _error_table(each, session),
            *_gone(statement, each),
        )


def _error_table(table: TableRecord, session: Session) -> str:
    found = error_table_of(session.connection, table)
    return "" if found is None else str(found.name)


def _gone(statement: Show, each: DatabaseRecord | SchemaRecord | TableRecord) -> tuple[object, ...]:
    return (each.dropped_at,) if statement.with_history else ()


def _shown_channels(statement: Show, session: Session) -> Iterator[Row]:
    database, schema, table = _scope(statement, session)
    seen = {
        each.table_id: each.name
        for each in _tables(session, database, schema)
        if table in {None, each.name.table}
    }
    # Without a scope all are fetched: a list of every table could be too long for a query.
    found = channels_of(session.connection, None if statement.scope is None else list(seen))
    mine = [each for each in found if each.table_id in seen]
    for each in sorted(mine, key=lambda channel: (seen[channel.table_id], channel.name)):
        name = seen[each.table_id]
        yield (
            each.opened_at,
            each.name,
            name.table,
            name.database,
            name.schema,
            each.client_sequencer,
            each.row_sequencer,
            each.offset_token,
            each.last_commit_at,
            each.rows,
        )


def _users(_statement: Show, session: Session) -> Iterator[Row]:
    for each in access.users_of(session.connection):
        if session.is_administrator or each.name == session.user:
            prints = ", ".join(each.fingerprints)
            yield each.created_at, each.name, each.default_role, prints


def _roles(_statement: Show, session: Session) -> Iterator[Row]:
    known = {session.role, PUBLIC}
    if session.user is not None:
        known |= set(access.roles_of(session.connection, session.user))
    for each in access.roles(session.connection):
        if session.is_administrator or each in known:
            yield (each,)


def _buckets(_statement: Show, session: Session) -> Iterator[Row]:
    holders = {session.role, PUBLIC}
    for each in buckets.buckets_of(session.connection):
        if not buckets.reach(session.connection, holders, each).is_empty:
            yield each.created_at, each.name, each.owner, each.backend, each.select_dialect


def _access_keys(_statement: Show, session: Session) -> Iterator[Row]:
    mine = None if session.is_administrator else session.user or ""
    for each in access_keys.access_keys_of(session.connection, mine):
        yield each.created_at, each.access_key_id, each.user


def _libraries(_statement: Show, session: Session) -> Iterator[Row]:
    for each in libraries.libraries_of(session.connection):
        yield each.created_at, each.name, each.language, each.origin, len(each.files), each.owner


def _functions(statement: Show, session: Session) -> Iterator[Row]:
    kind = cast("FunctionKind", statement.kind.removesuffix("S").lower())
    for each in libraries.functions_of(session.connection, kind):
        yield each.created_at, each.name, each.factory, each.library, each.owner


def _external_functions(statement: Show, session: Session) -> Iterator[Row]:
    database, schema, _ = _scope(statement, session)
    yield from shown_functions(session, database, schema)


def _all_functions(statement: Show, session: Session) -> Iterator[Row]:
    database, schema, _ = _scope(statement, session)
    found = [
        *shown_functions(session, database, schema),
        *shown_translators(session, database, schema),
    ]
    # By database, schema and name.
    yield from sorted(found, key=lambda row: (str(row[2]), str(row[3]), str(row[1])))


_FUNCTIONS = ("created_on", "name", "factory", "library", "owner")
_SHOWN: dict[str, tuple[tuple[str, ...], Callable[[Show, Session], Iterator[Row]]]] = {
    "DATABASES": (("created_on", "name", "owner", "comment", "retention_time"), _databases),
    "SCHEMAS": (
        ("created_on", "name", "database_name", "owner", "comment", "retention_time"),
        _shown_schemas,
    ),
    "TABLES": (
        (
            "created_on",
            "name",
            "database_name",
            "schema_name",
            "comment",
            "cluster_by",
            "enable_schema_evolution",
            "owner",
            "retention_time",
            "error_table",
        ),
        _shown_tables,
    ),
    "CHANNELS": (
        (
            "created_on",
            "name",
            "table_name",
            "database_name",
            "schema_name",
            "client_sequencer",
            "row_sequencer",
            "offset_token",
            "last_commit_on",
            "rows",
        ),
        _shown_channels,
    ),
    "USERS": (("created_on", "name", "default_role", "fingerprints"), _users),
    "ROLES": (("name",), _roles),
    "BUCKETS": (("created_on", "name", "owner", "backend", "select_dialect"), _buckets),
    "ACCESS KEYS": (("created_on", "name", "user_name"), _access_keys),
    "LIBRARIES": (("created_on", "name", "language", "origin", "files", "owner"), _libraries),
    "FILTERS": (_FUNCTIONS, _functions),
    "PARSERS": (_FUNCTIONS, _functions),
    "SOURCES": (_FUNCTIONS, _functions),
    "EXTERNAL FUNCTIONS": (FUNCTION_COLUMNS, _external_functions),
    "FUNCTIONS": (FUNCTION_COLUMNS, _all_functions),
    "API INTEGRATIONS": (INTEGRATION_COLUMNS, lambda _, session: shown_integrations(session)),
    "INTEGRATIONS": (INTEGRATION_COLUMNS, lambda _, session: all_integrations(session)),
    "SECURITY INTEGRATIONS": (
        INTEGRATION_COLUMNS,
        lambda _, session: shown_security_integrations(session),
    ),
    "PIPES": (PIPE_COLUMNS, shown_pipes),
}


def _schemas(session: Session, database: str | None) -> list[SchemaRecord]:
    sight = Sight(session.connection, session.role)
    found = namespaces.schemas_of(session.connection, database)
    return [each for each in found if sight.sees_schema(each)]


def _tables(session: Session, database: str | None, schema: str | None) -> list[TableRecord]:
    sight = Sight(session.connection, session.role)
    found = tables.tables_of(session.connection, database, schema)
    return [each for each in found if sight.sees_table(each)]


def _scope(statement: Show, session: Session) -> tuple[str | None, str | None, str | None]:
    """Return database, schema and table to look in, as far as given; they exist."""
    name = statement.scope
    if name is None:
        return None, None, None
    level = statement.level or list(Level)[len(name.parts)]
    if level is Level.DATABASE:
        return session.find_database(session.database_name(name)).name, None, None
    if level is Level.SCHEMA:
        schema = session.find_schema(*session.schema_name(name))
        return schema.database, schema.name, None
    table = session.find_table(session.table_name(name)).name
    return table.database, table.schema, table.table


def _require_self(session: Session, own: bool, shown: str) -> None:
    if not (own or session.is_administrator):
        raise PrivilegeMissing(role=session.role, privilege="SHOW GRANTS", object=shown)


def _member_row(role: str, user: str) -> Row:
    return "USAGE", "ROLE", role, "USER", user


def _grant_rows(
    grants: Iterable[GrantRecord], session: Session, beneath: Iterable[PrefixGrant] = ()
) -> Iterator[Row]:
    connection = session.connection
    names = _scope_names(connection)
    for table in tables.tables_of(connection):
        names["TABLE", table.table_id] = str(table.name)
    for bucket in buckets.buckets_of(connection):
        names["BUCKET", bucket.bucket_id] = bucket.name
    for function in functions_of(connection):
        names[function.securable] = function.shown
    for translator in translators_of(connection):
        names[translator.securable] = translator.shown
    for integration in integrations_of(connection):
        names["INTEGRATION", integration.integration_id] = display_name(
            integration.integration.name
        )
    for grant in grants:
        kind = "FUNCTION" if grant.kind == "TRANSLATOR" else grant.kind
        yield grant.privilege, kind, names[grant.kind, grant.object_id], "ROLE", grant.role
    for narrow in beneath:
        name = f"{names['BUCKET', narrow.bucket_id]} PREFIX '{narrow.prefix.decode()}'"
        yield narrow.privilege, "BUCKET", name, "ROLE", narrow.role


def _scope_names(connection: Connection) -> dict[tuple[str, int], str]:
    names: dict[tuple[str, int], str] = {}
    for database in namespaces.databases_of(connection):
        names["DATABASE", database.database_id] = display_name(database.name)
    for schema in namespaces.schemas_of(connection):
        names["SCHEMA", schema.schema_id] = schema_shown(schema.database, schema.name)
    return names
