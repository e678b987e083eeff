"""Convert rows of a flush to chunks and blobs, and upload the blobs (specification of v1, §3.5, §3.6)."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from snowmelt import failpoints, tracing
from snowmelt.backoff import Backoff
from snowmelt.blob.encryption import BDEC_VERSION, make_blob_path
from snowmelt.blob.writer import Blob, BlobChunkLocation, ChunkInput, build_blob
from snowmelt.client import channel_state
from snowmelt.client.channel_state import ChannelFailure, ChannelState, ChannelTarget, ChunkEntry
from snowmelt.client.flush_scheduling import FlushScheduler
from snowmelt.client.row_buffer import adapt_rows, convert_segments_jointly
from snowmelt.client.settings import ClientSettings
from snowmelt.client.stage import BlobStage
from snowmelt.clock import to_epoch_ms
from snowmelt.errors import SnowmeltError, StageUnavailable
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.conversion.arrow_input import combine_small_arrow_chunks
from snowmelt.schema.statistics import collect_statistics
from snowmelt.wire.column_statistics import statistics_to_message
from snowmelt.wire.streaming import BlobMetadata, BlobStats, ChunkChannelMessage, ChunkMetadata

_log = logging.getLogger(__name__)

_BLOB_THREAD_ID = 1
MAX_BLOB_BYTES = 1024 * 1024 * 1024
# Also the limit of one registration request, so the chunks of a blob always fit into one request.
MAX_BLOB_CHUNKS = 100


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPlan:
    """Rows for one chunk: slices of channels of one table, in order."""

    target: ChannelTarget
    entries: tuple[ChunkEntry, ...]

    @property
    def size_bytes(self) -> int:
        """Estimated size in bytes."""
        return sum(entry.flush_slice.size_bytes for entry in self.entries)

    @property
    def exceeds_chunk_limit(self) -> bool:
        """True if the rows need several chunks, which are committed together."""
        return self.size_bytes > channel_state.MAX_CHUNK_BYTES

    def without_channels(self, excluded: Collection[ChannelState]) -> ChunkPlan | None:
        """Return a plan for the other channels, or None if there are none."""
        kept = tuple(entry for entry in self.entries if entry.state not in excluded)
        return ChunkPlan(self.target, kept) if kept else None

    def split_by_entry(self) -> list[ChunkPlan]:
        """Return a plan for each entry."""
        return [ChunkPlan(self.target, (entry,)) for entry in self.entries]


def plan_chunks(
    entries: Sequence[ChunkEntry], *, max_chunk_bytes: int | None = None
) -> list[ChunkPlan]:
    """Group entries by table, in order, into chunks below the limit.

    An entry above the limit becomes a separate plan with several chunks.
    """
    most = channel_state.MAX_CHUNK_BYTES if max_chunk_bytes is None else max_chunk_bytes
    grouped: dict[ChannelTarget, list[list[ChunkEntry]]] = {}
    sizes: dict[ChannelTarget, int] = {}
    for entry in entries:
        target = entry.target
        chunks = grouped.setdefault(target, [[]])
        size = sizes.get(target, 0) + entry.flush_slice.size_bytes
        if chunks[-1] and size > most:
            chunks.append([])
            size = entry.flush_slice.size_bytes
        chunks[-1].append(entry)
        sizes[target] = size
    return [
        ChunkPlan(target, tuple(chunk)) for target, chunks in grouped.items() for chunk in chunks
    ]


def plan_blobs(
    chunks: Sequence[ChunkPlan],
    *,
    max_blob_bytes: int = MAX_BLOB_BYTES,
    max_chunks: int = MAX_BLOB_CHUNKS,
) -> list[tuple[ChunkPlan, ...]]:
    """Group chunks into blobs below the limits, in order. A large chunk gets separate blobs."""
    blobs: list[tuple[ChunkPlan, ...]] = []
    size = 0
    for chunk in chunks:
        size += chunk.size_bytes
        if (
            (blobs and size <= max_blob_bytes and len(blobs[-1]) < max_chunks)
            and not chunk.exceeds_chunk_limit
            and not blobs[-1][0].exceeds_chunk_limit
        ):
            blobs[-1] = (*blobs[-1], chunk)
        else:
            blobs.append((chunk,))
            size = chunk.size_bytes
    return blobs


def split_table(table: pa.Table, max_bytes: int) -> list[pa.Table]:
    """Split a table into slices of at most `max_bytes`, in order. A larger row is a separate slice."""
    if table.num_rows <= 1 or table.nbytes <= max_bytes:
        return [table]
    half = table.num_rows // 2
    return [
        *split_table(table.slice(0, half), max_bytes),
        *split_table(table.slice(half), max_bytes),
    ]


class _PlanSegment(NamedTuple):
    """Position of a chunk among the chunks of one plan, and its estimated bytes."""

    number: int
    total_segments: int
    size_bytes: int

    @property
    def is_last(self) -> bool:
        """True for the last chunk of the plan."""
        return self.number == self.total_segments - 1


@dataclass(slots=True, eq=False)
class StagedChunk:
    """A chunk whose blob is on the stage. `is_sent` is True after a registration has been sent.

    A plan that is too large for one chunk has `additional_chunks`, which are registered with it.
    """

    plan: ChunkPlan
    path: str
    blob_md5: str
    metadata: ChunkMetadata
    stats: BlobStats
    spans_mixed_tables: bool
    is_sent: bool = field(default=False)
    additional_chunks: list[StagedChunk] = field(default_factory=list)

    @property
    def all_chunks_of_plan(self) -> list[StagedChunk]:
        """All chunks of the plan, in order."""
        return [self, *self.additional_chunks]

    def make_blob_metadata(self, chunks: list[ChunkMetadata]) -> BlobMetadata:
        """Return the metadata of the blob with these chunks."""
        return BlobMetadata(
            path=self.path,
            md5=self.blob_md5,
            chunks=chunks,
            bdec_version=BDEC_VERSION,
            blob_stats=self.stats,
            spans_mixed_tables=self.spans_mixed_tables,
        )


class BlobStager:
    """Builds blobs and uploads them to the stage. Names of blobs are never reused."""

    def __init__(
        self,
        stage: BlobStage,
        client_prefix: str,
        pending_rows: FlushScheduler,
        settings: ClientSettings,
        stop_event: threading.Event,
    ) -> None:
        # Arrow imports modules at its first conversion. The import would fail in the last flush of
        # a process, so import them now.
        pa.array([], pa.int64())
        self.last_upload_error: SnowmeltError | None = None
        self._stage = stage
        self._client_prefix = client_prefix
        self._pending_rows = pending_rows
        self._clock = settings.clock
        self._give_up_after_s = settings.give_up_after_s
        self.on_trouble: Callable[[SnowmeltError], None] | None = None
        self._stop_event = stop_event
        self._blob_counter = itertools.count()

    def stage_chunks(self, plans: Sequence[ChunkPlan]) -> list[StagedChunk]:
        """Build and upload all chunks. If a chunk cannot be uploaded, its channels become invalid."""
        staged: list[StagedChunk] = []
        for blob_plans in plan_blobs(plans):
            staged += self._stage_or_fail_channels(blob_plans)
        return staged

    def close(self) -> None:
        """Close the connections of the stage."""
        self._stage.close()

    def _stage_or_fail_channels(self, plans: Sequence[ChunkPlan]) -> list[StagedChunk]:
        try:
            return self._stage_plans(plans)
        except StageUnavailable as error:
            self._fail_channels(plans, str(error), error)
            return []
        except Exception as error:  # noqa: BLE001 - any error must invalidate the channels
            apart = list(plans) if len(plans) > 1 else plans[0].split_by_entry()
            if len(apart) > 1:
                # Encode tables and channels separately, so that an error in one does not affect the
                # others.
                return [chunk for plan in apart for chunk in self._stage_or_fail_channels((plan,))]
            _log.exception("Rows could not be encoded.")
            cause = error if isinstance(error, SnowmeltError) else None
            reason = f"its rows could not be encoded: {type(error).__name__}: {error}"
            self._fail_channels(plans, reason, cause)
            return []

    def _fail_channels(
        self, plans: Sequence[ChunkPlan], reason: str, cause: SnowmeltError | None
    ) -> None:
        states = [entry.state for plan in plans for entry in plan.entries]
        self._pending_rows.fail_channels(states, ChannelFailure(reason.rstrip("."), cause=cause))

    def _stage_plans(self, plans: Sequence[ChunkPlan]) -> list[StagedChunk]:
        if plans[0].exceeds_chunk_limit:
            return [self._stage_large_plan(plans[0])]
        tables = [combine_small_arrow_chunks(_merge_plan_rows(plan)) for plan in plans]
        return self._stage_new_blob(
            plans, tables, [_PlanSegment(0, 1, plan.size_bytes) for plan in plans]
        )

    def _stage_large_plan(self, plan: ChunkPlan) -> StagedChunk:
        """Upload one blob for each chunk of a plan above the limit."""
        rows = _merge_plan_rows(plan)
        # The limit is in estimated bytes. Convert it to bytes in Arrow.
        pieces = split_table(rows, rows.nbytes * channel_state.MAX_CHUNK_BYTES // plan.size_bytes)
        staged: list[StagedChunk] = []
        for number, piece in enumerate(pieces):
            size_bytes = plan.size_bytes * piece.nbytes // max(rows.nbytes, 1)
            part = _PlanSegment(number, len(pieces), size_bytes)
            staged += self._stage_new_blob((plan,), [combine_small_arrow_chunks(piece)], [part])
        first, *first.additional_chunks = staged
        return first

    def _stage_new_blob(
        self, plans: Sequence[ChunkPlan], tables: list[pa.Table], segments: Sequence[_PlanSegment]
    ) -> list[StagedChunk]:
        started_at = self._clock.now()
        path = make_blob_path(
            started_at, self._client_prefix, _BLOB_THREAD_ID, next(self._blob_counter)
        )
        first_ms = min(
            entry.flush_slice.first_insert_ms for plan in plans for entry in plan.entries
        )
        tracing.record_blob_spans("snowmelt.insert", [path], first_ms * 1_000_000)
        with tracing.span("snowmelt.flush", path):
            return self._stage_blob_at(path, started_at, plans, tables, segments)

    def _stage_blob_at(
        self,
        path: str,
        started_at: dt.datetime,
        plans: Sequence[ChunkPlan],
        tables: list[pa.Table],
        segments: Sequence[_PlanSegment],
    ) -> list[StagedChunk]:
        sources = [
            ChunkInput(rows=table, schema=plan.target.schema, data_key=plan.target.data_key)
            for plan, table in zip(plans, tables, strict=True)
        ]
        built_from = self._clock.monotonic()
        blob = build_blob(path, sources)
        described = [
            _make_chunk_metadata(plan, table, chunk, part)
            for plan, table, chunk, part in zip(plans, tables, blob.chunks, segments, strict=True)
        ]
        # Release the rows before the upload. The caller has a reference to the list, so clear it.
        tables.clear()
        del sources
        built_at = self._clock.monotonic()
        failpoints.hit_failpoint(failpoints.Failpoint.BLOB_BUILT)
        with tracing.span("snowmelt.put", bytes=len(blob.data)):
            self._upload_with_retries(blob)
        failpoints.hit_failpoint(failpoints.Failpoint.BLOB_STAGED)
        stats = BlobStats(
            flush_start_ms=to_epoch_ms(started_at),
            build_duration_ms=round((built_at - built_from) * 1000),
            upload_duration_ms=round((self._clock.monotonic() - built_at) * 1000),
        )
        return [
            StagedChunk(plan, path, blob.md5, metadata, stats, spans_mixed_tables=len(plans) > 1)
            for plan, metadata in zip(plans, described, strict=True)
        ]

    def _upload_with_retries(self, blob: Blob) -> None:
        """Upload a blob, with retries until the backoff ends. The rows stay in memory meanwhile."""
        patience = Backoff(self._give_up_after_s, self._clock)
        while True:
            try:
                failpoints.hit_failpoint(failpoints.Failpoint.STAGE_WRITE)
                self._stage.put(blob.path, blob.data)
            except StageUnavailable as error:
                failure = error
            except OSError as error:
                failure = StageUnavailable(reason=error.strerror or str(error))
            else:
                self.last_upload_error = None
                return
            if self.last_upload_error is None and self.on_trouble is not None:
                self.on_trouble(failure)
            self.last_upload_error = failure
            pause_s = patience.next_delay_s()
            _log.warning("%s Trying again.", failure)
            if pause_s is None or self._stop_event.wait(pause_s):
                raise failure


def _merge_plan_rows(plan: ChunkPlan) -> pa.Table:
    """Return the rows of a plan, in order.

    Segments are replaced by tables in place, because rows as Python objects take several times the
    memory.
    """
    schema = plan.target.schema
    made = convert_segments_jointly([entry.flush_slice.segments for entry in plan.entries], schema)
    if not made:
        return chunk_arrow_schema(schema).empty_table()
    return pa.concat_tables([adapt_rows(table, schema) for table in made])


def _make_chunk_metadata(
    plan: ChunkPlan, table: pa.Table, chunk: BlobChunkLocation, segment: _PlanSegment
) -> ChunkMetadata:
    schema = plan.target.schema
    database_name, schema_name, table_name = plan.target.table.display_name
    return ChunkMetadata(
        database=database_name,
        schema=schema_name,
        table=table_name,
        chunk_start_offset=chunk.offset,
        chunk_length=chunk.length,
        chunk_length_uncompressed=segment.size_bytes,
        channels=[
            ChunkChannelMessage(
                channel_name=entry.state.name,
                client_sequencer=entry.state.client_sequencer,
                row_sequencer=entry.row_sequencer,
                offset_token=entry.flush_slice.end_token if segment.is_last else None,
                start_offset_token=entry.flush_slice.start_token if segment.number == 0 else None,
                end_offset_token=entry.flush_slice.end_token if segment.is_last else None,
            )
            for entry in plan.entries
        ],
        chunk_md5=chunk.md5,
        eps=statistics_to_message(schema, collect_statistics(table, schema)),
        encryption_key_id=plan.target.key_id,
        first_insert_time_in_ms=min(entry.flush_slice.first_insert_ms for entry in plan.entries),
        last_insert_time_in_ms=max(entry.flush_slice.last_insert_ms for entry in plan.entries),
        parts=segment.total_segments,
        rowless=table.num_rows == 0,
        schema_version=schema.version,
    )
