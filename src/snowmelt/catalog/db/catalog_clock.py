"""A clock that follows the catalog's, so that services on several machines agree on the time.

Leases, ages of blobs and ends of tokens are judged by one service and written by another. Where their
machines' clocks differ by seconds, the time of the catalog's database decides.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from snowmelt.catalog.db.database import server_time
from snowmelt.clock import SystemClock

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from snowmelt.catalog.db.database import Database
    from snowmelt.clock import Clock

# Below that a machine's own clock is as good: a measurement has the network in it.
TOLERATED_S = 5.0
# An answer that took longer says little about the time.
_SLOW_S = 2.0


def following(database: Database, machine: Clock | None = None) -> CatalogClock:
    """Return a clock that agrees with the catalog's as of now.

    Raises:
        CatalogUnavailable: The catalog cannot be reached.
    """
    clock = CatalogClock(machine or SystemClock())
    with database.reading() as connection:
        clock.follow(connection)
    return clock


class CatalogClock:
    """The machine's time, corrected once that is far from the catalog's."""

    def __init__(self, machine: Clock) -> None:
        self._machine = machine
        self._correction = dt.timedelta()
        self.ahead_s = 0.0

    def follow(self, connection: Connection) -> dt.datetime:
        """Look at the catalog's clock and return its time; on SQLite it is the machine's."""
        began, began_at = self._machine.monotonic(), self._machine.now()
        theirs = server_time(connection)
        if theirs is None:
            return began_at
        took_s = self._machine.monotonic() - began
        if took_s < _SLOW_S:
            ahead = began_at + dt.timedelta(seconds=took_s / 2) - theirs
            self.ahead_s = ahead.total_seconds()
            self._correction = ahead if abs(self.ahead_s) > TOLERATED_S else dt.timedelta()
        return theirs

    def now(self) -> dt.datetime:
        """Return the wall-clock instant, aware, in UTC."""
        return self._machine.now() - self._correction

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds."""
        return self._machine.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        self._machine.sleep(seconds)

    async def pause(self, seconds: float) -> None:
        """Let other tasks of the event loop run."""
        await self._machine.pause(seconds)
