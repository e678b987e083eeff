"""Sends one batch until its response arrives: retries, polls and verification of the body.

Source: the published protocol of external functions (202 and polling with the same batch ID,
Content-MD5, statuses that are retried). All attempts of a batch have the same ID, so that the
service can recognize duplicates.

`RetryState` decides whether to retry, to poll or to fail, and computes pauses. It does no input or
output. Its numbers come from the published protocol, or from measurements of its users if the
protocol defines none. Call permits limit the batches in flight and the request rate.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from email.utils import parsedate_to_datetime

from snowmelt.backoff import growing_delays_s
from snowmelt.clock import Clock
from snowmelt.errors import SnowmeltError, UserError
from snowmelt.functions.caller.http_client import HttpClient, HttpLimits, HttpResponse
from snowmelt.functions.caller.http_request import (
    AddressedRequest,
    RequestFactory,
    TranslatedRequest,
)
from snowmelt.functions.caller.plan import WAIT_REPORT, CallPlan, CallRecord
from snowmelt.functions.caller.rate_and_concurrency_limits import (
    AcquiredPermit,
    CallBudget,
    RateLimiter,
)
from snowmelt.functions.errors import (
    BatchInvalid,
    BatchTooLarge,
    CallFailed,
    CallTimeout,
    ConnectFailed,
    ConnectTimeout,
    PayloadTooLarge,
    ResponseInvalid,
    TransportFailed,
    UrlRefused,
)
from snowmelt.functions.urls import parse_url
from snowmelt.functions.wire import compression
from snowmelt.functions.wire.messages import MAX_RESPONSE_BYTES

HTTP_OK, HTTP_ACCEPTED, HTTP_NOT_FOUND, HTTP_CONTENT_TOO_LARGE = 200, 202, 404, 413
_RETRYABLE_STATUSES = frozenset({408, 429, *range(500, 600)})
_INITIAL_DELAY_S, _MAX_RETRY_DELAY_S, _MAX_POLL_DELAY_S = 0.2, 20.0, 5.0
_POLL_DELAY_FACTOR = 1.5
# Minimum remaining time for another request.
_MIN_REQUEST_TIMEOUT_S = 0.05
# Report a batch that waits for longer, because a user cannot tell a slow query from a hanging one.
_REPORT_AFTER_S, _REPORT_INTERVAL_S = 5.0, 30.0

_log = logging.getLogger("snowmelt.functions")


class RetryState:
    """Retry state of one batch. `method` is the method of the next request.

    `was_connected` is True if this process has had a connection to the service. If it is False,
    retries end sooner, unless the function has a timeout.
    """

    def __init__(self, plan: CallPlan, clock: Clock, *, was_connected: bool = False) -> None:
        function, options = plan.function, plan.options
        self.method = "POST"
        self._failure_prefix = f"Request failed for external function {function.signature.name}"
        self._clock = clock
        self._max_retries = function.max_batch_retries
        self._poll_timeout_s = options.poll_timeout_s
        # A timeout in the statement includes polls. The caller's own timeouts are separate.
        said_s = function.batch_timeout_s
        self._timeout_covers_polls = said_s is not None
        self._deadline = clock.monotonic() + (options.retry_timeout_s if said_s is None else said_s)
        self._unreachable_deadline = (
            clock.monotonic() + options.unreachable_timeout_s
            if said_s is None and not was_connected
            else None
        )
        self._poll_deadline: float | None = None
        self._retries = 0
        self._retry_delays_s = growing_delays_s(_INITIAL_DELAY_S, _MAX_RETRY_DELAY_S, jitter=1.0)
        self._poll_delays_s = growing_delays_s(
            _INITIAL_DELAY_S, _MAX_POLL_DELAY_S, factor=_POLL_DELAY_FACTOR, jitter=0.0
        )
        self._was_resubmitted = False
        # The last response of the service to a POST.
        self._last_post_error: str | None = None

    @property
    def remaining_s(self) -> float:
        """Remaining seconds of this phase, at least `_MIN_REQUEST_TIMEOUT_S`."""
        return max(self._current_deadline() - self._clock.monotonic(), _MIN_REQUEST_TIMEOUT_S)

    def extend_deadline(self, seconds: float) -> None:
        """Extend the deadline by the time in which no request could be sent."""
        self._deadline += seconds
        if self._unreachable_deadline is not None:
            self._unreachable_deadline += seconds
        if self._poll_deadline is not None:
            self._poll_deadline += seconds

    def _current_deadline(self) -> float:
        if self.method == "POST" or self._poll_deadline is None:
            if self._unreachable_deadline is None:
                return self._deadline
            return min(self._deadline, self._unreachable_deadline)
        if self._timeout_covers_polls:
            return min(self._deadline, self._poll_deadline)
        return self._poll_deadline

    def compute_pause_after_status(
        self, status: int, retry_after_s: float | None = None, body_excerpt: str = ""
    ) -> float:
        """Return the seconds to pause before the next request.

        `status` is neither 200 nor 413.

        Raises:
            ResponseInvalid: If no further request may be sent.
        """
        self._unreachable_deadline = None
        reason = f"{self._failure_prefix} with remote service error: {status}{body_excerpt}"
        if status == HTTP_ACCEPTED:
            return self._schedule_poll(retry_after_s)
        if self.method == "POST":
            self._last_post_error = reason
            if status in _RETRYABLE_STATUSES:
                return self._schedule_retry(reason, retry_after_s)
            raise ResponseInvalid(reason=reason)
        if status == HTTP_NOT_FOUND and not self._was_resubmitted:
            # The service has lost the batch, for example in a restart.
            self._was_resubmitted = True
            self.method = "POST"
            return 0.0
        if status in _RETRYABLE_STATUSES and status < 500:
            return self._schedule_poll(retry_after_s)
        raise ResponseInvalid(reason=reason)

    def compute_pause_after_failure(self, error: TransportFailed) -> float:
        """Return the seconds to pause after a request without a response.

        Raises:
            ResponseInvalid: If no further request may be sent.
        """
        if not isinstance(error, ConnectFailed | ConnectTimeout):
            self._unreachable_deadline = None
        why = str(error).rstrip(".")
        told, self._last_post_error = self._last_post_error, None
        if isinstance(error, CallTimeout):
            reason = f"{self._failure_prefix}. Error: Timeout was reached ({why})"
            if (
                told is not None
                and self._current_deadline() - self._clock.monotonic() <= _MIN_REQUEST_TIMEOUT_S
            ):
                # The last request had only the remaining time, so report the failure before it.
                reason = told
        else:
            reason = (
                f"{self._failure_prefix}. Error: Remote service cannot be reached. "
                f"Check the endpoint URL and try again ({why})"
            )
        if not error.retryable:
            raise ResponseInvalid(reason=reason)
        if self.method == "GET":
            return self._schedule_poll(None, reason)
        return self._schedule_retry(reason, None)

    def _schedule_retry(self, reason: str, retry_after_s: float | None) -> float:
        if self._max_retries is not None and self._retries >= self._max_retries:
            raise ResponseInvalid(reason=f"{reason}; after {self._retries} retries")
        self._retries += 1
        return self._fit_pause(next(self._retry_delays_s), retry_after_s, reason)

    def _schedule_poll(self, retry_after_s: float | None, reason: str | None = None) -> float:
        self.method = "GET"
        if self._poll_deadline is None:
            self._poll_deadline = self._clock.monotonic() + self._poll_timeout_s
        said = f"{self._failure_prefix}. Error: Timeout was reached (the service still works on the batch)"
        return self._fit_pause(next(self._poll_delays_s), retry_after_s, reason or said)

    def _fit_pause(self, pause_s: float, retry_after_s: float | None, reason: str) -> float:
        """Limit a pause to the remaining time. A Retry-After beyond it ends the retries."""
        left_s = self._current_deadline() - self._clock.monotonic()
        if left_s <= _MIN_REQUEST_TIMEOUT_S:
            raise ResponseInvalid(reason=f"{reason}; no answer in time")
        if retry_after_s:
            if retry_after_s >= left_s:
                raise ResponseInvalid(
                    reason=f"{reason}; its Retry-After of {retry_after_s:.0f} s exceeds the {left_s:.0f} s that are left"
                )
            return retry_after_s
        return min(pause_s, left_s / 2)


def parse_retry_after(headers: Mapping[str, str], now: dt.datetime) -> float | None:
    """Parse the header Retry-After to seconds. Return None if it is missing.

    `now`, which is timezone-aware, is used for a header that contains a date.
    """
    said = headers.get("retry-after", "").strip()
    if not said:
        return None
    try:
        seconds = float(said)
        return max(seconds, 0.0) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(said)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=dt.UTC)
    return max((date - now).total_seconds(), 0.0)


_BUSY_STATUSES = frozenset({429, 503})


class RetryingSender:
    """Sender for the batches of one function. For one event loop; batches may be concurrent."""

    def __init__(
        self,
        plan: CallPlan,
        client: HttpClient,
        clock: Clock,
        call_limiter: RateLimiter | None = None,
        budget: CallBudget | None = None,
    ) -> None:
        """Create a sender. Does not resolve names or connect."""
        self._budget = budget
        self._reported_at: float | None = None
        self._plan = plan
        self._client = client
        self._clock = clock
        self._call_limiter = call_limiter
        self._request_factory = RequestFactory(plan, client.accepted_encodings)
        options = plan.options
        self._http_limits = HttpLimits(
            options.connect_timeout_s,
            options.idle_timeout_s,
            options.reply_timeout_s,
            MAX_RESPONSE_BYTES,
        )
        most = plan.function.max_batch_bytes
        self._max_body_bytes = options.max_batch_bytes if most is None else most

    async def send_batch(self, batch: TranslatedRequest, record: CallRecord) -> bytes:
        """Send a batch. Return the response body, decompressed and verified by its checksum.

        Sets status, attempts, polls, bytes and times in the record. The code that decodes the body
        sets the outcome.

        Raises:
            PayloadTooLarge: If the batch or its response exceeds a limit of the caller or of the
                service. Halves of the batch may fit.
            CallFailed: If the batch failed permanently.
            UserError: If the batch may not be sent: the URL is rejected, a secret is missing, or
                the budget is spent.
        """
        if batch.body is not None and len(batch.body) > self._max_body_bytes:
            raise PayloadTooLarge(
                status=None, reason=f"the request is larger than {self._max_body_bytes} bytes"
            )
        if not record.started_at:
            record.started_at = self._clock.now().isoformat()
        try:
            return await self._send_with_retries(batch, record)
        except PayloadTooLarge as error:
            record.status = error.fields["status"]  # type: ignore[assignment]
            raise
        except UserError:
            raise
        except SnowmeltError as error:
            url = display_url(self._plan, batch.url_suffix)
            raise make_call_failed(record, str(error), url) from error

    async def _send_with_retries(self, batch: TranslatedRequest, record: CallRecord) -> bytes:
        envelope = self._request_factory.resolve_target(batch)
        clock, arrived = self._clock, self._clock.monotonic()
        limiter, url = self._call_limiter, self._plan.function.url
        async with limiter.acquire(url) if limiter is not None else nullcontext() as turn:
            record.ms_waiting += (clock.monotonic() - arrived) * 1000
            connected = envelope.target.origin in self._client.connected_origins
            course = RetryState(self._plan, clock, was_connected=connected)
            first_sent_at = clock.monotonic()
            while True:
                begun = clock.monotonic()
                try:
                    reply = await self._send_request(envelope, course, record)
                finally:
                    record.ms_calling += (clock.monotonic() - begun) * 1000
                if isinstance(reply, TransportFailed):
                    pause_s = course.compute_pause_after_failure(reply)
                elif reply.status == HTTP_OK:
                    if turn is not None:
                        turn.record_success()
                    return self._decode_verified_body(reply)
                else:
                    pause_s = self._handle_unsuccessful_response(reply, course, turn)
                paused = clock.monotonic()
                if paused - first_sent_at >= _REPORT_AFTER_S:
                    self._report_wait(reply, record, course.remaining_s)
                await clock.pause(pause_s)
                waited = clock.monotonic()
                if turn is not None:
                    await turn.acquire_next_request()
                if self._budget is not None:
                    self._budget.spend()
                # Do not count the wait for a permit towards the timeout.
                course.extend_deadline(clock.monotonic() - waited)
                record.ms_waiting += (clock.monotonic() - paused) * 1000

    def _report_wait(
        self, last: HttpResponse | TransportFailed, record: CallRecord, remaining_s: float
    ) -> None:
        """Log why a batch waits, at most once in `_REPORT_INTERVAL_S`."""
        now = self._clock.monotonic()
        if isinstance(last, HttpResponse) and last.status == HTTP_ACCEPTED:
            return
        if self._reported_at is not None and now - self._reported_at < _REPORT_INTERVAL_S:
            return
        self._reported_at = now
        if isinstance(last, HttpResponse):
            reason: object = f"status {last.status}"
        else:
            reason = last.fields["reason"]
        url = display_url(self._plan)
        _log.warning(
            "%s %s%s: %s; attempt %d, retries end in %.0f s",
            record.function,
            WAIT_REPORT,
            f" {url}" if url else "",
            reason,
            record.attempts,
            remaining_s,
        )

    async def _send_request(
        self, addressed_request: AddressedRequest, retry_state: RetryState, record: CallRecord
    ) -> HttpResponse | TransportFailed:
        head, body = await self._request_factory.encode_request(
            addressed_request, retry_state.method, record.query_id
        )
        if retry_state.method == "POST":
            record.attempts += 1
        else:
            record.polls += 1
        limits = self._http_limits
        if retry_state.remaining_s < limits.response_timeout_s:
            limits = replace(limits, response_timeout_s=retry_state.remaining_s)
        try:
            reply = await self._client.send_request(
                addressed_request.target, head, body, limits, record
            )
        except TransportFailed as error:
            record.status = None
            return error
        record.status = reply.status
        return reply

    def _handle_unsuccessful_response(
        self, response: HttpResponse, retry_state: RetryState, permit: AcquiredPermit | None
    ) -> float:
        asked_s = parse_retry_after(response.headers, self._clock.now())
        if response.status == HTTP_CONTENT_TOO_LARGE and retry_state.method == "POST":
            raise PayloadTooLarge(
                status=HTTP_CONTENT_TOO_LARGE, reason="the service rejected the batch as too large"
            )
        if permit is not None and response.status in _BUSY_STATUSES:
            permit.record_throttled(asked_s)
        shown = ""
        if response.status != HTTP_ACCEPTED and (text := self._excerpt_error_body(response)):
            shown = f" '{text}'"
        return retry_state.compute_pause_after_status(response.status, asked_s, shown)

    def _excerpt_error_body(self, response: HttpResponse) -> str:
        """Return the beginning of an error body, on one line and without secrets."""
        longest = self._plan.options.error_body_chars
        if not longest:
            return ""
        encoding = response.headers.get("content-encoding")
        try:
            body = compression.decompress(response.body, encoding, max_bytes=MAX_RESPONSE_BYTES)
        except (BatchInvalid, BatchTooLarge):
            return ""
        text = self._request_factory.redact_secrets(body.decode(errors="replace"))
        text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
        return text if len(text) <= longest else f"{text[:longest]}…"

    def _decode_verified_body(self, response: HttpResponse) -> bytes:
        encoding = response.headers.get("content-encoding")
        try:
            plain = compression.decompress(
                response.body, encoding, max_bytes=MAX_RESPONSE_BYTES, strict=True
            )
        except BatchTooLarge:
            reason = f"the response is larger than {MAX_RESPONSE_BYTES:,} bytes"
            raise PayloadTooLarge(status=response.status, reason=reason) from None
        except BatchInvalid as error:
            raise ResponseInvalid(reason=error.fields["reason"]) from None
        digest = response.headers.get("content-md5")
        if digest is not None and not compression.is_content_md5_valid(
            digest, response.body, plain
        ):
            raise ResponseInvalid(reason="the Content-MD5 of the response does not match its body")
        return plain


def make_call_failed(record: CallRecord, reason: str, url: str = "") -> CallFailed:
    """Make the error of a failed batch from its record."""
    return CallFailed(
        function=record.function,
        batch=record.batch_id,
        reason=reason.rstrip("."),
        status=record.status,
        attempts=record.attempts,
        polls=record.polls,
        seconds=(record.ms_waiting + record.ms_calling) / 1000,
        url=f", {url}" if url else "",
    )


def display_url(plan: CallPlan, suffix: str = "") -> str:
    """Return the URL of a call for messages, without its query. Empty if the URL is secret."""
    if plan.function.secure:
        return ""
    try:
        return parse_url(plan.function.url + suffix).url_without_query
    except UrlRefused:
        return ""
