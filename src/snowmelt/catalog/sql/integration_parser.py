"""Parser for API integrations and security integrations.

The grammar is Snowflake's; API integrations have additional clauses. ALTER, DROP and DESCRIBE
INTEGRATION without a kind are parsed as both kinds.
"""

from __future__ import annotations

import base64
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from snowmelt.catalog.model.privilege_kinds import ACCOUNTADMIN, public_key_to_der
from snowmelt.catalog.model.records import SecurityIntegration
from snowmelt.catalog.sql import property_clauses
from snowmelt.catalog.sql.ast import (
    AlterIntegration,
    AlterOrDropAnyIntegration,
    AlterSecurityIntegration,
    CreateIntegration,
    CreateSecurityIntegration,
    DescribeAnyIntegration,
    DescribeIntegration,
    DescribeSecurityIntegration,
    DropIntegration,
    DropSecurityIntegration,
)
from snowmelt.catalog.sql.function_parser import parse_clause_changes
from snowmelt.catalog.sql.property_clauses import ClauseDefinition, ClauseReader
from snowmelt.errors import InvalidPublicKey, StatementError
from snowmelt.functions.definition import ApiIntegration, AuthenticationMethod
from snowmelt.functions.errors import UrlRefused
from snowmelt.functions.urls import parse_url_prefix
from snowmelt.schema.types import to_internal_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.sql.cursor import TokenCursor
    from snowmelt.catalog.sql.object_name_types import CreateMode

_API_INTEGRATION_LABEL = "an API integration"
_SECRET_REFERENCE = re.compile(r"(?:env:[A-Za-z_][A-Za-z0-9_]*|file:[^\x00-\x1f]+)\Z")


class ApiProvider(StrEnum):
    """What answers: the gateways of Snowflake's DDL, or any HTTP service."""

    AWS_API_GATEWAY = "AWS_API_GATEWAY"
    AWS_PRIVATE_API_GATEWAY = "AWS_PRIVATE_API_GATEWAY"
    AWS_GOV_API_GATEWAY = "AWS_GOV_API_GATEWAY"
    AWS_GOV_PRIVATE_API_GATEWAY = "AWS_GOV_PRIVATE_API_GATEWAY"
    AZURE_API_MANAGEMENT = "AZURE_API_MANAGEMENT"
    GOOGLE_API_GATEWAY = "GOOGLE_API_GATEWAY"
    HTTP = "HTTP"


def _parse_provider(cursor: TokenCursor) -> str:
    return property_clauses.choice_parser(ApiProvider, "API_PROVIDER")(cursor).value.lower()


def _url_prefix_list_parser(clause_word: str) -> Callable[[TokenCursor], tuple[str, ...]]:
    def one(cursor: TokenCursor) -> str:
        at = cursor.current
        prefix = cursor.parse_string("a URL")
        try:
            parse_url_prefix(prefix)
        except UrlRefused as error:
            raise cursor.make_error(f"{clause_word}: {str(error).rstrip('.')}", at) from None
        return prefix

    return lambda cursor: property_clauses.parse_list(cursor, one)


def _secret_reference_parser(clause_word: str) -> Callable[[TokenCursor], str]:
    def read(cursor: TokenCursor) -> str:
        at = cursor.current
        # The literal is never repeated: errors are logged and shown.
        if not property_clauses.is_next_string(cursor) or not _SECRET_REFERENCE.match(at.text):
            raise cursor.make_error(
                f"{clause_word} is a reference to where the secret is kept, 'env:NAME' or 'file:PATH', "
                "never the secret itself",
                at,
            )
        return cursor.parse_string("a reference")

    return read


