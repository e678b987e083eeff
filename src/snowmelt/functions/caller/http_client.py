"""Requests over HTTP/1.1, many at a time: one each on connections that are kept and used again.

httptools reads replies (Node's llhttp): general clients cost several times the CPU per request.
Nothing is followed, decompressed or repeated here but what never left.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import ssl
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from snowmelt.functions.errors import (
    ConnectionGone,
    DeclarationInvalid,
    TimedOut,
    TlsRefused,
    TooLarge,
    TransportFailed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.functions.urls import Address

# --- One HTTP/1.1 connection of a client: a request goes out, its reply comes in, then the next.

_OK = 200
_SWITCHING = 101
_DONE = frozenset({200, 202})
# Nothing but its beginning is ever shown of a reply that is no answer.
_MAX_OTHER_BYTES = 64 * 1024
_MAX_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as it came; header names are in lower case, the body is still compressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Traffic(Protocol):
    """Where bytes are counted as HTTP sees them: heads and bodies, before TLS."""

    bytes_out: int
    bytes_in: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long, in seconds, and how large, in bytes, things may be.

    A reply may pause for `idle_s` between two of its bytes, and has to be there `reply_s` after
    its request was handed over.
    """

    connect_s: float = 10.0
    idle_s: float = 60.0
    reply_s: float = 300.0
    reply_bytes: int = 10_000_000


