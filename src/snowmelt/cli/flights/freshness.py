"""How long after its insertion a row can be seen: told from the loader's journal and from probes."""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from snowmelt.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Freshness:
    """Seconds from insertion to sight; `batches` were measured."""

    batches: int
    p50_s: float
    p99_s: float
    worst_s: float

    def __str__(self) -> str:
        return f"p50 {self.p50_s:.2f} s · p99 {self.p99_s:.2f} s ({self.batches:,} batches)"


@dataclass
class Probe:
    """A thread that looks again and again at how many rows of each channel can be seen.

    `look` returns rows visible per channel; the instant noted is the one *after* it returned,
    so a slow query counts against freshness.
    """

    look: Callable[[], Mapping[str, int]]
    pause_s: float
    seen: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    error: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more; raises what a look raised."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def visible(self) -> int:
        """Return the rows seen by the latest look, all channels together."""
        return sum(looks[-1][0] for looks in list(self.seen.values()) if looks)

    def _run(self) -> None:
        clock = SystemClock()
        try:
            while not self._stop.wait(self.pause_s):
                counts = self.look()
                at = clock.monotonic()
                for channel, count in counts.items():
                    looks = self.seen.setdefault(channel, [])
                    if not looks or looks[-1][0] != count:
                        looks.append((count, at))
        except Exception as error:  # noqa: BLE001 - handed to whoever stops the probe
            self.error = error


def measure(journal: Path, probe: Probe) -> Freshness | None:
    """Return the freshness of every batch that was not lost with a killed loader's memory.

    A batch beyond the token at which the next loader resumed had been promised to nobody.
    Returns None when nothing was seen.
    """
    batches: list[tuple[str, int, float]] = []
    for line in journal.read_text().splitlines():
        channel, token, at = json.loads(line)
        if at is None:
            batches = [batch for batch in batches if batch[0] != channel or batch[1] <= token]
        else:
            batches.append((channel, token, at))
    delays = sorted(delay for batch in batches if (delay := _delay(batch, probe.seen)) is not None)
    if not delays:
        return None
    return Freshness(
        batches=len(delays),
        p50_s=delays[len(delays) // 2],
        p99_s=delays[min(len(delays) - 1, len(delays) * 99 // 100)],
        worst_s=delays[-1],
    )


def _delay(
    batch: tuple[str, int, float], seen: Mapping[str, list[tuple[int, float]]]
) -> float | None:
    channel, token, at = batch
    looks = seen.get(channel, [])
    index = bisect_left(looks, token, key=lambda look: look[0])
    return looks[index][1] - at if index < len(looks) else None
