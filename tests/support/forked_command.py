"""The command `snowmelt` in a shell, run as a child of the server of forked processes.

`install` writes an executable for the PATH. It sends its descriptors, arguments, environment and working
directory to the server, forwards signals to the child, and exits with the child's status. If it is
killed, the server kills the child.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

_STATUS = struct.Struct("!i")


def install(folder: Path, asking: socket.socket) -> None:
    """Write the executable `snowmelt`. Processes that run it must inherit the descriptor of `asking`."""
    program = folder / "snowmelt"
    here = str(Path(__file__).parent)
    program.write_text(
        f"#!{sys.executable} -SE\n"
        f"import sys\nsys.path.insert(0, {here!r})\n"
        f"from forked_command import run\nrun({asking.fileno()})\n"
    )
    program.chmod(0o700)


def run(descriptor: int) -> None:
    """Run the command with the arguments of this process, and exit as it does."""
    wanted: dict[str, Any] = {
        "command": ["-m", "snowmelt", *sys.argv[1:]],
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
        "session": True,
        "bound": True,
        "places": [0, 1, 2],
    }
    try:
        os.fstat(descriptor)
    except OSError:
        # A Python program closes the descriptor before it runs a command.
        os.execv(sys.executable, [sys.executable, *wanted["command"]])
    wire, theirs = socket.socketpair()
    with socket.socket(fileno=descriptor) as asking, theirs:
        socket.send_fds(asking, [json.dumps(wanted).encode()], [theirs.fileno(), 0, 1, 2])
    child = _receive(wire)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    status = _receive(wire)
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    os._exit(os.WEXITSTATUS(status))


def _receive(wire: socket.socket) -> int:
    told: int = _STATUS.unpack(wire.recv(_STATUS.size, socket.MSG_WAITALL))[0]
    return told
