"""HTTP protocol for uvicorn that handles small requests without ASGI and without a task.

uvicorn creates a task, an event and four messages for each request, which takes longer than
processing a batch of one row. A request takes the fast path if it is small, its function only
computes (`blocking=False`), and responses are stored in memory. `snowmelt functions serve` uses
this protocol. Other programs call `uvicorn.run(svc.asgi(), http=ServiceProtocol,
access_log=False)`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from snowmelt.functions.service.asgi import AsgiApp
from snowmelt.functions.service.request_response_types import ServiceRequest
from snowmelt.http_heads import encode_header_lines

# Maximum body size. uvicorn stops reading a larger body until the application consumes it.
_MAX_BODY_BYTES = 64 * 1024
_STATUS_LINES = {
    int(each): b"HTTP/1.1 %d %b\r\n" % (each, each.phrase.encode()) for each in HTTPStatus
}


class ServiceProtocol(HttpToolsProtocol):
    """HTTP protocol of one connection, with a fast path for small requests."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        app: Any = self.app
        # Find the service's application, which uvicorn may have wrapped.
        while not isinstance(app, AsgiApp | None):
            app = getattr(app, "app", None)
        is_plain = not self.config.access_log and self.limit_concurrency is None
        self._service_app: AsgiApp | None = app if is_plain else None

    def on_headers_complete(self) -> None:
        """Choose the fast path or ASGI for the request."""
        cycle: Any = self.cycle
        app, path = self._service_app, self.url.decode("latin-1")
        if (
            app is not None
            and (cycle is None or cycle.response_complete)
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and not self.expect_100_continue
            and path[:1] == "/"
            and "%" not in path
            and "?" not in path
            and "#" not in path
        ):
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers
            }
            length = headers.get("content-length", "")
            if (
                length.isdecimal()
                and int(length) <= _MAX_BODY_BYTES
                and "upgrade" not in headers
                and app.responds_immediately(path, headers)
            ):
                self.cycle = _SmallRequest(self, app, path, headers)  # type: ignore[assignment]
                return
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Answer a fast-path request. For another request, signal the end of its body to ASGI."""
        cycle: object = self.cycle
        if isinstance(cycle, _SmallRequest):
            cycle.respond()
        else:
            super().on_message_complete()


class _NoOpEvent:
    """Event that does nothing, for uvicorn's flow control."""

    def set(self) -> None:
        """Do nothing."""


class _SmallRequest:
    """Request of the fast path, handled when complete. Has the attributes that uvicorn expects."""

    __slots__ = ("_app", "_headers", "_path", "_protocol", "body", "disconnected", "keep_alive",
                 "message_event", "response_complete")  # fmt: skip

    def __init__(
        self, protocol: ServiceProtocol, app: AsgiApp, path: str, headers: dict[str, str]
    ) -> None:
        self._protocol, self._app, self._path, self._headers = protocol, app, path, headers
        self.body = bytearray()
        self.message_event = _NO_OP_EVENT
        self.disconnected = self.response_complete = False
        self.keep_alive = protocol.parser.should_keep_alive()

    def respond(self) -> None:
        """Handle the request without returning to the event loop."""
        protocol = self._protocol
        # Release the body, because a connection keeps its last request until the next one.
        body, self.body = bytes(self.body), bytearray()
        response = self._app.handle_immediately(
            ServiceRequest("POST", self._path, self._headers, body)
        )
        self.response_complete = True
        lines = [
            (name.encode(), value.encode("latin-1")) for name, value in response.headers.items()
        ]
        lines.append((b"content-length", b"%d" % len(response.body)))
        if not self.keep_alive:
            lines.append((b"connection", b"close"))
        transport = protocol.transport
        if not transport.is_closing():
            transport.write(
                _STATUS_LINES[response.status]
                + encode_header_lines(protocol.server_state.default_headers)
                + encode_header_lines(lines)
                + b"\r\n"
                + response.body
            )
            if not self.keep_alive:
                transport.close()
        protocol.on_response_complete()


_NO_OP_EVENT = _NoOpEvent()
