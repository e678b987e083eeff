"""Statements about API integrations; the grammar is Snowflake's, with clauses of our own."""

from __future__ import annotations

import base64
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from snowmelt.catalog.model.privileges import ACCOUNTADMIN, der_of_public_key
from snowmelt.catalog.model.records import SecurityIntegration
from snowmelt.catalog.sql import clauses
from snowmelt.catalog.sql.ast import (
    AlterIntegration,
    AlterSecurityIntegration,
    ChangeIntegration,
    CreateIntegration,
    CreateSecurityIntegration,
    DescribeAnyIntegration,
    DescribeIntegration,
    DescribeSecurityIntegration,
    DropIntegration,
    DropSecurityIntegration,
)
from snowmelt.catalog.sql.clauses import Clause, Settings
from snowmelt.catalog.sql.function_parser import read_changes
from snowmelt.errors import InvalidPublicKey, StatementError
from snowmelt.functions.definition import ApiIntegration, AuthenticationMethod
from snowmelt.functions.errors import UrlRefused
from snowmelt.functions.urls import parse_prefix
from snowmelt.schema.types import internal_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.sql.cursor import Cursor
    from snowmelt.catalog.sql.identifiers import Existing

_WHAT = "an API integration"
_REFERENCE = re.compile(r"(?:env:[A-Za-z_][A-Za-z0-9_]*|file:[^\x00-\x1f]+)\Z")


class Provider(StrEnum):
    """What answers: the gateways of Snowflake's DDL, or any HTTP service."""

    AWS_API_GATEWAY = "AWS_API_GATEWAY"
    AWS_PRIVATE_API_GATEWAY = "AWS_PRIVATE_API_GATEWAY"
    AWS_GOV_API_GATEWAY = "AWS_GOV_API_GATEWAY"
    AWS_GOV_PRIVATE_API_GATEWAY = "AWS_GOV_PRIVATE_API_GATEWAY"
    AZURE_API_MANAGEMENT = "AZURE_API_MANAGEMENT"
    GOOGLE_API_GATEWAY = "GOOGLE_API_GATEWAY"
    HTTP = "HTTP"


def _provider(cursor: Cursor) -> str:
    return clauses.choice(Provider, "API_PROVIDER")(cursor).value.lower()


def _prefixes(word: str) -> Callable[[Cursor], tuple[str, ...]]:
    def one(cursor: Cursor) -> str:
        at = cursor.token
        prefix = cursor.string("a URL")
        try:
            parse_prefix(prefix)
        except UrlRefused as error:
            raise cursor.error(f"{word}: {str(error).rstrip('.')}", at) from None
        return prefix

    return lambda cursor: clauses.listed(cursor, one)


def _secret(word: str) -> Callable[[Cursor], str]:
    def read(cursor: Cursor) -> str:
        at = cursor.token
        # The literal is never repeated: errors are logged and shown.
        if not clauses.is_string(cursor) or not _REFERENCE.match(at.text):
            raise cursor.error(
                f"{word} is a reference to where the secret is kept, 'env:NAME' or 'file:PATH', "
                "never the secret itself",
                at,
            )
        return cursor.string("a reference")

    return read


_CLAUSES = {
    "API_PROVIDER": Clause("provider", _provider, is_required=True),
    "API_ALLOWED_PREFIXES": Clause(
        "allowed_prefixes", _prefixes("API_ALLOWED_PREFIXES"), is_required=True
    ),
    "API_BLOCKED_PREFIXES": Clause("blocked_prefixes", _prefixes("API_BLOCKED_PREFIXES"), ()),
    "ENABLED": Clause("enabled", clauses.boolean, default=True),
    "COMMENT": Clause("comment", clauses.text("a comment")),
    "API_KEY": Clause("api_key", _secret("API_KEY")),
    "AUTHENTICATION": Clause(
        "authentication",
        clauses.choice(AuthenticationMethod, "AUTHENTICATION"),
        AuthenticationMethod.NONE,
    ),
    "USER": Clause("user", clauses.text("a user")),
    "SECRET": Clause("secret", _secret("SECRET")),
    "REGION": Clause("region", clauses.text("a region")),
    "CA_FILE": Clause("ca_file", clauses.text("a path")),
    "API_AWS_ROLE_ARN": Clause("aws_role_arn", clauses.text("a role")),
    "AZURE_TENANT_ID": Clause("azure_tenant_id", clauses.text("a tenant")),
    "AZURE_AD_APPLICATION_ID": Clause("azure_ad_application_id", clauses.text("an application")),
    "GOOGLE_AUDIENCE": Clause("google_audience", clauses.text("an audience")),
}


