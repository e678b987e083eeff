"""Registry of running services: heartbeats stored in the catalog, and the deployment ID.

It informs operators, and tells each service its clock skew to the catalog. Correctness never
depends on it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_insert

_SERVICES = model.services

# A service says that it runs every so many seconds; one that has missed six of these is gone.
HEARTBEAT_INTERVAL_S = 10.0
HEARTBEAT_TIMEOUT = dt.timedelta(seconds=60)
_SERVICE_RETENTION = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A service; instants are by the catalog's clock, `ahead_ms` is how far its own is ahead of it."""

    service_id: str
    host: str
    process: int
    url: str
    version: str
    started_at: dt.datetime
    seen_at: dt.datetime
    ahead_ms: int

    def is_running(self, now: dt.datetime) -> bool:
        """Tell whether it has said so lately."""
        return now - self.seen_at < HEARTBEAT_TIMEOUT


def record_heartbeat(connection: Connection, service: ServiceRecord) -> None:
    """Write a service down, or that it still runs; forget those that have been gone for a day."""
    values = {name: getattr(service, name) for name in ServiceRecord.__slots__}
    insert = make_insert(connection, _SERVICES).values(values)
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=["service_id"],
            set_={"seen_at": insert.excluded.seen_at, "ahead_ms": insert.excluded.ahead_ms},
        )
    )
    connection.execute(
        sa.delete(_SERVICES).where(_SERVICES.c.seen_at < service.seen_at - _SERVICE_RETENTION)
    )


def deregister_service(connection: Connection, service_id: str) -> None:
    """Forget a service that stops in order."""
    connection.execute(sa.delete(_SERVICES).where(_SERVICES.c.service_id == service_id))


def list_services(connection: Connection) -> list[ServiceRecord]:
    """Return all services that run, or were gone without a word in the last day, oldest first."""
    query = sa.select(_SERVICES).order_by(_SERVICES.c.started_at, _SERVICES.c.service_id)
    return [ServiceRecord(*row) for row in connection.execute(query)]


# The number of this deployment, drawn when its catalog was created.


def read_deployment_id(connection: Connection) -> int:
    """Return the deployment's number; it is part of every client prefix."""
    return int(connection.execute(sa.select(model.deployment.c.deployment_id)).scalar_one())
