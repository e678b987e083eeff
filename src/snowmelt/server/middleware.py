"""Middleware of the service: checks every request, and dispatches to the fast routes.

Plain ASGI, because it handles thousands of small registrations per second: the request objects of a
framework would cost as much time as the registration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from snowmelt import failpoints
from snowmelt.errors import SnowmeltError, UserError
from snowmelt.schema.types import to_display_name, to_internal_name
from snowmelt.server.error_responses import (
    HostNotAllowed,
    MethodNotAllowed,
    RequestTooLarge,
    ServerResponse,
    UnsupportedMediaType,
    error_response,
    json_response,
)
from snowmelt.server.metrics import OTHER_ROUTE, CountingMiddleware, RequestCounts

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from snowmelt.server.auth import Authenticator, Principal, RoleScope


# Larger bodies are decoded in a thread, because decoding takes about 5 ms per MiB.
SMALL_BODY_BYTES = 64 * 1024
_MAX_ANONYMOUS_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AuthenticatedRequest:
    """A request that passed all checks, with its user."""

    path: str
    user: str
    body: bytes
    headers: Mapping[bytes, bytes]
    scope: RoleScope | None = None

    def resolve_role(self, requested: str | None) -> str | None:
        """Return the role to act as, within the scope of the token. Names are in SQL notation.

        Raises:
            RoleNotGranted: If the token does not allow the requested role.
        """
        return requested if self.scope is None else self.scope.resolve_role(requested, self.user)

    def resolve_internal_role(self, requested: str | None) -> str | None:
        """Return the internal name of the role to act as. `requested` is an internal name.

        Raises:
            RoleNotGranted: If the token does not allow the requested role.
        """
        role = self.resolve_role(None if requested is None else to_display_name(requested))
        return None if role is None else to_internal_name(role)


@dataclass(frozen=True, slots=True)
class PostRoute:
    """A POST route.

    `allows_anonymous` is True if requests need no token. `has_failpoint` is True if the response
    has a failpoint. `handle_immediately` handles the request without a task. Its callback receives
    the response message or an exception later in the event loop.
    """

    handle: Callable[[AuthenticatedRequest], Awaitable[ServerResponse]]
    allows_anonymous: bool = False
    has_failpoint: bool = False
    handle_immediately: Callable[[AuthenticatedRequest, Callable[[object], None]], None] | None = (
        None
    )


class ImmediateHandler(Protocol):
    """Handler of a request that needs no task.

    `label` is the route in the metrics. `has_failpoint` is True if its response has a failpoint.
    """

    @property
    def label(self) -> str: ...  # noqa: D102 - told above

    @property
    def has_failpoint(self) -> bool: ...  # noqa: D102 - told above

    def begin(self, body: bytes, on_result: Callable[[object], None]) -> None:
        """Handle the request. `on_result` receives a result or an exception later in the event loop."""

    def build_response(self, result: object) -> ServerResponse:
        """Return the response for a result."""


@dataclass(frozen=True, slots=True)
class _ImmediateRouteRequest:
    """A request to a fast route that is handled without a task."""

    route: PostRoute
    handle: Callable[[AuthenticatedRequest, Callable[[object], None]], None]
    path: str
    principal: Principal
    headers: Mapping[bytes, bytes]

    @property
    def label(self) -> str:
        return self.path.rstrip("/")

    @property
    def has_failpoint(self) -> bool:
        return self.route.has_failpoint

    def begin(self, body: bytes, on_result: Callable[[object], None]) -> None:
        caller = self.principal
        self.handle(
            AuthenticatedRequest(self.path, caller.user, body, self.headers, caller.scope),
            on_result,
        )

    def build_response(self, result: object) -> ServerResponse:
        if isinstance(result, Exception):
            return error_response(result, path=self.path, user=self.principal.user)
        return json_response(result)


@dataclass(frozen=True, slots=True)
class RequestChecks:
    """Parameters of the checks of each request. `max_body_bytes` limits the body."""

    authenticator: Authenticator
    threads: Executor
    max_body_bytes: int
    loopback_only: bool
    public_hosts: frozenset[str] = frozenset()


class ServiceMiddleware:
    """ASGI layer in front of `app`. Handles requests to `post_routes` (without trailing slash)."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        post_routes: Mapping[str, PostRoute],
        checks: RequestChecks,
        find_app_handler: Callable[[bytes, str, Mapping[bytes, bytes]], ImmediateHandler | None]
        | None = None,
    ) -> None:
        """Connect the layers. `find_app_handler` finds immediate handlers of `app`."""
        self.request_counts = RequestCounts()
        self._app = CountingMiddleware(app, self.request_counts)
        self._fast_routes = {
            slash: lane for path, lane in post_routes.items() for slash in (path, path + "/")
        }
        self._checks = checks
        self._find_app_handler = find_app_handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        caller: Principal | None = None
        path: str = scope["path"]
        lane = self._fast_routes.get(path)
        try:
            if self._checks.loopback_only:
                check_host(headers.get(b"host", b""), self._checks.public_hosts)
            if lane is None:
                await self._app(scope, receive, send)
                return
            self._check_request(lane, scope["method"], path, headers)
            if not lane.allows_anonymous:
                caller = await authenticate(
                    self._checks.authenticator, self._checks.threads, headers
                )
            limit = self._limit_body(lane)
            body = await read_body(receive, limit, RequestTooLarge)
            if body is None:
                return
            user, roles = ("", None) if caller is None else (caller.user, caller.scope)
            answer = await lane.handle(AuthenticatedRequest(path, user, body, headers, roles))
        except Exception as error:  # noqa: BLE001 - no request may end the service
            answer = error_response(error, path=path, user=None if caller is None else caller.user)
        self.request_counts.count_response(
            OTHER_ROUTE if lane is None else path.rstrip("/"), answer.status
        )
        await send(answer.make_start_message())
        hit_response_body_failpoint(is_enabled=lane is not None and lane.has_failpoint)
        await send({"type": "http.response.body", "body": answer.body})

    def find_immediate_handler(
        self, method: bytes, url: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> ImmediateHandler | None:
        """Return the immediate handler of a request, or None if there is none.

        Also returns None for requests that must be rejected: the normal path does that.
        """
        # Clients of v1 send a request ID in the query, which is ignored.
        path = url.partition("?")[0]
        lane = self._fast_routes.get(path)
        if self._find_app_handler is None if lane is None else lane.handle_immediately is None:
            return None
        known = dict(headers)
        length = known.get(b"content-length", b"")
        if not length.isdigit() or int(length) > SMALL_BODY_BYTES:
            return None
        try:
            if self._checks.loopback_only:
                check_host(known.get(b"host", b""), self._checks.public_hosts)
            if lane is not None:
                self._check_request(lane, method.decode("latin-1"), path, known)
        except UserError:
            return None
        if lane is None:
            return self._find_app_handler and self._find_app_handler(method, url, known)
        caller = self._checks.authenticator.get_cached_principal(known)
        if caller is None or lane.handle_immediately is None:
            return None
        return _ImmediateRouteRequest(lane, lane.handle_immediately, path, caller, known)

    def _limit_body(self, route: PostRoute) -> int:
        """Return the largest body of a route. Clients without a token must not fill the memory."""
        limit = self._checks.max_body_bytes
        return min(limit, _MAX_ANONYMOUS_BODY_BYTES) if route.allows_anonymous else limit

    def _check_request(
        self, route: PostRoute, method: str, path: str, headers: Mapping[bytes, bytes]
    ) -> None:
        if method != "POST":
            raise MethodNotAllowed(path=path, allowed="POST", method=method)
        if self._checks.loopback_only:
            check_content_type(headers.get(b"content-type", b""))
        length = headers.get(b"content-length", b"0")
        limit = self._limit_body(route)
        if length.isdigit() and int(length) > limit:
            raise RequestTooLarge(limit=limit)


async def authenticate(
    authenticator: Authenticator, threads: Executor, headers: Mapping[bytes, bytes]
) -> Principal:
    """Return the principal of a request. Tokens that are not cached are verified in a thread.

    Raises:
        AuthenticationFailed: If the token is missing or invalid.
    """
    caller = authenticator.get_cached_principal(headers)
    if caller is not None:
        return caller
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, authenticator.authenticate_any, headers)


