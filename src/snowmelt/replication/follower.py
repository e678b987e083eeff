"""Background work of a site in its group.

A follower applies states. A primary detects that a follower was promoted.
"""

from __future__ import annotations

import base64
import contextlib
import io
import logging
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
import sqlalchemy as sa
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from snowmelt import failpoints
from snowmelt.backup.creation import BackupSource
from snowmelt.backup.manifests import StoreName
from snowmelt.catalog import model
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.jobs.leases import Lease, new_lease_owner
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.objects.failover_groups import (
    FOLLOWER_TTL_S,
    FailoverGroup,
    ReportedChannel,
    SiteRole,
)
from snowmelt.client.connection import make_transport
from snowmelt.client.settings import ClientSettings
from snowmelt.client.sites import request_site_state
from snowmelt.client.transport import Transport
from snowmelt.errors import (
    ServiceUnavailable,
    SnowmeltError,
)
from snowmelt.failpoints import Failpoint
from snowmelt.replication.object_copy import ObjectCopier, ObjectTarget, ReadRange
from snowmelt.replication.protocol import (
    FOLLOWER_LEASE,
    PullRequest,
    PullResponse,
    ReadBlobsRequest,
    ReadBlobsResponse,
    ReadRequest,
    ReadResponse,
)
from snowmelt.replication.state_export import delete_confirmed_changes
from snowmelt.replication.state_import import (
    StateImporter,
    StateUnusable,
    list_needed_objects,
)
from snowmelt.wire.sites import PULL_PATH, READ_BLOBS_PATH, READ_PATH

_log = logging.getLogger("snowmelt.replication")

_TIMEOUT_S = 30.0
_LONG_POLL_S = 1.0
_LEASE_TTL_S = 10.0
# Interval at which a primary requests the state of silent followers, to detect a promotion.
_PEER_INTERVAL_S = 2.0
# Minimum time between the starts of two pulls. Each pull costs the primary a transaction, even
# without changes. An offset token is reported about 1.5 intervals after its commit.
_MIN_PULL_INTERVAL_S = 0.25
# After a state of hundreds of chunks or more, the primary handles half as many pulls.
_BUSY_PULL_INTERVAL_S = 0.5
_BUSY_CONTENT_BYTES = 64 << 10
_SPOOL_BYTES = 8 << 20


