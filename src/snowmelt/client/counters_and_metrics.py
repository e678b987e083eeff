"""Status of channels and clients, and metrics for OpenTelemetry."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from snowmelt.errors import SnowmeltError
from snowmelt.schema.types import TableName

if TYPE_CHECKING:
    import weakref


@dataclass(slots=True)
class ChannelCounts:
    """Totals of a channel since it was opened. Bytes are of rows in memory."""

    inserted_rows: int = 0
    inserted_bytes: int = 0
    refused_rows: int = 0
    committed_rows: int = 0
    committed_bytes: int = 0

    def add(self, other: ChannelCounts) -> None:
        """Add the totals of another channel."""
        self.inserted_rows += other.inserted_rows
        self.inserted_bytes += other.inserted_bytes
        self.refused_rows += other.refused_rows
        self.committed_rows += other.committed_rows
        self.committed_bytes += other.committed_bytes


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """Status of a channel in the client.

    `lag_s` is the age of the oldest uncommitted row in seconds, or 0. `last_error` is the error of
    the last rejected row, or the reason why the channel is invalid. Bytes are estimates of rows in
    memory.
    """

    name: str
    table: TableName
    is_valid: bool
    inserted_rows: int
    refused_rows: int
    committed_rows: int
    waiting_rows: int
    inserted_bytes: int
    committed_bytes: int
    waiting_bytes: int
    committed_token: str | None
    lag_s: float
    last_error: SnowmeltError | None


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """Status of all open channels of a client, and totals that include closed channels.

    `trouble` is the reason why the last request to the service or stage failed, or None if it
    succeeded. Inserts wait if there are `max_waiting_bytes` of uncommitted rows.
    """

    channels: tuple[ChannelStatus, ...]
    inserted_rows: int
    refused_rows: int
    committed_rows: int
    inserted_bytes: int
    committed_bytes: int
    waiting_bytes: int
    max_waiting_bytes: int
    lag_s: float
    trouble: SnowmeltError | None


_COUNTERS = (
    ("rows.inserted", "inserted_rows", "rows that were checked and kept"),
    ("rows.refused", "refused_rows", "rows that were refused when inserted"),
    ("rows.committed", "committed_rows", "rows that are committed"),
    ("bytes.committed", "committed_bytes", "bytes in memory of rows that are committed"),
)
_GAUGES = (
    ("bytes.waiting", "waiting_bytes", sum, "bytes in memory of rows that are not committed"),
    ("lag", "lag_s", max, "seconds that the oldest row has waited to be committed"),
)


_published_clients: list[tuple[weakref.WeakMethod[Callable[[], ClientStatus]], str]] = []
_publish_lock = threading.Lock()


def publish_client_metrics(
    get_status: weakref.WeakMethod[Callable[[], ClientStatus]], client_name: str
) -> None:
    """Export the counters of a client to OpenTelemetry, if it is installed."""
    with _publish_lock:
        _published_clients[:] = [
            (each, whose) for each, whose in _published_clients if each() is not None
        ]
        _published_clients.append((get_status, client_name))
    _register_instruments()


# OpenTelemetry keeps the first instrument with a name and ignores others.
@lru_cache(maxsize=1)
def _register_instruments() -> None:
    try:
        metrics: Any = importlib.import_module("opentelemetry.metrics")
    except ImportError:
        return
    meter = metrics.get_meter("snowmelt")

    def observed(
        field: str, joined: Callable[[list[float]], float] = sum
    ) -> Callable[[object], Iterable[object]]:
        def observe(_: object) -> Iterable[object]:
            with _publish_lock:
                asked = [(each(), whose) for each, whose in _published_clients]
            found: dict[str, list[float]] = {}
            for ask, whose in asked:
                if ask is not None:
                    found.setdefault(whose, []).append(getattr(ask(), field))
            # Clients with the same name share one observation.
            return [
                metrics.Observation(joined(values), {"client": whose})
                for whose, values in found.items()
            ]

        return observe

    for metric, field, text in _COUNTERS:
        meter.create_observable_counter(
            f"snowmelt.client.{metric}", [observed(field)], description=text
        )
    for metric, field, joined, text in _GAUGES:
        meter.create_observable_gauge(
            f"snowmelt.client.{metric}", [observed(field, joined)], description=text
        )
