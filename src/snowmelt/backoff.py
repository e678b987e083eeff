"""Exponential backoff with jitter up to a deadline."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snowmelt.clock import Clock


class Backoff:
    """One deadline with growing pauses before it; not for several threads at once.

    The pauses double from `first_s` to `longest_s`, each shortened by up to a quarter at random,
    so that many clients of a service that comes back do not arrive together.
    """

    def __init__(
        self,
        timeout_s: float,
        clock: Clock,
        *,
        initial_delay_s: float = 0.05,
        max_delay_s: float = 4.0,
    ) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._initial_delay_s = initial_delay_s
        self._max_delay_s = max_delay_s
        self.reset()

    def reset(self) -> None:
        """Start over: full time, shortest pause."""
        self._deadline = self._clock.monotonic() + self.timeout_s
        self._next_delay_s = self._initial_delay_s

    def restart_deadline(self) -> None:
        """Have the full time again, but no shorter pauses: whoever is asked lives and is busy."""
        self._deadline = self._clock.monotonic() + self.timeout_s

    @property
    def is_expired(self) -> bool:
        """Whether the deadline has passed."""
        return self._clock.monotonic() >= self._deadline

    def next_delay_s(self) -> float | None:
        """Return the seconds to wait before trying again, None when the time is over."""
        left_s = self._deadline - self._clock.monotonic()
        if left_s <= 0:
            return None
        pause_s = self._next_delay_s * random.uniform(0.75, 1.0)  # noqa: S311 - no secret
        self._next_delay_s = min(self._next_delay_s * 2, self._max_delay_s)
        return min(pause_s, left_s)
