"""Requests by route and status, counted in plain numbers where they are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Whoever answers may write here what kind of request it was; paths of strangers are no labels.
ROUTE = "snowmelt.route"
OTHER = "other"


class Requests:
    """The requests of one port; counted in its event loop only."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], int] = {}

    def count(self, route: str, status: int) -> None:
        """Count one answer."""
        key = (route, status)
        self._counts[key] = self._counts.get(key, 0) + 1

    def taken(self) -> dict[tuple[str, int], int]:
        """Return the counts as they are now; from any thread."""
        return self._counts.copy()


class Counted:
    """An ASGI application whose answers are counted by the scope's `ROUTE`."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and count it when its answer begins."""

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._requests.count(scope.get(ROUTE, OTHER), int(message["status"]))
            await send(message)

        await self._app(scope, receive, send_counted)
