"""Requests, their context for functions, and responses, whatever the server; the ASGI application.

Errors become responses only here: this module decides which part of an error a caller may read.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from snowmelt.errors import SnowmeltError
from snowmelt.functions.errors import BatchTooLarge, Overloaded
from snowmelt.functions.wire import headers as names
from snowmelt.json import exact


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """What came; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    query: str = ""


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """What goes back."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchResponseBody:
    """What a batch came to: an HTTP status and JSON, not yet compressed or signed."""

    status: int
    body: bytes
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """One call. A function that has an argument annotated `Context` is given it.

    `headers` has all headers by lower-case name; the properties prefer the base64 twins, which
    are exact.
    """

    function: str
    rows: int
    headers: Mapping[str, str]

    @property
    def query_id(self) -> str | None:
        """The query, the same for all its batches."""
        return self.headers.get(names.QUERY_ID)

    @property
    def batch_id(self) -> str | None:
        """The batch, the same for each attempt at it."""
        return self.headers.get(names.BATCH_ID)

    @property
    def signature(self) -> str | None:
        """The arguments as the caller declared them, such as `(N NUMBER)`."""
        return names.decode_header(self.headers, names.SIGNATURE)

    @property
    def return_type(self) -> str | None:
        """The result as the caller declared it."""
        return names.decode_header(self.headers, names.RETURN_TYPE)

    @property
    def custom(self) -> dict[str, str]:
        """What the HEADERS clause sends, by name without prefix: `custom["volume-measure"]`."""
        return self._collect_headers(names.CUSTOM_PREFIX)

    @property
    def session(self) -> dict[str, str]:
        """What the CONTEXT_HEADERS clause sends, by function: `session["current-user"]`."""
        return self._collect_headers(names.CONTEXT_PREFIX)

    def _collect_headers(self, prefix: str) -> dict[str, str]:
        found = {}
        for name in self.headers:
            if name.startswith(prefix):
                plain = name.removesuffix(names.BASE64_SUFFIX)
                found[plain.removeprefix(prefix)] = names.decode_header(self.headers, plain) or ""
        return found


_LOG = logging.getLogger("snowmelt.functions")


def error_to_response(error: Exception, *, debug: bool = False) -> BatchResponseBody:
    """Return the answer to what went wrong.

    An exception of the author's code is named by its type alone unless `debug`: its text may hold
    what a row holds.
    """
    if isinstance(error, SnowmeltError):
        retry_after_s = error.retry_after if isinstance(error, Overloaded) else None
        return make_error_response(
            error.status, error.code, str(error), retry_after_s=retry_after_s
        )
    _LOG.error("a function failed: %s", type(error).__name__, exc_info=error if debug else None)
    text = f"The function failed with {type(error).__name__}"
    return make_error_response(500, "failed", f"{text}: {error}" if debug else f"{text}.")


def make_error_response(
    status: int, code: str, message: str, *, retry_after_s: float | None = None
) -> BatchResponseBody:
    """Return an error as JSON."""
    body = exact.serialize_json({"error": {"code": code, "message": message}})
    return BatchResponseBody(status, body, retry_after_s)


_AsgiMessage = MutableMapping[str, Any]


class AsgiApp:
    """Answers HTTP, and the start and end of a server."""

    def __init__(
        self,
        handle_request: Callable[[ServiceRequest], Awaitable[ServiceResponse]],
        *,
        max_body_bytes: int,
    ) -> None:
        self._handle_request = handle_request
        self._max_body_bytes = max_body_bytes

    async def __call__(
        self,
        scope: _AsgiMessage,
        receive: Callable[[], Awaitable[_AsgiMessage]],
        send: Callable[[_AsgiMessage], Awaitable[None]],
    ) -> None:
        """Answer one request, or the lifespan."""
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
    """Return the body; None when it is larger than the limit, in bytes."""
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
