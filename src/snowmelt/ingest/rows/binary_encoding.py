"""Whether a client writes bytes as base64 or as digits, which no row tells.

The official SDK learns it when its client is made, and writes base64 unless it is told digits, as every
client is. A service that wrote to this catalog before may have told base64, which the catalog notes by
path. Those clients go on with base64 until they ask again, which ends them. Till then what they send must
not be taken for digits.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from snowmelt.catalog.streaming import row_channels
from snowmelt.clock import to_epoch_ms
from snowmelt.errors import RowsBusy

if TYPE_CHECKING:
    import sqlalchemy as sa

    from snowmelt.catalog.db.database import Database
    from snowmelt.clock import Clock
    from snowmelt.ingest.rows.targets import PipePath, SdkClient, Target

_MOST_REMEMBERED = 10_000
# A new client asks at once. One that asks later was made before, and is ended by the answer; what
# it sent until it had that is still on its way.
_NEW = dt.timedelta(seconds=20)
_ON_ITS_WAY = dt.timedelta(seconds=120)
# A client that writes digits asks again so soon after it has got another token (see `asks_again`).
_SOON_S = 5.0
_PATIENCE = dt.timedelta(seconds=30)
# The SDK renews a token that long before it expires, and asks about a pipe that long before what it
# was told expires.
_RENEWS_BEFORE_S, _ASKS_BEFORE_S = 300.0, 60.0
_LEAST_S = 30.0


class ByteForms:
    """Notes what clients are told, and knows from it who may write base64; thread-safe."""

    def __init__(self, database: Database, clock: Clock, token_lifetime_s: float) -> None:
        self._database = database
        self._clock = clock
        self._lifetime_s = token_lifetime_s
        self._known: set[tuple[str, str]] = set()

    def tell_digits(self, target: Target, client: SdkClient | None) -> float | None:
        """Note that a client is told digits; return in how many seconds what it is told should expire.

        None is at any time: nobody was told otherwise here.
        """
        if target.told_base64 is None or client is None or not client.token:
            return None
        now = self._clock.now()
        is_new = now - _instant(client) <= _NEW
        with self._database.writing() as connection:
            row_channels.record_hex_client(
                connection,
                str(target.path.name),
                client.token,
                now if is_new else now + _ON_ITS_WAY,
                expired_before=now - dt.timedelta(seconds=2 * self._lifetime_s),
            )
        # By its next token it is known only once it has asked with it.
        renewed = _instant(client) + dt.timedelta(seconds=self._lifetime_s - _RENEWS_BEFORE_S)
        wait = (renewed - now).total_seconds() + _SOON_S
        return max(wait, _LEAST_S) + _ASKS_BEFORE_S

    def in_new_channel(
        self,
        connection: sa.Connection,
        path: PipePath,
        client: SdkClient | None,
    ) -> bool:
        """Tell whether the client that opens a channel may write base64 in it.

        Raises:
            RowsBusy: It will be known in a moment.
        """
        if client is None:
            return False
        told = row_channels.base64_client_since(connection, str(path.name))
        return self._may_write(connection, path, told, client)

    def without_channel(self, target: Target, client: SdkClient | None) -> bool:
        """Tell whether a client may write base64 in a request of the elastic channel.

        Raises:
            RowsBusy: It will be known in a moment.
        """
        told = target.told_base64
        if told is None or client is None:
            return False
        if (str(target.path.name), client.token) in self._known:
            return client.born_ms <= to_epoch_ms(told)
        with self._database.reading() as connection:
            return self._may_write(connection, target.path, told, client)

    def _may_write(
        self,
        connection: sa.Connection,
        path: PipePath,
        told: dt.datetime | None,
        client: SdkClient,
    ) -> bool:
        if told is None:
            return False
        if client.born_ms <= to_epoch_ms(told):
            return True
        now, name = self._clock.now(), str(path.name)
        since = row_channels.hex_client_since(connection, name, client.token)
        if since is not None and since <= now:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known.add((name, client.token))
            return False
        if since is not None or now - _instant(client) < _PATIENCE:
            raise RowsBusy(reason="how its client writes bytes is known in a moment")
        return True


def _instant(client: SdkClient) -> dt.datetime:
    return dt.datetime.fromtimestamp(client.issued_ms / 1000, dt.UTC)
