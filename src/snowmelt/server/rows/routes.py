"""The endpoints of the row API (specification of streaming v2, §3 and §4)."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from snowmelt.errors import (
    AuthenticationFailed,
    BodyTooLarge,
    RequestMalformed,
)
from snowmelt.ingest.rows.targets import RowSender
from snowmelt.server.error_responses import MethodRefused, RouteNotFound
from snowmelt.server.metrics import ROUTE
from snowmelt.server.rows.append import DONE, Load, append_answer, load_of, request_of
from snowmelt.server.rows.messages import (
    Call,
    code_of,
    json_answer,
    parse_address,
    parse_query,
    text_answer,
    trouble_answer,
)
from snowmelt.server.rows.scoped_tokens import claimed_scope, has_issuer
from snowmelt.server.streaming_routes import host_of
from snowmelt.wire.row_api import RowDropResponse, RowFileFragment, RowOpenRequest, RowStatusRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Future

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from snowmelt.ingest.rows.row_service import RowsRequest
    from snowmelt.server.auth import Caller
    from snowmelt.server.error_responses import Answer
    from snowmelt.server.rows.append import Taking
    from snowmelt.server.rows.components import RowParts
    from snowmelt.server.rows.messages import Address
    from snowmelt.wire.row_api import RowOpenResponse

_Kind = TypeVar("_Kind", bound=msgspec.Struct)
_Result = TypeVar("_Result")
_SMALL_BYTES = 1 << 20
_OAUTH = "/oauth/token"
_DESCRIPTION = "/openapi.json"
_HOSTNAME = "/v2/streaming/hostname"
_OF_ROWS = {"rows", "filebuffer"}
_ROLE_SCOPE = "session:role:"
# By whether a channel is named, and the verb.
_MANAGED = {
    (False, "pipe-info"): "POST",
    (False, "bulk-channel-status"): "POST",
    (True, ""): "PUT or DELETE",
}


class RowRoutes:
    """An ASGI application for `/v2/streaming/…` and `/oauth/token`."""

    def __init__(self, parts: RowParts, taking: Taking) -> None:
        self._parts = parts
        self._taking = taking

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["raw_path"].decode("latin-1").partition("?")[0]
        call = Call(scope["method"], path, scope["query_string"], dict(scope["headers"]))
        label = scope[ROUTE] = _label(call.path)
        began = self._parts.clock.monotonic()
        code = DONE
        try:
            handle, limit = self._route(call)
            if not await self._read(call, receive, limit):
                return
            answer = await handle()
        except Exception as error:  # noqa: BLE001 - nothing a client sends may end the service
            answer = trouble_answer(error, path=call.path, user=call.user)
            code = code_of(error)
        if label in _OF_ROWS:
            self._parts.tally.record_response(code, self._parts.clock.monotonic() - began)
        await send(answer.start())
        await send({"type": "http.response.body", "body": answer.body})

    def _route(self, call: Call) -> tuple[Callable[[], Awaitable[Answer]], int]:
        """Return what answers a request, and how large its body may be."""
        if call.path == _HOSTNAME:
            _require(call, "GET")
            return lambda: self._hostname(call), _SMALL_BYTES
        if call.path == _OAUTH:
            _require(call, "POST")
            return lambda: self._token(call), _SMALL_BYTES
        address = parse_address(call.path)
        if address is None:
            raise RouteNotFound(path=call.path)
        if address.is_data:
            if address.channel is None or address.verb not in {"rows", "filebuffer"}:
                raise RouteNotFound(path=call.path)
            _require(call, "POST")
            if address.verb == "rows":
                return lambda: self._rows(call, address), self._parts.limits.body_bytes
            return lambda: self._file(call, address), _SMALL_BYTES
        return lambda: self._managed(call, address), _SMALL_BYTES

    async def _managed(self, call: Call, address: Address) -> Answer:
        """Answer what is asked of a pipe or a channel, rows apart."""
        asked = (call.method, address.channel is not None, address.verb)
        match asked:
            case ("POST", False, "pipe-info"):
                return await self._pipe_info(call, address)
            case ("POST", False, "bulk-channel-status"):
                return await self._statuses(call, address)
            case ("PUT", True, ""):
                return await self._open(call, address)
            case ("DELETE", True, ""):
                return await self._drop(call, address)
        allowed = _MANAGED.get(asked[1:])
        if allowed is None:
            raise RouteNotFound(path=call.path)
        raise MethodRefused(path=call.path, allowed=allowed, method=call.method)

    async def _hostname(self, call: Call) -> Answer:
        await self._account(call)
        return text_answer(host_of(call.headers))

    async def _token(self, call: Call) -> Answer:
        caller = await self._account(call)
        sender = _sender_of(caller, _asked_role(call, is_own=caller.scope is None))
        return text_answer(await self._in_thread(lambda: self._parts.tokens.issue(sender)))

    async def _pipe_info(self, call: Call, address: Address) -> Answer:
        sender = await self._sender(call)
        host, client = host_of(call.headers), call.client
        files = self._parts.files
        return json_answer(
            await self._in_thread(lambda: files.pipe_info(address.pipe, sender, host, client))
        )

    async def _open(self, call: Call, address: Address) -> Answer:
        sender = await self._sender(call)
        request = _decode(call.body or b"{}", RowOpenRequest)
        answer: RowOpenResponse = await self._queued(
            lambda: self._parts.desk.open_channel(
                address.pipe,
                address.channel or "",
                sender,
                request_id=call.query.get("requestId", ""),
                offset_token=request.offset_token or None,
                client=call.client,
            )
        )
        return json_answer(answer)

    async def _drop(self, call: Call, address: Address) -> Answer:
        sender = await self._sender(call)
        token = await self._queued(
            lambda: self._parts.desk.drop_channel(address.pipe, address.channel or "", sender)
        )
        return json_answer(RowDropResponse(token))

    async def _statuses(self, call: Call, address: Address) -> Answer:
        sender = await self._sender(call)
        request = _decode(call.body or b"{}", RowStatusRequest)
        return json_answer(
            await self._in_thread(
                lambda: self._parts.desk.get_channel_statuses(
                    address.pipe, request.channel_names, sender
                )
            )
        )

    async def _rows(self, call: Call, address: Address) -> Answer:
        tokens = (call.start_token, call.end_token)
        request = request_of(self._parts, call, address, await self._sender(call), tokens)
        return await self._taken(request, load_of(call, self._parts.limits.unpacked_bytes))

    async def _file(self, call: Call, address: Address) -> Answer:
        try:
            fragments = msgspec.json.decode(call.body, type=list[RowFileFragment])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise RequestMalformed(reason=str(error)) from None
        if len(fragments) != 1:
            raise RequestMalformed(reason="one file is taken at a time")
        fragment = fragments[0]
        if fragment.file_length_bytes < 0:
            raise RequestMalformed(reason="file_length_bytes is less than nothing")
        tokens = (
            fragment.fragment_start_offset_token or None,
            fragment.fragment_end_offset_token or None,
        )
        request = request_of(self._parts, call, address, await self._sender(call), tokens)
        files = self._parts.files
        load = Load(
            fragment.file_length_bytes * 6,
            lambda: files.fetch(fragment, request.path, request.sender),
            is_small=False,
            done=lambda: files.forget(fragment),
        )
        return await self._taken(request, load)

    async def _taken(self, request: RowsRequest, load: Load) -> Answer:
        """Answer a request of rows when they are committed."""
        # The client may go away; what has begun goes on.
        outcome = await asyncio.shield(self._taking.take(request, load))
        return append_answer(request, outcome)

    async def _account(self, call: Call) -> Caller:
        """Return who a request with a key pair's token, or with one from elsewhere, speaks for."""
        authenticator = self._parts.authenticator
        caller = authenticator.recalled(call.headers)
        if caller is None:
            caller = await self._in_thread(lambda: authenticator.identify(call.headers))
        call.user = caller.user
        return caller

    async def _sender(self, call: Call) -> RowSender:
        """Return who a request with a scoped token, or with that of an account, speaks for."""
        scheme, _, token = call.header(b"authorization").partition(" ")
        kind = call.header(b"x-snowflake-authorization-token-type")
        if scheme.lower() == "bearer" and kind != "KEYPAIR_JWT":
            try:
                claims = self._parts.tokens.claims(token.strip())
            except AuthenticationFailed:
                # Ours name no issuer.
                if kind == "OAUTH" and not has_issuer(token):
                    raise
            else:
                call.user, call.claims = claims.sub, claims
                return claims.sender
        return _sender_of(await self._account(call), None)

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._parts.threads, work)

    async def _queued(self, work: Callable[[], Future[_Result]]) -> _Result:
        """Return the result of the write that `work` queues; no thread waits for it."""
        return await asyncio.wrap_future(await self._in_thread(work))

    async def _read(self, call: Call, receive: Receive, limit: int) -> bool:
        """Read a request's body; False when the client has gone away."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return False
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise BodyTooLarge(limit=limit)
            if not message.get("more_body", False):
                call.body = b"".join(parts)
                return True


def row_routes(parts: RowParts, taking: Taking) -> list[Route]:
    """Return the routes of the row API."""
    answering = RowRoutes(parts, taking)
    described = files("snowmelt.server.rows").joinpath("openapi.json").read_bytes()

    async def describe(request: Request) -> Response:
        request.scope[ROUTE] = _DESCRIPTION
        return Response(described, media_type="application/json")

    return [
        Route(_DESCRIPTION, describe, methods=["GET"]),
        *(Route(path, answering) for path in (_OAUTH, "/v2/streaming/{rest:path}")),
    ]


def _sender_of(caller: Caller, role: str | None) -> RowSender:
    """Return who sends; a token from elsewhere may name the roles that it stands for."""
    return RowSender(
        caller.user, role if caller.scope is None else caller.scope.role(role, caller.user)
    )


def _require(call: Call, method: str) -> None:
    if call.method != method:
        raise MethodRefused(path=call.path, allowed=method, method=call.method)


def _label(path: str) -> str:
    if path in {_HOSTNAME, _OAUTH}:
        return path
    last = path.rpartition("/")[2]
    return last if last in _OF_ROWS else "rows-management"


def _asked_role(call: Call, *, is_own: bool) -> str | None:
    """Return the role that the form asks for, else the client's own token."""
    scopes = [parse_query(call.body).get("scope", "")]
    payload = call.header(b"authorization").split(".")
    if is_own and len(payload) == 3:
        scopes.append(claimed_scope(payload[1]))
    for scope in scopes:
        for part in scope.split():
            if part.startswith(_ROLE_SCOPE):
                return part.removeprefix(_ROLE_SCOPE) or None
    return None


def _decode(body: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestMalformed(reason=str(error)) from None
