"""Numba kernels that read timestamps in full ISO form, and take them apart."""

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
from snowmelt.select.vectors import Instants, Mask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.select.vectors import Bytes, Places, Slices

_DAY = 86_400_000_000
# Where a packed timestamp holds its parts: shift, and the bits that count.
_FIELDS = {
    "year": (46, 0x3FFF),
    "month": (42, 0xF),
    "day": (37, 0x1F),
    "hour": (32, 0x1F),
    "minute": (26, 0x3F),
    "second": (20, 0x3F),
}

_TOPS = np.uint64(0x8080_8080_8080_8080)
_ZEROS = np.uint64(0x3030_3030_3030_3030)
_ABOVE = np.uint64(0x4646_4646_4646_4646)
_BYTE = np.uint64(0xFF)
# `yyyy-mm-` and `ddThh:mm`: where separators stand, what they are, and what makes them zeros.
_DATE_MASK = np.uint64(0xFF00_00FF_0000_0000)
_DATE_SIGNS = np.uint64(0x2D00_002D_0000_0000)
_DATE_FLIP = np.uint64(0x1D00_001D_0000_0000)
_TIME_MASK = np.uint64(0x0000_FF00_00FF_0000)
_TIME_SIGNS = np.uint64(0x0000_3A00_0054_0000)
_BLANK_SIGNS = np.uint64(0x0000_3A00_0020_0000)
_ZERO_SIGNS = np.uint64(0x0000_3000_0030_0000)


@intrinsic
def _load(_context, data, place):
    """Return data[place:place + 8] as one word, the first byte lowest."""
    signature = types.uint64(data, place)

    def generate(_context, builder, _signature, arguments):
        word = ir.IntType(64)
        address = builder.add(arguments[0], arguments[1])
        return builder.load(builder.inttoptr(address, word.as_pointer()), align=1)

    return signature, generate


@njit(nogil=True, forceinline=True)
def _pairs(word):
    """Return in each byte the two digits that begin there; 0 at the top if one is no digit."""
    if ((word + _ABOVE) | (word - _ZEROS)) & _TOPS:
        return np.uint64(0)
    word -= _ZEROS
    return (word * np.uint64(10) + (word >> np.uint64(8))) | (np.uint64(1) << np.uint64(63))


@njit(nogil=True, forceinline=True)
def _byte(word, place):
    return np.int64((word >> np.uint64(8 * place)) & _BYTE)


@njit(nogil=True, forceinline=True)
def _two(buffer, at):
    """Return a number of two digits, -1 where one is none."""
    tens = np.int64(buffer[at]) - 48
    ones = np.int64(buffer[at + 1]) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return -1
    return tens * 10 + ones


@njit(nogil=True, forceinline=True)
def _month_days(year, month):
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


@njit(nogil=True, forceinline=True)
def _rest(buffer, at, end):
    """Read what stands behind the seconds.

    Returns:
        Microseconds, the offset in minutes, and whether it was understood.
    """
    micros = np.int64(0)
    if at < end and buffer[at] == 46:
        at += 1
        scale = np.int64(1_000_000)
        while at < end and scale > 1 and 48 <= buffer[at] <= 57:
            micros = micros * 10 + buffer[at] - 48
            scale //= 10
            at += 1
        if scale == 1_000_000:
            return micros, 0, False
        micros *= scale
    if at == end:
        return micros, 0, True
    if buffer[at] == 90:
        return micros, 0, at + 1 == end
    if end - at != 6 or buffer[at + 3] != 58 or buffer[at] not in (43, 45):
        return micros, 0, False
    hours = _two(buffer, at + 1)
    minutes = _two(buffer, at + 4)
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return micros, 0, False
    offset = hours * 60 + minutes
    return micros, -offset if buffer[at] == 45 else offset, True


@jit_kernel
def _parse(
    buffer: Bytes, starts: Places, ends: Places
) -> tuple[NDArray[np.int64], NDArray[np.int16], Mask]:
    """Read `yyyy-mm-ddThh:mi:ss`, up to six digits of a fraction, `Z` or `±hh:mm` or nothing."""
    count = len(starts)
    packed = np.zeros(count, np.int64)
    offsets = np.zeros(count, np.int16)
    odd = np.ones(count, np.bool_)
    data = np.uint64(buffer.ctypes.data)
    for r in range(count):
        at = np.int64(starts[r])
        end = np.int64(ends[r])
        if end - at < 19:
            continue
        date = _load(data, np.uint64(at))
        time = _load(data, np.uint64(at + 8))
        signs = time & _TIME_MASK
        if date & _DATE_MASK != _DATE_SIGNS or (signs != _TIME_SIGNS and signs != _BLANK_SIGNS):
            continue
        date = _pairs(date ^ _DATE_FLIP)
        time = _pairs((time & ~_TIME_MASK) | _ZERO_SIGNS)
        second = _two(buffer, at + 17)
        if date == 0 or time == 0 or buffer[at + 16] != 58 or second < 0:
            continue
        year = _byte(date, 0) * 100 + _byte(date, 2)
        month = _byte(date, 5)
        day = _byte(time, 0)
        hour = _byte(time, 3)
        minute = _byte(time, 6)
        if year < 1 or month < 1 or month > 12 or day < 1:
            continue
        if day > 28 and day > _month_days(year, month):
            continue
        if hour > 23 or minute > 59 or second > 59:
            continue
        micros, offset, good = _rest(buffer, at + 19, end)
        if not good:
            continue
        date_bits = (year << 46) | (month << 42) | (day << 37)
        packed[r] = date_bits | (hour << 32) | (minute << 26) | (second << 20) | micros
        offsets[r] = offset
        odd[r] = False
    return packed, offsets, odd


