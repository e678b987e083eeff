"""Rows within a request, and the short way of small ones, which come by thousands a second."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from snowmelt.errors import BodyTooLarge, ContinuationStale, RequestMalformed, RowsBusy
from snowmelt.ingest.rows.append import AppendCommitted, SchemaOutdated, parse_continuation_token
from snowmelt.ingest.rows.body import decompress_body
from snowmelt.ingest.rows.request_batcher import PendingRequest
from snowmelt.ingest.rows.row_service import RowsRequest
from snowmelt.ingest.rows.targets import is_elastic_channel
from snowmelt.server.error_responses import Answer
from snowmelt.server.middleware import SMALL_BODY_BYTES
from snowmelt.server.response_queue import Mailbox
from snowmelt.server.rows.messages import (
    PREFIX,
    STICKY,
    Call,
    code_of,
    json_answer,
    number_of,
    parse_address,
    trouble_answer,
)
from snowmelt.wire.row_api import RowAppendResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from snowmelt.ingest.rows.append import AppendOutcome
    from snowmelt.ingest.rows.targets import PipePath, RowSender
    from snowmelt.server.rows.components import RowParts
    from snowmelt.server.rows.messages import Address

# --- Requests of rows on their way: each one once, however often it comes meanwhile.

if TYPE_CHECKING:
    Key = tuple[RowSender, PipePath, str, str, str | None]


@dataclass(frozen=True, slots=True)
class Load:
    """What a request brings.

    Attributes:
        weight: Bytes of memory that its rows take until they are committed.
        data: Returns the rows; called in a thread.
        is_small: To be handled together with others.
        done: Called in a thread when the rows are committed.
    """

    weight: int
    data: Callable[[], bytes]
    is_small: bool
    done: Callable[[], None] | None = None


class Taking:
    """Hands requests to the desk or the intake; used in the event loop only."""

    def __init__(self, parts: RowParts) -> None:
        self.parts = parts
        self.running: dict[Key, asyncio.Future[AppendOutcome]] = {}
        self.held_bytes = 0
        self.mailbox = Mailbox()

    def take(self, request: RowsRequest, load: Load) -> asyncio.Future[AppendOutcome]:
        """Return what becomes of a request; a copy of one on its way gets the same future.

        The future holds exceptions as results. It must not be cancelled: the client may go away,
        what has begun goes on.

        Raises:
            RowsBusy: Too many rows are on their way.
        """
        key = (
            request.sender,
            request.path,
            request.channel,
            request.request_id,
            request.continuation,
        )
        future = self.running.get(key)
        if future is not None:
            return future
        if self.held_bytes and self.held_bytes + load.weight > self.parts.limits.held_bytes:
            raise RowsBusy(reason="too many rows are on their way")
        self.held_bytes += load.weight
        loop = asyncio.get_running_loop()
        future = self.running[key] = loop.create_future()
        _Taken(self, key, request, load, future).begin(again=False)
        return future


class _Taken:
    """One request until it is settled."""

    __slots__ = ("_future", "_is_again", "_key", "_load", "_owner", "_request")

    def __init__(
        self,
        owner: Taking,
        key: Key,
        request: RowsRequest,
        load: Load,
        future: asyncio.Future[AppendOutcome],
    ) -> None:
        self._owner = owner
        self._key = key
        self._request = request
        self._load = load
        self._future = future
        self._is_again = False

    def begin(self, *, again: bool) -> None:
        """Hand it on."""
        self._is_again = again
        parts = self._owner.parts
        respond = self._owner.mailbox.slot(self._future.get_loop(), self._settle)
        try:
            if self._load.is_small and not again:
                parts.intake.submit(PendingRequest(self._request, self._load.data, respond))
            else:
                parts.threads.submit(self._append, respond)
        except (RowsBusy, RuntimeError):
            self._settle(RowsBusy(reason="it is stopping"))

    def _append(self, respond: Callable[[AppendOutcome], None]) -> None:
        try:
            self._owner.parts.desk.append_rows(
                self._request, self._load.data, respond, refresh=self._is_again
            )
        except Exception as error:  # noqa: BLE001 - the outcome of this request
            respond(error)

    def _settle(self, outcome: AppendOutcome) -> None:
        if isinstance(outcome, SchemaOutdated) and not self._is_again:
            # The table was altered: the rows are at hand, so they are converted for it as it is.
            self.begin(again=True)
            return
        owner = self._owner
        del owner.running[self._key]
        owner.held_bytes -= self._load.weight
        if self._load.done is not None and isinstance(outcome, AppendCommitted):
            owner.parts.threads.submit(self._load.done)
        if not self._future.done():
            self._future.set_result(outcome)


DONE = "OK"
ROWS = "rows"
_DATA = PREFIX + "data/"
# From the sixth 429 in a row on, the SDK would go over to files for five minutes.
_MOST_429 = 5


def request_of(
    parts: RowParts,
    call: Call,
    address: Address,
    sender: RowSender,
    tokens: tuple[str | None, str | None],
) -> RowsRequest:
    """Return what a call asks for, counted for its channel; `tokens` are offsets, first and last.

    Raises:
        RequestMalformed: It says not where in its channel it belongs.
        TooManyRequests: There were too many within a second; RowsBusy likewise.
    """
    channel = address.channel or ""
    token = None if is_elastic_channel(channel) else call.query.get("continuationToken", "")
    if token == "":
        raise RequestMalformed(reason="continuationToken is missing; open the channel first")
    parts.limits.pass_channel(
        f"{sender.user} {address.pipe}", channel, may_refuse_softly=call.retries < _MOST_429
    )
    request_id = call.query.get("requestId") or parts.new_id()
    return RowsRequest(address.pipe, channel, sender, request_id, token, *tokens, call.client)


def load_of(call: Call, limit: int) -> Load:
    """Return the rows within a call; they may be so many bytes."""
    body, encoding = call.body, call.header(b"content-encoding")
    told = number_of(call.header(b"x-snowflake-uncompressed-content-length"))
    return Load(
        # What is taken from memory until the rows are committed; zstd makes about a fifth of JSON.
        weight=len(body) * (6 if encoding else 2),
        data=lambda: decompress_body(body, encoding, limit, told),
        is_small=len(body) <= SMALL_BODY_BYTES,
    )


def append_answer(request: RowsRequest, outcome: AppendOutcome) -> Answer:
    """Return the answer to a request whose rows are committed.

    Raises:
        SnowmeltError: They are not.
    """
    if isinstance(outcome, Exception):
        raise outcome
    if isinstance(outcome, SchemaOutdated):
        raise ContinuationStale(f"{outcome.reason} Open the channel again.")
    at = None if request.continuation is None else parse_continuation_token(request.continuation)
    answer = json_answer(RowAppendResponse("" if at is None else str(at.next_token)))
    if request.continuation is None and request.client is not None:
        # Without a channel nothing else tells later how old its client is.
        born = b"%d" % request.client.first_token_issued_ms
        return msgspec.structs.replace(answer, headers=((STICKY, born),))
    return answer


class QuickRows:
    """Finds requests of rows that need no waiting but for their commit."""

    def __init__(self, parts: RowParts, taking: Taking) -> None:
        self.parts = parts
        self.taking = taking

    def shortcut(
        self, method: bytes, url: str, headers: Mapping[bytes, bytes]
    ) -> QuickAppend | None:
        """Return how a request is answered on the short way, None where it is to go the other."""
        if method != b"POST" or not url.startswith(_DATA):
            return None
        path, _, query = url.partition("?")
        address = parse_address(path)
        if address is None or address.channel is None or address.verb != ROWS:
            return None
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if headers.get(b"x-snowflake-authorization-token-type") == b"KEYPAIR_JWT":
            return None
        claims = self.parts.tokens.recalled(token) if scheme.lower() == b"bearer" else None
        if claims is None:
            return None
        call = Call("POST", path, query.encode("latin-1"), headers)
        call.claims = claims
        return QuickAppend(self, call, address, claims.sender)


class QuickAppend:
    """One request of rows on the short way."""

    __slots__ = ("_address", "_began", "_call", "_quick", "_sender")

    label = ROWS
    is_interruptible = False

    def __init__(self, quick: QuickRows, call: Call, address: Address, sender: RowSender) -> None:
        self._quick = quick
        self._call = call
        self._address = address
        self._sender = sender
        self._began = quick.parts.clock.monotonic()
        call.user = sender.user

    def begin(self, body: bytes, settle: Callable[[object], None]) -> None:
        """Hand the rows on; `settle` is called in the event loop with what became of them."""
        parts, call = self._quick.parts, self._call
        call.body = body
        if len(body) > parts.limits.body_bytes:
            raise BodyTooLarge(limit=parts.limits.body_bytes)
        request = request_of(
            parts, call, self._address, self._sender, (call.start_token, call.end_token)
        )

        def tell(future: asyncio.Future[AppendOutcome]) -> None:
            result: object
            try:
                result = append_answer(request, future.result())
            except Exception as error:  # noqa: BLE001 - what this request is told
                result = error
            settle(result)

        load = load_of(call, parts.limits.unpacked_bytes)
        call.body = b""
        future = self._quick.taking.take(request, load)
        future.add_done_callback(tell)

    def answer(self, result: object) -> Answer:
        """Return an answer as it is, and the one to what was raised."""
        parts = self._quick.parts
        code = DONE
        if isinstance(result, Answer):
            answer = result
        else:
            error = result if isinstance(result, Exception) else TypeError(repr(result))
            answer = trouble_answer(error, path=self._call.path, user=self._call.user)
            code = code_of(error)
        parts.tally.record_response(code, parts.clock.monotonic() - self._began)
        return answer
