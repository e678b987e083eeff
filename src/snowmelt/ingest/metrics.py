"""Counters and latency histogram of the requests of one protocol.

Thousands of registrations arrive per second, so the counters are plain numbers. They are labeled
and formatted only when the metrics are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

# Upper bounds of the histogram's buckets, in seconds. An additional bucket counts slower requests.
LATENCY_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
_Code = TypeVar("_Code", int, str)


@dataclass(slots=True)
class RequestMetrics(Generic[_Code]):
    """Counters of one protocol. The owner ensures that each counter is updated by one thread at a time.

    Attributes:
        counts_by_code: Number of responses by code of the protocol.
        rows: Committed rows. A repeated request counts once.
        stored_bytes: Bytes of the chunks of these rows on the stage.
        rejected_rows: Rows rejected in committed requests.
        latency_buckets: Number of requests in each bucket of `LATENCY_BUCKETS_S`. The last item
            counts slower requests.
        total_latency_s: Sum of the latencies of all requests, in seconds.
        pending_requests: Requests without a response yet. Set only in snapshots.
    """

    counts_by_code: dict[_Code, int] = field(default_factory=dict)
    rows: int = 0
    stored_bytes: int = 0
    rejected_rows: int = 0
    latency_buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    total_latency_s: float = 0.0
    pending_requests: int = 0

    def record_response(self, codes: Iterable[_Code], latency_s: float) -> None:
        """Count a request with its response codes and its latency in seconds."""
        self.latency_buckets[bisect_left(LATENCY_BUCKETS_S, latency_s)] += 1
        self.total_latency_s += latency_s
        for code in codes:
            self.counts_by_code[code] = self.counts_by_code.get(code, 0) + 1

    def snapshot(self, pending_requests: int = 0) -> RequestMetrics[_Code]:
        """Return a copy of the counters. Thread-safe."""
        return replace(
            self,
            # A single operation of the interpreter, so that no other thread updates the list
            # meanwhile.
            counts_by_code=self.counts_by_code.copy(),
            latency_buckets=self.latency_buckets.copy(),
            pending_requests=pending_requests,
        )
