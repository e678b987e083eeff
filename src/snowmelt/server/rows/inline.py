"""Rows within a request, and the short way of small ones, which come by thousands a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from snowmelt.errors import BodyTooLarge, ContinuationStale, RequestMalformed
from snowmelt.ingest.rows.appends import Outdated
from snowmelt.ingest.rows.bodies import unpacked
from snowmelt.ingest.rows.continuation import parse_continuation
from snowmelt.ingest.rows.desk import RowsRequest
from snowmelt.ingest.rows.places import is_elastic
from snowmelt.server.front import SMALL_BODY_BYTES
from snowmelt.server.problems import Answer
from snowmelt.server.rows.addresses import PREFIX, parse_address
from snowmelt.server.rows.answers import code_of, json_answer, trouble_answer
from snowmelt.server.rows.call import STICKY, Call, number_of
from snowmelt.server.rows.taking import Load
from snowmelt.wire.rows import AppendAnswer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from snowmelt.ingest.rows.appends import Outcome
    from snowmelt.ingest.rows.places import Sender
    from snowmelt.server.rows.addresses import Address
    from snowmelt.server.rows.parts import RowParts
    from snowmelt.server.rows.taking import Taking

DONE = "OK"
ROWS = "rows"
_DATA = PREFIX + "data/"
# From the sixth 429 in a row on, the SDK would go over to files for five minutes.
_MOST_429 = 5


def request_of(
    parts: RowParts,
    call: Call,
    address: Address,
    sender: Sender,
    tokens: tuple[str | None, str | None],
) -> RowsRequest:
    """Return what a call asks for, counted for its channel; `tokens` are offsets, first and last.

    Raises:
        RequestMalformed: It says not where in its channel it belongs.
        TooManyRequests: There were too many within a second; RowsBusy likewise.
    """
    channel = address.channel or ""
    token = None if is_elastic(channel) else call.query.get("continuationToken", "")
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
        data=lambda: unpacked(body, encoding, limit, told),
        is_small=len(body) <= SMALL_BODY_BYTES,
    )


def append_answer(request: RowsRequest, outcome: Outcome) -> Answer:
    """Return the answer to a request whose rows are committed.

    Raises:
        SnowmeltError: They are not.
    """
    if isinstance(outcome, Exception):
        raise outcome
    if isinstance(outcome, Outdated):
        raise ContinuationStale(f"{outcome.reason} Open the channel again.")
    at = None if request.continuation is None else parse_continuation(request.continuation)
    answer = json_answer(AppendAnswer("" if at is None else str(at.following)))
    if request.continuation is None and request.client is not None:
        # Without a channel nothing else tells later how old its client is.
        born = b"%d" % request.client.born_ms
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

    def __init__(self, quick: QuickRows, call: Call, address: Address, sender: Sender) -> None:
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

        def tell(future: asyncio.Future[Outcome]) -> None:
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
        parts.tally.answered(code, parts.clock.monotonic() - self._began)
        return answer
