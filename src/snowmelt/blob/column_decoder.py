"""Decoder of the columns of a checked Parquet file to Arrow, with a new footer.

pyarrow does not read the file's own footer. It receives a new footer with the checked values of the
requested columns. Therefore, no other content of a client's footer (statistics, an Arrow schema,
wrong annotations) affects decoding, and BINARY with a UTF8 annotation is read as bytes.

Before decoding, the size of a column is computed from its page headers: the footer may state any
size, but a decoder allocates the sizes in the page headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snowmelt.blob.parquet_footer import (
    ChunkFooter,
    ColumnChunkLocation,
    FooterField,
    max_decimal_digits,
)
from snowmelt.blob.thrift_compact import (
    StructWriter,
    ThriftFields,
    read_struct,
    require_integer,
    require_struct,
)
from snowmelt.schema.chunk_types import chunk_arrow_type
from snowmelt.schema.types import Column, LogicalType

# --- Page headers of a Parquet column, which give its size before decoding.

_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = range(4)
_HEADER_FIELD = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}
_ENCODING_FIELD = {_DATA_PAGE: 2, _DICTIONARY_PAGE: 2, _DATA_PAGE_V2: 4}

# Accepted encodings: plain, dictionary, RLE, packed deltas, delta lengths, byte streams. Excludes
# DELTA_BYTE_ARRAY (7): a value may repeat its predecessor, so page sizes do not limit the result.
_ALLOWED_ENCODINGS = frozenset({0, 2, 3, 5, 6, 8, 9})

# Maximum size of a page header with statistics. Limits the bytes that are copied for parsing.
_MAX_HEADER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ColumnPageSummary:
    """Pages of one column: their total uncompressed size, and True if one is a dictionary."""

    uncompressed_bytes: int
    has_dictionary: bool


def inspect_column_pages(
    data: memoryview, start: int, length: int, *, expected_values: int
) -> ColumnPageSummary:
    """Read the page headers in `length` bytes from `start`.

    Raises:
        ValueError: If headers are malformed, sizes are inconsistent, an encoding is not supported,
            or the number of values is not `expected_values`, the number in the footer.
    """
    end = start + length
    if end > len(data):
        raise ValueError("a column is outside the file")
    position, seen, uncompressed, has_dictionary = start, 0, 0, False
    while seen < expected_values and position < end:
        head = bytes(data[position : min(end, position + _MAX_HEADER_BYTES)])
        header, size = read_struct(head, 0)
        position += size + require_integer(header, 3)
        if position > end:
            raise ValueError("a page is outside its column")
        uncompressed += require_integer(header, 2)
        kind = require_integer(header, 1)
        has_dictionary |= kind == _DICTIONARY_PAGE
        seen += _count_page_values(header, kind)
    if seen != expected_values:
        raise ValueError(
            f"the pages have {seen} values, expected {expected_values} as in the footer"
        )
    return ColumnPageSummary(uncompressed, has_dictionary)


def _count_page_values(header: ThriftFields, kind: int) -> int:
    if kind == _INDEX_PAGE:
        return 0
    if kind not in _HEADER_FIELD:
        raise ValueError(f"pages of type {kind} are not supported")
    details = require_struct(header, _HEADER_FIELD[kind])
    encoding = require_integer(details, _ENCODING_FIELD[kind])
    if encoding not in _ALLOWED_ENCODINGS:
        raise ValueError(f"pages in encoding {encoding} are not supported")
    return 0 if kind == _DICTIONARY_PAGE else require_integer(details, 1)


_MAGIC = b"PAR1"
_PARQUET_TYPE_CODES = {
    "BOOLEAN": 0,
    "INT32": 1,
    "INT64": 2,
    "DOUBLE": 5,
    "BYTE_ARRAY": 6,
    "FIXED_LEN_BYTE_ARRAY": 7,
}
_REQUIRED, _OPTIONAL = 0, 1
_UTF8, _DECIMAL, _DATE = 0, 5, 6
_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8


class ChunkTooLarge(ValueError):
    """A chunk would exceed the memory limit of its reader."""


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """A column of the table, and the field of the chunk with its values."""

    column: Column
    field: FooterField


def decode_columns(
    data: memoryview, footer: ChunkFooter, requests: Sequence[ColumnRequest], *, max_bytes: int
) -> list[pa.ChunkedArray]:
    """Decode columns that fit their fields. Decimals may have fewer digits than the column.

    Raises:
        ChunkTooLarge: If the pages decode to more than `max_bytes`.
        ValueError: If the pages contradict the footer.
        pa.ArrowException, OSError: If the pages do not decode.
    """
    if not requests:
        return []
    places = {field.name: position for position, field in enumerate(footer.fields)}
    positions = [places[item.field.name] for item in requests]
    pages = [_inspect_all_pages(data, footer, position) for position in positions]
    size = sum(column.uncompressed_bytes for column in pages)
    if size > max_bytes:
        raise ChunkTooLarge(
            f"a chunk has {size:,} bytes before compression, expected at most {max_bytes:,}. Send"
            " smaller chunks"
        )
    # Keep text dictionary-encoded until its decoded size is known: many indices of one long value
    # are a decompression bomb.
    texts = [
        number
        for number, (item, column) in enumerate(zip(requests, pages, strict=True))
        if column.has_dictionary and item.field.physical_type == "BYTE_ARRAY"
    ]
    metadata = pq.read_metadata(pa.BufferReader(_build_footer(footer, requests, positions)))
    file = pq.ParquetFile(
        pa.BufferReader(data),
        metadata=metadata,
        read_dictionary=[str(number) for number in texts],
        pre_buffer=False,
        page_checksum_verification=True,
    )
    table = file.read(use_threads=False)
    size += sum(_expanded_dictionary_bytes(table.column(number)) for number in texts)
    if size > max_bytes:
        raise ChunkTooLarge(
            f"a chunk has {size:,} bytes of text, expected at most {max_bytes:,}. Send smaller"
            " chunks"
        )
    return list(table.columns)


def uncompressed_page_bytes(
    data: memoryview, footer: ChunkFooter, requests: Sequence[ColumnRequest]
) -> int:
    """Return the uncompressed size of the columns' pages in bytes (see `decode_columns`)."""
    places = {field.name: position for position, field in enumerate(footer.fields)}
    return sum(
        _inspect_all_pages(data, footer, places[item.field.name]).uncompressed_bytes
        for item in requests
    )


