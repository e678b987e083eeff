"""Rows per second, freshness and rejected rows of the last hour, from the chunks in the catalog.

Each read fetches only the chunks registered since the previous read, so the cost does not depend on the
size of the catalog. Nothing is stored.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.db.dialect import encode_rows, make_rows_source
from snowmelt.clock import Clock, to_epoch_ms

BUCKET_S = 10
WINDOW = dt.timedelta(hours=1)
_RECENT = dt.timedelta(minutes=5)
_MIN_INTERVAL_S = 1.0
# Maximum number of chunks of all tables in the first read, and of one table in each later read.
_MAX_FIRST_CHUNKS = 20_000
_MAX_CHUNKS_PER_TABLE = 5_000
_TABLES, _CHUNKS, _CHANNELS = model.tables, model.chunks, model.channels
_SELECT_SEQUENCES = sa.select(_TABLES.c.table_id, _TABLES.c.last_seq).where(
    _TABLES.c.dropped_at.is_(None)
)


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity at time `at`. Rates and latencies cover the last five minutes; None: no data.

    `rows_by_bucket` has the number of rows in each ten seconds of the last hour, oldest first.
    """

    at: dt.datetime
    rows_per_s: float
    p50_s: float | None
    p99_s: float | None
    rejected_per_minute: float
    rejected_total: int
    rows_by_bucket: tuple[int, ...]
    last_commit_at: dt.datetime | None


class ActivityMonitor:
    """Reads the activity of all tables, at most once a second. Thread-safe."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[int, int] = {}
        self._chunks: deque[tuple[dt.datetime, int, float | None]] = deque()
        self._buckets: dict[int, int] = {}
        self._rejected: deque[tuple[dt.datetime, int]] = deque()
        self._read_at = float("-inf")
        self._activity: Activity | None = None

    def read(self) -> Activity:
        """Return the current activity.

        Raises:
            CatalogUnavailable: If the catalog cannot be reached.
        """
        with self._lock:
            if self._activity is None or self._clock.monotonic() >= self._read_at + _MIN_INTERVAL_S:
                self._activity = self._refresh()
                self._read_at = self._clock.monotonic()
            return self._activity

    def _refresh(self) -> Activity:
        now = self._clock.now()
        with self._database.reading() as connection:
            self._add_new_chunks(connection, now)
            self._rejected.append((now, _count_rejected_rows(connection)))
            newest = sa.func.max(_CHANNELS.c.last_commit_at, type_=model.UtcTimestamp)
            last_commit_at = connection.execute(sa.select(newest)).scalar()
        return self._summarize(now, last_commit_at)

    def _add_new_chunks(self, connection: sa.Connection, now: dt.datetime) -> None:
        sequences = {row[0]: row[1] for row in connection.execute(_SELECT_SEQUENCES)}
        most = _MAX_CHUNKS_PER_TABLE
        if not self._known:
            most = max(_MAX_FIRST_CHUNKS // max(len(sequences), 1), 5)
        changed = [
            (table_id, max(self._known.get(table_id, 0), last_seq - most))
            for table_id, last_seq in sequences.items()
            if last_seq > self._known.get(table_id, 0)
        ]
        self._known = sequences
        if not changed:
            return
        columns = sa.column("table_id", sa.BigInteger), sa.column("after_seq", sa.BigInteger)
        given = make_rows_source(connection.dialect.name, *columns)
        query = sa.select(
            _CHUNKS.c.registered_at, _CHUNKS.c.rows, _CHUNKS.c.first_insert_ms
        ).select_from(
            given.join(
                _CHUNKS,
                sa.and_(_CHUNKS.c.table_id == given.c.table_id, _CHUNKS.c.seq > given.c.after_seq),
            )
        )
        query = query.where(_CHUNKS.c.registered_at > now - WINDOW)
        found = connection.execute(query, encode_rows(("table_id", "after_seq"), changed))
        for at, rows, first_ms in found:
            latency = None if first_ms is None else max(to_epoch_ms(at) - first_ms, 0) / 1000
            if at > now - _RECENT:
                self._chunks.append((at, rows, latency))
            bucket = int(at.timestamp()) // BUCKET_S
            self._buckets[bucket] = self._buckets.get(bucket, 0) + rows

    def _summarize(self, now: dt.datetime, last_commit_at: dt.datetime | None) -> Activity:
        self._chunks = deque(each for each in self._chunks if each[0] > now - _RECENT)
        while len(self._rejected) > 1 and self._rejected[0][0] < now - _RECENT:
            self._rejected.popleft()
        last = int(now.timestamp()) // BUCKET_S
        first = last - int(WINDOW.total_seconds()) // BUCKET_S + 1
        self._buckets = {key: rows for key, rows in self._buckets.items() if key >= first}
        seconds = _RECENT.total_seconds()
        latencies = sorted(each[2] for each in self._chunks if each[2] is not None)
        began, before = self._rejected[0]
        total = self._rejected[-1][1]
        minutes = max((now - began).total_seconds(), 60.0) / 60
        return Activity(
            at=now,
            rows_per_s=sum(each[1] for each in self._chunks) / seconds,
            p50_s=_quantile(latencies, 0.5),
            p99_s=_quantile(latencies, 0.99),
            rejected_per_minute=max(total - before, 0) / minutes,
            rejected_total=total,
            rows_by_bucket=tuple(self._buckets.get(key, 0) for key in range(first, last + 1)),
            last_commit_at=last_commit_at,
        )


def _quantile(sorted_values: Sequence[float], share: float) -> float | None:
    if not sorted_values:
        return None
    return sorted_values[min(int(len(sorted_values) * share), len(sorted_values) - 1)]


def _count_rejected_rows(connection: sa.Connection) -> int:
    """Return the number of rejected rows that the row API counted or clients reported."""
    reports = model.client_rejections.c
    totals = (
        sa.select(sa.func.coalesce(sa.func.sum(value), 0)).scalar_subquery()
        for value in (model.row_channels.c.rows_error, reports.earlier_rows + reports.rows)
    )
    return sum(int(each) for each in connection.execute(sa.select(*totals)).one())
