"""The page headers of a Parquet column, read by ourselves to know sizes before decoding.

A footer may say what it likes; a decoder allocates what the page headers say. They are Thrift
structures in compact form, of which this reads what `PageHeader` needs.
"""

from __future__ import annotations

from dataclasses import dataclass

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_HEADER_FIELD = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}
_ENCODING_FIELD = {_DATA: 2, _DICTIONARY: 2, _DATA_V2: 4}

# Plain, dictionary, RLE, packed deltas, lengths as deltas, byte streams. DELTA_BYTE_ARRAY (7)
# is left out: each value may repeat the one before, so sizes say nothing about the result.
_ENCODINGS = frozenset({0, 2, 3, 5, 6, 8, 9})

_MAX_DEPTH = 4
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class ColumnPages:
    """Sums over the pages of one column: values, bytes before compression, any dictionary?"""

    values: int
    uncompressed: int
    has_dictionary: bool


class _Compact:
    """Reads one Thrift structure after the other from `data`, from `position` on."""

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self.position = position

    def structure(self, depth: int = 0) -> dict[int, object]:
        """Return the fields of a structure by their numbers; lists and texts as None."""
        if depth > _MAX_DEPTH:
            raise ValueError("page header nested too deep")
        fields: dict[int, object] = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._zigzag()
            fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> object:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._zigzag()
            case 7:
                self.position += 8
                return None
            case 8:
                self.position += self._varint()
                return None
            case 12:
                return self.structure(depth + 1)
            case _:
                raise ValueError(f"page header with a field of type {kind}")

    def _byte(self) -> int:
        if self.position >= len(self._data):
            raise ValueError("page header is cut off")
        self.position += 1
        return self._data[self.position - 1]

    def _varint(self) -> int:
        number = 0
        for place in range(_MAX_VARINT_BYTES):
            byte = self._byte()
            number |= (byte & 127) << 7 * place
            if byte < 128:
                return number
        raise ValueError("page header with an endless number")

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)


def column_pages(data: memoryview, start: int, length: int, *, values: int) -> ColumnPages:
    """Walk the pages in `length` bytes from `start`, up to as many `values` as the footer says.

    Raises:
        ValueError: The headers do not parse, sizes do not fit, an encoding is not taken, or the
            pages hold other than `values` values.
    """
    end = start + length
    if start < 0 or length < 0 or end > len(data):
        raise ValueError("a column lies outside the file")
    position, seen, uncompressed, has_dictionary = start, 0, 0, False
    while seen < values and position < end:
        reader = _Compact(data, position)
        header = reader.structure()
        sizes = _numbers(header, 2, 3)
        position = reader.position + sizes[1]
        if position > end:
            raise ValueError("a page lies outside its column")
        uncompressed += sizes[0]
        kind = _numbers(header, 1)[0]
        count = _page_values(header, kind)
        has_dictionary |= kind == _DICTIONARY
        seen += count if kind in {_DATA, _DATA_V2} else 0
    if seen != values:
        raise ValueError(f"the pages hold {seen} values, the footer says {values}")
    return ColumnPages(seen, uncompressed, has_dictionary)


def _page_values(header: dict[int, object], kind: int) -> int:
    if kind == _INDEX:
        return 0
    details = header.get(_HEADER_FIELD.get(kind, -1))
    if not isinstance(details, dict):
        raise ValueError(f"a page of type {kind} without its header")  # noqa: TRY004 - bad bytes
    count, encoding = _numbers(details, 1, _ENCODING_FIELD[kind])
    if encoding not in _ENCODINGS:
        raise ValueError(f"pages in encoding {encoding} are not taken")
    return count


def _numbers(fields: dict[int, object], *numbers: int) -> list[int]:
    found = []
    for number in numbers:
        value = fields.get(number)
        if not isinstance(value, int) or not 0 <= value < 2**31:
            raise ValueError(f"page header without a proper field {number}")
        found.append(value)
    return found
