"""Writing one native file: Parquet with field ids, and its entry for the table's metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from snowmelt.schema.arrow import FIELD_ID
from snowmelt.table.bounds import ColumnBounds, column_bounds

if TYPE_CHECKING:
    from snowmelt.storage.store import Store

# Small enough that a filter on a sorted table skips most of a file, large enough to encode well.
_ROW_GROUP_ROWS = 256 * 1024
_COMPRESSION_LEVEL = 3


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What the commit needs to know of a native file; picklable.

    `path` is within the warehouse. The dictionaries are keyed by field id.
    """

    path: str
    size: int
    rows: int
    bounds: dict[int, ColumnBounds]
    column_sizes: dict[int, int]
    split_offsets: tuple[int, ...]


def write_file(store: Store, path: str, table: pa.Table) -> WrittenFile:
    """Write a table in native form as one Parquet file.

    Raises:
        AlreadyExists: There is an object at `path`.
        StageUnavailable: The store cannot be written.
    """
    sink = pa.BufferOutputStream()
    collector: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        # Readers other than Arrow would only stumble over its own copy of the schema.
        store_schema=False,
        # The table format wants decimals of up to 18 digits as integers.
        store_decimal_as_integer=True,
        write_page_index=True,
        metadata_collector=collector,
    ) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
    data = sink.getvalue()
    store.put(path, memoryview(data).cast("B"), create_only=True)
    return _described(path, data.size, table, collector[0])


def data_file(written: WrittenFile, address: str) -> DataFile:
    """Return the metadata entry of a file that lies at `address`."""
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


def _described(path: str, size: int, table: pa.Table, metadata: pq.FileMetaData) -> WrittenFile:
    ids = [int(field.metadata[FIELD_ID]) for field in table.schema]
    sizes = dict.fromkeys(ids, 0)
    offsets = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for position, key in enumerate(ids):
            sizes[key] += group.column(position).total_compressed_size
        first = group.column(0)
        offsets.append(first.dictionary_page_offset or first.data_page_offset)
    bounds = {key: column_bounds(table.column(at)) for at, key in enumerate(ids)}
    return WrittenFile(path, size, table.num_rows, bounds, sizes, tuple(offsets))
