"""What a service tidies up in each round: blobs nobody needs, files nothing points to."""

from __future__ import annotations

import datetime as dt
import logging
from functools import partial
from typing import TYPE_CHECKING

from snowmelt.catalog import channels, leases, row_channels, stages
from snowmelt.errors import ServiceBusy
from snowmelt.ingest.rows.places import is_row_file
from snowmelt.storage.opening import open_store
from snowmelt.table.leasing import new_owner, renewed

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import sqlalchemy as sa

    from snowmelt.server.app import Service

# Much longer than any registration or clean-up takes.
_TOMBSTONES_KEPT = dt.timedelta(days=7)
_AT_ONCE = 1_000
# Longer than the official SDK goes on repeating a request, which is ten hours.
_REQUESTS_KEPT = dt.timedelta(hours=12)
# Files of rows are deleted when these are committed; what clients left behind, so much later.
_FILES_KEPT = dt.timedelta(hours=24)
_SWEEP_EACH_S = 3_600.0
# Two collectors at once do no harm, but the work twice.
_LEASE = "housekeeping"
_LEASE_S = 60.0
_log = logging.getLogger("snowmelt.server")


class Housekeeping:
    """Rounds of cleaning; a round that is interrupted is made up for by the next.

    Once it is `stopping`, a round ends before it would go on to the next object or transaction.
    """

    def __init__(self, service: Service, stopping: threading.Event) -> None:
        self._service = service
        self._stopping = stopping
        self._warehouse = open_store(service.settings.warehouse_url)
        self._owner = new_owner()
        self._sweep_at = service.clock.monotonic()

    def __call__(self) -> None:
        """Do one round, unless another service is at it."""
        service = self._service
        with service.database.writing() as connection:
            lease = leases.acquire(
                connection, _LEASE, self._owner, ttl_s=_LEASE_S, now=service.clock.now()
            )
        if lease is None:
            return
        try:
            with renewed(service.database, lease, ttl_s=_LEASE_S, clock=service.clock):
                self._round()
        except ServiceBusy as error:
            _log.info("housekeeping is left to the next service: %s", error)
        finally:
            with service.database.writing() as connection:
                leases.release(connection, lease)

    def _between(self) -> None:
        """Go no further when the service stops.

        Raises:
            ServiceBusy: It does.
        """
        if self._stopping.is_set():
            raise ServiceBusy(reason="it is stopping")

    def _round(self) -> None:
        # Here, not above: with it comes PyIceberg, which takes longer to load than the service.
        from snowmelt.table import cleanup

        service = self._service
        idle = service.settings.channel_idle_s
        expired = cleanup.expire_channels(
            service.database, service.clock, idle_s=idle, between=self._between
        )
        if expired:
            _log.info("%d channels have expired: nobody wrote to them for %g s", expired, idle)
        self._trim()
        self._sweep()
        collected = cleanup.collect(
            service.database,
            service.stage,
            self._warehouse,
            clock=service.clock,
            retention_s=service.settings.retention_s,
            between=self._between,
        )
        for problem in collected.problems:
            _log.error("clean-up could not do its work on %s; it will try again", problem)
        if collected.blobs or collected.unregistered or collected.files:
            _log.info(
                "deleted %d blobs, %d that were never registered, and %d native files",
                collected.blobs,
                collected.unregistered,
                collected.files,
            )

    def _sweep(self) -> None:
        """Delete files of rows whose requests never came, now and then."""
        service = self._service
        if service.clock.monotonic() < self._sweep_at:
            return
        self._sweep_at = service.clock.monotonic() + _SWEEP_EACH_S
        before = service.clock.now() - _FILES_KEPT
        old: list[str] = []
        for found in service.stage.list():
            self._between()
            if found.modified_at <= before and is_row_file(found.path.partition("/")[2]):
                old.append(found.path)
        for path in old:
            self._between()
            service.stage.delete(path)

    def _trim(self) -> None:
        """Forget old history and old tombstones, a little at a time."""
        now = self._service.clock.now()
        kept = dt.timedelta(seconds=self._service.settings.history_retention_s)
        for forget, before in (
            (channels.trim_history, now - kept),
            (row_channels.forget_requests, now - _REQUESTS_KEPT),
            (stages.forget_tombstones, now - _TOMBSTONES_KEPT),
        ):
            self._forget(partial(forget, before=before, limit=_AT_ONCE))

    def _forget(self, some: Callable[[sa.Connection], int]) -> None:
        removed = _AT_ONCE
        while removed == _AT_ONCE:
            self._between()
            with self._service.database.writing() as connection:
                removed = some(connection)
