"""Writer of blobs: one encrypted, padded Parquet file per table, concatenated.

Layout of a blob: specification of v1, §3.2. Contents of the Parquet files: §3.4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snowmelt.blob.encryption import BLOCK_BYTES, apply_aes_ctr_into, derive_blob_key, padded_length
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, LogicalType, TableSchema

SDK_VERSION = "snowmelt-1"

# Sizes of Arrow data in bytes that select the compression, measured on 11 columns. For a few rows,
# use none: it only costs time (0.27 ms for one row). Up to a few hundred rows, Snappy takes two
# thirds of zstd's time. Above that, zstd's smaller size (60 % of Snappy's) saves more in MD5 and
# storage than it costs.
_UNCOMPRESSED_BELOW_BYTES = 4 * 1024
_SNAPPY_BELOW_BYTES = 128 * 1024

# Minimum rows for a dictionary. It saves a third of the time and half of the size for a column with
# few distinct values, and costs both for other columns. Below 10,000 rows there is no measurable
# difference.
_MIN_DICTIONARY_ROWS = 10_000
_SAMPLE_ROWS = 1024
_MAX_DISTINCT_SAMPLE_VALUES = 768

# Decimals of up to this precision are written as integers. With zstd, their deltas take half the
# time of plain values, and a fifth less space for random values (much less for timestamps). Longer
# decimals are bytes. Splitting these by position takes half the time and a tenth of the space.
_MAX_INT64_DIGITS = 18

_LOGICAL_TYPE_CODES = {
    LogicalType.BOOLEAN: 1,
    LogicalType.FIXED: 2,
    LogicalType.TIMESTAMP_LTZ: 3,
    LogicalType.TIMESTAMP_NTZ: 4,
    LogicalType.TIMESTAMP_TZ: 5,
    LogicalType.TIME: 6,
    LogicalType.DATE: 7,
    LogicalType.REAL: 8,
    LogicalType.TEXT: 9,
    LogicalType.BINARY: 10,
    LogicalType.VARIANT: 11,
    LogicalType.OBJECT: 12,
    LogicalType.ARRAY: 13,
}
_PHYSICAL_TYPE_CODES = {"SB1": 1, "SB2": 2, "SB4": 3, "SB8": 4, "SB16": 5, "DOUBLE": 7, "LOB": 8}


@dataclass(frozen=True, slots=True)
class ChunkInput:
    """Rows of one table in chunk form, and the table's 256-bit data key."""

    rows: pa.Table
    schema: TableSchema
    data_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class BlobChunkLocation:
    """Position of a chunk in its blob. `md5` (hex) covers its encrypted bytes without padding."""

    offset: int
    length: int
    md5: str
    rows: int


@dataclass(frozen=True, slots=True)
class Blob:
    """A finished blob. `md5` (hex) covers all of its bytes."""

    path: str
    data: memoryview
    md5: str
    chunks: tuple[BlobChunkLocation, ...]


def build_blob(path: str, inputs: Sequence[ChunkInput]) -> Blob:
    """Encode and encrypt one chunk per input, in order.

    Raises:
        ValueError: If there is no input, or rows are not in chunk form.
    """
    files: list[memoryview] = []
    offsets: list[int] = []
    size = 0
    for source in inputs:
        files.append(memoryview(encode_chunk_as_parquet(source, path, size)).cast("B"))
        offsets.append(size)
        size += padded_length(len(files[-1]))
    if not files:
        raise ValueError("a blob needs at least one chunk")
    whole = memoryview(bytearray(size))
    for source, file, offset in zip(inputs, files, offsets, strict=True):
        _encrypt_chunk(
            file, whole[offset:], key=derive_blob_key(source.data_key, path), offset=offset
        )
    digests, md5 = _compute_digests(whole, offsets, [len(file) for file in files])
    chunks = tuple(
        BlobChunkLocation(offset, len(file), digest, source.rows.num_rows)
        for source, file, offset, digest in zip(inputs, files, offsets, digests, strict=True)
    )
    return Blob(path, whole.toreadonly(), md5, chunks)


