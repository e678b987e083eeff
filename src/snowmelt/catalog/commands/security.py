"""Statements that change security integrations; they are the administrator's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.commands.ddl import change
from snowmelt.catalog.commands.session import Result
from snowmelt.catalog.commands.show import show
from snowmelt.catalog.security import security_integrations
from snowmelt.catalog.security.security_integrations import (
    SecurityRecord,
    find_security_integration,
)
from snowmelt.catalog.sql.ast import (
    AlterSecurityIntegration,
    ChangeIntegration,
    CreateSecurityIntegration,
    DescribeAnyIntegration,
    DescribeIntegration,
    DescribeSecurityIntegration,
    DropSecurityIntegration,
)
from snowmelt.catalog.sql.identifiers import Existing
from snowmelt.errors import NotFound, UserError
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from snowmelt.catalog.commands.session import Session


@change.register(CreateSecurityIntegration)
def _create(statement: CreateSecurityIntegration, session: Session) -> Result:
    session.require_administrator("CREATE SECURITY INTEGRATION")
    shown = f"Security integration {display_name(statement.name)}"
    there = {
        each.name for each in security_integrations.security_integrations_of(session.connection)
    }
    if statement.existing is Existing.KEEP and statement.name in there:
        return Result(message=f"{shown} exists already; nothing was done.")
    security_integrations.create_security_integration(
        session.connection,
        SecurityRecord(statement.name, statement.integration, session.role, session.now),
        replace=statement.existing is Existing.REPLACE,
    )
    return Result(message=f"{shown} {'replaced' if statement.name in there else 'created'}.")


@change.register(AlterSecurityIntegration)
def _alter(statement: AlterSecurityIntegration, session: Session) -> Result:
    session.require_administrator("ALTER SECURITY INTEGRATION")
    try:
        security_integrations.update_security_integration(
            session.connection, statement.name, statement.changes
        )
    except NotFound as error:
        if not statement.if_exists:
            raise
        return Result(message=f"{error} Nothing was done.")
    return Result(message=f"Security integration {display_name(statement.name)} altered.")


@change.register(DropSecurityIntegration)
def _drop(statement: DropSecurityIntegration, session: Session) -> Result:
    session.require_administrator("DROP SECURITY INTEGRATION")
    try:
        security_integrations.drop_security_integration(session.connection, statement.name)
    except NotFound as error:
        if not statement.if_exists:
            raise
        return Result(message=f"{error} Nothing was done.")
    return Result(message=f"Security integration {display_name(statement.name)} dropped.")


@change.register(ChangeIntegration)
def _change(statement: ChangeIntegration, session: Session) -> Result:
    """Do what was said of an integration without its kind."""
    said = [each for each in (statement.api, statement.security) if each is not None]
    # What is said of the other kind alone cannot be done: no such one exists, as its error says.
    return change(said[-1 if is_security(session, statement.name) else 0], session)


# --- DESCRIBE INTEGRATION of security integrations, and of those whose kind is not said.

_PRE = "EXTERNAL_OAUTH_"


@show.register(DescribeSecurityIntegration)
def _describe(statement: DescribeSecurityIntegration, session: Session) -> Result:
    session.require_administrator("DESCRIBE SECURITY INTEGRATION")
    made = find_security_integration(session.connection, statement.name).integration
    first, second = [*made.public_keys, None, None][:2]
    rows: tuple[tuple[str, object], ...] = (
        ("ENABLED", made.enabled),
        (_PRE + "TYPE", made.server),
        (_PRE + "ISSUER", made.issuer),
        (_PRE + "JWS_KEYS_URL", made.keys_url),
        (_PRE + "RSA_PUBLIC_KEY", first),
        (_PRE + "RSA_PUBLIC_KEY_2", second),
        (_PRE + "AUDIENCE_LIST", ", ".join(made.audiences)),
        (_PRE + "TOKEN_USER_MAPPING_CLAIM", ", ".join(made.user_claims)),
        (_PRE + "SNOWFLAKE_USER_MAPPING_ATTRIBUTE", "LOGIN_NAME"),
        (_PRE + "SCOPE_MAPPING_ATTRIBUTE", made.scope_claim),
        (_PRE + "ANY_ROLE_MODE", "ENABLE" if made.any_role else "DISABLE"),
        (_PRE + "BLOCKED_ROLES_LIST", ", ".join(made.blocked_roles)),
        ("COMMENT", made.comment),
    )
    return Result(("property", "value"), rows)


@show.register(DescribeAnyIntegration)
def _describe_any(statement: DescribeAnyIntegration, session: Session) -> Result:
    if is_security(session, statement.name):
        return show(DescribeSecurityIntegration(statement.name), session)
    return show(DescribeIntegration(statement.name), session)


# --- Which integration is meant where a statement does not say its kind.


def is_security(session: Session, name: str) -> bool:
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
        session.find_integration(name)
    except NotFound:
        return True
    raise UserError(
        f"There are an API integration and a security integration {display_name(name)}; write which "
        "is meant, as in DROP API INTEGRATION."
    )