async def read_body(
    receive: Receive, max_bytes: int, too_large: type[SnowmeltError]
) -> bytes | None:
    """Read the complete body of a request. Return None if the client has disconnected.

    Raises:
        SnowmeltError: `too_large`, if the body has more than `max_bytes`.
    """
    parts: list[bytes] = []
    size = 0
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise too_large(limit=max_bytes)
        if not message.get("more_body", False):
            return b"".join(parts)
    return None


def hit_response_body_failpoint(*, is_enabled: bool) -> None:
    """Hit the failpoint between the head and the body of a response."""
    if is_enabled:
        failpoints.hit_failpoint(failpoints.Failpoint.ANSWERING)


def check_host(host: bytes, public_hosts: Collection[str] = ()) -> None:
    """Reject Host headers that a web page could use after DNS rebinding.

    `public_hosts` are lower-case names of a proxy in front of the service.

    Raises:
        HostRefused: If the name is not a loopback address, `localhost`, a name below it, or one of
            `public_hosts`.
    """
    name = host.decode("latin-1").lower()
    name = name.partition("]")[0][1:] if name.startswith("[") else name.partition(":")[0]
    name = name.rstrip(".")
    numbers = name.split(".")
    is_address = len(numbers) == 4 and numbers[0] == "127" and all(map(str.isdigit, numbers))
    is_local = is_address or name in {"localhost", "::1"} or name.endswith(".localhost")
    if not (is_local or name in public_hosts):
        raise HostNotAllowed(host=repr(name[:200]))


def check_content_type(content_type: bytes) -> None:
    """Reject content types that a web page may send without CORS: forms and plain text.

    Raises:
        UnsupportedMediaType: If the type is not JSON.
    """
    kind = content_type.partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise UnsupportedMediaType(content_type=repr(content_type[:200].decode("latin-1")))