def encode_chunk_as_parquet(chunk_input: ChunkInput, path: str, offset: int) -> pa.Buffer:
    """Return the Parquet file of a chunk that starts at `offset` of the blob at `path`."""
    schema = chunk_arrow_schema(chunk_input.schema)
    if chunk_input.rows.schema.types != schema.types:
        # Check the types, because Table.from_arrays would convert values silently.
        raise ValueError("the rows are not in the chunk form of their schema")
    table = pa.Table.from_arrays(chunk_input.rows.columns, schema=schema)
    codec = _choose_codec(table)
    dictionary = _find_dictionary_columns(table, chunk_input.schema)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema,
        version="1.0",
        compression=codec,
        compression_level=1 if codec == "zstd" else None,
        use_dictionary=dictionary or False,
        column_encoding=_choose_encodings(schema, dictionary) or None,
        # Omit statistics: the catalog stores them, and writing them here takes 10 % of the time.
        write_statistics=False,
        store_schema=False,
        store_decimal_as_integer=True,
    ) as writer:
        writer.add_key_value_metadata(_make_file_metadata(chunk_input.schema, path, offset))
        writer.write_table(table, row_group_size=max(table.num_rows, 1))
    return sink.getvalue()


def _make_file_metadata(schema: TableSchema, path: str, offset: int) -> dict[str, str]:
    name = path.rpartition("/")[2]
    primary = name if offset == 0 else f"{name.removesuffix('.bdec')}_{offset}.bdec"
    metadata = {"sfVer": "1,1", "sdkVersion": SDK_VERSION, "primaryFileId": primary}
    for column in schema.columns:
        metadata[str(column.ordinal)] = (
            f"{_LOGICAL_TYPE_CODES[column.kind]},{_PHYSICAL_TYPE_CODES[column.physical_type]}"
        )
        if column.kind in SEMI_STRUCTURED_TYPES:
            metadata[f"{column.ordinal}:obj_enc"] = "1"
    return metadata


def _choose_codec(table: pa.Table) -> str:
    size = table.nbytes
    if size < _UNCOMPRESSED_BELOW_BYTES:
        return "none"
    return "snappy" if size < _SNAPPY_BELOW_BYTES else "zstd"


def _find_dictionary_columns(table: pa.Table, schema: TableSchema) -> list[str]:
    if table.num_rows < _MIN_DICTIONARY_ROWS:
        return []
    sample = _sample_rows(table)
    return [
        column.name
        for column in schema.columns
        if column.kind is not LogicalType.BOOLEAN
        and pc.count_distinct(sample.column(column.name)).as_py() <= _MAX_DISTINCT_SAMPLE_VALUES
    ]


def _sample_rows(table: pa.Table) -> pa.Table:
    """Return rows at equal distances. Takes them per chunk: Arrow would first join the chunks."""
    step = table.num_rows // _SAMPLE_ROWS
    taken: list[pa.RecordBatch] = []
    start = 0
    for batch in table.to_batches():
        places = range(-start % step, batch.num_rows, step)
        taken.append(batch.take(pa.array(places, pa.int64())))
        start += batch.num_rows
    return pa.Table.from_batches(taken, table.schema).slice(0, _SAMPLE_ROWS)


def _choose_encodings(schema: pa.Schema, dictionary: list[str]) -> dict[str, str]:
    return {
        field.name: _choose_encoding(field.type)
        for field in schema
        if field.name not in dictionary and _choose_encoding(field.type)
    }


def _choose_encoding(kind: pa.DataType) -> str:
    """Return the encoding of a column's numbers, or an empty text for plain encoding."""
    if pa.types.is_decimal(kind):
        return "DELTA_BINARY_PACKED" if kind.precision <= _MAX_INT64_DIGITS else "BYTE_STREAM_SPLIT"
    return "DELTA_BINARY_PACKED" if pa.types.is_date32(kind) else ""


def _encrypt_chunk(file: memoryview, target: memoryview, *, key: bytes, offset: int) -> None:
    # Encrypt whole blocks directly from the encoder's buffer, then the last one with its padding.
    whole = len(file) - len(file) % BLOCK_BYTES
    apply_aes_ctr_into(file[:whole], target[:whole], key=key, offset=offset)
    last = bytes(file[whole:]).ljust(BLOCK_BYTES, b"\0")
    apply_aes_ctr_into(last, target[whole : whole + BLOCK_BYTES], key=key, offset=offset + whole)


def _compute_digests(
    whole: memoryview, offsets: list[int], lengths: list[int]
) -> tuple[list[str], str]:
    # Continue the first chunk's hash for the blob, so that a blob of one chunk is hashed only once.
    running = hashlib.md5(whole[: lengths[0]], usedforsecurity=False)
    digests = [running.hexdigest()]
    running.update(whole[lengths[0] :])
    for offset, length in zip(offsets[1:], lengths[1:], strict=True):
        chunk = whole[offset : offset + length]
        digests.append(hashlib.md5(chunk, usedforsecurity=False).hexdigest())
    return digests, running.hexdigest()
