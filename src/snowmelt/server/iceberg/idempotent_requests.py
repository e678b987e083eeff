"""Responses to repeated requests: a change with the same `Idempotency-Key` happens once.

A success and a final rejection are stored. A failure with another status is not: the engine repeats
the request with the same key, and it runs again. That is safe for commits of rows, because a
snapshot ID is committed once. A change of properties and its outcome are one transaction.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.engine_requests import EngineRequest, claim_request, finish_request
from snowmelt.clock import Clock
from snowmelt.errors import RequestMalformed, SnowmeltError
from snowmelt.server.error_responses import ServerResponse

# Statuses of final rejections. 401, 403 and 404 are not final, because they depend on users and
# grants. After 429 and 5xx, the same request may succeed.
_FINAL_STATUSES = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_ACCEPTABLE, HTTPStatus.CONFLICT}
)


class IdempotentRequests:
    """Runs changes of tables, each key once. Thread-safe."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        to_response: Callable[[SnowmeltError], ServerResponse],
    ) -> None:
        """`to_response` returns the response to a failed request."""
        self._database = database
        self._clock = clock
        self._to_response = to_response

    def run(
        self,
        headers: Mapping[bytes, bytes],
        user: str,
        table_id: int,
        body: bytes,
        change: Callable[[Callable[[sa.Connection], bool]], None],
    ) -> ServerResponse | None:
        """Make a change, unless the key of the request has been used. Return None if it succeeded.

        Returns the response to the first request if that was rejected.

        `change` receives a function that records the success in a transaction of the change. This
        function returns False if another request with the key has made the change. Calling it is
        optional.

        Raises:
            IdempotencyKeyReused: If the key belongs to another request.
            RequestMalformed: If the key is not a UUID.
        """
        key = _parse_key(headers)
        if key is None:
            change(lambda _connection: True)
            return None
        request = EngineRequest(key, user, table_id, hashlib.sha256(body).digest())
        with self._database.writing() as connection:
            outcome = claim_request(connection, request, self._clock.now())
        if outcome is not None:
            return None if outcome.error is None else _replay(outcome.error)
        try:
            change(lambda connection: finish_request(connection, key, None, self._clock.now()))
        except SnowmeltError as error:
            response = self._to_response(error)
            if response.status in _FINAL_STATUSES:
                self._finish(key, f"{response.status} {response.body.decode()}")
            raise
        self._finish(key, None)
        return None

    def _finish(self, key: str, error: str | None) -> None:
        with self._database.writing() as connection:
            finish_request(connection, key, error, self._clock.now())


def _parse_key(headers: Mapping[bytes, bytes]) -> str | None:
    text = headers.get(b"idempotency-key")
    if text is None:
        return None
    try:
        return str(uuid.UUID(text.decode("latin-1")))
    except ValueError:
        reason = f"Idempotency-Key is {text[:60].decode('latin-1')!r}, expected a UUID"
        raise RequestMalformed(reason=reason) from None


def _replay(stored: str) -> ServerResponse:
    status, _, body = stored.partition(" ")
    return ServerResponse(int(status), body.encode())
