"""Security integrations, reserved for ACCOUNTADMIN, and statements that do not say the kind.

The grammar is Snowflake's. ALTER, DROP and DESCRIBE INTEGRATION without a kind are parsed as both
kinds; which of them is meant is known when they are executed.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from snowmelt.catalog.model.privilege_kinds import ACCOUNTADMIN, public_key_to_der
from snowmelt.catalog.model.records import SecurityIntegration
from snowmelt.catalog.security import oauth_integrations
from snowmelt.catalog.security.oauth_integrations import (
    SecurityIntegrationRecord,
    find_security_integration,
)
from snowmelt.catalog.sql.object_name_types import CreateMode, NameLevel
from snowmelt.catalog.sql.property_clauses import (
    ClauseDefinition,
    ClauseReader,
    choice_parser,
    is_next_string,
    parse_boolean,
    string_list_parser,
    text_parser,
)
from snowmelt.catalog.statements import api_integrations
from snowmelt.catalog.statements.api_integrations import (
    AlterIntegration,
    DescribeIntegration,
    DropIntegration,
)
from snowmelt.catalog.statements.statement_context import (
    Statement,
    StatementResult,
    creation_result,
    skip_if_exists,
    skipping_missing,
)
from snowmelt.catalog.statements.statement_kind import Listing, StatementKind
from snowmelt.errors import InvalidPublicKey, NotFound, StatementError, UserError
from snowmelt.schema.types import to_display_name, to_internal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from snowmelt.catalog.sql.cursor import TokenCursor
    from snowmelt.catalog.statements.statement_context import StatementSession
    from snowmelt.catalog.statements.statement_kind import ShowObjects, ShowRow


@dataclass(frozen=True, slots=True)
class CreateSecurityIntegration(Statement):
    """CREATE SECURITY INTEGRATION."""

    name: str
    integration: SecurityIntegration
    create_mode: CreateMode

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("CREATE SECURITY INTEGRATION")
        label = f"Security integration {to_display_name(self.name)}"
        there = {
            each.name for each in oauth_integrations.list_security_integrations(session.connection)
        }
        skip_if_exists(label, self.create_mode, exists=self.name in there)
        oauth_integrations.create_security_integration(
            session.connection,
            SecurityIntegrationRecord(self.name, self.integration, session.role, session.now),
            replace=self.create_mode is CreateMode.OR_REPLACE,
        )
        return creation_result(label, replaced=self.name in there)


@dataclass(frozen=True, slots=True)
class AlterSecurityIntegration(Statement):
    """ALTER SECURITY INTEGRATION … SET or UNSET: fields of the grammar and their new values."""

    name: str
    changes: Mapping[str, object]
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("ALTER SECURITY INTEGRATION")
        with skipping_missing(self.if_exists):
            oauth_integrations.update_security_integration(
                session.connection, self.name, self.changes
            )
        return StatementResult(
            message=f"Security integration {to_display_name(self.name)} altered."
        )


@dataclass(frozen=True, slots=True)
class DropSecurityIntegration(Statement):
    """DROP SECURITY INTEGRATION."""

    name: str
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("DROP SECURITY INTEGRATION")
        with skipping_missing(self.if_exists):
            oauth_integrations.drop_security_integration(session.connection, self.name)
        return StatementResult(
            message=f"Security integration {to_display_name(self.name)} dropped."
        )


@dataclass(frozen=True, slots=True)
class DescribeSecurityIntegration(Statement):
    """DESCRIBE SECURITY INTEGRATION."""

    reads_only = True

    name: str

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("DESCRIBE SECURITY INTEGRATION")
        made = find_security_integration(session.connection, self.name).integration
        first, second = [*made.public_keys, None, None][:2]
        rows: tuple[tuple[str, object], ...] = (
            ("ENABLED", made.enabled),
            (_OAUTH_PREFIX + "TYPE", made.server),
            (_OAUTH_PREFIX + "ISSUER", made.issuer),
            (_OAUTH_PREFIX + "JWS_KEYS_URL", made.keys_url),
            (_OAUTH_PREFIX + "RSA_PUBLIC_KEY", first),
            (_OAUTH_PREFIX + "RSA_PUBLIC_KEY_2", second),
            (_OAUTH_PREFIX + "AUDIENCE_LIST", ", ".join(made.audiences)),
            (_OAUTH_PREFIX + "TOKEN_USER_MAPPING_CLAIM", ", ".join(made.user_claims)),
            (_OAUTH_PREFIX + "SNOWFLAKE_USER_MAPPING_ATTRIBUTE", "LOGIN_NAME"),
            (_OAUTH_PREFIX + "SCOPE_MAPPING_ATTRIBUTE", made.scope_claim),
            (_OAUTH_PREFIX + "ANY_ROLE_MODE", "ENABLE" if made.any_role else "DISABLE"),
            (_OAUTH_PREFIX + "BLOCKED_ROLES_LIST", ", ".join(made.blocked_roles)),
            ("COMMENT", made.comment),
        )
        return StatementResult(("property", "value"), rows)


@dataclass(frozen=True, slots=True)
class AlterOrDropAnyIntegration(Statement):
    """ALTER or DROP INTEGRATION without its kind: what it says of either, if it can be said of it."""

    name: str
    api: AlterIntegration | DropIntegration | None
    security: AlterSecurityIntegration | DropSecurityIntegration | None

    def execute(self, session: StatementSession) -> StatementResult:
        said = [each for each in (self.api, self.security) if each is not None]
        # What is said of the other kind alone cannot be done: no such one exists, as its error says.
        return said[-1 if _is_security_integration(session, self.name) else 0].execute(session)


@dataclass(frozen=True, slots=True)
class DescribeAnyIntegration(Statement):
    """DESCRIBE INTEGRATION without its kind."""

    reads_only = True

    name: str

    def execute(self, session: StatementSession) -> StatementResult:
        if _is_security_integration(session, self.name):
            return DescribeSecurityIntegration(self.name).execute(session)
        return DescribeIntegration(self.name).execute(session)


def _is_security_integration(session: StatementSession, name: str) -> bool:
    """Tell whether a security integration is meant, as far as the role may know of it.

    Raises:
        UserError: There are two of that name.
    """
    if not session.is_administrator:
        return False
    try:
        find_security_integration(session.connection, name)
    except NotFound:
        return False
    try:
        session.find_api_integration(name)
    except NotFound:
        return True
    raise UserError(
        f"There are an API integration and a security integration {to_display_name(name)}; write which "
        "is meant, as in DROP API INTEGRATION."
    )


def _list_api_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    yield from api_integrations.list_api_integration_rows(session)


def _list_security_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    if session.is_administrator:
        for each in oauth_integrations.list_security_integrations(session.connection):
            made = each.integration
            row = (each.name, "EXTERNAL_OAUTH", "SECURITY", made.enabled, made.comment)
            yield (*row, each.created_at, each.owner)


def _list_rows(statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    yield from _list_api_rows(statement, session)
    yield from _list_security_rows(statement, session)


# --- The grammar.

_SECURITY_INTEGRATION_LABEL = "a security integration"


class _SecurityIntegrationType(StrEnum):
    EXTERNAL_OAUTH = "EXTERNAL_OAUTH"


class _AuthorizationServer(StrEnum):
    OKTA = "OKTA"
    AZURE = "AZURE"
    PING_FEDERATE = "PING_FEDERATE"
    CUSTOM = "CUSTOM"


class _UserMappingAttribute(StrEnum):
    LOGIN_NAME = "LOGIN_NAME"


class _AnyRoleMode(StrEnum):
    DISABLE = "DISABLE"
    ENABLE = "ENABLE"


def _string_or_list_parser(label: str) -> Callable[[TokenCursor], tuple[str, ...]]:
    def read(cursor: TokenCursor) -> tuple[str, ...]:
        if is_next_string(cursor):
            return (cursor.parse_string(label),)
        return string_list_parser(label)(cursor)

    return read


def _parse_public_key(cursor: TokenCursor) -> str:
    at = cursor.current
    try:
        der = public_key_to_der(cursor.parse_string("a public key"))
    except InvalidPublicKey as error:
        raise cursor.make_error(str(error).rstrip("."), at) from None
    return base64.b64encode(der).decode()


def _parse_keys_url(cursor: TokenCursor) -> str:
    at = cursor.current
    url = cursor.parse_string("a URL")
    if not url.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
        raise cursor.make_error("Keys are fetched over https:// (http:// on loopback alone)", at)
    return url


_OAUTH_PREFIX = "EXTERNAL_OAUTH_"
_PUBLIC_KEY_FIELDS = ("public_key", "public_key_2")
_SECURITY_INTEGRATION_CLAUSES = {
    "TYPE": ClauseDefinition(
        "type", choice_parser(_SecurityIntegrationType, "TYPE"), is_required=True
    ),
    "ENABLED": ClauseDefinition("enabled", parse_boolean, is_required=True),
    "COMMENT": ClauseDefinition("comment", text_parser("a comment")),
    _OAUTH_PREFIX + "TYPE": ClauseDefinition(
        "server",
        choice_parser(_AuthorizationServer, _OAUTH_PREFIX + "TYPE"),
        is_required=True,
    ),
    _OAUTH_PREFIX + "ISSUER": ClauseDefinition(
        "issuer", text_parser("an issuer"), is_required=True
    ),
    _OAUTH_PREFIX + "TOKEN_USER_MAPPING_CLAIM": ClauseDefinition(
        "user_claims", _string_or_list_parser("a claim"), is_required=True
    ),
    _OAUTH_PREFIX + "SNOWFLAKE_USER_MAPPING_ATTRIBUTE": ClauseDefinition(
        "attribute",
        choice_parser(_UserMappingAttribute, _OAUTH_PREFIX + "SNOWFLAKE_USER_MAPPING_ATTRIBUTE"),
        is_required=True,
    ),
    _OAUTH_PREFIX + "JWS_KEYS_URL": ClauseDefinition("keys_url", _parse_keys_url),
    _OAUTH_PREFIX + "RSA_PUBLIC_KEY": ClauseDefinition("public_key", _parse_public_key),
    _OAUTH_PREFIX + "RSA_PUBLIC_KEY_2": ClauseDefinition("public_key_2", _parse_public_key),
    _OAUTH_PREFIX + "AUDIENCE_LIST": ClauseDefinition(
        "audiences", _string_or_list_parser("an audience"), is_required=True
    ),
    _OAUTH_PREFIX + "BLOCKED_ROLES_LIST": ClauseDefinition(
        "blocked_roles", _string_or_list_parser("a role"), ()
    ),
    _OAUTH_PREFIX + "ANY_ROLE_MODE": ClauseDefinition(
        "any_role",
        choice_parser(_AnyRoleMode, _OAUTH_PREFIX + "ANY_ROLE_MODE"),
        _AnyRoleMode.DISABLE,
    ),
    _OAUTH_PREFIX + "SCOPE_MAPPING_ATTRIBUTE": ClauseDefinition(
        "scope_claim", text_parser("a claim"), "scp"
    ),
}


def _parse_create(cursor: TokenCursor, create_mode: CreateMode) -> CreateSecurityIntegration:
    name = cursor.parse_identifier(_SECURITY_INTEGRATION_LABEL)
    settings = ClauseReader(_SECURITY_INTEGRATION_CLAUSES, _SECURITY_INTEGRATION_LABEL)
    settings.parse_all(cursor)
    fields = _to_definition_fields(settings)
    keys = tuple(fields.pop(each, None) for each in _PUBLIC_KEY_FIELDS)
    if any(keys) == ("keys_url" in fields):
        raise cursor.make_error(
            f"{_OAUTH_PREFIX}JWS_KEYS_URL or {_OAUTH_PREFIX}RSA_PUBLIC_KEY says what signatures are checked with; give"
            " one of them"
        )
    fields.setdefault("blocked_roles", (ACCOUNTADMIN,))
    cursor.expect_end("the clauses")
    return CreateSecurityIntegration(
        name, SecurityIntegration(public_keys=keys, **fields), create_mode
    )


def _parse_alter(cursor: TokenCursor, if_exists: bool) -> AlterSecurityIntegration:
    name = cursor.parse_identifier(_SECURITY_INTEGRATION_LABEL)
    word = cursor.expect_one_of("SET", "UNSET")
    settings = ClauseReader(_SECURITY_INTEGRATION_CLAUSES, _SECURITY_INTEGRATION_LABEL)
    settings.parse_changes(cursor, unset=word == "UNSET")
    fields = _to_definition_fields(settings)
    if (
        word == "SET"
        and "keys_url" in fields
        and any(each in fields for each in _PUBLIC_KEY_FIELDS)
    ):
        raise cursor.make_error(
            f"{_OAUTH_PREFIX}JWS_KEYS_URL and {_OAUTH_PREFIX}RSA_PUBLIC_KEY exclude each other; SET one of them, and"
            " the other is forgotten"
        )
    return AlterSecurityIntegration(name, fields, if_exists)


def _parse_describe(cursor: TokenCursor) -> DescribeSecurityIntegration:
    name = cursor.parse_identifier(_SECURITY_INTEGRATION_LABEL)
    cursor.expect_end("DESCRIBE INTEGRATION")
    return DescribeSecurityIntegration(name)


def _parse_drop(cursor: TokenCursor, if_exists: bool) -> DropSecurityIntegration:
    name = cursor.parse_identifier(_SECURITY_INTEGRATION_LABEL)
    cursor.expect_end("DROP SECURITY INTEGRATION")
    return DropSecurityIntegration(name, if_exists)


def _to_definition_fields(clause_reader: ClauseReader) -> dict[str, Any]:
    """Return the values as the definition has them; public keys by the fields of `_PUBLIC_KEY_FIELDS`."""
    fields = clause_reader.field_values()
    for each in ("type", "attribute"):
        fields.pop(each, None)
    if "server" in fields:
        fields["server"] = fields["server"].value
    if "any_role" in fields:
        fields["any_role"] = fields["any_role"] is _AnyRoleMode.ENABLE
    if "blocked_roles" in fields:
        # As with Snowflake, no token ever speaks for the administrator.
        blocked = map(to_internal_name, fields["blocked_roles"])
        fields["blocked_roles"] = tuple(dict.fromkeys((ACCOUNTADMIN, *blocked)))
    return fields


def _parse_alter_any(cursor: TokenCursor, if_exists: bool) -> AlterOrDropAnyIntegration:
    other = cursor.fork()
    api, security, failed = None, None, list[StatementError]()
    try:
        api = api_integrations.parse_alter_integration(cursor, if_exists)
    except StatementError as error:
        failed.append(error)
    try:
        security = _parse_alter(other, if_exists)
    except StatementError as error:
        failed.append(error)
    known = api or security
    if known is None:
        raise failed[other.current.start_offset > cursor.current.start_offset]
    return AlterOrDropAnyIntegration(known.name, api, security)


def _parse_drop_any(cursor: TokenCursor, if_exists: bool) -> AlterOrDropAnyIntegration:
    other = cursor.fork()
    api = api_integrations.parse_drop_integration(cursor, if_exists)
    return AlterOrDropAnyIntegration(api.name, api, _parse_drop(other, if_exists))


def _parse_describe_any(cursor: TokenCursor) -> DescribeAnyIntegration:
    return DescribeAnyIntegration(api_integrations.parse_describe_integration(cursor).name)


KINDS = (
    StatementKind(
        "API INTEGRATION",
        api_integrations.parse_create_integration,
        api_integrations.parse_alter_integration,
        api_integrations.parse_drop_integration,
        api_integrations.parse_describe_integration,
    ),
    StatementKind(
        "SECURITY INTEGRATION", _parse_create, _parse_alter, _parse_drop, _parse_describe
    ),
    StatementKind("INTEGRATION", None, _parse_alter_any, _parse_drop_any, _parse_describe_any),
)
_COLUMNS = "name type category enabled comment created_on owner"
API_INTEGRATIONS = Listing("API INTEGRATIONS", NameLevel.ACCOUNT, _COLUMNS, _list_api_rows)
SECURITY_INTEGRATIONS = Listing(
    "SECURITY INTEGRATIONS", NameLevel.ACCOUNT, _COLUMNS, _list_security_rows
)
INTEGRATIONS = Listing("INTEGRATIONS", NameLevel.ACCOUNT, _COLUMNS, _list_rows)
