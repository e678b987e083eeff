"""Writer of one native file: Parquet with field IDs, and its entry for the table's metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snowmelt.errors import InternalError
from snowmelt.schema.chunk_types import FIELD_ID
from snowmelt.storage.store import ObjectWriter, Store
from snowmelt.table.column_bounds import ColumnBounds, count_nans, read_column_bounds

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


# Rows per row group. With smaller groups, a filter on a sorted table skips more rows. Larger groups
# compress better.
_ROW_GROUP_ROWS = 256 * 1024
_COMPRESSION_LEVEL = 3
_BUFFER_BYTES = 1024 * 1024
_SAMPLE_ROWS = 16_384
_MAX_DISTINCT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Description of a native file for the commit. Picklable.

    `path` is relative to the warehouse. The keys of dictionaries are field IDs. `sha256` is the
    hash of the file, empty if unknown. Migration and compaction also set `fingerprint`, the stored
    form of the rows' fingerprint. Migration also sets `chunks`: sequence and fingerprint of each
    chunk, in row order.
    """

    path: str
    size: int
    rows: int
    bounds: dict[int, ColumnBounds]
    column_sizes: dict[int, int]
    split_offsets: tuple[int, ...]
    sha256: str = ""
    fingerprint: bytes = b""
    chunks: tuple[tuple[int, bytes], ...] = ()


def write_native_file(
    store: Store, path: str, table: pa.Table, *, zstd_level: int | None = _COMPRESSION_LEVEL
) -> WrittenFile:
    """Write a table in native form as one Parquet file.

    Args:
        store: Store of the file.
        path: Path in the store.
        table: Rows in native form.
        zstd_level: Level of Zstandard. None: Snappy, which takes less CPU and more bytes, for files
            that are soon replaced.

    Raises:
        AlreadyExists: If an object exists at `path`.
        StageUnavailable: If the store is not writable.
    """
    sink = pa.BufferOutputStream()
    collector: list[pq.FileMetaData] = []
    with _make_parquet_writer(sink, table, zstd_level, collector) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
    data = sink.getvalue()
    store.put(path, memoryview(data).cast("B"), create_only=True, durable=True)
    nans = list(map(count_nans, table.columns))
    sha256 = "" if zstd_level is None else hashlib.sha256(data).hexdigest()
    return _make_written_file(path, data.size, table.schema, nans, collector[0], sha256)


class NativeWriter:
    """Writer of one Parquet file of a native table, one row group at a time, in bounded memory.

    End it with `finish` or `abort`. An aborted file is never visible.
    """

    def __init__(
        self, store: Store, path: str, schema: pa.Schema, *, level: int = _COMPRESSION_LEVEL
    ) -> None:
        """Begin a file at `path`. `schema` must have field IDs. `level` is the Zstandard level.

        Raises:
            StageUnavailable: If the store is not writable.
        """
        self.path = path
        self._schema = schema
        self._level = level
        self._sink = _ArrowSink(store.open_writer(path))
        self._collector: list[pq.FileMetaData] = []
        # Buffer writes, because Parquet writes each page and its header separately.
        self._file = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), _BUFFER_BYTES)
        self._parquet_writer: pq.ParquetWriter | None = None
        self._nans = [0 if pa.types.is_floating(kind) else None for kind in schema.types]
        self.rows = 0

    @property
    def written_bytes(self) -> int:
        """Number of bytes written so far."""
        return int(self._file.tell())

    def write_row_group(self, table: pa.Table) -> None:
        """Append a table in native form as one row group. A table without rows is ignored.

        Raises:
            StageUnavailable: If the store is not writable.
        """
        if not table.num_rows:
            return
        if self._parquet_writer is None:
            self._parquet_writer = _make_parquet_writer(
                self._file, table, self._level, self._collector
            )
        self._parquet_writer.write_table(table, row_group_size=table.num_rows)
        found = map(count_nans, table.columns)
        self._nans = [
            None if before is None else before + (more or 0)
            for before, more in zip(self._nans, found, strict=True)
        ]
        self.rows += table.num_rows

    def finish(self) -> WrittenFile:
        """End the file and publish it. It must have at least one row.

        Raises:
            AlreadyExists: If an object exists at the path.
            StageUnavailable: If the store is not writable.
        """
        if self._parquet_writer is None:
            raise InternalError(f"Native file {self.path} has no rows, expected at least one.")
        self._parquet_writer.close()
        self._file.close()
        self._sink.writer.finish(create_only=True)
        return _make_written_file(
            self.path,
            self._sink.size,
            self._schema,
            self._nans,
            self._collector[0],
            self._sink.digest.hexdigest(),
        )

    def abort(self) -> None:
        """Discard the file. No effect after `finish`."""
        self._sink.abort()
        # Close the writer here. Otherwise, its finalizer would write the unneeded footer, which
        # fails after an interrupted write.
        with suppress(RuntimeError, OSError, ValueError):
            if self._parquet_writer is not None:
                self._parquet_writer.close()


