"""Append requests in flight, and the fast path for small ones.

A request that is repeated while its first copy is in flight is executed once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import msgspec

from snowmelt.errors import BodyTooLarge, ContinuationStale, RequestMalformed, RowsBusy
from snowmelt.ingest.rows.append_types import (
    AppendCommitted,
    AppendOutcome,
    SchemaOutdated,
    parse_continuation_token,
)
from snowmelt.ingest.rows.body import decompress_body
from snowmelt.ingest.rows.request_batcher import PendingRequest
from snowmelt.ingest.rows.row_service import RawAppendRequest
from snowmelt.ingest.rows.targets import PipePath, RowSender, is_elastic_channel
from snowmelt.server.error_responses import ServerResponse
from snowmelt.server.fast_path import ResponseQueue
from snowmelt.server.middleware import SMALL_BODY_BYTES
from snowmelt.server.rows.requests_and_errors import (
    PATH_PREFIX,
    SESSION_HEADER,
    RowApiPath,
    RowApiRequest,
    error_response,
    get_error_code,
    json_response,
    parse_count,
    parse_path,
)
from snowmelt.wire.row_api import RowAppendResponse

if TYPE_CHECKING:
    from snowmelt.server.rows.components import RowApiComponents

    Key = tuple[RowSender, PipePath, str, str, str | None]


@dataclass(frozen=True, slots=True)
class AppendPayload:
    """Rows of a request.

    Attributes:
        memory_bytes: Memory that the rows use until they are committed, in bytes.
        get_body: Returns the rows. Called in a thread.
        is_small: True if the request may be handled in a batch with others.
        on_committed: Called in a thread when the rows are committed.
    """

    memory_bytes: int
    get_body: Callable[[], bytes]
    is_small: bool
    on_committed: Callable[[], None] | None = None


@dataclass(eq=False, slots=True)
class InFlightAppends:
    """Passes requests to the row service or the request batcher. Used in the event loop only."""

    components: RowApiComponents
    in_flight: dict[Key, asyncio.Future[AppendOutcome]] = field(default_factory=dict)
    held_bytes: int = 0
    response_queue: ResponseQueue = field(default_factory=ResponseQueue)

    def submit_or_join(
        self, request: RawAppendRequest, payload: AppendPayload
    ) -> asyncio.Future[AppendOutcome]:
        """Start a request, or join its first copy in flight. Return the future of its outcome.

        The result of the future may be an exception. The future must not be cancelled: the append continues
        even if the client disconnects.

        Raises:
            RowsBusy: If the rows in flight exceed the limit.
        """
        key = (
            request.sender,
            request.path,
            request.channel,
            request.request_id,
            request.continuation,
        )
        future = self.in_flight.get(key)
        if future is not None:
            return future
        if (
            self.held_bytes
            and self.held_bytes + payload.memory_bytes > self.components.limits.max_held_bytes
        ):
            raise RowsBusy(reason="too many rows are in flight")
        self.held_bytes += payload.memory_bytes
        loop = asyncio.get_running_loop()
        future = self.in_flight[key] = loop.create_future()
        _InFlightAppend(self, key, request, payload, future).start(is_retry=False)
        return future

    def find_immediate_append(
        self, method: bytes, url: str, headers: Mapping[bytes, bytes]
    ) -> ImmediateAppend | None:
        """Return the fast-path handler of a request, or None if it needs the normal routes."""
        if method != b"POST" or not url.startswith(_DATA_PATH_PREFIX):
            return None
        path, _, query = url.partition("?")
        address = parse_path(path)
        if address is None or address.channel is None or address.verb != ROWS_VERB:
            return None
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if headers.get(b"x-snowflake-authorization-token-type") == b"KEYPAIR_JWT":
            return None
        claims = (
            self.components.scoped_tokens.get_cached_claims(token)
            if scheme.lower() == b"bearer"
            else None
        )
        if claims is None:
            return None
        call = RowApiRequest("POST", path, query.encode("latin-1"), headers)
        call.claims, call.user = claims, claims.sub
        return ImmediateAppend(
            self, call, address, claims.sender, self.components.clock.monotonic()
        )


@dataclass(eq=False, slots=True)
class _InFlightAppend:
    """One request until its outcome is known."""

    _owner: InFlightAppends
    _key: Key
    _request: RawAppendRequest
    _load: AppendPayload
    _future: asyncio.Future[AppendOutcome]
    _is_again: bool = False

    def start(self, *, is_retry: bool) -> None:
        """Submit the request to the batcher or a thread."""
        self._is_again = is_retry
        parts = self._owner.components
        respond = self._owner.response_queue.make_callback(self._future.get_loop(), self._finish)
        try:
            if self._load.is_small and not is_retry:
                parts.request_batcher.submit(
                    PendingRequest(self._request, self._load.get_body, respond)
                )
            else:
                parts.threads.submit(self._append_in_thread, respond)
        except (RowsBusy, RuntimeError):
            self._finish(RowsBusy(reason="it is stopping"))

    def _append_in_thread(self, respond: Callable[[AppendOutcome], None]) -> None:
        try:
            self._owner.components.row_service.append_rows(
                self._request, self._load.get_body, respond, refresh=self._is_again
            )
        except Exception as error:  # noqa: BLE001 - the outcome of this request
            respond(error)

    def _finish(self, outcome: AppendOutcome) -> None:
        if isinstance(outcome, SchemaOutdated) and not self._is_again:
            # The table was altered. The rows are still in memory, so convert them to its current
            # schema.
            self.start(is_retry=True)
            return
        owner = self._owner
        del owner.in_flight[self._key]
        owner.held_bytes -= self._load.memory_bytes
        if self._load.on_committed is not None and isinstance(outcome, AppendCommitted):
            owner.components.threads.submit(self._load.on_committed)
        if not self._future.done():
            self._future.set_result(outcome)


OK_CODE = "OK"
ROWS_VERB = "rows"
_DATA_PATH_PREFIX = PATH_PREFIX + "data/"
# After six consecutive 429 responses, the SDK switches to files for five minutes.
_MAX_CONSECUTIVE_429 = 5


def build_raw_append_request(
    components: RowApiComponents,
    call: RowApiRequest,
    api_path: RowApiPath,
    sender: RowSender,
    offset_tokens: tuple[str | None, str | None],
) -> RawAppendRequest:
    """Build an append request, and count it for the rate limit of its channel.

    Args:
        components: Components of the row API.
        call: The HTTP request.
        api_path: Pipe and channel.
        sender: Sender of the rows.
        offset_tokens: First and last offset token.

    Raises:
        RequestMalformed: If the continuation token is missing.
        TooManyRequests: If the channel exceeds its limit of requests per second.
        RowsBusy: If the channel exceeds this limit, and the request was already repeated five
            times.
    """
    channel = api_path.channel or ""
    token = None if is_elastic_channel(channel) else call.query.get("continuationToken", "")
    if token == "":
        raise RequestMalformed(reason="continuationToken is missing; open the channel first")
    components.limits.count_and_check_request_rate(
        f"{sender.user} {api_path.pipe}", channel, allow_429=call.retry_count < _MAX_CONSECUTIVE_429
    )
    request_id = call.query.get("requestId") or components.new_request_id()
    return RawAppendRequest(
        api_path.pipe, channel, sender, request_id, token, *offset_tokens, call.sdk_client
    )


def make_payload(call: RowApiRequest, max_bytes: int) -> AppendPayload:
    """Return the rows in an HTTP request, at most `max_bytes` bytes after decompression."""
    body, encoding = call.body, call.get_header(b"content-encoding")
    told = parse_count(call.get_header(b"x-snowflake-uncompressed-content-length"))
    return AppendPayload(
        # Estimated memory until the rows are committed: zstd compresses JSON to about a fifth.
        memory_bytes=len(body) * (6 if encoding else 2),
        get_body=lambda: decompress_body(body, encoding, max_bytes, told),
        is_small=len(body) <= SMALL_BODY_BYTES,
    )


def build_append_response(request: RawAppendRequest, outcome: AppendOutcome) -> ServerResponse:
    """Return the response to a request whose rows are committed.

    Raises:
        SnowmeltError: If the rows are not committed.
    """
    if isinstance(outcome, Exception):
        raise outcome
    if isinstance(outcome, SchemaOutdated):
        raise ContinuationStale(f"{outcome.reason} Open the channel again.")
    at = None if request.continuation is None else parse_continuation_token(request.continuation)
    answer = json_response(RowAppendResponse("" if at is None else str(at.next_token)))
    if request.continuation is None and request.client is not None:
        # The client returns this header in later requests. Requests without a channel have no token
        # that could contain the time of the client's first token.
        born = b"%d" % request.client.first_token_issued_ms
        return msgspec.structs.replace(answer, headers=((SESSION_HEADER, born),))
    return answer


@dataclass(eq=False, slots=True)
class ImmediateAppend:
    """One append request on the fast path."""

    label: ClassVar[str] = ROWS_VERB
    has_failpoint: ClassVar[bool] = False

    _in_flight: InFlightAppends
    _call: RowApiRequest
    _address: RowApiPath
    _sender: RowSender
    _began: float

    def begin(self, body: bytes, on_result: Callable[[object], None]) -> None:
        """Submit the rows. `on_result` is called in the event loop with the result."""
        parts, call = self._in_flight.components, self._call
        call.body = body
        if len(body) > parts.limits.max_body_bytes:
            raise BodyTooLarge(limit=parts.limits.max_body_bytes)
        request = build_raw_append_request(
            parts,
            call,
            self._address,
            self._sender,
            (call.start_offset_token, call.end_offset_token),
        )

        def report(future: asyncio.Future[AppendOutcome]) -> None:
            result: object
            try:
                result = build_append_response(request, future.result())
            except Exception as error:  # noqa: BLE001 - the response of this request
                result = error
            on_result(result)

        load = make_payload(call, parts.limits.max_decompressed_bytes)
        call.body = b""
        future = self._in_flight.submit_or_join(request, load)
        future.add_done_callback(report)

    def build_response(self, result: object) -> ServerResponse:
        """Return a response unchanged. Convert an exception to an error response."""
        parts = self._in_flight.components
        code = OK_CODE
        if isinstance(result, ServerResponse):
            answer = result
        else:
            error = result if isinstance(result, Exception) else TypeError(repr(result))
            answer = error_response(error, path=self._call.path, user=self._call.user)
            code = get_error_code(error)
        parts.metrics.record_response([code], parts.clock.monotonic() - self._began)
        return answer
