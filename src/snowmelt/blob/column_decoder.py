"""Columns of a checked Parquet file to Arrow, by way of a footer of our own.

pyarrow never sees the file's own footer: it gets a fresh one that holds what was checked, for
the columns that are wanted. So nothing in a client's footer (statistics, an Arrow schema, wrong
annotations) reaches a decoder, and BINARY under a UTF8 annotation is read as the bytes it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snowmelt.blob.parquet_footer import digits
from snowmelt.blob.thrift_compact import Fields, Structure, integer, read_structure, structure
from snowmelt.schema.chunk_types import chunk_arrow_type
from snowmelt.schema.types import Column, LogicalType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.blob.parquet_footer import ChunkFooter, ColumnPlace, FooterField

# --- The page headers of a Parquet column, read to know sizes before anything is decoded.
#
# A footer may say what it likes; a decoder allocates what the page headers say.

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_HEADER_FIELD = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}
_ENCODING_FIELD = {_DATA: 2, _DICTIONARY: 2, _DATA_V2: 4}

# Plain, dictionary, RLE, packed deltas, lengths as deltas, byte streams. DELTA_BYTE_ARRAY (7)
# is left out: each value may repeat the one before, so sizes say nothing about the result.
_ENCODINGS = frozenset({0, 2, 3, 5, 6, 8, 9})

# No header is longer, statistics included; what follows a header is not copied for parsing.
_MAX_HEADER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ColumnPages:
    """The pages of one column: bytes before compression, and whether any is a dictionary."""

    uncompressed: int
    has_dictionary: bool


def column_pages(data: memoryview, start: int, length: int, *, values: int) -> ColumnPages:
    """Walk the pages in `length` bytes from `start`, up to as many `values` as the footer says.

    Raises:
        ValueError: The headers do not parse, sizes do not fit, an encoding is not taken, or the
            pages hold other than `values` values.
    """
    end = start + length
    if end > len(data):
        raise ValueError("a column lies outside the file")
    position, seen, uncompressed, has_dictionary = start, 0, 0, False
    while seen < values and position < end:
        head = bytes(data[position : min(end, position + _MAX_HEADER_BYTES)])
        header, size = read_structure(head, 0)
        position += size + integer(header, 3)
        if position > end:
            raise ValueError("a page lies outside its column")
        uncompressed += integer(header, 2)
        kind = integer(header, 1)
        has_dictionary |= kind == _DICTIONARY
        seen += _values(header, kind)
    if seen != values:
        raise ValueError(f"the pages hold {seen} values, the footer says {values}")
    return ColumnPages(uncompressed, has_dictionary)


def _values(header: Fields, kind: int) -> int:
    if kind == _INDEX:
        return 0
    if kind not in _HEADER_FIELD:
        raise ValueError(f"pages of type {kind} are not taken")
    details = structure(header, _HEADER_FIELD[kind])
    encoding = integer(details, _ENCODING_FIELD[kind])
    if encoding not in _ENCODINGS:
        raise ValueError(f"pages in encoding {encoding} are not taken")
    return 0 if kind == _DICTIONARY else integer(details, 1)


_MAGIC = b"PAR1"
_TYPES = {
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
    """A chunk would take more memory than its reader has for it."""


@dataclass(frozen=True, slots=True)
class Sought:
    """A column of the table, and the field of the chunk that holds it."""

    column: Column
    field: FooterField


def decode_columns(
    data: memoryview, footer: ChunkFooter, sought: Sequence[Sought], *, max_bytes: int
) -> list[pa.ChunkedArray]:
    """Decode columns that fit their fields; decimals may have fewer digits than the column.

    Raises:
        ChunkTooLarge: The pages decode to more than `max_bytes`.
        ValueError: The pages contradict the footer.
        pa.ArrowException, OSError: The pages do not decode.
    """
    if not sought:
        return []
    places = {field.name: position for position, field in enumerate(footer.fields)}
    positions = [places[item.field.name] for item in sought]
    pages = [_pages(data, footer, position) for position in positions]
    size = sum(column.uncompressed for column in pages)
    if size > max_bytes:
        raise ChunkTooLarge(f"{size} bytes before compression are more than a chunk may hold")
    # Text stays dictionary-encoded until it is known how long it becomes: a thousand indices
    # into a dictionary of one long value are as good a bomb as any.
    texts = [
        number
        for number, (item, column) in enumerate(zip(sought, pages, strict=True))
        if column.has_dictionary and item.field.physical_type == "BYTE_ARRAY"
    ]
    metadata = pq.read_metadata(pa.BufferReader(_fresh_footer(footer, sought, positions)))
    file = pq.ParquetFile(
        pa.BufferReader(data),
        metadata=metadata,
        read_dictionary=[str(number) for number in texts],
        pre_buffer=False,
        page_checksum_verification=True,
    )
    table = file.read(use_threads=False)
    size += sum(_expanded_bytes(table.column(number)) for number in texts)
    if size > max_bytes:
        raise ChunkTooLarge(f"{size} bytes of text are more than a chunk may hold")
    return list(table.columns)


def page_bytes(data: memoryview, footer: ChunkFooter, sought: Sequence[Sought]) -> int:
    """Return how many bytes the pages of columns have before compression; see `decode_columns`."""
    places = {field.name: position for position, field in enumerate(footer.fields)}
    return sum(_pages(data, footer, places[item.field.name]).uncompressed for item in sought)


def _pages(data: memoryview, footer: ChunkFooter, position: int) -> ColumnPages:
    parts = [
        column_pages(data, place.start, place.length, values=group.rows)
        for group in footer.groups
        for place in (group.places[position],)
    ]
    return ColumnPages(
        sum(part.uncompressed for part in parts), any(part.has_dictionary for part in parts)
    )


def _expanded_bytes(array: pa.ChunkedArray) -> int:
    total = 0
    for chunk in array.chunks:
        if isinstance(chunk, pa.DictionaryArray):
            lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
            total += pc.sum(lengths.cast(pa.int64())).as_py() or 0
    return total


def _fresh_footer(footer: ChunkFooter, sought: Sequence[Sought], positions: Sequence[int]) -> bytes:
    # Columns are named by their number here: names of users may hold dots, which pyarrow splits.
    root = Structure().text(4, "bdec").i32(5, len(sought))
    elements = [root, *(_element(str(number), item) for number, item in enumerate(sought))]
    groups = [
        Structure()
        .structures(
            1,
            [
                _column(str(number), item.field, group.places[position], group.rows)
                for number, (item, position) in enumerate(zip(sought, positions, strict=True))
            ],
        )
        .i64(2, sum(group.places[position].length for position in positions))
        .i64(3, group.rows)
        for group in footer.groups
    ]
    fresh = Structure().i32(1, 1).structures(2, elements).i64(3, footer.rows).structures(4, groups)
    encoded = fresh.encoded()
    return _MAGIC + encoded + len(encoded).to_bytes(4, "little") + _MAGIC


def _element(name: str, item: Sought) -> Structure:
    field, arrow_type = item.field, chunk_arrow_type(item.column)
    element = Structure().i32(1, _TYPES[field.physical_type])
    if field.type_length is not None:
        element.i32(2, field.type_length)
    element.i32(3, _OPTIONAL if field.nullable else _REQUIRED).text(4, name)
    if pa.types.is_decimal(arrow_type):
        precision = min(arrow_type.precision, digits(field))
        element.i32(6, _DECIMAL).i32(7, arrow_type.scale).i32(8, precision)
    elif item.column.kind is LogicalType.DATE:
        element.i32(6, _DATE)
    elif pa.types.is_string(arrow_type):
        element.i32(6, _UTF8)
    return element


def _column(name: str, field: FooterField, place: ColumnPlace, rows: int) -> Structure:
    metadata = (
        Structure()
        .i32(1, _TYPES[field.physical_type])
        .i32s(2, [_PLAIN, _RLE, _RLE_DICTIONARY])
        .texts(3, [name])
        .i32(4, place.codec)
        .i64(5, rows)
        .i64(6, place.length)
        .i64(7, place.length)
        .i64(9, place.start)
    )
    return Structure().i64(2, place.start).structure(3, metadata)
