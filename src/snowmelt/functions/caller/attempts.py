"""One batch until its answer: sent, sent again, polled for, and what came back checked.

Source: the published protocol of external functions (202 and polling with the same batch id,
Content-MD5, what is tried again). A batch has one id, so doing this twice is the service's to see.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol, Self

from snowmelt.errors import SnowmeltError, UserError
from snowmelt.functions.caller.http_client import Bounds
from snowmelt.functions.caller.http_request import Dispatch
from snowmelt.functions.errors import (
    BatchInvalid,
    BatchTooLarge,
    CallFailed,
    ReplyInvalid,
    TimedOut,
    TooLarge,
    TransportFailed,
    UrlRefused,
)
from snowmelt.functions.urls import parse_url
from snowmelt.functions.wire import compression as coding
from snowmelt.functions.wire.messages import MAX_REPLY_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from snowmelt.clock import Clock
    from snowmelt.functions.caller.call_log import CallRecord
    from snowmelt.functions.caller.http_client import HttpClient, Reply
    from snowmelt.functions.caller.http_request import Envelope, Outgoing
    from snowmelt.functions.caller.limits import Budget
    from snowmelt.functions.caller.plan import CallPlan

# --- What follows a reply that is no answer: another attempt, another look, or the end.
#
# No input or output: pauses are said, not made. Source of the numbers: the published protocol, and
# where that is silent, what its users measured.

OK, ACCEPTED, NOT_FOUND, TOO_LARGE = 200, 202, 404, 413
_PASSING = frozenset({408, 429, *range(500, 600)})
_FIRST_S = 0.2
_RETRY_GROWTH, _LONGEST_RETRY_S = 2.0, 20.0
_POLL_GROWTH, _LONGEST_POLL_S = 1.5, 5.0
# Less time than this is not worth another request.
_LEAST_S = 0.05


class Course:
    """One batch, from its first POST on; `method` is that of the next request."""

    def __init__(self, plan: CallPlan, clock: Clock) -> None:
        function, options = plan.function, plan.options
        self.method = "POST"
        self._failed = f"Request failed for external function {function.signature.name}"
        self._clock = clock
        self._max_retries = function.max_batch_retries
        self._poll_timeout_s = options.poll_timeout_s
        # What the statement says covers polls, too; the caller's own limits are one for each.
        said_s = function.batch_timeout_s
        self._covers_all = said_s is not None
        self._until = clock.monotonic() + (options.retry_timeout_s if said_s is None else said_s)
        self._poll_until: float | None = None
        self._retries = 0
        self._retry_s = self._poll_s = _FIRST_S
        self._sent_again = False
        # What the service said last to a POST.
        self._told: str | None = None

    @property
    def left_s(self) -> float:
        """The seconds that are left in this part of the course; not less than a moment."""
        return max(self._end() - self._clock.monotonic(), _LEAST_S)

    def extend(self, seconds: float) -> None:
        """Give back the seconds for which nothing could be done."""
        self._until += seconds
        if self._poll_until is not None:
            self._poll_until += seconds

    def _end(self) -> float:
        if self.method == "POST" or self._poll_until is None:
            return self._until
        return min(self._until, self._poll_until) if self._covers_all else self._poll_until

    def after_status(self, status: int, asked_s: float | None = None, shown: str = "") -> float:
        """Return the seconds to pause before the next request.

        Args:
            status: Of the reply; neither 200 nor 413, which are not about time.
            asked_s: What its Retry-After asks for, in seconds.
            shown: What an error may tell of its body.

        Raises:
            ReplyInvalid: There shall be no next request.
        """
        reason = f"{self._failed} with remote service error: {status}{shown}"
        if status == ACCEPTED:
            return self._poll(asked_s)
        if self.method == "POST":
            self._told = reason
            return self._retry(reason, asked_s) if status in _PASSING else _end(reason)
        if status == NOT_FOUND and not self._sent_again:
            # The service has lost what it knew, as after a restart.
            self._sent_again = True
            self.method = "POST"
            return 0.0
        if status in _PASSING and status < 500:
            return self._poll(asked_s)
        return _end(reason)

    def after_failure(self, error: TransportFailed) -> float:
        """Return the seconds to pause after a request without a reply.

        Raises:
            ReplyInvalid: There shall be no next request.
        """
        why = str(error).rstrip(".")
        told, self._told = self._told, None
        if isinstance(error, TimedOut):
            reason = f"{self._failed}. Error: Timeout was reached ({why})"
            if told is not None and self._end() - self._clock.monotonic() <= _LEAST_S:
                # The last request was given what was left of the time, so it says nothing.
                reason = told
        else:
            reason = (
                f"{self._failed}. Error: Remote service cannot be reached. "
                f"Check the endpoint URL and try again ({why})"
            )
        if not error.retryable:
            return _end(reason)
        return self._poll(None, reason) if self.method == "GET" else self._retry(reason, None)

    def _retry(self, reason: str, asked_s: float | None) -> float:
        if self._max_retries is not None and self._retries >= self._max_retries:
            return _end(f"{reason}; after {self._retries} retries")
        self._retries += 1
        pause_s = random.uniform(0.0, self._retry_s)  # noqa: S311 - no secret
        self._retry_s = min(self._retry_s * _RETRY_GROWTH, _LONGEST_RETRY_S)
        return self._within(pause_s, asked_s, reason)

    def _poll(self, asked_s: float | None, reason: str | None = None) -> float:
        self.method = "GET"
        if self._poll_until is None:
            self._poll_until = self._clock.monotonic() + self._poll_timeout_s
        pause_s = self._poll_s
        self._poll_s = min(self._poll_s * _POLL_GROWTH, _LONGEST_POLL_S)
        said = f"{self._failed}. Error: Timeout was reached (the service still works on the batch)"
        return self._within(pause_s, asked_s, reason or said)

    def _within(self, pause_s: float, asked_s: float | None, reason: str) -> float:
        """Fit a pause into what is left; what a service asks for is kept or not waited for."""
        left_s = self._end() - self._clock.monotonic()
        if left_s <= _LEAST_S:
            return _end(f"{reason}; no answer in time")
        if asked_s:
            if asked_s >= left_s:
                return _end(
                    f"{reason}; it asks to wait for {asked_s:.0f} s, {left_s:.0f} s are left"
                )
            return asked_s
        return min(pause_s, left_s / 2)


def _end(reason: str) -> float:
    raise ReplyInvalid(reason=reason)


def retry_after_s(headers: Mapping[str, str], now: dt.datetime) -> float | None:
    """Return how long a reply asks to wait, in seconds; None where it does not say so.

    Args:
        headers: By lower-case name.
        now: Aware; what a date is seen from.
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


