"""The page headers of a Parquet column, read to know sizes before anything is decoded.

A footer may say what it likes; a decoder allocates what the page headers say.
"""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.blob.thrift import Fields, integer, read_structure, structure

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