_API_INTEGRATION_CLAUSES = {
    "API_PROVIDER": ClauseDefinition("provider", _parse_provider, is_required=True),
    "API_ALLOWED_PREFIXES": ClauseDefinition(
        "allowed_prefixes", _url_prefix_list_parser("API_ALLOWED_PREFIXES"), is_required=True
    ),
    "API_BLOCKED_PREFIXES": ClauseDefinition(
        "blocked_prefixes", _url_prefix_list_parser("API_BLOCKED_PREFIXES"), ()
    ),
    "ENABLED": ClauseDefinition("enabled", property_clauses.parse_boolean, default=True),
    "COMMENT": ClauseDefinition("comment", property_clauses.text_parser("a comment")),
    "API_KEY": ClauseDefinition("api_key", _secret_reference_parser("API_KEY")),
    "AUTHENTICATION": ClauseDefinition(
        "authentication",
        property_clauses.choice_parser(AuthenticationMethod, "AUTHENTICATION"),
        AuthenticationMethod.NONE,
    ),
    "USER": ClauseDefinition("user", property_clauses.text_parser("a user")),
    "SECRET": ClauseDefinition("secret", _secret_reference_parser("SECRET")),
    "REGION": ClauseDefinition("region", property_clauses.text_parser("a region")),
    "CA_FILE": ClauseDefinition("ca_file", property_clauses.text_parser("a path")),
    "API_AWS_ROLE_ARN": ClauseDefinition("aws_role_arn", property_clauses.text_parser("a role")),
    "AZURE_TENANT_ID": ClauseDefinition(
        "azure_tenant_id", property_clauses.text_parser("a tenant")
    ),
    "AZURE_AD_APPLICATION_ID": ClauseDefinition(
        "azure_ad_application_id", property_clauses.text_parser("an application")
    ),
    "GOOGLE_AUDIENCE": ClauseDefinition(
        "google_audience", property_clauses.text_parser("an audience")
    ),
}


def parse_create_integration(cursor: TokenCursor, create_mode: CreateMode) -> CreateIntegration:
    """Go past what follows CREATE [OR REPLACE] API INTEGRATION [IF NOT EXISTS].

    Raises:
        StatementError: It is not as it must be.
    """
    name = cursor.parse_identifier("an API integration")
    settings = ClauseReader(_API_INTEGRATION_CLAUSES, _API_INTEGRATION_LABEL)
    while settings.parse_next(cursor):
        cursor.accept(",")
    if not property_clauses.is_at_end(cursor):
        settings.raise_unknown_clause(cursor)
    settings.check_required(cursor)
    cursor.expect_end("the clauses")
    return CreateIntegration(ApiIntegration(name=name, **settings.field_values()), create_mode)


def parse_alter_integration(cursor: TokenCursor) -> AlterIntegration:
    """Go past what follows ALTER API INTEGRATION.

    Raises:
        StatementError: It is anything but SET or UNSET.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.parse_identifier("an API integration")
    word = cursor.expect_one_of("SET", "UNSET")
    settings = ClauseReader(_API_INTEGRATION_CLAUSES, "ALTER INTEGRATION")
    parse_clause_changes(cursor, settings, unset=word == "UNSET")
    return AlterIntegration(name, settings.field_values(), if_exists)


def parse_drop_integration(cursor: TokenCursor) -> DropIntegration:
    """Go past what follows DROP API INTEGRATION.

    Raises:
        StatementError: It is more than a name.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.parse_identifier("an API integration")
    cursor.expect_end("DROP INTEGRATION")
    return DropIntegration(name, if_exists)


def parse_describe_integration(cursor: TokenCursor) -> DescribeIntegration:
    """Go past what follows DESCRIBE API INTEGRATION.

    Raises:
        StatementError: It is more than a name.
    """
    name = cursor.parse_identifier("an API integration")
    cursor.expect_end("DESCRIBE INTEGRATION")
    return DescribeIntegration(name)


def parse_alter_any_integration(cursor: TokenCursor) -> AlterOrDropAnyIntegration:
    """Go past what follows ALTER INTEGRATION, which does not say of which kind it is.

    Raises:
        StatementError: It can be said of no kind; the error is that of the kind that got further.
    """
    other = cursor.fork()
    api, security, failed = None, None, list[StatementError]()
    try:
        api = parse_alter_integration(cursor)
    except StatementError as error:
        failed.append(error)
    try:
        security = parse_alter_security_integration(other)
    except StatementError as error:
        failed.append(error)
    known = api or security
    if known is None:
        raise failed[other.current.start_offset > cursor.current.start_offset]
    return AlterOrDropAnyIntegration(known.name, api, security)


def parse_drop_any_integration(cursor: TokenCursor) -> AlterOrDropAnyIntegration:
    """Go past what follows DROP INTEGRATION, which does not say of which kind it is.

    Raises:
        StatementError: It is more than a name.
    """
    other = cursor.fork()
    api = parse_drop_integration(cursor)
    return AlterOrDropAnyIntegration(api.name, api, parse_drop_security_integration(other))


