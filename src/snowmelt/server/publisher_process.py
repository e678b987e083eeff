"""The process that publishes snapshots of tables that engines load, and its supervisor in a service.

The process checks for new chunks five times per second, and ends after ten minutes without a load.
It spends about an eighth of a processor on each table: above about 200,000 rows per second, the
publications of a table become rarer, and migrations take most of its rows. Chunks that were
committed before the first load are published without this limit. A process that publishes a table
holds a lease for 5 s, so a crashed process delays the next publication by at most 5 s.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from snowmelt.catalog.db.database import DatabaseServerClock
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.jobs.leases import Lease, new_lease_owner
from snowmelt.catalog.objects.published_snapshots import DEMAND_TTL, TableDemand, list_demand
from snowmelt.clock import Clock, SystemClock
from snowmelt.config import Settings
from snowmelt.errors import LeaseLost, SnowmeltError, TableNotFound
from snowmelt.server.child_process import (
    install_lease_releasing_shutdown,
    run_child,
    start_child,
    stop_child,
)

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database
    from snowmelt.table.snapshot_publication import SnapshotPublisher

_log = logging.getLogger("snowmelt.server")

DEMAND_NOTE_INTERVAL_S = 60.0
_ROUND_INTERVAL_S = 0.2
_LEASE_TTL_S = 5.0
_CLOCK_INTERVAL_S = 10.0
_MIN_RETRY_S, _MAX_RETRY_S = 0.5, 30.0
_STALLED_RETRY_S = 5.0
_MIN_RESTART_DELAY_S = 1.0
# Share of a processor that publications of one table take. Rounds of 20,000 rows take 20 ms of CPU each,
# so five per second need less.
_CPU_SHARE = 0.125
# Maximum size of a round of a table that has this limit. A round takes about 0.3 s of CPU, so the
# pause after it is shorter than the maximum.
_PACED_ROUND_BYTES = 8 * 1024 * 1024
# Maximum unused CPU time that a table accumulates, so that compactions of fresh files do not delay
# publications.
_MAX_CPU_CREDIT_S = 1.0
# Below the 5 s for which the response to an engine's commit waits for a publication.
_MAX_PAUSE_S = 4.0


class PublishingLoop:
    """Publisher of the tables in demand. Works in rounds."""

    def __init__(
        self,
        database: Database,
        publisher: SnapshotPublisher,
        clock: Clock,
        get_cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        """Create a publisher. `get_cpu_s` returns the CPU time of this process in seconds."""
        self._database = database
        self._publisher = publisher
        self._clock = clock
        self._get_cpu_s = get_cpu_s
        # Remaining CPU time of each table, and the time at which it was computed.
        self._credits: dict[tuple[int, bool], tuple[float, float]] = {}
        self._paused_until: dict[tuple[int, bool], float] = {}
        # Tables whose publications include all chunks from before the first load. Other tables have
        # no limit of CPU time.
        self._caught_up: set[tuple[int, bool]] = set()
        self._owner = new_lease_owner()
        self._leases: dict[str, tuple[Lease, float]] = {}
        self._published: dict[tuple[int, bool], TableDemand] = {}
        self._retry_at: dict[tuple[int, bool], tuple[float, float]] = {}

    def run_round(self) -> bool:
        """Publish each table in demand that has changed. Return False if no table is in demand."""
        with self._database.reading() as connection:
            demands = list_demand(connection, since=self._clock.now() - DEMAND_TTL)
        for demand in demands:
            key = (demand.table_id, demand.native_only)
            retry_at, pause_s = self._retry_at.get(key, (0.0, 0.0))
            not_before = max(retry_at, self._paused_until.get(key, 0.0))
            if self._published.get(key) == demand or self._clock.monotonic() < not_before:
                continue
            try:
                lease = self._acquire_lease(demand.incarnation)
                self._retry_at.pop(key, None)
                if lease is not None:
                    self._publish(demand, lease)
            except TableNotFound:
                self._published.pop(key, None)
            except SnowmeltError as error:
                pause_s = min(max(pause_s * 2, _MIN_RETRY_S), _MAX_RETRY_S)
                self._retry_at[key] = (self._clock.monotonic() + pause_s, pause_s)
                _log.warning(
                    "Cannot publish table %s, retrying in %g s: %s",
                    *(demand.table_id, pause_s, error),
                )
        return bool(demands)

    def _publish(self, demand: TableDemand, lease: Lease) -> None:
        key = (demand.table_id, demand.native_only)
        began_cpu_s = self._get_cpu_s()
        try:
            made = self._publisher.publish(
                demand.table_id,
                native_only=demand.native_only,
                lease=lease,
                max_bytes=_PACED_ROUND_BYTES if key in self._caught_up else None,
            )
        except LeaseLost:
            self._leases.pop(lease.name, None)
            return
        if made is None or made.up_to_seq >= demand.last_seq:
            self._caught_up.add(key)
        if key in self._caught_up:
            self._charge(key, self._get_cpu_s() - began_cpu_s)
        if made is not None:
            return
        if demand.stalled_reason is not None:
            # Restoring the blob does not change the catalog, so check the table again.
            self._retry_at[key] = (self._clock.monotonic() + _STALLED_RETRY_S, 0.0)
            return
        # The publication may be newer than `demand`. The next round then has nothing to do.
        self._published[key] = demand

    def _charge(self, key: tuple[int, bool], cpu_s: float) -> None:
        """Charge the CPU time of a publication, and pause the table if it exceeds its share."""
        now = self._clock.monotonic()
        credit_s, since = self._credits.get(key, (_MAX_CPU_CREDIT_S, now))
        credit_s = min(credit_s + (now - since) * _CPU_SHARE, _MAX_CPU_CREDIT_S) - cpu_s
        self._credits[key] = (credit_s, now)
        self._paused_until[key] = now + min(max(-credit_s / _CPU_SHARE, 0.0), _MAX_PAUSE_S)

    def _acquire_lease(self, incarnation: str) -> Lease | None:
        """Acquire or renew the lease of a table. Return None if another process holds it."""
        name = f"publication:{incarnation}"
        now = self._clock.monotonic()
        held = self._leases.get(name)
        if held is not None and now - held[1] < _LEASE_TTL_S / 3:
            return held[0]
        with self._database.writing() as connection:
            instant = self._clock.now()
            if held is not None and leases.renew_lease(
                connection, held[0], ttl_s=_LEASE_TTL_S, now=instant
            ):
                self._leases[name] = (held[0], now)
                return held[0]
            lease = leases.acquire_lease(
                connection, name, self._owner, ttl_s=_LEASE_TTL_S, now=instant
            )
        self._leases.pop(name, None)
        if lease is not None:
            self._leases[name] = (lease, now)
        return lease


def run_publisher(settings: Settings) -> None:
    """Publish until no table was in demand for ten minutes.

    Raises:
        ConfigurationError: If a setting is invalid.
        CatalogUnavailable: If the catalog cannot be reached at the start.
    """
    # Imported here, because the service itself does not load PyIceberg.
    from snowmelt.catalog.db.database import open_and_upgrade_database
    from snowmelt.catalog.security.encryption_keys import open_or_create_keyring
    from snowmelt.table.snapshot_publication import PublicationSettings, SnapshotPublisher

    database = open_and_upgrade_database(settings.catalog_url)
    install_lease_releasing_shutdown(database)
    clock = DatabaseServerClock(SystemClock())
    keyring = open_or_create_keyring(database, settings.keys_dir)
    places = PublicationSettings(settings.stage_url, settings.warehouse_url)
    loop = PublishingLoop(database, SnapshotPublisher(database, keyring, places, clock), clock)
    synchronized_at = idle_since = clock.monotonic()
    with database.reading() as connection:
        clock.synchronize(connection)
    while True:
        began = clock.monotonic()
        try:
            if began - synchronized_at >= _CLOCK_INTERVAL_S:
                with database.reading() as connection:
                    clock.synchronize(connection)
                synchronized_at = began
            if loop.run_round():
                idle_since = began
        except SnowmeltError as error:
            if not error.retryable:
                raise
            _log.warning("Cannot publish snapshots, retrying: %s", error)
        if began - idle_since >= DEMAND_TTL.total_seconds():
            return
        clock.sleep(max(_ROUND_INTERVAL_S - (clock.monotonic() - began), 0.01))


class PublisherSupervisor:
    """Supervises the publishing process while engines load tables. Thread-safe.

    The process has the reading end of a pipe, and exits when this process ends for any reason.
    """

    def __init__(self, database: Database, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._settings = settings
        self._clock = clock
        self._wanted = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0
        self._stopped = False

    def request_start(self) -> None:
        """Request the start of the process, unless it is running."""
        self._wanted.set()

    def wait_and_ensure_running(self, timeout_s: float) -> None:
        """Wait for a request or the timeout, then start the process if it is needed and not running."""
        requested = self._wanted.wait(timeout_s)
        self._wanted.clear()
        with self._lock:
            if self._stopped or (self._child is not None and self._child.poll() is None):
                return
            now = self._clock.monotonic()
            if self._child is not None and self._child.returncode:
                _log.warning(
                    "the publisher ended with status %d; starting it again", self._child.returncode
                )
            self._child = None
            if now >= self._not_before and (requested or self._is_in_demand()):
                self._start_child()
                self._not_before = now + _MIN_RESTART_DELAY_S
            elif requested:
                self._wanted.set()

    def stop(self) -> None:
        """Stop the process."""
        with self._lock:
            self._stopped = True
            child, self._child = self._child, None
        self._wanted.set()
        if child is not None:
            stop_child(child)

    def _is_in_demand(self) -> bool:
        with self._database.reading() as connection:
            return bool(list_demand(connection, since=self._clock.now() - DEMAND_TTL))

    def _start_child(self) -> None:
        self._child = start_child(self._settings, "snowmelt.server.publisher_process")
        _log.info("the publisher runs as process %d", self._child.pid)


if __name__ == "__main__":
    run_child(run_publisher)
