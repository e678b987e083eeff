"""Number parsing kernels: parse simple integers and floats exactly, and defer all other strings."""

# Functions that only kernels call have no annotations, because Numba infers the types.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated, unreachable"

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from snowmelt.jit import inline_jit, jit_kernel
from snowmelt.kernels.delimiter_masks import count_trailing_zeros, load_byte, load_word
from snowmelt.kernels.slices import Bytes, Mask, Positions, StringSlices

if TYPE_CHECKING:
    from numpy.typing import NDArray


VALUE, NOT_A_NUMBER, TO_BE_EVALUATED = 0, 1, 2
_NOT_PARSED = 3
# Number of texts that are parsed together.
_BATCH_STRINGS = 512

# Number of digits that always fit in 64 bits, and in the 53 bits of a float without rounding.
_MAX_INTEGER_DIGITS = 18
_MAX_FLOAT_DIGITS = 15
# Largest power of ten that is a float without rounding.
_MAX_EXACT_POWER = 22
_EXACT_FLOAT_END = 10**_MAX_FLOAT_DIGITS
_POWERS_OF_TEN = np.array([float(10**power) for power in range(_MAX_EXACT_POWER + 1)])

_MINUS, _PLUS, _POINT, _ZERO, _NINE = 45, 43, 46, 48, 57
# Limits of printable ASCII, both exclusive.
_BLANK, _DEL = 32, 127
_BYTE_MASK = np.uint64(0xFF)
_ONE = np.uint64(1)
_LOW_BITS = np.uint64(0x0101_0101_0101_0101)
_HIGH_BITS = np.uint64(0x8080_8080_8080_8080)
_ASCII_ZEROS = np.uint64(0x3030_3030_3030_3030)
_ASCII_POINTS = np.uint64(0x2E2E_2E2E_2E2E_2E2E)
_ABOVE_NINE_CHECK = np.uint64(0x4646_4646_4646_4646)
_DIGIT_PAIR_MASK = np.uint64(0x0000_00FF_0000_00FF)
_HIGH_PAIR_FACTORS = np.uint64(0x000F_4240_0000_0064)
_LOW_PAIR_FACTORS = np.uint64(0x0000_2710_0000_0001)


@inline_jit
def _parse_long_number(data, start, end):
    """Read digits with at most one point, byte by byte.

    Returns:
        The digits as an integer, the number of digits after the point, 1 if there is a point, and
        True if there are only digits and a point.
    """
    number = np.int64(0)
    digits = 0
    behind = np.uint64(0)
    point = np.uint64(0)
    for i in range(start, end):
        byte = load_byte(data, i)
        if _ZERO <= byte <= _NINE:
            number = number * 10 + (byte - _ZERO)
            digits += number != 0
            behind += point
            if digits > _MAX_INTEGER_DIGITS:
                return number, behind, point, False
        elif byte == _POINT and point == 0:
            point = np.uint64(1)
        else:
            return number, behind, point, False
    return number, behind, point, end - start > np.int64(point)


@inline_jit
def _is_never_number(data, start, end):
    """Return True for an empty text, and for a text whose first byte proves that it is no number.

    Return False for a text that ends with a blank or a control byte.
    """
    if start == end:
        return True
    byte = load_byte(data, start)
    if byte < 58 or byte >= _DEL or load_byte(data, end - 1) <= _BLANK:
        return False
    return byte not in (73, 105, 78, 110)


@inline_jit
def _load_words(data, last_safe_start, starts, ends, words, sizes):
    """Load the first 8 bytes of each text. Sets the size of a longer text to zero."""
    for r in range(len(starts)):
        start = np.int64(starts[r])
        size = np.int64(ends[r]) - start
        fits = size <= 8 and start <= last_safe_start
        words[r] = load_word(data, np.uint64(start)) if fits else np.uint64(0)
        sizes[r] = size if fits else 0


