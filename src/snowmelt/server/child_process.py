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
from types import FrameType

from snowmelt import config
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.jobs.leases import lease_owner_prefix
from snowmelt.config import Settings

_log = logging.getLogger("snowmelt.server")

_STOP_TIMEOUT_S = 10.0
# Shorter than the time for which the service waits for a child that releases its leases.
_LEASE_RELEASE_TIMEOUT_S = 5.0


def start_child(
    settings: Settings, module: str, *arguments: str, reads_output: bool = False
) -> subprocess.Popen[bytes]:
    """Start a Python module in a child process with these settings.

    With `reads_output`, its standard output is also a pipe.
    """
    environment = config.copy_environment() | settings.to_environment()
    return subprocess.Popen(  # noqa: S603 - modules of this package only
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if reads_output else None,
        env=environment | {config.PARENT_PIPE_VARIABLE: "1"},
    )


def stop_child(child: subprocess.Popen[bytes]) -> None:
    """Close a child's pipe. Send SIGTERM after 10 s and SIGKILL after another 10 s."""
    if child.stdin is not None:
        # Input that the child has not read is lost.
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
