"""Statements on security integrations, reserved for ACCOUNTADMIN.

Also resolves ALTER, DROP and DESCRIBE INTEGRATION statements that do not name the kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.commands.ddl import execute_ddl
from snowmelt.catalog.commands.show import execute_show_or_describe
from snowmelt.catalog.commands.statement_context import StatementResult
from snowmelt.catalog.security import oauth_integrations
from snowmelt.catalog.security.oauth_integrations import (
    SecurityIntegrationRecord,
    find_security_integration,
)
from snowmelt.catalog.sql.ast import (
    AlterOrDropAnyIntegration,
    AlterSecurityIntegration,
    CreateSecurityIntegration,
    DescribeAnyIntegration,
    DescribeIntegration,
    DescribeSecurityIntegration,
    DropSecurityIntegration,
)
from snowmelt.catalog.sql.object_name_types import CreateMode
from snowmelt.errors import NotFound, UserError
from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    from snowmelt.catalog.commands.statement_context import StatementSession


@execute_ddl.register(CreateSecurityIntegration)
def _create_security_integration(
    statement: CreateSecurityIntegration, session: StatementSession
) -> StatementResult:
    session.require_administrator("CREATE SECURITY INTEGRATION")
    shown = f"Security integration {to_display_name(statement.name)}"
    there = {
        each.name for each in oauth_integrations.list_security_integrations(session.connection)
    }
    if statement.create_mode is CreateMode.IF_NOT_EXISTS and statement.name in there:
        return StatementResult(message=f"{shown} exists already; nothing was done.")
    oauth_integrations.create_security_integration(
        session.connection,
        SecurityIntegrationRecord(statement.name, statement.integration, session.role, session.now),
        replace=statement.create_mode is CreateMode.OR_REPLACE,
    )
    return StatementResult(
        message=f"{shown} {'replaced' if statement.name in there else 'created'}."
    )


@execute_ddl.register(AlterSecurityIntegration)
def _alter_security_integration(
    statement: AlterSecurityIntegration, session: StatementSession
) -> StatementResult:
    session.require_administrator("ALTER SECURITY INTEGRATION")
    try:
        oauth_integrations.update_security_integration(
            session.connection, statement.name, statement.changes
        )
    except NotFound as error:
        if not statement.if_exists:
            raise
        return StatementResult(message=f"{error} Nothing was done.")
    return StatementResult(
        message=f"Security integration {to_display_name(statement.name)} altered."
    )


@execute_ddl.register(DropSecurityIntegration)
def _drop_security_integration(
    statement: DropSecurityIntegration, session: StatementSession
) -> StatementResult:
    session.require_administrator("DROP SECURITY INTEGRATION")
    try:
        oauth_integrations.drop_security_integration(session.connection, statement.name)
    except NotFound as error:
        if not statement.if_exists:
            raise
        return StatementResult(message=f"{error} Nothing was done.")
    return StatementResult(
        message=f"Security integration {to_display_name(statement.name)} dropped."
    )


@execute_ddl.register(AlterOrDropAnyIntegration)
def _alter_or_drop_any_integration(
    statement: AlterOrDropAnyIntegration, session: StatementSession
) -> StatementResult:
    """Do what was said of an integration without its kind."""
    said = [each for each in (statement.api, statement.security) if each is not None]
    # What is said of the other kind alone cannot be done: no such one exists, as its error says.
    return execute_ddl(said[-1 if is_security_integration(session, statement.name) else 0], session)


# --- DESCRIBE INTEGRATION of security integrations, and of those whose kind is not said.

_PROPERTY_PREFIX = "EXTERNAL_OAUTH_"


@execute_show_or_describe.register(DescribeSecurityIntegration)
def _describe_security_integration(
    statement: DescribeSecurityIntegration, session: StatementSession
) -> StatementResult:
    session.require_administrator("DESCRIBE SECURITY INTEGRATION")
    made = find_security_integration(session.connection, statement.name).integration
    first, second = [*made.public_keys, None, None][:2]
    rows: tuple[tuple[str, object], ...] = (
        ("ENABLED", made.enabled),
        (_PROPERTY_PREFIX + "TYPE", made.server),
        (_PROPERTY_PREFIX + "ISSUER", made.issuer),
        (_PROPERTY_PREFIX + "JWS_KEYS_URL", made.keys_url),
        (_PROPERTY_PREFIX + "RSA_PUBLIC_KEY", first),
        (_PROPERTY_PREFIX + "RSA_PUBLIC_KEY_2", second),
        (_PROPERTY_PREFIX + "AUDIENCE_LIST", ", ".join(made.audiences)),
        (_PROPERTY_PREFIX + "TOKEN_USER_MAPPING_CLAIM", ", ".join(made.user_claims)),
        (_PROPERTY_PREFIX + "SNOWFLAKE_USER_MAPPING_ATTRIBUTE", "LOGIN_NAME"),
        (_PROPERTY_PREFIX + "SCOPE_MAPPING_ATTRIBUTE", made.scope_claim),
        (_PROPERTY_PREFIX + "ANY_ROLE_MODE", "ENABLE" if made.any_role else "DISABLE"),
        (_PROPERTY_PREFIX + "BLOCKED_ROLES_LIST", ", ".join(made.blocked_roles)),
        ("COMMENT", made.comment),
    )
    return StatementResult(("property", "value"), rows)


@execute_show_or_describe.register(DescribeAnyIntegration)
def _describe_any_integration(
    statement: DescribeAnyIntegration, session: StatementSession
) -> StatementResult:
    if is_security_integration(session, statement.name):
        return execute_show_or_describe(DescribeSecurityIntegration(statement.name), session)
    return execute_show_or_describe(DescribeIntegration(statement.name), session)


# --- Which integration is meant where a statement does not say its kind.


def is_security_integration(session: StatementSession, name: str) -> bool:
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
