"""Execution of SHOW and DESCRIBE. Each role sees only the objects that it may use.

Covers row filters (LIKE, STARTS WITH, LIMIT, TERSE), SHOW PIPES, and the rows of every other kind.
"""

from __future__ import annotations

import re
from functools import singledispatch
from typing import TYPE_CHECKING, TypeAlias, cast

from snowmelt.catalog.commands.show_functions import (
    FUNCTION_COLUMNS,
    INTEGRATION_COLUMNS,
    describe_function,
    describe_integration,
    list_api_integration_rows,
    list_function_rows,
    list_integration_rows,
    list_security_integration_rows,
    list_translator_rows,
)
from snowmelt.catalog.commands.statement_context import StatementResult, StatementSession
from snowmelt.catalog.model.privilege_kinds import PUBLIC
from snowmelt.catalog.objects import libraries, namespaces, pipes, s3_buckets, tables
from snowmelt.catalog.objects.api_integrations import list_api_integrations
from snowmelt.catalog.objects.error_table_lookup import find_error_table
from snowmelt.catalog.objects.external_functions import list_external_functions, list_translators
from snowmelt.catalog.security import access_control, access_keys, future_grants
from snowmelt.catalog.security.visibility import VisibleObjects
from snowmelt.catalog.sql.ast import (
    DescribeFunction,
    DescribeIntegration,
    DescribeObject,
    OverloadReference,
    ShowFutureGrants,
    ShowGrants,
    ShowObjects,
)
from snowmelt.catalog.sql.object_name_types import NameLevel, display_schema
from snowmelt.catalog.streaming.channels import list_channels
from snowmelt.errors import InternalError, PrivilegeMissing
from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy import Connection

    from snowmelt.catalog.model.privilege_kinds import ObjectKind
    from snowmelt.catalog.model.records import DatabaseRecord, SchemaRecord, TableRecord
    from snowmelt.catalog.objects.libraries import FunctionKind
    from snowmelt.catalog.objects.s3_buckets import PrefixGrant
    from snowmelt.catalog.security.access_control import GrantRecord
    from snowmelt.catalog.security.future_grants import FutureGrantScope
    from snowmelt.catalog.sql.ast import Statement

# --- What is left of the rows of a SHOW: by pattern, prefix and limit, and with TERSE.

ShowRow: TypeAlias = tuple[object, ...]

_TERSE_COLUMNS = ("created_on", "name", "kind", "database_name", "schema_name")
# As in Snowflake, where schemas have no kind. Others are of the kind that was asked for.
_TERSE_KINDS = {"DATABASES": "STANDARD", "SCHEMAS": None, "LIBRARIES": "LIBRARY"}


def filter_rows(
    rows: Iterable[ShowRow], name_index: int, statement: ShowObjects
) -> Iterator[ShowRow]:
    """Yield the rows that the statement wants, by the name in their column `name_index`."""
    pattern = (
        None if statement.like_pattern is None else _compile_like_pattern(statement.like_pattern)
    )
    left = statement.limit
    for row in rows:
        name = str(row[name_index])
        if pattern is not None and not pattern.fullmatch(name):
            continue
        if statement.starts_with is not None and not name.startswith(statement.starts_with):
            continue
        if left is not None:
            if not left:
                return
            left -= 1
        yield row


def to_terse_rows(
    statement: ShowObjects, columns: Sequence[str], rows: Iterable[ShowRow]
) -> tuple[tuple[str, ...], Iterator[ShowRow]]:
    """Return the columns of SHOW TERSE, and the rows with these; what a kind lacks is NULL."""
    kind = _TERSE_KINDS.get(statement.kind, statement.kind.removesuffix("S"))
    wanted = (*_TERSE_COLUMNS, "dropped_on") if statement.with_history else _TERSE_COLUMNS

    def cut(row: ShowRow) -> ShowRow:
        told: dict[str, object] = dict(zip(columns, row, strict=True)) | {"kind": kind}
        return tuple(told.get(column) for column in wanted)

    return wanted, map(cut, rows)


def _compile_like_pattern(like_pattern: str) -> re.Pattern[str]:
    r"""Translate `%`, `_` and `\` of LIKE; SHOW compares without regard to case."""
    parts: list[str] = []
    letters = iter(like_pattern)
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


