"""Fresh files: native files of chunks that no migration has committed, for published snapshots.

Each round writes the new chunks of a table as one file, and joins small files as they age. So a table
has few fresh files however many chunks wait.
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
from snowmelt.table.native_file_writer import WrittenFile, write_native_file
from snowmelt.table.table_reader import read_native_file
from snowmelt.table.warehouse_paths import Warehouse, make_fresh_path

_MIB = 1024 * 1024
# A round ends at this size of chunks, so that the first publication of a large backlog comes soon.
MAX_ROUND_BYTES = 64 * _MIB
# A join costs as much CPU as half a round, and most files are migrated before there are this many.
MAX_UNJOINED_FILES = 24
# 16 files of level 0 become one of level 1, 8 of those one of level 2, which is never joined again. Fewer
# are joined if they have the final size together.
_FILES_PER_JOIN = {0: 16, 1: 8}
_FINAL_LEVEL = 2
_FINAL_SIZE_BYTES = 8 * _MIB
# A fifth of the CPU less than at level 3, and files of the same size.
_ZSTD_LEVEL = 1
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WrittenFile)


@dataclass(frozen=True, slots=True)
class FreshFileWriter:
    """Writer of the fresh files of one table, in the folder `folder` of the warehouse.

    With `cluster_by`, each file is sorted in itself.
    """

    warehouse: Warehouse
    folder: str
    schema: TableSchema
    cluster_by: tuple[str, ...]

    def write_chunks(
        self, from_seq: int, chunks: Sequence[ChunkReadTask]
    ) -> tuple[FreshFile | None, BlobCorrupt | None]:
        """Write chunks as one file, up to the first that cannot be decoded.

        The file is None if the first chunk cannot be decoded. The error is that of the first undecodable
        chunk.

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
        """Join runs of small files of one level; return each run with the file that replaces it."""
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
                    # A large file is not joined again, even if the join makes it smaller.
                    new_level = _FINAL_LEVEL if is_final else level + 1
                    joined.append((tuple(run), self._join(run, new_level)))
                    run = []
            if joined:
                # The next level is joined in a later round, so that a round stays short.
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
        # Files of level 0 are joined within seconds, unless they have the final size at once.
        is_temporary = level == 0 and table.nbytes < _FINAL_SIZE_BYTES
        zstd_level = None if is_temporary else _ZSTD_LEVEL
        written = write_native_file(self.warehouse.store, path, table, zstd_level=zstd_level)
        if written.size >= _FINAL_SIZE_BYTES:
            level = _FINAL_LEVEL
        return FreshFile(0, from_seq, to_seq, level, path, written.size, _encoder.encode(written))


def decode_fresh_file(file: FreshFile) -> WrittenFile:
    """Return the description of a fresh file for manifests."""
    return _decoder.decode(file.entry)
