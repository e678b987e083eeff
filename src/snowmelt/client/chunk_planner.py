"""Planning of a flush: rows into chunks, chunks into blobs (specification of v1, §3.5, §3.6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from snowmelt.client.channel_state import ChannelState, ChannelTarget, ChunkEntry

MAX_BLOB_BYTES = 1024 * 1024 * 1024
MAX_CHUNK_BYTES = 256 * 1024 * 1024
# Also the most that one registration may name, so a blob is never split over requests.
MAX_BLOB_CHUNKS = 100


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPlan:
    """Rows of one target: the channels' portions one after the other."""

    target: ChannelTarget
    entries: tuple[ChunkEntry, ...]

    @property
    def size_bytes(self) -> int:
        """The estimate that the limits mean."""
        return sum(entry.flush_slice.size_bytes for entry in self.entries)

    @property
    def exceeds_chunk_limit(self) -> bool:
        """Whether it has to become several chunks: it is one call then, committed as one."""
        return self.size_bytes > MAX_CHUNK_BYTES

    def without_channels(self, excluded: Collection[ChannelState]) -> ChunkPlan | None:
        """Return the plan for the other channels, None when there are none."""
        kept = tuple(entry for entry in self.entries if entry.state not in excluded)
        return ChunkPlan(self.target, kept) if kept else None

    def split_by_entry(self) -> list[ChunkPlan]:
        """Return a plan for each entry."""
        return [ChunkPlan(self.target, (entry,)) for entry in self.entries]


def plan_chunks(
    entries: Sequence[ChunkEntry], *, max_chunk_bytes: int | None = None
) -> list[ChunkPlan]:
    """Group entries by target, in order, into chunks below the limit.

    One entry above the limit is a plan of its own, to be written as several chunks.
    """
    most = MAX_CHUNK_BYTES if max_chunk_bytes is None else max_chunk_bytes
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
    """Put chunks into blobs, in order, below the limits; a large one gets blobs of its own."""
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
    """Return rows in pieces of at most so many bytes, in order; a larger row is one by itself."""
    if table.num_rows <= 1 or table.nbytes <= max_bytes:
        return [table]
    half = table.num_rows // 2
    return [
        *split_table(table.slice(0, half), max_bytes),
        *split_table(table.slice(half), max_bytes),
    ]
