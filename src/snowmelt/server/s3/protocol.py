"""HTTP as uvicorn reads it, with a limit on the size of a request's head."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose request line and headers go on and on.

    The parser itself collects a header for as long as it comes.
    """

    _head_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        """Count what belongs to no body, then go on."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request line and headers are too large.")

    def on_headers_complete(self) -> None:
        """Stop to count."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Count again from here: the next bytes are another request's."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()
