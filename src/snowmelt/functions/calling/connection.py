"""One HTTP/1.1 connection of a client: a request goes out, its reply comes in, then the next."""

from __future__ import annotations

import asyncio
import select
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from snowmelt.functions.refusals import ConnectionGone, TimedOut, TooLarge, TransportFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

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