class Connection(asyncio.Protocol):
    """Made by an event loop's `create_connection`; for one request at a time.

    Methods named `on_…` are called by the parser, in the order in which a reply has its parts.
    """

    def __init__(self, host: str, loop: asyncio.AbstractEventLoop) -> None:
        self.idle_since = 0.0
        # Whether any byte came back since the last request.
        self.replied = False
        self._host = host
        self._bounds = Bounds()
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        # Services written by hand end lines with a mere line feed.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)
        self._waiting: asyncio.Future[Reply] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reusable = True
        self._begin()

    def _begin(self) -> None:
        self._status = 0
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._size = 0
        self._in_body = False
        self._until_end = False

    @property
    def is_free(self) -> bool:
        """Whether another request can be sent."""
        transport = self._transport
        return (
            self._reusable
            and self._waiting is None
            and transport is not None
            and not transport.is_closing()
            # Who answers before the whole request is there will not read the rest.
            and transport.get_write_buffer_size() == 0
        )

    def has_bytes(self) -> bool:
        """Return True if anything can be read that no request asked for, or the other side ended.

        The event loop may not have come to read it yet. It would be taken for the next response.
        """
        transport = self._transport
        socket = None if transport is None else transport.get_extra_info("socket")
        if socket is None or socket.fileno() < 0:
            return True
        readable = select.poll()
        readable.register(socket.fileno(), select.POLLIN)
        return bool(readable.poll(0))

    def send(
        self, head: bytes, body: bytes, bounds: Bounds, traffic: Traffic
    ) -> asyncio.Future[Reply]:
        """Send a request; the result fails with TransportFailed or TooLarge.

        Whoever stops waiting for it has to `abort` the connection.
        """
        if self._transport is None:
            raise RuntimeError("the connection is not made yet")
        self._bounds = bounds
        self._traffic = traffic
        self._head_bytes = 0
        self.replied = False
        self._waiting = self._loop.create_future()
        self._deadline = self._loop.time() + bounds.reply_s
        self._timer = self._loop.call_at(self._deadline, self._late)
        traffic.bytes_out += len(head) + len(body)
        if body:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)
        return self._waiting

    def abort(self) -> None:
        """Close at once; what is still to be sent is not, and who waits for a reply is told."""
        self._reusable = False
        waiting = self._settled()
        if waiting is not None and not waiting.done():
            waiting.set_exception(
                ConnectionGone(host=self._host, reason="the connection was given up")
            )
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what is written to."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read on in the reply."""
        if self._waiting is None:
            self.abort()  # nobody asked
            return
        self._traffic.bytes_in += len(data)
        self.replied = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._reusable = False
            self._fail(TransportFailed(host=self._host, reason="the reply is not HTTP/1.1"))
        if self._waiting is not None:
            self._read_on(len(data))

    def _read_on(self, count: int) -> None:
        if not self._in_body:
            self._head_bytes += count
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._fail(
                    TransportFailed(host=self._host, reason="the head of the reply has no end")
                )
                return
        if self._timer is not None:
            self._timer.cancel()
        due = min(self._deadline, self._loop.time() + self._bounds.idle_s)
        self._timer = self._loop.call_at(due, self._late)

    def eof_received(self) -> None:
        """Take the end of the connection for that of a reply which has no other."""
        if self._waiting is not None and self._until_end:
            self.on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
        self._reusable = False
        if self._waiting is None:
            return
        if self._until_end and exc is None:
            self.on_message_complete()
            return
        how = "closed" if exc is None else "reset"
        when = "in the middle of the reply" if self.replied else "without a reply"
        self._fail(ConnectionGone(host=self._host, reason=f"the connection was {how} {when}"))

    def on_message_begin(self) -> None:
        """Begin a reply, or another one behind a mere notice."""
        if self._waiting is None:
            self._reusable = False
        self._begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; those that come behind the body are left out."""
        if self._in_body:
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self._headers.get(key)
        self._headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        """Decide how the reply ends, and whether it may be as long as it says."""
        self._status = self._parser.get_status_code()
        if 100 <= self._status < _OK:
            if self._status == _SWITCHING:
                self._fail(TransportFailed(host=self._host, reason="the reply is not HTTP/1.1"))
            return
        transport = self._transport
        if self._status in _DONE and transport is not None and transport.get_write_buffer_size():
            # No service can have worked on what it has not read: this answers an earlier request.
            self._fail(
                TransportFailed(
                    host=self._host, reason="the reply began before the whole request was sent"
                )
            )
            return
        self._in_body = True
        self._reusable = self._reusable and self._parser.should_keep_alive()
        length = self._headers.get("content-length")
        chunked = "chunked" in self._headers.get("transfer-encoding", "").lower()
        self._until_end = length is None and not chunked
        if length is not None and int(length) > self._limit:
            self._overflow()

    @property
    def _limit(self) -> int:
        return self._bounds.reply_bytes if self._status == _OK else _MAX_OTHER_BYTES

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        if self._waiting is None:
            return
        self._pieces.append(body)
        self._size += len(body)
        if self._size > self._limit:
            self._overflow()

    def _overflow(self) -> None:
        self._reusable = False
        if self._status == _OK:
            limit = self._bounds.reply_bytes
            self._fail(TooLarge(status=_OK, reason=f"the reply is larger than {limit} bytes"))
        else:
            self.on_message_complete()

    def on_message_complete(self) -> None:
        """Hand the reply over, unless it is a notice that it will come."""
        if self._status < _OK or self._waiting is None:
            return
        pieces = self._pieces
        reply = Reply(
            self._status, self._headers, pieces[0] if len(pieces) == 1 else b"".join(pieces)
        )
        waiting = self._settled()
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)
        self._begin()  # and keep nothing while idle

    def _late(self) -> None:
        self._fail(TimedOut(host=self._host, reason="Timeout was reached"))

    def _fail(self, error: TransportFailed | TooLarge) -> None:
        waiting = self._settled()
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
        self.abort()

    def _settled(self) -> asyncio.Future[Reply] | None:
        """Stop waiting; return what was waited for."""
        waiting, self._waiting = self._waiting, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return waiting


_KEEP_IDLE_S = 60.0
_NAME = re.compile(r"[\x21-\x39\x3b-\x7e]+")


@dataclass(frozen=True, slots=True)
class Origin:
    """What connections lead to; `ca_file` holds the certificates that are trusted instead."""

    host: str
    port: int
    secure: bool
    ca_file: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: the connection's other end, and what the request's head says."""

    origin: Origin
    path: str
    authority: str

    @classmethod
    def of(cls, address: Address, ca_file: str | None = None) -> Target:
        """Return where the requests for an address go."""
        origin = Origin(address.host, address.port, address.scheme == "https", ca_file)
        return cls(origin, address.target, address.authority)


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return headers as they are sent.

    Raises:
        DeclarationInvalid: A value cannot be sent; names the header.
    """
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable() and _NAME.fullmatch(name)):
            raise DeclarationInvalid(reason=f"header {name!r} holds what a header cannot")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's where it is installed."""
    try:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()
    return loop


