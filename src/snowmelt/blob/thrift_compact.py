"""Thrift structures in compact form, as Parquet's footers and page headers are.

Read without a schema into dictionaries by field number, which is all that a check needs, and
written field by field. Anything malformed raises ValueError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Fields: TypeAlias = dict[int, object]

_TRUE, _FALSE, _I16, _I32, _I64, _BINARY, _LIST, _SET, _STRUCTURE = 1, 2, 4, 5, 6, 8, 9, 10, 12
# Booleans in lists, bytes and doubles: skipped, because no check needs them.
_WIDTHS = {1: 1, 2: 1, 3: 1, 7: 8}
# Parquet nests seven levels: footer, row groups, row group, columns, column, metadata, encodings.
_MAX_DEPTH = 12
_MAX_VARINT_SHIFT = 63


def read_structure(data: bytes, position: int) -> tuple[Fields, int]:
    """Read the structure at `position`; return its fields and the position behind it.

    Raises:
        ValueError: It is malformed, nested too deep, or longer than `data`.
    """
    try:
        return _structure(data, position, 0)
    except IndexError:
        raise ValueError("a structure is cut off") from None


def integer(fields: Fields, number: int) -> int:
    """Return a field that must be an integer not below 0.

    Raises:
        ValueError: It is missing, negative or something else.
    """
    value = fields.get(number)
    if type(value) is not int or value < 0:
        raise ValueError(f"field {number} is missing or invalid")
    return value


def structures(fields: Fields, number: int) -> list[Fields]:
    """Return a field that must be a list of structures; see `integer`."""
    value = fields.get(number)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"field {number} is missing or invalid")
    return value


def structure(fields: Fields, number: int) -> Fields:
    """Return a field that must be a structure; see `integer`."""
    value = fields.get(number)
    if not isinstance(value, dict):
        raise ValueError(f"field {number} is missing or invalid")  # noqa: TRY004 - bad bytes
    return value


class Structure:
    """A structure being written; fields in rising order of their numbers."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._last = 0

    def i32(self, number: int, value: int) -> Structure:
        """Add a 32-bit integer."""
        return self._add(number, _I32, _zigzag(value))

    def i64(self, number: int, value: int) -> Structure:
        """Add a 64-bit integer."""
        return self._add(number, _I64, _zigzag(value))

    def text(self, number: int, value: str) -> Structure:
        """Add a text."""
        return self._add(number, _BINARY, _binary(value))

    def texts(self, number: int, values: Iterable[str]) -> Structure:
        """Add a list of texts."""
        return self._list(number, _BINARY, [_binary(value) for value in values])

    def i32s(self, number: int, values: Iterable[int]) -> Structure:
        """Add a list of 32-bit integers."""
        return self._list(number, _I32, [_zigzag(value) for value in values])

    def structures(self, number: int, values: Iterable[Structure]) -> Structure:
        """Add a list of structures."""
        return self._list(number, _STRUCTURE, [value.encoded() for value in values])

    def structure(self, number: int, value: Structure) -> Structure:
        """Add a structure."""
        return self._add(number, _STRUCTURE, value.encoded())

    def encoded(self) -> bytes:
        """Return the finished bytes."""
        return bytes(self._out) + b"\0"

    def _add(self, number: int, kind: int, value: bytes) -> Structure:
        # Every structure of Parquet that we write has steps of at most 15 between its fields.
        self._out.append((number - self._last) << 4 | kind)
        self._out += value
        self._last = number
        return self

    def _list(self, number: int, kind: int, values: list[bytes]) -> Structure:
        size = len(values)
        head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + _varint(size)
        return self._add(number, _LIST, head + b"".join(values))


def _structure(data: bytes, position: int, depth: int) -> tuple[Fields, int]:
    # Nearly all fields are small integers, which are read in place: half the time.
    if depth > _MAX_DEPTH:
        raise ValueError("structures are nested too deep")
    fields: Fields = {}
    number = 0
    while True:
        head = data[position]
        position += 1
        if head == 0:
            return fields, position
        if head > 15:
            number += head >> 4
        else:
            number, position = _read_zigzag(data, position)
        kind = head & 15
        if _I32 <= kind <= _I64:
            value = data[position]
            position += 1
            if value > 127:
                value, position = _read_varint(data, position - 1)
            fields[number] = (value >> 1) ^ -(value & 1)
        elif kind > _FALSE:
            fields[number], position = _value(data, position, kind, depth)
        else:
            fields[number] = kind == _TRUE


def _value(data: bytes, position: int, kind: int, depth: int) -> tuple[object, int]:
    if kind == _STRUCTURE:
        return _structure(data, position, depth + 1)
    if kind in {_LIST, _SET}:
        return _items(data, position, depth + 1)
    if kind == _BINARY:
        length, position = _read_varint(data, position)
        if position + length > len(data):
            raise ValueError("a text is cut off")
        return data[position : position + length], position + length
    if kind in {_I16, _I32, _I64}:
        return _read_zigzag(data, position)
    if kind in _WIDTHS:
        return None, position + _WIDTHS[kind]
    raise ValueError(f"no field can have type {kind}")


def _items(data: bytes, position: int, depth: int) -> tuple[list[object], int]:
    head = data[position]
    position += 1
    size = head >> 4
    if size == 15:
        size, position = _read_varint(data, position)
    # Each item takes at least a byte, so a list cannot be longer than what is left.
    if size > len(data) - position or depth > _MAX_DEPTH:
        raise ValueError("a list is cut off or nested too deep")
    items = []
    for _ in range(size):
        item, position = _value(data, position, head & 15, depth)
        items.append(item)
    return items, position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = data[position]
    position += 1
    if number < 128:
        return number, position
    number &= 127
    for shift in range(7, _MAX_VARINT_SHIFT + 1, 7):
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
    raise ValueError("a number is too long")


def _read_zigzag(data: bytes, position: int) -> tuple[int, int]:
    number, position = _read_varint(data, position)
    return (number >> 1) ^ -(number & 1), position


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _zigzag(number: int) -> bytes:
    return _varint(number << 1 ^ number >> 63)


def _binary(text: str) -> bytes:
    encoded = text.encode()
    return _varint(len(encoded)) + encoded
