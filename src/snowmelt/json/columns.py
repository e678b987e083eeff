"""Kernels that convert located JSON values to columns, or leave them to the exact reader.

The input consists of the positions and kinds that `scanner` returns. The status of a value is
`VALUE`, `NULL_VALUE` (null, or a missing key) or `LEFT_ALONE` (the exact reader must read it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from snowmelt.jit import inline_jit, jit_kernel
from snowmelt.json.scanner import (
    ABSENT,
    DECIMAL,
    ESCAPED_TEXT,
    EXPONENT,
    FALSE,
    HEX_DIGITS,
    INTEGER,
    NULL,
    TEXT,
    TRUE,
)
from snowmelt.kernels.delimiter_masks import load_byte
from snowmelt.kernels.slices import Bytes, Positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    # Start, end and kind of each value of one key.
    FieldPositions: TypeAlias = tuple[Positions, Positions, Bytes]

# Functions that only kernels call have no annotations, because Numba infers the types.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated, unreachable, assignment"

VALUE, NULL_VALUE, LEFT_ALONE = 0, 1, 2
_NEEDS_PARSER = 3
# Number of digits that always fit in 64 bits, and in the 53 bits of a float without rounding.
_MAX_INT64_DIGITS = 18
_MAX_FLOAT_DIGITS = 15
_POWERS_OF_TEN = 10 ** np.arange(_MAX_INT64_DIGITS + 1)
_FLOAT_POWERS_OF_TEN = _POWERS_OF_TEN.astype(np.float64)
_MINUS, _POINT, _BACKSLASH, _UNICODE = 45, 46, 92, 117

_SHORT_ESCAPES = np.arange(256).astype(np.uint8)
for _letter, _byte in zip(b"bfnrt", b"\b\f\n\r\t", strict=True):
    _SHORT_ESCAPES[_letter] = _byte

_TEXT_STATUS = np.full(16, LEFT_ALONE, np.uint8)
_TEXT_STATUS[[TEXT, ESCAPED_TEXT]] = VALUE
_BOOLEAN_STATUS = np.full(16, LEFT_ALONE, np.uint8)
_BOOLEAN_STATUS[[TRUE, FALSE]] = VALUE
for _status in (_TEXT_STATUS, _BOOLEAN_STATUS):
    _status[[NULL, ABSENT]] = NULL_VALUE


@inline_jit
def _read_number(data, start, end):
    """Read the digits of a number, without its point.

    Returns:
        The digits as an integer, their number without leading zeros, the number of digits after the
        point, and True if the number is negative.
    """
    number = np.int64(0)
    digits = 0
    behind = 0
    has_point = 0
    is_negative = load_byte(data, start) == _MINUS
    for at in range(start + is_negative, end):
        byte = load_byte(data, at)
        if byte == _POINT:
            has_point = 1
            continue
        # Above 18 digits, the integer may overflow. Callers check the number of digits.
        number = number * 10 + (byte - 48)
        digits += number != 0
        behind += has_point
    return number, digits, behind, is_negative


@jit_kernel
def _read_decimals(
    buffer: Bytes, field: FieldPositions, scale: int, limit: int, values: NDArray[np.int64]
) -> Bytes:
    starts, ends, kinds = field
    data = buffer.ctypes.data
    status = np.empty(len(kinds), np.uint8)
    for row in range(len(kinds)):
        kind = kinds[row]
        values[row] = 0
        if kind in (NULL, ABSENT):
            status[row] = NULL_VALUE
            continue
        status[row] = LEFT_ALONE
        if kind not in (INTEGER, DECIMAL):
            continue
        number, digits, behind, is_negative = _read_number(
            data, np.int64(starts[row]), np.int64(ends[row])
        )
        missing = scale - behind
        if missing < 0 or digits + missing > _MAX_INT64_DIGITS:
            continue
        number *= _POWERS_OF_TEN[missing]
        if number < limit:
            values[row] = -number if is_negative else number
            status[row] = VALUE
    return status


@jit_kernel
def _read_floats(buffer: Bytes, field: FieldPositions, values: NDArray[np.float64]) -> Bytes:
    starts, ends, kinds = field
    data = buffer.ctypes.data
    status = np.empty(len(kinds), np.uint8)
    for row in range(len(kinds)):
        kind = kinds[row]
        values[row] = 0.0
        if kind in (NULL, ABSENT):
            status[row] = NULL_VALUE
            continue
        status[row] = _NEEDS_PARSER if kind == EXPONENT else LEFT_ALONE
        if kind not in (INTEGER, DECIMAL):
            continue
        number, digits, behind, is_negative = _read_number(
            data, np.int64(starts[row]), np.int64(ends[row])
        )
        status[row] = _NEEDS_PARSER
        if digits <= _MAX_FLOAT_DIGITS and behind <= _MAX_INT64_DIGITS:
            # Both operands are exact floats, so the quotient is rounded once.
            value = np.float64(number) / _FLOAT_POWERS_OF_TEN[behind]
            values[row] = -value if is_negative else value
            status[row] = VALUE
    return status


@inline_jit
def _write_character(code, output, at):
    """Write a character of the basic plane as UTF-8. Return the position after it."""
    if code < 0x80:
        output[at] = code
        return at + 1
    if code < 0x800:
        output[at] = 0xC0 | code >> 6
    else:
        output[at] = 0xE0 | code >> 12
        at += 1
        output[at] = 0x80 | code >> 6 & 0x3F
    output[at + 1] = 0x80 | code & 0x3F
    return at + 2


@jit_kernel
def _copy_texts(
    buffer: Bytes, field: FieldPositions, offsets: NDArray[np.int32], output: Bytes
) -> None:
    starts, ends, kinds = field
    data = buffer.ctypes.data
    at = 0
    for row in range(len(kinds)):
        offsets[row] = at
        place = np.int64(starts[row])
        end = np.int64(ends[row])
        if kinds[row] == TEXT:
            for i in range(end - place):
                output[at + i] = load_byte(data, place + i)
            at += end - place
        elif kinds[row] == ESCAPED_TEXT:
            while place < end:
                byte = load_byte(data, place)
                place += 1
                if byte != _BACKSLASH:
                    output[at] = byte
                    at += 1
                    continue
                letter = load_byte(data, place)
                place += 1
                if letter != _UNICODE:
                    output[at] = _SHORT_ESCAPES[letter]
                    at += 1
                    continue
                code = 0
                for i in range(4):
                    code = code << 4 | np.int64(HEX_DIGITS[load_byte(data, place + i)])
                place += 4
                at = _write_character(code, output, at)
    offsets[len(kinds)] = at


def read_decimals(
    data: Bytes, field: FieldPositions, precision: int, scale: int
) -> tuple[NDArray[np.int64], Bytes]:
    """Return each number times 10**`scale`, and its status."""
    values = np.empty(len(field[2]), np.int64)
    limit = 10 ** min(precision, _MAX_INT64_DIGITS)
    return values, _read_decimals(data, field, scale, limit, values)


def read_floats(data: Bytes, field: FieldPositions) -> tuple[NDArray[np.float64], Bytes]:
    """Return the nearest float of each number, and its status."""
    values = np.empty(len(field[2]), np.float64)
    status = _read_floats(data, field, values)
    starts, ends, _ = field
    memory = data.data
    for row in np.flatnonzero(status == _NEEDS_PARSER).tolist():
        values[row] = float(memory[starts[row] : ends[row]].tobytes())
        status[row] = VALUE
    return values, status


def read_booleans(field: FieldPositions) -> tuple[NDArray[np.bool_], Bytes]:
    """Return each boolean, and its status."""
    return field[2] == TRUE, _BOOLEAN_STATUS[field[2]]


def read_texts(data: Bytes, field: FieldPositions) -> tuple[NDArray[np.int32], Bytes, Bytes]:
    """Return the offsets of the strings, the strings as UTF-8, and the status of each."""
    starts, ends, kinds = field
    offsets = np.empty(len(kinds) + 1, np.int32)
    output = np.empty(int((ends - starts).sum(dtype=np.int64)), np.uint8)
    _copy_texts(data, field, offsets, output)
    return offsets, output, _TEXT_STATUS[kinds]
