"""Kernel that writes JSON objects again as they were read, without the blanks between values."""

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, assignment, redundant-expr, var-annotated, unreachable"

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from snowmelt.compiled import kernel
from snowmelt.select.marks import byte_at, inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.select.vectors import Bytes, Mask, Places

# Objects deeper than this, with more names and numbers longer than this are left alone.
_DEEPEST = 16
_MOST_NAMES = 64
_LONGEST_NUMBER = 18

_PLAIN, _QUOTE, _BLANK, _NUMBER, _OPEN, _CLOSE, _COLON = 0, 1, 2, 3, 4, 5, 6
_CLASSES = np.zeros(256, np.uint8)
_CLASSES[34] = _QUOTE
_CLASSES[list(b" \t\r")] = _BLANK
_CLASSES[list(b"-0123456789")] = _NUMBER
_CLASSES[ord("{")] = _OPEN
_CLASSES[ord("}")] = _CLOSE
_CLASSES[ord(":")] = _COLON
# Escapes that are written as they are read.
_KEPT = np.zeros(256, np.uint8)
_KEPT[list(b'"\\nrtbf')] = 1
_IN_NUMBERS = np.zeros(256, np.uint8)
_IN_NUMBERS[list(b"+-.eE0123456789")] = 1
_HASH, _PRIME = np.uint64(0xCBF2_9CE4_8422_2325), np.uint64(0x0000_0100_0000_01B3)


@inlined
def _number_end(data: int, at: int, end: int) -> tuple[int, bool]:
    """Return where a number ends, and whether it is written as it is read."""
    begin = at
    kept = True
    while at < end and _IN_NUMBERS[byte_at(data, at)]:
        kept &= byte_at(data, at) | 32 != 101
        at += 1
    # The integer -0 is written as 0.
    minus_zero = at - begin == 2 and byte_at(data, begin) == 45 and byte_at(data, begin + 1) == 48
    return at, kept and not minus_zero and at - begin <= _LONGEST_NUMBER


@kernel
def copy_objects(
    buffer: Bytes, starts: Places, ends: Places, after: Bytes
) -> tuple[Bytes, NDArray[np.int64], Mask]:
    """Copy valid JSON objects without blanks, `after` behind each.

    Returns:
        What was written, where each object ends in it, and which were left out: those with a
        name that occurs twice in one object, or with text that would be written in another way.
    """
    rows = len(starts)
    out = np.empty((ends - starts).sum() + rows * len(after), np.uint8)
    row_ends = np.empty(rows, np.int64)
    odd = np.zeros(rows, np.bool_)
    names = np.empty((_DEEPEST, _MOST_NAMES), np.uint64)
    counts = np.zeros(_DEEPEST, np.int64)
    data = buffer.ctypes.data
    at = 0
    for r in range(rows):
        begin = at
        place, end = np.int64(starts[r]), np.int64(ends[r])
        depth = -1
        hashed = _HASH
        kept = True
        while place < end and kept:
            byte = byte_at(data, place)
            kind = _CLASSES[byte]
            if kind == _BLANK:
                place += 1
                continue
            if kind == _NUMBER:
                stop, kept = _number_end(data, place, end)
                while place < stop:
                    out[at] = byte_at(data, place)
                    at += 1
                    place += 1
                continue
            out[at] = byte
            at += 1
            place += 1
            if kind == _QUOTE:
                hashed = _HASH
                while True:
                    byte = byte_at(data, place)
                    out[at] = byte
                    at += 1
                    place += 1
                    if byte == 34:
                        break
                    hashed = (hashed ^ np.uint64(byte)) * _PRIME
                    if byte == 92:
                        byte = byte_at(data, place)
                        kept &= _KEPT[byte] != 0
                        hashed = (hashed ^ np.uint64(byte)) * _PRIME
                        out[at] = byte
                        at += 1
                        place += 1
            elif kind == _COLON:
                count = counts[depth]
                kept = count < _MOST_NAMES
                for i in range(count):
                    kept &= names[depth, i] != hashed
                if kept:
                    names[depth, count] = hashed
                    counts[depth] = count + 1
            elif kind == _OPEN:
                depth += 1
                kept = depth < _DEEPEST
                if kept:
                    counts[depth] = 0
            elif kind == _CLOSE:
                depth -= 1
        if kept:
            for i in range(len(after)):
                out[at] = after[i]
                at += 1
        else:
            odd[r] = True
            at = begin
        row_ends[r] = at
    return out[:at], row_ends, odd
