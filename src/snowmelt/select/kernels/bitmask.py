"""64 bytes at a time as one word of marks: what the kernels that read CSV are made of.

A mark is a byte with which a delimiter, a quote or an escape begins. `data` is everywhere the
address of a buffer, which goes on for 64 bytes behind its end: an array would have its references
counted all the time.
"""

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: ANN001, ANN202, ANN201, ARG001
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

ONE = np.uint64(1)
inlined = njit(nogil=True, forceinline=True)


class Mark(NamedTuple):
    """Up to 16 bytes as two words and the bits of them that count; no array, which is costly."""

    size: int
    low: np.uint64
    low_bits: np.uint64
    high: np.uint64
    high_bits: np.uint64


class Marks(NamedTuple):
    """The rules as kernels take them."""

    record: Mark
    field: Mark
    quote: Mark
    escape: Mark
    comment: Mark
    # The first bytes of record, field, quote, escape; one that there is not is the record's.
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
    # Whether a delimiter before a place tells that a field begins there.
    skims: bool
    # Whether a byte alone tells that a field delimiter stands there.
    simple: bool


def _load(builder, arguments, kind):
    """Load from address + place, which need not be aligned."""
    address, place = arguments
    pointer = builder.inttoptr(builder.add(address, place), kind.as_pointer())
    return builder.load(pointer, align=1)


@intrinsic
def load_marks(_context, data, place, first):
    """Return a bit for each of data[place:place + 64] that is one of some bytes."""
    wide = ir.VectorType(ir.IntType(8), 64)
    signature = types.uint64(data, place, first)

    def generate(_context, builder, signature, arguments):
        block = _load(builder, arguments[:2], wide)
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
def lowest(_context, word):
    """Return the place of the lowest bit of a word that is not zero."""
    signature = types.int64(types.uint64)

    def generate(_context, builder, _signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    del word
    return signature, generate


@intrinsic
def ones(_context, word):
    """Return how many bits of a word are one."""
    signature = types.int64(types.uint64)

    def generate(_context, builder, _signature, arguments):
        return builder.ctpop(arguments[0])

    return signature, generate


@inlined
def until(word, place, end):
    """Return the bits of data[place:place + 64] that lie before `end`."""
    if end - place < 64:
        word &= (ONE << np.uint64(end - place)) - ONE
    return word


@inlined
def marks_at(data, place, end, first):
    """Return the marks in data[place:place + 64] that lie before `end`."""
    return until(load_marks(data, place, first), place, end)


@intrinsic
def _word_at(_context, data, place):
    """Return data[place:place + 8] as a word."""
    signature = types.uint64(data, place)

    def generate(_context, builder, _signature, arguments):
        return _load(builder, arguments, ir.IntType(64))

    return signature, generate


@intrinsic
def byte_at(_context, data, place):
    """Return data[place]."""
    signature = types.uint8(data, place)

    def generate(_context, builder, _signature, arguments):
        return _load(builder, arguments, ir.IntType(8))

    return signature, generate


@inlined
def stands(data, place, end, mark):
    """Tell whether a mark stands at a place where its first byte does."""
    if mark.size == 1:
        return True
    return follows(data, place, end, mark)


@inlined
def follows(data, place, end, mark):
    """Tell whether a mark stands at a place, of which nothing is known; an empty one never does."""
    if mark.size == 0 or place + mark.size > end:
        return False
    if _word_at(data, place) & mark.low_bits != mark.low:
        return False
    return mark.size <= 8 or _word_at(data, place + 8) & mark.high_bits == mark.high


@intrinsic
def load_high(_context, data, place):
    """Return a bit for each of data[place:place + 64] that is beyond ASCII."""
    signature = types.uint64(data, place)
    wide = ir.VectorType(ir.IntType(8), 64)

    def generate(_context, builder, signature, arguments):
        block = _load(builder, arguments[:2], wide)
        high = builder.icmp_signed("<", block, ir.Constant(wide, [0] * 64))
        return builder.bitcast(high, ir.IntType(64))

    return signature, generate


@inlined
def are_ascii(data, place):
    """Tell whether data[place:place + 64] are ASCII."""
    return load_high(data, place) == np.uint64(0)


@intrinsic
def _escaped(_context, data, place):
    """Return a bit for each of data[place:place + 64] that a JSON string escapes."""
    signature = types.uint64(data, place)
    wide = ir.VectorType(ir.IntType(8), 64)

    def generate(_context, builder, signature, arguments):
        block = _load(builder, arguments[:2], wide)
        found = builder.icmp_unsigned("<", block, ir.Constant(wide, [32] * 64))
        for byte in b'"\\':
            equal = builder.icmp_unsigned("==", block, ir.Constant(wide, [byte] * 64))
            found = builder.or_(found, equal)
        return builder.bitcast(found, ir.IntType(64))

    return signature, generate


@inlined
def escaped_at(data, place, end):
    """Return the bytes of data[place:place + 64] before `end` that a JSON string escapes."""
    return until(_escaped(data, place), place, end)
