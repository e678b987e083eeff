"""HTTP/1.1 client with a pool of keep-alive connections, and its event loop thread.

Each connection has one request at a time. httptools (Node's llhttp) parses responses:
general-purpose clients need several times the CPU per request. The client does not follow redirects
or decompress bodies. It retries a request only if a reused connection closed before any byte of a
response.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import re
import select
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias, cast

import httptools

from snowmelt.functions.caller.plan import CallRecord
from snowmelt.functions.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    DeclarationInvalid,
    PayloadTooLarge,
    TlsUntrusted,
    TransportFailed,
)
from snowmelt.functions.urls import ServiceUrl
from snowmelt.http_heads import MAX_HEAD_BYTES, add_header, encode_head, encode_header_lines

_HTTP_OK = 200
_HTTP_SWITCHING_PROTOCOLS = 101
_PROCESSED_STATUSES = frozenset({200, 202})
# Maximum bytes to read of an error body. Messages show only its beginning.
_MAX_ERROR_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response as received. Header names are in lower case, and the body may be compressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Timeouts in seconds and sizes in bytes.

    `idle_timeout_s` limits the pause between two bytes of a response. `response_timeout_s` limits the
    time from the start of the request to the end of the response.
    """

    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0
    response_timeout_s: float = 300.0
    max_response_bytes: int = 10_000_000


