"""Back-pressure for tables whose migration backlog exceeds the configured limit.

All services of a deployment poll the same catalog, so they agree within one second. The limit is
soft: rows that arrive between two polls are accepted, and accepted rows are never discarded.
"""

from __future__ import annotations

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs.run_history import find_table_ids_over_backlog
from snowmelt.clock import Clock
from snowmelt.ingest.registration_structure_check import RequestRejection
from snowmelt.wire.streaming import ResponseCode

# Minimum pause after a poll, as a multiple of its duration. Adding up the bytes of a million
# pending chunks takes 0.5 s of CPU time.
_POLL_PAUSE_FACTOR = 20

BACKLOG_TOO_LARGE = RequestRejection(
    ResponseCode.QUEUE_FULL,
    "The migration backlog of the table exceeds its limit (backlog_max_chunks or"
    " backlog_max_bytes). Retry after 1 s.",
)


class BackPressure:
    """Tables whose backlog exceeds a limit, as of the last poll. 0 means no limit."""

    def __init__(
        self, database: Database, *, clock: Clock, max_chunks: int, max_bytes: int
    ) -> None:
        self._database = database
        self._clock = clock
        self._not_before = clock.monotonic()
        self._max_chunks = max_chunks or None
        self._max_bytes = max_bytes or None
        self.throttled_table_ids: frozenset[int] = frozenset()

    @property
    def has_limits(self) -> bool:
        """True if any limit is set."""
        return self._max_chunks is not None or self._max_bytes is not None

    def refresh(self) -> None:
        """Poll the catalog, except in the pause after a poll. If it fails, keep the state.

        Raises:
            CatalogUnavailable: If the catalog cannot be reached.
        """
        began = self._clock.monotonic()
        if began < self._not_before:
            return
        with self._database.reading() as connection:
            self.throttled_table_ids = find_table_ids_over_backlog(
                connection, max_chunks=self._max_chunks, max_bytes=self._max_bytes
            )
        ended = self._clock.monotonic()
        self._not_before = ended + _POLL_PAUSE_FACTOR * (ended - began)
