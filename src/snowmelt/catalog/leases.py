"""Leases: one process at a time does a job. Safety comes from the epoch, not from the clock.

Each acquisition raises the lease's epoch; whoever commits checks in the same transaction that
its epoch is still the current one. The expiry only says when others may try, so a clock that
is wrong costs time, never correctness.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.dialects import insert_for

if TYPE_CHECKING:
    from sqlalchemy import Connection

_L = model.leases


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was acquired; `epoch` grows with every acquisition by anybody."""

    name: str
    owner: str
    epoch: int


def acquire(
    connection: Connection, name: str, owner: str, *, ttl_s: float, now: dt.datetime
) -> Lease | None:
    """Take a lease that is free, expired, or this owner's; None while somebody else has it.

    An expiry further away than twice the lease's own time means that the clock has gone back;
    the lease is then taken as expired.
    """
    connection.execute(
        insert_for(connection, _L)
        .values(name=name, owner=owner, epoch=0, ttl_ms=0)
        .on_conflict_do_nothing()
    )
    row = connection.execute(sa.select(_L).where(_L.c.name == name).with_for_update()).one()
    if row.owner != owner and _is_running(row, now):
        return None
    lease = Lease(name, owner, row.epoch + 1)
    connection.execute(
        sa.update(_L)
        .where(_L.c.name == name)
        .values(owner=owner, epoch=lease.epoch, **_lifetime(ttl_s, now))
    )
    return lease


def renew(connection: Connection, lease: Lease, *, ttl_s: float, now: dt.datetime) -> bool:
    """Prolong a lease, expired or not; False when it was released or somebody has taken it over."""
    renewed = connection.execute(
        sa.update(_L).where(*_is_same(lease)).values(_lifetime(ttl_s, now))
    )
    return renewed.rowcount == 1


def holds(connection: Connection, lease: Lease) -> bool:
    """Tell whether the lease was neither released nor taken over, and keep it so in here.

    Needs a writing transaction.
    """
    query = sa.select(_L.c.name).where(*_is_same(lease)).with_for_update()
    return connection.execute(query).first() is not None


def release(connection: Connection, lease: Lease) -> None:
    """Let others have the lease at once; harmless when somebody has taken it over."""
    connection.execute(sa.update(_L).where(*_is_same(lease)).values(expires_at=None))


def release_all(connection: Connection, owners: str) -> None:
    """Let others have all leases of owners whose names begin so."""
    connection.execute(
        sa.update(_L)
        .where(_L.c.owner.startswith(owners, autoescape=True), _L.c.expires_at.is_not(None))
        .values(expires_at=None)
    )


def _is_running(row: sa.Row[Any], now: dt.datetime) -> bool:
    if row.expires_at is None:
        return False
    latest = now + 2 * dt.timedelta(milliseconds=row.ttl_ms)
    return bool(now < row.expires_at <= latest)


def _lifetime(ttl_s: float, now: dt.datetime) -> dict[str, Any]:
    return {"ttl_ms": round(ttl_s * 1000), "expires_at": now + dt.timedelta(seconds=ttl_s)}


def _is_same(lease: Lease) -> tuple[sa.ColumnElement[bool], ...]:
    # A renewal in the background may come after the release, and must not undo it.
    return (
        _L.c.name == lease.name,
        _L.c.owner == lease.owner,
        _L.c.epoch == lease.epoch,
        _L.c.expires_at.is_not(None),
    )
