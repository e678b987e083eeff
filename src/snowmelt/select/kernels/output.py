"""Output kernels: write CSV and JSON records from field positions, copy records, format integers.

`starts` and `ends` give each field's range in `buffer`, with one row per field and one column per
output record. Each writing kernel returns its output and the end offset of each record.
"""

# Functions that only kernels call have no annotations, because Numba infers the types.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="assignment, arg-type, no-untyped-def, no-untyped-call, call-arg, var-annotated, unreachable"

from __future__ import annotations

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from snowmelt.jit import helper_jit, jit_kernel
from snowmelt.kernels.cells import copy_field
from snowmelt.kernels.delimiter_masks import count_ones, find_delimiters, find_json_escapes
from snowmelt.kernels.slices import PADDING_BYTES, Bytes, Positions

_QUOTE_ALWAYS = 2
_BACKSLASH = 92
_DOUBLE_QUOTE = 34
_FIRST_PRINTABLE = 32
# Number of special bytes that the CSV writer searches for in fields.
SPECIAL_BYTE_COUNT = 8


@intrinsic
def _copy_bytes(_context, target, source, size):
    """Copy `size` bytes from address `source` to address `target`."""
    signature = types.void(target, source, size)

    def generate(_context, builder, _signature, arguments):
        pointer = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(each, pointer) for each in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)

    return signature, generate


@jit_kernel
def write_csv_rows(
    buffer: Bytes,
    starts: Positions,
    ends: Positions,
    special_bytes: tuple[Bytes, tuple[np.uint8, ...]],
    csv_format: tuple[Bytes, int, int, int, int],
) -> tuple[Bytes, NDArray[np.int64]]:
    """Write CSV records with field and record delimiters.

    Args:
        buffer: Source of the fields, with at least `PADDING_BYTES` bytes after the last field.
        starts: Start of each field in `buffer`.
        ends: End of each field in `buffer`.
        special_bytes: Table of 256 bytes, and a tuple of the `SPECIAL_BYTE_COUNT` special bytes. The
            table has 2 for the quote and the escape, 1 for other bytes that require quotes, else 0.
        csv_format: Field delimiter, record delimiter and `PADDING_BYTES` bytes in one array; size of
            the field delimiter; quote; escape; and quote mode (0 never, 1 if needed, 2 always).
    """
    special, bytes_of = special_bytes
    delimiters, between, quote, escape, mode = csv_format
    after = len(delimiters) - PADDING_BYTES - between
    fields, rows = starts.shape
    source = np.uint64(buffer.ctypes.data)
    needs = np.zeros((rows, fields), np.uint8)
    total = rows * (fields * (between + 2) + after) + PADDING_BYTES
    for r in range(rows):
        for f in range(fields):
            start, end = np.int64(starts[f, r]), np.int64(ends[f, r])
            total += end - start
            if mode == 0:
                continue
            odd = np.uint64(0)
            for at in range(start, end, 64):
                odd |= find_delimiters(source, at, end, bytes_of)
            if odd != 0:
                found = np.uint8(0)
                for i in range(start, end):
                    what = special[buffer[i]]
                    found |= what
                    total += what >> 1
                needs[r, f] = found
    out = np.empty(total, np.uint8)
    row_ends = np.empty(rows, np.int64)
    target = np.uint64(out.ctypes.data)
    first = np.uint64(delimiters.ctypes.data)
    at = 0
    for r in range(rows):
        for f in range(fields):
            if f:
                copy_field(target + np.uint64(at), first, between)
                at += between
            start, end = np.int64(starts[f, r]), np.int64(ends[f, r])
            if mode != _QUOTE_ALWAYS and needs[r, f] == 0:
                copy_field(target + np.uint64(at), source + np.uint64(start), end - start)
                at += end - start
                continue
            out[at] = quote
            at += 1
            if needs[r, f] < 2:
                copy_field(target + np.uint64(at), source + np.uint64(start), end - start)
                at += end - start
            else:
                for i in range(start, end):
                    byte = buffer[i]
                    if special[byte] == 2:
                        out[at] = escape
                        at += 1
                    out[at] = byte
                    at += 1
            out[at] = quote
            at += 1
        copy_field(target + np.uint64(at), first + np.uint64(between), after)
        at += after
        row_ends[r] = at
    return out[:at], row_ends


@jit_kernel
def copy_rows(
    buffer: Bytes, starts: Positions, ends: Positions, record_delimiter: Bytes
) -> tuple[Bytes, NDArray[np.int64]]:
    """Copy whole records, each followed by `record_delimiter`, as in `buffer`.

    Adjacent records are copied at once.
    """
    rows = len(starts)
    width = len(record_delimiter)
    total = 0
    for r in range(rows):
        total += ends[r] - starts[r] + width
    out = np.empty(total, np.uint8)
    row_ends = np.empty(rows, np.int64)
    source = np.uint64(buffer.ctypes.data)
    target = np.uint64(out.ctypes.data)
    at = 0
    r = 0
    while r < rows:
        first = r
        row_ends[r] = at + ends[r] - starts[r] + width
        while r + 1 < rows and starts[r + 1] == ends[r] + width:
            r += 1
            row_ends[r] = row_ends[r - 1] + ends[r] - starts[r] + width
        size = ends[r] - starts[first]
        _copy_bytes(target + np.uint64(at), source + np.uint64(starts[first]), np.uint64(size))
        at += size
        for b in record_delimiter:
            out[at] = b
            at += 1
        r += 1
    return out, row_ends


