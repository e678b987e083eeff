"""Memory by its address, a byte or eight at a time, for compiled loops."""

# Types are what numba sees.
# ruff: noqa: ANN001, ANN202, ANN201, ARG001
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated"

from __future__ import annotations

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

WORD_BYTES = 8
_ONES = np.uint64(0x0101_0101_0101_0101)
_TOPS = np.uint64(0x8080_8080_8080_8080)
_QUOTES = np.uint64(0x2222_2222_2222_2222)
_BACKSLASHES = np.uint64(0x5C5C_5C5C_5C5C_5C5C)
_SPACES = np.uint64(0x2020_2020_2020_2020)


def _pointer(builder, arguments, bits):
    return builder.inttoptr(builder.add(*arguments[:2]), ir.IntType(bits).as_pointer())


@intrinsic
def byte_at(_context, memory, place):
    """Return the byte at `memory + place`."""

    def generate(_context, builder, _signature, arguments):
        byte = builder.load(_pointer(builder, arguments, 8))
        return builder.zext(byte, ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def word_at(_context, memory, place):
    """Return the eight bytes at `memory + place`, the first one lowest."""

    def generate(_context, builder, _signature, arguments):
        return builder.load(_pointer(builder, arguments, 64), align=1)

    return types.uint64(types.int64, types.int64), generate


@intrinsic
def put_word(_context, memory, place, word):
    """Write eight bytes at `memory + place`."""

    def generate(context, builder, _signature, arguments):
        builder.store(arguments[2], _pointer(builder, arguments, 64), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint64), generate


@intrinsic
def _lowest(_context, word):
    """Return the place of the lowest bit of a word that is not zero."""

    def generate(_context, builder, _signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@njit(nogil=True, forceinline=True)
def plain_bytes(word):
    """Return how many bytes of a word come before a quote, a backslash or a control character."""
    quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
    # A borrow marks bytes above one that is meant, never below.
    found = (
        ((quotes - _ONES) & ~quotes)
        | ((backslashes - _ONES) & ~backslashes)
        | ((word - _SPACES) & ~word)
    ) & _TOPS
    return WORD_BYTES if found == 0 else _lowest(found) >> 3
