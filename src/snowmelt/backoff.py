"""When to try again, and when to give up: growing pauses until a deadline."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snowmelt.clock import Clock


class Patience:
    """One deadline with growing pauses before it; not for several threads at once.

    The pauses double from `first_s` to `longest_s`, each shortened by up to a quarter at random,
    so that many clients of a service that comes back do not arrive together.
    """

    def __init__(
        self, seconds: float, clock: Clock, *, first_s: float = 0.05, longest_s: float = 4.0
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._first_s = first_s
        self._longest_s = longest_s
        self.renew()

    def renew(self) -> None:
        """Start over: full time, shortest pause."""
        self._deadline = self._clock.monotonic() + self.seconds
        self._pause_s = self._first_s

    def extend(self) -> None:
        """Have the full time again, but no shorter pauses: whoever is asked lives and is busy."""
        self._deadline = self._clock.monotonic() + self.seconds

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._clock.monotonic() >= self._deadline

    def next_pause_s(self) -> float | None:
        """Return the seconds to wait before trying again, None when the time is over."""
        left_s = self._deadline - self._clock.monotonic()
        if left_s <= 0:
            return None
        pause_s = self._pause_s * random.uniform(0.75, 1.0)  # noqa: S311 - no secret
        self._pause_s = min(self._pause_s * 2, self._longest_s)
        return min(pause_s, left_s)
