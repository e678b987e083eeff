"""JSON kernel: copies valid JSON objects without the whitespace between values.

Skips objects whose serialized form would differ from the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from snowmelt.jit import inline_jit, jit_kernel
from snowmelt.kernels.delimiter_masks import load_byte
from snowmelt.kernels.slices import Bytes, Mask, Positions

if TYPE_CHECKING:
    from numpy.typing import NDArray


# The kernel is one long function, because Numba compiles it as a whole.
# ruff: noqa: C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, assignment, redundant-expr, var-annotated, unreachable"


# Limits of a copied object: nesting depth, number of names, length of a number.
_MAX_COPY_DEPTH = 16
_MAX_COPY_NAMES = 64
_MAX_COPY_NUMBER_BYTES = 18

_CLASS_PLAIN, _CLASS_QUOTE, _CLASS_BLANK, _CLASS_NUMBER, _CLASS_OPEN, _CLASS_CLOSE, _CLASS_COLON = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
)
_BYTE_CLASSES = np.zeros(256, np.uint8)
_BYTE_CLASSES[34] = _CLASS_QUOTE
_BYTE_CLASSES[list(b" \t\r")] = _CLASS_BLANK
_BYTE_CLASSES[list(b"-0123456789")] = _CLASS_NUMBER
_BYTE_CLASSES[ord("{")] = _CLASS_OPEN
_BYTE_CLASSES[ord("}")] = _CLASS_CLOSE
_BYTE_CLASSES[ord(":")] = _CLASS_COLON
# Escapes that the serializer writes exactly as in the input.
_UNCHANGED_ESCAPES = np.zeros(256, np.uint8)
_UNCHANGED_ESCAPES[list(b'"\\nrtbf')] = 1
_NUMBER_BYTES = np.zeros(256, np.uint8)
_NUMBER_BYTES[list(b"+-.eE0123456789")] = 1
_FNV_OFFSET_BASIS, _FNV_PRIME = np.uint64(0xCBF2_9CE4_8422_2325), np.uint64(0x0000_0100_0000_01B3)


@inline_jit
def _find_number_end(data: int, position: int, end: int) -> tuple[int, bool]:
    """Return the end of a number, and True if its serialized form equals the input."""
    begin = position
    kept = True
    while position < end and _NUMBER_BYTES[load_byte(data, position)]:
        kept &= load_byte(data, position) | 32 != 101
        position += 1
    # The integer -0 is serialized as 0.
    minus_zero = (
        position - begin == 2 and load_byte(data, begin) == 45 and load_byte(data, begin + 1) == 48
    )
    return position, kept and not minus_zero and position - begin <= _MAX_COPY_NUMBER_BYTES


@jit_kernel
def copy_json_objects(
    buffer: Bytes, starts: Positions, ends: Positions, record_delimiter: Bytes
) -> tuple[Bytes, NDArray[np.int64], Mask]:
    """Copy valid JSON objects without whitespace, each followed by `record_delimiter`.

    Returns:
        The output, the end of each object in it, and a mask of skipped objects. An object is skipped
        if a name occurs twice in it, if its serialized form would differ, or if it exceeds the limits.
    """
    rows = len(starts)
    out = np.empty((ends - starts).sum() + rows * len(record_delimiter), np.uint8)
    row_ends = np.empty(rows, np.int64)
    odd = np.zeros(rows, np.bool_)
    names = np.empty((_MAX_COPY_DEPTH, _MAX_COPY_NAMES), np.uint64)
    counts = np.zeros(_MAX_COPY_DEPTH, np.int64)
    data = buffer.ctypes.data
    at = 0
    for r in range(rows):
        begin = at
        place, end = np.int64(starts[r]), np.int64(ends[r])
        depth = -1
        hashed = _FNV_OFFSET_BASIS
        kept = True
        while place < end and kept:
            byte = load_byte(data, place)
            kind = _BYTE_CLASSES[byte]
            if kind == _CLASS_BLANK:
                place += 1
                continue
            if kind == _CLASS_NUMBER:
                stop, kept = _find_number_end(data, place, end)
                while place < stop:
                    out[at] = load_byte(data, place)
                    at += 1
                    place += 1
                continue
            out[at] = byte
            at += 1
            place += 1
            if kind == _CLASS_QUOTE:
                hashed = _FNV_OFFSET_BASIS
                while True:
                    byte = load_byte(data, place)
                    out[at] = byte
                    at += 1
                    place += 1
                    if byte == 34:
                        break
                    hashed = (hashed ^ np.uint64(byte)) * _FNV_PRIME
                    if byte == 92:
                        byte = load_byte(data, place)
                        kept &= _UNCHANGED_ESCAPES[byte] != 0
                        hashed = (hashed ^ np.uint64(byte)) * _FNV_PRIME
                        out[at] = byte
                        at += 1
                        place += 1
            elif kind == _CLASS_COLON:
                count = counts[depth]
                kept = count < _MAX_COPY_NAMES
                for i in range(count):
                    kept &= names[depth, i] != hashed
                if kept:
                    names[depth, count] = hashed
                    counts[depth] = count + 1
            elif kind == _CLASS_OPEN:
                depth += 1
                kept = depth < _MAX_COPY_DEPTH
                if kept:
                    counts[depth] = 0
            elif kind == _CLASS_CLOSE:
                depth -= 1
        if kept:
            for i in range(len(record_delimiter)):
                out[at] = record_delimiter[i]
                at += 1
        else:
            odd[r] = True
            at = begin
        row_ends[r] = at
    return out[:at], row_ends, odd
