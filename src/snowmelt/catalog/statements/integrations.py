"""Statements on API integrations and security integrations.

The grammar is Snowflake's, with additional clauses. No statement shows the keys and secrets of API
integrations, or the references to them. Security integrations require ACCOUNTADMIN. ALTER, DROP and
DESCRIBE INTEGRATION may omit the kind (API or SECURITY). They are then parsed as both kinds, and
the existing integration determines the kind at execution.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from snowmelt.catalog.model.records import ACCOUNTADMIN, SecurityIntegration, public_key_to_der
from snowmelt.catalog.objects import external_functions
from snowmelt.catalog.objects.external_functions import ApiIntegrationRecord
from snowmelt.catalog.security import oauth_integrations
from snowmelt.catalog.security.access_control import VisibleObjects
from snowmelt.catalog.security.oauth_integrations import (
    SecurityIntegrationRecord,
    find_security_integration,
)
from snowmelt.catalog.sql.cursor import (
    Clause,
    ClauseReader,
    CreateMode,
    NameLevel,
    TokenCursor,
    ValueParser,
    choice_parser,
    is_next_string,
    parse_boolean,
    parse_list,
    string_list_parser,
    text_parser,
)
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
from snowmelt.errors import InvalidPublicKey, NotFound, StatementError, UserError
from snowmelt.functions.definition import ApiIntegration, AuthenticationMethod
from snowmelt.functions.errors import UrlRefused
from snowmelt.functions.urls import parse_url_prefix
from snowmelt.schema.types import to_display_name, to_internal_name

_REDACTED = "******"


class CreateIntegration(Statement):
    """CREATE API INTEGRATION."""

    integration: ApiIntegration
    create_mode: CreateMode

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_account_privilege(external_functions.CREATE_INTEGRATION_PRIVILEGE)
        name = self.integration.name
        shown = to_display_name(name)
        label = f"API integration {shown}"
        there = external_functions.list_api_integrations(session.connection, name)
        skip_if_exists(label, self.create_mode, exists=bool(there))
        replaced = None
        if there and self.create_mode is CreateMode.OR_REPLACE:
            session.require_ownership("INTEGRATION", there[0].integration_id, shown)
            with contextlib.suppress(NotFound):  # It was dropped meanwhile.
                replaced = lock_owned_integration(session, name)
        self.integration.validate()
        external_functions.create_api_integration(
            session.connection,
            self.integration,
            owner=session.role,
            now=session.now,
            replaced=replaced,
        )
        return creation_result(label, replaced=replaced is not None)


class AlterIntegration(Statement):
    """ALTER INTEGRATION … SET or UNSET: new values of fields of the definition."""

    name: str
    changes: Mapping[str, Any]
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            record = lock_owned_integration(session, self.name)
        integration = replace(record.integration, **self.changes)
        integration.validate()
        external_functions.update_api_integration(session.connection, record, integration)
        return StatementResult(message=f"API integration {to_display_name(self.name)} altered.")


class DropIntegration(Statement):
    """DROP INTEGRATION. Fails if a function uses the integration."""

    name: str
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            record = lock_owned_integration(session, self.name)
        external_functions.drop_api_integration(session.connection, record, session.now)
        return StatementResult(message=f"API integration {to_display_name(self.name)} dropped.")


class DescribeIntegration(Statement):
    """DESCRIBE INTEGRATION."""

    reads_only = True

    name: str

    def execute(self, session: StatementSession) -> StatementResult:
        made = session.find_api_integration(self.name).integration
        rows: list[tuple[str, object]] = [
            ("ENABLED", made.enabled),
            ("API_PROVIDER", made.provider.upper()),
            ("API_ALLOWED_PREFIXES", ", ".join(made.allowed_prefixes)),
            ("API_BLOCKED_PREFIXES", ", ".join(made.blocked_prefixes)),
            ("AUTHENTICATION", made.authentication.value),
            ("API_KEY", None if made.api_key is None else _REDACTED),
        ]
        if made.authentication is not AuthenticationMethod.NONE:
            rows += [("USER", made.user), ("SECRET", None if made.secret is None else _REDACTED)]
        words = ("REGION", "CA_FILE", "API_AWS_ROLE_ARN", "AZURE_TENANT_ID")
        for word in (*words, "AZURE_AD_APPLICATION_ID", "GOOGLE_AUDIENCE"):
            value = getattr(made, _API_INTEGRATION_CLAUSES[word].field or word.lower())
            if value is not None:
                rows.append((word, value))
        return StatementResult(("property", "value"), (*rows, ("COMMENT", made.comment)))


def lock_owned_integration(session: StatementSession, name: str) -> ApiIntegrationRecord:
    """Lock and return an integration that the role owns.

    Raises:
        NotFound: If the integration does not exist, or the role has no privilege on it.
        PrivilegeMissing: If another role owns it.
    """

    def find() -> ApiIntegrationRecord:
        record = session.find_api_integration(name)
        session.require_ownership("INTEGRATION", record.integration_id, to_display_name(name))
        return record

    find()
    # Lock, so that concurrent changes of an integration do not overwrite each other.
    external_functions.lock_api_integration(session.connection, name)
    # Another role may have replaced it before the lock.
    return find()


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


class AlterSecurityIntegration(Statement):
    """ALTER SECURITY INTEGRATION … SET or UNSET: new values of the clauses."""

    name: str
    changes: Mapping[str, object]
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("ALTER SECURITY INTEGRATION")
        with skipping_missing(self.if_exists):
            oauth_integrations.update_security_integration(
                session.connection, self.name, self.changes
            )
        shown = to_display_name(self.name)
        return StatementResult(message=f"Security integration {shown} altered.")


class DropSecurityIntegration(Statement):
    """DROP SECURITY INTEGRATION."""

    name: str
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("DROP SECURITY INTEGRATION")
        with skipping_missing(self.if_exists):
            oauth_integrations.drop_security_integration(session.connection, self.name)
        shown = to_display_name(self.name)
        return StatementResult(message=f"Security integration {shown} dropped.")


class DescribeSecurityIntegration(Statement):
    """DESCRIBE SECURITY INTEGRATION."""

    reads_only = True

    name: str

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("DESCRIBE SECURITY INTEGRATION")
        made = find_security_integration(session.connection, self.name).integration
        first, second = [*made.public_keys, None, None][:2]
        oauth: tuple[tuple[str, object], ...] = (
            ("TYPE", made.server),
            ("ISSUER", made.issuer),
            ("JWS_KEYS_URL", made.keys_url),
            ("RSA_PUBLIC_KEY", first),
            ("RSA_PUBLIC_KEY_2", second),
            ("AUDIENCE_LIST", ", ".join(made.audiences)),
            ("TOKEN_USER_MAPPING_CLAIM", ", ".join(made.user_claims)),
            ("SNOWFLAKE_USER_MAPPING_ATTRIBUTE", "LOGIN_NAME"),
            ("SCOPE_MAPPING_ATTRIBUTE", made.scope_claim),
            ("ANY_ROLE_MODE", "ENABLE" if made.any_role else "DISABLE"),
            ("BLOCKED_ROLES_LIST", ", ".join(made.blocked_roles)),
        )
        rows = (
            ("ENABLED", made.enabled),
            *((_OAUTH_PREFIX + word, value) for word, value in oauth),
            ("COMMENT", made.comment),
        )
        return StatementResult(("property", "value"), rows)


class AlterOrDropAnyIntegration(Statement):
    """ALTER or DROP INTEGRATION without a kind. Contains the statement for each kind that it fits."""

    name: str
    api: AlterIntegration | DropIntegration | None
    security: AlterSecurityIntegration | DropSecurityIntegration | None

    def execute(self, session: StatementSession) -> StatementResult:
        said = [each for each in (self.api, self.security) if each is not None]
        # If the statement fits the other kind only, execute that one: its error says that the
        # integration does not exist.
        return said[-1 if _is_security_integration(session, self.name) else 0].execute(session)


class DescribeAnyIntegration(Statement):
    """DESCRIBE INTEGRATION without a kind."""

    reads_only = True

    name: str

    def execute(self, session: StatementSession) -> StatementResult:
        if _is_security_integration(session, self.name):
            return DescribeSecurityIntegration(self.name).execute(session)
        return DescribeIntegration(self.name).execute(session)


def _is_security_integration(session: StatementSession, name: str) -> bool:
    """Return True if a security integration of this name exists and the role can see it.

    Raises:
        UserError: If integrations of both kinds have the name.
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
        f"An API integration and a security integration are named {to_display_name(name)}. Specify the "
        "kind, as in DROP API INTEGRATION."
    )


