"""What follows a reply that is no answer: another attempt, another look, or the end.

No input or output: pauses are said, not made. Source of the numbers: the published protocol, and
where that is silent, what its users measured.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from snowmelt.functions.refusals import ReplyInvalid, TimedOut, TransportFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.clock import Clock
    from snowmelt.functions.calling.plan import CallPlan

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
