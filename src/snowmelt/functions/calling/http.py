"""Requests over HTTP/1.1, many at a time: one each on connections that are kept and used again.

httptools reads replies (Node's llhttp): general clients cost several times the CPU per request.
Nothing is followed, decompressed or repeated here but what never left.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from snowmelt.functions.calling.connection import Connection
from snowmelt.functions.refusals import (
    ConnectionGone,
    DeclarationInvalid,
    TimedOut,
    TlsRefused,
    TransportFailed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.functions.calling.connection import Bounds, Reply, Traffic
    from snowmelt.functions.urls import Address

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
