"""The conversation of streaming v1 (specification of v1, §2)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from snowmelt import tracing
from snowmelt.errors import RequestMalformed
from snowmelt.ingest.channels import evolve_schema
from snowmelt.ingest.stage_locations import StageRequester
from snowmelt.ingest.verifier import Registrant
from snowmelt.schema.types import internal_name
from snowmelt.server.error_responses import json_answer
from snowmelt.server.middleware import SMALL_BODY_BYTES, Lane
from snowmelt.server.response_queue import Mailbox
from snowmelt.wire.streaming import (
    ConfigureRequest,
    DropRequest,
    EvolveRequest,
    OpenRequest,
    RegisterRequest,
    RegisterResponse,
    StatusRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor, Future

    from snowmelt.catalog.db.database import Database
    from snowmelt.clock import Clock
    from snowmelt.ingest.channels import ChannelService
    from snowmelt.ingest.registrar import Registrar
    from snowmelt.server.error_responses import Answer
    from snowmelt.server.middleware import Call

_Message = TypeVar("_Message", bound=msgspec.Struct)
_Who = TypeVar("_Who")
_Result = TypeVar("_Result", bound=msgspec.Struct)
_register_decoder = msgspec.json.Decoder(RegisterRequest)
# Says only how a client renews its stage credentials: with the header they are good for one prefix
# instead of all of the user's. Nothing that a client says about itself makes it trusted.
OUR_CLIENT = b"x-snowmelt-client"


class StreamingRoutes:
    """The handlers of v1; each is called in the event loop and blocks in threads only."""

    def __init__(self, desk: ChannelService, registrar: Registrar, threads: Executor) -> None:
        self._desk = desk
        self._registrar = registrar
        self._threads = threads
        self._mailbox = Mailbox()
        self.channels_opened = 0

    def lanes(self) -> dict[str, Lane]:
        """Return the routes by path, without trailing slash."""
        return {
            "/v1/streaming/client/configure": Lane(self.configure),
            "/v1/streaming/channels/open": Lane(self.open),
            "/v1/streaming/channels/status": Lane(self.status),
            "/v1/streaming/channels/drop": Lane(self.drop),
            "/v1/streaming/channels/write/blobs": Lane(
                self.register, interruptible=True, quick=self.register_quickly
            ),
            "/telemetry/send/sessionless": Lane(self.telemetry, open_to_all=True),
        }

    async def configure(self, call: Call) -> Answer:
        """Begin a client."""
        request = decode(call.body, ConfigureRequest)
        request.role = call.role(request.role)
        asker = StageRequester(call.user, host_of(call.headers), OUR_CLIENT in call.headers)
        return await self._in_thread(self._desk.configure_client, request, asker)

    async def open(self, call: Call) -> Answer:
        """Open a channel."""
        request = decode(call.body, OpenRequest)
        request.role = call.role(request.role)
        answer = await self._queued(self._desk.open_channel, request, call.user)
        self.channels_opened += 1
        return answer

    async def status(self, call: Call) -> Answer:
        """Tell what is committed."""
        request = decode(call.body, StatusRequest)
        request.role = call.role(request.role)
        return await self._in_thread(self._desk.get_status, request, call.user)

    async def drop(self, call: Call) -> Answer:
        """Drop a channel."""
        request = decode(call.body, DropRequest)
        request.role = call.role(request.role)
        return await self._queued(self._desk.drop_channel, request, call.user)

    async def register(self, call: Call) -> Answer:
        """Register blobs."""
        loop = asyncio.get_running_loop()
        if len(call.body) <= SMALL_BODY_BYTES:
            request = decode_registration(call.body)
        else:
            request = await loop.run_in_executor(self._threads, decode_registration, call.body)
        answered: asyncio.Future[RegisterResponse] = loop.create_future()

        def settle(answer: object) -> None:
            if answered.done():
                return
            if isinstance(answer, RegisterResponse):
                answered.set_result(answer)
            elif isinstance(answer, Exception):
                answered.set_exception(answer)

        self._submit(request, call, settle)
        return json_answer(await answered)

    def register_quickly(self, call: Call, settle: Callable[[object], None]) -> None:
        """Register blobs; `settle` gets the answer, or what went wrong, in the event loop."""
        self._submit(decode_registration(call.body), call, settle)

    def _submit(
        self, request: RegisterRequest, call: Call, settle: Callable[[object], None]
    ) -> None:
        asked = call.role(request.role)
        role = internal_name(asked) if asked else None
        sender = Registrant(call.user, role)
        loop = asyncio.get_running_loop()
        if tracing.is_enabled():
            settle = _traced(settle, tracing.DeferredSpan("snowmelt.registration", call.headers))
        self._registrar.submit(request, sender, self._mailbox.slot(loop, settle))

    async def telemetry(self, call: Call) -> Answer:
        """Take the official client's telemetry and forget it."""
        del call
        # What the SDK of the row API reads; that of v1 reads nothing.
        return json_answer({"success": True, "data": ""})

    async def _in_thread(
        self, work: Callable[[_Message, _Who], msgspec.Struct], request: _Message, who: _Who
    ) -> Answer:
        loop = asyncio.get_running_loop()
        return json_answer(await loop.run_in_executor(self._threads, work, request, who))

    async def _queued(
        self,
        work: Callable[[_Message, _Who], Future[_Result]],
        request: _Message,
        who: _Who,
    ) -> Answer:
        """Answer when the write that `work` queues is committed; no thread waits for it."""
        loop = asyncio.get_running_loop()
        future = await loop.run_in_executor(self._threads, work, request, who)
        answer: _Result = await asyncio.wrap_future(future)
        return json_answer(answer)


