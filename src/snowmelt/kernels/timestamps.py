"""Timestamp kernels: parse ISO timestamps into packed words, and convert words to microseconds."""

# Functions that only kernels call have no annotations, because Numba infers the types.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated, unreachable"

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from snowmelt.jit import inline_jit, jit_kernel
from snowmelt.kernels.delimiter_masks import load_byte, load_word
from snowmelt.kernels.slices import Bytes, Mask, Positions

if TYPE_CHECKING:
    from numpy.typing import NDArray


_DAY_MICROS = 86_400_000_000
_HIGH_BITS = np.uint64(0x8080_8080_8080_8080)
_ASCII_ZEROS = np.uint64(0x3030_3030_3030_3030)
_ABOVE_NINE_CHECK = np.uint64(0x4646_4646_4646_4646)
_BYTE_MASK = np.uint64(0xFF)
# For `yyyy-mm-` and `ddThh:mm`: the mask of the separators, and the separators. The last value
# turns them into the digit 0: by XOR for dates, by OR after clearing for times.
_DATE_MASK = np.uint64(0xFF00_00FF_0000_0000)
_DATE_SEPARATORS = np.uint64(0x2D00_002D_0000_0000)
_DATE_FLIP = np.uint64(0x1D00_001D_0000_0000)
_TIME_MASK = np.uint64(0x0000_FF00_00FF_0000)
_TIME_SEPARATORS = np.uint64(0x0000_3A00_0054_0000)
_BLANK_TIME_SEPARATORS = np.uint64(0x0000_3A00_0020_0000)
_ZERO_TIME_SEPARATORS = np.uint64(0x0000_3000_0030_0000)


@inline_jit
def _parse_digit_pairs(word):
    """Return in each byte the two-digit number that starts there, or 0 if a byte is not a digit.

    The highest bit of a valid result is set, so that the result differs from 0.
    """
    if ((word + _ABOVE_NINE_CHECK) | (word - _ASCII_ZEROS)) & _HIGH_BITS:
        return np.uint64(0)
    word -= _ASCII_ZEROS
    return (word * np.uint64(10) + (word >> np.uint64(8))) | (np.uint64(1) << np.uint64(63))


@inline_jit
def _extract_byte(word, byte_index):
    return np.int64((word >> (np.uint64(8) * byte_index)) & _BYTE_MASK)


@inline_jit
def _parse_two_digits(data, position):
    """Return a two-digit number, or -1 if a byte is not a digit."""
    tens = np.int64(load_byte(data, position)) - 48
    ones = np.int64(load_byte(data, position + 1)) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return -1
    return tens * 10 + ones


@inline_jit
def _days_in_month(year, month):
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


@inline_jit
def _parse_fraction_and_offset(data, position, end):
    """Read the text after the seconds.

    Returns:
        Microseconds, the offset in minutes, and True if the text is valid.
    """
    micros = np.int64(0)
    if position < end and load_byte(data, position) == 46:
        position += 1
        scale = np.int64(1_000_000)
        while position < end and scale > 1 and 48 <= load_byte(data, position) <= 57:
            micros = micros * 10 + load_byte(data, position) - 48
            scale //= 10
            position += 1
        if scale == 1_000_000:
            return micros, 0, False
        micros *= scale
    if position == end:
        return micros, 0, True
    if load_byte(data, position) == 90:
        return micros, 0, position + 1 == end
    if (
        end - position != 6
        or load_byte(data, position + 3) != 58
        or load_byte(data, position) not in (43, 45)
    ):
        return micros, 0, False
    hours = _parse_two_digits(data, position + 1)
    minutes = _parse_two_digits(data, position + 4)
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return micros, 0, False
    offset = hours * 60 + minutes
    return micros, -offset if load_byte(data, position) == 45 else offset, True