@jit_kernel
def _micros(packed: NDArray[np.int64], offsets: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return microseconds since 1970 in UTC."""
    found = np.empty(len(packed), np.int64)
    for r in range(len(packed)):
        word = packed[r]
        year = word >> 46
        month = (word >> 42) & 0xF
        shifted = year - 1 if month <= 2 else year
        era = shifted // 400
        of_era = shifted - era * 400
        of_year = (153 * ((month + 9) % 12) + 2) // 5 + ((word >> 37) & 0x1F) - 1
        days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
        minutes = ((word >> 32) & 0x1F) * 60 + ((word >> 26) & 0x3F) - offsets[r]
        seconds = minutes * 60 + ((word >> 20) & 0x3F)
        found[r] = days * _DAY + seconds * 1_000_000 + (word & 0xFFFFF)
    return found


@jit_kernel
def _packed(micros: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.empty(len(micros), np.int64)
    for r in range(len(micros)):
        days = micros[r] // _DAY
        rest = micros[r] - days * _DAY
        shifted = days + 719_468
        era = shifted // 146_097
        of_era = shifted - era * 146_097
        year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
        of_year = of_era - (365 * year + year // 4 - year // 100)
        month = (5 * of_year + 2) // 153
        day = of_year - (153 * month + 2) // 5 + 1
        number = month + 3 if month < 10 else month - 9
        year += era * 400 + (1 if number <= 2 else 0)
        word = (year << 46) | (number << 42) | (day << 37) | ((rest // 3_600_000_000) << 32)
        word |= ((rest // 60_000_000 % 60) << 26) | ((rest // 1_000_000 % 60) << 20)
        found[r] = word | (rest % 1_000_000)
    return found


def pack_micros(micros: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return microseconds since 1970 as packed words; years must be 1 to 9999."""
    found: NDArray[np.int64] = _packed(micros)
    return found


@jit_kernel
def _put(out, at, value, width):
    for place in range(at + width - 1, at - 1, -1):
        out[place] = 48 + value % 10
        value //= 10


@jit_kernel
def _print(packed: NDArray[np.int64], width: int, digits: int) -> Bytes:
    out = np.empty(len(packed) * width, np.uint8)
    for r in range(len(packed)):
        word = packed[r]
        at = r * width
        _put(out, at, word >> 46, 4)
        out[at + 4] = 45
        _put(out, at + 5, (word >> 42) & 0xF, 2)
        out[at + 7] = 45
        _put(out, at + 8, (word >> 37) & 0x1F, 2)
        if width == 10:
            continue
        out[at + 10] = 84
        _put(out, at + 11, (word >> 32) & 0x1F, 2)
        out[at + 13] = 58
        _put(out, at + 14, (word >> 26) & 0x3F, 2)
        out[at + 16] = 58
        _put(out, at + 17, (word >> 20) & 0x3F, 2)
        if digits:
            out[at + 19] = 46
            _put(out, at + 20, (word & 0xFFFFF) * 1000 // 10 ** (9 - digits), digits)
        out[at + width - 1] = 90
    return out


def print_instants(
    packed: NDArray[np.int64], digits: int, *, days_alone: bool
) -> tuple[Bytes, Places, Places]:
    """Write timestamps in UTC as ISO texts, or their days; return bytes, and places of each."""
    width = 10 if days_alone else 20 + digits + (digits > 0)
    starts = np.arange(len(packed), dtype=np.int32) * np.int32(width)
    return _print(packed, width, digits), starts, starts + np.int32(width)


def utc_micros(instants: Instants) -> NDArray[np.int64]:
    """Return microseconds since 1970-01-01T00:00Z."""
    found: NDArray[np.int64] = _micros(instants.packed, instants.offset)
    return found


def parse_instants(slices: Slices) -> tuple[Instants, Mask]:
    """Return timestamps in full ISO form to the second or finer, and which texts are none.

    Those are for the evaluator: shorter forms, more than six digits of a fraction, errors.
    """
    packed, offsets, odd = _parse(slices.buffer, slices.start, slices.end)
    return Instants(packed, offsets), odd


def extract_part(part: str, instants: Instants) -> NDArray[np.int64]:
    """Return year, month, day, hour, minute or second at each value's own offset."""
    shift, bits = _FIELDS[part]
    return (instants.packed >> shift) & bits
