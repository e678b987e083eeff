"""Background workers: migrator process, service heartbeat and housekeeping.

Housekeeping deletes unreferenced blobs and files and old records. The heartbeat registers the
service in its deployment and synchronizes its clock with the catalog. Unused memory is returned to
the operating system.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import logging
import os
import platform
import subprocess
import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

import snowmelt
from snowmelt.catalog.db.database import MAX_CLOCK_SKEW_S, Database, DatabaseServerClock
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.jobs.leases import (
    HEARTBEAT_INTERVAL_S,
    ServiceRecord,
    deregister_service,
    new_lease_owner,
    record_heartbeat,
    renewing_lease,
)
from snowmelt.catalog.objects import failover_groups, tables
from snowmelt.catalog.streaming import channels, registration, row_request_state
from snowmelt.errors import ServiceBusy, SnowmeltError
from snowmelt.ingest.rows.targets import is_uploaded_row_file_name
from snowmelt.server.child_process import ChildProgram, ChildSupervisor
from snowmelt.server.file_pipe_process import FILE_PIPES, has_file_pipes
from snowmelt.server.replication.site_supervisor import SITE_PROCESS, has_group
from snowmelt.storage.store_factory import open_store
from snowmelt.wire.sites import STATES_FOLDER

if TYPE_CHECKING:
    from snowmelt.server.app import ServiceComponents

_log = logging.getLogger("snowmelt.server")

_MIGRATOR = ChildProgram(
    "the migrator",
    "snowmelt",
    ("migrate", "--loop"),
    min_delay_s=1.0,
    max_delay_s=60.0,
    stable_s=120.0,
)
_STOP_TIMEOUT_S = 10.0
_BACK_PRESSURE_INTERVAL_S = 1.0
# Interval of checks for a crashed publisher. A load of a table starts it immediately.
_DEMAND_INTERVAL_S = 1.0
# Interval of checks for new pipes that load files.
_FILE_PIPES_INTERVAL_S = 1.0
# Interval of checks for a new failover group.
_SITE_INTERVAL_S = 1.0


class BackgroundWorkers:
    """Background threads of a service."""

    def __init__(
        self,
        service: ServiceComponents,
        *,
        url: str,
        on_other_history: Callable[[], None] = lambda: None,
        site_process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Create the workers.

        `on_other_history` is called if an imported state has replaced the history of the catalog.
        `site_process` is a running replication process that an earlier service of this process has
        released.
        """
        self._stopping = threading.Event()
        self._on_other_history = on_other_history
        self._heartbeat = ServiceHeartbeat(service.database, service.clock, url=url)
        self._heartbeat.send()
        settings = service.settings
        database, clock = service.database, service.clock
        self._database = database
        self._migrator = None
        if settings.migrate:
            is_needed = MigratorDemand(service).is_needed
            self._migrator = ChildSupervisor(_MIGRATOR, settings, clock, is_needed)
        self._publisher = service.publisher
        self._file_pipes = ChildSupervisor(
            FILE_PIPES, settings, clock, partial(has_file_pipes, database)
        )
        self._site = ChildSupervisor(
            SITE_PROCESS, settings, clock, partial(has_group, database), child=site_process
        )
        rounds: list[tuple[str, float, Callable[[], object]]] = [
            ("housekeeping", settings.cleanup_interval_s, Housekeeping(service, self._stopping)),
            ("memory", settings.cleanup_interval_s, release_memory),
            ("membership", HEARTBEAT_INTERVAL_S, self._heartbeat.send),
            ("site", _SITE_INTERVAL_S, self._look_after_site),
            (
                "publisher",
                0.0,
                partial(self._publisher.wait_and_ensure_running, _DEMAND_INTERVAL_S),
            ),
        ]
        if self._migrator is not None:
            interval_s = min(settings.migrate_interval_s, 1.0)
            rounds.append(("migrator", interval_s, partial(self._migrate, self._migrator)))
        if settings.load_files:
            rounds.append(("file pipes", _FILE_PIPES_INTERVAL_S, self._load_files))
        if service.back_pressure.has_limits:
            service.back_pressure.refresh()
            rounds.append(("pressure", _BACK_PRESSURE_INTERVAL_S, service.back_pressure.refresh))
        self._threads = [
            threading.Thread(
                target=self._run_periodically, args=(interval_s, work), name=name, daemon=True
            )
            for name, interval_s, work in rounds
        ]

    def start(self) -> None:
        """Start the threads. Each one waits for its interval before its first round."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads and child processes. Wait up to 10 s for each thread."""
        self._stopping.set()
        self._publisher.stop()
        for thread in self._threads:
            if thread.ident is not None:
                # If the process ends during a round, the next service completes the round.
                thread.join(_STOP_TIMEOUT_S)
        self._file_pipes.stop()
        self._site.stop()
        if self._migrator is not None:
            self._migrator.stop()
        self._heartbeat.deregister()

    def release_site_process(self) -> subprocess.Popen[bytes] | None:
        """Return the replication process, which continues while this service restarts."""
        return self._site.release()

    def _migrate(self, migrator: ChildSupervisor) -> None:
        """Run the migrator at a primary. A follower receives native files with the states."""
        if self._is_writable():
            migrator.ensure_running()
        else:
            migrator.end_child()

    def _load_files(self) -> None:
        if self._is_writable():
            self._file_pipes.ensure_running()

    def _look_after_site(self) -> None:
        self._site.ensure_running()
        if self._database.has_other_history():
            self._on_other_history()

    def _is_writable(self) -> bool:
        with self._database.reading() as connection:
            return failover_groups.is_writable(connection)

    def _run_periodically(self, interval_s: float, work: Callable[[], object]) -> None:
        while not self._stopping.wait(interval_s):
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the next round may work
                name = threading.current_thread().name
                if isinstance(error, SnowmeltError) and error.retryable:
                    _log.warning("%s failed, retrying: %s", name, error)
                else:
                    _log.exception("%s failed; retrying", name)


