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

from snowmelt.jit import jit_kernel
from snowmelt.select.kernels.bitmask import byte_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.select.vectors import Bytes, Places, Slices

VALUE, NO_NUMBER, TO_BE_EVALUATED = 0, 1, 2
_UNREAD = 3
# So many texts are read together.
_AT_ONCE = 512

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
_BYTE = np.uint64(0xFF)
_ONE = np.uint64(1)
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
def _long(data, start, end):
    """Read digits with one point at most, one by one.

    Returns:
        The digits as an integer, how many stand behind the point, 1 if there is a point, and
        whether there is nothing but digits and a point.
    """
    number = np.int64(0)
    digits = 0
    behind = np.uint64(0)
    point = np.uint64(0)
    for i in range(start, end):
        byte = byte_at(data, i)
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
def _is_word(data, start, end):
    """Tell whether a text without blanks around it begins with no digit, sign, point, i or n."""
    if start == end:
        return True
    byte = byte_at(data, start)
    if byte < 58 or byte >= _DEL or byte_at(data, end - 1) <= _BLANK:
        return False
    return byte not in (73, 105, 78, 110)


@njit(nogil=True, forceinline=True)
def _load_words(data, safe, starts, ends, words, sizes):
    """Take the first 8 bytes of each text; the size of one that they do not hold is zero."""
    for r in range(len(starts)):
        start = np.int64(starts[r])
        size = np.int64(ends[r]) - start
        fits = size <= 8 and start <= safe
        words[r] = _load(data, np.uint64(start)) if fits else np.uint64(0)
        sizes[r] = size if fits else 0


@njit(nogil=True, forceinline=True)
def _short(word, size):
    """Read up to 8 bytes: a sign, digits with one point at most. There is no branch.

    Returns:
        The digits as an integer, how many stand behind the point, 1 if there is a point, whether
        there is a minus, and whether there is nothing but that: else the rest means nothing.
    """
    first = word & _BYTE
    negative = first == _MINUS
    signed = np.uint64(negative) | np.uint64(first == _PLUS)
    word >>= np.uint64(8) * signed
    size -= signed
    there = size - _ONE < np.uint64(8)
    size = size if there else np.uint64(8)
    # The text moves to the word's end; zeros fill the front.
    gap = np.uint64(8) * (np.uint64(8) - size)
    word = (word << gap) | ((_ZEROS >> _ONE) >> (np.uint64(63) - gap))
    points = word ^ _POINTS
    points = (points - _ONES) & ~points & _TOPS
    lowest = points & (~points + _ONE)
    point = np.uint64(points != 0)
    # What stands before the point moves on by one.
    before = (lowest >> np.uint64(7)) - _ONE
    moved = (word & ~((before << np.uint64(8)) | _BYTE)) | ((word & before) << np.uint64(8))
    word = moved | np.uint64(48) if point else word
    after = np.uint64(7) - (_lowest(lowest) >> np.uint64(3))
    behind = after if point else np.uint64(0)
    good = ((word + _ABOVE) | (word - _ZEROS)) & _TOPS == 0
    word -= _ZEROS
    word = word * np.uint64(10) + (word >> np.uint64(8))
    word = (
        (word & _PAIRS) * _HUNDREDS + ((word >> np.uint64(16)) & _PAIRS) * _THOUSANDS
    ) >> np.uint64(32)
    return np.int64(word), behind, point, negative, good & there & (size > point)


@njit(nogil=True, forceinline=True)
def _short_integers(words, sizes, values, status):
    """Read integers of up to 8 bytes, several at once; others stay unread."""
    for r in range(len(words)):
        number, _, point, negative, good = _short(words[r], sizes[r])
        values[r] = -number if negative else number
        status[r] = np.uint64(TO_BE_EVALUATED) * point if good else np.uint64(_UNREAD)


# A check for zero would end the loop early, and the compiler would take texts one by one.
@njit(nogil=True, forceinline=True, error_model="numpy")
def _short_floats(words, sizes, values, status):
    """Read floats of up to 8 bytes, several at once; others stay unread."""
    for r in range(len(words)):
        number, behind, _, negative, good = _short(words[r], sizes[r])
        power = 10.0 if behind & _ONE else 1.0
        power *= 100.0 if behind & np.uint64(2) else 1.0
        power *= 10000.0 if behind & np.uint64(4) else 1.0
        value = np.float64(number) / power
        values[r] = -value if negative else value
        status[r] = VALUE if good & ~(negative & (number == 0)) else _UNREAD


@njit(nogil=True, forceinline=True)
def _one(data, start, end):
    """Read a text of any length.

    Returns:
        As `_short`, but in the end the status: that of a number with a point is `VALUE`, too.
    """
    if _is_word(data, start, end):
        return np.int64(0), np.uint64(0), np.uint64(0), False, NO_NUMBER
    first = byte_at(data, start)
    negative = first == _MINUS
    if negative or first == _PLUS:
        start += 1
    number, behind, point, good = _long(data, start, end)
    return number, behind, point, negative, VALUE if good else TO_BE_EVALUATED


@jit_kernel
def _integers(buffer: Bytes, starts: Places, ends: Places) -> tuple[NDArray[np.int64], Bytes]:
    count = len(starts)
    values = np.empty(count, np.int64)
    status = np.empty(count, np.uint8)
    words = np.empty(_AT_ONCE, np.uint64)
    sizes = np.empty(_AT_ONCE, np.uint64)
    data = np.uint64(buffer.ctypes.data)
    safe = len(buffer) - 8
    for begin in range(0, count, _AT_ONCE):
        end = min(count, begin + _AT_ONCE)
        some = end - begin
        _load_words(data, safe, starts[begin:end], ends[begin:end], words[:some], sizes[:some])
        _short_integers(words[:some], sizes[:some], values[begin:end], status[begin:end])
        for r in range(begin, end):
            if status[r] == _UNREAD:
                start, stop = np.int64(starts[r]), np.int64(ends[r])
                number, _, point, negative, found = _one(data, start, stop)
                values[r] = -number if negative else number
                status[r] = TO_BE_EVALUATED if point else found
    return values, status


@jit_kernel
def _floats(
    buffer: Bytes, starts: Places, ends: Places, powers: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Bytes]:
    count = len(starts)
    values = np.empty(count, np.float64)
    status = np.empty(count, np.uint8)
    words = np.empty(_AT_ONCE, np.uint64)
    sizes = np.empty(_AT_ONCE, np.uint64)
    data = np.uint64(buffer.ctypes.data)
    safe = len(buffer) - 8
    for begin in range(0, count, _AT_ONCE):
        end = min(count, begin + _AT_ONCE)
        some = end - begin
        _load_words(data, safe, starts[begin:end], ends[begin:end], words[:some], sizes[:some])
        _short_floats(words[:some], sizes[:some], values[begin:end], status[begin:end])
        for r in range(begin, end):
            if status[r] != _UNREAD:
                continue
            start, stop = np.int64(starts[r]), np.int64(ends[r])
            number, behind, _, negative, found = _one(data, start, stop)
            # Minus zero is -0.0 of a text with a point and 0 of an integer: the evaluator's.
            if number >= _LARGEST or behind > _EXACT_POWER or (negative and number == 0):
                found = max(found, TO_BE_EVALUATED)
                behind = np.uint64(0)
            value = number / powers[behind]
            values[r] = -value if negative else value
            status[r] = found
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
