"""Spools that write the rows and rejects of one portion to native files, row group by row group.

Small files of one load are merged before its commit.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InternalError, SnowmeltError
from snowmelt.load.phase_protocols import ParseReject
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import TableSchema
from snowmelt.table.external_sort import make_sort_keys
from snowmelt.table.native_file import read_native_bytes
from snowmelt.table.native_file_writer import NativeWriter, WrittenFile
from snowmelt.table.rejects import REJECT_SCHEMA, RejectedRow, RejectOrigin, to_reject_table
from snowmelt.table.warehouse_paths import open_cached_store

# Size of a row group before encoding. Pruning is effective with row groups of this size.
_GROUP_BYTES = 5 * 1024 * 1024
_GROUP_ROWS = 256 * 1024
# Size at which a new file begins.
_FILE_BYTES = 128 * 1024 * 1024
# Files of one load below this size are merged if there are at least `_MIN_MERGED_FILES` of them.
_SMALL_FILE_BYTES = 1024 * 1024
_MIN_MERGED_FILES = 8
_REJECT_BYTES = 1024 * 1024
_REJECT_ROWS = 4096
# Loads are CPU-bound: level 3 would save 6 % of the bytes and take twice the time.
_COMPRESSION_LEVEL = 1


class FileSpool:
    """Writer of tables of one schema to files in one folder. Buffers at most one row group."""

    def __init__(self, warehouse_url: str, folder: str, prefix: str, schema: pa.Schema) -> None:
        self.files: list[WrittenFile] = []
        self._store = open_cached_store(warehouse_url)
        self._folder = folder
        self._prefix = prefix
        self._schema = schema
        self._writer: NativeWriter | None = None

    def write(self, row_group: pa.Table) -> None:
        """Append a row group.

        Raises:
            StageUnavailable: If the warehouse cannot be written.
        """
        if not row_group.num_rows:
            return
        if self._writer is None:
            # The number orders the files. The rest of the name is unique to this attempt.
            name = f"{self._prefix}-{len(self.files):03d}-{uuid.uuid4().hex[:12]}.parquet"
            path = f"{self._folder}/{name}"
            self._writer = NativeWriter(self._store, path, self._schema, level=_COMPRESSION_LEVEL)
        self._writer.write_row_group(row_group)
        if self._writer.written_bytes >= _FILE_BYTES:
            self._finish_file()

    def finish(self) -> tuple[WrittenFile, ...]:
        """Close the last file and return all files.

        Raises:
            StageUnavailable: If the warehouse cannot be written.
        """
        self._finish_file()
        return tuple(self.files)

    def abort_current_file(self) -> None:
        """Delete the unfinished file. Garbage collection deletes finished files with their load."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None

    def _finish_file(self) -> None:
        if self._writer is not None:
            self.files.append(self._writer.finish())
            self._writer = None


class RowSpool:
    """Spool of rows in native form, as a parser returns them."""

    def __init__(
        self, spool: FileSpool, schema: TableSchema, cluster_by: Sequence[str] = ()
    ) -> None:
        self._spool = spool
        self._keys = make_sort_keys(schema, cluster_by)
        self._pending: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0

    def add(self, rows: pa.Table) -> bool:
        """Add rows. Return True if a row group was written."""
        self._pending.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows < _GROUP_ROWS and self._bytes < _GROUP_BYTES:
            return False
        self._write_row_group()
        return True

    def finish(self) -> tuple[WrittenFile, ...]:
        """Write the buffered rows, and return the files."""
        self._write_row_group()
        return self._spool.finish()

    def _write_row_group(self) -> None:
        if self._rows:
            group = pa.concat_tables(self._pending)
            if self._keys:
                group = group.take(pc.sort_indices(group, sort_keys=self._keys))
            self._spool.write(group)
        self._pending, self._rows, self._bytes = [], 0, 0


class RejectSpool:
    """Spool that writes rejected records of one portion as rows of the reject table."""

    def __init__(self, spool: FileSpool, origin: RejectOrigin) -> None:
        self._spool = spool
        self._origin = origin
        self._pending: list[RejectedRow] = []
        self._bytes = 0

    def add(self, rejects: Sequence[ParseReject], locate: Callable[[int], str | None]) -> None:
        """Add rejected records. `locate` returns the position of a record by number, or None."""
        for each in rejects:
            self._pending.append(
                RejectedRow(
                    each.record,
                    each.offset,
                    each.data,
                    each.reason,
                    each.column,
                    locate(each.record),
                )
            )
            self._bytes += len(each.data)
            if len(self._pending) >= _REJECT_ROWS or self._bytes >= _REJECT_BYTES:
                self._write_row_group()

    def finish(self) -> tuple[WrittenFile, ...]:
        """Write the buffered rows, and return the files."""
        self._write_row_group()
        return self._spool.finish()

    def _write_row_group(self) -> None:
        if self._pending:
            self._spool.write(to_reject_table(self._origin, self._pending))
        self._pending, self._bytes = [], 0


def open_reject_spool(warehouse_url: str, folder: str, prefix: str) -> FileSpool:
    """Create a spool for rows of the reject table."""
    return FileSpool(warehouse_url, folder, prefix, native_schema(REJECT_SCHEMA))


def merge_small_files(
    files: Sequence[WrittenFile],
    schema: TableSchema,
    *,
    warehouse_url: str,
    folder: str,
    cluster_by: Sequence[str] = (),
) -> tuple[WrittenFile, ...]:
    """Return the files of a load. Merge small files if there are at least `_MIN_MERGED_FILES`.

    A load writes at least one file for each input, and every later query would open all of them.

    Raises:
        StageUnavailable: If the warehouse cannot be read or written.
    """
    small = [file for file in files if file.size < _SMALL_FILE_BYTES]
    if len(small) < _MIN_MERGED_FILES:
        return tuple(files)
    store = open_cached_store(warehouse_url)
    spool = FileSpool(warehouse_url, folder, "merged", native_schema(schema))
    rows = RowSpool(spool, schema, cluster_by)
    try:
        for file in small:
            # This verifies the checksums of pages, as migrations do.
            rows.add(read_native_bytes(store.get(file.path), schema))
        merged = rows.finish()
    finally:
        spool.abort_current_file()
    if sum(file.rows for file in merged) != sum(file.rows for file in small):
        raise InternalError("The merged files of a load have another number of rows")
    for file in small:
        # Garbage collection deletes the files that this deletion misses.
        with contextlib.suppress(SnowmeltError):
            store.delete(file.path)
    return (*(file for file in files if file.size >= _SMALL_FILE_BYTES), *merged)