class MigratorDemand:
    """Predicate that determines if the migrator process is needed.

    It is needed immediately for unmigrated chunks. For compactions of native files, it is needed
    once in `compact_interval_s`.
    """

    def __init__(self, service: ServiceComponents) -> None:
        self._database = service.database
        self._settings = service.settings
        self._clock = service.clock
        self._next_compaction_at = self._clock.monotonic() + self._settings.compact_interval_s

    def is_needed(self) -> bool:
        """Return True if there is work."""
        with self._database.reading() as connection:
            found = tables.list_tables(connection)
        if any(table.last_seq > table.migrated_seq for table in found):
            return True
        now = self._clock.monotonic()
        if not self._settings.compact or now < self._next_compaction_at:
            return False
        self._next_compaction_at = now + self._settings.compact_interval_s
        return any(table.pointer is not None for table in found)


class ServiceHeartbeat:
    """Record of this service in the catalog, which other services and `snowmelt doctor` read."""

    def __init__(self, database: Database, clock: DatabaseServerClock, *, url: str) -> None:
        self._database = database
        self._clock = clock
        self._url = url
        self._id = uuid.uuid4().hex
        self._started_at = clock.now()
        self._was_ahead = False

    def send(self) -> None:
        """Update the record, and synchronize the clock with the catalog's.

        Raises:
            CatalogUnavailable: If the catalog cannot be reached. The clock correction then stays
                unchanged.
        """
        with self._database.writing() as connection:
            now = self._clock.synchronize(connection)
            record = ServiceRecord(
                self._id,
                platform.node(),
                os.getpid(),
                self._url,
                snowmelt.__version__,
                self._started_at,
                now,
                round(self._clock.skew_s * 1000),
            )
            record_heartbeat(connection, record)
        is_ahead = abs(self._clock.skew_s) > MAX_CLOCK_SKEW_S
        if is_ahead and not self._was_ahead:
            _log.warning(
                "this machine's clock is %.0f s %s the clock of the catalog. The service uses the clock "
                "of the catalog; synchronize this machine with NTP",
                abs(self._clock.skew_s),
                "ahead of" if self._clock.skew_s > 0 else "behind",
            )
        self._was_ahead = is_ahead

    def deregister(self) -> None:
        """Delete the record. If the deletion fails, the record expires within a minute."""
        try:
            with self._database.writing() as connection:
                deregister_service(connection, self._id)
        except Exception as error:  # noqa: BLE001 - an end in order must not fail on it
            _log.warning("Cannot deregister the service: %s", error)


# Longer than any registration or garbage collection takes.
_TOMBSTONE_RETENTION = dt.timedelta(days=7)
_DELETE_BATCH_ROWS = 1_000
# The official SDK repeats a request for up to ten hours.
_REQUEST_ID_RETENTION = dt.timedelta(hours=12)
# Row files are deleted when their rows are committed. Abandoned ones are deleted after this time.
_ROW_FILE_RETENTION = dt.timedelta(hours=24)
_ROW_FILE_CLEANUP_INTERVAL_S = 3_600.0
# Concurrent collectors are safe, but would duplicate work.
_LEASE_NAME = "housekeeping"
_LEASE_TTL_S = 60.0


