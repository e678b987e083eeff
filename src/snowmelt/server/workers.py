"""What goes on behind the requests: the migrator, a process of its own, and housekeeping."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from snowmelt import config
from snowmelt.catalog import leases, tables
from snowmelt.catalog.services import BEAT_S
from snowmelt.errors import SnowmeltError
from snowmelt.server.housekeeping import Housekeeping
from snowmelt.server.membership import Membership
from snowmelt.server.memory import release_memory
from snowmelt.table.leasing import this_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from snowmelt.catalog.database import Database
    from snowmelt.server.app import Service

_log = logging.getLogger("snowmelt.server")

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
# A child that has run this long did its work; the next failure begins a new series.
_SETTLED_S = 120.0
_STOP_S = 10.0
_PRESSURE_S = 1.0
# Shorter than the service waits for the process that gives its leases back.
_RELEASE_S = 5.0


class Workers:
    """Background threads of a service."""

    def __init__(self, service: Service, *, url: str) -> None:
        self._stopping = threading.Event()
        self._membership = Membership(service.database, service.clock, url=url)
        self._membership.beat()
        self._threads = [
            threading.Thread(
                target=self._every,
                args=(service.settings.cleanup_interval_s, Housekeeping(service, self._stopping)),
                name="housekeeping",
                daemon=True,
            ),
            threading.Thread(
                target=self._every,
                args=(service.settings.cleanup_interval_s, release_memory),
                name="memory",
                daemon=True,
            ),
            threading.Thread(
                target=self._every,
                args=(BEAT_S, self._membership.beat),
                name="membership",
                daemon=True,
            ),
        ]
        self._migrator = Migrator(service) if service.settings.migrate else None
        if self._migrator is not None:
            self._threads.append(
                threading.Thread(
                    target=self._every,
                    args=(min(service.settings.migrate_interval_s, 1.0), self._migrator.look),
                    name="migrator",
                    daemon=True,
                )
            )

        if service.pressure.is_on:
            service.pressure.look()
            self._threads.append(
                threading.Thread(
                    target=self._every,
                    args=(_PRESSURE_S, service.pressure.look),
                    name="pressure",
                    daemon=True,
                )
            )

    def start(self) -> None:
        """Start the threads; each begins with a pause."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop threads and the migrator, waiting a while for rounds that are under way."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                # The next service makes up for a round that ends with the process.
                thread.join(_STOP_S)
        if self._migrator is not None:
            self._migrator.stop()
        self._membership.leave()

    def _every(self, seconds: float, work: Callable[[], object]) -> None:
        while not self._stopping.wait(seconds):
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the next round may work
                name = threading.current_thread().name
                if isinstance(error, SnowmeltError) and error.retryable:
                    _log.warning("%s failed, trying again: %s", name, error)
                else:
                    _log.exception("%s failed; trying again", name)


class Migrator:
    """Keeps one migrating child process alive from the first chunk on.

    It also maintains native files; where only loads make them, it starts after a while.

    The child holds the reading end of a pipe; when this process ends, however it ends, the pipe
    closes and the child ends itself (`end_in_order`).
    """

    def __init__(self, service: Service) -> None:
        self._database = service.database
        self._settings = service.settings
        self._clock = service.clock
        self._child: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._maintained_from = self._clock.monotonic() + self._settings.compact_interval_s
        self._pause_s = 0.0
        self._not_before = 0.0

    def look(self) -> None:
        """Start the child when there is something for it to do, again when it has died."""
        now = self._clock.monotonic()
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return
            self._child = None
            if now - self._started_at >= _SETTLED_S:
                self._pause_s = 0.0
            self._pause_s = min(max(self._pause_s * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self._not_before = now + self._pause_s
            _log.warning("the migrator ended with %d; again in %.0f s", code, self._pause_s)
        if now >= self._not_before and (self._has_backlog() or self._has_files(now)):
            self._start(now)

    def stop(self) -> None:
        """Tell the child to end by closing its pipe; insist after ten seconds, and after ten more."""
        child, self._child = self._child, None
        if child is None:
            return
        if child.stdin is not None:
            child.stdin.close()
        for signal_number in (None, signal.SIGTERM, signal.SIGKILL):
            if signal_number is not None:
                child.send_signal(signal_number)
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                continue
            return

    def _has_backlog(self) -> bool:
        with self._database.reading() as connection:
            return any(
                table.last_seq > table.migrated_seq for table in tables.tables_of(connection)
            )

    def _has_files(self, now: float) -> bool:
        if not self._settings.compact or now < self._maintained_from:
            return False
        self._maintained_from = now + self._settings.compact_interval_s
        with self._database.reading() as connection:
            return any(table.pointer is not None for table in tables.tables_of(connection))

    def _start(self, now: float) -> None:
        environment = config.inherited_environment() | self._settings.environment()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "snowmelt", "migrate", "--loop"],
            stdin=subprocess.PIPE,
            env=environment | {config.PARENT_PIPE: "1"},
        )
        self._started_at = now
        _log.info("the migrator runs as process %d", self._child.pid)


def end_in_order(database: Database) -> None:
    """In a process that migrates: give its leases back when it is told to end, and end.

    It is told by SIGTERM; a child that a service started also by the end of its standard input,
    which comes with the service's own, however that ends. What was under way is undone by nobody:
    without its lease it can never be committed, and the next migrator begins anew.
    """

    def on_signal(number: int, frame: FrameType | None) -> None:
        del number, frame
        # Not here: the main thread may be in the middle of a transaction.
        threading.Thread(target=_end, args=(database,), name="ending", daemon=True).start()

    signal.signal(signal.SIGTERM, on_signal)
    if not config.has_parent_pipe():
        return

    def watch() -> None:
        while os.read(0, 4096):
            pass
        _log.info("the service has gone; ending")
        _end(database)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _end(database: Database) -> None:
    timer = threading.Timer(_RELEASE_S, os._exit, (0,))
    timer.daemon = True
    timer.start()
    try:
        with database.writing() as connection:
            leases.release_all(connection, f"{this_process()}:")
    except Exception as error:  # noqa: BLE001 - they end by themselves, later
        _log.warning("leases were not given back: %s", error)
    os._exit(0)
