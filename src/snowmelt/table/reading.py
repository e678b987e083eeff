"""Reading chunks, and whole tables without an engine.

A chunk is checked against the catalog's MD5 each time it is read; what differs is an error that
names the blob, and nothing of it is returned. A chunk in quarantine (see
`snowmelt.table.migration`) is read like any other: with the same error, unless somebody has
restored the blob.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import load_file_io

from snowmelt.blob.crypto import derive_key
from snowmelt.blob.reader import decrypt, read_chunk
from snowmelt.clock import SystemClock
from snowmelt.errors import BlobCorrupt, BlobInvalid, InvalidRow, TableInconsistent
from snowmelt.schema.arrow import FIELD_ID
from snowmelt.schema.native import native_schema, to_native
from snowmelt.schema.types import TableSchema
from snowmelt.table.snapshot import take_snapshots
from snowmelt.table.warehouse import cached_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from snowmelt.catalog.chunks import ChunkRecord
    from snowmelt.catalog.database import Database
    from snowmelt.catalog.keys import KeyRing
    from snowmelt.clock import Clock
    from snowmelt.schema.types import TableName
    from snowmelt.storage.store import Store
    from snowmelt.table.iceberg import NativeFile


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """All that reading one chunk takes; picklable, no catalog needed.

    `path` is the blob's, `stage_path` where it lies in the store; `chunk_key` opens this blob
    only. `schema` is what the rows shall have, whatever version the chunk was written with.
    """

    seq: int
    store_url: str
    stage_path: str
    path: str
    offset: int
    length: int
    md5: str
    chunk_key: bytes = field(repr=False)
    rows: int
    schema: TableSchema


def chunk_tasks(
    database: Database,
    keyring: KeyRing,
    stage_url: str,
    chunks: Sequence[ChunkRecord],
    schema: TableSchema,
) -> list[ChunkTask]:
    """Return the tasks that read these chunks as rows of `schema`, in the same order.

    Raises:
        TableInconsistent: The key of a chunk is not in the catalog.
    """
    with database.reading() as connection:
        keys = keyring.keys(connection, sorted({chunk.key_id for chunk in chunks}))
    return [_task(chunk, keys, stage_url, schema) for chunk in chunks]


def read_task(task: ChunkTask, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one chunk in native form, the named columns in that order, or all.

    Raises:
        BlobCorrupt: The blob is not what was registered, or cannot be decoded.
        ObjectMissing: The blob is gone.
        StageUnavailable: The stage does not answer.
    """
    store = cached_store(task.store_url)
    data = store.get_range(task.stage_path, task.offset, task.length)
    if len(data) != task.length:
        raise _corrupt(task, f"only {len(data)} of {task.length} bytes are there")
    if hashlib.md5(data, usedforsecurity=False).hexdigest() != task.md5:
        raise _corrupt(task, "its MD5 is not the one registered")
    try:
        parquet = decrypt(data, chunk_key=task.chunk_key, offset=task.offset)
        table = read_chunk(parquet, task.schema, columns=columns, path=task.path)
        if table.num_rows != task.rows:
            raise _corrupt(task, f"it has {table.num_rows} rows instead of {task.rows}")
        schema = task.schema if columns is None else _part(task.schema, columns)
        return to_native(table, schema) if schema.columns else table
    except (BlobInvalid, InvalidRow, pa.ArrowException) as error:
        raise _corrupt(task, str(error)) from error


def read_file(file: NativeFile, schema: TableSchema) -> pa.Table:
    """Read one native file as rows of `schema` in native form; columns are found by field id."""
    with load_file_io({}, file.path).new_input(file.path).open() as stream:
        whole = pq.ParquetFile(stream)
        names = {
            int(part.metadata[FIELD_ID]): part.name
            for part in whole.schema_arrow
            if part.metadata and FIELD_ID in part.metadata
        }
        wanted = native_schema(schema)
        ids = [int(part.metadata[FIELD_ID]) for part in wanted]
        table = whole.read([names[key] for key in ids if key in names])
        rows = whole.metadata.num_rows
    if not ids:
        return _columnless(rows)
    arrays = [
        table.column(names[key]).cast(part.type)
        if key in names
        else pa.chunked_array([pa.nulls(rows, part.type)])
        for key, part in zip(ids, wanted, strict=True)
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
    """Read a whole table in native form, without an engine; everything is held in memory.

    Args:
        database: The catalog.
        keyring: Opens the chunks.
        stage: Where the blobs are.
        name: Which table.
        columns: Internal names of the columns to return, in that order; None for all.
        clock: The machine's clock when not given.

    Raises:
        TableNotFound: There is no such table.
        BlobCorrupt: A chunk is not what was registered.
        KeyError: There is no such column.
    """
    [snapshot] = take_snapshots(database, [name], clock=clock or SystemClock())
    whole = snapshot.table.schema
    wanted = whole if columns is None else _part(whole, columns)
    tasks = chunk_tasks(database, keyring, stage.url, snapshot.chunks, whole)
    parts = [read_file(file, wanted) for file in snapshot.native_files()]
    parts += [read_task(task, columns) for task in tasks]
    return concatenated(parts, wanted)


def concatenated(parts: Iterable[pa.Table], schema: TableSchema) -> pa.Table:
    """Return tables in native form one after the other; an empty one when there are none."""
    tables = list(parts)
    if not schema.columns:
        return _columnless(sum(table.num_rows for table in tables))
    return pa.concat_tables([native_schema(schema).empty_table(), *tables])


def _task(
    chunk: ChunkRecord, keys: dict[int, bytes], stage_url: str, schema: TableSchema
) -> ChunkTask:
    key = keys.get(chunk.key_id)
    if key is None:
        raise TableInconsistent(
            table=chunk.path, reason=f"key {chunk.key_id} of this blob is not in the catalog"
        )
    return ChunkTask(
        seq=chunk.seq,
        store_url=stage_url,
        stage_path=f"{chunk.prefix}/{chunk.path}",
        path=chunk.path,
        offset=chunk.offset,
        length=chunk.length,
        md5=chunk.md5,
        chunk_key=derive_key(key, chunk.path),
        rows=chunk.rows,
        schema=schema,
    )


def _part(schema: TableSchema, columns: Sequence[str]) -> TableSchema:
    by_name = {column.name: column for column in schema.columns}
    return TableSchema(schema.version, tuple(by_name[name] for name in columns))


def _columnless(rows: int) -> pa.Table:
    # A table without columns forgets its rows unless it is cut from one that has some.
    return pa.table({"": pa.nulls(rows)}).select([])


def _corrupt(task: ChunkTask, reason: str) -> BlobCorrupt:
    return BlobCorrupt(path=task.path, offset=task.offset, reason=reason)
