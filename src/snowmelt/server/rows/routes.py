"""Endpoints of the row API (specification of streaming v2, §3 and §4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, TypeVar

from starlette.responses import Response
from starlette.routing import Route

from snowmelt.errors import AuthenticationFailed, BodyTooLarge, RequestMalformed
from snowmelt.ingest.rows.row_service import RawAppendRequest
from snowmelt.ingest.rows.targets import RowSender
from snowmelt.server.error_responses import MethodNotAllowed, RouteNotFound, ServerResponse
from snowmelt.server.metrics import ROUTE_SCOPE_KEY
from snowmelt.server.middleware import authenticate, read_body
from snowmelt.server.rows.components import RowApiComponents
from snowmelt.server.rows.in_flight_appends import (
    OK_CODE,
    AppendPayload,
    InFlightAppends,
    build_append_response,
    build_raw_append_request,
    make_payload,
)
from snowmelt.server.rows.requests_and_errors import (
    RowApiPath,
    RowApiRequest,
    error_response,
    get_error_code,
    json_response,
    parse_path,
    parse_query,
    text_response,
)
from snowmelt.server.rows.scoped_tokens import is_foreign_token, read_scope_claim
from snowmelt.server.streaming_routes import parse_host
from snowmelt.wire.row_api import (
    DropRowChannelResponse,
    OpenRowChannelRequest,
    OpenRowChannelResponse,
    RowChannelStatusRequest,
    RowFileFragment,
)
from snowmelt.wire.streaming import decode_message

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from snowmelt.server.auth import Principal

_Result = TypeVar("_Result")
_MAX_SMALL_BODY_BYTES = 1 << 20
_OAUTH_PATH = "/oauth/token"
_OPENAPI_PATH = "/openapi.json"
_HOSTNAME_PATH = "/v2/streaming/hostname"
_APPEND_VERBS = {"rows", "filebuffer"}
_ROLE_SCOPE_PREFIX = "session:role:"


@dataclass(eq=False, slots=True)
class RowApiRoutes:
    """ASGI application for `/v2/streaming/…` and `/oauth/token`."""

    _components: RowApiComponents
    _in_flight_appends: InFlightAppends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        path = scope["raw_path"].decode("latin-1").partition("?")[0]
        call = RowApiRequest(scope["method"], path, scope["query_string"], dict(scope["headers"]))
        label = scope[ROUTE_SCOPE_KEY] = _choose_route_label(call.path)
        began = self._components.clock.monotonic()
        code = OK_CODE
        try:
            handle, limit = self._find_handler(call)
            if limit > _MAX_SMALL_BODY_BYTES:
                # Clients without a token must not fill the memory.
                await self._authenticate_sender(call)
            body = await read_body(receive, limit, BodyTooLarge)
            if body is None:
                return
            call.body = body
            answer = await handle()
        except Exception as error:  # noqa: BLE001 - nothing a client sends may end the service
            answer = error_response(error, path=call.path, user=call.user)
            code = get_error_code(error)
        if label in _APPEND_VERBS:
            self._components.metrics.record_response(
                [code], self._components.clock.monotonic() - began
            )
        await send(answer.make_start_message())
        await send({"type": "http.response.body", "body": answer.body})

    def _find_handler(
        self, call: RowApiRequest
    ) -> tuple[Callable[[], Awaitable[ServerResponse]], int]:
        """Return the handler of a request, and the limit of its body in bytes."""
        if call.path == _HOSTNAME_PATH:
            _require_method(call, "GET")
            return lambda: self._handle_hostname(call), _MAX_SMALL_BODY_BYTES
        if call.path == _OAUTH_PATH:
            _require_method(call, "POST")
            return lambda: self._handle_token(call), _MAX_SMALL_BODY_BYTES
        address = parse_path(call.path)
        if address is None:
            raise RouteNotFound(path=call.path)
        if address.is_data_path:
            if address.channel is None or address.verb not in {"rows", "filebuffer"}:
                raise RouteNotFound(path=call.path)
            _require_method(call, "POST")
            if address.verb == "rows":
                return lambda: self._handle_rows(
                    call, address
                ), self._components.limits.max_body_bytes
            return lambda: self._handle_row_file(call, address), _MAX_SMALL_BODY_BYTES
        return lambda: self._handle_management(call, address), _MAX_SMALL_BODY_BYTES

    async def _handle_management(self, call: RowApiRequest, api_path: RowApiPath) -> ServerResponse:
        """Handle any request to a pipe or channel that is not an append."""
        handlers = {
            ("POST", False, "pipe-info"): self._handle_pipe_info,
            ("POST", False, "bulk-channel-status"): self._handle_statuses,
            ("PUT", True, ""): self._handle_open,
            ("DELETE", True, ""): self._handle_drop,
        }
        asked = (api_path.channel is not None, api_path.verb)
        if handle := handlers.get((call.method, *asked)):
            return await handle(call, api_path)
        allowed = " or ".join(method for method, *what in handlers if tuple(what) == asked)
        if not allowed:
            raise RouteNotFound(path=call.path)
        raise MethodNotAllowed(path=call.path, allowed=allowed, method=call.method)

    async def _handle_hostname(self, call: RowApiRequest) -> ServerResponse:
        await self._authenticate_account(call)
        return text_response(parse_host(call.headers))

    async def _handle_token(self, call: RowApiRequest) -> ServerResponse:
        caller = await self._authenticate_account(call)
        sender = _make_sender(caller, _find_role_in_scopes(call, is_key_pair=caller.scope is None))
        return text_response(
            await self._run_in_thread(lambda: self._components.scoped_tokens.issue(sender))
        )

    async def _handle_pipe_info(self, call: RowApiRequest, api_path: RowApiPath) -> ServerResponse:
        sender = await self._authenticate_sender(call)
        host, client = parse_host(call.headers), call.sdk_client
        files = self._components.row_files
        return json_response(
            await self._run_in_thread(
                lambda: files.build_pipe_info(api_path.pipe, sender, host, client)
            )
        )

    async def _handle_open(self, call: RowApiRequest, api_path: RowApiPath) -> ServerResponse:
        sender = await self._authenticate_sender(call)
        request = decode_message(call.body or b"{}", OpenRowChannelRequest)
        answer: OpenRowChannelResponse = await self._await_write(
            lambda: self._components.row_service.open_channel(
                api_path.pipe,
                api_path.channel or "",
                sender,
                request_id=call.query.get("requestId", ""),
                offset_token=request.offset_token or None,
                client=call.sdk_client,
            )
        )
        return json_response(answer)

    async def _handle_drop(self, call: RowApiRequest, api_path: RowApiPath) -> ServerResponse:
        sender = await self._authenticate_sender(call)
        token = await self._await_write(
            lambda: self._components.row_service.drop_channel(
                api_path.pipe, api_path.channel or "", sender
            )
        )
        return json_response(DropRowChannelResponse(token))

    async def _handle_statuses(self, call: RowApiRequest, api_path: RowApiPath) -> ServerResponse:
        sender = await self._authenticate_sender(call)
        request = decode_message(call.body or b"{}", RowChannelStatusRequest)
        return json_response(
            await self._run_in_thread(
                lambda: self._components.row_service.get_channel_statuses(
                    api_path.pipe, request.channel_names, sender
                )
            )
        )

    async def _handle_rows(self, call: RowApiRequest, api_path: RowApiPath) -> ServerResponse:
        tokens = (call.start_offset_token, call.end_offset_token)
        request = build_raw_append_request(
            self._components, call, api_path, await self._authenticate_sender(call), tokens
        )
        return await self._append_and_respond(
            request, make_payload(call, self._components.limits.max_decompressed_bytes)
        )

    async def _handle_row_file(self, call: RowApiRequest, api_path: RowApiPath) -> ServerResponse:
        fragments = decode_message(call.body, list[RowFileFragment])
        if len(fragments) != 1:
            raise RequestMalformed(reason="a request must contain exactly one file")
        fragment = fragments[0]
        if fragment.file_length_bytes < 0:
            raise RequestMalformed(reason="file_length_bytes must not be negative")
        tokens = (
            fragment.fragment_start_offset_token or None,
            fragment.fragment_end_offset_token or None,
        )
        request = build_raw_append_request(
            self._components, call, api_path, await self._authenticate_sender(call), tokens
        )
        files = self._components.row_files
        load = AppendPayload(
            fragment.file_length_bytes * 6,
            lambda: files.read_file(fragment, request.path, request.sender),
            is_small=False,
            on_committed=lambda: files.delete_file(fragment),
        )
        return await self._append_and_respond(request, load)

    async def _append_and_respond(
        self, request: RawAppendRequest, payload: AppendPayload
    ) -> ServerResponse:
        """Append rows. Return the response after they are committed."""
        # The append continues even if the client disconnects.
        outcome = await asyncio.shield(self._in_flight_appends.submit_or_join(request, payload))
        return build_append_response(request, outcome)

    async def _authenticate_account(self, call: RowApiRequest) -> Principal:
        """Return the principal of a key-pair token or of a token from another issuer."""
        parts = self._components
        caller = await authenticate(parts.authenticator, parts.threads, call.headers)
        call.user = caller.user
        return caller

    async def _authenticate_sender(self, call: RowApiRequest) -> RowSender:
        """Return the sender of a request that has a scoped token or an account's token."""
        scheme, _, token = call.get_header(b"authorization").partition(" ")
        kind = call.get_header(b"x-snowflake-authorization-token-type")
        if scheme.lower() == "bearer" and kind != "KEYPAIR_JWT":
            try:
                claims = self._components.scoped_tokens.verify(token.strip())
            except AuthenticationFailed:
                # Only tokens other than scoped tokens have an issuer.
                if kind == "OAUTH" and not is_foreign_token(token):
                    raise
            else:
                call.user, call.claims = claims.sub, claims
                return claims.sender
        return _make_sender(await self._authenticate_account(call), None)

    async def _run_in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._components.threads, work)

    async def _await_write(self, work: Callable[[], Future[_Result]]) -> _Result:
        """Await the result of the write that `work` queues. No thread is blocked."""
        return await asyncio.wrap_future(await self._run_in_thread(work))