class HttpClient:
    """Sends requests; for one event loop. `accepts` has what origins say they can decompress."""

    def __init__(self) -> None:
        """Prepare; nothing is connected before it is needed."""
        self.accepts: dict[Origin, str] = {}
        self._idle: defaultdict[Origin, list[Connection]] = defaultdict(list)
        self._busy: set[Connection] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    async def ask(
        self,
        target: Target,
        head: bytes,
        body: bytes,
        bounds: Bounds,
        traffic: Traffic,
    ) -> Reply:
        """Send a request and return its reply, whatever its status.

        Cancelling closes the request's connection. A connection that was kept and turns out to
        be closed before any byte of a reply is not held against the request: another is taken.

        Args:
            target: Where to.
            head: `request_head`'s bytes.
            body: May be empty.
            bounds: Of this request.
            traffic: Counts what is sent and received, also by requests that fail.

        Raises:
            TransportFailed: There is no reply; names the host.
            TooLarge: The reply is larger than the bounds let it be.
        """
        while True:
            connection = self._kept(target.origin)
            kept = connection is not None
            if connection is None:
                connection = await self._connected(target.origin, bounds)
            self._busy.add(connection)
            try:
                reply = await connection.send(head, body, bounds, traffic)
            except ConnectionGone:
                if connection.replied or not kept:
                    raise
            else:
                shown = reply.headers.get("accept-encoding")
                if shown is not None:
                    self.accepts[target.origin] = shown
                return reply
            finally:
                self._free(target.origin, connection)

    def _kept(self, origin: Origin) -> Connection | None:
        idle = self._idle[origin]
        while idle:
            connection = idle.pop()
            if connection.is_free and not connection.has_bytes():
                return connection
            connection.abort()
        return None

    async def _connected(self, origin: Origin, bounds: Bounds) -> Connection:
        if self._closed:
            raise TransportFailed(host=origin, reason="the client is closed")
        loop = asyncio.get_running_loop()
        tls = _trusting(origin.ca_file) if origin.secure else None
        try:
            async with asyncio.timeout(bounds.connect_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(str(origin), loop),
                    origin.host,
                    origin.port,
                    ssl=tls,
                )
        except TimeoutError:
            raise TimedOut(host=origin, reason="Timeout was reached while connecting") from None
        except OSError as error:
            raise _unreachable(origin, error) from None
        return connection

    def _free(self, origin: Origin, connection: Connection) -> None:
        self._busy.discard(connection)
        if not connection.is_free or self._closed:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle[origin].append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(_KEEP_IDLE_S, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what was not used for a while; the last used are at the end."""
        self._sweeping = None
        since = loop.time() - _KEEP_IDLE_S
        for idle in self._idle.values():
            while idle and (idle[0].idle_since <= since or not idle[0].is_free):
                idle.pop(0).abort()
        if any(self._idle.values()):
            self._sweeping = loop.call_later(_KEEP_IDLE_S, self._sweep, loop)

    async def close(self) -> None:
        """Close all connections; requests that are under way fail."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        idle = [connection for kept in self._idle.values() for connection in kept]
        self._idle.clear()
        for connection in (*idle, *self._busy):
            connection.abort()
        await asyncio.sleep(0)  # transports tell of their end in the loop's next round


def request_head(method: str, target: Target, lines: bytes, length: int | None) -> bytes:
    """Return a request's head.

    Args:
        method: GET or POST.
        target: Where to.
        lines: `header_lines` of all but host and length.
        length: Of the body in bytes; None for a request that has none.
    """
    first = f"{method} {target.path} HTTP/1.1\r\nhost: {target.authority}\r\n"
    last = "\r\n" if length is None else f"content-length: {length}\r\n\r\n"
    return first.encode("ascii") + lines + last.encode("ascii")


def _unreachable(origin: Origin, error: OSError) -> TransportFailed:
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is not trusted: {error.verify_message}"
        return TlsRefused(host=origin, reason=reason)
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return TlsRefused(host=origin, reason=f"no TLS: {error.reason}")
    # asyncio writes texts of its own; resolvers have numbers below zero, and texts.
    number = error.errno or 0
    known = os.strerror(number) if number > 0 else error.strerror
    return TransportFailed(host=origin, reason=known or "no connection")


@lru_cache(maxsize=16)
def _trusting(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = error.strerror or "it holds no certificate"
        raise DeclarationInvalid(reason=f"CA file {ca_file} cannot be read: {reason}") from None