@inline_jit
def _parse_short_number(word, size):
    """Read up to 8 bytes: a sign, and digits with at most one point. Has no branches.

    Returns:
        The digits as an integer, the number of digits after the point, 1 if there is a point, True
        if there is a minus, and True if there is nothing else. If the last is False, the others are
        undefined.
    """
    first = word & _BYTE_MASK
    negative = first == _MINUS
    signed = np.uint64(negative) | np.uint64(first == _PLUS)
    word >>= np.uint64(8) * signed
    size -= signed
    there = size - _ONE < np.uint64(8)
    size = size if there else np.uint64(8)
    # Shift the text to the end of the word and fill the front with zeros.
    gap = np.uint64(8) * (np.uint64(8) - size)
    word = (word << gap) | ((_ASCII_ZEROS >> _ONE) >> (np.uint64(63) - gap))
    points = word ^ _ASCII_POINTS
    points = (points - _LOW_BITS) & ~points & _HIGH_BITS
    lowest = points & (~points + _ONE)
    point = np.uint64(points != 0)
    # Shift the digits before the point by one byte, to remove the point.
    before = (lowest >> np.uint64(7)) - _ONE
    moved = (word & ~((before << np.uint64(8)) | _BYTE_MASK)) | ((word & before) << np.uint64(8))
    word = moved | np.uint64(48) if point else word
    after = np.uint64(7) - (np.uint64(count_trailing_zeros(lowest)) >> np.uint64(3))
    behind = after if point else np.uint64(0)
    good = ((word + _ABOVE_NINE_CHECK) | (word - _ASCII_ZEROS)) & _HIGH_BITS == 0
    word -= _ASCII_ZEROS
    word = word * np.uint64(10) + (word >> np.uint64(8))
    word = (
        (word & _DIGIT_PAIR_MASK) * _HIGH_PAIR_FACTORS
        + ((word >> np.uint64(16)) & _DIGIT_PAIR_MASK) * _LOW_PAIR_FACTORS
    ) >> np.uint64(32)
    return np.int64(word), behind, point, negative, good & there & (size > point)


@inline_jit
def _parse_short_integers(words, sizes, values, status):
    """Read integers of up to 8 bytes, in a vectorized loop. Marks other texts `_NOT_PARSED`."""
    for r in range(len(words)):
        number, _, point, negative, good = _parse_short_number(words[r], sizes[r])
        values[r] = -number if negative else number
        status[r] = np.uint64(TO_BE_EVALUATED) * point if good else np.uint64(_NOT_PARSED)


# Do not check for zero: leaving the loop early would prevent vectorization.
@njit(nogil=True, forceinline=True, error_model="numpy")
def _parse_short_floats(words, sizes, values, status):
    """Read floats of up to 8 bytes, in a vectorized loop. Marks other texts `_NOT_PARSED`."""
    for r in range(len(words)):
        number, behind, _, negative, good = _parse_short_number(words[r], sizes[r])
        power = 10.0 if behind & _ONE else 1.0
        power *= 100.0 if behind & np.uint64(2) else 1.0
        power *= 10000.0 if behind & np.uint64(4) else 1.0
        value = np.float64(number) / power
        values[r] = -value if negative else value
        status[r] = VALUE if good & ~(negative & (number == 0)) else _NOT_PARSED


@inline_jit
def _parse_any_number(data, start, end):
    """Read a text of any length.

    Returns:
        As `_parse_short_number`, but with the status as the last item. A number with a point also
        has the status `VALUE`.
    """
    if _is_never_number(data, start, end):
        return np.int64(0), np.uint64(0), np.uint64(0), False, NOT_A_NUMBER
    first = load_byte(data, start)
    negative = first == _MINUS
    if negative or first == _PLUS:
        start += 1
    number, behind, point, good = _parse_long_number(data, start, end)
    return number, behind, point, negative, VALUE if good else TO_BE_EVALUATED


@jit_kernel
def _parse_integers(
    buffer: Bytes, starts: Positions, ends: Positions
) -> tuple[NDArray[np.int64], Bytes]:
    count = len(starts)
    values = np.empty(count, np.int64)
    status = np.empty(count, np.uint8)
    words = np.empty(_BATCH_STRINGS, np.uint64)
    sizes = np.empty(_BATCH_STRINGS, np.uint64)
    data = np.uint64(buffer.ctypes.data)
    safe = len(buffer) - 8
    for begin in range(0, count, _BATCH_STRINGS):
        end = min(count, begin + _BATCH_STRINGS)
        some = end - begin
        _load_words(data, safe, starts[begin:end], ends[begin:end], words[:some], sizes[:some])
        _parse_short_integers(words[:some], sizes[:some], values[begin:end], status[begin:end])
        for r in range(begin, end):
            if status[r] == _NOT_PARSED:
                start, stop = np.int64(starts[r]), np.int64(ends[r])
                number, _, point, negative, found = _parse_any_number(data, start, stop)
                values[r] = -number if negative else number
                status[r] = TO_BE_EVALUATED if point else found
    return values, status


