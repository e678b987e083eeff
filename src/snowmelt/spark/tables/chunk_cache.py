"""Cache of decoded chunks in the memory of executors, for later queries.

A chunk never changes, and every query of its table reads it until its migration. Rows are cached
with Spark's `persist`, in memory only: chunks are encrypted on the stage, so their rows must not be
written to disk in plain text. Spark decodes evicted chunks again, so no result depends on the
cache. Reasons: `docs/explanation/decisions/0015-decoded-chunks.md`.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from snowmelt.spark.tables.spark_column_mapping import TableReadPlan, quote_identifier

if TYPE_CHECKING:
    from snowmelt.table.chunk_reader import ChunkReadTask

# Spark setting: maximum size of cached chunks, in bytes as stored on the stage. 0: no cache.
# Decoded rows need about four times as much memory.
BUDGET_SETTING = "spark.snowmelt.keptChunkBytes"
_DEFAULT_BUDGET_BYTES = 128 * 1024 * 1024

# Extra time in the deadline of cached frames, so that Spark can decode evicted chunks again.
# Garbage collection keeps files for ten minutes after a plan's deadline.
EVICTION_GRACE = dt.timedelta(minutes=5)
# Maximum number of segments: each one adds a scan to the query, which takes a few milliseconds.
_MAX_SEGMENTS_PER_READ = 6
_MAX_CACHED_SEGMENTS = 64


@dataclass(frozen=True, slots=True)
class _CachedSegment:
    """Cached chunks of a table by commit number, with some of the visible columns."""

    table: tuple[str, int]
    chunks: frozenset[int]
    columns: frozenset[str]
    size_bytes: int
    deadline: dt.datetime
    frame: DataFrame


class ChunkCache:
    """Cache of chunk frames in one Spark session. Thread-safe."""

    def __init__(self, spark: SparkSession, decode: Callable[[TableReadPlan], DataFrame]) -> None:
        """Create an empty cache. `decode` returns a frame that reads a plan's chunks."""
        self._spark = spark
        self._decode = decode
        self._lock = threading.Lock()
        self._segments: OrderedDict[int, _CachedSegment] = OrderedDict()
        self._segment_counter = 0

    def build_frames(self, read: TableReadPlan) -> list[DataFrame]:
        """Return frames that together contain the rows of a plan's chunks, with the plan's columns.

        The frames may also contain rows of chunks that the query pruned. The query's condition
        filters these rows.
        """
        with self._lock:
            for number, segment in list(self._segments.items()):
                if read.deadline - segment.deadline > EVICTION_GRACE:
                    self._evict_segment(number)
            numbers = self._find_covering_segments(read)
            cached = self._collect_cached_chunks(numbers)
            rest = tuple(task for task in read.tasks if task.seq not in cached)
            if len(numbers) > _MAX_SEGMENTS_PER_READ:
                # Merge the smaller frames into one, because chunks arrive one by one.
                numbers, merged = numbers[:1], numbers[1:]
                wanted = self._collect_cached_chunks(merged) | {task.seq for task in rest}
                rest = tuple(task for task in read.tasks if task.seq in wanted)
                for number in merged:
                    self._evict_segment(number)
            frames = [self._segments[number].frame for number in numbers]
            for number in numbers:
                self._segments.move_to_end(number)
            if rest:
                frames.append(self._decode_and_cache(read, rest, numbers))
        names = [quote_identifier(each.name) for each in read.columns]
        # `SparkSession.sql` creates views of these frames and drops them, and Spark then uncaches
        # equal plans. The condition makes this plan differ from the persisted one.
        return [frame.selectExpr(*names).where("true") for frame in frames]

    def clear(self) -> None:
        """Evict everything. Frames that were returned stay usable and decode their chunks again."""
        with self._lock:
            for number in list(self._segments):
                self._evict_segment(number)

    def _find_covering_segments(self, read: TableReadPlan) -> list[int]:
        """Return disjoint cached segments of this snapshot, largest first."""
        wanted = {task.seq for task in read.tasks}
        columns = {each.name for each in read.columns}
        found: list[int] = []
        seen = set[int]()
        largest_first = sorted(self._segments.items(), key=lambda item: -len(item[1].chunks))
        for number, segment in largest_first:
            if (
                segment.table == _make_table_key(read)
                and segment.columns >= columns
                and segment.chunks <= read.present_chunks
                and segment.chunks.isdisjoint(seen)
                and not segment.chunks.isdisjoint(wanted)
                # A corrupt chunk must not fail a query that does not need it.
                and (segment.chunks <= wanted or _is_loaded(segment.frame))
            ):
                found.append(number)
                seen |= segment.chunks
        return found

    def _decode_and_cache(
        self, read: TableReadPlan, tasks: tuple[ChunkReadTask, ...], used: Sequence[int]
    ) -> DataFrame:
        """Return a frame that decodes chunks. Caches it if it fits beside the used segments."""
        share = len(read.columns) / max(1, len(read.schema.columns))
        size = int(min(1.0, share) * sum(task.length for task in tasks))
        room = int(self._spark.conf.get(BUDGET_SETTING, str(_DEFAULT_BUDGET_BYTES)) or 0) - size
        if sum(self._segments[number].size_bytes for number in used) > room:
            return self._decode(replace(read, tasks=tasks))
        for number in [each for each in self._segments if each not in used]:
            kept = sum(segment.size_bytes for segment in self._segments.values())
            if kept <= room and len(self._segments) < _MAX_CACHED_SEGMENTS:
                break
            self._evict_segment(number)
        frame = self._decode(replace(read, tasks=tasks, deadline=read.deadline + EVICTION_GRACE))
        frame.persist(StorageLevel.MEMORY_ONLY)
        self._segment_counter += 1
        self._segments[self._segment_counter] = _CachedSegment(
            table=_make_table_key(read),
            chunks=frozenset(task.seq for task in tasks),
            columns=frozenset(each.name for each in read.columns),
            size_bytes=size,
            deadline=read.deadline,
            frame=frame,
        )
        return frame

    def _evict_segment(self, number: int) -> None:
        # Frames that use the segment stay usable and decode its chunks again.
        self._segments.pop(number).frame.unpersist()

    def _collect_cached_chunks(self, numbers: Iterable[int]) -> set[int]:
        return {seq for number in numbers for seq in self._segments[number].chunks}


def _make_table_key(read: TableReadPlan) -> tuple[str, int]:
    return read.incarnation, read.schema.version


def _is_loaded(frame: DataFrame) -> bool:
    """Return True if Spark has materialized all rows of a persisted frame."""
    try:
        plan = frame._jdf.queryExecution().withCachedData()  # noqa: SLF001  no public API
        return bool(plan.cacheBuilder().isCachedColumnBuffersLoaded())
    except Exception:  # noqa: BLE001  Spark Connect raises various errors
        return False
