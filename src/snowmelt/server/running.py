"""Running a service: one per data folder, stopped in order."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn

from snowmelt.errors import ConfigurationError, DataFolderBusy
from snowmelt.server.app import build_service, create_app
from snowmelt.server.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from snowmelt.clock import Clock
    from snowmelt.config import Settings
    from snowmelt.server.app import Service

_LOCK = "serve.lock"
_BACKLOG = 2048
# Longer than the minute that the official client keeps an idle connection.
_KEEP_ALIVE_S = 75


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process before we tidy up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs this."""
        yield


class RunningService:
    """A service that answers on `url`; `run` blocks until `stop`."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        with contextlib.ExitStack() as undo:
            undo.enter_context(lock_folder(settings.data_dir))
            self.service: Service = build_service(settings, clock=clock)
            undo.callback(self.service.close)
            self._socket = undo.enter_context(_listening(settings))
            self.url = _url(settings.host, self._socket.getsockname()[1])
            workers = Workers(self.service)
            undo.callback(workers.stop)
            config = uvicorn.Config(
                create_app(self.service),
                loop="uvloop",
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(int(settings.drain_s), 1),
            )
            self._server = _Server(config)
            workers.start()
            self._undo = undo.pop_all()

    def run(self) -> None:
        """Answer requests until `stop`; then finish the open ones and close everything."""
        with self._undo:
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Ask `run` to end; from any thread or signal handler."""
        self._server.should_exit = True


def serve(settings: Settings, *, announce: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; must be called in the main thread.

    Args:
        settings: What to serve, and where.
        announce: Gets the lines that tell an operator what runs; standard output by default.

    Raises:
        DataFolderBusy: Another process serves this data folder.
        ConfigurationError: Settings that do not go together, or an address that is taken.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    running = RunningService(settings)
    _tune_garbage_collection()

    def on_signal(number: int, frame: FrameType | None) -> None:
        del number, frame
        running.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    say = announce or _print
    say(f"Snowmelt serves {settings.data_dir}")
    say(f"Streaming API on {running.url}")
    running.run()
    say("Snowmelt has stopped.")


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system lets go when the process dies.

    Raises:
        DataFolderBusy: Another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(
            setting="host", reason=f"{settings.host} is no address here: {error}"
        ) from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError as error:
            raise ConfigurationError(
                setting="port",
                reason=f"{settings.host}:{settings.port} cannot be listened on: {error.strerror}",
            ) from None
        yield listener


def _tune_garbage_collection() -> None:
    """Keep the collector from walking the whole heap again and again.

    Thousands of small messages a second trigger it constantly, and what was loaded at the start
    never dies: decoding a registration of 1 KB took 50 µs with the defaults, 4 µs so.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
