"""Translators in processes of their own, which can be stopped and whose end harms no query.

A regular expression or a deep document can hold up or crash a JavaScript engine where no limit of
its own reaches. Scripts of all functions share a few processes, because a script has a fresh context
for each object. A translator in Python has a process for each task: its module keeps globals.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import msgspec

from snowmelt.errors import MissingExtra
from snowmelt.functions.caller.translator_runtime import (
    Translated,
    TranslatorFailure,
    TranslatorRun,
    translator_run,
)
from snowmelt.functions.definition import Language, Translator

# Of processing time, for one object; the engine's own limit of 10 s comes first where it reaches.
_MAX_CPU_S = 11.0
# From the request to the answer: for a translator in Python that waits for something.
_MAX_WALL_S = 60.0
# Of address space, beside which a script has 256 MiB in its engine.
_MAX_PROCESS_BYTES = 2 * 1024 * 1024 * 1024
_MOST_IDLE = 4
_LENGTH_BYTES = 8
_END_S = 5.0
_START = """
import sys
descriptor, sys.path[:] = int(sys.argv[1]), sys.argv[2:]
from snowmelt.functions.caller.translator_process import serve
serve(descriptor)
"""


@dataclass(frozen=True, slots=True)
class _Job:
    translator: Translator
    body: bytes | None
    others: bytes
    max_cpu_s: float


class _Done(msgspec.Struct, tag=True):
    body: bytes | None
    url_suffix: str
    data: bytes | None


class _Failed(msgspec.Struct, tag=True):
    reason: str
    detail: str


_Result: TypeAlias = _Done | _Failed


class _Child:
    """One process; for one object at a time. One that failed is not used again."""

    def __init__(self) -> None:
        ours, its = socket.socketpair()
        with its:
            process = subprocess.Popen(  # noqa: S603 - this interpreter, and a program of ours
                [sys.executable, "-c", _START, str(its.fileno()), *sys.path],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._socket, self._process = ours, process
        self._end = weakref.finalize(self, _end, process, ours)

    def run(self, job: _Job, max_wall_s: float) -> _Result:
        """Return what a translator makes of an object.

        Raises:
            TranslatorFailure: The process had to be stopped, or ended.
        """
        self._socket.settimeout(max_wall_s)
        try:
            _send(self._socket, msgspec.msgpack.encode(job))
            answer = _receive(self._socket)
        except TimeoutError:
            raise TranslatorFailure(f"it took longer than {max_wall_s:g} s") from None
        except OSError:
            answer = None
        if answer is None:
            raise TranslatorFailure(self._how_it_ended(job))
        result: _Result = msgspec.msgpack.decode(answer, type=_Result)
        return result

    def _how_it_ended(self, job: _Job) -> str:
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "its process closed the connection"
        if code == -signal.SIGPROF:
            return f"it took longer than {job.max_cpu_s:g} s of processing time"
        if code >= 0:
            return f"its process ended with exit status {code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            return f"its process crashed ({name}), as values that nest too deeply can make it"
        return f"its process crashed (signal {-code})"

    def close(self) -> None:
        """Stop the process."""
        self._end()


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()


# By process: a fork shares no children with its parent.
_idle: dict[int, list[_Child]] = {}
_lock = threading.Lock()


def run_script(
    translator: Translator,
    body: bytes | None,
    others: bytes,
    *,
    max_cpu_s: float = _MAX_CPU_S,
    max_wall_s: float = _MAX_WALL_S,
) -> Translated:
    """Return what a translator in JavaScript makes of an object.

    Args:
        translator: In JavaScript.
        body: JSON, or a text that is none; None leaves it out.
        others: The object without it, as JSON.
        max_cpu_s: Of the processing time of its process.
        max_wall_s: From the request to the answer.

    Raises:
        TranslatorFailure: It failed, or took more than it may.
    """
    with _lock:
        idle = _idle.setdefault(os.getpid(), [])
        child = idle.pop() if idle else None
    child = child or _Child()
    try:
        result = child.run(_Job(translator, body, others, max_cpu_s), max_wall_s)
    except BaseException:
        child.close()
        raise
    with _lock:
        kept = isinstance(result, _Done) and len(idle) < _MOST_IDLE
        if kept:
            idle.append(child)
    if not kept:
        child.close()
    return _translated(result)


class TranslatorProcess:
    """A translator in Python in a process of its own, until it is closed; for any threads."""

    def __init__(
        self,
        translator: Translator,
        *,
        max_cpu_s: float = _MAX_CPU_S,
        max_wall_s: float = _MAX_WALL_S,
    ) -> None:
        self._translator = translator
        self._max_cpu_s, self._max_wall_s = max_cpu_s, max_wall_s
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def __call__(self, body: bytes | None, others: bytes) -> Translated:
        """Return what it makes of an object: `body`, and the others as JSON.

        Raises:
            TranslatorFailure: It failed, or took more than it may.
        """
        job = _Job(self._translator, body, others, self._max_cpu_s)
        with self._lock:
            child = self._child = self._child or _Child()
            try:
                result = child.run(job, self._max_wall_s)
            except BaseException:
                self._child = None
                child.close()
                raise
        return _translated(result)

    def close(self) -> None:
        """Stop the process."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()


def _translated(result: _Result) -> Translated:
    if isinstance(result, _Failed):
        raise TranslatorFailure(result.reason, result.detail)
    return Translated(result.body, result.url_suffix, result.data)


def check_engine(translator: Translator) -> None:
    """Check that what a translator needs is installed.

    Raises:
        MissingExtra: It is JavaScript, and the engine is not installed.
    """
    if translator.language is Language.JAVASCRIPT and importlib.util.find_spec("quickjs") is None:
        raise MissingExtra(what="A translator in JavaScript", package="quickjs", extra="functions")


# --- what runs in the other process


def serve(descriptor: int) -> None:
    """Run translators for the process at the other end of a socket, until it closes it.

    Args:
        descriptor: Of the socket.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_PROCESS_BYTES, _MAX_PROCESS_BYTES))
    # The parent's own log is where what a translator prints belongs.
    os.dup2(2, 1)
    jobs = msgspec.msgpack.Decoder(_Job)
    with socket.socket(fileno=descriptor) as connection:
        while (text := _receive(connection)) is not None:
            job = jobs.decode(text)
            # Its default action ends the process, whatever the engine is doing.
            signal.setitimer(signal.ITIMER_PROF, job.max_cpu_s)
            result = _result(job)
            signal.setitimer(signal.ITIMER_PROF, 0)
            _send(connection, msgspec.msgpack.encode(result))


def _result(job: _Job) -> _Result:
    try:
        found = _run_of(job.translator)(job.body, job.others)
    except TranslatorFailure as failure:
        return _Failed(str(failure), failure.detail)
    except MemoryError:
        return _Failed("it needed too much memory", "")
    return _Done(found.body, found.url_suffix, found.data)


@lru_cache(maxsize=64)
def _run_of(translator: Translator) -> TranslatorRun:
    return translator_run(translator)


def _send(connection: socket.socket, text: bytes) -> None:
    connection.sendall(len(text).to_bytes(_LENGTH_BYTES) + text)


def _receive(connection: socket.socket) -> bytes | None:
    """Return what the other end sent; None where it ended."""
    head = _exactly(connection, _LENGTH_BYTES)
    return None if head is None else _exactly(connection, int.from_bytes(head))


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    pieces = []
    while count:
        piece = connection.recv(min(count, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
