"""The process that loads the files of pipes.

Each pipe has a thread, so that a slow store delays only its pipe. A process that loads a pipe holds
a lease. The lease only avoids duplicate work; the commit of a load guarantees that no file is
loaded twice.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from snowmelt.catalog.db.database import Database, DatabaseServerClock
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.jobs.leases import Lease, new_lease_owner, renewing_lease
from snowmelt.catalog.objects import file_pipes
from snowmelt.catalog.objects.file_pipes import FileNotice, FilePipeRecord, PipeFileRecord
from snowmelt.clock import Clock, SystemClock
from snowmelt.config import Settings
from snowmelt.errors import SnowmeltError
from snowmelt.server.child_process import (
    ChildProgram,
    install_lease_releasing_shutdown,
    run_child,
)

if TYPE_CHECKING:
    from snowmelt.catalog.objects.tables import PipeRecord
    from snowmelt.loaders.copy_job import CopyContext
    from snowmelt.loaders.file_watch import BatchLimits, FileWatch

_log = logging.getLogger("snowmelt.server")

_LEASE_TTL_S = 15.0
_ROUND_INTERVAL_S = 0.5
_CATALOG_INTERVAL_S = 1.0
_CLOCK_INTERVAL_S = 10.0
_STATUS_INTERVAL_S = 10.0
_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0

# Child process of a service that loads the files of pipes.
FILE_PIPES = ChildProgram("the loader of pipes", "snowmelt.server.file_pipe_process")


class CatalogJournal:
    """Journal of a pipe, stored in the catalog."""

    def __init__(self, database: Database, pipe: PipeRecord, clock: Clock) -> None:
        self.load_name: str | None = str(pipe)
        self.created_at: dt.datetime | None = pipe.created_at
        self._database = database
        self._pipe_id = pipe.pipe_id
        self._clock = clock

    def read_attempts(self) -> tuple[int, str | None]:
        """Return the number of loads without an end, and the file of the last one.

        The file is None if the last load has several files.
        """
        with self._database.reading() as connection:
            state = file_pipes.find_file_pipe(connection, self._pipe_id)
        return (0, None) if state is None else (state.attempts or 0, state.attempted_file)

    def list_failed_files(self) -> Iterable[PipeFileRecord]:
        """Return the files that could not be loaded."""
        with self._database.reading() as connection:
            return file_pipes.list_pipe_files(connection, self._pipe_id)

    def begin_attempt(self, attempts: int, file: str | None) -> None:
        """Record that a load begins. `file` is its file if it has only one."""
        with self._database.writing() as connection:
            file_pipes.update_file_pipe(
                connection, self._pipe_id, attempts=attempts, attempted_file=file
            )

    def end_attempt(
        self, attempts: int, failed: Sequence[PipeFileRecord], loaded: Sequence[str]
    ) -> None:
        """Record the end of a load with its failed and its loaded files."""
        values: dict[str, object] = {"attempts": attempts, "attempted_file": None}
        if loaded:
            values |= {"last_file": loaded[-1], "last_load_at": self._clock.now()}
        with self._database.writing() as connection:
            file_pipes.update_file_pipe(connection, self._pipe_id, **values)
            if loaded:
                file_pipes.delete_pipe_files(connection, self._pipe_id, loaded)
            file_pipes.save_pipe_files(connection, self._pipe_id, failed)

    def list_notices(self) -> Sequence[FileNotice]:
        """Return the waiting files that are named in requests."""
        with self._database.reading() as connection:
            return file_pipes.list_waiting_notices(connection, self._pipe_id)

    def end_notices(self, paths: Sequence[str]) -> None:
        """Record that named files are loaded or abandoned."""
        with self._database.writing() as connection:
            file_pipes.end_notices(connection, self._pipe_id, paths, self._clock.now())


class PipeThread(threading.Thread):
    """Thread that loads the files of one pipe. Each round reads the pipe's state."""

    def __init__(
        self, database: Database, pipe: PipeRecord, context: CopyContext, limits: BatchLimits
    ) -> None:
        super().__init__(name=f"pipe {pipe}", daemon=True)
        self._database = database
        self.pipe = pipe
        self._context = context
        self._limits = limits
        self._clock = context.clock
        self._owner = new_lease_owner()
        self._lease: Lease | None = None
        self._renewed_at = 0.0
        self._watch: FileWatch | None = None
        self._ended = threading.Event()
        self._pause_s = 0.0
        self._shown: object = None
        self._show_at = 0.0

    def stop(self) -> None:
        """Make the thread end after its current round."""
        self._ended.set()

    def run(self) -> None:
        """Run rounds until the thread is stopped."""
        while not self._ended.wait(self._wait_for_files()):
            try:
                self._run_round()
            except Exception as error:  # noqa: BLE001 - the pipe shows it, and the next round may work
                self._pause_s = min(max(self._pause_s * 2, _MIN_RETRY_S), _MAX_RETRY_S)
                if isinstance(error, SnowmeltError):
                    _log.warning("%s, retrying in %g s: %s", self.name, self._pause_s, error)
                else:
                    _log.exception("%s failed, retrying in %g s", self.name, self._pause_s)
                self._record_error(str(error) or type(error).__name__)
            else:
                self._pause_s = 0.0
        if self._lease is not None:
            with self._database.writing() as connection:
                leases.release_lease(connection, self._lease)

    def _wait_for_files(self) -> float:
        """Wait for events of folders. Return the remaining time to wait, in seconds."""
        if self._pause_s:
            return self._pause_s
        waited = self._watch is not None and self._watch.wait_for_files(_ROUND_INTERVAL_S)
        return 0.0 if waited else _ROUND_INTERVAL_S

    def _run_round(self) -> None:
        with self._database.reading() as connection:
            state = file_pipes.find_file_pipe(connection, self.pipe.pipe_id)
        if state is None or state.paused or not self._hold_lease():
            # Another process may have loaded files meanwhile, so discard the cached state.
            self._watch = None
            return
        lease = self._lease
        assert lease is not None  # noqa: S101 - it is held
        with renewing_lease(self._database, lease, ttl_s=_LEASE_TTL_S, clock=self._clock):
            if self._watch is None:
                self._watch = self._make_watch(named_only=state.named_only)
            if state.wants_refresh:
                self._watch.refresh()
            self._watch.run_round()
        # The error may be one of an earlier process.
        if state.last_error is not None:
            self._record_error(None)
        self._show_status(state)

    def _make_watch(self, *, named_only: bool) -> FileWatch:
        from snowmelt.loaders.file_watch import FileWatch
        from snowmelt.loaders.load_task_execution import LocalTaskRunner

        return FileWatch(
            self._context,
            self.pipe.definition,
            LocalTaskRunner(),
            limits=self._limits,
            journal=CatalogJournal(self._database, self.pipe, self._clock),
            named_only=named_only,
        )

    def _hold_lease(self) -> bool:
        """Acquire or renew the lease of the pipe. Return False if another process holds it."""
        began = self._clock.monotonic()
        if self._lease is not None and began - self._renewed_at < _LEASE_TTL_S / 3:
            return True
        self._renewed_at = began
        with self._database.writing() as connection:
            now = self._clock.now()
            if self._lease is not None and leases.renew_lease(
                connection, self._lease, ttl_s=_LEASE_TTL_S, now=now
            ):
                return True
            name = f"pipe:{self.pipe.pipe_id}"
            self._lease = leases.acquire_lease(
                connection, name, self._owner, ttl_s=_LEASE_TTL_S, now=now
            )
        return self._lease is not None

    def _show_status(self, state: FilePipeRecord) -> None:
        """Save the status of waiting files if it has changed, at a refresh, or after 10 s."""
        assert self._watch is not None  # noqa: S101 - made above
        status, now = self._watch.status, self._clock.monotonic()
        if status == self._shown and now < self._show_at and not state.wants_refresh:
            return
        self._shown, self._show_at = status, now + _STATUS_INTERVAL_S
        with self._database.writing() as connection:
            file_pipes.update_file_pipe(
                connection,
                self.pipe.pipe_id,
                waiting_files=status.waiting_files,
                oldest_waiting_at=status.oldest_waiting_at,
                listed_at=self._clock.now(),
                refreshed_at=state.refresh_at,
            )

    def _record_error(self, error: str | None) -> None:
        values: dict[str, object] = {"last_error": error}
        if error is not None:
            values["last_error_at"] = self._clock.now()
        try:
            with self._database.writing() as connection:
                file_pipes.update_file_pipe(connection, self.pipe.pipe_id, **values)
        except SnowmeltError as failure:
            _log.warning("Cannot record the error of %s: %s", self.name, failure)


