"""Numba kernels that read numbers from texts: the plain ones exactly, the rest is left alone."""

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.select.vectors import Bytes, Places, Slices

VALUE, NO_NUMBER, TO_BE_EVALUATED = 0, 1, 2

# So many digits always fit: in 64 bits, and in a float's 53 without rounding.
_INTEGER_DIGITS = 18
_FLOAT_DIGITS = 15
# A power of ten is a float without rounding up to this.
_EXACT_POWER = 22
_POWERS = np.array([float(10**power) for power in range(_EXACT_POWER + 1)])

_MINUS, _PLUS, _POINT, _ZERO, _NINE = 45, 43, 46, 48, 57
# First bytes of texts that are read as numbers nowhere: letters but those of inf and nan.
_BLANK, _DEL = 32, 127


@njit(nogil=True, forceinline=True)
def _plain_digits(buffer, start, end):
    """Read digits with one point at most.

    Returns:
        The digits as an integer, how many stand behind the point, and the state: a value, no
        number, or for the evaluator (too long, or any byte that is neither digit nor point).
    """
    number = 0
    digits = 0
    behind = 0
    points = 0
    for i in range(start, end):
        byte = buffer[i]
        if _ZERO <= byte <= _NINE:
            number = number * 10 + (byte - _ZERO)
            digits += number != 0
            behind += points
            if digits > _INTEGER_DIGITS:
                return number, behind, 2
        elif byte == _POINT and points == 0:
            points = 1
        else:
            return number, behind, 2
    # A point alone, or nothing: no digit at all.
    if end - start == points:
        return number, behind, 1
    return number, behind, 0 if points == 0 else 3


@njit(nogil=True, forceinline=True)
def _is_word(buffer, start, end):
    """Tell whether a text without blanks around it begins with no digit, sign, point, i or n."""
    if start == end:
        return True
    byte = buffer[start]
    last = buffer[end - 1]
    if byte <= _BLANK or last <= _BLANK or byte >= _DEL:
        return False
    return byte >= 58 and byte not in (73, 105, 78, 110)


@njit(cache=True, nogil=True)
def _integers(buffer: Bytes, starts: Places, ends: Places) -> tuple[NDArray[np.int64], Bytes]:
    count = len(starts)
    values = np.zeros(count, np.int64)
    status = np.zeros(count, np.uint8)
    for r in range(count):
        start = starts[r]
        end = ends[r]
        if _is_word(buffer, start, end):
            status[r] = 1
            continue
        negative = buffer[start] == _MINUS
        if negative or buffer[start] == _PLUS:
            start += 1
        number, _, state = _plain_digits(buffer, start, end)
        values[r] = -number if negative else number
        status[r] = 2 if state else 0
    return values, status


@njit(cache=True, nogil=True)
def _floats(
    buffer: Bytes, starts: Places, ends: Places, powers: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Bytes]:
    count = len(starts)
    values = np.zeros(count, np.float64)
    status = np.zeros(count, np.uint8)
    for r in range(count):
        start = starts[r]
        end = ends[r]
        if _is_word(buffer, start, end):
            status[r] = 1
            continue
        negative = buffer[start] == _MINUS
        if negative or buffer[start] == _PLUS:
            start += 1
        number, behind, state = _plain_digits(buffer, start, end)
        if state == 1 or state == 2 or number >= 1_000_000_000_000_000 or behind > _EXACT_POWER:
            status[r] = 2
            continue
        value = number / powers[behind]
        # Minus zero: -0.0 of a text with a point, 0 of an integer, which is the evaluator's.
        if negative and number == 0:
            status[r] = 2
            continue
        values[r] = -value if negative else value
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
