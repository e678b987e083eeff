"""Routes of the streaming v1 API (specification of v1, §2) and of schema evolution.

Schema evolution is an extension of Snowmelt: it adds columns of a client's rows that are missing in
the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import TypeVar

import msgspec

from snowmelt import tracing
from snowmelt.ingest.channels import ChannelService, evolve_schema
from snowmelt.ingest.registrar import Registrar
from snowmelt.ingest.registration_verifier import Registrant
from snowmelt.ingest.stage_locations import StageRequester
from snowmelt.schema.types import to_internal_name
from snowmelt.server.error_responses import ServerResponse, json_response
from snowmelt.server.fast_path import ResponseQueue
from snowmelt.server.middleware import SMALL_BODY_BYTES, AuthenticatedRequest, PostRoute
from snowmelt.wire.streaming import (
    ChannelStatusRequest,
    ConfigureClientRequest,
    DropChannelRequest,
    EvolveTableRequest,
    OpenChannelRequest,
    OpenChannelResponse,
    RegisterBlobsRequest,
    RegisterBlobsResponse,
    decode_message,
)

_Message = TypeVar("_Message")
_Requester = TypeVar("_Requester")
_Result = TypeVar("_Result", bound=msgspec.Struct)
# Header with which clients renew their stage credentials by prefix. Their credentials are limited
# to one prefix. The header has no other effect on privileges.
SNOWMELT_CLIENT_HEADER = b"x-snowmelt-client"


class StreamingRoutes:
    """Handlers of v1. They are called in the event loop, and do blocking work in threads."""

    def __init__(
        self, channel_service: ChannelService, registrar: Registrar, threads: Executor
    ) -> None:
        self._channel_service = channel_service
        self._registrar = registrar
        self._threads = threads
        self._response_queue = ResponseQueue()
        self.channels_opened = 0

    def make_post_routes(self) -> dict[str, PostRoute]:
        """Return the routes by path, without trailing slash."""
        return {
            "/v1/streaming/client/configure": PostRoute(self.configure_client),
            "/v1/streaming/channels/open": PostRoute(
                self.open_channel, handle_immediately=self.open_channel_immediately
            ),
            "/v1/streaming/channels/status": PostRoute(self.get_channel_status),
            "/v1/streaming/channels/drop": PostRoute(self.drop_channel),
            "/v1/streaming/channels/write/blobs": PostRoute(
                self.register_blobs,
                has_failpoint=True,
                handle_immediately=self.register_blobs_immediately,
            ),
            "/telemetry/send/sessionless": PostRoute(self.discard_telemetry, allows_anonymous=True),
            "/v1/snowmelt/tables/evolve": PostRoute(self.evolve_table),
        }

    async def configure_client(self, call: AuthenticatedRequest) -> ServerResponse:
        """Return the prefix and stage credentials of a client."""
        request = decode_message(call.body, ConfigureClientRequest)
        request.role = call.resolve_role(request.role)
        asker = StageRequester(
            call.user, parse_host(call.headers), SNOWMELT_CLIENT_HEADER in call.headers
        )
        return await self._run_in_thread(self._channel_service.configure_client, request, asker)

    async def open_channel(self, call: AuthenticatedRequest) -> ServerResponse:
        """Open a channel."""
        return await _await_result(partial(self.open_channel_immediately, call))

    def open_channel_immediately(
        self, call: AuthenticatedRequest, on_result: Callable[[object], None]
    ) -> None:
        """Open a channel. `on_result` receives the response or an exception in the event loop."""
        request = decode_message(call.body, OpenChannelRequest)
        request.role = call.resolve_role(request.role)

        def count_and_report(result: object) -> None:
            self.channels_opened += isinstance(result, OpenChannelResponse)
            on_result(result)

        future = self._channel_service.open_channel(request, call.user)
        self._report_when_done(future, count_and_report)

    async def get_channel_status(self, call: AuthenticatedRequest) -> ServerResponse:
        """Return the committed offset tokens of channels."""
        request = decode_message(call.body, ChannelStatusRequest)
        request.role = call.resolve_role(request.role)
        return await self._run_in_thread(
            self._channel_service.get_channel_statuses, request, call.user
        )

    async def drop_channel(self, call: AuthenticatedRequest) -> ServerResponse:
        """Drop a channel."""
        request = decode_message(call.body, DropChannelRequest)
        request.role = call.resolve_role(request.role)
        future = self._channel_service.drop_channel(request, call.user)
        return await _await_result(partial(self._report_when_done, future))

    async def register_blobs(self, call: AuthenticatedRequest) -> ServerResponse:
        """Register blobs."""
        if len(call.body) <= SMALL_BODY_BYTES:
            request = decode_message(call.body, RegisterBlobsRequest)
        else:
            loop = asyncio.get_running_loop()
            request = await loop.run_in_executor(
                self._threads, decode_message, call.body, RegisterBlobsRequest
            )
        return await _await_result(partial(self._submit_registration, request, call))

    def register_blobs_immediately(
        self, call: AuthenticatedRequest, on_result: Callable[[object], None]
    ) -> None:
        """Register blobs. `on_result` receives the response or an exception in the event loop."""
        request = decode_message(call.body, RegisterBlobsRequest)
        self._submit_registration(request, call, on_result)

    def _submit_registration(
        self,
        request: RegisterBlobsRequest,
        call: AuthenticatedRequest,
        on_result: Callable[[object], None],
    ) -> None:
        asked = call.resolve_role(request.role)
        role = to_internal_name(asked) if asked else None
        sender = Registrant(call.user, role)
        loop = asyncio.get_running_loop()
        if tracing.is_enabled():
            on_result = _end_span_on_result(
                on_result, tracing.DeferredSpan("snowmelt.registration", call.headers)
            )
        self._registrar.submit(request, sender, self._response_queue.make_callback(loop, on_result))

    async def discard_telemetry(self, call: AuthenticatedRequest) -> ServerResponse:
        """Accept and discard the telemetry of the official client."""
        del call
        # The SDK of the row API reads this response. The SDK of v1 ignores it.
        return json_response({"success": True, "data": ""})

    async def evolve_table(self, call: AuthenticatedRequest) -> ServerResponse:
        """Add columns to a table, or drop NOT NULL constraints."""
        request = decode_message(call.body, EvolveTableRequest)
        request.role = call.resolve_role(request.role)
        service = self._channel_service
        work = partial(evolve_schema, service.database, service.clock)
        return await self._run_in_thread(work, request, call.user)

    async def _run_in_thread(
        self,
        work: Callable[[_Message, _Requester], msgspec.Struct],
        request: _Message,
        requester: _Requester,
    ) -> ServerResponse:
        loop = asyncio.get_running_loop()
        return json_response(await loop.run_in_executor(self._threads, work, request, requester))

    def _report_when_done(
        self, future: Future[_Result], on_result: Callable[[object], None]
    ) -> None:
        """Pass the result of a write to `on_result` in the event loop. Blocks no thread."""
        report = self._response_queue.make_callback(asyncio.get_running_loop(), on_result)
        future.add_done_callback(lambda done: report(done.exception() or done.result()))


async def _await_result(
    submit: Callable[[Callable[[object], None]], None],
) -> ServerResponse:
    """Start an operation with `submit`, and await its response.

    Raises:
        Exception: If the operation failed. The error of the operation.
    """
    ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def end(result: object) -> None:
        if not ended.done():
            ended.set_result(result)

    submit(end)
    result = await ended
    if isinstance(result, Exception):
        raise result
    return json_response(result)


def _end_span_on_result(
    on_result: Callable[[object], None], span: tracing.DeferredSpan
) -> Callable[[object], None]:
    """Return a callback that passes the result of a registration to `on_result` and ends its span."""

    def report_and_end(response: object) -> None:
        codes: set[int] = set()
        if isinstance(response, RegisterBlobsResponse):
            chunks = (chunk for blob in response.blobs for chunk in blob.chunks)
            codes = {channel.status_code for chunk in chunks for channel in chunk.channels}
        span.end(is_visible=codes == {0}, codes=",".join(map(str, sorted(codes))))
        on_result(response)

    return report_and_end


def parse_host(headers: Mapping[bytes, bytes]) -> str:
    """Return the host in the Host header without port, or an empty string."""
    host = headers.get(b"host", b"").decode("latin-1")
    end = host.find("]") if host.startswith("[") else -1
    colon = host.find(":", end + 1)
    return host if colon < 0 else host[:colon]
