"""Vectorized functions: casts, date parts of timestamps, and string functions for ASCII text.

Defers two kinds of strings to the scalar evaluator: those that a cast kernel cannot parse, and
those with non-ASCII bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from snowmelt.kernels.numbers import parse_floats, parse_integers
from snowmelt.kernels.slices import StringSlices
from snowmelt.select.dialect import Dialect
from snowmelt.select.kernels.strings import mask_non_ascii, to_lower_ascii, to_upper_ascii
from snowmelt.select.kernels.timestamps import extract_packed_field, parse_timestamps
from snowmelt.select.sql.ast import CallExpr, CastExpr
from snowmelt.select.vector.operands_and_frames import (
    ConstantOperand,
    KernelUnsupported,
    Operand,
    RecordFrame,
)
from snowmelt.select.vectors import ValueVector, VectorKind

_INT64_END = 2.0**63


def cast_vector(node: CastExpr, value: ValueVector, frame: RecordFrame) -> ValueVector:
    """Convert values to another type.

    Raises:
        KernelUnsupported: If no kernel converts these types.
    """
    if value.kind is VectorKind.OBJECT and value.null.all():
        return value
    handler = _CASTS.get(node.type)
    if handler is None:
        raise KernelUnsupported
    return handler(value, frame)


def _cast_to_int(value: ValueVector, _frame: RecordFrame) -> ValueVector:
    if value.kind is VectorKind.INT:
        return value
    if value.kind is VectorKind.BOOL:
        return ValueVector(VectorKind.INT, value.array.astype(np.int64), value.null, value.deferred)
    if value.kind is VectorKind.TEXT:
        numbers, status = parse_integers(value.slices)
        return ValueVector(
            VectorKind.INT, numbers, value.null, value.deferred | ((status != 0) & ~value.null)
        )
    if value.kind is VectorKind.FLOAT:
        inside = (value.array >= -_INT64_END) & (value.array < _INT64_END)
        with np.errstate(all="ignore"):
            whole = np.where(inside, value.array, 0).astype(np.int64)
        return ValueVector(
            VectorKind.INT, whole, value.null, value.deferred | ~(inside | value.null)
        )
    raise KernelUnsupported


def _cast_to_float(value: ValueVector, _frame: RecordFrame) -> ValueVector:
    if value.kind is VectorKind.FLOAT:
        return value
    if value.kind in (VectorKind.INT, VectorKind.BOOL):
        return ValueVector(
            VectorKind.FLOAT, value.array.astype(np.float64), value.null, value.deferred
        )
    if value.kind in (VectorKind.TEXT, VectorKind.NUMERIC_TEXT):
        numbers, status = parse_floats(value.slices)
        deferred = value.deferred | ((status != 0) & ~value.null)
        return ValueVector(VectorKind.FLOAT, numbers, value.null, deferred)
    raise KernelUnsupported


def _cast_to_string(value: ValueVector, _frame: RecordFrame) -> ValueVector:
    if value.kind not in (VectorKind.TEXT, VectorKind.NUMERIC_TEXT):
        raise KernelUnsupported
    return ValueVector(VectorKind.TEXT, value.data, value.null, value.deferred)


def _cast_to_timestamp(value: ValueVector, frame: RecordFrame) -> ValueVector:
    if value.kind is VectorKind.TIMESTAMP:
        return value
    if value.kind is not VectorKind.TEXT:
        raise KernelUnsupported
    return parse_timestamp_vector(value, frame)


def parse_timestamp_vector(value: ValueVector, frame: RecordFrame) -> ValueVector:
    """Parse ISO timestamps. Defers texts that the kernel does not parse.

    Raises:
        KernelUnsupported: If the dialect is `ceph-2020`, which has other timestamp formats.
    """
    if frame.dialect is Dialect.CEPH_2020:
        raise KernelUnsupported
    instants, odd = parse_timestamps(value.slices)
    return ValueVector(
        VectorKind.TIMESTAMP, instants, value.null, value.deferred | (odd & ~value.null)
    )


_CASTS: dict[str, Callable[[ValueVector, RecordFrame], ValueVector]] = {
    "INT": _cast_to_int,
    "FLOAT": _cast_to_float,
    "STRING": _cast_to_string,
    "TIMESTAMP": _cast_to_timestamp,
}


_DATE_PARTS = frozenset({"year", "month", "day", "hour", "minute", "second"})


def call_vector_function(
    node: CallExpr, arguments: Sequence[Operand], frame: RecordFrame
) -> Operand:
    """Return the values of a function.

    Raises:
        KernelUnsupported: If no kernel supports the function or its arguments.
    """
    handler = _VECTOR_FUNCTIONS.get(node.function)
    if handler is None:
        raise KernelUnsupported
    return handler(arguments, frame)


def _extract(arguments: Sequence[Operand], frame: RecordFrame) -> Operand:
    part, moment = arguments
    if (
        not isinstance(part, ConstantOperand)
        or part.value not in _DATE_PARTS
        or isinstance(moment, ConstantOperand)
    ):
        raise KernelUnsupported
    if moment.kind is VectorKind.TEXT and frame.dialect is Dialect.AWS:
        moment = parse_timestamp_vector(moment, frame)
    if moment.kind is not VectorKind.TIMESTAMP:
        raise KernelUnsupported
    data = extract_packed_field(str(part.value), moment.timestamps)
    return ValueVector(VectorKind.INT, data, moment.null, moment.deferred)


def _require_text_vector(operand: Operand) -> ValueVector:
    if isinstance(operand, ConstantOperand) or operand.kind is not VectorKind.TEXT:
        raise KernelUnsupported
    return operand


def _require_integer_constant(operand: Operand) -> int:
    if not isinstance(operand, ConstantOperand) or type(operand.value) is not int:
        raise KernelUnsupported
    if abs(operand.value) >= 2**31:
        raise KernelUnsupported
    return operand.value


def _defer_non_ascii(text: ValueVector) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the rows to defer: those already deferred, and non-ASCII texts."""
    odd = mask_non_ascii(text.slices.buffer, text.slices.start, text.slices.end)
    return text.deferred | (odd & ~text.null)