class _ArrowSink:
    """File-like adapter of a store's writer for Arrow."""

    closed = False

    def __init__(self, writer: ObjectWriter) -> None:
        self.writer = writer
        self.size = 0
        self.digest = hashlib.sha256()
        self._aborted = False

    def abort(self) -> None:
        """Abort the object. Later writes are discarded."""
        self._aborted = True
        self.writer.abort()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if not self._aborted:
            self.writer.write(view)
            self.digest.update(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Do nothing: this object has no buffer."""

    def close(self) -> None:
        """Mark as closed. The owner ends the writer."""
        self.closed = True


def _make_parquet_writer(
    sink: Any, first_table: pa.Table, level: int | None, collector: list[pq.FileMetaData]
) -> pq.ParquetWriter:
    """Create a Parquet writer. Settings depend on `first_table`, the first row group of the file.

    `level` is the Zstandard level. None: Snappy.
    """
    return pq.ParquetWriter(
        sink,
        first_table.schema,
        # Without dictionaries, Snappy's files are 8% larger and take a twelfth less CPU.
        use_dictionary=False
        if level is None
        else _find_repeating_columns(first_table.slice(0, _SAMPLE_ROWS)),
        compression="snappy" if level is None else "zstd",
        compression_level=level,
        # Omit Arrow's copy of the schema, because other readers may fail on it.
        store_schema=False,
        # Iceberg requires decimals of up to 18 digits to be stored as integers.
        store_decimal_as_integer=True,
        write_page_index=True,
        write_page_checksum=True,
        metadata_collector=collector,
    )


def make_data_file(written: WrittenFile, address: str) -> DataFile:
    """Create the metadata entry of a file at `address`."""
    # Import late: the import takes a second, and tasks that only write files do not need it.
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    bounds = written.bounds
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=address,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=written.rows,
        file_size_in_bytes=written.size,
        column_sizes=written.column_sizes,
        value_counts=dict.fromkeys(bounds, written.rows),
        null_value_counts={key: bound.nulls for key, bound in bounds.items()},
        nan_value_counts={k: b.nans for k, b in bounds.items() if b.nans is not None},
        lower_bounds={k: b.lower for k, b in bounds.items() if b.lower is not None},
        upper_bounds={k: b.upper for k, b in bounds.items() if b.upper is not None},
        key_metadata=None,
        split_offsets=list(written.split_offsets),
        equality_ids=None,
        sort_order_id=None,
        spec_id=0,
    )


def _find_repeating_columns(sample: pa.Table) -> list[str]:
    """Return the columns with repeated values. A dictionary of other columns costs time and bytes.

    For a table with two such columns of eight, files are a quarter smaller and take half the time
    than with dictionaries for all columns.
    """
    return [
        field.name
        for field, column in zip(sample.schema, sample.columns, strict=True)
        if not pa.types.is_boolean(field.type)
        and pc.count_distinct(column).as_py() <= sample.num_rows * _MAX_DISTINCT_SHARE
    ]


def _make_written_file(
    path: str,
    size: int,
    schema: pa.Schema,
    nans: Sequence[int | None],
    metadata: pq.FileMetaData,
    sha256: str,
) -> WrittenFile:
    ids = [int(field.metadata[FIELD_ID]) for field in schema]
    sizes = dict.fromkeys(ids, 0)
    offsets = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for position, key in enumerate(ids):
            sizes[key] += group.column(position).total_compressed_size
        first = group.column(0)
        offsets.append(first.dictionary_page_offset or first.data_page_offset)
    bounds = {
        key: read_column_bounds(metadata, at, schema.types[at], nans[at])
        for at, key in enumerate(ids)
    }
    return WrittenFile(path, size, metadata.num_rows, bounds, sizes, tuple(offsets), sha256)
