"""Intrinsics for the kernels of this package: loads, stores and masks of 32 bytes at an address.

Addresses are integers, because an array argument costs reference counting on each call. A load may
extend up to `PADDING_BYTES` past the end of a text.
"""

from __future__ import annotations

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

# No annotations, because Numba infers the types.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call"


def _load(builder, address, kind):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _to_word(builder, mask):
    return builder.zext(builder.bitcast(mask, ir.IntType(32)), ir.IntType(64))


def _make_store(bits, kind):
    """Return an intrinsic that stores an integer at `index` of an array at `address`."""

    @intrinsic
    def store(_context, address, index, value):
        signature = types.void(types.intp, types.intp, kind)

        def generate(context, builder, _signature, arguments):
            place, index, value = arguments
            pointer = builder.inttoptr(place, ir.IntType(bits).as_pointer())
            builder.store(value, builder.gep(pointer, [index]))
            return context.get_dummy_value()

        del address, index, value
        return signature, generate

    return store


store_byte = _make_store(8, types.uint8)
store_position = _make_store(32, types.int32)
store_word = _make_store(64, types.int64)


@intrinsic
def find_equal(_context, data, position, other):
    """Return a mask of the bytes of data[position:position + 32] equal to those at `other`."""
    signature = types.uint64(data, position, other)

    def generate(_context, builder, _signature, arguments):
        wide = ir.VectorType(ir.IntType(8), 32)
        block = _load(builder, builder.add(*arguments[:2]), wide)
        return _to_word(
            builder, builder.icmp_unsigned("==", block, _load(builder, arguments[2], wide))
        )

    return signature, generate


@intrinsic
def find_special(_context, data, position):
    """Return a mask of quotes, backslashes and control bytes in data[position:position + 32]."""
    signature = types.uint64(data, position)

    def generate(_context, builder, _signature, arguments):
        wide = ir.VectorType(ir.IntType(8), 32)
        block = _load(builder, builder.add(*arguments), wide)
        found = builder.icmp_unsigned("<", block, ir.Constant(wide, [32] * 32))
        for byte in b'"\\':
            equal = builder.icmp_unsigned("==", block, ir.Constant(wide, [byte] * 32))
            found = builder.or_(found, equal)
        return _to_word(builder, found)

    return signature, generate


@intrinsic
def find_digits(_context, data, position):
    """Return a mask of the digits in data[position:position + 32]."""
    signature = types.uint64(data, position)

    def generate(_context, builder, _signature, arguments):
        wide = ir.VectorType(ir.IntType(8), 32)
        block = _load(builder, builder.add(*arguments), wide)
        above = builder.sub(block, ir.Constant(wide, [48] * 32))
        return _to_word(builder, builder.icmp_unsigned("<", above, ir.Constant(wide, [10] * 32)))

    return signature, generate
