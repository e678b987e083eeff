"""Leases that let one process at a time run a job, fenced by epoch; the running services.

Each acquisition raises the lease's epoch. A process that commits checks in the same transaction
that its epoch is current. The expiry only determines when other processes may try, so a wrong clock
costs time but never correctness. `renewing_lease` renews a lease in the background.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.db.dialect import make_insert
from snowmelt.clock import Clock

_LEASES = model.leases


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was acquired; `epoch` grows with every acquisition by anybody."""

    name: str
    owner: str
    epoch: int


def acquire_lease(
    connection: Connection, name: str, owner: str, *, ttl_s: float, now: dt.datetime
) -> Lease | None:
    """Take a lease that is free, expired, or this owner's; None while somebody else has it.

    An expiry further away than twice the lease's own time means that the clock has gone back;
    the lease is then taken as expired.
    """
    connection.execute(
        make_insert(connection, _LEASES)
        .values(name=name, owner=owner, epoch=0, ttl_ms=0)
        .on_conflict_do_nothing()
    )
    row = connection.execute(
        sa.select(_LEASES).where(_LEASES.c.name == name).with_for_update()
    ).one()
    if row.owner != owner and row.expires_at is not None:
        latest = now + 2 * dt.timedelta(milliseconds=row.ttl_ms)
        if now < row.expires_at <= latest:
            return None
    lease = Lease(name, owner, row.epoch + 1)
    connection.execute(
        sa.update(_LEASES)
        .where(_LEASES.c.name == name)
        .values(owner=owner, epoch=lease.epoch, **_expiry_values(ttl_s, now))
    )
    return lease


def renew_lease(connection: Connection, lease: Lease, *, ttl_s: float, now: dt.datetime) -> bool:
    """Prolong a lease, expired or not; False when it was released or somebody has taken it over."""
    renewed = connection.execute(
        sa.update(_LEASES).where(*_lease_conditions(lease)).values(_expiry_values(ttl_s, now))
    )
    return renewed.rowcount == 1


def holds_lease(connection: Connection, lease: Lease) -> bool:
    """Tell whether the lease was neither released nor taken over, and keep it so in here.

    Needs a writing transaction.
    """
    query = sa.select(_LEASES.c.name).where(*_lease_conditions(lease)).with_for_update()
    return connection.execute(query).first() is not None


def release_lease(connection: Connection, lease: Lease) -> None:
    """Let others have the lease at once; harmless when somebody has taken it over."""
    connection.execute(sa.update(_LEASES).where(*_lease_conditions(lease)).values(expires_at=None))


def release_all_leases(connection: Connection, owner_prefix: str) -> None:
    """Let others have all leases of owners whose names begin so."""
    connection.execute(
        sa.update(_LEASES)
        .where(
            _LEASES.c.owner.startswith(owner_prefix, autoescape=True),
            _LEASES.c.expires_at.is_not(None),
        )
        .values(expires_at=None)
    )


def _expiry_values(ttl_s: float, now: dt.datetime) -> dict[str, Any]:
    return {"ttl_ms": round(ttl_s * 1000), "expires_at": now + dt.timedelta(seconds=ttl_s)}


def _lease_conditions(lease: Lease) -> tuple[sa.ColumnElement[bool], ...]:
    # A renewal in the background may come after the release, and must not undo it.
    return (
        _LEASES.c.name == lease.name,
        _LEASES.c.owner == lease.owner,
        _LEASES.c.epoch == lease.epoch,
        _LEASES.c.expires_at.is_not(None),
    )


# Keeping a lease while work goes on.


def lease_owner_prefix() -> str:
    """Return what the names of all owners of leases in this process begin with, before a colon."""
    return f"{platform.node()}:{os.getpid()}"


def new_lease_owner() -> str:
    """Return a name under which to hold leases; no other has it."""
    return f"{lease_owner_prefix()}:{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def renewing_lease(
    database: Database, lease: Lease, *, ttl_s: float, clock: Clock
) -> Iterator[None]:
    """Renew a lease in the background while the block runs; it lives for `ttl_s` seconds.

    A renewal that fails is not an error here: a commit checks the lease itself.
    """
    done = threading.Event()

    def keep_renewing() -> None:
        while not done.wait(ttl_s / 3):
            with contextlib.suppress(Exception), database.writing() as connection:
                renew_lease(connection, lease, ttl_s=ttl_s, now=clock.now())

    thread = threading.Thread(target=keep_renewing, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


# Registry of running services: for operators, and for each service's clock skew to the catalog.
# Correctness never depends on it.

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
