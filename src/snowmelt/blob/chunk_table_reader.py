"""Reader of chunks: accepts everything that official clients write, and rejects malformed input."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from snowmelt.blob.column_decoder import (
    ChunkTooLarge,
    ColumnRequest,
    decode_columns,
    uncompressed_page_bytes,
)
from snowmelt.blob.encryption import BytesLike
from snowmelt.blob.parquet_footer import (
    ChunkFooter,
    FooterField,
    fields_by_ordinal,
    find_column_mismatch,
    find_schema_mismatch,
    raising_blob_invalid,
    read_chunk_footer,
    read_footer,
)
from snowmelt.schema.chunk_types import chunk_arrow_schema, chunk_arrow_type
from snowmelt.schema.types import Column, TableSchema

__all__ = [
    "MAX_DECODED_BYTES",
    "ChunkFooter",
    "ChunkTooLarge",
    "FooterField",
    "find_schema_mismatch",
    "read_chunk",
    "read_chunk_footer",
    "uncompressed_chunk_bytes",
]

# Maximum decoded size. Clients limit chunks to 256 MiB of values (specification §3.6), and Arrow's
# text arrays have at most 2 GiB.
MAX_DECODED_BYTES = 2**31 - 1


def read_chunk(
    parquet: BytesLike | pa.Buffer,
    schema: TableSchema,
    *,
    columns: Sequence[str] | None = None,
    written_schema: TableSchema | None = None,
    path: str = "chunk",
    max_bytes: int = MAX_DECODED_BYTES,
    footer: ChunkFooter | None = None,
) -> pa.Table:
    """Decode a decrypted chunk to chunk form, with the given columns in order, or all columns.

    A nullable column that the chunk lacks has only nulls.

    Args:
        parquet: The decrypted chunk.
        schema: Schema of the result.
        columns: Names of the columns, or None for all.
        written_schema: Schema version for which the chunk was written. None: `schema`. Identifies
            columns that have names but no field IDs.
        path: Path of the blob, for errors.
        max_bytes: Limit of the decoded size.
        footer: The footer, if it has been read.

    Raises:
        BlobInvalid: If the bytes are not a Parquet file, do not fit the schema, or have values that
            their type does not allow. Also if they would decode to more than `max_bytes`, with
            ChunkTooLarge as the cause.
        KeyError: If the schema lacks a named column.
    """
    wanted = (
        schema.columns if columns is None else [_require_column(schema, name) for name in columns]
    )
    whole = chunk_arrow_schema(schema)
    with raising_blob_invalid(path):
        data = memoryview(parquet).cast("B")
        footer = footer or read_footer(data)
        present = fields_by_ordinal(footer, written_schema or schema)
        _check_columns_fit(wanted, present)
        # Limit the rows, because a billion consecutive nulls take a few bytes in the file.
        if footer.rows * sum(map(_min_value_bytes, wanted)) > max_bytes:
            raise ChunkTooLarge(
                f"{footer.rows:,} rows of these columns decode to more than {max_bytes:,} bytes."
                " Send smaller chunks"
            )
        sought = [
            ColumnRequest(column, present[column.ordinal])
            for column in wanted
            if column.ordinal in present
        ]
        decoded = iter(decode_columns(data, footer, sought, max_bytes=max_bytes))
        arrays = [
            _to_chunk_form(next(decoded), column)
            if column.ordinal in present
            else pa.chunked_array([pa.nulls(footer.rows, chunk_arrow_type(column))])
            for column in wanted
        ]
        fields = [whole.field(column.name) for column in wanted]
        result = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        result.validate(full=True)
    # Select no columns from a table with one, because a table without columns would have no row
    # count.
    return result if wanted else pa.table({"": pa.nulls(footer.rows)}).select([])


def uncompressed_chunk_bytes(
    parquet: BytesLike | pa.Buffer, footer: ChunkFooter, schema: TableSchema, *, path: str = "chunk"
) -> int:
    """Return the size of all columns before decoding: of uncompressed pages, or of the rows.

    Raises:
        BlobInvalid: If page headers are malformed or contradict the footer.
    """
    with raising_blob_invalid(path):
        present = fields_by_ordinal(footer, schema)
        sought = [
            ColumnRequest(column, present[column.ordinal])
            for column in schema.columns
            if column.ordinal in present
        ]
        pages = uncompressed_page_bytes(memoryview(parquet).cast("B"), footer, sought)
        return max(pages, footer.rows * sum(map(_min_value_bytes, schema.columns)))


def _require_column(schema: TableSchema, name: str) -> Column:
    column = schema.column(name)
    if column is None:
        raise KeyError(name)
    return column


def _check_columns_fit(wanted: Sequence[Column], present: dict[int, FooterField]) -> None:
    for column in wanted:
        field = present.get(column.ordinal)
        if field is None and not column.nullable:
            raise ValueError(f"column {column.display_name} is missing and not nullable")
        reason = field and find_column_mismatch(field, column)
        if reason:
            raise ValueError(reason)


def _min_value_bytes(column: Column) -> int:
    arrow_type = chunk_arrow_type(column)
    if pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type):
        return 4  # Size of an offset. The pages give the size of the values.
    return int(-(-arrow_type.bit_width // 8))


def _to_chunk_form(array: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    if not column.nullable and array.null_count:
        raise ValueError(f"column {column.display_name} has nulls")
    if pa.types.is_dictionary(array.type):
        array = pa.chunked_array(
            [chunk.dictionary.take(chunk.indices) for chunk in array.chunks],
            array.type.value_type,
        )
    target = chunk_arrow_type(column)
    return array if array.type == target else array.cast(target)
