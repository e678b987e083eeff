"""Leases that let one process at a time run a job, fenced by epoch; registry of services.

Each acquisition increments the lease's epoch. A committing process checks in the same transaction
that its epoch is current. The expiration only determines when other processes may try to acquire
the lease, so an inaccurate clock never affects correctness. `renewing_lease` renews a lease in the
background.
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
    """An acquired lease. Every acquisition increments `epoch`."""

    name: str
    owner: str
    epoch: int


def acquire_lease(
    connection: Connection, name: str, owner: str, *, ttl_s: float, now: dt.datetime
) -> Lease | None:
    """Acquire a lease that is free, expired, or held by this owner. Return None if another owner holds it.

    A lease that expires later than twice its lifetime from now counts as expired, because the clock
    was set back.
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
    """Extend a lease, expired or not. Return False if it was released or acquired by another owner."""
    renewed = connection.execute(
        sa.update(_LEASES).where(*_lease_conditions(lease)).values(_expiry_values(ttl_s, now))
    )
    return renewed.rowcount == 1


def holds_lease(connection: Connection, lease: Lease) -> bool:
    """Return True if the lease was neither released nor acquired by another owner, and lock it.

    Needs a write transaction.
    """
    query = sa.select(_LEASES.c.name).where(*_lease_conditions(lease)).with_for_update()
    return connection.execute(query).first() is not None


def release_lease(connection: Connection, lease: Lease) -> None:
    """Release a lease. Does nothing if another owner has acquired it."""
    connection.execute(sa.update(_LEASES).where(*_lease_conditions(lease)).values(expires_at=None))


def release_all_leases(connection: Connection, owner_prefix: str) -> None:
    """Release all leases of owners whose names have this prefix."""
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
    # A background renewal may run after the release and must not undo it.
    return (
        _LEASES.c.name == lease.name,
        _LEASES.c.owner == lease.owner,
        _LEASES.c.epoch == lease.epoch,
        _LEASES.c.expires_at.is_not(None),
    )


# A backup holds a lease while it copies objects. During that time garbage collection deletes
# nothing.

_BACKUP_LEASE_PREFIX = "backup "


def acquire_backup_lease(
    connection: Connection, destination: str, *, ttl_s: float, now: dt.datetime
) -> Lease:
    """Acquire the lease of backups to a destination, even if a killed backup still holds it.

    The lease only suspends garbage collection. A lock at the destination excludes other backups.
    """
    name = f"{_BACKUP_LEASE_PREFIX}{destination}"
    lease = acquire_lease(connection, name, "backup", ttl_s=ttl_s, now=now)
    if lease is None:
        raise AssertionError(f"lease {name!r} is not held by a backup")
    return lease


def is_backup_running(connection: Connection, now: dt.datetime) -> bool:
    """Return True if a backup is copying objects. A killed backup counts until its lease expires."""
    query = sa.select(_LEASES.c.expires_at, _LEASES.c.ttl_ms).where(
        _LEASES.c.name.startswith(_BACKUP_LEASE_PREFIX, autoescape=True),
        _LEASES.c.expires_at > now,
    )
    return any(
        expires_at <= now + 2 * dt.timedelta(milliseconds=ttl_ms)
        for expires_at, ttl_ms in connection.execute(query)
    )


# Background renewal of leases.


def lease_owner_prefix() -> str:
    """Return the prefix that all lease owners of this process have before the colon."""
    return f"{platform.node()}:{os.getpid()}"


def new_lease_owner() -> str:
    """Return a unique owner name for leases."""
    return f"{lease_owner_prefix()}:{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def renewing_lease(
    database: Database, lease: Lease, *, ttl_s: float, clock: Clock
) -> Iterator[None]:
    """Renew a lease in the background while the block runs; each renewal lasts `ttl_s` seconds.

    A failed renewal raises no error, because each commit checks the lease.
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


# Registry of services with the clock skew of each. For operators only; correctness does not depend
# on it.

_SERVICES = model.services

# Heartbeat interval in seconds. A service that misses six heartbeats counts as stopped.
HEARTBEAT_INTERVAL_S = 10.0
HEARTBEAT_TIMEOUT = dt.timedelta(seconds=60)
_SERVICE_RETENTION = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A registered service, with timestamps of the catalog's clock.

    The service's own clock is `ahead_ms` milliseconds ahead of the catalog's clock.
    """

    service_id: str
    host: str
    process: int
    url: str
    version: str
    started_at: dt.datetime
    seen_at: dt.datetime
    ahead_ms: int

    def is_running(self, now: dt.datetime) -> bool:
        """Return True if the last heartbeat is less than `HEARTBEAT_TIMEOUT` old."""
        return now - self.seen_at < HEARTBEAT_TIMEOUT


def record_heartbeat(connection: Connection, service: ServiceRecord) -> None:
    """Insert a service or update its heartbeat. Delete services that stopped more than a day ago."""
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
    """Delete the record of a service that stops gracefully."""
    connection.execute(sa.delete(_SERVICES).where(_SERVICES.c.service_id == service_id))


def list_services(connection: Connection) -> list[ServiceRecord]:
    """Return the running services and those that crashed in the last day, oldest first."""
    query = sa.select(_SERVICES).order_by(_SERVICES.c.started_at, _SERVICES.c.service_id)
    return [ServiceRecord(*row) for row in connection.execute(query)]


# The deployment ID is chosen at random when the catalog is created.


def read_deployment_id(connection: Connection) -> int:
    """Return the deployment ID, which is part of every client prefix."""
    return int(connection.execute(sa.select(model.deployment.c.deployment_id)).scalar_one())
