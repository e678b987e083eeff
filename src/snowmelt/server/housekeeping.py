"""What a service tidies up in each round: blobs nobody wants, files nothing points to."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from snowmelt.ingest import orphans

if TYPE_CHECKING:
    from snowmelt.server.app import Service

# Looking through the whole stage costs about 10 µs an object; sightings may be minutes late.
_ROUNDS_PER_SCAN = 5


class Housekeeping:
    """Rounds of cleaning; every step may be interrupted and is done again in a later round."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._round = 0

    def __call__(self) -> None:
        """Do one round."""
        service = self._service
        now = service.clock.now()
        if self._round % _ROUNDS_PER_SCAN == 0:
            orphans.sight_blobs(service.database, service.stage, now=now)
        self._round += 1
        given_up = now - dt.timedelta(seconds=service.settings.orphan_after_s)
        orphans.delete_orphans(service.database, service.stage, seen_before=given_up, now=now)