class HttpConnection(asyncio.Protocol):
    """Connection for one request at a time, created by an event loop's `create_connection`.

    The parser calls the `on_…` methods in the order of a response.
    """

    def __init__(self, host: str, loop: asyncio.AbstractEventLoop) -> None:
        self.idle_since = 0.0
        # True if any byte was received after the last request was sent.
        self.has_received_bytes = False
        self._host = host
        self._limits = HttpLimits()
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        # Accept lines that end with only a line feed, as handwritten services send.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)
        self._response_future: asyncio.Future[HttpResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reusable = True
        self._reset_response()

    def _reset_response(self) -> None:
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body_segments: list[bytes] = []
        self._body_bytes = 0
        self._in_body = False
        self._body_ends_at_eof = False

    @property
    def is_free(self) -> bool:
        """True if another request can be sent."""
        transport = self._transport
        return (
            self._reusable
            and self._response_future is None
            and transport is not None
            and not transport.is_closing()
            # Not reusable: a service that responds before it has the whole request does not read
            # the rest.
            and transport.get_write_buffer_size() == 0
        )

    def has_unexpected_bytes(self) -> bool:
        """Return True if the socket has unexpected data, or the peer closed the connection.

        The event loop may not have read such data yet, and would parse it as the next response.
        """
        socket = None if self._transport is None else self._transport.get_extra_info("socket")
        if socket is None or socket.fileno() < 0:
            return True
        readable = select.poll()
        readable.register(socket.fileno(), select.POLLIN)
        return bool(readable.poll(0))

    def send_request(
        self, head: bytes, body: bytes, limits: HttpLimits, traffic: CallRecord
    ) -> asyncio.Future[HttpResponse]:
        """Send a request. The returned future fails with TransportFailed or PayloadTooLarge.

        A caller that stops waiting for the future must call `abort`.
        """
        if self._transport is None:
            raise RuntimeError("the connection is not open")
        self._limits = limits
        self._traffic = traffic
        self._head_bytes = 0
        self.has_received_bytes = False
        self._response_future = self._loop.create_future()
        self._deadline = self._loop.time() + limits.response_timeout_s
        self._timer = self._loop.call_at(self._deadline, self._on_timeout)
        traffic.bytes_out += len(head) + len(body)
        if body:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)
        return self._response_future

    def abort(self) -> None:
        """Close the connection immediately, drop unsent data and fail the waiting request."""
        self._reusable = False
        waiting = self._take_response_future()
        if waiting is not None and not waiting.done():
            waiting.set_exception(
                ConnectionLost(host=self._host, reason="the connection was aborted")
            )
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes of the response."""
        if self._response_future is None:
            self.abort()  # No request is waiting.
            return
        self._traffic.bytes_in += len(data)
        self.has_received_bytes = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._reusable = False
            self._fail_request(
                TransportFailed(host=self._host, reason="the response is not HTTP/1.1")
            )
        if self._response_future is not None:
            self._restart_idle_timer(len(data))

    def _restart_idle_timer(self, received_bytes: int) -> None:
        if not self._in_body:
            self._head_bytes += received_bytes
            if self._head_bytes > MAX_HEAD_BYTES:
                self._fail_request(
                    TransportFailed(
                        host=self._host,
                        reason=f"the response head exceeds {MAX_HEAD_BYTES:,} bytes",
                    )
                )
                return
        if self._timer is not None:
            self._timer.cancel()
        due = min(self._deadline, self._loop.time() + self._limits.idle_timeout_s)
        self._timer = self._loop.call_at(due, self._on_timeout)

    def eof_received(self) -> None:
        """Complete a response that ends with the connection."""
        if self._response_future is not None and self._body_ends_at_eof:
            self.on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End or fail the waiting request."""
        self._reusable = False
        if self._response_future is None:
            return
        if self._body_ends_at_eof and exc is None:
            self.on_message_complete()
            return
        how = "closed" if exc is None else "reset"
        when = "in the middle of the response" if self.has_received_bytes else "without a reply"
        self._fail_request(
            ConnectionLost(host=self._host, reason=f"the connection was {how} {when}")
        )

    def on_message_begin(self) -> None:
        """Start a response, or the next one after an informational (1xx) response."""
        if self._response_future is None:
            self._reusable = False
        self._reset_response()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; ignore trailers."""
        if not self._in_body:
            add_header(self._headers, name, value)

    def on_headers_complete(self) -> None:
        """Determine how the body ends, and reject a body above the limit."""
        self._status = self._parser.get_status_code()
        if 100 <= self._status < _HTTP_OK:
            if self._status == _HTTP_SWITCHING_PROTOCOLS:
                self._fail_request(
                    TransportFailed(host=self._host, reason="the response is not HTTP/1.1")
                )
            return
        transport = self._transport
        if (
            self._status in _PROCESSED_STATUSES
            and transport is not None
            and transport.get_write_buffer_size()
        ):
            # The service has not received the whole request, so this responds to an earlier one.
            self._fail_request(
                TransportFailed(
                    host=self._host, reason="the response began before the whole request was sent"
                )
            )
            return
        self._in_body = True
        self._reusable = self._reusable and self._parser.should_keep_alive()
        length = self._headers.get("content-length")
        chunked = "chunked" in self._headers.get("transfer-encoding", "").lower()
        self._body_ends_at_eof = length is None and not chunked
        if length is not None and int(length) > self._max_body_bytes:
            self._handle_oversized_body()

    @property
    def _max_body_bytes(self) -> int:
        return (
            self._limits.max_response_bytes if self._status == _HTTP_OK else _MAX_ERROR_BODY_BYTES
        )

    def on_body(self, body: bytes) -> None:
        """Append a slice of the body."""
        if self._response_future is None:
            return
        self._body_segments.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body_bytes:
            self._handle_oversized_body()

    def _handle_oversized_body(self) -> None:
        self._reusable = False
        if self._status == _HTTP_OK:
            limit = self._limits.max_response_bytes
            self._fail_request(
                PayloadTooLarge(
                    status=_HTTP_OK, reason=f"the response is larger than {limit:,} bytes"
                )
            )
        else:
            self.on_message_complete()

    def on_message_complete(self) -> None:
        """Complete the request, unless the response is informational (1xx)."""
        if self._status < _HTTP_OK or self._response_future is None:
            return
        pieces = self._body_segments
        reply = HttpResponse(
            self._status, self._headers, pieces[0] if len(pieces) == 1 else b"".join(pieces)
        )
        waiting = self._take_response_future()
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)
        self._reset_response()  # Release the memory while idle.

    def _on_timeout(self) -> None:
        self._fail_request(CallTimeout(host=self._host, reason="Timeout was reached"))

    def _fail_request(self, error: TransportFailed | PayloadTooLarge) -> None:
        waiting = self._take_response_future()
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
        self.abort()

    def _take_response_future(self) -> asyncio.Future[HttpResponse] | None:
        """Stop the timer, and take the future of the waiting request."""
        waiting, self._response_future = self._response_future, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return waiting


_IDLE_CONNECTION_TTL_S = 60.0
_HEADER_NAME_PATTERN = re.compile(r"[\x21-\x39\x3b-\x7e]+")


@dataclass(frozen=True, slots=True)
class HttpOrigin:
    """Peer of a connection. The certificates in `ca_file` replace the default ones."""

    host: str
    port: int
    is_tls: bool
    ca_file: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Target of requests: peer, path and Host header."""

    origin: HttpOrigin
    path: str
    authority: str

    @classmethod
    def from_url(cls, url: ServiceUrl, ca_file: str | None = None) -> HttpTarget:
        """Return the target of requests to a URL."""
        origin = HttpOrigin(url.host, url.port, url.scheme == "https", ca_file)
        return cls(origin, url.request_target, url.authority)


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Encode headers as the lines of a request.

    Raises:
        DeclarationInvalid: If a name or value is invalid. The message names the header.
    """
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable() and _HEADER_NAME_PATTERN.fullmatch(name)):
            raise DeclarationInvalid(reason=f"header {name!r} has an invalid name or value")
    return encode_header_lines((name.encode(), value.encode()) for name, value in headers.items())


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, from uvloop if it is installed."""
    try:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()
    return loop


