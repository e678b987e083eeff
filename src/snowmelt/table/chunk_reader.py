"""Reader of one chunk in native form. Must be fast to import: every executor task imports it.

Every read verifies the chunk's MD5 from the catalog. A mismatch raises an error that names the
blob, and no rows of the chunk are returned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from snowmelt.blob.chunk_table_reader import read_chunk
from snowmelt.blob.encryption import apply_aes_ctr
from snowmelt.errors import BlobCorrupt, BlobInvalid, InvalidRow
from snowmelt.schema.iceberg_table_form import native_schema, to_native_table
from snowmelt.schema.types import TableSchema
from snowmelt.table.warehouse_paths import open_cached_store


@dataclass(frozen=True, slots=True)
class ChunkReadTask:
    """Task that reads one chunk. Picklable. Does not use the catalog.

    `path` is the blob's path, `stage_path` its path in the store. `chunk_key` decrypts only this
    blob. `schema` is the schema of the result. `written` is the schema version for which the chunk
    was written, if it differs from `schema`.
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
    written: TableSchema | None = None


def run_chunk_read_task(task: ChunkReadTask, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one chunk in native form, with the given columns in order, or all columns.

    Raises:
        BlobCorrupt: If the blob differs from its registration or cannot be decoded.
        ObjectMissing: If the blob is missing.
        StageUnavailable: If the stage does not respond.
    """
    store = open_cached_store(task.store_url)
    data = store.get_range(task.stage_path, task.offset, task.length)
    if len(data) != task.length:
        raise _corrupt_error(task, f"only {len(data)} of {task.length} bytes are there")
    if hashlib.md5(data, usedforsecurity=False).hexdigest() != task.md5:
        raise _corrupt_error(task, "its MD5 is not the one registered")
    try:
        parquet = apply_aes_ctr(data, key=task.chunk_key, offset=task.offset)
        table = read_chunk(
            parquet, task.schema, columns=columns, written_schema=task.written, path=task.path
        )
        if table.num_rows != task.rows:
            raise _corrupt_error(task, f"it has {table.num_rows} rows instead of {task.rows}")
        schema = task.schema if columns is None else project_schema(task.schema, columns)
        return to_native_table(table, schema) if schema.columns else table
    except (BlobInvalid, InvalidRow, pa.ArrowException) as error:
        raise _corrupt_error(task, str(error)) from error


def project_schema(schema: TableSchema, columns: Sequence[str]) -> TableSchema:
    """Return a schema with only the named columns, in this order."""
    by_name = {column.name: column for column in schema.columns}
    return TableSchema(schema.version, tuple(by_name[name] for name in columns))


def concatenate_native_tables(parts: Iterable[pa.Table], schema: TableSchema) -> pa.Table:
    """Concatenate tables in native form. Without tables, return an empty table."""
    tables = list(parts)
    if not schema.columns:
        return make_columnless_table(sum(table.num_rows for table in tables))
    return pa.concat_tables([native_schema(schema).empty_table(), *tables])


def make_columnless_table(row_count: int) -> pa.Table:
    """Return a table with `row_count` rows and no columns."""
    # A table without columns loses its row count unless it is projected from a table with columns.
    return pa.table({"": pa.nulls(row_count)}).select([])


def _corrupt_error(task: ChunkReadTask, reason: str) -> BlobCorrupt:
    return BlobCorrupt(path=task.path, offset=task.offset, reason=reason)
