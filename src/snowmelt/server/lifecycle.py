"""Start, run and gracefully shut down a service. A data folder has at most one service."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

from snowmelt import failpoints
from snowmelt.clock import Clock
from snowmelt.config import Settings, describe_unknown_variables
from snowmelt.errors import ConfigurationError, DataFolderBusy
from snowmelt.failpoints import Failpoint
from snowmelt.server.app import ServiceComponents, build_service, create_app
from snowmelt.server.background_work import BackgroundWorkers, use_system_memory_pool
from snowmelt.server.fast_path import FastPathProtocol
from snowmelt.server.listener import HttpListener, load_certificate, open_listening_socket
from snowmelt.server.logs import configure_logging
from snowmelt.server.replication.site_supervisor import fence_if_replaced
from snowmelt.server.s3.endpoint_server import S3Service

_log = logging.getLogger("snowmelt.server")

_LOCK_FILE_NAME = "serve.lock"


class RunningService:
    """A service that listens on `url`. `run` blocks until `stop` is called."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        site_process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        # True if the service stopped for a restart, because replication replaced its history.
        self.starts_again = False
        with contextlib.ExitStack() as undo:
            # Open the ports first, so that a service whose ports are in use creates no folder.
            listening = open_listening_socket(settings.host, settings.port, setting="port")
            undo.callback(listening.close)
            s3_listening = None
            if settings.s3_port:
                s3_listening = open_listening_socket(
                    settings.host, settings.s3_port, setting="s3_port"
                )
                undo.callback(s3_listening.close)
            undo.enter_context(lock_folder(settings.data_dir))
            self._certificate = load_certificate(settings)
            self.service: ServiceComponents = build_service(settings, clock=clock)
            undo.callback(self.service.close)
            fence_if_replaced(self.service.database)
            front = create_app(self.service)
            self._listener = HttpListener(
                front,
                listening,
                drain_s=settings.drain_s,
                protocol=partial(FastPathProtocol, front),
                certificate=self._certificate,
            )
            undo.callback(self._listener.close)
            self.s3: S3Service | None = None
            if s3_listening is not None:
                self.s3 = S3Service(
                    settings,
                    s3_listening,
                    self.service.database,
                    self.service.keyring,
                    self.service.clock,
                    stage=self.service.s3_stage,
                    certificate=self._certificate,
                )
                undo.callback(self.s3.close)
                self.s3.register_metrics(self.service.metric_sources)
            if self.service.console is not None:
                self.service.console.parts.workers.url = self.url
            workers = BackgroundWorkers(
                self.service,
                url=self.url,
                on_other_history=self._start_again,
                site_process=site_process,
            )
            undo.callback(workers.stop)
            self._workers = workers
            # The replication process, for the next service of this process.
            self.site_process: subprocess.Popen[bytes] | None = None
            workers.start()
            failpoints.hit_failpoint(Failpoint.SERVICE_STARTED)
            self._undo = undo.pop_all()

    @property
    def url(self) -> str:
        """URL of the streaming API."""
        return self._listener.url

    def run(self) -> None:
        """Handle requests until `stop` is called, then finish open requests and close everything."""
        with self._undo:
            if self.s3 is not None:
                self.s3.start()
            self._listener.run()

    def stop(self) -> None:
        """Make `run` return. May be called from any thread or signal handler."""
        if self.service.console is not None:
            self.service.console.end_streams()
        self._listener.stop()

    def _start_again(self) -> None:
        if not self.starts_again:
            _log.info("replication has replaced the history of this site; the service restarts")
            self.starts_again = True
            # Keep the replication process: it has written the new history, and takes seconds to
            # start.
            self.site_process = self._workers.release_site_process()
            self.stop()

    def reload_certificate(self) -> None:
        """Reload the certificate for new connections."""
        if self._certificate is None:
            return
        try:
            self._certificate.reload()
            _log.info("the certificate was reloaded")
        except ConfigurationError as error:
            _log.error("the old certificate stays: %s", error)


def serve(settings: Settings, *, announce: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Must be called in the main thread.

    SIGHUP reloads the certificate. `announce` receives lines about the running service; by default
    they are printed to standard output.

    Raises:
        DataFolderBusy: If another process serves this data folder.
        ConfigurationError: If the combination of settings is invalid, or an address is in use.
    """
    configure_logging(settings)
    use_system_memory_pool()
    for warning in describe_unknown_variables():
        _log.warning("%s", warning)
    running = RunningService(settings)
    _tune_garbage_collection()

    ending = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        del number, frame
        ending.set()
        running.stop()

    def on_hang_up(number: int, frame: FrameType | None) -> None:
        del number, frame
        running.reload_certificate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGHUP, on_hang_up)
    say = announce or _print_line
    say(f"Snowmelt serves {settings.data_dir}")
    say(f"Streaming API on {running.url}")
    if running.s3 is not None:
        say(f"S3 endpoint on {running.s3.url}")
    if not (settings.listens_on_loopback or settings.tls_cert):
        say("Without TLS: others on the network can read tokens and rows (tls_cert, tls_key)")
    running.run()
    while running.starts_again and not ending.is_set():
        running = RunningService(settings, site_process=running.site_process)
        if ending.is_set():
            # The signal has stopped the former service only.
            running.stop()
        _log.info("the service has restarted with the history of the primary")
        running.run()
    say("Snowmelt has stopped.")


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder during the block. The system releases it if the process ends.

    Raises:
        DataFolderBusy: If another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK_FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataFolderBusy(folder=folder) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def _tune_garbage_collection() -> None:
    """Run full passes of Python's garbage collector less often.

    With the defaults, small messages trigger full passes, which scan all objects loaded at startup.
    Decoding a registration of 1 KB takes 50 µs with the defaults, and 4 µs with these settings.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
