"""Main program of a worker process that runs user code for its parent."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import resource
import signal
import sys
import threading
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from snowmelt.errors import InternalError, UserCodeFailed
from snowmelt.load.udx import shared_progress_page
from snowmelt.load.udx.shared_progress_page import ProgressPage, UserCodeLimits

if TYPE_CHECKING:
    from collections.abc import Callable

# A parent that lives on, such as a notebook, gets the memory back.
_IDLE_TIMEOUT_S = 30.0
_STATUS_PATH = "/proc/self/status"
_MAX_LOG_CHARS = 10_000


def main(control_fd: int, page_fd: int) -> None:
    """Serve the parent at descriptor `control_fd` until it is gone, or for 30 s without a call."""
    shared_progress_page.attach_page(ProgressPage(page_fd))
    os.close(page_fd)
    os.set_inheritable(control_fd, False)
    _WorkerServer(Connection(control_fd)).run()


class _WorkerServer:
    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._send_lock = threading.Lock()
        self._requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._cancel: Callable[[], None] | None = None
        self._cancelled = False

    def run(self) -> None:
        """Run one call after the other."""
        warnings.simplefilter("always")
        warnings.showwarning = self._send_warning
        logging.getLogger().addHandler(_LogForwarder(self))
        logging.getLogger().setLevel(logging.INFO)
        threading.Thread(
            target=self._receive_messages, name="snowmelt-control", daemon=True
        ).start()
        while True:
            try:
                request = self._requests.get(timeout=_IDLE_TIMEOUT_S)
            except queue.Empty:
                os._exit(0)
            self._handle_request(request)

    def send_message(self, kind: str, value: object) -> None:
        """Send a message to the parent."""
        data = pickle.dumps((kind, value))
        with self._send_lock:
            self._connection.send_bytes(data)

    def _handle_request(self, request: bytes) -> None:
        self.send_message("begun", None)
        try:
            function, arguments, limits, cancellable = pickle.loads(request)  # noqa: S301
            shared_progress_page.set_user_code_limits(limits)
            _limit_memory(limits)
            options = {"on_begin": self._set_cancel_callback} if cancellable else {}
            answer = ("result", function(*arguments, **options))
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            answer = ("error", _make_picklable(error))
        self._cancel, self._cancelled = None, False
        shared_progress_page.leave_all_steps()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        try:
            self.send_message(*answer)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            self.send_message("error", InternalError(f"The result cannot be sent: {error}."))

    def _set_cancel_callback(self, cancel_callback: Callable[[], None]) -> None:
        self._cancel = cancel_callback
        if self._cancelled:
            cancel_callback()

    def _receive_messages(self) -> None:
        while True:
            try:
                data = self._connection.recv_bytes()
            except (EOFError, OSError):
                # The parent is gone: nobody waits for what is under way.
                os.killpg(os.getpid(), signal.SIGKILL)
                os._exit(1)
            if data:
                self._requests.put(data)
                continue
            self._cancelled = True
            cancel = self._cancel
            if cancel is not None:
                cancel()

    def _send_warning(self, message: Warning | str, *_: object, **__: object) -> None:
        with contextlib.suppress(OSError):
            self.send_message("warning", str(message))


class _LogForwarder(logging.Handler):
    """Sends records of the log to the parent."""

    def __init__(self, server: _WorkerServer) -> None:
        super().__init__()
        self._server = server

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record, as text."""
        record.msg, record.args = record.getMessage()[:_MAX_LOG_CHARS], None
        if record.exc_info:
            record.msg += "\n" + "".join(traceback.format_exception(*record.exc_info))
            record.exc_info = None
        with contextlib.suppress(Exception):
            self._server.send_message("log", record)


def _limit_memory(limits: UserCodeLimits) -> None:
    """Let allocations beyond the limit fail, which Python reports as MemoryError."""
    try:
        with open(_STATUS_PATH) as lines:  # noqa: PTH123
            sizes = dict(line.split(":", 1) for line in lines if line.startswith("VmData"))
        used = int(sizes["VmData"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + limits.memory_bytes
    if hard == resource.RLIM_INFINITY or wanted <= hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _make_picklable(error: BaseException) -> BaseException:
    """Return an error that can be pickled, and that says the same."""
    if not isinstance(error, Exception):
        reason = f"it raised {type(error).__name__}: {error}".rstrip(": ")
        return UserCodeFailed(what=shared_progress_page.describe_running_step(), reason=reason)
    try:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:  # noqa: BLE001 - errors of other packages may fail in any way
        again = None
    if type(again) is type(error):
        error.__traceback__ = None
        return error
    text = "".join(traceback.format_exception(error))
    return InternalError(f"The process for user code failed: {text}")
