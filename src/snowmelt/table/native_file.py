"""One native file: its entry in the table's metadata, and readers of its rows.

Executors import this module, so it must not import PyIceberg or the catalog.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.errors import ObjectMissing
from snowmelt.schema.chunk_types import FIELD_ID
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import TableSchema
from snowmelt.storage.object_file import ObjectFile
from snowmelt.storage.store import OpenObject, Store
from snowmelt.table.chunk_reader import make_columnless_table
from snowmelt.table.warehouse_paths import open_cached_store

# Maximum size of a file that is read whole. From larger files, readers request single ranges.
_MAX_WHOLE_READ_BYTES = 8 * 1024 * 1024
_BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class NativeFile:
    """Native file: address, commit number, bytes, rows, and statistics by field ID.

    Bounds are encoded (see `snowmelt.table.column_bounds`). Unknown bounds are missing.
    """

    path: str
    sequence: int
    size: int
    rows: int
    lower: Mapping[int, bytes]
    upper: Mapping[int, bytes]
    nulls: Mapping[int, int]
    nans: Mapping[int, int]


def is_local_location(location: str) -> bool:
    """Return True if an address is a path or a `file:` URL."""
    return urlsplit(location).scheme in {"", "file"}


def resolve_location(location: str) -> tuple[Store, str]:
    """Return the store of a full address (`s3://bucket/path`), and the path in the store."""
    scheme, _, rest = location.partition("://")
    bucket, _, path = rest.partition("/")
    return open_cached_store(f"{scheme}://{bucket}"), path


def open_native_file(address: str) -> BinaryIO:
    """Open the file at an address for reading.

    Raises:
        FileNotFoundError: If the file does not exist.
        StageUnavailable: If the bucket does not respond.
    """
    if is_local_location(address):
        # Iceberg readers use the path of a `file:` address without unquoting. Hadoop writes `file:/`.
        parts = urlsplit(address)
        return Path(f"{parts.netloc}{parts.path}" if parts.scheme else address).open("rb")
    return open_stored_file(*resolve_location(address))


def open_stored_file(store: Store, path: str) -> io.BytesIO | io.BufferedReader:
    """Open a file of a store for reading. A large file is fetched in ranges.

    Raises:
        FileNotFoundError: If the file does not exist.
        StageUnavailable: If the store does not respond.
    """
    try:
        opened = store.open(path)
        if opened.size > _MAX_WHOLE_READ_BYTES:
            return io.BufferedReader(_ObjectStream(opened), _BUFFER_BYTES)
        return io.BytesIO(store.get(path))
    except ObjectMissing:
        raise FileNotFoundError(path) from None


class _ObjectStream(ObjectFile):
    """Stream of an open object, which it closes."""

    def __init__(self, opened: OpenObject) -> None:
        super().__init__(opened)
        self._object = opened

    def close(self) -> None:
        self._object.close()
        super().close()


def read_native_file(address: str, schema: TableSchema) -> pa.Table:
    """Read the native file at an address as rows of `schema` in native form.

    Columns are matched by field ID.
    """
    with open_native_file(address) as stream:
        whole = pq.ParquetFile(stream)
        names = _names_by_field_id(whole)
        wanted = native_schema(schema)
        return _conform_to_schema(whole.read(_find_present_names(wanted, names)), names, wanted)


def read_native_bytes(data: bytes, schema: TableSchema) -> pa.Table:
    """Read the bytes of a native file as `read_native_file` does, and verify page checksums."""
    whole = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    names = _names_by_field_id(whole)
    wanted = native_schema(schema)
    return _conform_to_schema(whole.read(_find_present_names(wanted, names)), names, wanted)


def read_native_batches(file: NativeFile, schema: TableSchema, max_rows: int) -> Iterator[pa.Table]:
    """Read a native file as `read_native_file` does, up to `max_rows` rows at a time."""
    return read_native_field_batches(file.path, native_schema(schema), max_rows)


def read_native_field_batches(address: str, wanted: pa.Schema, max_rows: int) -> Iterator[pa.Table]:
    """Read fields of a native file, up to `max_rows` rows at a time.

    `wanted` has the native fields. They are matched by ID.
    """
    with open_native_file(address) as stream:
        whole = pq.ParquetFile(stream)
        names = _names_by_field_id(whole)
        for batch in whole.iter_batches(max_rows, columns=_find_present_names(wanted, names)):
            yield _conform_to_schema(pa.Table.from_batches([batch]), names, wanted)


def _names_by_field_id(whole: pq.ParquetFile) -> dict[int, str]:
    """Return the names of a file's columns by field ID."""
    return {
        int(part.metadata[FIELD_ID]): part.name
        for part in whole.schema_arrow
        if part.metadata and FIELD_ID in part.metadata
    }


def _list_field_ids(wanted: pa.Schema) -> list[int]:
    return [int(part.metadata[FIELD_ID]) for part in wanted]


def _find_present_names(wanted: pa.Schema, names: dict[int, str]) -> list[str]:
    return [names[key] for key in _list_field_ids(wanted) if key in names]


def _conform_to_schema(table: pa.Table, names: dict[int, str], wanted: pa.Schema) -> pa.Table:
    """Convert rows to the schema `wanted`. A missing column becomes NULL."""
    rows = table.num_rows
    if not len(wanted):
        return make_columnless_table(rows)
    arrays = [
        table.column(names[key]).cast(part.type)
        if key in names
        else pa.chunked_array([pa.nulls(rows, part.type)])
        for key, part in zip(_list_field_ids(wanted), wanted, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=wanted)
