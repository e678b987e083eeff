"""Child processes of a service: start, graceful stop, and exit together with the service.

A child has the reading end of a pipe. When the service ends for any reason, the pipe closes and the
child exits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from snowmelt import config
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.jobs.leases import lease_owner_prefix
from snowmelt.clock import Clock
from snowmelt.config import Settings
from snowmelt.server.logs import configure_logging

_log = logging.getLogger("snowmelt.server")

_STOP_TIMEOUT_S = 10.0
# Shorter than `_STOP_TIMEOUT_S`, so that a child ends before the service sends a signal.
_LEASE_RELEASE_TIMEOUT_S = 5.0


def start_child(
    settings: Settings, module: str, *arguments: str, reads_output: bool = False
) -> subprocess.Popen[bytes]:
    """Start a Python module in a child process with these settings.

    With `reads_output`, the standard output of the child is a pipe.
    """
    environment = config.copy_environment() | settings.to_environment()
    return subprocess.Popen(  # noqa: S603 - modules of this package only
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if reads_output else None,
        env=environment | {config.PARENT_PIPE_VARIABLE: "1"},
    )


def run_child(run: Callable[[Settings], None]) -> None:
    """Configure the log of a child process from its settings, and run its main function."""
    settings = Settings.load()
    configure_logging(settings)
    run(settings)


def stop_child(child: subprocess.Popen[bytes]) -> None:
    """Close a child's pipe. Send SIGTERM after 10 s and SIGKILL after another 10 s."""
    if child.stdin is not None:
        # Ignore the error: a child that has exited does not need its input.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
    for signal_number in (None, signal.SIGTERM, signal.SIGKILL):
        if signal_number is not None:
            child.send_signal(signal_number)
        try:
            child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
        return


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """A program of this package that a service runs in a child process. `name` appears in the log.

    After an exit, the program is started again after `min_delay_s` seconds. The delay doubles with
    each exit, up to `max_delay_s`. After a run of `stable_s` seconds, the delay starts from the
    minimum again.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    min_delay_s: float = 0.5
    max_delay_s: float = 30.0
    stable_s: float = 60.0


class ChildSupervisor:
    """Supervisor that runs a program while it is needed, and restarts it after an exit.

    Thread-safe.

    The child has the reading end of a pipe, and exits when this process ends for any reason.
    """

    def __init__(
        self,
        program: ChildProgram,
        settings: Settings,
        clock: Clock,
        is_needed: Callable[[], bool],
        *,
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Create a supervisor. `child` is a running process that another one has released."""
        self._program = program
        self._settings = settings
        self._clock = clock
        self._is_needed = is_needed
        self._lock = threading.Lock()
        self._child = child
        self._started_at = clock.monotonic()
        self._delay_s = 0.0
        self._not_before = 0.0
        self._stopped = False

    def ensure_running(self) -> None:
        """Start the child if it is needed and not running."""
        with self._lock:
            if self._stopped or (self._child is not None and self._child.poll() is None):
                return
            now = self._clock.monotonic()
            if self._child is not None:
                self._note_death(self._child.returncode, now)
                # Close the pipe to the exited child.
                stop_child(self._child)
                self._child = None
            if now < self._not_before or not self._is_needed():
                return
            program = self._program
            self._child = start_child(self._settings, program.module, *program.arguments)
            self._started_at = now
            _log.info("%s runs as process %d", program.name, self._child.pid)

    def end_child(self) -> None:
        """End the child. `ensure_running` may start another one."""
        child = self._take_child()
        if child is not None:
            stop_child(child)

    def stop(self) -> None:
        """End the child. Later calls of `ensure_running` do nothing."""
        self._stopped = True
        self.end_child()

    def release(self) -> subprocess.Popen[bytes] | None:
        """Stop the supervision.

        Return the child, which continues to run, or None if there is none.
        """
        self._stopped = True
        return self._take_child()

    def _take_child(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            child, self._child = self._child, None
        return child

    def _note_death(self, code: int, now: float) -> None:
        program = self._program
        if now - self._started_at >= program.stable_s:
            self._delay_s = 0.0
        self._delay_s = min(max(self._delay_s * 2, program.min_delay_s), program.max_delay_s)
        self._not_before = now + self._delay_s
        _log.warning(
            "%s ended with status %d; starting it again in %g s", program.name, code, self._delay_s
        )


def install_lease_releasing_shutdown(database: Database) -> None:
    """Install a shutdown that releases the leases of a migrating process and exits.

    SIGTERM triggers it or, in a child of a service, the end of its standard input. Work in progress
    is abandoned: without the lease it cannot commit, and the next migrator repeats it.
    """

    def on_signal(number: int, frame: FrameType | None) -> None:
        del number, frame
        # Release the leases in another thread, because the main thread may be in a transaction.
        threading.Thread(
            target=_release_leases_and_exit, args=(database,), name="ending", daemon=True
        ).start()

    signal.signal(signal.SIGTERM, on_signal)
    if not config.has_parent_pipe():
        return

    def watch() -> None:
        while os.read(0, 4096):
            pass
        _log.info("The service has ended; exiting")
        _release_leases_and_exit(database)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _release_leases_and_exit(database: Database) -> None:
    timer = threading.Timer(_LEASE_RELEASE_TIMEOUT_S, os._exit, (0,))
    timer.daemon = True
    timer.start()
    try:
        with database.writing() as connection:
            leases.release_all_leases(connection, f"{lease_owner_prefix()}:")
    except Exception as error:  # noqa: BLE001 - they end by themselves, later
        _log.warning("Cannot release the leases: %s", error)
    os._exit(0)
