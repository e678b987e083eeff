"""Child processes of a service that handle one request after another.

Requests and responses are length-prefixed messages on standard input and output. An idle process
runs on for a while, five minutes by default, because a start takes more than a second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, cast

import msgspec

from snowmelt.config import Settings
from snowmelt.errors import InternalError, ServiceBusy, SnowmeltError
from snowmelt.server.child_process import run_child, start_child, stop_child

_log = logging.getLogger("snowmelt.server")

_START_TIMEOUT_S = 120.0
_IDLE_S = 300.0
_LENGTH_BYTES = 4
_READY = b"ready"


class _Failure(msgspec.Struct):
    code: str
    message: str
    fields: dict[str, str]


class ProcessEnded(Exception):
    """A process ended before its response. `timed_out` is True if the time limit ended it."""

    def __init__(self, *, timed_out: bool) -> None:
        super().__init__("the process has ended")
        self.timed_out = timed_out


class ProcessResponse(msgspec.Struct, omit_defaults=True):
    """Response of a process: a body or an error."""

    body: bytes = b""
    failure: _Failure | None = None

    def get_body(self) -> bytes:
        """Return the body, or raise the error of the process."""
        failure = self.failure
        if failure is None:
            return self.body
        kinds = [SnowmeltError]
        for kind in kinds:
            kinds.extend(kind.__subclasses__())
        found = next((kind for kind in kinds if kind.code == failure.code), InternalError)
        raise found(failure.message, **failure.fields)


_response_decoder = msgspec.msgpack.Decoder(ProcessResponse)


class RequestProcess:
    """Handle of a child process. Only `kill` is thread-safe."""

    def __init__(self, settings: Settings, module: str) -> None:
        """Start a module and wait until it is ready.

        Raises:
            InternalError: If the process does not start.
        """
        self.timed_out = False
        self._module = module
        self._process = start_child(settings, module, reads_output=True)
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._responses = cast("IO[bytes]", self._process.stdout)
        if self._receive(_START_TIMEOUT_S) != _READY:
            self.stop()
            raise InternalError(
                f"Starting process {module} failed: it ended or was not ready within"
                f" {_START_TIMEOUT_S:.0f} s. Read the log of the service."
            )

    def request(self, request: bytes, timeout_s: float) -> ProcessResponse | None:
        """Send a request and return the response, or None if the process has ended or timed out."""
        with contextlib.suppress(BrokenPipeError):
            write_message(self._requests, request)
        body = self._receive(timeout_s)
        if body is not None:
            return _response_decoder.decode(body)
        self.stop()
        if not self.timed_out:
            _log.warning("%s ended with status %d", self._module, self._process.returncode)
        return None

    def is_running(self) -> bool:
        """Return True if the process is running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def stop(self) -> None:
        """Kill the process, and release its pipes."""
        self._process.kill()
        stop_child(self._process)
        self._responses.close()

    def _receive(self, timeout_s: float) -> bytes | None:
        """Return the next message, or None if the process has ended. The timeout kills it."""
        self.timed_out = False
        timer = threading.Timer(timeout_s, self._kill_late)
        timer.daemon = True
        timer.start()
        try:
            return _read_message(self._responses)
        finally:
            timer.cancel()

    def _kill_late(self) -> None:
        self.timed_out = True
        self._process.kill()


