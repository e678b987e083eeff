"""ASGI application of a service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from snowmelt.functions.errors import BatchTooLarge
from snowmelt.functions.service.request_response_types import (
    ServiceRequest,
    ServiceResponse,
    error_to_response,
)

_AsgiMessage = MutableMapping[str, Any]


class AsgiApp:
    """ASGI application for HTTP requests and lifespan events."""

    def __init__(
        self,
        handle_request: Callable[[ServiceRequest], Awaitable[ServiceResponse]],
        *,
        max_body_bytes: int,
        responds_immediately: Callable[[str, Mapping[str, str]], bool] = lambda *_: False,
    ) -> None:
        """Create the application.

        Args:
            handle_request: Returns the response to a request.
            max_body_bytes: Maximum size of a request body, bytes.
            responds_immediately: Returns True if a request with this path and these headers can be
                handled without waiting.
        """
        self._handle_request = handle_request
        self._max_body_bytes = max_body_bytes
        self.responds_immediately = responds_immediately

    def handle_immediately(self, request: ServiceRequest) -> ServiceResponse:
        """Handle a request for which `responds_immediately` returned True."""
        try:
            self._handle_request(request).__await__().__next__()
        except StopIteration as done:
            response: ServiceResponse = done.value
            return response
        raise AssertionError("a function with blocking=False has waited")

    async def __call__(
        self,
        scope: _AsgiMessage,
        receive: Callable[[], Awaitable[_AsgiMessage]],
        send: Callable[[_AsgiMessage], Awaitable[None]],
    ) -> None:
        """Handle one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await _run_lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        body = await _read_body(receive, self._max_body_bytes)
        if body is None:
            refused = error_to_response(BatchTooLarge(what="request", limit=self._max_body_bytes))
            response = ServiceResponse(refused.status, refused.body, {"connection": "close"})
        else:
            query = scope.get("query_string", b"").decode("latin-1")
            response = await self._handle_request(
                ServiceRequest(scope["method"], scope["path"], headers, body, query)
            )
        sent = [
            (name.encode(), value.encode("latin-1")) for name, value in response.headers.items()
        ]
        sent.append((b"content-length", str(len(response.body)).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": sent})
        await send({"type": "http.response.body", "body": response.body})


async def _read_body(
    receive: Callable[[], Awaitable[_AsgiMessage]], max_body_bytes: int
) -> bytes | None:
    """Return the body, or None if it is larger than `max_body_bytes`."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body if len(body) <= max_body_bytes else None
    pieces, size = [body], len(body)
    while message.get("more_body", False):
        message = await receive()
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > max_body_bytes:
            return None
    return b"".join(pieces)


async def _run_lifespan(
    receive: Callable[[], Awaitable[_AsgiMessage]], send: Callable[[_AsgiMessage], Awaitable[None]]
) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
