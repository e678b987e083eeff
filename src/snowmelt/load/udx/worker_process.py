"""Worker processes for user code: start, limits, supervision, cancellation and crash reports.

A call and its result cross the pipe as pickles. The process runs whole portions of a load, so no
row crosses the pipe. It is reused only after a call that succeeded.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from snowmelt.clock import SystemClock
from snowmelt.config import copy_environment
from snowmelt.errors import UserCodeFailed
from snowmelt.load.udx import shared_progress_page
from snowmelt.load.udx.shared_progress_page import ProgressPage, UserCodeLimits

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

_PAGE_BYTES = 4096
_POLL_INTERVAL_S = 0.25
# A call that returns late is told to stop by its own process first, which says more.
_TIMEOUT_GRACE_S = 2.0
_CANCEL_TIMEOUT_S = 3.0
# The interpreter with Arrow, and memory that an allocation which failed has left behind.
_MEMORY_OVERHEAD_BYTES = 256 * 1024 * 1024
_EXIT_TIMEOUT_S = 1.0
_ENTRY_CODE = "from snowmelt.load.udx.worker_main import main; main({control}, {page})"
_SYS_PATH_CODE = "import sys; sys.path[:] = {paths!r}; "

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
    """Call a function of a module in a process for user code, and return what it returns.

    Warnings and records of the log that it makes there are made here. What it prints goes to the
    error output.

    Args:
        function: The function; it, its arguments and its result are pickled.
        arguments: Its arguments.
        limits: What the process may use.
        on_begin: Is given what cancels the call, from any thread.
        cancellable: The function takes an `on_begin` of its own.

    Raises:
        UserCodeFailed: If the process ended, or exceeded a limit; names the step that ran.
        Exception: What the function raised.
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
        # It had ended in the meantime, as an idle one does.
        process.terminate()


def close_idle_process() -> None:
    """End the idle process, if there is one."""
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
    """One process for user code, in a session of its own; for one call at a time."""

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
                # What user code prints must not come between our own output.
                stdout=_find_error_output(),
                pass_fds=(theirs.fileno(), page.fileno()),
                # Ctrl-C goes to the parent alone, and all children of user code end with it.
                start_new_session=True,
            )
        self._control: Connection[Any, Any] = ours
        self._cancelled = False
        self._send_lock = threading.Lock()

    def send_request(self, request: bytes) -> bool:
        """Send a request; return False if the process ended before it took the request."""
        try:
            with self._send_lock:
                self._control.send_bytes(request)
            if not self._wait_for_begin():
                return False
        except (OSError, EOFError):
            return False
        if self._cancelled:
            self._send_cancel()
        return True

    def wait_for_result(self, limits: UserCodeLimits) -> Any:
        """Wait for the result.

        Raises:
            UserCodeFailed: If the process ended, or exceeded a limit.
            Exception: What the function raised.
        """
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
                    raise self._make_error("it did not stop when the load was cancelled")
            if now - checked_at >= _POLL_INTERVAL_S:
                checked_at = now
                self._check_limits(limits)

    def cancel(self) -> None:
        """Cancel the call that runs, or else the next one; from any thread."""
        self._cancelled = True
        self._send_cancel()

    def terminate(self, *, graceful: bool = False) -> None:
        """End the process and all that it started; `graceful` lets a call clean up first."""
        if graceful:
            self.cancel()
            with contextlib.suppress(OSError, EOFError):
                until = _clock.monotonic() + _CANCEL_TIMEOUT_S
                while _clock.monotonic() < until and self._control.poll(until - _clock.monotonic()):
                    if pickle.loads(self._control.recv_bytes())[0] in {"result", "error"}:  # noqa: S301
                        break
        self._kill()
        self._control.close()
        self._page.close()

    def _wait_for_begin(self) -> bool:
        while not self._control.poll(_POLL_INTERVAL_S):
            if self._process.poll() is not None:
                return False
        return bool(pickle.loads(self._control.recv_bytes())[0] == "begun")  # noqa: S301

    def _send_cancel(self) -> None:
        with self._send_lock, contextlib.suppress(OSError):
            self._control.send_bytes(b"")

    def _check_limits(self, limits: UserCodeLimits) -> None:
        running = self._page.read_step()
        if (
            running is not None
            and _clock.monotonic() - running.started_at_s > limits.call_s + _TIMEOUT_GRACE_S
        ):
            raise self._make_error(
                f"it has not returned for {limits.call_s:g} s, the limit `user_code_call_s`"
            )
        used = _measure_memory_bytes(self._process.pid)
        if used > limits.memory_bytes + limits.memory_bytes // 4 + _MEMORY_OVERHEAD_BYTES:
            raise self._make_error(
                f"its process uses {used:,} bytes, more than the limit `user_code_memory_bytes`, "
                f"{limits.memory_bytes:,}"
            )

    def _make_exit_error(self) -> UserCodeFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT_S)
        status = self._process.returncode
        if status is None:
            return self._make_error("its process closed its connection")
        if status < 0:
            return self._make_error(
                f"its process was killed by signal {-status} ({_get_signal_name(-status)})"
            )
        return self._make_error(f"its process ended with status {status} before it had returned")

    def _make_error(self, reason: str) -> UserCodeFailed:
        running = self._page.read_step()
        return UserCodeFailed(what="user code" if running is None else running.label, reason=reason)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


def _fingerprint_inherited_state() -> tuple[int, str, dict[str, str], list[str]]:
    """Return what a process inherits when it starts; one started with other things is of no use."""
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
    """Return the memory in use by a process, 0 where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _get_signal_name(signal_number: int) -> str:
    try:
        return signal.Signals(signal_number).name
    except ValueError:
        return "unknown"
