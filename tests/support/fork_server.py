"""Server process with preloaded imports, which forks children for `forked_processes.Popen`.

It has one thread and no open files. A child returns from `_serve` and runs the requested program.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import types
from pathlib import Path
from typing import Any, cast

# Slow imports. Excludes numba, which few commands need, and DuckDB, which prints its leaks when a
# process ends.
_IMPORTED = (
    "fixtures.copy",
    "httpx",
    "snowmelt.backup.verification",
    "snowmelt.client",
    "snowmelt.cli.main",
    "snowmelt.cli.commands.migrate",
    "snowmelt.cli.commands.replay",
    "snowmelt.cli.commands.serve",
    "snowmelt.server.lifecycle",
    "pyspark.sql",
    "sqlglot",
    "snowmelt.table.table_reader",
)
_STATUS = struct.Struct("!i")
_LONGEST, _MOST_FILES = 1 << 20, 16
# Lowest descriptor for received files: above all requested descriptors, to which they are then
# moved.
_ABOVE = 100


def _serve(asking: socket.socket) -> dict[str, Any]:
    """Fork for each request until the socket closes. In the child, return the request."""
    wires: dict[int, socket.socket] = {}
    ended, wake = socket.socketpair()
    for end in (ended, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        for source in (asking, ended):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if ended in ready:
                _tell(wires, ended, selector)
            # A requester that must be outlived by no child was killed.
            for killed in [wire for wire in wires.values() if wire in ready]:
                selector.unregister(killed)
                os.killpg(
                    next(pid for pid, wire in wires.items() if wire is killed), signal.SIGKILL
                )
            if asking not in ready:
                continue
            text, given, _, _ = socket.recv_fds(asking, _LONGEST, _MOST_FILES)
            if not text:
                os._exit(0)
            wire_file, *files = given
            wire = socket.socket(fileno=wire_file)
            child = os.fork()
            if not child:
                break
            for file in files:
                os.close(file)
            wires[child] = wire
            if json.loads(text).get("bound"):
                selector.register(wire, selectors.EVENT_READ)
            # The requester may have exited.
            with contextlib.suppress(OSError):
                wire.sendall(_STATUS.pack(child))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in (asking, ended, wake, wire, *wires.values()):
        each.close()
    return cast("dict[str, Any]", json.loads(text)) | {"files": files}


def _tell(
    wires: dict[int, socket.socket], ended: socket.socket, selector: selectors.BaseSelector
) -> None:
    with contextlib.suppress(BlockingIOError):
        while ended.recv(4096):
            continue
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            with wires.pop(found[0]) as wire, contextlib.suppress(OSError):
                if wire.fileno() in selector.get_map():
                    selector.unregister(wire)
                wire.sendall(_STATUS.pack(found[1]))


def _settle(wanted: dict[str, Any]) -> None:
    """Set working directory, environment and open files."""
    if wanted["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    raised = [fcntl.fcntl(file, fcntl.F_DUPFD, _ABOVE) for file in wanted["files"]]
    for file in wanted["files"]:
        os.close(file)
    for file, place in zip(raised, wanted["places"], strict=True):
        os.dup2(file, place)
        os.close(file)
    if os.environ.get("PYTHONUNBUFFERED"):
        cast("Any", sys.stdout).reconfigure(line_buffering=True)


def _become(command: list[str]) -> None:
    """Run Python's main program with these arguments."""
    kind, what, *arguments = [*command, ""] if len(command) == 1 else command
    # Reload modules that read the environment at import.
    faults = sys.modules["snowmelt.failpoints"]
    faults.disarm()
    faults.arm_from_environment()
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if kind == "-m":
        sys.path[:1] = [str(Path.cwd()), *given]
        sys.argv[:] = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path[:1] = ["", *given]
        sys.argv[:] = [kind, *arguments]
        program = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), program.__dict__)
    else:
        sys.path[:1] = [str(Path(kind).parent), *given]
        sys.argv[:] = command
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    for name in _IMPORTED:
        importlib.import_module(name)
    # Exclude existing objects from garbage collection, so that children share their pages.
    gc.collect()
    gc.freeze()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    _settle(asked)
    # A test that waits in vain shows where the process is.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    gc.unfreeze()
    _become(asked["command"])