@jit_kernel
def _parse_floats(
    buffer: Bytes, starts: Positions, ends: Positions, powers: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Bytes]:
    count = len(starts)
    values = np.empty(count, np.float64)
    status = np.empty(count, np.uint8)
    words = np.empty(_BATCH_STRINGS, np.uint64)
    sizes = np.empty(_BATCH_STRINGS, np.uint64)
    data = np.uint64(buffer.ctypes.data)
    safe = len(buffer) - 8
    for begin in range(0, count, _BATCH_STRINGS):
        end = min(count, begin + _BATCH_STRINGS)
        some = end - begin
        _load_words(data, safe, starts[begin:end], ends[begin:end], words[:some], sizes[:some])
        _parse_short_floats(words[:some], sizes[:some], values[begin:end], status[begin:end])
        for r in range(begin, end):
            if status[r] != _NOT_PARSED:
                continue
            start, stop = np.int64(starts[r]), np.int64(ends[r])
            number, behind, _, negative, found = _parse_any_number(data, start, stop)
            # Defer minus zero: it is -0.0 for a text with a point, and 0 for an integer.
            if (
                number >= _EXACT_FLOAT_END
                or behind > _MAX_EXACT_POWER
                or (negative and number == 0)
            ):
                found = max(found, TO_BE_EVALUATED)
                behind = np.uint64(0)
            value = number / powers[behind]
            values[r] = -value if negative else value
            status[r] = found
    return values, status


@jit_kernel
def parse_decimals(
    buffer: Bytes,
    starts: Positions,
    ends: Positions,
    factors: NDArray[np.int64],
    bounds: NDArray[np.int64],
) -> tuple[NDArray[np.int64], Mask]:
    """Read decimals (digits with at most one point) as unscaled integers of two words.

    `factors` and `bounds` have the factor of the unscaled number and its exclusive upper bound, by
    the number of digits after the point.

    Returns:
        The low and high words (zero for other texts), and a mask of the texts that are such
        numbers.
    """
    count = len(starts)
    words = np.zeros(2 * count, np.int64)
    good = np.zeros(count, np.bool_)
    data = np.uint64(buffer.ctypes.data)
    safe = len(buffer) - 8
    for r in range(count):
        start, end = np.int64(starts[r]), np.int64(ends[r])
        found = False
        if end - start <= 8 and start <= safe:
            number, behind, _, negative, found = _parse_short_number(
                load_word(data, np.uint64(start)),
                np.uint64(end - start),
            )
        else:
            number, behind, _, negative, status = _parse_any_number(data, start, end)
            found = status == VALUE
        place = np.int64(behind)
        if found and place < len(factors) and number < bounds[place]:
            number *= factors[place]
            number = -number if negative else number
            words[2 * r] = number
            words[2 * r + 1] = number >> 63
            good[r] = True
    return words, good


def parse_integers(slices: StringSlices) -> tuple[NDArray[np.int64], Bytes]:
    """Return the 64-bit integers that texts represent, and a status for each.

    The status is `VALUE` for an optional sign and up to 18 digits. It is `NOT_A_NUMBER` for a text
    that is not a number in any dialect. For other texts it is `TO_BE_EVALUATED`.
    """
    values, status = _parse_integers(slices.buffer, slices.start, slices.end)
    return values, status


def parse_floats(slices: StringSlices) -> tuple[NDArray[np.float64], Bytes]:
    """Return the nearest floats that texts represent, and a status for each.

    The status is `VALUE` for an optional sign and up to 15 digits with an optional point. One
    division of exact floats then rounds correctly. The other statuses are those of
    `parse_integers`.
    """
    values, status = _parse_floats(slices.buffer, slices.start, slices.end, _POWERS_OF_TEN)
    return values, status
