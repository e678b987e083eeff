"""API integrations: CREATE, ALTER, DROP, DESCRIBE and SHOW.

The grammar is Snowflake's, with additional clauses. Keys and secrets are visible to no role, nor
are the references to them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from snowmelt.catalog.objects import api_integrations
from snowmelt.catalog.security.visibility import VisibleObjects
from snowmelt.catalog.sql.object_name_types import CreateMode
from snowmelt.catalog.sql.property_clauses import (
    ClauseDefinition,
    ClauseReader,
    choice_parser,
    is_next_string,
    parse_boolean,
    parse_list,
    text_parser,
)
from snowmelt.catalog.statements.statement_context import (
    Statement,
    StatementResult,
    creation_result,
    skip_if_exists,
    skipping_missing,
)
from snowmelt.errors import NotFound
from snowmelt.functions.definition import ApiIntegration, AuthenticationMethod
from snowmelt.functions.errors import UrlRefused
from snowmelt.functions.urls import parse_url_prefix
from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from snowmelt.catalog.objects.api_integrations import ApiIntegrationRecord
    from snowmelt.catalog.sql.cursor import TokenCursor
    from snowmelt.catalog.statements.statement_context import StatementSession
    from snowmelt.catalog.statements.statement_kind import ShowRow

_REDACTED = "******"


@dataclass(frozen=True, slots=True)
class CreateIntegration(Statement):
    """CREATE API INTEGRATION."""

    integration: ApiIntegration
    create_mode: CreateMode

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_account_privilege(api_integrations.CREATE_INTEGRATION_PRIVILEGE)
        name = self.integration.name
        label = f"API integration {to_display_name(name)}"
        try:
            there = api_integrations.find_api_integration(session.connection, name)
        except NotFound:
            there = None
        skip_if_exists(label, self.create_mode, exists=there is not None)
        is_replaced = there is not None and self.create_mode is CreateMode.OR_REPLACE
        if there is not None and is_replaced:
            session.require_privilege(
                "INTEGRATION", there.integration_id, to_display_name(name), "OWNERSHIP"
            )
        self.integration.validate()
        api_integrations.create_api_integration(
            session.connection,
            self.integration,
            owner=session.role,
            now=session.now,
            replace=is_replaced,
        )
        return creation_result(label, replaced=is_replaced)


@dataclass(frozen=True, slots=True)
class AlterIntegration(Statement):
    """ALTER INTEGRATION … SET or UNSET: fields of the definition and their new values."""

    name: str
    changes: Mapping[str, object]
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            record = lock_owned_integration(session, self.name)
        changes: dict[str, Any] = dict(self.changes)
        integration = replace(record.integration, **changes)
        integration.validate()
        api_integrations.update_api_integration(session.connection, record, integration)
        return StatementResult(message=f"API integration {to_display_name(self.name)} altered.")


@dataclass(frozen=True, slots=True)
class DropIntegration(Statement):
    """DROP INTEGRATION, through which no function may call any more."""

    name: str
    if_exists: bool

    def execute(self, session: StatementSession) -> StatementResult:
        with skipping_missing(self.if_exists):
            record = lock_owned_integration(session, self.name)
        api_integrations.drop_api_integration(session.connection, record, session.now)
        return StatementResult(message=f"API integration {to_display_name(self.name)} dropped.")


@dataclass(frozen=True, slots=True)
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
        rows += [
            (word, value)
            for word, value in (
                ("REGION", made.region),
                ("CA_FILE", made.ca_file),
                ("API_AWS_ROLE_ARN", made.aws_role_arn),
                ("AZURE_TENANT_ID", made.azure_tenant_id),
                ("AZURE_AD_APPLICATION_ID", made.azure_ad_application_id),
                ("GOOGLE_AUDIENCE", made.google_audience),
            )
            if value is not None
        ]
        return StatementResult(("property", "value"), (*rows, ("COMMENT", made.comment)))


def lock_owned_integration(session: StatementSession, name: str) -> ApiIntegrationRecord:
    """Return an integration that the role owns, locked.

    Raises:
        NotFound: If there is none, or the role may not know of it.
        PrivilegeMissing: If another role owns it.
    """
    record = session.find_api_integration(name)
    session.require_privilege(
        "INTEGRATION", record.integration_id, to_display_name(name), "OWNERSHIP"
    )
    # Changes wait for one another, so that none undoes what another has just done.
    api_integrations.lock_api_integration(session.connection, name)
    return session.find_api_integration(name)


def list_api_integration_rows(session: StatementSession) -> Iterator[ShowRow]:
    """Yield the API integrations that the role may use, as SHOW lists them."""
    sight = VisibleObjects(session.connection, session.role)
    for each in api_integrations.list_api_integrations(session.connection):
        if sight.includes_account_object("INTEGRATION", each.integration_id):
            made = each.integration
            yield (
                made.name,
                "EXTERNAL_API",
                "API",
                made.enabled,
                made.comment,
                each.created_at,
                each.owner,
            )


# --- The grammar.

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
    return choice_parser(ApiProvider, "API_PROVIDER")(cursor).value.lower()


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
        # The literal is never repeated: errors are logged and shown.
        if not is_next_string(cursor) or not _SECRET_REFERENCE.match(at.text):
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
    "ENABLED": ClauseDefinition("enabled", parse_boolean, default=True),
    "COMMENT": ClauseDefinition("comment", text_parser("a comment")),
    "API_KEY": ClauseDefinition("api_key", _secret_reference_parser("API_KEY")),
    "AUTHENTICATION": ClauseDefinition(
        "authentication",
        choice_parser(AuthenticationMethod, "AUTHENTICATION"),
        AuthenticationMethod.NONE,
    ),
    "USER": ClauseDefinition("user", text_parser("a user")),
    "SECRET": ClauseDefinition("secret", _secret_reference_parser("SECRET")),
    "REGION": ClauseDefinition("region", text_parser("a region")),
    "CA_FILE": ClauseDefinition("ca_file", text_parser("a path")),
    "API_AWS_ROLE_ARN": ClauseDefinition("aws_role_arn", text_parser("a role")),
    "AZURE_TENANT_ID": ClauseDefinition("azure_tenant_id", text_parser("a tenant")),
    "AZURE_AD_APPLICATION_ID": ClauseDefinition(
        "azure_ad_application_id", text_parser("an application")
    ),
    "GOOGLE_AUDIENCE": ClauseDefinition("google_audience", text_parser("an audience")),
}


def parse_create_integration(cursor: TokenCursor, create_mode: CreateMode) -> CreateIntegration:
    """Go past what follows CREATE [OR REPLACE] API INTEGRATION [IF NOT EXISTS].

    Raises:
        StatementError: It is not as it must be.
    """
    name = cursor.parse_identifier("an API integration")
    settings = ClauseReader(_API_INTEGRATION_CLAUSES, _API_INTEGRATION_LABEL)
    settings.parse_all(cursor)
    cursor.expect_end("the clauses")
    return CreateIntegration(ApiIntegration(name=name, **settings.field_values()), create_mode)


def parse_alter_integration(cursor: TokenCursor, if_exists: bool) -> AlterIntegration:
    """Go past what follows ALTER API INTEGRATION.

    Raises:
        StatementError: It is anything but SET or UNSET.
    """
    name = cursor.parse_identifier("an API integration")
    word = cursor.expect_one_of("SET", "UNSET")
    settings = ClauseReader(_API_INTEGRATION_CLAUSES, "ALTER INTEGRATION")
    settings.parse_changes(cursor, unset=word == "UNSET")
    return AlterIntegration(name, settings.field_values(), if_exists)


def parse_drop_integration(cursor: TokenCursor, if_exists: bool) -> DropIntegration:
    """Go past what follows DROP API INTEGRATION.

    Raises:
        StatementError: It is more than a name.
    """
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