class HttpClient:
    """HTTP client for one event loop.

    `accepted_encodings` has the last Accept-Encoding header of each origin's responses.
    `connected_origins` has the origins to which there has been a connection.
    """

    def __init__(self) -> None:
        """Create a client without connections."""
        self.accepted_encodings: dict[HttpOrigin, str] = {}
        self.connected_origins: set[HttpOrigin] = set()
        self._idle: defaultdict[HttpOrigin, list[HttpConnection]] = defaultdict(list)
        self._busy: set[HttpConnection] = set()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def send_request(
        self,
        target: HttpTarget,
        head: bytes,
        body: bytes,
        limits: HttpLimits,
        traffic: CallRecord,
    ) -> HttpResponse:
        """Send a request and return its response, with any status.

        Cancellation closes the connection of the request. If a reused connection turns out to be closed
        before any byte of a response, the request is repeated on another connection.

        Args:
            target: Target of the request.
            head: Head of the request.
            body: Body of the request.
            limits: Timeouts and size limits.
            traffic: Record that counts bytes sent and received, including those of failed requests.

        Raises:
            TransportFailed: If there is no response. The message names the host.
            PayloadTooLarge: If the response exceeds the limit.
        """
        while True:
            connection = self._take_idle_connection(target.origin)
            kept = connection is not None
            if connection is None:
                connection = await self._open_connection(target.origin, limits)
            self._busy.add(connection)
            try:
                reply = await connection.send_request(head, body, limits, traffic)
            except ConnectionLost:
                if connection.has_received_bytes or not kept:
                    raise
            else:
                shown = reply.headers.get("accept-encoding")
                if shown is not None:
                    self.accepted_encodings[target.origin] = shown
                return reply
            finally:
                self._release_connection(target.origin, connection)

    def _take_idle_connection(self, origin: HttpOrigin) -> HttpConnection | None:
        idle = self._idle[origin]
        while idle:
            connection = idle.pop()
            if connection.is_free and not connection.has_unexpected_bytes():
                return connection
            connection.abort()
        return None

    async def _open_connection(self, origin: HttpOrigin, limits: HttpLimits) -> HttpConnection:
        if self._closed:
            raise TransportFailed(host=origin, reason="the client is closed")
        loop = asyncio.get_running_loop()
        tls = _make_tls_context(origin.ca_file) if origin.is_tls else None
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: HttpConnection(str(origin), loop),
                    origin.host,
                    origin.port,
                    ssl=tls,
                )
        except TimeoutError:
            raise ConnectTimeout(
                host=origin, reason="Timeout was reached while connecting"
            ) from None
        except OSError as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                reason = f"its certificate is not trusted: {error.verify_message}"
                raise TlsUntrusted(host=origin, reason=reason) from None
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                raise TlsUntrusted(host=origin, reason=f"no TLS: {error.reason}") from None
            # asyncio replaces the system's error text, so restore it. Resolver errors have negative
            # numbers and already have a text.
            number = error.errno or 0
            known = os.strerror(number) if number > 0 else error.strerror
            raise ConnectFailed(host=origin, reason=known or "no connection") from None
        self.connected_origins.add(origin)
        return connection

    def _release_connection(self, origin: HttpOrigin, connection: HttpConnection) -> None:
        self._busy.discard(connection)
        if not connection.is_free or self._closed:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle[origin].append(connection)
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(
                _IDLE_CONNECTION_TTL_S, self._close_idle_connections, loop
            )

    def _close_idle_connections(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close connections that were idle for 60 s. Each list ends with the last used one."""
        self._idle_timer = None
        since = loop.time() - _IDLE_CONNECTION_TTL_S
        for idle in self._idle.values():
            while idle and (idle[0].idle_since <= since or not idle[0].is_free):
                idle.pop(0).abort()
        if any(self._idle.values()):
            self._idle_timer = loop.call_later(
                _IDLE_CONNECTION_TTL_S, self._close_idle_connections, loop
            )

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        idle = [connection for kept in self._idle.values() for connection in kept]
        self._idle.clear()
        for connection in (*idle, *self._busy):
            connection.abort()
        await asyncio.sleep(0)  # Transports call connection_lost in the next iteration of the loop.


def encode_request_head(
    method: str, target: HttpTarget, header_lines: bytes, content_length: int | None
) -> bytes:
    """Return the head of a request.

    Args:
        method: Method of the request.
        target: Target of the request.
        header_lines: Encoded headers.
        content_length: Size of the body in bytes. None: no body.
    """
    first = f"{method} {target.path} HTTP/1.1\r\nhost: {target.authority}".encode("ascii")
    length = b"" if content_length is None else b"content-length: %d\r\n" % content_length
    return encode_head(first, header_lines, length)


@lru_cache(maxsize=16)
def _make_tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = error.strerror or "it holds no certificate"
        raise DeclarationInvalid(reason=f"CA file {ca_file} cannot be read: {reason}") from None


# All calls of a process run in one event loop thread with one client. Each task thread waits for
# its own calls, in order.

CoroutineFactory: TypeAlias = Callable[[], Coroutine[Any, Any, bytes]]

_STOP_TIMEOUT_S = 2.0


class EventLoopThread:
    """Event loop in a daemon thread, so that it does not delay process exit."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.client = HttpClient()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run_loop, name="snowmelt-calls", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def is_current(self) -> bool:
        """Return True if the caller is in the loop's thread, which must not wait for the loop."""
        return threading.current_thread() is self._thread

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _stop(self) -> None:
        # A forked child inherits exit handlers, but not the thread.
        if os.getpid() != self._pid or not self._thread.is_alive():
            return

        async def cancel_tasks_and_close() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.client.close()

        ending = asyncio.run_coroutine_threadsafe(cancel_tasks_and_close(), self.loop)
        try:
            ending.result(_STOP_TIMEOUT_S)
        except TimeoutError:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)


