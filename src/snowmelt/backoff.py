"""Growing delays with jitter, and exponential backoff up to a deadline."""

from __future__ import annotations

import random
from collections.abc import Iterator

from snowmelt.clock import Clock


def growing_delays_s(
    initial_s: float, max_s: float, *, factor: float = 2.0, jitter: float = 0.25
) -> Iterator[float]:
    """Yield delays in seconds, infinitely. Each is `factor` times the previous one, up to `max_s`.

    Each delay is shortened at random by up to the fraction `jitter` (0 to 1), so that the clients
    of a recovered service do not retry at the same time.
    """
    # The caller's program may have seeded the module's shared generator.
    generator = random.Random()  # noqa: S311 - no secret
    delay_s = initial_s
    while True:
        yield delay_s * generator.uniform(1.0 - jitter, 1.0)
        delay_s = min(delay_s * factor, max_s)


class Backoff:
    """Exponential backoff: `growing_delays_s` until a deadline. Not thread-safe."""

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
        """Restart with the full time and the shortest delay."""
        self._deadline = self._clock.monotonic() + self.timeout_s
        self._delays_s = growing_delays_s(self._initial_delay_s, self._max_delay_s)

    def restart_deadline(self) -> None:
        """Restart the deadline, but not the delays, for a service that responded but is busy."""
        self._deadline = self._clock.monotonic() + self.timeout_s

    @property
    def is_expired(self) -> bool:
        """True if the deadline has passed."""
        return self._clock.monotonic() >= self._deadline

    def next_delay_s(self) -> float | None:
        """Return the seconds to wait before the next attempt, or None after the deadline."""
        left_s = self._deadline - self._clock.monotonic()
        return None if left_s <= 0 else min(next(self._delays_s), left_s)
