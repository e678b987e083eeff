"""Counters and latency histograms of registrations and of row requests.

Thousands of registrations arrive per second, so the counters are plain numbers: they are labeled,
locked and formatted only when the metrics are read.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.errors import SnowmeltError
from snowmelt.wire.streaming import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.wire.streaming import RegisterBlobsResponse

# Upper ends of the classes of durations, in seconds; what takes longer is in a class of its own.
LATENCY_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)


@dataclass(frozen=True, slots=True)
class RegistrationMetricsSnapshot:
    """What a tally held at one moment.

    Attributes:
        codes: How many answers to a channel of a chunk had which code of the protocol.
        rows: Rows of the chunks that were added; repetitions count once.
        bytes: Their bytes on the stage.
        classes: How many requests took up to each of `LATENCY_BUCKETS_S`, and last how many took longer.
        seconds: How long all of them took together.
        waiting: How many requests are not answered yet.
    """

    counts_by_code: Mapping[int, int]
    rows: int
    stored_bytes: int
    latency_buckets: tuple[int, ...]
    total_latency_s: float
    pending_requests: int


class LatencyHistogram:
    """How long requests took, by classes."""

    def __init__(self) -> None:
        self._classes = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self.total_s = 0.0

    def add(self, latency_s: float) -> None:
        """Count one that took so long."""
        self._classes[bisect_left(LATENCY_BUCKETS_S, latency_s)] += 1
        self.total_s += latency_s

    @property
    def bucket_counts(self) -> tuple[int, ...]:
        """How many took up to each of `LATENCY_BUCKETS_S`, and last how many took longer."""
        return tuple(self._classes)


class RegistrationMetrics:
    """Counts answers; its owner sees to it that one thread at a time does."""

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}
        self._durations = LatencyHistogram()
        self.rows = 0
        self.stored_bytes = 0

    def record_response(
        self, response: RegisterBlobsResponse | Exception, latency_s: float
    ) -> None:
        """Count a request that was answered after so many seconds."""
        self._durations.add(latency_s)
        codes = self._codes
        if isinstance(response, Exception):
            code = _response_code(response)
            codes[code] = codes.get(code, 0) + 1
            return
        for blob in response.blobs:
            for chunk in blob.chunks:
                for channel in chunk.channels:
                    code = channel.status_code
                    codes[code] = codes.get(code, 0) + 1

    def snapshot(self, pending_requests: int) -> RegistrationMetricsSnapshot:
        """Return the numbers as they are now."""
        return RegistrationMetricsSnapshot(
            counts_by_code=dict(self._codes),
            rows=self.rows,
            stored_bytes=self.stored_bytes,
            latency_buckets=self._durations.bucket_counts,
            total_latency_s=self._durations.total_s,
            pending_requests=pending_requests,
        )


def _response_code(error: Exception) -> int:
    if isinstance(error, SnowmeltError):
        return int(getattr(error, "wire_code", error.response_code))
    return int(ResponseCode.TRY_AGAIN)


# --- How many requests of rows there were, how they ended, and what they brought; plain numbers.


@dataclass(frozen=True, slots=True)
class RowMetricsSnapshot:
    """What a tally held at one moment.

    Attributes:
        rows: Rows committed, each once.
        bytes: Those of their chunks on the stage.
        refused: Rows that were refused in requests that are committed.
        codes: How many requests were answered with which code of the row API.
        classes: How many took up to each of `LATENCY_BUCKETS_S`, and last how many took longer.
        seconds: How long all of them took together.
    """

    rows: int
    stored_bytes: int
    rejected_rows: int
    counts_by_code: Mapping[str, int]
    latency_buckets: tuple[int, ...]
    total_latency_s: float


class RowMetrics:
    """Counts: the writer's thread what is committed, the event loop what is answered."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._durations = LatencyHistogram()
        self.rows = 0
        self.stored_bytes = 0
        self.rejected_rows = 0

    def record_response(self, code: str, latency_s: float) -> None:
        """Count a request that was answered after so many seconds."""
        self._codes[code] = self._codes.get(code, 0) + 1
        self._durations.add(latency_s)

    def snapshot(self) -> RowMetricsSnapshot:
        """Return the numbers as they are now."""
        durations = self._durations
        return RowMetricsSnapshot(
            rows=self.rows,
            stored_bytes=self.stored_bytes,
            rejected_rows=self.rejected_rows,
            # One step, in which no other thread counts.
            counts_by_code=self._codes.copy(),
            latency_buckets=durations.bucket_counts,
            total_latency_s=durations.total_s,
        )
