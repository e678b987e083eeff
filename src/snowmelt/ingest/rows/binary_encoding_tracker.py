"""Track whether each client writes binary values as base64 or as hexadecimal digits.

The encoding cannot be determined from a row. The official SDK gets the encoding when a client is
created. It writes base64 unless the service requests hexadecimal digits, which this service always
does. An older service on the same catalog may have requested base64; the catalog records that by
path. Such a client writes base64 until its next poll, after whose response it closes. Until then,
its values must not be decoded as hexadecimal digits.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.streaming import row_request_state
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.errors import RowsBusy

if TYPE_CHECKING:
    from snowmelt.ingest.rows.targets import PipePath, PipeTarget, SdkClient

_MAX_CACHED_CLIENTS = 10_000
# A new client polls immediately. If its token is older than this at the poll, the client is not
# new: it closes after the response. Its last requests may still be in flight.
_NEW_CLIENT_AGE = dt.timedelta(seconds=20)
_IN_FLIGHT_DURATION = dt.timedelta(seconds=120)
# A client that writes hexadecimal digits polls again this long after it gets a new token.
_NEXT_POLL_DELAY_S = 5.0
_DECISION_TIMEOUT = dt.timedelta(seconds=30)
# The SDK renews a token and polls for a pipe this long before the expiration.
_TOKEN_RENEWAL_LEAD_S, _PIPE_POLL_LEAD_S = 300.0, 60.0
_MIN_POLL_DELAY_S = 30.0


@dataclass(eq=False, slots=True)
class ClientEncodingInstructions:
    """Records the encodings requested from clients, and decides which may write base64. Thread-safe."""

    _database: Database
    _clock: Clock
    _token_lifetime_s: float
    _hex_clients: set[tuple[str, str]] = field(default_factory=set)

    def record_hex_instruction(self, target: PipeTarget, client: SdkClient | None) -> float | None:
        """Record that a response instructs a client to write hexadecimal digits.

        Return the seconds after which this instruction must expire, so that the client polls again.
        Return None if the time does not matter, because no response instructed a client to write
        base64.
        """
        if target.base64_client_since is None or client is None or not client.token_id:
            return None
        now = self._clock.now()
        is_new = now - _token_issued_at(client) <= _NEW_CLIENT_AGE
        with self._database.writing() as connection:
            row_request_state.record_hex_client(
                connection,
                str(target.path.name),
                client.token_id,
                now if is_new else now + _IN_FLIGHT_DURATION,
                expired_before=now - dt.timedelta(seconds=2 * self._token_lifetime_s),
            )
        # The client's next token is unknown until it polls with it.
        renewed = _token_issued_at(client) + dt.timedelta(
            seconds=self._token_lifetime_s - _TOKEN_RENEWAL_LEAD_S
        )
        wait = (renewed - now).total_seconds() + _NEXT_POLL_DELAY_S
        return max(wait, _MIN_POLL_DELAY_S) + _PIPE_POLL_LEAD_S

    def may_use_base64_in_new_channel(
        self,
        connection: sa.Connection,
        path: PipePath,
        client: SdkClient | None,
    ) -> bool:
        """Return True if the client that opens a channel may write base64 in it.

        Raises:
            RowsBusy: If the encoding is not known yet, up to 30 s after the client got its token.
        """
        if client is None:
            return False
        told = row_request_state.last_base64_client_at(connection, str(path.name))
        return self._may_use_base64(connection, path, told, client)

    def may_use_base64_without_channel(self, target: PipeTarget, client: SdkClient | None) -> bool:
        """Return True if a client may write base64 in a request of the elastic channel.

        Raises:
            RowsBusy: If the encoding is not known yet, up to 30 s after the client got its token.
        """
        told = target.base64_client_since
        if told is None or client is None:
            return False
        if (str(target.path.name), client.token_id) in self._hex_clients:
            return client.first_token_issued_ms <= to_epoch_ms(told)
        with self._database.reading() as connection:
            return self._may_use_base64(connection, target.path, told, client)

    def _may_use_base64(
        self,
        connection: sa.Connection,
        path: PipePath,
        base64_client_since: dt.datetime | None,
        client: SdkClient,
    ) -> bool:
        if base64_client_since is None:
            return False
        if client.first_token_issued_ms <= to_epoch_ms(base64_client_since):
            return True
        now, name = self._clock.now(), str(path.name)
        since = row_request_state.hex_client_since(connection, name, client.token_id)
        if since is not None and since <= now:
            if len(self._hex_clients) >= _MAX_CACHED_CLIENTS:
                self._hex_clients.clear()
            self._hex_clients.add((name, client.token_id))
            return False
        if since is not None or now - _token_issued_at(client) < _DECISION_TIMEOUT:
            raise RowsBusy(reason="the binary encoding of its client is not known yet")
        return True


def _token_issued_at(client: SdkClient) -> dt.datetime:
    return dt.datetime.fromtimestamp(client.token_issued_ms / 1000, dt.UTC)
