"""Clock that follows the database server's time, so that services on several machines agree.

Lease expiry, blob age and token expiry are written by one service and checked by another. Where
the clocks of their machines differ by more than `MAX_CLOCK_SKEW_S`, the database's time decides.
"""

from __future__ import annotations

import datetime as dt

from sqlalchemy import Connection

from snowmelt.catalog.db.database import Database, read_server_time
from snowmelt.clock import Clock, SystemClock

# Below that a machine's own clock is as good: a measurement has the network in it.
MAX_CLOCK_SKEW_S = 5.0
# An answer that took longer says little about the time.
_MAX_ROUND_TRIP_S = 2.0


def open_catalog_clock(database: Database, local_clock: Clock | None = None) -> DatabaseServerClock:
    """Return a clock that agrees with the catalog's as of now.

    Raises:
        CatalogUnavailable: The catalog cannot be reached.
    """
    clock = DatabaseServerClock(local_clock or SystemClock())
    with database.reading() as connection:
        clock.synchronize(connection)
    return clock


class DatabaseServerClock:
    """The machine's time, corrected once that is far from the catalog's."""

    def __init__(self, local_clock: Clock) -> None:
        self._local_clock = local_clock
        self._correction = dt.timedelta()
        self.skew_s = 0.0

    def synchronize(self, connection: Connection) -> dt.datetime:
        """Look at the catalog's clock and return its time; on SQLite it is the machine's."""
        began, began_at = self._local_clock.monotonic(), self._local_clock.now()
        theirs = read_server_time(connection)
        if theirs is None:
            return began_at
        took_s = self._local_clock.monotonic() - began
        if took_s < _MAX_ROUND_TRIP_S:
            ahead = began_at + dt.timedelta(seconds=took_s / 2) - theirs
            self.skew_s = ahead.total_seconds()
            self._correction = ahead if abs(self.skew_s) > MAX_CLOCK_SKEW_S else dt.timedelta()
        return theirs

    def now(self) -> dt.datetime:
        """Return the wall-clock instant, aware, in UTC."""
        return self._local_clock.now() - self._correction

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds."""
        return self._local_clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        self._local_clock.sleep(seconds)

    async def pause(self, seconds: float) -> None:
        """Let other tasks of the event loop run."""
        await self._local_clock.pause(seconds)
