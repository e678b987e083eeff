"""SHOW and DESCRIBE rows of external functions, translators and integrations.

URL and headers of a SECURE function are visible to its owner only. Keys and secrets are visible to
no role, nor are the references to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.commands.statement_context import StatementResult
from snowmelt.catalog.objects.api_integrations import list_api_integrations
from snowmelt.catalog.objects.external_functions import (
    ExternalFunctionRecord,
    list_external_functions,
    list_translators,
)
from snowmelt.catalog.security.access_control import has_privilege
from snowmelt.catalog.security.oauth_integrations import list_security_integrations
from snowmelt.catalog.security.visibility import VisibleObjects
from snowmelt.functions.definition import AuthenticationMethod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.catalog.commands.statement_context import StatementSession
    from snowmelt.catalog.objects.external_functions import TranslatorRecord
    from snowmelt.catalog.sql.ast import DescribeFunction, DescribeIntegration

REDACTED = "******"

FUNCTION_COLUMNS = (
    "created_on",
    "name",
    "database_name",
    "schema_name",
    "min_num_arguments",
    "max_num_arguments",
    "arguments",
    "description",
    "is_secure",
    "is_external_function",
    "language",
    "api_integration",
    "url",
    "owner",
)
INTEGRATION_COLUMNS = ("name", "type", "category", "enabled", "comment", "created_on", "owner")
_PROPERTY_COLUMNS = ("property", "value")


def list_function_rows(
    session: StatementSession, database: str | None, schema: str | None
) -> Iterator[tuple[object, ...]]:
    """Yield the external functions that the role may use, as SHOW lists them."""
    sight = VisibleObjects(session.connection, session.role)
    for each in list_external_functions(session.connection, database, schema):
        if sight.includes_schema_object(*each.securable, each.schema_id, each.database_id):
            yield _to_function_row(each, session)


def list_translator_rows(
    session: StatementSession, database: str | None, schema: str | None
) -> Iterator[tuple[object, ...]]:
    """Yield the translators that the role may use, as SHOW lists them."""
    sight = VisibleObjects(session.connection, session.role)
    for each in list_translators(session.connection, database, schema):
        if sight.includes_schema_object(*each.securable, each.schema_id, each.database_id):
            yield (
                each.created_at,
                each.name.function,
                each.name.database,
                each.name.schema,
                1,
                1,
                f"{each.name.function}(OBJECT) RETURN OBJECT",
                each.comment,
                False,
                False,
                each.translator.language.value,
                None,
                None,
                each.owner,
            )


def list_api_integration_rows(session: StatementSession) -> Iterator[tuple[object, ...]]:
    """Yield the API integrations that the role may use, as SHOW lists them."""
    sight = VisibleObjects(session.connection, session.role)
    for each in list_api_integrations(session.connection):
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


def list_security_integration_rows(session: StatementSession) -> Iterator[tuple[object, ...]]:
    """Yield the security integrations, as SHOW lists them, to the administrator alone."""
    for each in list_security_integrations(session.connection) if session.is_administrator else ():
        made = each.integration
        kind, category = "EXTERNAL_OAUTH", "SECURITY"
        row = (each.name, kind, category, made.enabled, made.comment, each.created_at)
        yield (*row, each.owner)


def list_integration_rows(session: StatementSession) -> Iterator[tuple[object, ...]]:
    """Yield the integrations of all kinds that the role may use, as SHOW lists them."""
    yield from list_api_integration_rows(session)
    yield from list_security_integration_rows(session)


def describe_function(statement: DescribeFunction, session: StatementSession) -> StatementResult:
    """Return a function's or translator's properties.

    Raises:
        UserError: There is none, or the role may not know of it.
    """
    found = session.find_function_or_translator(statement.function)
    rows = (
        _list_function_properties(found, session)
        if isinstance(found, ExternalFunctionRecord)
        else _list_translator_properties(found)
    )
    return StatementResult(_PROPERTY_COLUMNS, tuple(rows))


def describe_integration(
    statement: DescribeIntegration, session: StatementSession
) -> StatementResult:
    """Return an integration's properties.

    Raises:
        UserError: There is none, or the role may not know of it.
    """
    made = session.find_api_integration(statement.name).integration
    rows: list[tuple[str, object]] = [
        ("ENABLED", made.enabled),
        ("API_PROVIDER", made.provider.upper()),
        ("API_ALLOWED_PREFIXES", ", ".join(made.allowed_prefixes)),
        ("API_BLOCKED_PREFIXES", ", ".join(made.blocked_prefixes)),
        ("AUTHENTICATION", made.authentication.value),
        ("API_KEY", None if made.api_key is None else REDACTED),
    ]
    if made.authentication is not AuthenticationMethod.NONE:
        rows += [("USER", made.user), ("SECRET", None if made.secret is None else REDACTED)]
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
    return StatementResult(_PROPERTY_COLUMNS, (*rows, ("COMMENT", made.comment)))


def _to_function_row(
    record: ExternalFunctionRecord, session: StatementSession
) -> tuple[object, ...]:
    function, signature = record.function, record.signature
    types = ", ".join(
        f"DEFAULT {each.type.base_name}" if each.default is not None else each.type.base_name
        for each in signature.arguments
    )
    return (
        record.created_at,
        record.name.function,
        record.name.database,
        record.name.schema,
        signature.min_arguments,
        len(signature.arguments),
        f"{record.name.function}({types}) RETURN {signature.returns.base_name}",
        function.comment,
        function.secure,
        True,
        "EXTERNAL",
        function.integration,
        function.url if _can_see_definition(record, session) else REDACTED,
        record.owner,
    )


def _list_function_properties(
    record: ExternalFunctionRecord, session: StatementSession
) -> Iterator[tuple[str, object]]:
    function = record.function
    looks = _can_see_definition(record, session)
    headers = ", ".join(f"'{name}'='{value}'" for name, value in function.headers)
    yield "signature", f"({record.signature.format_arguments_ddl()})"
    yield "returns", function.signature.returns.ddl + ("" if function.returns_null else " NOT NULL")
    yield "language", "EXTERNAL"
    yield "null handling", function.null_input.value
    yield "volatility", function.volatility.value
    yield "body", function.url if looks else REDACTED
    yield "api_integration", function.integration
    yield "headers", headers if looks or not headers else REDACTED
    context = ", ".join(function.context_headers)
    yield "context_headers", context if looks or not context else REDACTED
    yield "max_batch_rows", function.max_batch_rows
    yield "compression", function.compression.value
    yield "request_translator", function.request_translator
    yield "response_translator", function.response_translator
    yield "max_in_flight", function.max_in_flight
    yield "rate_limit", function.rate_limit
    yield "row_errors", function.row_errors.value
    yield "cache", "OFF" if function.cache_bytes == 0 else function.cache_bytes
    yield "max_batch_size", function.max_batch_bytes
    yield "on_batch_failure", function.on_batch_failure.value
    yield "max_batch_retries", function.max_batch_retries
    yield "batch_timeout_secs", function.batch_timeout_s
    yield "is_secure", function.secure
    yield "comment", function.comment
    yield "owner", record.owner


def _list_translator_properties(record: TranslatorRecord) -> Iterator[tuple[str, object]]:
    made = record.translator
    yield "signature", f"({made.argument} OBJECT)"
    yield "returns", "OBJECT"
    yield "language", made.language.value
    if made.handler is not None:
        yield "handler", made.handler
    yield "body", made.body
    yield "comment", record.comment
    yield "owner", record.owner


def _can_see_definition(record: ExternalFunctionRecord, session: StatementSession) -> bool:
    return not record.function.secure or has_privilege(
        session.connection, session.role, *record.securable, "OWNERSHIP"
    )