def _list_api_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    visible = VisibleObjects(session.connection, session.role)
    for each in external_functions.list_api_integrations(session.connection):
        if visible.includes_account_object("INTEGRATION", each.integration_id):
            made = each.integration
            row = (made.name, "EXTERNAL_API", "API", made.enabled, made.comment)
            yield (*row, each.created_at, each.owner)


def _list_security_rows(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    if session.is_administrator:
        for each in oauth_integrations.list_security_integrations(session.connection):
            made = each.integration
            row = (each.name, "EXTERNAL_OAUTH", "SECURITY", made.enabled, made.comment)
            yield (*row, each.created_at, each.owner)


# The grammar of API integrations.

_API_LABEL = "an API integration"
_SECRET_REFERENCE = re.compile(r"(?:env:[A-Za-z_][A-Za-z0-9_]*|file:[^\x00-\x1f]+)\Z")


# API providers: the gateways in Snowflake's grammar, and `http` for any HTTP service.
_API_PROVIDERS = (
    *("AWS_API_GATEWAY", "AWS_PRIVATE_API_GATEWAY", "AWS_GOV_API_GATEWAY"),
    *("AWS_GOV_PRIVATE_API_GATEWAY", "AZURE_API_MANAGEMENT", "GOOGLE_API_GATEWAY", "HTTP"),
)


def _url_prefix_list_parser(clause_word: str) -> Callable[[TokenCursor], tuple[str, ...]]:
    def one(cursor: TokenCursor) -> str:
        at = cursor.current
        prefix = cursor.parse_string("a URL")
        try:
            parse_url_prefix(prefix)
        except UrlRefused as error:
            raise cursor.make_error(f"{clause_word}: {str(error).rstrip('.')}", at) from None
        return prefix

    return lambda cursor: parse_list(cursor, one)


def _secret_reference_parser(clause_word: str) -> Callable[[TokenCursor], str]:
    def read(cursor: TokenCursor) -> str:
        at = cursor.current
        # The message must not contain the secret, because errors are logged and shown.
        if not is_next_string(cursor) or not _SECRET_REFERENCE.match(at.text):
            raise cursor.make_error(
                f"{clause_word} must be a reference to the secret, 'env:NAME' or 'file:PATH', "
                "not the secret itself",
                at,
            )
        return cursor.parse_string("a reference")

    return read


_API_INTEGRATION_CLAUSES = {
    "API_PROVIDER": Clause(
        lambda cursor: choice_parser(_API_PROVIDERS, "API_PROVIDER")(cursor).lower(),
        is_required=True,
        field="provider",
    ),
    "API_ALLOWED_PREFIXES": Clause(
        _url_prefix_list_parser("API_ALLOWED_PREFIXES"), is_required=True, field="allowed_prefixes"
    ),
    "API_BLOCKED_PREFIXES": Clause(
        _url_prefix_list_parser("API_BLOCKED_PREFIXES"), (), field="blocked_prefixes"
    ),
    "ENABLED": Clause(parse_boolean, default=True),
    "COMMENT": Clause(text_parser("a comment")),
    "API_KEY": Clause(_secret_reference_parser("API_KEY")),
    "AUTHENTICATION": Clause(
        choice_parser(AuthenticationMethod, "AUTHENTICATION"),
        AuthenticationMethod.NONE,
        field="authentication",
    ),
    "USER": Clause(text_parser("a user")),
    "SECRET": Clause(_secret_reference_parser("SECRET")),
    "REGION": Clause(text_parser("a region")),
    "CA_FILE": Clause(text_parser("a path")),
    "API_AWS_ROLE_ARN": Clause(text_parser("a role"), field="aws_role_arn"),
    "AZURE_TENANT_ID": Clause(text_parser("a tenant")),
    "AZURE_AD_APPLICATION_ID": Clause(text_parser("an application")),
    "GOOGLE_AUDIENCE": Clause(text_parser("an audience")),
}


def _parse_create_api(cursor: TokenCursor, create_mode: CreateMode) -> CreateIntegration:
    name = cursor.parse_identifier(_API_LABEL)
    settings = ClauseReader(_API_INTEGRATION_CLAUSES, _API_LABEL)
    settings.parse_all(cursor)
    cursor.expect_end("the clauses")
    return CreateIntegration(ApiIntegration(name=name, **settings.field_values()), create_mode)


def _parse_alter_api(cursor: TokenCursor, if_exists: bool) -> AlterIntegration:
    name = cursor.parse_identifier(_API_LABEL)
    word = cursor.expect_one_of("SET", "UNSET")
    settings = ClauseReader(_API_INTEGRATION_CLAUSES, "ALTER INTEGRATION")
    settings.parse_changes(cursor, unset=word == "UNSET")
    return AlterIntegration(name, settings.field_values(), if_exists)


# The grammar of security integrations.

_SECURITY_LABEL = "a security integration"


def _string_or_list_parser(label: str) -> Callable[[TokenCursor], tuple[str, ...]]:
    read_list = string_list_parser(label)
    return lambda cursor: (
        (cursor.parse_string(label),) if is_next_string(cursor) else read_list(cursor)
    )


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
        raise cursor.make_error(
            "The URL of keys must begin with https://. Only loopback addresses allow http://", at
        )
    return url


_OAUTH_PREFIX = "EXTERNAL_OAUTH_"
_PUBLIC_KEY_FIELDS = ("public_key", "public_key_2")


_SECURITY_INTEGRATION_CLAUSES = {
    "TYPE": Clause(choice_parser(("EXTERNAL_OAUTH",), "TYPE"), is_required=True),
    "ENABLED": Clause(parse_boolean, is_required=True),
    "COMMENT": Clause(text_parser("a comment")),
}


def _add_oauth_clause(word: str, field: str, parser: ValueParser, default: object = None) -> None:
    """Add a clause with its default. Ellipsis as default means that the clause is required."""
    _SECURITY_INTEGRATION_CLAUSES[_OAUTH_PREFIX + word] = Clause(
        parser, None if default is ... else default, is_required=default is ..., field=field
    )


def _oauth_choice(word: str, *choices: str) -> ValueParser:
    return choice_parser(choices, _OAUTH_PREFIX + word)


_SERVERS = ("OKTA", "AZURE", "PING_FEDERATE", "CUSTOM")
_add_oauth_clause("TYPE", "server", _oauth_choice("TYPE", *_SERVERS), ...)
_add_oauth_clause("ISSUER", "issuer", text_parser("an issuer"), ...)
_add_oauth_clause("TOKEN_USER_MAPPING_CLAIM", "user_claims", _string_or_list_parser("a claim"), ...)
_MAPPING = "SNOWFLAKE_USER_MAPPING_ATTRIBUTE"
_add_oauth_clause(_MAPPING, "attribute", _oauth_choice(_MAPPING, "LOGIN_NAME"), ...)
_add_oauth_clause("JWS_KEYS_URL", "keys_url", _parse_keys_url)
_add_oauth_clause("RSA_PUBLIC_KEY", "public_key", _parse_public_key)
_add_oauth_clause("RSA_PUBLIC_KEY_2", "public_key_2", _parse_public_key)
_add_oauth_clause("AUDIENCE_LIST", "audiences", _string_or_list_parser("an audience"), ...)
_add_oauth_clause("BLOCKED_ROLES_LIST", "blocked_roles", _string_or_list_parser("a role"), ())
_add_oauth_clause(
    "ANY_ROLE_MODE", "any_role", _oauth_choice("ANY_ROLE_MODE", "DISABLE", "ENABLE"), "DISABLE"
)
_add_oauth_clause("SCOPE_MAPPING_ATTRIBUTE", "scope_claim", text_parser("a claim"), "scp")


def _parse_create_security(
    cursor: TokenCursor, create_mode: CreateMode
) -> CreateSecurityIntegration:
    name = cursor.parse_identifier(_SECURITY_LABEL)
    settings = ClauseReader(_SECURITY_INTEGRATION_CLAUSES, _SECURITY_LABEL)
    settings.parse_all(cursor)
    fields = _to_definition_fields(settings)
    keys = tuple(fields.pop(each, None) for each in _PUBLIC_KEY_FIELDS)
    if any(keys) == ("keys_url" in fields):
        raise cursor.make_error(
            f"Expected either {_OAUTH_PREFIX}JWS_KEYS_URL or {_OAUTH_PREFIX}RSA_PUBLIC_KEY: the keys that verify"
            " signatures"
        )
    fields.setdefault("blocked_roles", (ACCOUNTADMIN,))
    cursor.expect_end("the clauses")
    integration = SecurityIntegration(public_keys=keys, **fields)
    return CreateSecurityIntegration(name, integration, create_mode)


def _parse_alter_security(cursor: TokenCursor, if_exists: bool) -> AlterSecurityIntegration:
    name = cursor.parse_identifier(_SECURITY_LABEL)
    word = cursor.expect_one_of("SET", "UNSET")
    settings = ClauseReader(_SECURITY_INTEGRATION_CLAUSES, _SECURITY_LABEL)
    settings.parse_changes(cursor, unset=word == "UNSET")
    fields = _to_definition_fields(settings)
    has_keys = any(each in fields for each in _PUBLIC_KEY_FIELDS)
    if word == "SET" and "keys_url" in fields and has_keys:
        raise cursor.make_error(
            f"{_OAUTH_PREFIX}JWS_KEYS_URL and {_OAUTH_PREFIX}RSA_PUBLIC_KEY exclude each other. SET one of them;"
            " that removes the other"
        )
    return AlterSecurityIntegration(name, fields, if_exists)


def _to_definition_fields(clause_reader: ClauseReader) -> dict[str, Any]:
    """Convert values of clauses to fields of the definition. `_PUBLIC_KEY_FIELDS` names the keys."""
    fields = clause_reader.field_values()
    for each in ("type", "attribute"):
        fields.pop(each, None)
    if "any_role" in fields:
        fields["any_role"] = fields["any_role"] == "ENABLE"
    if "blocked_roles" in fields:
        # As in Snowflake, external tokens must not give the administrator role.
        blocked = map(to_internal_name, fields["blocked_roles"])
        fields["blocked_roles"] = tuple(dict.fromkeys((ACCOUNTADMIN, *blocked)))
    return fields


# Clauses of both kinds of integrations.


def _parse_name_alone(label: str, statement: str, cursor: TokenCursor) -> str:
    name = cursor.parse_identifier(label)
    cursor.expect_end(statement)
    return name


def _parse_drop_api(cursor: TokenCursor, if_exists: bool) -> DropIntegration:
    return DropIntegration(_parse_name_alone(_API_LABEL, "DROP INTEGRATION", cursor), if_exists)


def _parse_drop_security(cursor: TokenCursor, if_exists: bool) -> DropSecurityIntegration:
    name = _parse_name_alone(_SECURITY_LABEL, "DROP SECURITY INTEGRATION", cursor)
    return DropSecurityIntegration(name, if_exists)


def _parse_describe(make: Callable[[str], Statement], label: str, cursor: TokenCursor) -> Statement:
    return make(_parse_name_alone(label, "DESCRIBE INTEGRATION", cursor))


def _parse_alter_any(cursor: TokenCursor, if_exists: bool) -> AlterOrDropAnyIntegration:
    other = cursor.fork()
    api, security, failed = None, None, list[StatementError]()
    try:
        api = _parse_alter_api(cursor, if_exists)
    except StatementError as error:
        failed.append(error)
    try:
        security = _parse_alter_security(other, if_exists)
    except StatementError as error:
        failed.append(error)
    known = api or security
    if known is None:
        raise failed[other.current.start_offset > cursor.current.start_offset]
    return AlterOrDropAnyIntegration(known.name, api, security)


def _parse_drop_any(cursor: TokenCursor, if_exists: bool) -> AlterOrDropAnyIntegration:
    other = cursor.fork()
    api = _parse_drop_api(cursor, if_exists)
    return AlterOrDropAnyIntegration(api.name, api, _parse_drop_security(other, if_exists))


KINDS = (
    StatementKind(
        "API INTEGRATION",
        _parse_create_api,
        _parse_alter_api,
        _parse_drop_api,
        partial(_parse_describe, DescribeIntegration, _API_LABEL),
    ),
    StatementKind(
        "SECURITY INTEGRATION",
        _parse_create_security,
        _parse_alter_security,
        _parse_drop_security,
        partial(_parse_describe, DescribeSecurityIntegration, _SECURITY_LABEL),
    ),
    StatementKind(
        "INTEGRATION",
        None,
        _parse_alter_any,
        _parse_drop_any,
        partial(_parse_describe, DescribeAnyIntegration, _API_LABEL),
    ),
)
LISTINGS = tuple(
    Listing(words, NameLevel.ACCOUNT, "name type category enabled comment created_on owner", rows)
    for words, rows in (
        ("API INTEGRATIONS", _list_api_rows),
        ("SECURITY INTEGRATIONS", _list_security_rows),
        ("INTEGRATIONS", lambda *on: (*_list_api_rows(*on), *_list_security_rows(*on))),
    )
)