@jit_kernel
def write_json_rows(
    buffer: Bytes,
    starts: Positions,
    ends: Positions,
    value_modes: Bytes,
    encoded_keys: tuple[Bytes, Positions],
    delimiter_size: int,
) -> tuple[Bytes, NDArray[np.int64]]:
    """Write records as JSON objects.

    Args:
        buffer: Source of the fields, with at least `PADDING_BYTES` bytes after the last field.
        starts: Start of each field in `buffer`.
        ends: End of each field in `buffer`.
        value_modes: One mode per field and record: 0 writes the bytes unchanged (number, boolean or
            null), 1 writes a string.
        encoded_keys: The encoded keys (`"a":`), the record delimiter and `PADDING_BYTES` bytes in one
            array; and the start of each key, followed by the end of the last key.
        delimiter_size: Size of the record delimiter.
    """
    fields, rows = starts.shape
    source = np.uint64(buffer.ctypes.data)
    name_bytes, name_places = encoded_keys
    needs = np.zeros((rows, fields), np.uint8)
    total = rows * (len(name_bytes) + 3 * fields + 2 + delimiter_size) + PADDING_BYTES
    for r in range(rows):
        for f in range(fields):
            start, end = np.int64(starts[f, r]), np.int64(ends[f, r])
            total += end - start
            if value_modes[f, r]:
                found = np.int64(0)
                for at in range(start, end, 64):
                    found += count_ones(find_json_escapes(source, at, end))
                # The longest escape has six bytes: five more than the character that it replaces.
                total += 5 * found
                needs[r, f] = found != 0
    out = np.empty(total, np.uint8)
    row_ends = np.empty(rows, np.int64)
    target = np.uint64(out.ctypes.data)
    labels = np.uint64(name_bytes.ctypes.data)
    at = 0
    for r in range(rows):
        out[at] = 123
        at += 1
        for f in range(fields):
            if f:
                out[at] = 44
                at += 1
            label, size = np.int64(name_places[f]), name_places[f + 1] - name_places[f]
            copy_field(target + np.uint64(at), labels + np.uint64(label), size)
            at += size
            start, end = np.int64(starts[f, r]), np.int64(ends[f, r])
            if needs[r, f]:
                at = _write_json_string(buffer, start, end, out, at)
                continue
            if value_modes[f, r]:
                out[at] = _DOUBLE_QUOTE
                at += 1
            copy_field(target + np.uint64(at), source + np.uint64(start), end - start)
            at += end - start
            if value_modes[f, r]:
                out[at] = _DOUBLE_QUOTE
                at += 1
        out[at] = 125
        at += 1
        copy_field(target + np.uint64(at), labels + np.uint64(name_places[fields]), delimiter_size)
        at += delimiter_size
        row_ends[r] = at
    return out[:at], row_ends


@helper_jit
def _write_json_string(buffer: Bytes, start: int, end: int, out: Bytes, position: int) -> int:
    """Write a JSON string with quotes and escapes at `position`, and return its end."""
    out[position] = _DOUBLE_QUOTE
    position += 1
    for i in range(start, end):
        byte = buffer[i]
        if byte >= _FIRST_PRINTABLE:
            if byte in (_DOUBLE_QUOTE, _BACKSLASH):
                out[position] = _BACKSLASH
                position += 1
            out[position] = byte
            position += 1
            continue
        out[position] = _BACKSLASH
        short = 0
        if byte == 10:
            short = 110
        elif byte == 13:
            short = 114
        elif byte == 9:
            short = 116
        elif byte == 8:
            short = 98
        elif byte == 12:
            short = 102
        if short:
            out[position + 1] = short
            position += 2
            continue
        out[position + 1] = 117
        out[position + 2] = 48
        out[position + 3] = 48
        out[position + 4] = 48 + (byte >> 4)
        low = byte & 15
        out[position + 5] = 48 + low if low < 10 else 87 + low
        position += 6
    out[position] = _DOUBLE_QUOTE
    return position + 1


@jit_kernel
def format_integers(values: NDArray[np.int64]) -> tuple[Bytes, Positions, Positions]:
    """Format integers in decimal. Return the bytes, and the start and end of each integer."""
    count = len(values)
    out = np.empty(count * 20, np.uint8)
    starts = np.empty(count, np.int32)
    ends = np.empty(count, np.int32)
    for r in range(count):
        value = values[r]
        at = r * 20 + 20
        ends[r] = at
        negative = value < 0
        # The minimum int64 has no positive counterpart, so take the digits from the negative value.
        rest = value if negative else -value
        while True:
            quotient = (rest + 9) // 10
            at -= 1
            out[at] = 48 - (rest - quotient * 10)
            rest = quotient
            if rest == 0:
                break
        if negative:
            at -= 1
            out[at] = 45
        starts[r] = at
    return out, starts, ends


@jit_kernel
def split_list_items(text: Bytes, count: int) -> tuple[Positions, Positions]:
    """Return the start and end of each of `count` items of `[a,b,c]`."""
    starts = np.empty(count, np.int32)
    ends = np.empty(count, np.int32)
    at = 1
    for r in range(count):
        starts[r] = at
        while text[at] != 44 and text[at] != 93:
            at += 1
        ends[r] = at
        at += 1
    return starts, ends