_BUSY = frozenset({429, 503})


class Turn(Protocol):
    """One call that may be made now."""

    async def again(self) -> None:
        """Wait until one more request of the same call may be sent."""

    def answered(self) -> None:
        """Note that the service answered."""

    def turned_away(self, retry_after_s: float | None = None) -> None:
        """Note that the service has too much to do."""


class Limits(Protocol):
    """Who may call, and when; a call is one batch with all its requests."""

    def turn(self, url: str) -> AbstractAsyncContextManager[Turn]:
        """Return what waits for a turn when it is entered, and ends it."""


class Attempts:
    """Sends batches of one function; for one event loop, any number at a time."""

    def __init__(
        self,
        plan: CallPlan,
        client: HttpClient,
        clock: Clock,
        limits: Limits,
        budget: Budget | None = None,
    ) -> None:
        """Prepare; nothing is looked up or connected yet.

        Args:
            plan: What is called, and how.
            client: Of this event loop; calls of other functions may share it.
            clock: Waits between requests. Single requests are timed by the event loop.
            limits: Of this function.
            budget: Spent for retries and polls; the caller spends for a batch's first request.
        """
        self._budget = budget
        self._plan = plan
        self._client = client
        self._clock = clock
        self._limits = limits
        self._dispatch = Dispatch(plan, client.accepts)
        options = plan.options
        self._longest = Bounds(
            options.connect_timeout_s,
            options.idle_timeout_s,
            options.reply_timeout_s,
            MAX_REPLY_BYTES,
        )
        most = plan.function.max_batch_bytes
        self._max_bytes = options.max_batch_bytes if most is None else most

    async def ask(self, batch: Outgoing, record: CallRecord) -> bytes:
        """Return the body of a batch's answer, decompressed and with the right checksum.

        The record gets status, attempts, polls, bytes and times; what it came to is for whoever
        reads the body.

        Raises:
            TooLarge: The batch or its reply is larger than it may be; halves may do.
            CallFailed: There is no answer, and will be none.
            UserError: Nothing may be sent: the URL is refused, a secret is missing, or the budget
                is spent.
        """
        if batch.body is not None and len(batch.body) > self._max_bytes:
            raise TooLarge(
                status=None, reason=f"the request is larger than {self._max_bytes} bytes"
            )
        if not record.started_at:
            record.started_at = self._clock.now().isoformat()
        try:
            return await self._answered(batch, record)
        except TooLarge as error:
            record.status = error.fields["status"]  # type: ignore[assignment]
            raise
        except UserError:
            raise
        except SnowmeltError as error:
            url = shown_url(self._plan, batch.url_suffix)
            raise call_failed(record, str(error), url) from error

    async def _answered(self, batch: Outgoing, record: CallRecord) -> bytes:
        envelope = self._dispatch.envelope(batch)
        clock, arrived = self._clock, self._clock.monotonic()
        async with self._limits.turn(self._plan.function.url) as turn:
            record.ms_waiting += (clock.monotonic() - arrived) * 1000
            course = Course(self._plan, clock)
            while True:
                begun = clock.monotonic()
                try:
                    reply = await self._sent(envelope, course, record)
                finally:
                    record.ms_calling += (clock.monotonic() - begun) * 1000
                if isinstance(reply, TransportFailed):
                    pause_s = course.after_failure(reply)
                elif reply.status == OK:
                    turn.answered()
                    return self._checked(reply)
                else:
                    pause_s = self._no_answer(reply, course, turn)
                paused = clock.monotonic()
                await clock.pause(pause_s)
                waited = clock.monotonic()
                await turn.again()
                if self._budget is not None:
                    self._budget.spend()
                # Waiting for one's turn is nobody's failure.
                course.extend(clock.monotonic() - waited)
                record.ms_waiting += (clock.monotonic() - paused) * 1000

    async def _sent(
        self, envelope: Envelope, course: Course, record: CallRecord
    ) -> Reply | TransportFailed:
        head, body = await self._dispatch.written(envelope, course.method, record.query_id)
        if course.method == "POST":
            record.attempts += 1
        else:
            record.polls += 1
        try:
            reply = await self._client.ask(
                envelope.target, head, body, self._bounds(course), record
            )
        except TransportFailed as error:
            record.status = None
            return error
        record.status = reply.status
        return reply

    def _bounds(self, course: Course) -> Bounds:
        left_s = course.left_s
        if left_s < self._longest.reply_s:
            return replace(self._longest, reply_s=left_s)
        return self._longest

    def _no_answer(self, reply: Reply, course: Course, turn: Turn) -> float:
        asked_s = retry_after_s(reply.headers, self._clock.now())
        if reply.status == TOO_LARGE and course.method == "POST":
            raise TooLarge(status=TOO_LARGE, reason="the service says that the batch is too large")
        if reply.status in _BUSY:
            turn.turned_away(asked_s)
        shown = ""
        if reply.status != ACCEPTED and (text := self._body_shown(reply)):
            shown = f" '{text}'"
        return course.after_status(reply.status, asked_s, shown)

    def _body_shown(self, reply: Reply) -> str:
        """Return the beginning of a body that is an error, on one line and without secrets."""
        longest = self._plan.options.error_body_chars
        if not longest:
            return ""
        encoding = reply.headers.get("content-encoding")
        try:
            body = coding.decoded(reply.body, encoding, limit=MAX_REPLY_BYTES)
        except (BatchInvalid, BatchTooLarge):
            return ""
        text = self._dispatch.without_secrets(body.decode(errors="replace"))
        text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
        return text if len(text) <= longest else f"{text[:longest]}…"

    def _checked(self, reply: Reply) -> bytes:
        encoding = reply.headers.get("content-encoding")
        try:
            plain = coding.decoded(reply.body, encoding, limit=MAX_REPLY_BYTES, strict=True)
        except BatchTooLarge:
            reason = f"the reply is larger than {MAX_REPLY_BYTES} bytes"
            raise TooLarge(status=reply.status, reason=reason) from None
        except BatchInvalid as error:
            raise ReplyInvalid(reason=error.fields["reason"]) from None
        digest = reply.headers.get("content-md5")
        if digest is not None and not coding.md5_matches(digest, reply.body, plain):
            raise ReplyInvalid(reason="the reply's Content-MD5 is not that of its body")
        return plain


def call_failed(record: CallRecord, reason: str, url: str = "") -> CallFailed:
    """Return the error of a batch that failed for good, with what its record knows.

    Args:
        record: Of the batch; its times are those of the calls and of waiting between them.
        reason: Why, without anything that was sent.
        url: As `shown_url` returns it.
    """
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


def shown_url(plan: CallPlan, suffix: str = "") -> str:
    """Return the URL of a call for people to read, without its query; empty if it is secret.

    Args:
        plan: Of the function. SECURE ones hide their URL.
        suffix: What a translator put behind the function's URL.
    """
    if plan.function.secure:
        return ""
    try:
        return parse_url(plan.function.url + suffix).shown
    except UrlRefused:
        return ""


class Unlimited:
    """Limits that are none."""

    def turn(self, url: str) -> Self:  # noqa: ARG002 - all URLs are alike
        """Return the turn that everybody has."""
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    async def again(self) -> None:
        """Wait for nobody."""

    def answered(self) -> None:
        """Note nothing."""

    def turned_away(self, retry_after_s: float | None = None) -> None:
        """Note nothing."""
