"""Statements that change API integrations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snowmelt.catalog import access, account, integrations
from snowmelt.catalog.changing import change
from snowmelt.catalog.naming import Existing
from snowmelt.catalog.results import Result
from snowmelt.catalog.statements import (
    AlterIntegration,
    CreateIntegration,
    DropIntegration,
    GrantOnIntegration,
)
from snowmelt.errors import NotFound, PrivilegeMissing
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from snowmelt.catalog.integrations import IntegrationRecord
    from snowmelt.catalog.session import Session


@change.register(CreateIntegration)
def _create(statement: CreateIntegration, session: Session) -> Result:
    roles = {session.role, access.PUBLIC}
    if not account.may(session.connection, roles, integrations.CREATE_INTEGRATION):
        raise PrivilegeMissing(
            role=display_name(session.role),
            privilege=integrations.CREATE_INTEGRATION,
            object="the account",
        )
    name = statement.integration.name
    shown = f"API integration {display_name(name)}"
    try:
        there = integrations.find_integration(session.connection, name)
    except NotFound:
        there = None
    if there is not None and statement.existing is Existing.KEEP:
        return Result(message=f"{shown} exists already; nothing was done.")
    is_replaced = there is not None and statement.existing is Existing.REPLACE
    if there is not None and is_replaced:
        session.require("INTEGRATION", there.integration_id, "OWNERSHIP", display_name(name))
    statement.integration.check()
    integrations.create_integration(
        session.connection,
        statement.integration,
        owner=session.role,
        now=session.now,
        replace=is_replaced,
    )
    return Result(message=f"{shown} {'replaced' if is_replaced else 'created'}.")


@change.register(AlterIntegration)
def _alter(statement: AlterIntegration, session: Session) -> Result:
    try:
        record = _owned(session, statement.name)
    except NotFound as error:
        if not statement.if_exists:
            raise
        return Result(message=f"{error} Nothing was done.")
    changes: dict[str, Any] = dict(statement.changes)
    integration = replace(record.integration, **changes)
    integration.check()
    integrations.update_integration(session.connection, record, integration)
    return Result(message=f"API integration {display_name(statement.name)} altered.")


@change.register(DropIntegration)
def _drop(statement: DropIntegration, session: Session) -> Result:
    try:
        record = _owned(session, statement.name)
    except NotFound as error:
        if not statement.if_exists:
            raise
        return Result(message=f"{error} Nothing was done.")
    integrations.drop_integration(session.connection, record, session.now)
    return Result(message=f"API integration {display_name(statement.name)} dropped.")


@change.register(GrantOnIntegration)
def _grant(statement: GrantOnIntegration, session: Session) -> Result:
    record = _owned(session, statement.integration)
    write = access.revoke if statement.revoke else access.grant
    for privilege in statement.privileges:
        write(
            session.connection,
            privilege,
            "INTEGRATION",
            record.integration_id,
            statement.role,
        )
    done = "revoked from" if statement.revoke else "granted to"
    privileges, role = ", ".join(statement.privileges), display_name(statement.role)
    shown = display_name(statement.integration)
    return Result(message=f"{privileges} on integration {shown} {done} role {role}.")


def _owned(session: Session, name: str) -> IntegrationRecord:
    record = session.find_integration(name)
    session.require("INTEGRATION", record.integration_id, "OWNERSHIP", display_name(name))
    # Changes wait for one another, so that none undoes what another has just done.
    integrations.lock_integration(session.connection, name)
    return session.find_integration(name)
