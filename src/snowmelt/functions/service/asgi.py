"""A service for ASGI servers."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from snowmelt.functions.errors import BatchTooLarge
from snowmelt.functions.service.messages import Request, Response, problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_Message = MutableMapping[str, Any]


class AsgiApp:
    """Answers HTTP, and the start and end of a server."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]], *, limit: int) -> None:
        self._answer = answer
        self._limit = limit

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """Answer one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        body = await _body(receive, self._limit)
        if body is None:
            refused = problem(BatchTooLarge(what="request", limit=self._limit))
            response = Response(refused.status, refused.body, {"connection": "close"})
        else:
            query = scope.get("query_string", b"").decode("latin-1")
            response = await self._answer(
                Request(scope["method"], scope["path"], headers, body, query)
            )
        sent = [
            (name.encode(), value.encode("latin-1")) for name, value in response.headers.items()
        ]
        sent.append((b"content-length", str(len(response.body)).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": sent})
        await send({"type": "http.response.body", "body": response.body})


async def _body(receive: Callable[[], Awaitable[_Message]], limit: int) -> bytes | None:
    """Return the body; None when it is larger than the limit, in bytes."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body if len(body) <= limit else None
    pieces, size = [body], len(body)
    while message.get("more_body", False):
        message = await receive()
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            return None
    return b"".join(pieces)


async def _live(
    receive: Callable[[], Awaitable[_Message]], send: Callable[[_Message], Awaitable[None]]
) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