class RequestProcessPool:
    """Processes of one module, one request at a time in each of them. Thread-safe.

    `threads` has as many threads as there are processes. Call `request` there, so that waiting
    requests do not occupy other threads.
    """

    def __init__(self, settings: Settings, module: str, size: int, thread_name: str) -> None:
        self.threads = ThreadPoolExecutor(size, thread_name_prefix=thread_name)
        self._settings = settings
        self._module = module
        self._lock = threading.Lock()
        self._idle: list[RequestProcess] = []
        self._busy: set[RequestProcess] = set()
        self._closed = False

    def request(self, request: bytes, timeout_s: float, *, start_allowance_s: float = 0.0) -> bytes:
        """Send a request to an idle or a new process, and return the body of its response.

        `start_allowance_s` is added to the time limit of the first request of a process.

        Raises:
            ServiceBusy: If the service is stopping.
            ProcessEnded: If the process ended, or exceeded the time limit.
            SnowmeltError: If the request failed in the process.
        """
        process, is_new = self._take()
        try:
            response = process.request(request, timeout_s + (start_allowance_s if is_new else 0.0))
        finally:
            self._release(process)
        if response is None:
            raise ProcessEnded(timed_out=process.timed_out)
        return response.get_body()

    @property
    def is_empty(self) -> bool:
        """True if there is no process, neither idle nor busy."""
        return not (self._idle or self._busy)

    def start_idle(self) -> None:
        """Start a process, unless there is one."""
        if self.is_empty:
            self._release(self._take()[0])

    def close(self) -> None:
        """End the processes. Running requests fail."""
        with self._lock:
            self._closed = True
            processes = [*self._idle, *self._busy]
            self._idle.clear()
        for process in processes:
            process.kill()
        self.threads.shutdown()
        for process in processes:
            process.stop()

    def _take(self) -> tuple[RequestProcess, bool]:
        """Return a process, and True if it is new. Prefers an idle one."""
        found: RequestProcess | None = None
        while found is None:
            with self._lock:
                if not self._idle:
                    break
                found = self._idle.pop()
            if not found.is_running():
                found.stop()
                found = None
        process = found or RequestProcess(self._settings, self._module)
        with self._lock:
            closed = self._closed
            self._busy.add(process)
        if closed:
            process.stop()
            raise ServiceBusy(reason="it is stopping")
        return process, found is None

    def _release(self, process: RequestProcess) -> None:
        with self._lock:
            self._busy.discard(process)
            if process.is_running() and not self._closed:
                self._idle.append(process)


def run_request_child(run: Callable[[Settings, IO[bytes], IO[bytes]], None]) -> None:
    """Run the main function of a child process. It gets standard input and output."""
    run_child(lambda settings: run(settings, sys.stdin.buffer, sys.stdout.buffer))


def serve_requests(
    requests: IO[bytes], responses: IO[bytes], *, idle_s: float = _IDLE_S
) -> Iterator[bytes]:
    """Yield the requests of a service until it ends or no request arrives for `idle_s` seconds."""
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def receive() -> None:
        while (message := _read_message(requests)) is not None:
            waiting.put(message)
        # The service has ended, or has closed the pipe because it does not need the result.
        os._exit(0)

    threading.Thread(target=receive, name="requests", daemon=True).start()
    write_message(responses, _READY)
    while True:
        try:
            yield waiting.get(timeout=idle_s)
        except queue.Empty:
            # Exit directly: a normal exit would abort, because the reading thread holds the
            # stream's lock.
            os._exit(0)


def make_failure(error: Exception, what: str) -> ProcessResponse:
    """Convert an error to a response. Log unexpected errors with their traceback."""
    if not isinstance(error, SnowmeltError):
        _log.error("%s failed", what, exc_info=error)
        error = InternalError("The service failed on this request. Its log has the reason.")
    fields = {name: str(value) for name, value in error.fields.items()}
    kind: type[SnowmeltError] = type(error)
    # The service creates the error from its message and fields. For a class with other arguments,
    # send the nearest base class.
    while kind.__init__ is not SnowmeltError.__init__:
        kind = cast("type[SnowmeltError]", kind.__base__)
    return ProcessResponse(failure=_Failure(kind.code, str(error), fields))


def write_response(stream: IO[bytes], response: ProcessResponse) -> None:
    """Write a response."""
    write_message(stream, msgspec.msgpack.encode(response))


def write_message(stream: IO[bytes], body: bytes) -> None:
    """Write a message with its length before it."""
    stream.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
    stream.flush()


def _read_message(stream: IO[bytes]) -> bytes | None:
    head = stream.read(_LENGTH_BYTES)
    length = int.from_bytes(head, "big")
    body = stream.read(length)
    return body if len(head) == _LENGTH_BYTES and len(body) == length else None
