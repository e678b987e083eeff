"""The conversation of streaming v1 (specification of v1, §2)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeVar

import msgspec

from snowmelt.errors import RequestMalformed
from snowmelt.ingest.verification import Sender
from snowmelt.schema.types import internal_name
from snowmelt.server.front import Lane
from snowmelt.server.problems import json_answer
from snowmelt.wire.streaming import (
    ConfigureRequest,
    DropRequest,
    OpenRequest,
    RegisterRequest,
    RegisterResponse,
    StatusRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from snowmelt.ingest.channels import Desk
    from snowmelt.ingest.registration import Registrar
    from snowmelt.server.front import Call
    from snowmelt.server.problems import Answer

_Message = TypeVar("_Message", bound=msgspec.Struct)
_register_decoder = msgspec.json.Decoder(RegisterRequest)
# Larger bodies are read in a thread; decoding takes about 5 ms a MiB.
_SMALL_BODY_BYTES = 64 * 1024
OUR_CLIENT = b"x-snowmelt-client"


class StreamingRoutes:
    """The handlers of v1; each is called in the event loop and blocks in threads only."""

    def __init__(self, desk: Desk, registrar: Registrar, threads: Executor) -> None:
        self._desk = desk
        self._registrar = registrar
        self._threads = threads
        self._mailbox = Mailbox()

    def lanes(self) -> dict[str, Lane]:
        """Return the routes by path, without trailing slash."""
        return {
            "/v1/streaming/client/configure": Lane(self.configure),
            "/v1/streaming/channels/open": Lane(self.open),
            "/v1/streaming/channels/status": Lane(self.status),
            "/v1/streaming/channels/drop": Lane(self.drop),
            "/v1/streaming/channels/write/blobs": Lane(self.register, interruptible=True),
            "/telemetry/send/sessionless": Lane(self.telemetry, open_to_all=True),
        }

    async def configure(self, call: Call) -> Answer:
        """Begin a client."""
        request = decode(call.body, ConfigureRequest)
        return await self._in_thread(self._desk.configure, request, call.user)

    async def open(self, call: Call) -> Answer:
        """Open a channel."""
        request = decode(call.body, OpenRequest)
        return await self._in_thread(self._desk.open, request, call.user)

    async def status(self, call: Call) -> Answer:
        """Tell what is committed."""
        request = decode(call.body, StatusRequest)
        return await self._in_thread(self._desk.status, request, call.user)

    async def drop(self, call: Call) -> Answer:
        """Drop a channel."""
        request = decode(call.body, DropRequest)
        return await self._in_thread(self._desk.drop, request, call.user)

    async def register(self, call: Call) -> Answer:
        """Register blobs."""
        loop = asyncio.get_running_loop()
        if len(call.body) <= _SMALL_BODY_BYTES:
            request = decode_registration(call.body)
        else:
            request = await loop.run_in_executor(self._threads, decode_registration, call.body)
        role = internal_name(request.role) if request.role else None
        sender = Sender(call.user, role, ours=OUR_CLIENT in call.headers)
        answered: asyncio.Future[RegisterResponse] = loop.create_future()
        self._registrar.submit(request, sender, self._mailbox.slot(loop, answered))
        return json_answer(await answered)

    async def telemetry(self, call: Call) -> Answer:
        """Take the official client's telemetry and forget it."""
        del call
        return json_answer({})

    async def _in_thread(
        self, work: Callable[[_Message, str], msgspec.Struct], request: _Message, user: str
    ) -> Answer:
        loop = asyncio.get_running_loop()
        return json_answer(await loop.run_in_executor(self._threads, work, request, user))


class Mailbox:
    """Carries answers from the registrar's threads to the event loop, a group per wake-up."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[asyncio.Future[RegisterResponse], object]] = deque()
        self._scheduled = False

    def slot(
        self, loop: asyncio.AbstractEventLoop, answered: asyncio.Future[RegisterResponse]
    ) -> Callable[[RegisterResponse | Exception], None]:
        """Return what settles `answered` when it is called from any thread."""

        def arrive(answer: RegisterResponse | Exception) -> None:
            self._arrived.append((answered, answer))
            # At worst two threads wake the loop at once: the second delivery finds nothing.
            if not self._scheduled:
                self._scheduled = True
                loop.call_soon_threadsafe(self._deliver)

        return arrive

    def _deliver(self) -> None:
        # First this, then looking: whoever comes in between wakes the loop again.
        self._scheduled = False
        while self._arrived:
            answered, answer = self._arrived.popleft()
            if answered.done():
                continue
            if isinstance(answer, RegisterResponse):
                answered.set_result(answer)
            elif isinstance(answer, Exception):
                answered.set_exception(answer)


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