def read_create_integration(cursor: Cursor, existing: Existing) -> CreateIntegration:
    """Go past what follows CREATE [OR REPLACE] API INTEGRATION [IF NOT EXISTS].

    Raises:
        StatementError: It is not as it must be.
    """
    name = cursor.identifier("an API integration")
    settings = Settings(_CLAUSES, _WHAT)
    while settings.read_one(cursor):
        cursor.accept(",")
    if not clauses.is_at_end(cursor):
        settings.refuse(cursor)
    settings.require(cursor)
    cursor.end("the clauses")
    return CreateIntegration(ApiIntegration(name=name, **settings.fields()), existing)


def read_alter_integration(cursor: Cursor) -> AlterIntegration:
    """Go past what follows ALTER API INTEGRATION.

    Raises:
        StatementError: It is anything but SET or UNSET.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.identifier("an API integration")
    word = cursor.expect_one_of("SET", "UNSET")
    settings = Settings(_CLAUSES, "ALTER INTEGRATION")
    read_changes(cursor, settings, unset=word == "UNSET")
    return AlterIntegration(name, settings.fields(), if_exists)


def read_drop_integration(cursor: Cursor) -> DropIntegration:
    """Go past what follows DROP API INTEGRATION.

    Raises:
        StatementError: It is more than a name.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.identifier("an API integration")
    cursor.end("DROP INTEGRATION")
    return DropIntegration(name, if_exists)


def read_describe_integration(cursor: Cursor) -> DescribeIntegration:
    """Go past what follows DESCRIBE API INTEGRATION.

    Raises:
        StatementError: It is more than a name.
    """
    name = cursor.identifier("an API integration")
    cursor.end("DESCRIBE INTEGRATION")
    return DescribeIntegration(name)


def read_alter_any(cursor: Cursor) -> ChangeIntegration:
    """Go past what follows ALTER INTEGRATION, which does not say of which kind it is.

    Raises:
        StatementError: It can be said of no kind; the error is that of the kind that got further.
    """
    other = cursor.fork()
    api, security, failed = None, None, list[StatementError]()
    try:
        api = read_alter_integration(cursor)
    except StatementError as error:
        failed.append(error)
    try:
        security = read_alter_security_integration(other)
    except StatementError as error:
        failed.append(error)
    known = api or security
    if known is None:
        raise failed[other.token.start > cursor.token.start]
    return ChangeIntegration(known.name, api, security)


def read_drop_any(cursor: Cursor) -> ChangeIntegration:
    """Go past what follows DROP INTEGRATION, which does not say of which kind it is.

    Raises:
        StatementError: It is more than a name.
    """
    other = cursor.fork()
    api = read_drop_integration(cursor)
    return ChangeIntegration(api.name, api, read_drop_security_integration(other))


def read_describe_any(cursor: Cursor) -> DescribeAnyIntegration:
    """Go past what follows DESCRIBE INTEGRATION, which does not say of which kind it is.

    Raises:
        StatementError: It is more than a name.
    """
    return DescribeAnyIntegration(read_describe_integration(cursor).name)


# --- Statements about security integrations; the grammar is Snowflake's.

_WHAT_SECURITY_GRAMMAR = "a security integration"


class _Type(StrEnum):
    EXTERNAL_OAUTH = "EXTERNAL_OAUTH"


class _Server(StrEnum):
    OKTA = "OKTA"
    AZURE = "AZURE"
    PING_FEDERATE = "PING_FEDERATE"
    CUSTOM = "CUSTOM"


class _Attribute(StrEnum):
    LOGIN_NAME = "LOGIN_NAME"


class _AnyRole(StrEnum):
    DISABLE = "DISABLE"
    ENABLE = "ENABLE"


def _one_or_more(what: str) -> Callable[[Cursor], tuple[str, ...]]:
    def read(cursor: Cursor) -> tuple[str, ...]:
        if clauses.is_string(cursor):
            return (cursor.string(what),)
        return clauses.strings(what)(cursor)

    return read


def _public_key(cursor: Cursor) -> str:
    at = cursor.token
    try:
        der = der_of_public_key(cursor.string("a public key"))
    except InvalidPublicKey as error:
        raise cursor.error(str(error).rstrip("."), at) from None
    return base64.b64encode(der).decode()


def _url(cursor: Cursor) -> str:
    at = cursor.token
    url = cursor.string("a URL")
    if not url.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
        raise cursor.error("Keys are fetched over https:// (http:// on loopback alone)", at)
    return url


