"""Numba kernels over texts of ASCII: which are, and their other case."""

# One loop is one compiled function; types are what numba sees.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from snowmelt.compiled import kernel
from snowmelt.select.vectors import Slices

if TYPE_CHECKING:
    from snowmelt.select.vectors import Bytes, Mask, Places

_LAST_ASCII = 127


@kernel
def has_other_than_ascii(buffer: Bytes, starts: Places, ends: Places) -> Mask:
    """Return which texts hold a byte beyond ASCII."""
    found = np.zeros(len(starts), np.bool_)
    for r in range(len(starts)):
        for i in range(starts[r], ends[r]):
            if buffer[i] > _LAST_ASCII:
                found[r] = True
                break
    return found


@kernel
def has_byte(buffer: Bytes, starts: Places, ends: Places, wanted: int) -> Mask:
    """Return which texts hold a byte."""
    found = np.zeros(len(starts), np.bool_)
    for r in range(len(starts)):
        for i in range(starts[r], ends[r]):
            if buffer[i] == wanted:
                found[r] = True
                break
    return found


@kernel
def _changed(
    buffer: Bytes, starts: Places, ends: Places, first: int, shift: int
) -> tuple[Bytes, Places, Places]:
    """Copy the texts; the 26 letters from `first` on are moved by `shift`."""
    total = 0
    for r in range(len(starts)):
        total += ends[r] - starts[r]
    out = np.empty(max(total, 1), np.uint8)
    new_starts = np.empty(len(starts), np.int32)
    new_ends = np.empty(len(starts), np.int32)
    at = 0
    for r in range(len(starts)):
        new_starts[r] = at
        for i in range(starts[r], ends[r]):
            byte = buffer[i]
            out[at] = byte + shift if first <= byte < first + 26 else byte
            at += 1
        new_ends[r] = at
    return out, new_starts, new_ends


def in_lower_case(slices: Slices) -> Slices:
    """Return the texts with A to Z in lower case."""
    parts = _changed(slices.buffer, slices.start, slices.end, ord("A"), 32)
    return Slices(*parts, np.zeros(len(slices), np.uint8))


def in_upper_case(slices: Slices) -> Slices:
    """Return the texts with a to z in upper case."""
    parts = _changed(slices.buffer, slices.start, slices.end, ord("a"), -32)
    return Slices(*parts, np.zeros(len(slices), np.uint8))
