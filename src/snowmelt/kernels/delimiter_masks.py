"""Bit masks of 64 bytes at a time, for the scanning kernels.

A bit marks the first byte of a delimiter, a quote or an escape. The parameter `data` is the address
of a buffer that extends 64 bytes past its end, because an array parameter costs reference counting
on each call.
"""

# Functions that only kernels call have no annotations, because Numba infers the types.
# ruff: noqa: ANN001, ANN202, ANN201, ARG001
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from snowmelt.jit import inline_jit

ONE = np.uint64(1)


class DelimiterPattern(NamedTuple):
    """Delimiter of up to 16 bytes: two words and masks, which cost less than an array."""

    size: int
    low: np.uint64
    low_bits: np.uint64
    high: np.uint64
    high_bits: np.uint64


class DelimiterSet(NamedTuple):
    """CSV rules in the form for kernels."""

    record: DelimiterPattern
    field: DelimiterPattern
    quote: DelimiterPattern
    escape: DelimiterPattern
    comment: DelimiterPattern
    # First bytes of record delimiter, field delimiter, quote and escape. The first byte of the
    # record delimiter replaces an undefined one.
    first: tuple[np.uint8, np.uint8, np.uint8, np.uint8]
    quotes_anywhere: bool
    keeps_quotes: bool
    escapes_anywhere: bool
    doubles: bool
    quoted_records: bool
    open_quote_fails: bool
    drops_return: bool
    skips_blank: bool
    empty_is_null: bool
    # True if the bytes before a quote show whether a field starts there: field delimiters do not
    # overlap, and escapes do not apply to record delimiters.
    skims: bool
    # True if one byte identifies a field delimiter.
    simple: bool
    # True if one byte identifies a quote, and quotes are not part of the value.
    quotes_simply: bool
    escapes_records: bool
    text_after_quote_fails: bool


def _load_unaligned(builder, arguments, kind):
    """Load from address + offset, which may be unaligned."""
    address, place = arguments
    pointer = builder.inttoptr(builder.add(address, place), kind.as_pointer())
    return builder.load(pointer, align=1)


@intrinsic
def load_delimiter_mask(_context, data, position, wanted_bytes):
    """Return a mask of the bytes of data[position:position + 64] that are in `wanted_bytes`."""
    wide = ir.VectorType(ir.IntType(8), 64)
    signature = types.uint64(data, position, wanted_bytes)

    def generate(_context, builder, signature, arguments):
        block = _load_unaligned(builder, arguments[:2], wide)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        found = None
        for index in range(len(signature.args[2])):
            wanted = builder.extract_value(arguments[2], index)
            one = builder.insert_element(
                ir.Constant(wide, ir.Undefined), wanted, ir.Constant(ir.IntType(32), 0)
            )
            every = builder.shuffle_vector(one, ir.Constant(wide, ir.Undefined), zeros)
            equal = builder.icmp_unsigned("==", block, every)
            found = equal if found is None else builder.or_(found, equal)
        return builder.bitcast(found, ir.IntType(64))

    return signature, generate


@intrinsic
def count_trailing_zeros(_context, word):
    """Return the index of the lowest set bit of a nonzero word."""
    signature = types.int64(types.uint64)

    def generate(_context, builder, _signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    del word
    return signature, generate


@intrinsic
def count_ones(_context, word):
    """Return the number of set bits of a word."""
    signature = types.int64(types.uint64)

    def generate(_context, builder, _signature, arguments):
        return builder.ctpop(arguments[0])

    return signature, generate


@inline_jit
def clip_mask(word, position, end):
    """Return the mask `word` of data[position:position + 64] without the bits from `end` on."""
    if end - position < 64:
        word &= (ONE << np.uint64(end - position)) - ONE
    return word


@inline_jit
def find_delimiters(data, position, end, wanted_bytes):
    """Return `load_delimiter_mask` without the bits from `end` on."""
    return clip_mask(load_delimiter_mask(data, position, wanted_bytes), position, end)


@intrinsic
def load_word(_context, data, position):
    """Return data[position:position + 8] as a word."""
    signature = types.uint64(data, position)

    def generate(_context, builder, _signature, arguments):
        return _load_unaligned(builder, arguments, ir.IntType(64))

    return signature, generate


@intrinsic
def load_byte(_context, data, position):
    """Return data[position]."""
    signature = types.uint8(data, position)

    def generate(_context, builder, _signature, arguments):
        return _load_unaligned(builder, arguments, ir.IntType(8))

    return signature, generate


@inline_jit
def matches_after_first_byte(data, position, end, pattern):
    """Return True if a pattern matches at a position whose first byte matches."""
    if pattern.size == 1:
        return True
    return matches_pattern(data, position, end, pattern)


@inline_jit
def matches_pattern(data, position, end, pattern):
    """Return True if a nonempty pattern matches at a position."""
    if pattern.size == 0 or position + pattern.size > end:
        return False
    if load_word(data, position) & pattern.low_bits != pattern.low:
        return False
    return pattern.size <= 8 or load_word(data, position + 8) & pattern.high_bits == pattern.high


@intrinsic
def load_non_ascii_mask(_context, data, position):
    """Return a mask of the bytes of data[position:position + 64] that are not ASCII."""
    signature = types.uint64(data, position)
    wide = ir.VectorType(ir.IntType(8), 64)

    def generate(_context, builder, signature, arguments):
        block = _load_unaligned(builder, arguments[:2], wide)
        high = builder.icmp_signed("<", block, ir.Constant(wide, [0] * 64))
        return builder.bitcast(high, ir.IntType(64))

    return signature, generate


@intrinsic
def _load_json_escape_mask(_context, data, position):
    """Return a mask of the bytes of data[position:position + 64] that JSON strings must escape."""
    signature = types.uint64(data, position)
    wide = ir.VectorType(ir.IntType(8), 64)

    def generate(_context, builder, signature, arguments):
        block = _load_unaligned(builder, arguments[:2], wide)
        found = builder.icmp_unsigned("<", block, ir.Constant(wide, [32] * 64))
        for byte in b'"\\':
            equal = builder.icmp_unsigned("==", block, ir.Constant(wide, [byte] * 64))
            found = builder.or_(found, equal)
        return builder.bitcast(found, ir.IntType(64))

    return signature, generate


@inline_jit
def find_json_escapes(data, position, end):
    """Return a mask of the bytes before `end` that JSON strings must escape."""
    return clip_mask(_load_json_escape_mask(data, position), position, end)