_PRE = "EXTERNAL_OAUTH_"
_KEYS = ("public_key", "public_key_2")
_CLAUSES_SECURITY_GRAMMAR = {
    "TYPE": Clause("type", clauses.choice(_Type, "TYPE"), is_required=True),
    "ENABLED": Clause("enabled", clauses.boolean, is_required=True),
    "COMMENT": Clause("comment", clauses.text("a comment")),
    _PRE + "TYPE": Clause("server", clauses.choice(_Server, _PRE + "TYPE"), is_required=True),
    _PRE + "ISSUER": Clause("issuer", clauses.text("an issuer"), is_required=True),
    _PRE + "TOKEN_USER_MAPPING_CLAIM": Clause(
        "user_claims", _one_or_more("a claim"), is_required=True
    ),
    _PRE + "SNOWFLAKE_USER_MAPPING_ATTRIBUTE": Clause(
        "attribute",
        clauses.choice(_Attribute, _PRE + "SNOWFLAKE_USER_MAPPING_ATTRIBUTE"),
        is_required=True,
    ),
    _PRE + "JWS_KEYS_URL": Clause("keys_url", _url),
    _PRE + "RSA_PUBLIC_KEY": Clause("public_key", _public_key),
    _PRE + "RSA_PUBLIC_KEY_2": Clause("public_key_2", _public_key),
    _PRE + "AUDIENCE_LIST": Clause("audiences", _one_or_more("an audience"), is_required=True),
    _PRE + "BLOCKED_ROLES_LIST": Clause("blocked_roles", _one_or_more("a role"), ()),
    _PRE + "ANY_ROLE_MODE": Clause(
        "any_role", clauses.choice(_AnyRole, _PRE + "ANY_ROLE_MODE"), _AnyRole.DISABLE
    ),
    _PRE + "SCOPE_MAPPING_ATTRIBUTE": Clause("scope_claim", clauses.text("a claim"), "scp"),
}


def read_create_security_integration(
    cursor: Cursor, existing: Existing
) -> CreateSecurityIntegration:
    """Go past what follows CREATE [OR REPLACE] SECURITY INTEGRATION [IF NOT EXISTS].

    Raises:
        StatementError: It is not as it must be.
    """
    name = cursor.identifier(_WHAT_SECURITY_GRAMMAR)
    settings = Settings(_CLAUSES_SECURITY_GRAMMAR, _WHAT_SECURITY_GRAMMAR)
    while settings.read_one(cursor):
        cursor.accept(",")
    if not clauses.is_at_end(cursor):
        settings.refuse(cursor)
    settings.require(cursor)
    fields = _fields(settings)
    keys = tuple(fields.pop(each, None) for each in _KEYS)
    if any(keys) == ("keys_url" in fields):
        raise cursor.error(
            f"{_PRE}JWS_KEYS_URL or {_PRE}RSA_PUBLIC_KEY says what signatures are checked with; give"
            " one of them"
        )
    fields.setdefault("blocked_roles", (ACCOUNTADMIN,))
    cursor.end("the clauses")
    return CreateSecurityIntegration(
        name, SecurityIntegration(public_keys=keys, **fields), existing
    )


def read_alter_security_integration(cursor: Cursor) -> AlterSecurityIntegration:
    """Go past what follows ALTER [SECURITY] INTEGRATION.

    Raises:
        StatementError: It is anything but SET or UNSET.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.identifier(_WHAT_SECURITY_GRAMMAR)
    word = cursor.expect_one_of("SET", "UNSET")
    settings = Settings(_CLAUSES_SECURITY_GRAMMAR, _WHAT_SECURITY_GRAMMAR)
    read_changes(cursor, settings, unset=word == "UNSET")
    fields = _fields(settings)
    if word == "SET" and "keys_url" in fields and any(each in fields for each in _KEYS):
        raise cursor.error(
            f"{_PRE}JWS_KEYS_URL and {_PRE}RSA_PUBLIC_KEY exclude each other; SET one of them, and"
            " the other is forgotten"
        )
    return AlterSecurityIntegration(name, fields, if_exists)


def read_describe_security_integration(cursor: Cursor) -> DescribeSecurityIntegration:
    """Go past what follows DESCRIBE [SECURITY] INTEGRATION.

    Raises:
        StatementError: It is more than a name.
    """
    name = cursor.identifier(_WHAT_SECURITY_GRAMMAR)
    cursor.end("DESCRIBE INTEGRATION")
    return DescribeSecurityIntegration(name)


def read_drop_security_integration(cursor: Cursor) -> DropSecurityIntegration:
    """Go past what follows DROP SECURITY INTEGRATION.

    Raises:
        StatementError: It is more than a name.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.identifier(_WHAT_SECURITY_GRAMMAR)
    cursor.end("DROP SECURITY INTEGRATION")
    return DropSecurityIntegration(name, if_exists)


def _fields(settings: Settings) -> dict[str, Any]:
    """Return the values as the definition has them; public keys by the fields of `_KEYS`."""
    fields = settings.fields()
    for each in ("type", "attribute"):
        fields.pop(each, None)
    if "server" in fields:
        fields["server"] = fields["server"].value
    if "any_role" in fields:
        fields["any_role"] = fields["any_role"] is _AnyRole.ENABLE
    if "blocked_roles" in fields:
        # As with Snowflake, no token ever speaks for the administrator.
        blocked = map(internal_name, fields["blocked_roles"])
        fields["blocked_roles"] = tuple(dict.fromkeys((ACCOUNTADMIN, *blocked)))
    return fields