# By process ID, because Spark forks its workers, and an event loop does not survive a fork.
_event_loop_threads: dict[int, EventLoopThread] = {}
_start_locks: dict[int, threading.Lock] = {}


# Closing takes little time. The timeout is for a loop that has stopped at process exit.
_CLOSE_TIMEOUT_S = 5.0


class InFlightCalls:
    """The calls of one task that are in flight."""

    def __init__(self) -> None:
        process = os.getpid()
        found = _event_loop_threads.get(process)
        if found is None:
            with _start_locks.setdefault(process, threading.Lock()):
                found = _event_loop_threads.get(process) or EventLoopThread()
                _event_loop_threads[process] = found
        self._event_loop_thread = found
        self.client = found.client
        self._pending_calls: set[Future[bytes]] = set()
        # Started tasks. Only the loop's thread accesses them.
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine_factory: CoroutineFactory) -> Future[bytes]:
        """Start a call."""

        async def run() -> bytes:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - this is one
            self._tasks.add(task)
            try:
                return await coroutine_factory()
            finally:
                self._tasks.discard(task)

        call = asyncio.run_coroutine_threadsafe(run(), self._event_loop_thread.loop)
        self._pending_calls.add(call)
        return call

    def wait_for_result(self, call: Future[bytes]) -> bytes:
        """Wait for a call and return its result, or raise its exception."""
        try:
            return call.result()
        finally:
            self._pending_calls.discard(call)

    def close(self) -> None:
        """Cancel all calls and wait until they have ended."""

        async def cancel_all() -> None:
            tasks = [*self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        if all(call.done() for call in self._pending_calls):
            return
        ending = asyncio.run_coroutine_threadsafe(cancel_all(), self._event_loop_thread.loop)
        # Do not wait in the loop's thread: garbage collection of a generator may call this in any
        # thread.
        if not self._event_loop_thread.is_current():
            with contextlib.suppress(TimeoutError):
                ending.result(_CLOSE_TIMEOUT_S)
