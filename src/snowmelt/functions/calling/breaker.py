"""A service that failed several batches in a row is left alone for a while."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from snowmelt.functions.refusals import CircuitOpen

if TYPE_CHECKING:
    import datetime as dt

    from snowmelt.clock import Clock

_FAILURES = 5
_PAUSE_S = 30.0
# A service that says so is well; it is what was sent that it does not take.
_OF_THE_BATCH = frozenset({400, 413, 422})


class Breaker:
    """What one URL's batches came to lately; for any number of threads.

    It opens after so many batches in a row that failed for good. After the pause one batch goes
    through: if it is answered all may, if it fails the pause begins again.
    """

    def __init__(
        self, clock: Clock, *, failures: int = _FAILURES, pause_s: float = _PAUSE_S
    ) -> None:
        self._clock = clock
        self._limit = failures
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._failed = 0
        self._reason = ""
        self._since: dt.datetime | None = None
        self._probe_at = 0.0

    def check(self, function: str) -> None:
        """Let a batch through, or not.

        Raises:
            CircuitOpen: Too many have failed, and the pause is not over.
        """
        with self._lock:
            since = self._since
            if since is None:
                return
            now = self._clock.monotonic()
            if now >= self._probe_at:
                # Others wait for the probe's outcome; one that never comes to an end does not
                # keep them out for longer than another pause.
                self._probe_at = now + self._pause_s
                return
            raise CircuitOpen(
                function=function,
                failures=self._failed,
                since=since.isoformat(sep=" ", timespec="seconds"),
                reason=self._reason,
                seconds=self._probe_at - now,
            )

    def succeeded(self) -> None:
        """Count a batch that was answered."""
        if self._failed:
            with self._lock:
                self._failed, self._since = 0, None

    def failed(self, reason: str, status: int | None = None) -> None:
        """Count a batch that failed for good, unless only this batch is to blame.

        Args:
            reason: It is shown for other batches, too.
            status: Of the last reply.
        """
        if status in _OF_THE_BATCH:
            return
        with self._lock:
            self._failed += 1
            self._reason = reason
            if self._failed >= self._limit:
                self._since = self._since or self._clock.now()
                self._probe_at = self._clock.monotonic() + self._pause_s


_breakers: dict[tuple[int, str], Breaker] = {}


def breaker_of(url: str, clock: Clock) -> Breaker:
    """Return the breaker that all calls of this process to a URL share."""
    key = (os.getpid(), url)
    return _breakers.get(key) or _breakers.setdefault(key, Breaker(clock))