def make_row_routes(
    components: RowApiComponents, in_flight_appends: InFlightAppends
) -> list[Route]:
    """Return the routes of the row API."""
    answering = RowApiRoutes(components, in_flight_appends)
    described = files("snowmelt.server.rows").joinpath("openapi.json").read_bytes()

    async def describe(request: Request) -> Response:
        request.scope[ROUTE_SCOPE_KEY] = _OPENAPI_PATH
        return Response(described, media_type="application/json")

    return [
        Route(_OPENAPI_PATH, describe, methods=["GET"]),
        *(Route(path, answering) for path in (_OAUTH_PATH, "/v2/streaming/{rest:path}")),
    ]


def _make_sender(principal: Principal, role: str | None) -> RowSender:
    """Return the sender. A token from another issuer may restrict its roles."""
    return RowSender(
        principal.user,
        role if principal.scope is None else principal.scope.resolve_role(role, principal.user),
    )


def _require_method(call: RowApiRequest, method: str) -> None:
    if call.method != method:
        raise MethodNotAllowed(path=call.path, allowed=method, method=call.method)


def _choose_route_label(path: str) -> str:
    if path in {_HOSTNAME_PATH, _OAUTH_PATH}:
        return path
    last = path.rpartition("/")[2]
    return last if last in _APPEND_VERBS else "rows-management"


def _find_role_in_scopes(call: RowApiRequest, *, is_key_pair: bool) -> str | None:
    """Return the role that the form requests, or else the role of the client's token."""
    scopes = [parse_query(call.body).get("scope", "")]
    payload = call.get_header(b"authorization").split(".")
    if is_key_pair and len(payload) == 3:
        scopes.append(read_scope_claim(payload[1]))
    for scope in scopes:
        for part in scope.split():
            if part.startswith(_ROLE_SCOPE_PREFIX):
                return part.removeprefix(_ROLE_SCOPE_PREFIX) or None
    return None