def list_pipe_rows(
    statement: ShowObjects, session: StatementSession
) -> Iterator[tuple[object, ...]]:
    """Yield the pipes that the session may know of, where the statement looks."""
    database = schema = None
    if statement.scope is not None and statement.level is NameLevel.DATABASE:
        database = session.find_database(session.resolve_database_name(statement.scope)).name
    elif statement.scope is not None:
        found = session.find_schema(*session.resolve_schema_name(statement.scope))
        database, schema = found.database, found.name
    for each in pipes.list_pipes(session.connection, database, schema):
        if session.is_administrator or each.owner == session.role:
            yield to_pipe_row(each)


def to_pipe_row(pipe: pipes.PipeRecord) -> tuple[object, ...]:
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
def execute_show_or_describe(statement: Statement, session: StatementSession) -> StatementResult:
    """Answer a statement that changes nothing, in the session's reading transaction.

    Raises:
        PrivilegeMissing: The role may not look at this.
        UserError: What it asks about does not exist, or the role may not know of it.
    """
    del session
    raise InternalError(f"{type(statement).__name__} shows nothing.")


@execute_show_or_describe.register
def _describe_object(statement: DescribeObject, session: StatementSession) -> StatementResult:
    if statement.level is NameLevel.TABLE:
        table = session.find_table(session.resolve_table_name(statement.name))
        return StatementResult(
            ("name", "type", "nullable", "ordinal"),
            tuple(
                (column.name, column.sql_type, column.nullable, column.ordinal)
                for column in table.schema.columns
            ),
        )
    columns = ("created_on", "name", "kind")
    if statement.level is NameLevel.DATABASE:
        database = session.find_database(session.resolve_database_name(statement.name))
        schemas = _list_visible_schemas(session, database.name)
        return StatementResult(
            columns, tuple((each.created_at, each.name, "SCHEMA") for each in schemas)
        )
    schema = session.find_schema(*session.resolve_schema_name(statement.name))
    found = _list_visible_tables(session, schema.database, schema.name)
    return StatementResult(
        columns, tuple((each.created_at, each.name.table, "TABLE") for each in found)
    )


@execute_show_or_describe.register
def _describe_function(statement: DescribeFunction, session: StatementSession) -> StatementResult:
    return describe_function(statement, session)


@execute_show_or_describe.register
def _describe_integration(
    statement: DescribeIntegration, session: StatementSession
) -> StatementResult:
    return describe_integration(statement, session)


@execute_show_or_describe.register
def _show_objects(statement: ShowObjects, session: StatementSession) -> StatementResult:
    columns, rows_of = _SHOW_COMMANDS[statement.kind]
    if statement.with_history:
        columns = (*columns, "dropped_on")
    rows = filter_rows(rows_of(statement, session), columns.index("name"), statement)
    if statement.terse:
        columns, rows = to_terse_rows(statement, columns, rows)
    return StatementResult(columns, tuple(rows))


