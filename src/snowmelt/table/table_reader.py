"""Readers of chunks and whole tables, without an engine.

A quarantined chunk (see `snowmelt.table.migration`) is also read. It raises an error that names the
blob, unless the blob has been restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from snowmelt.blob.encryption import derive_blob_key
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.tables import list_table_schema_versions
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.streaming.chunks import ChunkRecord
from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import TableInconsistent
from snowmelt.schema.types import TableName, TableSchema
from snowmelt.storage.store import Store
from snowmelt.table.chunk_reader import (
    ChunkReadTask,
    concatenate_native_tables,
    project_schema,
    run_chunk_read_task,
)
from snowmelt.table.native_file import read_native_file
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
