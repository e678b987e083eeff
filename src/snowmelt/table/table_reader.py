"""Readers of chunks, native files and whole tables, without an engine.

A quarantined chunk (see `snowmelt.table.migration`) is also read. It raises an error that names the
blob, unless the blob has been restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.blob.encryption import derive_blob_key
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.tables import list_table_schema_versions
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.streaming.chunks import ChunkRecord
from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import TableInconsistent
from snowmelt.schema.chunk_types import FIELD_ID
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import TableName, TableSchema
from snowmelt.storage.store import Store
from snowmelt.table.chunk_reader import (
    ChunkReadTask,
    concatenate_native_tables,
    make_columnless_table,
    project_schema,
    run_chunk_read_task,
)
from snowmelt.table.file_io import make_file_io
from snowmelt.table.iceberg import NativeFile
from snowmelt.table.snapshot import take_snapshots


def make_chunk_read_tasks(
    database: Database,
    keyring: KeyRing,
    stage_url: str,
    chunks: Iterable[ChunkRecord],
    schema: TableSchema,
) -> list[ChunkReadTask]:
    """Return the tasks that read chunks as rows of `schema`, in the order of the chunks.

    Raises:
        TableInconsistent: If the key of a chunk is not in the catalog.
    """
    chunks = list(chunks)
    with database.reading() as connection:
        keys = keyring.find_data_keys(connection, sorted({chunk.key_id for chunk in chunks}))
        older = {chunk.table_id for chunk in chunks if chunk.schema_version != schema.version}
        versions = {
            table_id: list_table_schema_versions(connection, table_id) for table_id in older
        }
    tasks = [_make_chunk_read_task(chunk, keys, stage_url, schema) for chunk in chunks]
    return [
        replace(task, written=versions[chunk.table_id].get(chunk.schema_version))
        if chunk.schema_version != schema.version
        else task
        for task, chunk in zip(tasks, chunks, strict=True)
    ]


def read_native_file(address: str, schema: TableSchema) -> pa.Table:
    """Read the native file at an address as rows of `schema` in native form.

    Columns are matched by field ID.
    """
    with make_file_io(address).new_input(address).open() as stream:
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
    with make_file_io(address).new_input(address).open() as stream:
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


def read_table(
    database: Database,
    keyring: KeyRing,
    stage: Store,
    name: TableName,
    columns: Sequence[str] | None = None,
    *,
    clock: Clock | None = None,
) -> pa.Table:
    """Read a whole table in native form into memory, without an engine.

    Args:
        database: The catalog.
        keyring: Keys of the chunks.
        stage: Stage of the blobs.
        name: The table.
        columns: Internal names of the columns, in the requested order. None: all.
        clock: None: the system clock.

    Raises:
        TableNotFound: If the table does not exist.
        BlobCorrupt: If a chunk differs from its registration.
        KeyError: If a column does not exist.
    """
    [snapshot] = take_snapshots(database, [name], clock=clock or SystemClock())
    whole = snapshot.table.schema
    wanted = whole if columns is None else project_schema(whole, columns)
    tasks = make_chunk_read_tasks(database, keyring, stage.url, snapshot.chunks, whole)
    parts = [read_native_file(file.path, wanted) for file in snapshot.list_native_files()]
    parts += [run_chunk_read_task(task, columns) for task in tasks]
    return concatenate_native_tables(parts, wanted)


def _make_chunk_read_task(
    chunk: ChunkRecord, keys: dict[int, bytes], stage_url: str, schema: TableSchema
) -> ChunkReadTask:
    key = keys.get(chunk.key_id)
    if key is None:
        raise TableInconsistent(
            table=chunk.path, reason=f"key {chunk.key_id} of this blob is not in the catalog"
        )
    return ChunkReadTask(
        seq=chunk.seq,
        store_url=stage_url,
        stage_path=f"{chunk.prefix}/{chunk.path}",
        path=chunk.path,
        offset=chunk.offset,
        length=chunk.length,
        md5=chunk.md5,
        chunk_key=derive_blob_key(key, chunk.path),
        rows=chunk.rows,
        schema=schema,
    )