def _inspect_all_pages(data: memoryview, footer: ChunkFooter, position: int) -> ColumnPageSummary:
    parts = [
        inspect_column_pages(data, place.start, place.length, expected_values=group.rows)
        for group in footer.groups
        for place in (group.column_locations[position],)
    ]
    return ColumnPageSummary(
        sum(part.uncompressed_bytes for part in parts), any(part.has_dictionary for part in parts)
    )


def _expanded_dictionary_bytes(array: pa.ChunkedArray) -> int:
    total = 0
    for chunk in array.chunks:
        if isinstance(chunk, pa.DictionaryArray):
            lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
            total += pc.sum(lengths.cast(pa.int64())).as_py() or 0
    return total


def _build_footer(
    footer: ChunkFooter, requests: Sequence[ColumnRequest], positions: Sequence[int]
) -> bytes:
    # Name columns by number, because pyarrow splits names at dots.
    root = StructWriter().add_string(4, "bdec").add_i32(5, len(requests))
    elements = [
        root,
        *(_make_schema_element(str(number), item) for number, item in enumerate(requests)),
    ]
    groups = [
        StructWriter()
        .add_structs(
            1,
            [
                _make_column_chunk(
                    str(number), item.field, group.column_locations[position], group.rows
                )
                for number, (item, position) in enumerate(zip(requests, positions, strict=True))
            ],
        )
        .add_i64(2, sum(group.column_locations[position].length for position in positions))
        .add_i64(3, group.rows)
        for group in footer.groups
    ]
    fresh = (
        StructWriter()
        .add_i32(1, 1)
        .add_structs(2, elements)
        .add_i64(3, footer.rows)
        .add_structs(4, groups)
    )
    encoded = fresh.to_bytes()
    return _MAGIC + encoded + len(encoded).to_bytes(4, "little") + _MAGIC


def _make_schema_element(name: str, request: ColumnRequest) -> StructWriter:
    field, arrow_type = request.field, chunk_arrow_type(request.column)
    element = StructWriter().add_i32(1, _PARQUET_TYPE_CODES[field.physical_type])
    if field.type_length is not None:
        element.add_i32(2, field.type_length)
    element.add_i32(3, _OPTIONAL if field.nullable else _REQUIRED).add_string(4, name)
    if pa.types.is_decimal(arrow_type):
        precision = min(arrow_type.precision, max_decimal_digits(field))
        element.add_i32(6, _DECIMAL).add_i32(7, arrow_type.scale).add_i32(8, precision)
    elif request.column.kind is LogicalType.DATE:
        element.add_i32(6, _DATE)
    elif pa.types.is_string(arrow_type):
        element.add_i32(6, _UTF8)
    return element


def _make_column_chunk(
    name: str, field: FooterField, location: ColumnChunkLocation, rows: int
) -> StructWriter:
    metadata = (
        StructWriter()
        .add_i32(1, _PARQUET_TYPE_CODES[field.physical_type])
        .add_i32s(2, [_PLAIN, _RLE, _RLE_DICTIONARY])
        .add_strings(3, [name])
        .add_i32(4, location.codec)
        .add_i64(5, rows)
        .add_i64(6, location.length)
        .add_i64(7, location.length)
        .add_i64(9, location.start)
    )
    return StructWriter().add_i64(2, location.start).add_struct(3, metadata)
