"""Worker processes for user code: limits, supervision, cancellation and crash reports.

Calls and results are pickled and sent through a pipe. A call runs whole portions of a load, so rows
are never sent. A process is reused only after a call that succeeded. `main` is its main program.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar

from snowmelt.clock import SystemClock
from snowmelt.config import copy_environment
from snowmelt.errors import InternalError, UserCodeFailed
from snowmelt.load.udx import shared_progress_page
from snowmelt.load.udx.shared_progress_page import ProgressPage, UserCodeLimits

Result = TypeVar("Result")

_PAGE_BYTES = 4096
_POLL_INTERVAL_S = 0.25
# Time after the timeout in which the worker itself may end the call. The worker's error has more
# detail than the error of the parent.
_TIMEOUT_GRACE_S = 2.0
_CANCEL_TIMEOUT_S = 3.0
# Allowance for the interpreter with Arrow, and for memory that failed allocations have not
# released.
_MEMORY_OVERHEAD_BYTES = 256 * 1024 * 1024
_EXIT_TIMEOUT_S = 1.0
_ENTRY_CODE = "from snowmelt.load.udx.worker_process import main; main({control}, {page})"
_SYS_PATH_CODE = "import sys; sys.path[:] = {paths!r}; "

# An idle worker exits after this time, to release memory beside a long-lived parent (a notebook).
_IDLE_TIMEOUT_S = 30.0
_STATUS_PATH = "/proc/self/status"
_MAX_LOG_CHARS = 10_000

_clock = SystemClock()
_idle_processes: list[_WorkerProcess] = []
_idle_lock = threading.Lock()


def run_isolated(
    function: Callable[..., Result],
    *arguments: object,
    limits: UserCodeLimits,
    on_begin: Callable[[Callable[[], None]], None] | None = None,
    cancellable: bool = False,
) -> Result:
    """Call a module-level function in a worker process for user code.

    Warnings and log records of the call are repeated in this process. Its standard output goes to
    the standard error of this process. In a worker process, the function is called directly.

    Args:
        function: The function. It, its arguments and its result must be picklable.
        arguments: Its arguments.
        limits: Limits of the process.
        on_begin: Called with a thread-safe callback that cancels the call.
        cancellable: True if the function itself also accepts an argument `on_begin`.

    Raises:
        UserCodeFailed: If the process ends early, or exceeds a limit. The message names the running
            step.
        Exception: If the function raises it.
    """
    if shared_progress_page.is_isolated():
        return function(*arguments)
    request = pickle.dumps((function, arguments, limits, cancellable))
    while True:
        process = _acquire_process()
        try:
            if on_begin is not None:
                on_begin(process.cancel)
            if process.send_request(request):
                result: Result = process.wait_for_result(limits)
                _release_process(process)
                return result
        except (KeyboardInterrupt, SystemExit):
            process.terminate(graceful=True)
            raise
        except BaseException:
            process.terminate()
            raise
        # The idle process had already exited. Try another one.
        process.terminate()


def close_idle_process() -> None:
    """Terminate the idle process, if there is one."""
    with _idle_lock:
        processes, _idle_processes[:] = list(_idle_processes), []
    for process in processes:
        process.terminate()


atexit.register(close_idle_process)


def _acquire_process() -> _WorkerProcess:
    with _idle_lock:
        idle = _idle_processes.pop() if _idle_processes else None
    if idle is not None and idle.environment == _fingerprint_inherited_state():
        return idle
    if idle is not None and idle.environment[0] == os.getpid():
        idle.terminate()
    return _WorkerProcess()


def _release_process(process: _WorkerProcess) -> None:
    with _idle_lock:
        if not _idle_processes:
            _idle_processes.append(process)
            return
    process.terminate()


class _WorkerProcess:
    """One process for user code, in its own session. It runs one call at a time."""

    def __init__(self) -> None:
        self.environment = _fingerprint_inherited_state()
        ours, theirs = Pipe(duplex=True)
        with tempfile.TemporaryFile() as page, theirs:
            page.truncate(_PAGE_BYTES)
            self._page = ProgressPage(page.fileno())
            code = _SYS_PATH_CODE.format(paths=sys.path) + _ENTRY_CODE.format(
                control=theirs.fileno(), page=page.fileno()
            )
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                # Keep what user code prints separate from the output of this process.
                stdout=_find_error_output(),
                pass_fds=(theirs.fileno(), page.fileno()),
                # In its own session, Ctrl-C does not reach it, and killing the session ends all
                # children.
                start_new_session=True,
            )
        self._control: Connection[Any, Any] = ours
        self._cancelled = False
        self._send_lock = threading.Lock()

    def send_request(self, request: bytes) -> bool:
        """Send a request. Return False if the process ended before it received the request."""
        try:
            with self._send_lock:
                self._control.send_bytes(request)
            while not self._control.poll(_POLL_INTERVAL_S):
                if self._process.poll() is not None:
                    return False
            if pickle.loads(self._control.recv_bytes())[0] != "begun":  # noqa: S301
                return False
        except (OSError, EOFError):
            return False
        if self._cancelled:
            self.cancel()
        return True

    def wait_for_result(self, limits: UserCodeLimits) -> Any:
        """Wait for the result. Raises the errors of `run_isolated`."""
        cancelled_at: float | None = None
        checked_at = _clock.monotonic()
        while True:
            try:
                there = self._control.poll(_POLL_INTERVAL_S)
                message = pickle.loads(self._control.recv_bytes()) if there else None  # noqa: S301
            except (EOFError, OSError, pickle.UnpicklingError):
                raise self._make_exit_error() from None
            if message is not None:
                kind, value = message
                if kind == "result":
                    return value
                if kind == "error":
                    raise value
                _replay_message(kind, value)
            now = _clock.monotonic()
            if self._cancelled:
                cancelled_at = cancelled_at or now
                if now - cancelled_at > _CANCEL_TIMEOUT_S:
                    raise self._make_error("it did not stop after the load was cancelled")
            if now - checked_at >= _POLL_INTERVAL_S:
                checked_at = now
                self._check_limits(limits)

    def cancel(self) -> None:
        """Cancel the running call, or else the next one. Thread-safe."""
        self._cancelled = True
        with self._send_lock, contextlib.suppress(OSError):
            self._control.send_bytes(b"")

    def terminate(self, *, graceful: bool = False) -> None:
        """Kill the process and its children.

        If `graceful`, first cancel the call, and wait up to 3 s for its end.
        """
        if graceful:
            self.cancel()
            with contextlib.suppress(OSError, EOFError):
                until = _clock.monotonic() + _CANCEL_TIMEOUT_S
                while _clock.monotonic() < until and self._control.poll(until - _clock.monotonic()):
                    if pickle.loads(self._control.recv_bytes())[0] in {"result", "error"}:  # noqa: S301
                        break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._control.close()
        self._page.close()

    def _check_limits(self, limits: UserCodeLimits) -> None:
        running = self._page.read_step()
        if (
            running is not None
            and _clock.monotonic() - running.started_at_s > limits.call_s + _TIMEOUT_GRACE_S
        ):
            raise self._make_error(
                f"it has not returned for {limits.call_s:g} s (`user_code_call_s`)"
            )
        used = _measure_memory_bytes(self._process.pid)
        if used > limits.memory_bytes + limits.memory_bytes // 4 + _MEMORY_OVERHEAD_BYTES:
            raise self._make_error(
                f"its process uses {used:,} bytes, more than the limit of "
                f"{limits.memory_bytes:,} (`user_code_memory_bytes`)"
            )

    def _make_exit_error(self) -> UserCodeFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT_S)
        status = self._process.returncode
        if status is None:
            return self._make_error("its process closed its connection")
        if status < 0:
            known = -status in set(signal.Signals)
            name = signal.Signals(-status).name if known else "unknown"
            return self._make_error(f"its process was killed by signal {-status} ({name})")
        return self._make_error(f"its process exited with status {status} before it returned")

    def _make_error(self, reason: str) -> UserCodeFailed:
        running = self._page.read_step()
        return UserCodeFailed(what="user code" if running is None else running.label, reason=reason)


def _fingerprint_inherited_state() -> tuple[int, str, dict[str, str], list[str]]:
    """Return the process state that workers inherit. A worker with another state is not reused."""
    try:
        folder = str(Path.cwd())
    except OSError:
        folder = ""
    return os.getpid(), folder, copy_environment(), list(sys.path)


def _find_error_output() -> int:
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL
    except (OSError, ValueError):
        return subprocess.DEVNULL


def _replay_message(kind: str, value: Any) -> None:
    if kind == "warning":
        warnings.warn(value, UserWarning, stacklevel=2)
    elif kind == "log":
        log = logging.getLogger(value.name)
        if log.isEnabledFor(value.levelno):
            log.handle(value)


def _measure_memory_bytes(pid: int) -> int:
    """Return the resident memory of a process, or 0 if the system does not report it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(control_fd: int, page_fd: int) -> None:
    """Serve the parent at descriptor `control_fd` until it exits, or for 30 s without a call."""
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
        """Run calls, one at a time."""
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
            self.send_message(
                "error", InternalError(f"Cannot send the result to the parent process: {error}.")
            )

    def _set_cancel_callback(self, cancel_callback: Callable[[], None]) -> None:
        self._cancel = cancel_callback
        if self._cancelled:
            cancel_callback()

    def _receive_messages(self) -> None:
        while True:
            try:
                data = self._connection.recv_bytes()
            except (EOFError, OSError):
                # The parent has exited. Kill the running call and its children.
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
    """Log handler that sends records to the parent."""

    def __init__(self, server: _WorkerServer) -> None:
        super().__init__()
        self._server = server

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record with its message and traceback as text."""
        record.msg, record.args = record.getMessage()[:_MAX_LOG_CHARS], None
        if record.exc_info:
            record.msg += "\n" + "".join(traceback.format_exception(*record.exc_info))
            record.exc_info = None
        with contextlib.suppress(Exception):
            self._server.send_message("log", record)


def _limit_memory(limits: UserCodeLimits) -> None:
    """Make allocations beyond the limit fail with MemoryError."""
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
    """Return the error, or an equivalent one that can be pickled."""
    if not isinstance(error, Exception):
        reason = f"it raised {type(error).__name__}: {error}".rstrip(": ")
        return UserCodeFailed(what=shared_progress_page.describe_running_step(), reason=reason)
    try:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:  # noqa: BLE001 - pickling foreign errors may raise anything
        again = None
    if type(again) is type(error):
        error.__traceback__ = None
        return error
    text = "".join(traceback.format_exception(error))
    return InternalError(f"Process for user code failed: {text}")
