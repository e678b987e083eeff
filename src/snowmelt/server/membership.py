"""A service among those of its deployment: it says that it runs, and follows the catalog's clock."""

from __future__ import annotations

import logging
import os
import platform
import uuid
from typing import TYPE_CHECKING

import snowmelt
from snowmelt.catalog.catalog_clock import TOLERATED_S
from snowmelt.catalog.services import ServiceRecord, say_that_it_ends, say_that_it_runs

if TYPE_CHECKING:
    from snowmelt.catalog.catalog_clock import CatalogClock
    from snowmelt.catalog.database import Database

_log = logging.getLogger("snowmelt.server")


class Membership:
    """What the others, and `snowmelt doctor`, know of this service."""

    def __init__(self, database: Database, clock: CatalogClock, *, url: str) -> None:
        self._database = database
        self._clock = clock
        self._url = url
        self._id = uuid.uuid4().hex
        self._started_at = clock.now()
        self._was_ahead = False

    def beat(self) -> None:
        """Say that it runs, and look at the catalog's clock.

        Raises:
            CatalogUnavailable: The catalog cannot be reached; the clock stays as it was.
        """
        with self._database.writing() as connection:
            now = self._clock.follow(connection)
            record = ServiceRecord(
                self._id,
                platform.node(),
                os.getpid(),
                self._url,
                snowmelt.__version__,
                self._started_at,
                now,
                round(self._clock.ahead_s * 1000),
            )
            say_that_it_runs(connection, record)
        is_ahead = abs(self._clock.ahead_s) > TOLERATED_S
        if is_ahead and not self._was_ahead:
            _log.warning(
                "this machine's clock is %.0f s %s that of the catalog, which counts from now on;"
                " let NTP set it",
                abs(self._clock.ahead_s),
                "ahead of" if self._clock.ahead_s > 0 else "behind",
            )
        self._was_ahead = is_ahead

    def leave(self) -> None:
        """Say that it ends; what cannot be said now, the others see within a minute."""
        try:
            with self._database.writing() as connection:
                say_that_it_ends(connection, self._id)
        except Exception as error:  # noqa: BLE001 - an end in order must not fail on it
            _log.warning("the other services were not told of the end: %s", error)
