"""Live regions by server-sent events: render a page repeatedly, and send the changed regions.

Browsers with the same page and role share the rendered regions. Many different pages are rendered
less often, so that rendering takes at most 5 % of one processor.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from snowmelt.clock import Clock
from snowmelt.errors import ServiceBusy, SnowmeltError
from snowmelt.server.console.request_guard import SECURITY_HEADERS

if TYPE_CHECKING:
    from starlette.types import Receive, Send

_log = logging.getLogger("snowmelt.server")

MAX_STREAMS = 200
_MIN_INTERVAL_S = 1.0
_MAX_INTERVAL_S = 60.0
# Share of one processor for rendering the pages of all streams.
_SHARE = 0.05
_COMMENT_INTERVAL_S = 15.0
_RETRY_MS = 2_000


@dataclass(eq=False, slots=True)
class _Shared:
    """Rendered regions of one page for one role, shared by its streams."""

    regions: Mapping[str, str] = field(default_factory=dict)
    made_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    readers: int = 0


class LiveStreams:
    """Open streams of a service. Must be used in the event loop of the service, except `stop`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shared: dict[tuple[str, str], _Shared] = {}
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams = 0
        self._seconds_per_page = 0.01

    def stop(self) -> None:
        """End all streams, so that a stopping service does not wait for them. Thread-safe."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    @property
    def interval_s(self) -> float:
        """Seconds between two renderings of a page."""
        needed = self._seconds_per_page * len(self._shared) / _SHARE
        return min(max(needed, _MIN_INTERVAL_S), _MAX_INTERVAL_S)

    async def stream(
        self,
        key: tuple[str, str],
        make: Callable[[], Awaitable[Mapping[str, str]]],
        check: Callable[[], Awaitable[bool]],
        receive: Receive,
        send: Send,
    ) -> None:
        """Send regions until the browser disconnects, its session ends, or the service stops.

        Args:
            key: Role and page. Streams with the same key share the rendered regions.
            make: Renders the regions.
            check: Returns False if the session has ended.
            receive: Function of ASGI that receives the message about the disconnect.
            send: Function of ASGI that sends the messages of the response.

        Raises:
            ServiceBusy: If `MAX_STREAMS` streams are open.
        """
        if self._streams >= MAX_STREAMS:
            raise ServiceBusy(
                reason=f"{MAX_STREAMS} live pages are open. Close other pages of the console"
            )
        self._loop = asyncio.get_running_loop()
        shared = self._shared.setdefault(key, _Shared())
        shared.readers += 1
        self._streams += 1
        disconnected: asyncio.Future[Any] = asyncio.ensure_future(_wait_for_disconnect(receive))
        stopping: asyncio.Future[Any] = asyncio.ensure_future(self._stopping.wait())
        try:
            await send(_START)
            await send(_event(f"retry: {_RETRY_MS}\n\n"))
            await self._send_changes(shared, make, check, send, disconnected, stopping)
            await send({"type": "http.response.body", "body": b""})
        finally:
            disconnected.cancel()
            stopping.cancel()
            self._streams -= 1
            shared.readers -= 1
            if not shared.readers:
                self._shared.pop(key, None)

    async def _send_changes(
        self,
        shared: _Shared,
        make: Callable[[], Awaitable[Mapping[str, str]]],
        check: Callable[[], Awaitable[bool]],
        send: Send,
        disconnected: asyncio.Future[Any],
        stopping: asyncio.Future[Any],
    ) -> None:
        sent: dict[str, bytes] = {}
        said_at = self._clock.monotonic()
        while not (disconnected.done() or stopping.done()):
            try:
                is_valid = await check()
            except SnowmeltError as error:
                # The response has started, so it cannot become an error response. Send nothing
                # until a check succeeds.
                _log.warning("console: cannot check the session of a live page: %s", error)
                await self._wait(disconnected, stopping)
                continue
            if not is_valid:
                await send(_event("event: expired\ndata: {}\n\n"))
                return
            regions = await self._read(shared, make)
            changed = {}
            for name, content in regions.items():
                digest = hashlib.sha256(content.encode()).digest()
                if sent.get(name) != digest:
                    sent[name], changed[name] = digest, content
            now = self._clock.monotonic()
            if changed:
                await send(_event(f"event: regions\ndata: {json.dumps(changed)}\n\n"))
                said_at = now
            elif now - said_at > _COMMENT_INTERVAL_S:
                # Send a comment, because proxies close idle connections.
                await send(_event(": still here\n\n"))
                said_at = now
            await self._wait(disconnected, stopping)

    async def _wait(self, *ends: asyncio.Future[Any]) -> None:
        """Wait until the next round, or until the stream ends."""
        await asyncio.wait(ends, timeout=self.interval_s, return_when=asyncio.FIRST_COMPLETED)

    async def _read(
        self, shared: _Shared, make: Callable[[], Awaitable[Mapping[str, str]]]
    ) -> Mapping[str, str]:
        async with shared.lock:
            began = self._clock.monotonic()
            # Slightly less than the interval, so that streams of one page share each rendering.
            if began - shared.made_at >= self.interval_s * 0.9:
                try:
                    shared.regions = await make()
                except Exception as error:  # noqa: BLE001 - the next round may succeed
                    _log.warning("console: a live page failed: %s", error)
                    return shared.regions
                shared.made_at = self._clock.monotonic()
                took = shared.made_at - began
                self._seconds_per_page += (took - self._seconds_per_page) * 0.2
            return shared.regions


_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        *((name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()),
    ],
}


def _event(text: str) -> dict[str, object]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
