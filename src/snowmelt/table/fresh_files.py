"""Fresh files: native files of chunks that are not migrated, for published snapshots.

Each round writes the new chunks of a table as one file, and compacts small files as they age. A
table therefore has few fresh files, however many chunks wait for migration.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.catalog.objects.published_snapshots import FreshFile
from snowmelt.errors import BlobCorrupt
from snowmelt.schema.types import TableSchema
from snowmelt.table.chunk_reader import (
    ChunkReadTask,
    concatenate_native_tables,
    run_chunk_read_task,
)
from snowmelt.table.external_sort import make_sort_keys
from snowmelt.table.native_file import NativeFile, read_native_file
from snowmelt.table.native_file_writer import WrittenFile, write_native_file
from snowmelt.table.warehouse_paths import Warehouse, make_fresh_path

_MIB = 1024 * 1024
# Maximum size of the chunks of a round. A larger backlog is published in several rounds. A row
# counts as 32 bytes or more, so a round takes at most about 1 s of CPU.
MAX_ROUND_BYTES = 32 * _MIB
# Fresh files of a table are compacted only if there are more than this number. Compaction takes
# half the CPU of a round, and most files are migrated before there are so many.
MAX_UNJOINED_FILES = 24
# 16 files of level 0 become one file of level 1, and 8 of those one file of level 2, the final
# level. Fewer files are compacted if together they have the final size.
_FILES_PER_JOIN = {0: 16, 1: 8}
_FINAL_LEVEL = 2
_FINAL_SIZE_BYTES = 8 * _MIB
# Zstandard level: a fifth less CPU than level 3, and files of the same size.
_ZSTD_LEVEL = 1
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WrittenFile)


@dataclass(frozen=True, slots=True)
class FreshFileWriter:
    """Writer of the fresh files of one table, in `folder` of the warehouse.

    With `cluster_by`, the rows of each file are sorted.
    """

    warehouse: Warehouse
    folder: str
    schema: TableSchema
    cluster_by: tuple[str, ...]

    def write_chunks(
        self, from_seq: int, chunks: Sequence[ChunkReadTask]
    ) -> tuple[FreshFile | None, BlobCorrupt | None]:
        """Write chunks as one file, up to the first chunk that cannot be decoded.

        Returns no file (None) if the first chunk cannot be decoded. The returned error is that of
        the first chunk that cannot be decoded.

        Raises:
            ObjectMissing: If a blob does not exist.
            StageUnavailable: If stage or warehouse do not respond.
        """
        parts: list[pa.Table] = []
        problem: BlobCorrupt | None = None
        for chunk in chunks:
            try:
                parts.append(run_chunk_read_task(chunk))
            except BlobCorrupt as error:
                problem = error
                break
        if not parts:
            return None, problem
        to_seq = chunks[len(parts) - 1].seq
        return self._write(from_seq, to_seq, 0, parts), problem

    def join_files(
        self, files: Sequence[FreshFile]
    ) -> list[tuple[tuple[FreshFile, ...], FreshFile]]:
        """Compact adjacent small files of a level. Return each group with its replacement."""
        joined = []
        for level, count in _FILES_PER_JOIN.items():
            run: list[FreshFile] = []
            for file in files:
                if file.level != level:
                    run.clear()
                    continue
                run.append(file)
                size = sum(each.size for each in run)
                is_final = len(run) > 1 and size >= _FINAL_SIZE_BYTES
                if is_final or len(run) == count:
                    # Do not compact a large file again, even if the result is smaller.
                    new_level = _FINAL_LEVEL if is_final else level + 1
                    joined.append((tuple(run), self._join(run, new_level)))
                    run = []
            if joined:
                # Compact the next level in a later round, so that a round stays short.
                break
        return joined

    def _join(self, files: Sequence[FreshFile], level: int) -> FreshFile:
        parts = [
            read_native_file(self.warehouse.to_address(file.path), self.schema) for file in files
        ]
        return self._write(files[0].from_seq, files[-1].to_seq, level, parts)

    def _write(
        self, from_seq: int, to_seq: int, level: int, parts: Sequence[pa.Table]
    ) -> FreshFile:
        table = concatenate_native_tables(parts, self.schema)
        if self.cluster_by:
            keys = make_sort_keys(self.schema, self.cluster_by)
            table = table.take(pc.sort_indices(table, sort_keys=keys))
        path = make_fresh_path(self.folder, from_seq, to_seq, uuid.uuid4().hex[:12])
        # Files of level 0 are compacted within seconds, unless they already have the final size.
        is_temporary = level == 0 and table.nbytes < _FINAL_SIZE_BYTES
        zstd_level = None if is_temporary else _ZSTD_LEVEL
        written = write_native_file(self.warehouse.store, path, table, zstd_level=zstd_level)
        if written.size >= _FINAL_SIZE_BYTES:
            level = _FINAL_LEVEL
        return FreshFile(0, from_seq, to_seq, level, path, written.size, _encoder.encode(written))


def decode_fresh_file(file: FreshFile) -> WrittenFile:
    """Decode the manifest description of a fresh file."""
    return _decoder.decode(file.entry)


def describe_fresh_file(file: FreshFile, warehouse: Warehouse) -> NativeFile:
    """Return a fresh file as readers of native files need it. Its `sequence` is 0."""
    written = decode_fresh_file(file)
    bounds = written.bounds.items()
    return NativeFile(
        path=warehouse.to_address(written.path),
        sequence=0,
        size=written.size,
        rows=written.rows,
        lower={key: each.lower for key, each in bounds if each.lower is not None},
        upper={key: each.upper for key, each in bounds if each.upper is not None},
        nulls={key: each.nulls for key, each in bounds},
        nans={key: each.nans for key, each in bounds if each.nans is not None},
    )
