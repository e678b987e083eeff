"""Statements that change security integrations; they are the administrator's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog import security_integrations
from snowmelt.catalog.changing import change
from snowmelt.catalog.meant_integration import is_security
from snowmelt.catalog.naming import Existing
from snowmelt.catalog.results import Result
from snowmelt.catalog.security_integrations import SecurityRecord
from snowmelt.catalog.security_statements import (
    AlterSecurityIntegration,
    CreateSecurityIntegration,
    DropSecurityIntegration,
)
from snowmelt.catalog.statements import ChangeIntegration
from snowmelt.errors import NotFound
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from snowmelt.catalog.session import Session


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
