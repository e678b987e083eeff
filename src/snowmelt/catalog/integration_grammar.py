"""Statements about API integrations; the grammar is Snowflake's, with clauses of our own."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from snowmelt.catalog import clauses
from snowmelt.catalog.clauses import Clause, Settings
from snowmelt.catalog.function_grammar import read_changes
from snowmelt.catalog.security_grammar import (
    read_alter_security_integration,
    read_drop_security_integration,
)
from snowmelt.catalog.security_statements import DescribeAnyIntegration
from snowmelt.catalog.statements import (
    AlterIntegration,
    ChangeIntegration,
    CreateIntegration,
    DescribeIntegration,
    DropIntegration,
)
from snowmelt.errors import StatementError
from snowmelt.functions.definition import ApiIntegration, Authentication
from snowmelt.functions.refusals import UrlRefused
from snowmelt.functions.urls import parse_prefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.naming import Existing

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
        clauses.choice(Authentication, "AUTHENTICATION"),
        Authentication.NONE,
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
