"""API integrations: the URLs that external functions may call, and how calls authenticate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.errors import AlreadyExists, NotFound, UserError
from snowmelt.functions.definition import ApiIntegration
from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    import datetime as dt

CREATE_INTEGRATION_PRIVILEGE = "CREATE INTEGRATION"

_API_INTEGRATIONS = model.api_integrations
_EXTERNAL_FUNCTIONS = model.external_functions
_SELECT_LIVE_INTEGRATIONS = sa.select(_API_INTEGRATIONS).where(
    _API_INTEGRATIONS.c.dropped_at.is_(None)
)


@dataclass(frozen=True, slots=True)
class ApiIntegrationRecord:
    """A live integration; `owner` is a role."""

    integration_id: int
    integration: ApiIntegration
    owner: str
    created_at: dt.datetime


def find_api_integration(connection: sa.Connection, name: str) -> ApiIntegrationRecord:
    """Return the live integration of this internal name.

    Raises:
        NotFound: There is none.
    """
    row = connection.execute(
        _SELECT_LIVE_INTEGRATIONS.where(_API_INTEGRATIONS.c.name == name)
    ).first()
    if row is None:
        raise NotFound(kind="API integration", name=to_display_name(name))
    return _to_integration_record(row)


def list_api_integrations(connection: sa.Connection) -> list[ApiIntegrationRecord]:
    """Return the live integrations, ordered by name."""
    return [
        _to_integration_record(row)
        for row in connection.execute(_SELECT_LIVE_INTEGRATIONS.order_by(_API_INTEGRATIONS.c.name))
    ]


def create_api_integration(
    connection: sa.Connection,
    integration: ApiIntegration,
    *,
    owner: str,
    now: dt.datetime,
    replace: bool = False,
) -> None:
    """Create an integration; functions that name a replaced one call through the new one.

    Raises:
        AlreadyExists: There is one of that name, and it is not to be replaced.
    """
    there = connection.execute(
        _SELECT_LIVE_INTEGRATIONS.where(_API_INTEGRATIONS.c.name == integration.name)
    ).first()
    if there is not None:
        if not replace:
            raise AlreadyExists(kind="API integration", name=to_display_name(integration.name))
        _mark_integration_dropped(connection, there.integration_id, now)
    connection.execute(
        sa.insert(_API_INTEGRATIONS).values(
            name=integration.name,
            definition=integration.to_json().decode(),
            owner=owner,
            created_at=now,
        )
    )


def update_api_integration(
    connection: sa.Connection, record: ApiIntegrationRecord, integration: ApiIntegration
) -> None:
    """Set what an integration is."""
    connection.execute(
        sa.update(_API_INTEGRATIONS)
        .where(_API_INTEGRATIONS.c.integration_id == record.integration_id)
        .values(definition=integration.to_json().decode())
    )


def drop_api_integration(
    connection: sa.Connection, record: ApiIntegrationRecord, now: dt.datetime
) -> None:
    """Drop an integration.

    Raises:
        UserError: Functions still call through it.
    """
    # The lock keeps a function from being created meanwhile; see `lock_api_integration`.
    lock_api_integration(connection, record.integration.name)
    query = sa.select(_EXTERNAL_FUNCTIONS.c.name).where(
        _EXTERNAL_FUNCTIONS.c.integration == record.integration.name,
        _EXTERNAL_FUNCTIONS.c.dropped_at.is_(None),
    )
    names = sorted(set(connection.execute(query).scalars()))
    if names:
        shown = ", ".join(to_display_name(name) for name in names)
        raise UserError(
            f"API integration {to_display_name(record.integration.name)} is still used by {shown}; "
            "drop these functions first, or let them use another."
        )
    _mark_integration_dropped(connection, record.integration_id, now)


def lock_api_integration(connection: sa.Connection, name: str) -> None:
    """Keep an integration from being dropped until the transaction ends.

    Raises:
        NotFound: There is none.
    """
    query = sa.select(_API_INTEGRATIONS.c.integration_id).where(
        _API_INTEGRATIONS.c.name == name, _API_INTEGRATIONS.c.dropped_at.is_(None)
    )
    if connection.execute(query.with_for_update()).first() is None:
        raise NotFound(kind="API integration", name=to_display_name(name))


def _mark_integration_dropped(
    connection: sa.Connection, integration_id: int, now: dt.datetime
) -> None:
    connection.execute(
        sa.update(_API_INTEGRATIONS)
        .where(_API_INTEGRATIONS.c.integration_id == integration_id)
        .values(dropped_at=now)
    )


def _to_integration_record(row: sa.Row[Any]) -> ApiIntegrationRecord:
    return ApiIntegrationRecord(
        row.integration_id, ApiIntegration.from_json(row.definition), row.owner, row.created_at
    )