class SiteWorker:
    """Worker that runs replication rounds for the group of an installation. Not thread-safe."""

    def __init__(self, source: BackupSource) -> None:
        self._source = source
        self._database = source.database
        self._clock = source.clock
        self._key = X25519PrivateKey.generate()
        self._owner = new_lease_owner()
        self._lease: Lease | None = None
        self._lease_until = 0.0
        self._transport: tuple[str, Transport] | None = None
        self._unconfirmed: list[ReportedChannel] | None = None
        self._next_peer_check = 0.0
        self.copied_bytes = 0

    def run_round(self) -> float:
        """Run one round. Return the seconds to wait before the next one.

        Raises:
            SnowmeltError: If a request to the other site or a store failed. The next round retries.
        """
        with self._database.reading() as connection:
            group = failover_groups.find_group(connection)
        if group is None:
            return _PEER_INTERVAL_S
        if group.role in {SiteRole.PRIMARY, SiteRole.CLOSING}:
            self._tend_primary(group)
            return _LONG_POLL_S
        if group.suspended or group.primary_url is None or not self._hold_lease():
            return _LONG_POLL_S
        return self._follow(group, group.primary_url)

    def record_error(self, error: SnowmeltError) -> None:
        """Store the error of the last round, for SHOW FAILOVER GROUPS."""
        with contextlib.suppress(SnowmeltError), self._database.writing() as connection:
            failover_groups.update_group(connection, last_error=str(error))

    def close(self) -> None:
        """Close connections."""
        if self._transport is not None:
            self._transport[1].stop()

    def _tend_primary(self, group: FailoverGroup) -> None:
        now = self._clock.monotonic()
        if now < self._next_peer_check:
            return
        self._next_peer_check = now + _PEER_INTERVAL_S
        instant = self._clock.now()
        with self._database.reading() as connection:
            slots = failover_groups.list_slots(connection)
        silent = [
            slot
            for slot in slots
            if group.kind == "FAILOVER"
            and (instant - slot.requested_at).total_seconds() > FOLLOWER_TTL_S / 2
        ]
        for slot in silent:
            if slot.url is not None and self._fence_if_replaced(group, slot.url):
                return
        with self._database.writing() as connection:
            delete_confirmed_changes(connection, instant)
            is_abandoned = group.role is SiteRole.CLOSING and all(
                (instant - slot.requested_at).total_seconds() > FOLLOWER_TTL_S for slot in slots
            )
            if is_abandoned:
                failover_groups.reopen_primary(connection)
                _log.warning("the planned switch was abandoned: the other site is silent")

    def _fence_if_replaced(self, group: FailoverGroup, url: str) -> bool:
        state = request_site_state(url, ca_file=group.settings.ca_file)
        if state is None or state.group != group.name or state.epoch <= group.epoch:
            return False
        with self._database.writing() as connection:
            current = failover_groups.find_group(connection, lock=True)
            if current is None or current.epoch >= state.epoch:
                return False
            failover_groups.fence(connection, url)
        _log.warning("site %s has become the primary of group %s", state.site, group.name)
        return True

    def _hold_lease(self) -> bool:
        """Renew or acquire the follower lease. Return True if this process holds the lease."""
        now = self._clock.monotonic()
        if self._lease is not None and now < self._lease_until - _LEASE_TTL_S / 2:
            return True
        with self._database.writing() as connection:
            instant = self._clock.now()
            if self._lease is not None and leases.renew_lease(
                connection, self._lease, ttl_s=_LEASE_TTL_S, now=instant
            ):
                self._lease_until = now + _LEASE_TTL_S
                return True
            self._lease = leases.acquire_lease(
                connection, FOLLOWER_LEASE, self._owner, ttl_s=_LEASE_TTL_S, now=instant
            )
        self._lease_until = now + _LEASE_TTL_S
        # Another process may have applied states meanwhile, so report all channels again.
        self._unconfirmed = None
        return self._lease is not None

    def _follow(self, group: FailoverGroup, url: str) -> float:
        began = self._clock.monotonic()
        transport = self._connect(group, url)
        request = self._make_request(group)
        response = _pull(transport, request)
        if response.handed_over:
            failpoints.hit_failpoint(Failpoint.REPLICA_HANDED_OVER)
            with self._database.writing() as connection:
                epoch = failover_groups.promote(connection, force=True, now=self._clock.now())
            _log.info("this site is the primary of group %s, epoch %d", group.name, epoch)
            return 0.0
        if response.role not in {SiteRole.PRIMARY, SiteRole.CLOSING}:
            self._look_for_primary(group, url)
            return _LONG_POLL_S
        # The primary has received these channels, so do not report them again.
        self._unconfirmed = []
        if response.has_changes:
            self._take_state(group, transport, response)
        else:
            self._note_unchanged(response)
        is_busy = response.since is not None and response.content_bytes >= _BUSY_CONTENT_BYTES
        interval_s = _BUSY_PULL_INTERVAL_S if is_busy else _MIN_PULL_INTERVAL_S
        return max(began + interval_s - self._clock.monotonic(), 0.0)

    def _note_unchanged(self, response: PullResponse) -> None:
        """Record that the follower's state equals the state of the primary."""
        with self._database.writing() as connection:
            failover_groups.update_group(
                connection,
                state_at=model.from_microseconds(response.state_at),
                last_error=None,
            )

    def _make_request(self, group: FailoverGroup) -> PullRequest:
        with self._database.reading() as connection:
            sequences = {
                row.table_id: row.last_seq
                for row in connection.execute(
                    sa.select(model.tables.c.table_id, model.tables.c.last_seq)
                )
            }
            if self._unconfirmed is None:
                names = ("channel_id", "client_sequencer", "row_sequencer", "offset_token")
                query = sa.select(*(model.channels.c[name] for name in names))
                self._unconfirmed = [ReportedChannel(*row) for row in connection.execute(query)]
        public = self._key.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )
        # A fenced site may have commits that the new primary lacks. Do not confirm them.
        is_follower = group.role is SiteRole.SECONDARY and group.epoch >= 0
        addresses = group.settings.addresses
        return PullRequest(
            group=group.name,
            site=group.site,
            site_number=group.site_number,
            url=addresses[0] if addresses else None,
            epoch=group.epoch,
            point=group.point if is_follower else None,
            sequences=sequences if is_follower else {},
            reported=self._unconfirmed if is_follower else [],
            public_key=base64.b64encode(public).decode(),
            wait_s=_LONG_POLL_S,
            closes=group.switch_requested,
        )

    def _take_state(
        self, group: FailoverGroup, transport: Transport, response: PullResponse
    ) -> None:
        lease, last_sign = self._lease, self._clock.monotonic()
        progress_lock = threading.Lock()

        def read_range(store: StoreName, path: str, offset: int) -> tuple[int, bytes]:
            body = ReadRequest(group=group.name, store=store, path=path, offset=offset)
            data = transport.post_idempotent(READ_PATH, msgspec.json.encode(body))
            found = msgspec.msgpack.decode(data, type=ReadResponse)
            return found.size, found.content

        def read_blobs(paths: list[str]) -> list[bytes | None]:
            body = ReadBlobsRequest(group=group.name, paths=paths)
            data = transport.post_idempotent(READ_BLOBS_PATH, msgspec.json.encode(body))
            return msgspec.msgpack.decode(data, type=ReadBlobsResponse).contents

        def on_copied(size: int) -> None:
            nonlocal last_sign
            with progress_lock:
                self.copied_bytes += size
                now = self._clock.monotonic()
                if response.since is None and now - last_sign > FOLLOWER_TTL_S:
                    last_sign = now
                    request = self._make_request(group)
                    request.keeps = True
                    _pull(transport, request)
                if not self._hold_lease() or self._lease != lease:
                    raise StateUnusable(reason="another process of this site follows the primary")

        with contextlib.closing(_open_content(response, read_range)) as content:
            failpoints.hit_failpoint(Failpoint.REPLICA_RECEIVED)
            target = ObjectTarget(self._source.stage, self._source.warehouse, self._source.bucket)
            copier = ObjectCopier(
                target,
                read_range,
                read_blobs,
                response.warehouse_root,
                on_copied,
                trusts_metadata=response.since is not None,
                received=response.blobs,
            )
            copier.copy(list_needed_objects(content))
            failpoints.hit_failpoint(Failpoint.REPLICA_COPIED)
            importer = StateImporter(
                self._database,
                self._source.keyring,
                self._source.warehouse,
                self._key,
                self._clock.now,
            )
            reported = importer.apply(response, content, lease)
        failpoints.hit_failpoint(Failpoint.REPLICA_APPLIED)
        self._unconfirmed = reported
        if response.since is None:
            _log.info(
                "this site has state %d of epoch %d; %d bytes were copied",
                *(response.point, response.epoch, self.copied_bytes),
            )

    def _look_for_primary(self, group: FailoverGroup, url: str) -> None:
        """Follow another site if the known site names it as the primary."""
        state = request_site_state(url, ca_file=group.settings.ca_file)
        if state is None or state.primary_url is None or state.primary_url == url:
            return
        own = group.settings.addresses
        if state.primary_url not in own and state.group == group.name:
            with self._database.writing() as connection:
                failover_groups.update_group(connection, primary_url=state.primary_url)

    def _connect(self, group: FailoverGroup, url: str) -> Transport:
        settings = group.settings
        wanted = f"{url} {settings.user} {settings.private_key} {settings.ca_file}"
        if self._transport is None or self._transport[0] != wanted:
            self.close()
            self._transport = (
                wanted,
                make_transport(
                    url,
                    ClientSettings(ca_file=settings.ca_file),
                    user=settings.user,
                    private_key=None
                    if settings.private_key is None
                    else Path(settings.private_key),
                    oauth=None,
                    timeout_s=_TIMEOUT_S,
                ),
            )
        return self._transport[1]


def _pull(transport: Transport, request: PullRequest) -> PullResponse:
    data = transport.post_idempotent(PULL_PATH, msgspec.json.encode(request))
    return msgspec.msgpack.decode(data, type=PullResponse)


def _open_content(response: PullResponse, read: ReadRange) -> BinaryIO:
    if response.content_path is None:
        return io.BytesIO(response.content)
    file = cast("BinaryIO", tempfile.SpooledTemporaryFile(_SPOOL_BYTES))  # noqa: SIM115 - the caller closes it
    try:
        for block in _read_content(response, read):
            file.write(block)
    except BaseException:
        file.close()
        raise
    return file


def _read_content(response: PullResponse, read: ReadRange) -> Iterator[bytes]:
    offset = 0
    while offset < response.content_bytes:
        size, data = read("stage", response.content_path or "", offset)
        if size != response.content_bytes or not data:
            raise ServiceUnavailable(url="the primary", reason="it has dropped the state")
        yield data
        offset += len(data)
