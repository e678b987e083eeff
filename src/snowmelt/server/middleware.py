"""The front of the service: every request's checks, and the short way to the busy routes.

A plain ASGI layer: thousands of small registrations a second pass here, and a framework's
request objects would cost as much as the registration itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from snowmelt import failpoints
from snowmelt.errors import UserError
from snowmelt.server.error_responses import (
    ContentTypeRefused,
    HostRefused,
    MethodRefused,
    RequestTooLarge,
    json_answer,
    problem_answer,
)
from snowmelt.server.metrics import OTHER, Counted, Requests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
    from concurrent.futures import Executor

    from starlette.types import ASGIApp, Receive, Scope, Send

    from snowmelt.server.auth import Authenticator, Caller, RoleScope
    from snowmelt.server.error_responses import Answer


# Larger bodies are read in a thread; decoding takes about 5 ms a MiB.
SMALL_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Call:
    """One request that passed the front: who asks, and with what."""

    path: str
    user: str
    body: bytes
    headers: Mapping[bytes, bytes]
    scope: RoleScope | None = None

    def role(self, asked: str | None) -> str | None:
        """Return the role to act as, within what the caller's token allows.

        Raises:
            RoleNotGranted: The token does not allow the role that is asked for.
        """
        return asked if self.scope is None else self.scope.role(asked, self.user)


@dataclass(frozen=True, slots=True)
class Lane:
    """A POST route; `open_to_all` needs no token, `interruptible` has a fault point.

    `quick` does the same without a task of its own: it takes what settles the request, later and
    in the event loop, with a message or an exception.
    """

    handle: Callable[[Call], Awaitable[Answer]]
    open_to_all: bool = False
    interruptible: bool = False
    quick: Callable[[Call, Callable[[object], None]], None] | None = None


class Shortcut(Protocol):
    """A request that may be answered without waiting for anything, as its headers say.

    `label` is what it is counted as; `is_interruptible` has a fault point within its answer.
    """

    @property
    def label(self) -> str: ...  # noqa: D102 - told above

    @property
    def is_interruptible(self) -> bool: ...  # noqa: D102 - told above

    def begin(self, body: bytes, settle: Callable[[object], None]) -> None:
        """Handle it; `settle` gets a result or an exception, later and in the event loop."""

    def answer(self, result: object) -> Answer:
        """Return the answer to what `settle` got."""


@dataclass(frozen=True, slots=True)
class _OnLane:
    """A request to a lane that can do without a task."""

    lane: Lane
    handle: Callable[[Call, Callable[[object], None]], None]
    label: str
    caller: Caller
    headers: Mapping[bytes, bytes]

    @property
    def is_interruptible(self) -> bool:
        return self.lane.interruptible

    def begin(self, body: bytes, settle: Callable[[object], None]) -> None:
        caller = self.caller
        self.handle(Call(self.label, caller.user, body, self.headers, caller.scope), settle)

    def answer(self, result: object) -> Answer:
        if isinstance(result, Exception):
            return problem_answer(result, path=self.label, user=self.caller.user)
        return json_answer(result)


@dataclass(frozen=True, slots=True)
class Checks:
    """What the front asks of each request; `max_body_bytes` is a guard against nonsense only."""

    authenticator: Authenticator
    threads: Executor
    max_body_bytes: int
    loopback_only: bool
    public_hosts: frozenset[str] = frozenset()


class Front:
    """ASGI layer before `app`: paths in `lanes` (without trailing slash) never reach `app`."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        lanes: Mapping[str, Lane],
        checks: Checks,
        others: Callable[[bytes, str, Mapping[bytes, bytes]], Shortcut | None] | None = None,
    ) -> None:
        """Join the layers.

        Args:
            app: Answers what is for no lane.
            lanes: By path.
            checks: For each request.
            others: Returns the short way of a request to `app`, by method, URL and headers.
        """
        self.requests = Requests()
        self._app = Counted(app, self.requests)
        self._lanes = {slash: lane for path, lane in lanes.items() for slash in (path, path + "/")}
        self._checks = checks
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        caller: Caller | None = None
        path: str = scope["path"]
        lane = self._lanes.get(path)
        try:
            if self._checks.loopback_only:
                check_host(headers.get(b"host", b""), self._checks.public_hosts)
            if lane is None:
                await self._app(scope, receive, send)
                return
            self._check(scope["method"], path, headers)
            if not lane.open_to_all:
                caller = await self._caller(headers)
            body = await self._body(receive)
            if body is None:
                return
            answer = await lane.handle(_call(path, caller, body, headers))
        except Exception as error:  # noqa: BLE001 - nothing a client sends may end the service
            user = None if caller is None else caller.user
            answer = problem_answer(error, path=path, user=user)
        self.requests.count(OTHER if lane is None else path.rstrip("/"), answer.status)
        await send(answer.start())
        before_body(is_interruptible=lane is not None and lane.interruptible)
        await send({"type": "http.response.body", "body": answer.body})

    def shortcut(
        self, method: bytes, path: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> Shortcut | None:
        """Return how a request may be answered without waiting for anything, None when not.

        None also for what is to be refused: the ordinary way does that.
        """
        lane = self._lanes.get(path)
        if self._others is None if lane is None else lane.quick is None:
            return None
        known = dict(headers)
        length = known.get(b"content-length", b"")
        if not length.isdigit() or int(length) > SMALL_BODY_BYTES:
            return None
        try:
            if self._checks.loopback_only:
                check_host(known.get(b"host", b""), self._checks.public_hosts)
            if lane is not None:
                self._check(method.decode("latin-1"), path, known)
        except UserError:
            return None
        if lane is None:
            return None if self._others is None else self._others(method, path, known)
        caller = self._checks.authenticator.recalled(known)
        if caller is None or lane.quick is None:
            return None
        return _OnLane(lane, lane.quick, path, caller, known)

    def _check(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
        if method != "POST":
            raise MethodRefused(path=path, allowed="POST", method=method)
        if self._checks.loopback_only:
            check_content_type(headers.get(b"content-type", b""))
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._checks.max_body_bytes:
            raise RequestTooLarge(limit=self._checks.max_body_bytes)

    async def _caller(self, headers: Mapping[bytes, bytes]) -> Caller:
        authenticator = self._checks.authenticator
        caller = authenticator.recalled(headers)
        if caller is not None:
            return caller
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._checks.threads, authenticator.identify, headers)

    async def _body(self, receive: Receive) -> bytes | None:
        """Read the body to its end; None when the client has gone away."""
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            return bytes(message.get("body", b""))
        parts: list[bytes] = []
        size = 0
        while message["type"] == "http.request":
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._checks.max_body_bytes:
                raise RequestTooLarge(limit=self._checks.max_body_bytes)
            if not message.get("more_body", False):
                return b"".join(parts)
            message = await receive()
        return None


def _call(path: str, caller: Caller | None, body: bytes, headers: Mapping[bytes, bytes]) -> Call:
    if caller is None:
        return Call(path, "", body, headers)
    return Call(path, caller.user, body, headers, caller.scope)


def before_body(*, is_interruptible: bool) -> None:
    """Pass the fault point between the head and the body of an answer."""
    if is_interruptible:
        failpoints.hit_failpoint(failpoints.Failpoint.ANSWERING)


def check_host(host: bytes, public_hosts: Collection[str] = ()) -> None:
    """Reject names that a web page could have rebound to this machine.

    Args:
        host: The request's Host header.
        public_hosts: Names of a proxy in front of the service, in lower case.

    Raises:
        HostRefused: If the name is neither a loopback address, nor `localhost` or a name in it,
            nor one of `public_hosts`.
    """
    name = host.decode("latin-1").lower()
    name = name.partition("]")[0][1:] if name.startswith("[") else name.partition(":")[0]
    name = name.rstrip(".")
    numbers = name.split(".")
    is_address = len(numbers) == 4 and numbers[0] == "127" and all(map(str.isdigit, numbers))
    is_local = is_address or name in {"localhost", "::1"} or name.endswith(".localhost")
    if not (is_local or name in public_hosts):
        raise HostRefused(host=repr(name[:200]))


def check_content_type(content_type: bytes) -> None:
    """Refuse what a web page may send without asking: forms and plain text.

    Raises:
        ContentTypeRefused: Anything but JSON.
    """
    kind = content_type.partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise ContentTypeRefused(content_type=repr(content_type[:200].decode("latin-1")))
