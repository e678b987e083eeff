"""Reader and writer of Thrift's compact protocol, for Parquet's footers and page headers.

Structs are read without a schema, as dictionaries by field number, and written field by field.
Malformed input raises ValueError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

ThriftFields: TypeAlias = dict[int, object]

_TRUE, _FALSE, _I16, _I32, _I64, _BINARY, _LIST, _SET, _STRUCTURE = 1, 2, 4, 5, 6, 8, 9, 10, 12
# Types that are skipped, because no check needs them: booleans in lists, bytes and doubles.
_FIXED_WIDTHS = {1: 1, 2: 1, 3: 1, 7: 8}
# Maximum nesting. Parquet has seven levels: footer, row groups, row group, columns, column,
# metadata, encodings.
_MAX_DEPTH = 12
_MAX_VARINT_SHIFT = 63


def read_struct(data: bytes, position: int) -> tuple[ThriftFields, int]:
    """Read the struct at `position`. Return its fields and the position after it.

    Raises:
        ValueError: If it is malformed, nested too deep, or longer than `data`.
    """
    try:
        return _read_struct(data, position, 0)
    except IndexError:
        raise ValueError("a structure is cut off") from None


def require_integer(fields: ThriftFields, number: int) -> int:
    """Return a required non-negative integer field.

    Raises:
        ValueError: If it is missing, negative or of another type.
    """
    value = fields.get(number)
    if type(value) is not int or value < 0:
        raise ValueError(f"field {number} is missing or invalid")
    return value


def require_structs(fields: ThriftFields, number: int) -> list[ThriftFields]:
    """Return a required list of structs. Raises the errors of `require_integer`."""
    value = fields.get(number)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"field {number} is missing or invalid")
    return value


def require_struct(fields: ThriftFields, number: int) -> ThriftFields:
    """Return a required struct. Raises the errors of `require_integer`."""
    value = fields.get(number)
    if not isinstance(value, dict):
        raise ValueError(f"field {number} is missing or invalid")  # noqa: TRY004 - bad bytes
    return value


class StructWriter:
    """Writer of one struct. Fields must be added in ascending order of their numbers."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._last = 0

    def add_i32(self, number: int, value: int) -> StructWriter:
        """Add a 32-bit integer."""
        return self._add_field(number, _I32, _encode_zigzag(value))

    def add_i64(self, number: int, value: int) -> StructWriter:
        """Add a 64-bit integer."""
        return self._add_field(number, _I64, _encode_zigzag(value))

    def add_string(self, number: int, value: str) -> StructWriter:
        """Add a text."""
        return self._add_field(number, _BINARY, _encode_binary(value))

    def add_strings(self, number: int, values: Iterable[str]) -> StructWriter:
        """Add a list of texts."""
        return self._add_list(number, _BINARY, [_encode_binary(value) for value in values])

    def add_i32s(self, number: int, values: Iterable[int]) -> StructWriter:
        """Add a list of 32-bit integers."""
        return self._add_list(number, _I32, [_encode_zigzag(value) for value in values])

    def add_structs(self, number: int, values: Iterable[StructWriter]) -> StructWriter:
        """Add a list of structs."""
        return self._add_list(number, _STRUCTURE, [value.to_bytes() for value in values])

    def add_struct(self, number: int, value: StructWriter) -> StructWriter:
        """Add a struct."""
        return self._add_field(number, _STRUCTURE, value.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the encoded struct."""
        return bytes(self._out) + b"\0"

    def _add_field(self, number: int, kind: int, value: bytes) -> StructWriter:
        # Short form: in every Parquet struct written here, field numbers increase by at most 15.
        self._out.append((number - self._last) << 4 | kind)
        self._out += value
        self._last = number
        return self

    def _add_list(self, number: int, kind: int, values: list[bytes]) -> StructWriter:
        size = len(values)
        head = (
            bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + _encode_varint(size)
        )
        return self._add_field(number, _LIST, head + b"".join(values))


def _read_struct(data: bytes, position: int, depth: int) -> tuple[ThriftFields, int]:
    # Read small integers inline, which halves the time: nearly all fields are small integers.
    if depth > _MAX_DEPTH:
        raise ValueError("structures are nested too deep")
    fields: ThriftFields = {}
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
            fields[number], position = _read_value(data, position, kind, depth)
        else:
            fields[number] = kind == _TRUE


def _read_value(data: bytes, position: int, kind: int, depth: int) -> tuple[object, int]:
    if kind == _STRUCTURE:
        return _read_struct(data, position, depth + 1)
    if kind in {_LIST, _SET}:
        return _read_items(data, position, depth + 1)
    if kind == _BINARY:
        length, position = _read_varint(data, position)
        if position + length > len(data):
            raise ValueError("a text is cut off")
        return data[position : position + length], position + length
    if kind in {_I16, _I32, _I64}:
        return _read_zigzag(data, position)
    if kind in _FIXED_WIDTHS:
        return None, position + _FIXED_WIDTHS[kind]
    raise ValueError(f"no field can have type {kind}")


def _read_items(data: bytes, position: int, depth: int) -> tuple[list[object], int]:
    head = data[position]
    position += 1
    size = head >> 4
    if size == 15:
        size, position = _read_varint(data, position)
    # Each item takes at least one byte, so a list cannot be longer than the remaining data.
    if size > len(data) - position:
        raise ValueError(f"a list of {size} items has only {len(data) - position} bytes")
    if depth > _MAX_DEPTH:
        raise ValueError(f"a list is nested deeper than {_MAX_DEPTH} levels")
    items = []
    for _ in range(size):
        item, position = _read_value(data, position, head & 15, depth)
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


def _encode_varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _encode_zigzag(number: int) -> bytes:
    return _encode_varint(number << 1 ^ number >> 63)


def _encode_binary(text: str) -> bytes:
    encoded = text.encode()
    return _encode_varint(len(encoded)) + encoded