class FilePipeLoop:
    """Runs a thread for each live pipe that loads files."""

    def __init__(self, database: Database, settings: Settings, clock: Clock) -> None:
        from snowmelt.loaders.file_watch import BatchLimits

        self._database = database
        self._settings = settings
        self._clock = clock
        self._limits = BatchLimits.from_settings(settings)
        self._threads: dict[int, PipeThread] = {}

    def run_round(self) -> None:
        """Start threads of new pipes, stop those of dropped pipes, and replace those of renamed pipes."""
        with self._database.reading() as connection:
            pipes = {pipe.pipe_id: pipe for pipe, _ in file_pipes.list_file_pipes(connection)}
        for pipe_id, thread in list(self._threads.items()):
            # A pipe has another name after its schema or database was renamed.
            if pipe_id not in pipes or str(pipes[pipe_id]) != str(thread.pipe):
                self._threads.pop(pipe_id).stop()
        for pipe_id, pipe in pipes.items():
            running = self._threads.get(pipe_id)
            if running is None or not running.is_alive():
                self._threads[pipe_id] = started = self._make_thread(pipe)
                started.start()

    def _make_thread(self, pipe: PipeRecord) -> PipeThread:
        from snowmelt.load.udx.shared_progress_page import UserCodeLimits
        from snowmelt.loaders.copy_job import CopyContext

        settings = self._settings
        context = CopyContext(
            self._database,
            settings.warehouse_url,
            pipe.owner,
            self._clock,
            pipe.database,
            pipe.schema,
            settings.lease_s,
            user_code_limits=UserCodeLimits.from_settings(settings),
            reserved_paths=tuple(settings.list_reserved_paths()),
        )
        return PipeThread(self._database, pipe, context, self._limits)


