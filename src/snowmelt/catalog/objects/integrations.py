"""API integrations: where external functions may call, and who they say they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.errors import AlreadyExists, NotFound, UserError
from snowmelt.functions.definition import ApiIntegration
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    import datetime as dt

CREATE_INTEGRATION = "CREATE INTEGRATION"

_I = model.api_integrations
_F = model.external_functions
_LIVE = sa.select(_I).where(_I.c.dropped_at.is_(None))


@dataclass(frozen=True, slots=True)
class IntegrationRecord:
    """A live integration; `owner` is a role."""

    integration_id: int
    integration: ApiIntegration
    owner: str
    created_at: dt.datetime


def find_integration(connection: sa.Connection, name: str) -> IntegrationRecord:
    """Return the live integration of this internal name.

    Raises:
        NotFound: There is none.
    """
    row = connection.execute(_LIVE.where(_I.c.name == name)).first()
    if row is None:
        raise NotFound(kind="API integration", name=display_name(name))
    return _record(row)


def integrations_of(connection: sa.Connection) -> list[IntegrationRecord]:
    """Return the live integrations, ordered by name."""
    return [_record(row) for row in connection.execute(_LIVE.order_by(_I.c.name))]


def create_integration(
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
    there = connection.execute(_LIVE.where(_I.c.name == integration.name)).first()
    if there is not None:
        if not replace:
            raise AlreadyExists(kind="API integration", name=display_name(integration.name))
        _mark_dropped(connection, there.integration_id, now)
    connection.execute(
        sa.insert(_I).values(
            name=integration.name,
            definition=integration.to_json().decode(),
            owner=owner,
            created_at=now,
        )
    )


def update_integration(
    connection: sa.Connection, record: IntegrationRecord, integration: ApiIntegration
) -> None:
    """Set what an integration is."""
    connection.execute(
        sa.update(_I)
        .where(_I.c.integration_id == record.integration_id)
        .values(definition=integration.to_json().decode())
    )


def drop_integration(
    connection: sa.Connection, record: IntegrationRecord, now: dt.datetime
) -> None:
    """Drop an integration.

    Raises:
        UserError: Functions still call through it.
    """
    # The lock keeps a function from being created meanwhile; see `lock_integration`.
    lock_integration(connection, record.integration.name)
    query = sa.select(_F.c.name).where(
        _F.c.integration == record.integration.name, _F.c.dropped_at.is_(None)
    )
    names = sorted(set(connection.execute(query).scalars()))
    if names:
        shown = ", ".join(display_name(name) for name in names)
        raise UserError(
            f"API integration {display_name(record.integration.name)} is still used by {shown}; "
            "drop these functions first, or let them use another."
        )
    _mark_dropped(connection, record.integration_id, now)


def lock_integration(connection: sa.Connection, name: str) -> None:
    """Keep an integration from being dropped until the transaction ends.

    Raises:
        NotFound: There is none.
    """
    query = sa.select(_I.c.integration_id).where(_I.c.name == name, _I.c.dropped_at.is_(None))
    if connection.execute(query.with_for_update()).first() is None:
        raise NotFound(kind="API integration", name=display_name(name))


def _mark_dropped(connection: sa.Connection, integration_id: int, now: dt.datetime) -> None:
    connection.execute(
        sa.update(_I).where(_I.c.integration_id == integration_id).values(dropped_at=now)
    )


def _record(row: sa.Row[Any]) -> IntegrationRecord:
    return IntegrationRecord(
        row.integration_id, ApiIntegration.from_json(row.definition), row.owner, row.created_at
    )
