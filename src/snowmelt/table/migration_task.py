"""The part of a migration that needs no catalog: chunks in, native files out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt import failpoints
from snowmelt.errors import BlobCorrupt
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import TableSchema
from snowmelt.table.chunk_reader import (
    ChunkReadTask,
    concatenate_native_tables,
    run_chunk_read_task,
)
from snowmelt.table.external_sort import make_sort_keys
from snowmelt.table.native_file_writer import WrittenFile, write_native_file
from snowmelt.table.warehouse_paths import open_cached_store

# Rows that a task buffers before it writes a file, which has about 128 MiB compressed.
_MAX_BUFFERED_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MigrationTask:
    """Chunks that become one native file, or more if they are large; picklable, self-contained."""

    number: int
    warehouse_url: str
    folder: str
    chunks: tuple[ChunkReadTask, ...]
    schema: TableSchema
    cluster_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UndecodableChunk:
    """Chunk that cannot be decoded, with the reason."""

    seq: int
    reason: str


TaskOutcome: TypeAlias = WrittenFile | UndecodableChunk


def group_chunks(
    chunks: Sequence[ChunkReadTask], target_bytes: int
) -> Iterator[list[ChunkReadTask]]:
    """Split chunks into consecutive groups of about `target_bytes`.

    The size of a chunk approximates the size of its rows in a native file.
    """
    group: list[ChunkReadTask] = []
    size = 0
    for chunk in chunks:
        if group and size + chunk.length > target_bytes:
            yield group
            group, size = [], 0
        group.append(chunk)
        size += chunk.length
    if group:
        yield group


def run_migration_task(task: MigrationTask) -> list[TaskOutcome]:
    """Read a task's chunks and write them as native files, sorted if the table is clustered.

    May run anywhere and more than once: each attempt writes its own files.

    Raises:
        ObjectMissing: If a blob is missing.
        StageUnavailable: If the stage or warehouse does not respond.
    """
    outcomes: list[TaskOutcome] = []
    parts: list[pa.Table] = []
    for chunk in task.chunks:
        try:
            parts.append(run_chunk_read_task(chunk))
        except BlobCorrupt as error:
            outcomes.append(UndecodableChunk(chunk.seq, str(error)))
        if sum(part.nbytes for part in parts) >= _MAX_BUFFERED_BYTES:
            outcomes.append(_write_native_file(task, parts, len(outcomes)))
            parts = []
    if parts:
        outcomes.append(_write_native_file(task, parts, len(outcomes)))
    failpoints.hit_failpoint(Failpoint.MIGRATION_TASK)
    return outcomes


def _write_native_file(
    task: MigrationTask, chunk_tables: list[pa.Table], file_number: int
) -> WrittenFile:
    table = concatenate_native_tables(chunk_tables, task.schema)
    if task.cluster_by:
        keys = make_sort_keys(task.schema, task.cluster_by)
        table = table.take(pc.sort_indices(table, sort_keys=keys))
    # Numbered in the order of the chunks. The rest of the name is unique to this attempt.
    name = f"{task.number:05d}-{file_number:03d}-{uuid.uuid4().hex[:12]}.parquet"
    return write_native_file(open_cached_store(task.warehouse_url), f"{task.folder}/{name}", table)