@execute_show_or_describe.register
def _show_grants(statement: ShowGrants, session: StatementSession) -> StatementResult:
    connection = session.connection
    name = statement.name
    if statement.kind == "BUCKET" and name is not None:
        bucket = session.find_bucket(name.parts[0])
        grants = access_control.list_grants(connection, kind="BUCKET", object_id=bucket.bucket_id)
        beneath = s3_buckets.list_prefix_grants(connection, bucket_id=bucket.bucket_id)
        return StatementResult(_GRANT_COLUMNS, tuple(_list_grant_rows(grants, session, beneath)))
    if statement.kind in {"FUNCTION", "INTEGRATION"} and name is not None:
        kind, object_id = _resolve_function_or_integration(statement, session)
        grants = access_control.list_grants(connection, kind=kind, object_id=object_id)
        return StatementResult(_GRANT_COLUMNS, tuple(_list_grant_rows(grants, session)))
    if statement.relation == "ON" and name is not None:
        level = NameLevel(statement.kind or "")
        object_id, _ = session.find_object(level, name)
        grants = access_control.list_grants(connection, kind=level.object_kind, object_id=object_id)
        return StatementResult(_GRANT_COLUMNS, tuple(_list_grant_rows(grants, session)))
    who = session.role if name is None else name.parts[0]
    if statement.kind == "USER":
        _require_self_or_administrator(session, who == session.user, f"user {to_display_name(who)}")
        access_control.find_user(connection, who)
        granted = access_control.list_user_roles(connection, who)
        return StatementResult(
            _GRANT_COLUMNS, tuple(_to_role_member_row(role, who) for role in granted)
        )
    _require_self_or_administrator(session, who == session.role, f"role {to_display_name(who)}")
    if statement.relation == "OF":
        users = access_control.list_users(connection)
        members = [
            user.name
            for user in users
            if who in access_control.list_user_roles(connection, user.name)
        ]
        return StatementResult(
            _GRANT_COLUMNS, tuple(_to_role_member_row(who, user) for user in members)
        )
    grants = access_control.list_grants(connection, role=who)
    rows = list(
        _list_grant_rows(grants, session, s3_buckets.list_prefix_grants(connection, role=who))
    )
    rows += [
        (each, "ACCOUNT", "", "ROLE", who)
        for each in access_control.list_account_grants(connection, who)
    ]
    return StatementResult(_GRANT_COLUMNS, tuple(rows))


@execute_show_or_describe.register
def _show_future_grants(statement: ShowFutureGrants, session: StatementSession) -> StatementResult:
    connection = session.connection
    columns = ("privilege", "grant_on", "name", "grant_to", "grantee_name")
    if statement.scope is None:
        role = statement.name.parts[0]
        _require_self_or_administrator(
            session, role == session.role, f"role {to_display_name(role)}"
        )
        found = future_grants.list_future_grants(connection, role=role)
    else:
        object_id, _ = session.find_object(statement.scope, statement.name)
        kind: FutureGrantScope = "SCHEMA" if statement.scope is NameLevel.SCHEMA else "DATABASE"
        found = future_grants.list_future_grants(connection, scope=(kind, object_id))
    names = _map_scope_ids_to_names(connection)
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
    return StatementResult(columns, tuple(rows))


def _resolve_function_or_integration(
    statement: ShowGrants, session: StatementSession
) -> tuple[ObjectKind, int]:
    """Return kind and id of the function, translator or integration that grants are shown of."""
    if statement.name is None:
        raise InternalError("Grants on a function are asked for without its name.")
    if statement.kind == "FUNCTION":
        overload = OverloadReference(statement.name, statement.types)
        return session.find_function_or_translator(overload).securable
    record = session.find_api_integration(statement.name.parts[0])
    return "INTEGRATION", record.integration_id