def _traced(
    settle: Callable[[object], None], span: tracing.DeferredSpan
) -> Callable[[object], None]:
    """Return what settles a registration and ends its span."""

    def settle_and_end(answer: object) -> None:
        codes: set[int] = set()
        if isinstance(answer, RegisterResponse):
            chunks = (chunk for blob in answer.blobs for chunk in blob.chunks)
            codes = {channel.status_code for chunk in chunks for channel in chunk.channels}
        span.end(is_visible=codes == {0}, codes=",".join(map(str, sorted(codes))))
        settle(answer)

    return settle_and_end


def host_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the host of a request's Host header, without port; empty when it has none."""
    host = headers.get(b"host", b"").decode("latin-1")
    end = host.find("]") if host.startswith("[") else -1
    colon = host.find(":", end + 1)
    return host if colon < 0 else host[:colon]


def decode(body: bytes, kind: type[_Message]) -> _Message:
    """Read a message.

    Raises:
        RequestMalformed: No JSON, or a field of another type.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestMalformed(reason=str(error)) from None


def decode_registration(body: bytes) -> RegisterRequest:
    """Read a registration.

    Raises:
        RequestMalformed: No JSON, or a field of another type.
    """
    try:
        return _register_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestMalformed(reason=str(error)) from None


# --- The conversation about columns that a client's rows have and the table lacks; our own.


class EvolutionRoutes:
    """The handler is called in the event loop and blocks in threads only."""

    def __init__(self, database: Database, clock: Clock, threads: Executor) -> None:
        self._database = database
        self._clock = clock
        self._threads = threads

    def lanes(self) -> dict[str, Lane]:
        """Return the routes by path, without trailing slash."""
        return {"/v1/snowmelt/tables/evolve": Lane(self.evolve)}

    async def evolve(self, call: Call) -> Answer:
        """Add columns to a table, or take NOT NULL off."""
        request = decode(call.body, EvolveRequest)
        request.role = call.role(request.role)
        work = partial(evolve_schema, self._database, self._clock, request, call.user)
        loop = asyncio.get_running_loop()
        return json_answer(await loop.run_in_executor(self._threads, work))
