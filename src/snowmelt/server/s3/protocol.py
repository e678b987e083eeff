"""HTTP as uvicorn reads it, with limits on the size of a request's head and on its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

MOST_HEAD_BYTES = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose request line and headers go on and on, or come drop by drop.

    The parser itself collects a header for as long as it comes, and nobody else waits for its end:
    a few thousand connections that never say what they want would hold all there are.
    """

    # How long a head may take to come, in seconds.
    head_timeout_s = 30.0

    _head_bytes = 0
    _in_head = True
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait: a client connects to say something."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to no body, then go on."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._deadline is None:
                self._wait_for_head()
        super().data_received(data)
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request line and headers are too large.")

    def on_headers_complete(self) -> None:
        """Stop to count, and to wait."""
        self._in_head = False
        self._forget_deadline()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Count again from here: the next bytes are another request's."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _wait_for_head(self) -> None:
        self._deadline = self.loop.call_later(self.head_timeout_s, self._give_up)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
