"""Statements on privileges: GRANT, REVOKE, SHOW GRANTS and SHOW FUTURE GRANTS."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from snowmelt.catalog.model.records import (
    FAILOVER,
    MONITOR,
    PRIVILEGES,
    REPLICATE,
    ObjectKind,
)
from snowmelt.catalog.objects import namespaces, s3_buckets, tables
from snowmelt.catalog.objects.external_functions import (
    list_api_integrations,
    list_external_functions,
    list_translators,
)
from snowmelt.catalog.objects.s3_buckets import PrefixGrant
from snowmelt.catalog.security import access_control
from snowmelt.catalog.security.access_control import GrantRecord
from snowmelt.catalog.sql.cursor import NameLevel, ObjectName, TokenCursor, display_schema
from snowmelt.catalog.sql.lexer import SqlToken
from snowmelt.catalog.statements.buckets import find_owned_bucket, parse_bucket_name
from snowmelt.catalog.statements.function_grammar import parse_overload
from snowmelt.catalog.statements.integrations import lock_owned_integration
from snowmelt.catalog.statements.namespaces import resolve_parts
from snowmelt.catalog.statements.statement_context import (
    OverloadReference,
    ShowRow,
    Statement,
    StatementResult,
    StatementSession,
)
from snowmelt.errors import PrivilegeMissing, StatementError
from snowmelt.functions.signature import SqlType
from snowmelt.schema.types import to_display_name


class GrantRole(Statement):
    """GRANT ROLE … TO USER …, or REVOKE ROLE … FROM USER …."""

    role: str
    user: str
    revoke: bool

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("GRANT ROLE")
        access_control.grant_role(session.connection, self.role, self.user, revoke=self.revoke)
        role, user = to_display_name(self.role), to_display_name(self.user)
        done = "revoked from" if self.revoke else "granted to"
        return StatementResult(message=f"Role {role} {done} user {user}.")


@dataclass(frozen=True, slots=True)
class PrivilegeGrant:
    """Privileges that a role receives or, if `revoke` is true, loses. ALL is already expanded."""

    privileges: tuple[str, ...]
    role: str
    revoke: bool

    def write(self, session: StatementSession, kind: ObjectKind, *object_ids: int) -> None:
        """Grant or revoke each privilege on each of the objects."""
        for privilege, each in itertools.product(self.privileges, object_ids):
            access_control.grant_privilege(
                session.connection, privilege, kind, each, self.role, revoke=self.revoke
            )

    def report(self, label: str) -> StatementResult:
        """Return the message of the statement. `label` describes the objects."""
        done = "revoked from" if self.revoke else "granted to"
        privileges, role = ", ".join(self.privileges), to_display_name(self.role)
        return StatementResult(message=f"{privileges} {label}{done} role {role}.")


class GrantPrivileges(Statement):
    """GRANT … ON a database, schema or table TO ROLE …, or REVOKE."""

    grant: PrivilegeGrant
    level: NameLevel
    name: ObjectName

    def execute(self, session: StatementSession) -> StatementResult:
        # TRUNCATE and CREATE OR REPLACE copy the grants of a table to the table that replaces it.
        object_id, shown = session.lock_owned_object(self.level, self.name)
        kind = self.level.object_kind
        self.grant.write(session, kind, object_id)
        return self.grant.report(f"on {kind.lower()} {shown} ")


class GrantOnMany(Statement):
    """GRANT … ON ALL or FUTURE TABLES (or SCHEMAS) IN a schema or database, or REVOKE.

    It requires ownership of the schema or database.
    """

    grant: PrivilegeGrant
    level: NameLevel
    scope: NameLevel
    name: ObjectName
    is_future: bool

    def execute(self, session: StatementSession) -> StatementResult:
        connection, grant = session.connection, self.grant
        # Without the locks, a table that another transaction creates could get neither the privileges on
        # all tables nor those on future tables, or keep revoked ones.
        scope_id, shown = session.lock_owned_object(self.scope, self.name)
        if self.scope is NameLevel.DATABASE and self.level is NameLevel.TABLE:
            namespaces.lock_schemas(connection, scope_id)
        scope = self.scope.object_kind
        kind = self.level.object_kind
        access_control.require_role(connection, grant.role)
        if self.is_future:
            for privilege in grant.privileges:
                future = access_control.FutureGrant(grant.role, scope, scope_id, kind, privilege)
                access_control.add_or_revoke_future_grant(connection, future, revoke=grant.revoke)
            count = "future"
        else:
            parts = resolve_parts(self.scope, self.name, session)
            ids = (
                [each.schema_id for each in namespaces.list_schemas(connection, *parts)]
                if self.level is NameLevel.SCHEMA
                else [each.table_id for each in tables.list_tables(connection, *parts)]
            )
            grant.write(session, kind, *ids)
            count = str(len(ids))
        return grant.report(f"on {count} {kind.lower()}s in {scope.lower()} {shown} ")


class GrantOnBucket(Statement):
    """GRANT … ON BUCKET … [PREFIX …] TO ROLE …, or REVOKE. Without a prefix it covers the whole bucket."""

    grant: PrivilegeGrant
    bucket: str
    prefix: str | None

    def execute(self, session: StatementSession) -> StatementResult:
        grant = self.grant
        bucket = find_owned_bucket(self.bucket, session)
        if self.prefix is None:
            grant.write(session, "BUCKET", bucket.bucket_id)
            return grant.report(f"on bucket {bucket.name} ")
        prefix = self.prefix.encode()
        for privilege in grant.privileges:
            s3_buckets.grant_or_revoke_on_prefix(
                session.connection,
                s3_buckets.PrefixGrant(grant.role, bucket.bucket_id, prefix, privilege),
                revoke=grant.revoke,
            )
        return grant.report(f"on bucket {bucket.name} prefix {self.prefix!r} ")


class GrantOnAccount(Statement):
    """GRANT … ON ACCOUNT TO ROLE …, or REVOKE."""

    grant: PrivilegeGrant

    def execute(self, session: StatementSession) -> StatementResult:
        (privilege,) = self.grant.privileges
        session.require_administrator(f"GRANT {privilege}")
        access_control.grant_account_privilege(
            session.connection, self.grant.role, privilege, revoke=self.grant.revoke
        )
        return self.grant.report("")


class GrantOnFunction(Statement):
    """GRANT … ON FUNCTION, or REVOKE."""

    grant: PrivilegeGrant
    function: OverloadReference

    def execute(self, session: StatementSession) -> StatementResult:
        found = session.find_function_or_translator(self.function)
        kind, object_id = found.securable
        session.require_ownership(kind, object_id, found.display_signature)
        self.grant.write(session, kind, object_id)
        return self.grant.report(f"on function {found.display_signature} ")


class GrantOnIntegration(Statement):
    """GRANT … ON INTEGRATION, or REVOKE."""

    grant: PrivilegeGrant
    integration: str

    def execute(self, session: StatementSession) -> StatementResult:
        record = lock_owned_integration(session, self.integration)
        self.grant.write(session, "INTEGRATION", record.integration_id)
        return self.grant.report(f"on integration {to_display_name(self.integration)} ")


# SHOW GRANTS and SHOW FUTURE GRANTS.

_GRANT_COLUMNS = ("privilege", "granted_on", "name", "granted_to", "grantee_name")


class ShowGrants(Statement):
    """SHOW GRANTS TO ROLE, TO USER, OF ROLE or ON an object. Without a clause: to the current role.

    `types` are the argument types of a function.
    """

    reads_only = True

    relation: str | None = None
    kind: str | None = None
    name: ObjectName | None = None
    types: tuple[SqlType, ...] = ()

    def execute(self, session: StatementSession) -> StatementResult:
        if self.relation == "ON" and self.name is not None:
            connection = session.connection
            kind: ObjectKind
            beneath: Iterable[PrefixGrant] = ()
            if self.kind == "BUCKET":
                kind, object_id = "BUCKET", session.find_bucket(self.name.parts[0]).bucket_id
                beneath = s3_buckets.list_prefix_grants(connection, bucket_id=object_id)
            elif self.kind == "FUNCTION":
                overload = OverloadReference(self.name, self.types)
                kind, object_id = session.find_function_or_translator(overload).securable
            elif self.kind == "INTEGRATION":
                record = session.find_api_integration(self.name.parts[0])
                kind, object_id = "INTEGRATION", record.integration_id
            else:
                level = NameLevel(self.kind or "")
                kind, (object_id, _) = level.object_kind, session.find_object(level, self.name)
            grants = access_control.list_grants(connection, kind=kind, object_id=object_id)
            rows: Iterable[ShowRow] = _list_grant_rows(grants, session, beneath)
        else:
            name = session.role if self.name is None else self.name.parts[0]
            rows = self._list_rows_of_principal(name, session)
        return StatementResult(_GRANT_COLUMNS, tuple(rows))

    def _list_rows_of_principal(self, name: str, session: StatementSession) -> Iterable[ShowRow]:
        connection, shown = session.connection, to_display_name(name)
        if self.kind == "USER":
            _require_self_or_administrator(session, name == session.user, f"user {shown}")
            access_control.find_user(connection, name)
            granted = access_control.list_user_roles(connection, name)
            return [("USAGE", "ROLE", role, "USER", name) for role in granted]
        _require_self_or_administrator(session, name == session.role, f"role {shown}")
        if self.relation == "OF":
            return [
                ("USAGE", "ROLE", name, "USER", user.name)
                for user in access_control.list_users(connection)
                if name in access_control.list_user_roles(connection, user.name)
            ]
        grants = access_control.list_grants(connection, role=name)
        beneath = s3_buckets.list_prefix_grants(connection, role=name)
        return (
            *_list_grant_rows(grants, session, beneath),
            *(
                (each, "ACCOUNT", "", "ROLE", name)
                for each in access_control.list_account_grants(connection, name)
            ),
        )


class ShowFutureGrants(Statement):
    """SHOW FUTURE GRANTS, either IN a schema or database, or TO ROLE."""

    reads_only = True

    scope: NameLevel | None
    name: ObjectName

    def execute(self, session: StatementSession) -> StatementResult:
        connection = session.connection
        if self.scope is None:
            role = self.name.parts[0]
            _require_self_or_administrator(
                session, role == session.role, f"role {to_display_name(role)}"
            )
            found = access_control.list_future_grants(connection, role=role)
        else:
            object_id, _ = session.find_object(self.scope, self.name)
            scope = (self.scope.object_kind, object_id)
            found = access_control.list_future_grants(connection, scope=scope)
        names = _map_scope_ids_to_names(connection)
        rows = tuple(
            (each.privilege, each.kind, f"{names[place]}.<{each.kind}>", "ROLE", each.role)
            for each in found
            if (place := (each.scope_kind, each.scope_id)) in names
        )
        return StatementResult(("privilege", "grant_on", "name", "grant_to", "grantee_name"), rows)


def _require_self_or_administrator(
    session: StatementSession, is_self: bool, object_name: str
) -> None:
    if not (is_self or session.is_administrator):
        raise PrivilegeMissing(role=session.role, privilege="SHOW GRANTS", object=object_name)


def _list_grant_rows(
    grants: Iterable[GrantRecord],
    session: StatementSession,
    prefix_grants: Iterable[PrefixGrant] = (),
) -> Iterator[ShowRow]:
    connection = session.connection
    names = _map_scope_ids_to_names(connection)
    names |= {("TABLE", each.table_id): str(each.name) for each in tables.list_tables(connection)}
    names |= {("BUCKET", each.bucket_id): each.name for each in s3_buckets.list_buckets(connection)}
    for function in list_external_functions(connection):
        names[function.securable] = function.display_signature
    for translator in list_translators(connection):
        names[translator.securable] = translator.display_signature
    for each in list_api_integrations(connection):
        names["INTEGRATION", each.integration_id] = to_display_name(each.integration.name)
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


_ACCOUNT_PRIVILEGES = ("CREATE BUCKET", "CREATE INTEGRATION", MONITOR, REPLICATE, FAILOVER)


def parse_grant_or_revoke(revoke: bool, cursor: TokenCursor) -> Statement:
    """Parse the text after GRANT or REVOKE."""
    if revoke and cursor.is_next("GRANT", "OPTION"):
        raise _grant_option_error(cursor)
    if cursor.accept("ROLE"):
        role = cursor.parse_identifier("a role")
        cursor.expect("FROM" if revoke else "TO")
        if cursor.is_next("ROLE"):
            raise cursor.make_error(
                "Roles within roles are not supported: grant the role to each user"
            )
        cursor.expect("USER")
        user = cursor.parse_identifier("a user")
        cursor.expect_end("the user's name")
        return GrantRole(role, user, revoke)
    words: dict[str, SqlToken] = {}
    while not words or cursor.accept(","):
        at = cursor.current
        word = _parse_privilege(cursor)
        if word in words:
            raise cursor.make_error(f"{word} is specified twice", at)
        words[word] = at
    cursor.expect("ON")
    if len(words) == 1 and words.keys() <= set(_ACCOUNT_PRIVILEGES) and cursor.accept("ACCOUNT"):
        return GrantOnAccount(_parse_grantee(cursor, tuple(words), revoke=revoke))
    for phrase, parse in _GRANT_PARSERS.items():
        if cursor.accept(*phrase.split()):
            return parse(cursor, words, revoke)
    level, name = _parse_grant_target(cursor)
    return GrantPrivileges(_parse_grant(cursor, words, level.object_kind, revoke), level, name)


def _parse_grant(
    cursor: TokenCursor, words: dict[str, SqlToken], kind: ObjectKind, revoke: bool
) -> PrivilegeGrant:
    """Parse TO or FROM ROLE after an object. Return the grant of the privileges in `words`."""
    return _parse_grantee(cursor, _expand_privileges(cursor, words, kind), revoke=revoke)


def _parse_function_grant(
    cursor: TokenCursor, words: dict[str, SqlToken], revoke: bool
) -> GrantOnFunction:
    function = parse_overload(cursor)
    return GrantOnFunction(_parse_grant(cursor, words, "FUNCTION", revoke), function)


def _parse_integration_grant(
    cursor: TokenCursor, words: dict[str, SqlToken], revoke: bool
) -> GrantOnIntegration:
    name = cursor.parse_identifier("an API integration")
    return GrantOnIntegration(_parse_grant(cursor, words, "INTEGRATION", revoke), name)


def _parse_bucket_grant(
    cursor: TokenCursor, words: dict[str, SqlToken], revoke: bool
) -> GrantOnBucket:
    bucket = parse_bucket_name(cursor)
    prefix = cursor.parse_string("a prefix of keys") if cursor.accept("PREFIX") else None
    privileges = _expand_privileges(cursor, words, "BUCKET")
    if prefix is not None and "OWNERSHIP" in privileges:
        raise cursor.make_error("OWNERSHIP applies to a whole bucket: omit PREFIX")
    return GrantOnBucket(_parse_grantee(cursor, privileges, revoke=revoke), bucket, prefix)


def _parse_grant_on_many(
    is_future: bool, cursor: TokenCursor, words: dict[str, SqlToken], revoke: bool
) -> GrantOnMany:
    """Parse the text after ON ALL or ON FUTURE."""
    level = NameLevel(cursor.expect_one_of("TABLES", "SCHEMAS").removesuffix("S"))
    cursor.expect("IN")
    scopes = ("DATABASE", "SCHEMA") if level is NameLevel.TABLE else ("DATABASE",)
    scope = NameLevel(cursor.expect_one_of(*scopes))
    name = cursor.parse_name(f"a {scope.lower()}", scope.part_count)
    at = cursor.current
    privileges = _expand_privileges(cursor, words, level.object_kind)
    if "OWNERSHIP" in privileges:
        raise cursor.make_error("OWNERSHIP can only be granted on a single object: name it", at)
    grant = _parse_grantee(cursor, privileges, revoke=revoke)
    return GrantOnMany(grant, level, scope, name, is_future)


_GRANT_PARSERS: dict[str, Callable[[TokenCursor, dict[str, SqlToken], bool], Statement]] = {
    "EXTERNAL FUNCTION": _parse_function_grant,
    "FUNCTION": _parse_function_grant,
    "API INTEGRATION": _parse_integration_grant,
    "INTEGRATION": _parse_integration_grant,
    "BUCKET": _parse_bucket_grant,
    "ALL": partial(_parse_grant_on_many, False),
    "FUTURE": partial(_parse_grant_on_many, True),
}


def _parse_grantee(
    cursor: TokenCursor, privileges: tuple[str, ...], *, revoke: bool
) -> PrivilegeGrant:
    cursor.expect("FROM" if revoke else "TO")
    if cursor.is_next("USER"):
        raise cursor.make_error(
            "Privileges can only be granted to roles: grant the role to the user"
        )
    cursor.accept("ROLE")
    role = cursor.parse_identifier("a role")
    if cursor.is_next("WITH", "GRANT", "OPTION"):
        raise _grant_option_error(cursor)
    for word in ("COPY", "REVOKE"):
        if cursor.accept(word):
            cursor.expect("CURRENT", "GRANTS")
    cursor.expect_end(f"the role of {'REVOKE' if revoke else 'GRANT'}")
    return PrivilegeGrant(privileges, role, revoke)


def _grant_option_error(cursor: TokenCursor) -> StatementError:
    return cursor.make_error(
        "GRANT OPTION is not supported: only the owner of an object can grant privileges on it"
    )


def parse_show_grants(cursor: TokenCursor) -> ShowGrants:
    """Parse the text after SHOW GRANTS."""
    if cursor.accept("ON", "BUCKET"):
        place = cursor.current.position
        shown = ShowGrants("ON", "BUCKET", ObjectName((parse_bucket_name(cursor),), place))
    elif cursor.accept("ON", "FUNCTION"):
        function = parse_overload(cursor)
        shown = ShowGrants("ON", "FUNCTION", function.name, function.types)
    elif cursor.accept("ON", "INTEGRATION"):
        shown = ShowGrants("ON", "INTEGRATION", cursor.parse_name("an API integration", 1))
    elif cursor.accept("ON"):
        level, name = _parse_grant_target(cursor)
        shown = ShowGrants("ON", level.value, name)
    elif cursor.accept("TO"):
        kind = cursor.expect_one_of("ROLE", "USER")
        shown = ShowGrants("TO", kind, cursor.parse_name(f"a {kind.lower()}", 1))
    elif cursor.accept("OF"):
        cursor.expect("ROLE")
        shown = ShowGrants("OF", "ROLE", cursor.parse_name("a role", 1))
    else:
        shown = ShowGrants()
    cursor.expect_end("SHOW GRANTS")
    return shown


def parse_show_future_grants(cursor: TokenCursor) -> ShowFutureGrants:
    """Parse the text after SHOW FUTURE GRANTS."""
    if cursor.expect_one_of("IN", "TO") == "TO":
        cursor.expect("ROLE")
        shown = ShowFutureGrants(None, cursor.parse_name("a role", 1))
    else:
        scope = NameLevel(cursor.expect_one_of("SCHEMA", "DATABASE"))
        shown = ShowFutureGrants(scope, cursor.parse_name(f"a {scope.lower()}", scope.part_count))
    cursor.expect_end("SHOW FUTURE GRANTS")
    return shown


def _parse_privilege(cursor: TokenCursor) -> str:
    known = sorted({*_ACCOUNT_PRIVILEGES, *(each for line in PRIVILEGES.values() for each in line)})
    for privilege in known:
        if cursor.accept(*privilege.split()):
            return privilege
    if cursor.accept("ALL"):
        cursor.accept("PRIVILEGES")
        return "ALL"
    raise cursor.make_error(
        f"{cursor.current.source_text} is not a privilege. Valid privileges: {', '.join(known)}, ALL"
    )


def _parse_grant_target(cursor: TokenCursor) -> tuple[NameLevel, ObjectName]:
    """Parse an object such as `TABLE a.b.c`. Without a keyword it is a table."""
    if cursor.is_next("ACCOUNT"):
        raise cursor.make_error(
            f"The privileges on the account are {', '.join(_ACCOUNT_PRIVILEGES)}. Grant one of them; "
            "only ACCOUNTADMIN creates databases, users and roles"
        )
    word = cursor.accept_one_of("DATABASE", "SCHEMA", "TABLE")
    level = NameLevel(word.text) if word is not None else NameLevel.TABLE
    return level, cursor.parse_name(f"a {level.lower()}", level.part_count)


def _expand_privileges(
    cursor: TokenCursor, words: dict[str, SqlToken], kind: ObjectKind
) -> tuple[str, ...]:
    there = PRIVILEGES[kind]
    if list(words) == ["ALL"]:
        # As in Snowflake, ALL excludes OWNERSHIP.
        return tuple(each for each in there if each != "OWNERSHIP")
    for word, at in words.items():
        if word == "ALL":
            raise cursor.make_error("ALL includes the other privileges: omit them", at)
        if word not in there:
            raise cursor.make_error(
                f"{word} cannot be granted on a {kind.lower()}; {', '.join(there)} can", at
            )
    return tuple(words)
