"""Migration task: reads chunks and writes native files, without the catalog.

Each written file is read again, and must have the fingerprint of the decoded chunks.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt import failpoints
from snowmelt.errors import BlobCorrupt, ObjectMissing, TableInconsistent
from snowmelt.failpoints import Failpoint
from snowmelt.schema.row_fingerprint import Fingerprint, fingerprint_table
from snowmelt.schema.types import TableSchema
from snowmelt.table.chunk_reader import (
    ChunkReadTask,
    concatenate_native_tables,
    run_chunk_read_task,
)
from snowmelt.table.external_sort import make_sort_keys
from snowmelt.table.native_file import read_native_bytes
from snowmelt.table.native_file_writer import WrittenFile, write_native_file
from snowmelt.table.warehouse_paths import open_cached_store

# Maximum bytes of rows that a task buffers per file. The file has about 128 MiB compressed.
_MAX_BUFFERED_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MigrationTask:
    """Chunks to write as one native file, or several if they are large. Picklable.

    With `adopted`, a file already has their rows. The task only compares it with the chunks.
    """

    number: int
    warehouse_url: str
    folder: str
    chunks: tuple[ChunkReadTask, ...]
    schema: TableSchema
    cluster_by: tuple[str, ...]
    adopted: WrittenFile | None = None


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
    """Read the chunks of a task and write them as native files. Sorts rows of a clustered table.

    May run anywhere and more than once: each attempt writes its own files.

    Raises:
        ObjectMissing: If a blob is missing.
        StageUnavailable: If the stage or warehouse does not respond.
    """
    outcomes: list[TaskOutcome] = []
    if task.adopted is not None:
        return [_verify_adopted_file(task, task.adopted)]
    parts = _ChunkParts()
    for chunk in task.chunks:
        try:
            parts.add(chunk.seq, run_chunk_read_task(chunk))
        except BlobCorrupt as error:
            outcomes.append(UndecodableChunk(chunk.seq, str(error)))
        if parts.bytes >= _MAX_BUFFERED_BYTES:
            outcomes.append(_write_native_file(task, parts, len(outcomes)))
            parts = _ChunkParts()
    if parts.chunks:
        outcomes.append(_write_native_file(task, parts, len(outcomes)))
    failpoints.hit_failpoint(Failpoint.MIGRATION_TASK)
    return outcomes


class _ChunkParts:
    """Decoded chunks of one file, with their fingerprints."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.chunks: list[tuple[int, bytes]] = []
        self.fingerprint = Fingerprint()
        self.bytes = 0

    def add(self, seq: int, table: pa.Table) -> None:
        fingerprint = fingerprint_table(table)
        self.tables.append(table)
        self.chunks.append((seq, fingerprint.to_bytes()))
        self.fingerprint += fingerprint
        self.bytes += table.nbytes


def _write_native_file(task: MigrationTask, parts: _ChunkParts, file_number: int) -> WrittenFile:
    table = concatenate_native_tables(parts.tables, task.schema)
    if task.cluster_by:
        keys = make_sort_keys(task.schema, task.cluster_by)
        table = table.take(pc.sort_indices(table, sort_keys=keys))
    # The number follows the order of the chunks. The rest of the name is unique to this attempt.
    name = f"{task.number:05d}-{file_number:03d}-{uuid.uuid4().hex[:12]}.parquet"
    path = f"{task.folder}/{name}"
    written = write_native_file(open_cached_store(task.warehouse_url), path, table)
    found, _ = _read_fingerprint(task, written)
    return _describe(written, found, parts.fingerprint, parts.chunks)


def _verify_adopted_file(task: MigrationTask, adopted: WrittenFile) -> WrittenFile:
    found, sha256 = _read_fingerprint(task, adopted)
    written = replace(adopted, sha256=sha256, fingerprint=found.to_bytes())
    chunks: list[tuple[int, bytes]] = []
    total = Fingerprint()
    for chunk in task.chunks:
        try:
            part = fingerprint_table(run_chunk_read_task(chunk))
        except (BlobCorrupt, ObjectMissing):
            # The blob became undecodable, but the file has its rows.
            return written
        chunks.append((chunk.seq, part.to_bytes()))
        total += part
    return _describe(written, found, total, chunks)


def _describe(
    written: WrittenFile,
    found: Fingerprint,
    expected: Fingerprint,
    chunks: Sequence[tuple[int, bytes]],
) -> WrittenFile:
    """Return the description of a file with its chunks.

    Raises:
        TableInconsistent: If the file does not have the rows of the chunks.
    """
    if found != expected:
        raise TableInconsistent(
            table=written.path,
            reason=f"this file does not have the rows of chunks {chunks[0][0]} to {chunks[-1][0]}:"
            f" {found.rows} rows were read, {expected.rows} expected, or their values differ",
        )
    return replace(written, fingerprint=expected.to_bytes(), chunks=tuple(chunks))


def _read_fingerprint(task: MigrationTask, file: WrittenFile) -> tuple[Fingerprint, str]:
    """Read a file from the warehouse. Return the fingerprint of its rows, and its SHA-256."""
    data = open_cached_store(task.warehouse_url).get(file.path)
    table = read_native_bytes(data, task.schema)
    return fingerprint_table(table), hashlib.sha256(data).hexdigest()
