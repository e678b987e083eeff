"""Counters and latency histogram of the requests of one protocol.

Thousands of registrations arrive per second, so the counters are plain numbers: they are labeled,
locked and formatted only when the metrics are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

# Upper ends of the classes of durations, in seconds; what takes longer is in a class of its own.
LATENCY_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
_Code = TypeVar("_Code", int, str)


@dataclass(frozen=True, slots=True)
class RequestMetricsSnapshot(Generic[_Code]):
    """What had been counted at one moment.

    Attributes:
        counts_by_code: How many answers had which code of the protocol.
        rows: Rows committed; repetitions count once.
        stored_bytes: Those of their chunks on the stage.
        rejected_rows: Rows that were refused in requests that are committed.
        latency_buckets: How many requests took up to each of `LATENCY_BUCKETS_S`, and last how many
            took longer.
        total_latency_s: How long all of them took together.
        pending_requests: How many requests are not answered yet.
    """

    counts_by_code: Mapping[_Code, int]
    rows: int
    stored_bytes: int
    rejected_rows: int
    latency_buckets: tuple[int, ...]
    total_latency_s: float
    pending_requests: int


class RequestMetrics(Generic[_Code]):
    """Counts; its owner sees to it that one thread at a time writes each number."""

    def __init__(self) -> None:
        self._counts_by_code: dict[_Code, int] = {}
        self._latency_buckets = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self._total_latency_s = 0.0
        self.rows = 0
        self.stored_bytes = 0
        self.rejected_rows = 0

    def record_response(self, codes: Iterable[_Code], latency_s: float) -> None:
        """Count a request that was answered with these codes after so many seconds."""
        self._latency_buckets[bisect_left(LATENCY_BUCKETS_S, latency_s)] += 1
        self._total_latency_s += latency_s
        for code in codes:
            self._counts_by_code[code] = self._counts_by_code.get(code, 0) + 1

    def snapshot(self, pending_requests: int = 0) -> RequestMetricsSnapshot[_Code]:
        """Return the numbers as they are now; from any thread."""
        return RequestMetricsSnapshot(
            # One step, in which no other thread counts.
            self._counts_by_code.copy(),
            self.rows,
            self.stored_bytes,
            self.rejected_rows,
            tuple(self._latency_buckets),
            self._total_latency_s,
            pending_requests,
        )
