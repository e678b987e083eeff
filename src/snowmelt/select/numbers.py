"""Numba kernels that read numbers from texts: the plain ones exactly, the rest is left alone."""

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated, unreachable"

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

from snowmelt.select.compiled import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.select.vectors import Bytes, Places, Slices

VALUE, NO_NUMBER, TO_BE_EVALUATED = 0, 1, 2

# So many digits always fit: in 64 bits, and in a float's 53 without rounding.
_INTEGER_DIGITS = 18
_FLOAT_DIGITS = 15
# A power of ten is a float without rounding up to this.
_EXACT_POWER = 22
_LARGEST = 10**_FLOAT_DIGITS
_POWERS = np.array([float(10**power) for power in range(_EXACT_POWER + 1)])

_MINUS, _PLUS, _POINT, _ZERO, _NINE = 45, 43, 46, 48, 57
# First bytes of texts that are read as numbers nowhere: letters but those of inf and nan.
_BLANK, _DEL = 32, 127
_ONES = np.uint64(0x0101_0101_0101_0101)
_TOPS = np.uint64(0x8080_8080_8080_8080)
_ZEROS = np.uint64(0x3030_3030_3030_3030)
_POINTS = np.uint64(0x2E2E_2E2E_2E2E_2E2E)
_ABOVE = np.uint64(0x4646_4646_4646_4646)
_PAIRS = np.uint64(0x0000_00FF_0000_00FF)
_HUNDREDS = np.uint64(0x000F_4240_0000_0064)
_THOUSANDS = np.uint64(0x0000_2710_0000_0001)


@intrinsic
def _load(_context, data, place):
    """Return data[place:place + 8] as one word, the first byte lowest."""
    signature = types.uint64(data, place)

    def generate(_context, builder, _signature, arguments):
        word = ir.IntType(64)
        address = builder.add(arguments[0], arguments[1])
        return builder.load(builder.inttoptr(address, word.as_pointer()), align=1)

    return signature, generate


@intrinsic
def _lowest(_context, word):
    """Return the place of the lowest bit of a word that is not zero."""
    signature = types.uint64(word)

    def generate(_context, builder, _signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return signature, generate


@njit(nogil=True, forceinline=True)
def _short(data, place, size):
    """Read up to 8 bytes of digits with one point at most, all at once.

    Returns:
        The digits as an integer, how many stand behind the point, 1 if there is a point, and
        whether there is nothing but digits and a point.
    """
    gap = np.uint64(8) * (np.uint64(8) - size)
    # The text moves to the word's end; zeros fill the front.
    word = _load(data, place) << gap
    if gap:
        word |= _ZEROS >> (np.uint64(64) - gap)
    points = word ^ _POINTS
    points = (points - _ONES) & ~points & _TOPS
    behind = np.uint64(0)
    point = np.uint64(0)
    if points:
        point = np.uint64(1)
        bits = _lowest(points) & ~np.uint64(7)
        behind = np.uint64(7) - (bits >> np.uint64(3))
        low = word & ((np.uint64(1) << bits) - np.uint64(1))
        high = (word >> bits) >> np.uint64(8)
        word = ((high << bits) << np.uint64(8)) | (low << np.uint64(8)) | np.uint64(48)
    good = ((word + _ABOVE) | (word - _ZEROS)) & _TOPS == 0
    word -= _ZEROS
    word = word * np.uint64(10) + (word >> np.uint64(8))
    word = (
        (word & _PAIRS) * _HUNDREDS + ((word >> np.uint64(16)) & _PAIRS) * _THOUSANDS
    ) >> np.uint64(32)
    return np.int64(word), behind, point, good and size > point


@njit(nogil=True, forceinline=True)
def _long(buffer, start, end):
    """Read digits with one point at most, one by one; returns as `_short`."""
    number = np.int64(0)
    digits = 0
    behind = np.uint64(0)
    point = np.uint64(0)
    for i in range(start, end):
        byte = buffer[i]
        if _ZERO <= byte <= _NINE:
            number = number * 10 + (byte - _ZERO)
            digits += number != 0
            behind += point
            if digits > _INTEGER_DIGITS:
                return number, behind, point, False
        elif byte == _POINT and point == 0:
            point = np.uint64(1)
        else:
            return number, behind, point, False
    return number, behind, point, end - start > np.int64(point)


@njit(nogil=True, forceinline=True)
def _read(buffer, data, safe, start, end):
    """Read an unsigned number; returns as `_short`."""
    size = end - start
    if 0 < size <= 8 and start <= safe:
        return _short(data, np.uint64(start), np.uint64(size))
    return _long(buffer, start, end)


@njit(nogil=True, forceinline=True)
def _is_word(buffer, start, end):
    """Tell whether a text without blanks around it begins with no digit, sign, point, i or n."""
    if start == end:
        return True
    byte = buffer[start]
    if byte < 58 or byte >= _DEL or buffer[end - 1] <= _BLANK:
        return False
    return byte not in (73, 105, 78, 110)


@kernel
def _integers(buffer: Bytes, starts: Places, ends: Places) -> tuple[NDArray[np.int64], Bytes]:
    count = len(starts)
    values = np.empty(count, np.int64)
    status = np.empty(count, np.uint8)
    data = np.uint64(buffer.ctypes.data)
    safe = len(buffer) - 8
    for r in range(count):
        start = np.int64(starts[r])
        end = np.int64(ends[r])
        values[r] = 0
        if _is_word(buffer, start, end):
            status[r] = 1
            continue
        first = buffer[start]
        negative = first == _MINUS
        if negative or first == _PLUS:
            start += 1
        number, _, point, good = _read(buffer, data, safe, start, end)
        values[r] = -number if negative else number
        status[r] = 0 if good and point == 0 else 2
    return values, status


@kernel
def _floats(
    buffer: Bytes, starts: Places, ends: Places, powers: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Bytes]:
    count = len(starts)
    values = np.empty(count, np.float64)
    status = np.empty(count, np.uint8)
    data = np.uint64(buffer.ctypes.data)
    safe = len(buffer) - 8
    for r in range(count):
        start = np.int64(starts[r])
        end = np.int64(ends[r])
        values[r] = 0.0
        if _is_word(buffer, start, end):
            status[r] = 1
            continue
        first = buffer[start]
        negative = first == _MINUS
        if negative or first == _PLUS:
            start += 1
        number, behind, _, good = _read(buffer, data, safe, start, end)
        # Minus zero is -0.0 of a text with a point and 0 of an integer: the evaluator's.
        if not good or number >= _LARGEST or behind > _EXACT_POWER or (negative and number == 0):
            status[r] = 2
            continue
        value = number / powers[behind]
        values[r] = -value if negative else value
        status[r] = 0
    return values, status


def parse_integers(slices: Slices) -> tuple[NDArray[np.int64], Bytes]:
    """Return what texts say as 64-bit integers, and for each whether it is one.

    The status is `VALUE` for a sign and up to 18 digits, `NO_NUMBER` for what no dialect reads
    as a number, else `TO_BE_EVALUATED`.
    """
    values, status = _integers(slices.buffer, slices.start, slices.end)
    return values, status


def parse_floats(slices: Slices) -> tuple[NDArray[np.float64], Bytes]:
    """Return what texts say as the nearest floats, and for each whether it is plainly that.

    `VALUE` is given for a sign, up to 15 digits and a point, which one division of exact floats
    rounds right; the other statuses are those of `parse_integers`.
    """
    values, status = _floats(slices.buffer, slices.start, slices.end, _POWERS)
    return values, status