class Housekeeping:
    """Periodic garbage collection. The next round completes an interrupted one.

    After `stopping` is set, a round ends before its next object or transaction.
    """

    def __init__(self, service: ServiceComponents, stopping: threading.Event) -> None:
        self._service = service
        self._stopping = stopping
        self._warehouse = open_store(service.settings.warehouse_url)
        self._owner = new_lease_owner()
        self._next_row_file_cleanup_at = service.clock.monotonic()

    def __call__(self) -> None:
        """Run one round unless another service is running one."""
        service = self._service
        with service.database.writing() as connection:
            lease = leases.acquire_lease(
                connection, _LEASE_NAME, self._owner, ttl_s=_LEASE_TTL_S, now=service.clock.now()
            )
        if lease is None:
            return
        try:
            with renewing_lease(service.database, lease, ttl_s=_LEASE_TTL_S, clock=service.clock):
                self._run_round()
        except ServiceBusy as error:
            _log.info("housekeeping was interrupted; the next service continues it: %s", error)
        finally:
            with service.database.writing() as connection:
                leases.release_lease(connection, lease)

    def _raise_if_stopping(self) -> None:
        """Raise an error if the service is stopping.

        Raises:
            ServiceBusy: If the service is stopping.
        """
        if self._stopping.is_set():
            raise ServiceBusy(reason="it is stopping")

    def _run_round(self) -> None:
        # Imported here, because it imports PyIceberg, which takes longer to load than the service.
        from snowmelt.table import garbage_collection as cleanup

        service = self._service
        with service.database.reading() as connection:
            is_replica = not failover_groups.is_writable(connection)
        if not is_replica:
            self._expire_records()
        self._delete_orphaned_row_files()
        collected = cleanup.collect_garbage(
            service.database,
            service.stage,
            self._warehouse,
            clock=service.clock,
            retention_s=service.settings.retention_s,
            on_step=self._raise_if_stopping,
            is_replica=is_replica,
        )
        for problem in collected.problems:
            _log.error("garbage collection failed on %s and will retry", problem)
        if collected.blobs or collected.unregistered or collected.files:
            _log.info(
                "deleted %d blobs, %d that were never registered, and %d native files",
                collected.blobs,
                collected.unregistered,
                collected.files,
            )

    def _expire_records(self) -> None:
        """Expire idle channels and old history."""
        from snowmelt.table import garbage_collection as cleanup

        service = self._service
        idle = service.settings.channel_idle_s
        expired = cleanup.expire_idle_channels(
            service.database, service.clock, idle_s=idle, on_step=self._raise_if_stopping
        )
        if expired:
            _log.info("%d idle channels have expired after %g s", expired, idle)
        self._prune_history()

    def _delete_orphaned_row_files(self) -> None:
        """Delete row files without a request, and states for secondaries. Runs at most once an hour."""
        service = self._service
        if service.clock.monotonic() < self._next_row_file_cleanup_at:
            return
        self._next_row_file_cleanup_at = service.clock.monotonic() + _ROW_FILE_CLEANUP_INTERVAL_S
        before = service.clock.now() - _ROW_FILE_RETENTION
        old: list[str] = []
        for found in service.stage.list():
            self._raise_if_stopping()
            folder, _, name = found.path.partition("/")
            if found.modified_at <= before and (
                folder == STATES_FOLDER or is_uploaded_row_file_name(name)
            ):
                old.append(found.path)
        for path in old:
            self._raise_if_stopping()
            service.stage.delete(path)

    def _prune_history(self) -> None:
        """Delete old history and tombstones, in batches of `_DELETE_BATCH_ROWS` rows."""
        now = self._service.clock.now()
        kept = dt.timedelta(seconds=self._service.settings.history_retention_s)
        for forget, before in (
            (channels.prune_channel_history, now - kept),
            (row_request_state.delete_request_ids, now - _REQUEST_ID_RETENTION),
            (registration.delete_blob_tombstones, now - _TOMBSTONE_RETENTION),
        ):
            removed = _DELETE_BATCH_ROWS
            while removed == _DELETE_BATCH_ROWS:
                self._raise_if_stopping()
                with self._service.database.writing() as connection:
                    removed = forget(connection, before=before, limit=_DELETE_BATCH_ROWS)


def use_system_memory_pool() -> None:
    """Make Arrow allocate memory from the C library's heap in this process.

    Arrow's default pool, mimalloc, retains memory that another thread has freed. After a burst of
    requests it released 64 of 193 MB; the C library's heap released 112 of 137 MB.
    """
    pa.set_memory_pool(pa.system_memory_pool())


def release_memory() -> None:
    """Return unused pages of Arrow's pool and the C library's heap to the operating system.

    Both retain freed memory for later requests. With C libraries other than glibc, only Arrow's
    pool is released. Takes milliseconds and does not block other threads.
    """
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError) as error:
        _log.debug("this C library cannot release memory: %s", error)