def _list_database_rows(statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    sight = VisibleObjects(session.connection, session.role, with_dropped=statement.with_history)
    found = namespaces.list_databases(session.connection)
    if statement.with_history:
        found += namespaces.list_restorable_databases(session.connection, session.now)
    for each in found:
        if sight.includes_database(each):
            kept = (each.comment or "", each.retention_days)
            yield (
                each.created_at,
                each.name,
                each.owner,
                *kept,
                *_dropped_on_values(statement, each),
            )


def _list_schema_rows(statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    database, _, _ = _resolve_scope(statement, session)
    found = _list_visible_schemas(session, database)
    if statement.with_history:
        sight = VisibleObjects(session.connection, session.role, with_dropped=True)
        found += [
            each
            for each in namespaces.list_restorable_schemas(session.connection, session.now)
            if database in {None, each.database} and sight.includes_schema(each)
        ]
    for each in found:
        kept = (each.comment or "", each.retention_days)
        yield (
            each.created_at,
            each.name,
            each.database,
            each.owner,
            *kept,
            *_dropped_on_values(statement, each),
        )


def _list_table_rows(statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    database, schema, _ = _resolve_scope(statement, session)
    found = _list_visible_tables(session, database, schema)
    if statement.with_history:
        sight = VisibleObjects(session.connection, session.role, with_dropped=True)
        found += [
            each
            for each in tables.list_restorable_tables(session.connection, session.now)
            if database in {None, each.name.database}
            and schema in {None, each.name.schema}
            and sight.includes_table(each)
        ]
    for each in found:
        clustered = ", ".join(to_display_name(column) for column in each.cluster_by)
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
            _display_error_table(each, session),
            *_dropped_on_values(statement, each),
        )


def _display_error_table(table: TableRecord, session: StatementSession) -> str:
    found = find_error_table(session.connection, table)
    return "" if found is None else str(found.name)


def _dropped_on_values(
    statement: ShowObjects, record: DatabaseRecord | SchemaRecord | TableRecord
) -> tuple[object, ...]:
    return (record.dropped_at,) if statement.with_history else ()


def _list_channel_rows(statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    database, schema, table = _resolve_scope(statement, session)
    seen = {
        each.table_id: each.name
        for each in _list_visible_tables(session, database, schema)
        if table in {None, each.name.table}
    }
    # Without a scope all are fetched: a list of every table could be too long for a query.
    found = list_channels(session.connection, None if statement.scope is None else list(seen))
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


def _list_user_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    for each in access_control.list_users(session.connection):
        if session.is_administrator or each.name == session.user:
            prints = ", ".join(each.fingerprints)
            yield each.created_at, each.name, each.default_role, prints


def _list_role_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    known = {session.role, PUBLIC}
    if session.user is not None:
        known |= set(access_control.list_user_roles(session.connection, session.user))
    for each in access_control.list_roles(session.connection):
        if session.is_administrator or each in known:
            yield (each,)


def _list_bucket_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    holders = {session.role, PUBLIC}
    for each in s3_buckets.list_buckets(session.connection):
        if not s3_buckets.bucket_privileges(session.connection, holders, each).is_empty:
            yield each.created_at, each.name, each.owner, each.backend, each.select_dialect


def _list_access_key_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    mine = None if session.is_administrator else session.user or ""
    for each in access_keys.list_access_keys(session.connection, mine):
        yield each.created_at, each.access_key_id, each.user


def _list_library_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    for each in libraries.list_libraries(session.connection):
        yield each.created_at, each.name, each.language, each.origin, len(each.files), each.owner


def _list_load_function_rows(
    statement: ShowObjects, session: StatementSession
) -> Iterator[ShowRow]:
    kind = cast("FunctionKind", statement.kind.removesuffix("S").lower())
    for each in libraries.list_load_functions(session.connection, kind):
        yield each.created_at, each.name, each.factory, each.library, each.owner


def _list_external_function_rows(
    statement: ShowObjects, session: StatementSession
) -> Iterator[ShowRow]:
    database, schema, _ = _resolve_scope(statement, session)
    yield from list_function_rows(session, database, schema)


def _list_function_and_translator_rows(
    statement: ShowObjects, session: StatementSession
) -> Iterator[ShowRow]:
    database, schema, _ = _resolve_scope(statement, session)
    found = [
        *list_function_rows(session, database, schema),
        *list_translator_rows(session, database, schema),
    ]
    # By database, schema and name.
    yield from sorted(found, key=lambda row: (str(row[2]), str(row[3]), str(row[1])))


_LOAD_FUNCTION_COLUMNS = ("created_on", "name", "factory", "library", "owner")
_SHOW_COMMANDS: dict[
    str, tuple[tuple[str, ...], Callable[[ShowObjects, StatementSession], Iterator[ShowRow]]]
] = {
    "DATABASES": (
        ("created_on", "name", "owner", "comment", "retention_time"),
        _list_database_rows,
    ),
    "SCHEMAS": (
        ("created_on", "name", "database_name", "owner", "comment", "retention_time"),
        _list_schema_rows,
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
        _list_table_rows,
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
        _list_channel_rows,
    ),
    "USERS": (("created_on", "name", "default_role", "fingerprints"), _list_user_rows),
    "ROLES": (("name",), _list_role_rows),
    "BUCKETS": (("created_on", "name", "owner", "backend", "select_dialect"), _list_bucket_rows),
    "ACCESS KEYS": (("created_on", "name", "user_name"), _list_access_key_rows),
    "LIBRARIES": (
        ("created_on", "name", "language", "origin", "files", "owner"),
        _list_library_rows,
    ),
    "FILTERS": (_LOAD_FUNCTION_COLUMNS, _list_load_function_rows),
    "PARSERS": (_LOAD_FUNCTION_COLUMNS, _list_load_function_rows),
    "SOURCES": (_LOAD_FUNCTION_COLUMNS, _list_load_function_rows),
    "EXTERNAL FUNCTIONS": (FUNCTION_COLUMNS, _list_external_function_rows),
    "FUNCTIONS": (FUNCTION_COLUMNS, _list_function_and_translator_rows),
    "API INTEGRATIONS": (
        INTEGRATION_COLUMNS,
        lambda _, session: list_api_integration_rows(session),
    ),
    "INTEGRATIONS": (INTEGRATION_COLUMNS, lambda _, session: list_integration_rows(session)),
    "SECURITY INTEGRATIONS": (
        INTEGRATION_COLUMNS,
        lambda _, session: list_security_integration_rows(session),
    ),
    "PIPES": (PIPE_COLUMNS, list_pipe_rows),
}


def _list_visible_schemas(session: StatementSession, database: str | None) -> list[SchemaRecord]:
    sight = VisibleObjects(session.connection, session.role)
    found = namespaces.list_schemas(session.connection, database)
    return [each for each in found if sight.includes_schema(each)]


def _list_visible_tables(
    session: StatementSession, database: str | None, schema: str | None
) -> list[TableRecord]:
    sight = VisibleObjects(session.connection, session.role)
    found = tables.list_tables(session.connection, database, schema)
    return [each for each in found if sight.includes_table(each)]


def _resolve_scope(
    statement: ShowObjects, session: StatementSession
) -> tuple[str | None, str | None, str | None]:
    """Return database, schema and table to look in, as far as given; they exist."""
    name = statement.scope
    if name is None:
        return None, None, None
    level = statement.level or list(NameLevel)[len(name.parts)]
    if level is NameLevel.DATABASE:
        return session.find_database(session.resolve_database_name(name)).name, None, None
    if level is NameLevel.SCHEMA:
        schema = session.find_schema(*session.resolve_schema_name(name))
        return schema.database, schema.name, None
    table = session.find_table(session.resolve_table_name(name)).name
    return table.database, table.schema, table.table


def _require_self_or_administrator(
    session: StatementSession, is_self: bool, object_name: str
) -> None:
    if not (is_self or session.is_administrator):
        raise PrivilegeMissing(role=session.role, privilege="SHOW GRANTS", object=object_name)


def _to_role_member_row(role: str, user: str) -> ShowRow:
    return "USAGE", "ROLE", role, "USER", user


def _list_grant_rows(
    grants: Iterable[GrantRecord],
    session: StatementSession,
    prefix_grants: Iterable[PrefixGrant] = (),
) -> Iterator[ShowRow]:
    connection = session.connection
    names = _map_scope_ids_to_names(connection)
    for table in tables.list_tables(connection):
        names["TABLE", table.table_id] = str(table.name)
    for bucket in s3_buckets.list_buckets(connection):
        names["BUCKET", bucket.bucket_id] = bucket.name
    for function in list_external_functions(connection):
        names[function.securable] = function.display_signature
    for translator in list_translators(connection):
        names[translator.securable] = translator.display_signature
    for integration in list_api_integrations(connection):
        names["INTEGRATION", integration.integration_id] = to_display_name(
            integration.integration.name
        )
    for grant in grants:
        kind = "FUNCTION" if grant.kind == "TRANSLATOR" else grant.kind
        yield grant.privilege, kind, names[grant.kind, grant.object_id], "ROLE", grant.role
    for narrow in prefix_grants:
        name = f"{names['BUCKET', narrow.bucket_id]} PREFIX '{narrow.prefix.decode()}'"
        yield narrow.privilege, "BUCKET", name, "ROLE", narrow.role


def _map_scope_ids_to_names(connection: Connection) -> dict[tuple[str, int], str]:
    names: dict[tuple[str, int], str] = {}
    for database in namespaces.list_databases(connection):
        names["DATABASE", database.database_id] = to_display_name(database.name)
    for schema in namespaces.list_schemas(connection):
        names["SCHEMA", schema.schema_id] = display_schema(schema.database, schema.name)
    return names
