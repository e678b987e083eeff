"""Kernels for the cells of one column of delimited text: NULLs, unquoted values, booleans."""

# Functions that only kernels call have no annotations, because Numba infers the types.
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913, PLR0917
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated, unreachable"

from __future__ import annotations

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from snowmelt.jit import inline_jit, jit_kernel
from snowmelt.kernels.slices import FIELD_QUOTED, NEEDS_UNQUOTING, PAST_END, Bytes, Mask, Positions

_COPY_BLOCK_BYTES = 32


@intrinsic
def _copy_block(_context, target, source):
    """Copy `_COPY_BLOCK_BYTES` bytes from one address to another."""
    signature = types.void(target, source)
    wide = ir.VectorType(ir.IntType(8), _COPY_BLOCK_BYTES)

    def generate(_context, builder, _signature, arguments):
        target, source = (builder.inttoptr(each, wide.as_pointer()) for each in arguments)
        builder.store(builder.load(source, align=1), target, align=1)

    return signature, generate


@inline_jit
def copy_field(target, source, size):
    """Copy `size` bytes in blocks. May read and write up to `PADDING_BYTES` bytes beyond them."""
    _copy_block(target, source)
    for done in range(_COPY_BLOCK_BYTES, size, _COPY_BLOCK_BYTES):
        _copy_block(target + np.uint64(done), source + np.uint64(done))


@jit_kernel
def find_nulls(
    buffer: Bytes, starts: Positions, ends: Positions, flags: Bytes, null: Bytes, quote: int
) -> Mask:
    """Return a mask of the cells that are missing or equal `null` without quotes.

    `quote` is a byte, or -1 for none.
    """
    size = len(null)
    found = np.empty(len(starts), np.bool_)
    for r in range(len(starts)):
        start = starts[r]
        is_null = flags[r] & FIELD_QUOTED == 0 and ends[r] - start == size
        if is_null and size:
            is_null = flags[r] & NEEDS_UNQUOTING == 0 or buffer[start] != quote
            for i in range(size):
                is_null &= buffer[start + i] == null[i]
        found[r] = is_null or flags[r] & PAST_END != 0
    return found


@inline_jit
def _copy_unquoted(buffer, start, end, quote, escape, out, position):
    """Copy a value without its quotes and escapes. Return the position after the copy."""
    quoted = buffer[start] == quote
    if quoted:
        start += 1
        end -= 1
    while start < end:
        byte = buffer[start]
        if start + 1 < end and (byte == escape or (quoted and byte == quote)):
            start += 1
            byte = buffer[start]
        out[position] = byte
        position += 1
        start += 1
    return position


@jit_kernel
def copy_values(
    buffer: Bytes,
    starts: Positions,
    ends: Positions,
    flags: Bytes,
    left_out: Mask,
    quote: int,
    escape: int,
    offsets: Positions,
    out: Bytes,
) -> int:
    """Concatenate the values of cells. Return their total size in bytes.

    `quote` and `escape` are bytes, or -1 for none. `offsets` receives the start of each value and the
    end of the last one. `out` must be 64 bytes larger than all cells.
    """
    source, target = np.uint64(buffer.ctypes.data), np.uint64(out.ctypes.data)
    at = np.int64(0)
    offsets[0] = 0
    for r in range(len(starts)):
        if not left_out[r]:
            start, end = np.int64(starts[r]), np.int64(ends[r])
            if flags[r] & NEEDS_UNQUOTING:
                at = _copy_unquoted(buffer, start, end, quote, escape, out, at)
            else:
                copy_field(target + np.uint64(at), source + np.uint64(start), end - start)
                at += end - start
        offsets[r + 1] = at
    return int(at)


@jit_kernel
def parse_booleans(
    buffer: Bytes, starts: Positions, ends: Positions, words: NDArray[np.uint64]
) -> tuple[Mask, Mask]:
    """Return a mask of the cells that are true, and a mask of the cells that are booleans.

    `words` has the words for true, then as many for false. An integer holds one word of up to 7
    bytes: its first byte in the lowest byte, and its length in the highest byte.
    """
    values = np.zeros(len(starts), np.bool_)
    known = np.zeros(len(starts), np.bool_)
    for r in range(len(starts)):
        size = ends[r] - starts[r]
        if size > 7:
            continue
        word = np.uint64(size) << np.uint64(56)
        for i in range(size):
            word |= np.uint64(buffer[starts[r] + i]) << np.uint64(8 * i)
        for w in range(len(words)):
            if words[w] == word:
                known[r] = True
                values[r] = w < len(words) // 2
                break
    return values, known
