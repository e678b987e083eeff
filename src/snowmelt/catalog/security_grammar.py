"""Statements about security integrations; the grammar is Snowflake's."""

from __future__ import annotations

import base64
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from snowmelt.catalog import access, clauses
from snowmelt.catalog.clauses import Clause, Settings
from snowmelt.catalog.function_grammar import read_changes
from snowmelt.catalog.security_integrations import SecurityIntegration
from snowmelt.catalog.security_statements import (
    AlterSecurityIntegration,
    CreateSecurityIntegration,
    DescribeSecurityIntegration,
    DropSecurityIntegration,
)
from snowmelt.errors import InvalidPublicKey
from snowmelt.schema.types import internal_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.naming import Existing

_WHAT = "a security integration"


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
        der = access.der_of_public_key(cursor.string("a public key"))
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
_CLAUSES = {
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
    name = cursor.identifier(_WHAT)
    settings = Settings(_CLAUSES, _WHAT)
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
    fields.setdefault("blocked_roles", (access.ACCOUNTADMIN,))
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
    name = cursor.identifier(_WHAT)
    word = cursor.expect_one_of("SET", "UNSET")
    settings = Settings(_CLAUSES, _WHAT)
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
    name = cursor.identifier(_WHAT)
    cursor.end("DESCRIBE INTEGRATION")
    return DescribeSecurityIntegration(name)


def read_drop_security_integration(cursor: Cursor) -> DropSecurityIntegration:
    """Go past what follows DROP SECURITY INTEGRATION.

    Raises:
        StatementError: It is more than a name.
    """
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.identifier(_WHAT)
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
        fields["blocked_roles"] = tuple(dict.fromkeys((access.ACCOUNTADMIN, *blocked)))
    return fields