def _char_length(arguments: Sequence[Operand], _frame: RecordFrame) -> Operand:
    text = _require_text_vector(arguments[0])
    size = (text.slices.end - text.slices.start).astype(np.int64)
    return ValueVector(VectorKind.INT, size, text.null, _defer_non_ascii(text))


def _substring(arguments: Sequence[Operand], frame: RecordFrame) -> Operand:
    text = _require_text_vector(arguments[0])
    start = _require_integer_constant(arguments[1])
    length = _require_integer_constant(arguments[2]) if len(arguments) > 2 else None
    if length is not None and length < 0:
        raise KernelUnsupported
    if frame.dialect is Dialect.AWS:
        start = max(start, 1)
    slices = text.slices
    size = (slices.end - slices.start).astype(np.int64)
    end = size if length is None else np.clip(size, 0, max(start + length - 1, 0))
    begin = np.minimum(max(start, 1) - 1, end)
    cut = StringSlices(
        slices.buffer,
        (slices.start + begin).astype(np.int32),
        (slices.start + end).astype(np.int32),
        np.zeros(len(slices), np.uint8),
    )
    return ValueVector(VectorKind.TEXT, cut, text.null, _defer_non_ascii(text))


def _substr(arguments: Sequence[Operand], frame: RecordFrame) -> Operand:
    """Return the result of `substring`. In `ceph-2020`, defer rows whose range is outside the text."""
    found = _substring(arguments, frame)
    if frame.dialect is not Dialect.CEPH_2020 or not isinstance(found, ValueVector):
        return found
    text = _require_text_vector(arguments[0])
    start = _require_integer_constant(arguments[1])
    size = text.slices.end - text.slices.start
    odd = np.full(len(text), start <= 0)
    if len(arguments) > 2:
        odd |= start - 1 + _require_integer_constant(arguments[2]) > size
    odd |= start > size
    return ValueVector(
        VectorKind.TEXT, found.data, found.null, found.deferred | (odd & ~found.null)
    )


def _map_ascii(
    arguments: Sequence[Operand],
    _frame: RecordFrame,
    convert: Callable[[StringSlices], StringSlices],
) -> Operand:
    text = _require_text_vector(arguments[0])
    return ValueVector(VectorKind.TEXT, convert(text.slices), text.null, _defer_non_ascii(text))


_VECTOR_FUNCTIONS: dict[str, Callable[[Sequence[Operand], RecordFrame], Operand]] = {
    "extract": _extract,
    "char_length": _char_length,
    "character_length": _char_length,
    "substring": _substring,
    "substr": _substr,
    "lower": partial(_map_ascii, convert=to_lower_ascii),
    "upper": partial(_map_ascii, convert=to_upper_ascii),
}
