"""What a service tidies up in each round: blobs nobody needs, files nothing points to."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING

from snowmelt.catalog import channels, leases, row_channels, stages
from snowmelt.ingest.rows.places import is_row_file
from snowmelt.storage.opening import open_store
from snowmelt.table.leasing import new_owner, renewed

if TYPE_CHECKING:
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
    """Rounds of cleaning; a round that is interrupted is made up for by the next."""

    def __init__(self, service: Service) -> None:
        self._service = service
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
        finally:
            with service.database.writing() as connection:
                leases.release(connection, lease)

    def _round(self) -> None:
        # Here, not above: with it comes PyIceberg, which takes longer to load than the service.
        from snowmelt.table import cleanup

        service = self._service
        idle = service.settings.channel_idle_s
        expired = cleanup.expire_channels(service.database, service.clock, idle_s=idle)
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
        for found in list(service.stage.list()):
            name = found.path.partition("/")[2]
            if is_row_file(name) and found.modified_at <= before:
                service.stage.delete(found.path)

    def _trim(self) -> None:
        """Forget old history and old tombstones, a little at a time."""
        service = self._service
        now = service.clock.now()
        kept = dt.timedelta(seconds=service.settings.history_retention_s)
        removed = _AT_ONCE
        while removed == _AT_ONCE:
            with service.database.writing() as connection:
                removed = channels.trim_history(connection, now - kept, limit=_AT_ONCE)
        removed = _AT_ONCE
        while removed == _AT_ONCE:
            with service.database.writing() as connection:
                removed = row_channels.forget_requests(
                    connection, now - _REQUESTS_KEPT, limit=_AT_ONCE
                )
        removed = _AT_ONCE
        while removed == _AT_ONCE:
            with service.database.writing() as connection:
                removed = stages.forget_tombstones(
                    connection, now - _TOMBSTONES_KEPT, limit=_AT_ONCE
                )
