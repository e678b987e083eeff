"""Timestamp kernels: packing, field extraction and formatting of timestamps."""

# Functions that only kernels call have no annotations, because Numba infers the types.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated, unreachable"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snowmelt.jit import inline_jit, jit_kernel
from snowmelt.kernels.slices import Bytes, Mask, Positions, StringSlices
from snowmelt.kernels.timestamps import parse_iso_timestamps, unpack_utc_micros
from snowmelt.select.vectors import TimestampVector

_DAY_MICROS = 86_400_000_000
# Fields of a packed timestamp: shift and mask.
_PACKED_FIELDS = {
    "year": (46, 0x3FFF),
    "month": (42, 0xF),
    "day": (37, 0x1F),
    "hour": (32, 0x1F),
    "minute": (26, 0x3F),
    "second": (20, 0x3F),
}


@jit_kernel
def _pack_epoch_micros(micros: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.empty(len(micros), np.int64)
    for r in range(len(micros)):
        days = micros[r] // _DAY_MICROS
        rest = micros[r] - days * _DAY_MICROS
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


def pack_epoch_micros(micros: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert microseconds since 1970 to packed timestamps. Years must be 1 to 9999."""
    found: NDArray[np.int64] = _pack_epoch_micros(micros)
    return found


@inline_jit
def _write_digits(out, position, value, width):
    for place in range(position + width - 1, position - 1, -1):
        out[place] = 48 + value % 10
        value //= 10


@jit_kernel
def _format_iso_timestamps(
    packed: NDArray[np.int64], width_bytes: int, fraction_digits: int
) -> Bytes:
    out = np.empty(len(packed) * width_bytes, np.uint8)
    for r in range(len(packed)):
        word = packed[r]
        at = r * width_bytes
        _write_digits(out, at, word >> 46, np.int64(4))
        out[at + 4] = 45
        _write_digits(out, at + 5, (word >> 42) & 0xF, np.int64(2))
        out[at + 7] = 45
        _write_digits(out, at + 8, (word >> 37) & 0x1F, np.int64(2))
        if width_bytes == 10:
            continue
        out[at + 10] = 84
        _write_digits(out, at + 11, (word >> 32) & 0x1F, np.int64(2))
        out[at + 13] = 58
        _write_digits(out, at + 14, (word >> 26) & 0x3F, np.int64(2))
        out[at + 16] = 58
        _write_digits(out, at + 17, (word >> 20) & 0x3F, np.int64(2))
        if fraction_digits:
            out[at + 19] = 46
            _write_digits(
                out,
                at + 20,
                (word & 0xFFFFF) * 1000 // 10 ** (9 - fraction_digits),
                fraction_digits,
            )
        out[at + width_bytes - 1] = 90
    return out


def format_timestamps(
    packed: NDArray[np.int64], fraction_digits: int, *, date_only: bool
) -> tuple[Bytes, Positions, Positions]:
    """Format UTC timestamps or dates in ISO 8601. Return the bytes, and the start and end of each text."""
    width = 10 if date_only else 20 + fraction_digits + (fraction_digits > 0)
    starts = np.arange(len(packed), dtype=np.int32) * np.int32(width)
    return _format_iso_timestamps(packed, width, fraction_digits), starts, starts + np.int32(width)


def to_utc_micros(timestamps: TimestampVector) -> NDArray[np.int64]:
    """Return microseconds since 1970-01-01T00:00Z."""
    found: NDArray[np.int64] = unpack_utc_micros(timestamps.packed, timestamps.offset_minutes)
    return found


def parse_timestamps(slices: StringSlices) -> tuple[TimestampVector, Mask]:
    """Parse ISO timestamps with seconds. Also return a mask of the texts that were not parsed.

    The scalar evaluator handles the unparsed texts: shorter forms, more than six fractional digits, and
    errors.
    """
    packed, offsets, odd = parse_iso_timestamps(slices.buffer, slices.start, slices.end)
    return TimestampVector(packed, offsets), odd


def extract_packed_field(part: str, timestamps: TimestampVector) -> NDArray[np.int64]:
    """Return the year, month, day, hour, minute or second in each value's own offset."""
    shift, bits = _PACKED_FIELDS[part]
    return (timestamps.packed >> shift) & bits
