"""Requests with which other engines change tables, by idempotency key.

A key belongs to one user, table and body. Functions take a connection and do not commit.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_insert
from snowmelt.errors import UserError

# Time during which a client may repeat a request with the same key.
KEY_LIFETIME = dt.timedelta(minutes=30)
_REQUESTS = model.engine_requests


class IdempotencyKeyReused(UserError, code="idempotency_key_reused", status=422):
    """Idempotency-Key {key} was already used for another request. Use a new key for each request."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request to change a table. `body_sha256` is the hash of its body."""

    key: str
    user: str
    table_id: int
    body_sha256: bytes


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """Outcome of a finished request. `error` is the JSON of the error response, or None."""

    error: str | None


def claim_request(
    connection: sa.Connection, request: EngineRequest, now: dt.datetime
) -> RequestOutcome | None:
    """Store a new request. Return the outcome of a finished request with its key, or None.

    Keys older than twice their lifetime are deleted.

    Raises:
        IdempotencyKeyReused: If the key belongs to a request of another user, table or body.
    """
    connection.execute(sa.delete(_REQUESTS).where(_REQUESTS.c.created_at < now - 2 * KEY_LIFETIME))
    connection.execute(
        make_insert(connection, _REQUESTS)
        .values(
            key=request.key,
            user=request.user,
            table_id=request.table_id,
            body_sha256=request.body_sha256,
            created_at=now,
        )
        .on_conflict_do_nothing()
    )
    found = connection.execute(sa.select(_REQUESTS).where(_REQUESTS.c.key == request.key)).one()
    known = EngineRequest(found.key, found.user, found.table_id, found.body_sha256)
    if known != request:
        raise IdempotencyKeyReused(key=request.key)
    return None if found.finished_at is None else RequestOutcome(found.error)


def finish_request(
    connection: sa.Connection, key: str, error: str | None, now: dt.datetime
) -> bool:
    """Store the outcome of a request. Return False if it is already finished."""
    finished = connection.execute(
        sa.update(_REQUESTS)
        .where(_REQUESTS.c.key == key, _REQUESTS.c.finished_at.is_(None))
        .values(error=error, finished_at=now)
    )
    return finished.rowcount == 1