def run_file_pipes(settings: Settings) -> None:
    """Load the files of all pipes until the service ends.

    Raises:
        ConfigurationError: If a setting is invalid.
        CatalogUnavailable: If the catalog cannot be reached at the start.
    """
    from snowmelt.catalog.db.database import open_and_upgrade_database

    database = open_and_upgrade_database(settings.catalog_url)
    database.bind_to_history()
    install_lease_releasing_shutdown(database)
    clock = DatabaseServerClock(SystemClock())
    loop = FilePipeLoop(database, settings, clock)
    synchronized_at = 0.0
    while True:
        try:
            now = clock.monotonic()
            if not synchronized_at or now - synchronized_at >= _CLOCK_INTERVAL_S:
                with database.reading() as connection:
                    clock.synchronize(connection)
                synchronized_at = now
            loop.run_round()
        except SnowmeltError as error:
            if not error.retryable:
                raise
            _log.warning("Cannot read the pipes, retrying: %s", error)
        clock.sleep(_CATALOG_INTERVAL_S)


def has_file_pipes(database: Database) -> bool:
    """Return True if there is a pipe that loads files."""
    with database.reading() as connection:
        return bool(file_pipes.list_file_pipes(connection))


if __name__ == "__main__":
    run_child(run_file_pipes)
