"""Child processes that are forked with preloaded imports, for tests that do not measure start-up.

`Popen` and `run` have the interface of `subprocess`, but only for Python programs. A server process
with preloaded imports forks a child, which receives environment, working directory, arguments and
open files. After that, the child behaves as any other process: it can be killed, and exits as
Python does. A start takes a second of CPU less. Use `subprocess` to test the start itself.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

_PARENT = Path(__file__).parent / "fork_server.py"
_STATUS = struct.Struct("!i")


class Popen(subprocess.Popen[Any]):
    """Process that the server forked."""

    def _execute_child(self, *given: object) -> None:
        said = inspect.signature(cast("Any", super())._execute_child).bind(*given).arguments
        command = [os.fspath(word) for word in said["args"]]
        assert command[0] == sys.executable, command
        assert said["preexec_fn"] is None
        environment = os.environ if said["env"] is None else said["env"]
        wanted = {
            "command": command[1:],
            "folder": os.fspath(said["cwd"] or Path.cwd()),
            "environment": {name: os.fspath(value) for name, value in environment.items()},
            "session": said["start_new_session"],
            "places": [0, 1, 2, *said["pass_fds"]],
        }
        ends = (said["p2cread"], said["c2pwrite"], said["errwrite"])
        files = [end if end >= 0 else place for place, end in enumerate(ends)]
        self._wire = _parent().ask(wanted, [*files, *said["pass_fds"]])
        self.pid = _STATUS.unpack(self._wire.recv(_STATUS.size, socket.MSG_WAITALL))[0]
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        cast("Any", self)._close_pipe_fds(*(said[name] for name in names))

    def _internal_poll(self, _deadstate: Any = None, **_: Any) -> Any:
        return cast("Any", super())._internal_poll(_deadstate, _waitpid=self._ended)

    def _try_wait(self, wait_flags: Any) -> tuple[int, int]:
        return self._ended(self.pid, wait_flags)

    def _ended(self, pid: int, flags: int) -> tuple[int, int]:
        """Return the result of `os.waitpid`, which the server runs and sends."""
        self._wire.setblocking(not flags & os.WNOHANG)
        try:
            told = self._wire.recv(_STATUS.size)
        except BlockingIOError:
            return 0, 0
        self._wire.close()
        return pid, _STATUS.unpack(told)[0] if told else 9


def run(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a process as `subprocess.run` does, for the arguments supported here."""
    check, timeout = options.pop("check", False), options.pop("timeout", None)
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            said, complained = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, said, complained)
    if check:
        done.check_returncode()
    return done


def get_server_socket() -> socket.socket:
    """Return the socket on which the server receives requests. Starts the server if needed."""
    return _parent().socket


class _Parent:
    """Server process. It ends when its socket closes, or when this process exits."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_PARENT), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def ask(self, wanted: dict[str, object], files: list[int]) -> socket.socket:
        """Fork a child. Return the connection that sends its process ID and exit status."""
        wire, theirs = socket.socketpair()
        with theirs, self._lock:
            told = [json.dumps(wanted).encode()]
            socket.send_fds(self._socket, told, [theirs.fileno(), *files])
        return wire

    @property
    def socket(self) -> socket.socket:
        """Return the socket on which the server receives requests."""
        return self._socket

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_lock = threading.Lock()
_found: list[_Parent] = []


def _parent() -> _Parent:
    with _lock:
        if not _found:
            _found.append(_Parent())
            atexit.register(_found[0].close)
    return _found[0]