@jit_kernel
def parse_iso_timestamps(
    buffer: Bytes, starts: Positions, ends: Positions
) -> tuple[NDArray[np.int64], NDArray[np.int16], Mask]:
    """Parse `yyyy-mm-ddThh:mi:ss` with up to six fraction digits, and `Z`, `±hh:mm` or nothing.

    A space may replace the T.

    Returns:
        Packed timestamps, offsets in minutes, and a mask of the texts that were not parsed.
    """
    count = len(starts)
    packed = np.empty(count, np.int64)
    offsets = np.empty(count, np.int16)
    odd = np.empty(count, np.bool_)
    data = np.uint64(buffer.ctypes.data)
    for r in range(count):
        packed[r], offsets[r], odd[r] = 0, 0, True
        at = np.int64(starts[r])
        end = np.int64(ends[r])
        if end - at < 19:
            continue
        date = load_word(data, np.uint64(at))
        time = load_word(data, np.uint64(at + 8))
        signs = time & _TIME_MASK
        if date & _DATE_MASK != _DATE_SEPARATORS or (
            signs != _TIME_SEPARATORS and signs != _BLANK_TIME_SEPARATORS
        ):
            continue
        date = _parse_digit_pairs(date ^ _DATE_FLIP)
        time = _parse_digit_pairs((time & ~_TIME_MASK) | _ZERO_TIME_SEPARATORS)
        second = _parse_two_digits(data, at + 17)
        if date == 0 or time == 0 or load_byte(data, at + 16) != 58 or second < 0:
            continue
        year = _extract_byte(date, np.uint64(0)) * 100 + _extract_byte(date, np.uint64(2))
        month = _extract_byte(date, np.uint64(5))
        day = _extract_byte(time, np.uint64(0))
        hour = _extract_byte(time, np.uint64(3))
        minute = _extract_byte(time, np.uint64(6))
        if year < 1 or month < 1 or month > 12 or day < 1:
            continue
        if day > 28 and day > _days_in_month(year, month):
            continue
        if hour > 23 or minute > 59 or second > 59:
            continue
        micros, offset, good = _parse_fraction_and_offset(data, at + 19, end)
        if not good:
            continue
        date_bits = (year << 46) | (month << 42) | (day << 37)
        packed[r] = date_bits | (hour << 32) | (minute << 26) | (second << 20) | micros
        offsets[r] = offset
        odd[r] = False
    return packed, offsets, odd


@inline_jit
def _count_days(year, month, day):
    """Return the days since 1970-01-01."""
    shifted = year - 1 if month <= 2 else year
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@jit_kernel
def parse_iso_days(
    buffer: Bytes, starts: Positions, ends: Positions
) -> tuple[NDArray[np.int32], Mask]:
    """Parse `yyyy-mm-dd`. Return the days since 1970-01-01, and a mask of valid texts."""
    days = np.zeros(len(starts), np.int32)
    odd = np.ones(len(starts), np.bool_)
    data = np.uint64(buffer.ctypes.data)
    for r in range(len(starts)):
        at = np.int64(starts[r])
        if np.int64(ends[r]) - at != 10:
            continue
        date = load_word(data, np.uint64(at))
        if date & _DATE_MASK != _DATE_SEPARATORS:
            continue
        date = _parse_digit_pairs(date ^ _DATE_FLIP)
        day = _parse_two_digits(data, at + 8)
        year = _extract_byte(date, np.uint64(0)) * 100 + _extract_byte(date, np.uint64(2))
        month = _extract_byte(date, np.uint64(5))
        if date == 0 or year < 1 or not 1 <= month <= 12 or day < 1:
            continue
        if day > 28 and day > _days_in_month(year, month):
            continue
        days[r] = _count_days(year, month, day)
        odd[r] = False
    return days, odd


@jit_kernel
def unpack_utc_micros(packed: NDArray[np.int64], offsets: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return microseconds since 1970 in UTC."""
    found = np.empty(len(packed), np.int64)
    for r in range(len(packed)):
        word = packed[r]
        days = _count_days(word >> 46, (word >> 42) & 0xF, (word >> 37) & 0x1F)
        minutes = ((word >> 32) & 0x1F) * 60 + ((word >> 26) & 0x3F) - offsets[r]
        seconds = minutes * 60 + ((word >> 20) & 0x3F)
        found[r] = days * _DAY_MICROS + seconds * 1_000_000 + (word & 0xFFFFF)
    return found
