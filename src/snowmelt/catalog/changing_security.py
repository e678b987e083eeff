"""Statements that change security integrations; they are the administrator's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog import security_integrations
from snowmelt.catalog.changing import change
from snowmelt.catalog.naming import Existing
from snowmelt.catalog.results import Result
from snowmelt.catalog.security_integrations import SecurityRecord
from snowmelt.catalog.security_statements import (
    CreateSecurityIntegration,
    DropSecurityIntegration,
)
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
