"""Numba kernels that read timestamps in full ISO form, and take them apart."""

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: ANN001, ANN202, C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from snowmelt.select.vectors import Instants, Mask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.select.vectors import Bytes, Places, Slices

_DAY = 86_400_000_000
_PARTS = {"year": 0, "month": 1, "day": 2, "hour": 3, "minute": 4, "second": 5}


@njit(nogil=True, forceinline=True)
def _digits(buffer, at, count):
    """Return a number of so many digits, -1 where one is none."""
    number = 0
    for i in range(at, at + count):
        byte = buffer[i] - 48
        if byte < 0 or byte > 9:
            return -1
        number = number * 10 + byte
    return number


@njit(nogil=True, forceinline=True)
def _days(year, month, day):
    """Return days since 1970 of a day of the Gregorian calendar."""
    shifted = year - 1 if month <= 2 else year
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@njit(nogil=True, forceinline=True)
def _month_days(year, month):
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


@njit(cache=True, nogil=True)
def _parse(
    buffer: Bytes, starts: Places, ends: Places
) -> tuple[NDArray[np.int64], NDArray[np.int16], Mask]:
    """Read `yyyy-mm-ddThh:mi:ss`, up to six digits of a fraction, `Z` or `±hh:mm` or nothing."""
    count = len(starts)
    local = np.zeros(count, np.int64)
    offsets = np.zeros(count, np.int16)
    odd = np.ones(count, np.bool_)
    for r in range(count):
        at = starts[r]
        end = ends[r]
        if end - at < 19 or buffer[at + 4] != 45 or buffer[at + 7] != 45:
            continue
        if buffer[at + 10] not in (84, 32) or buffer[at + 13] != 58 or buffer[at + 16] != 58:
            continue
        year = _digits(buffer, at, 4)
        month = _digits(buffer, at + 5, 2)
        day = _digits(buffer, at + 8, 2)
        hour = _digits(buffer, at + 11, 2)
        minute = _digits(buffer, at + 14, 2)
        second = _digits(buffer, at + 17, 2)
        if year < 1 or month < 1 or month > 12 or day < 1 or day > _month_days(year, month):
            continue
        if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
            continue
        at += 19
        micros = 0
        if at < end and buffer[at] == 46:
            at += 1
            scale = 1_000_000
            while at < end and scale > 1 and 48 <= buffer[at] <= 57:
                micros = micros * 10 + buffer[at] - 48
                scale //= 10
                at += 1
            if scale == 1_000_000:
                continue
            micros *= scale
        offset = 0
        if at < end and buffer[at] == 90:
            at += 1
        elif end - at == 6 and buffer[at] in (43, 45) and buffer[at + 3] == 58:
            hours = _digits(buffer, at + 1, 2)
            minutes = _digits(buffer, at + 4, 2)
            if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
                continue
            offset = hours * 60 + minutes
            if buffer[at] == 45:
                offset = -offset
            at += 6
        if at != end:
            continue
        seconds = (hour * 60 + minute) * 60 + second
        local[r] = _days(year, month, day) * _DAY + seconds * 1_000_000 + micros
        offsets[r] = offset
        odd[r] = False
    return local, offsets, odd


@njit(cache=True, nogil=True)
def _extract(local: NDArray[np.int64], part: int) -> NDArray[np.int64]:
    found = np.empty(len(local), np.int64)
    for r in range(len(local)):
        days = local[r] // _DAY
        rest = (local[r] - days * _DAY) // 1_000_000
        if part == 3:
            found[r] = rest // 3600
        elif part == 4:
            found[r] = rest // 60 % 60
        elif part == 5:
            found[r] = rest % 60
        else:
            shifted = days + 719_468
            era = shifted // 146_097
            of_era = shifted - era * 146_097
            years = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
            of_year = of_era - (365 * years + years // 4 - years // 100)
            number = (5 * of_year + 2) // 153
            month = number + 3 if number < 10 else number - 9
            if part == 0:
                found[r] = years + era * 400 + (1 if month <= 2 else 0)
            elif part == 1:
                found[r] = month
            else:
                found[r] = of_year - (153 * number + 2) // 5 + 1
    return found


def parse_instants(slices: Slices) -> tuple[Instants, Mask]:
    """Return timestamps in full ISO form to the second or finer, and which texts are none.

    Those are for the evaluator: shorter forms, more than six digits of a fraction, errors.
    """
    local, offsets, odd = _parse(slices.buffer, slices.start, slices.end)
    return Instants(local, offsets), odd


def extract_part(part: str, instants: Instants) -> NDArray[np.int64]:
    """Return year, month, day, hour, minute or second at each value's own offset."""
    found: NDArray[np.int64] = _extract(instants.local, _PARTS[part])
    return found
