"""What a service tidies up in each round: blobs nobody needs, files nothing points to."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from snowmelt.storage.opening import open_store
from snowmelt.table import cleanup

if TYPE_CHECKING:
    from snowmelt.server.app import Service

_log = logging.getLogger("snowmelt.server")


class Housekeeping:
    """Rounds of cleaning; a round that is interrupted is made up for by the next."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._warehouse = open_store(service.settings.warehouse_url)

    def __call__(self) -> None:
        """Do one round."""
        collected = cleanup.collect(
            self._service.database,
            self._service.stage,
            self._warehouse,
            clock=self._service.clock,
            retention_s=self._service.settings.retention_s,
        )
        if collected.blobs or collected.unregistered or collected.files:
            _log.info(
                "deleted %d blobs, %d that were never registered, and %d native files",
                collected.blobs,
                collected.unregistered,
                collected.files,
            )