def parse_describe_any_integration(cursor: TokenCursor) -> DescribeAnyIntegration:
    """Go past what follows DESCRIBE INTEGRATION, which does not say of which kind it is.

    Raises:
        StatementError: It is more than a name.
    """
    return DescribeAnyIntegration(parse_describe_integration(cursor).name)


# --- Statements about security integrations; the grammar is Snowflake's.

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
        if property_clauses.is_next_string(cursor):
            return (cursor.parse_string(label),)
        return property_clauses.string_list_parser(label)(cursor)

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
        "type", property_clauses.choice_parser(_SecurityIntegrationType, "TYPE"), is_required=True
    ),
    "ENABLED": ClauseDefinition("enabled", property_clauses.parse_boolean, is_required=True),
    "COMMENT": ClauseDefinition("comment", property_clauses.text_parser("a comment")),
    _OAUTH_PREFIX + "TYPE": ClauseDefinition(
        "server",
        property_clauses.choice_parser(_AuthorizationServer, _OAUTH_PREFIX + "TYPE"),
        is_required=True,
    ),
    _OAUTH_PREFIX + "ISSUER": ClauseDefinition(
        "issuer", property_clauses.text_parser("an issuer"), is_required=True
    ),
    _OAUTH_PREFIX + "TOKEN_USER_MAPPING_CLAIM": ClauseDefinition(
        "user_claims", _string_or_list_parser("a claim"), is_required=True
    ),
    _OAUTH_PREFIX + "SNOWFLAKE_USER_MAPPING_ATTRIBUTE": ClauseDefinition(
        "attribute",
        property_clauses.choice_parser(
            _UserMappingAttribute, _OAUTH_PREFIX + "SNOWFLAKE_USER_MAPPING_ATTRIBUTE"
        ),
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
        property_clauses.choice_parser(_AnyRoleMode, _OAUTH_PREFIX + "ANY_ROLE_MODE"),
        _AnyRoleMode.DISABLE,
    ),
    _OAUTH_PREFIX + "SCOPE_MAPPING_ATTRIBUTE": ClauseDefinition(
        "scope_claim", property_clauses.text_parser("a claim"), "scp"
    ),
}


def parse_create_security_integration(
    cursor: TokenCursor, create_mode: CreateMode
) -> CreateSecurityIntegration:
    """Go past what follows CREATE [OR REPLACE] SECURITY INTEGRATION [IF NOT EXISTS].

    Raises:
        StatementError: It is not as it must be.
    """
    name = cursor.parse_identifier(_SECURITY_INTEGRATION_LABEL)
    settings = ClauseReader(_SECURITY_INTEGRATION_CLAUSES, _SECURITY_INTEGRATION_LABEL)
    while settings.parse_next(cursor):
        cursor.accept(",")
    if not property_clauses.is_at_end(cursor):
        settings.raise_unknown_clause(cursor)
    settings.check_required(cursor)
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


def parse_alter_security_integration(cursor: TokenCursor) -> AlterSecurityIntegration:
    """Go past what follows ALTER [SECURITY] INTEGRATION.

    Raises:
        StatementError: It is anything but SET or UNSET.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.parse_identifier(_SECURITY_INTEGRATION_LABEL)
    word = cursor.expect_one_of("SET", "UNSET")
    settings = ClauseReader(_SECURITY_INTEGRATION_CLAUSES, _SECURITY_INTEGRATION_LABEL)
    parse_clause_changes(cursor, settings, unset=word == "UNSET")
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


def parse_describe_security_integration(cursor: TokenCursor) -> DescribeSecurityIntegration:
    """Go past what follows DESCRIBE [SECURITY] INTEGRATION.

    Raises:
        StatementError: It is more than a name.
    """
    name = cursor.parse_identifier(_SECURITY_INTEGRATION_LABEL)
    cursor.expect_end("DESCRIBE INTEGRATION")
    return DescribeSecurityIntegration(name)


def parse_drop_security_integration(cursor: TokenCursor) -> DropSecurityIntegration:
    """Go past what follows DROP SECURITY INTEGRATION.

    Raises:
        StatementError: It is more than a name.
    """
    if_exists = cursor.accept("IF", "EXISTS")
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
