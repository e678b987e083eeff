"""Vectorized arithmetic and comparison for integers, floats, strings and timestamps, and LIKE.

Arithmetic covers 64-bit integers and floats; decimals use the scalar evaluator. In `aws`, strings
that are compared with numbers or timestamps are parsed.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from snowmelt.kernels.numbers import parse_floats, parse_integers
from snowmelt.kernels.slices import Mask
from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.kernels.strings import compare_strings, match_like_pattern
from snowmelt.select.kernels.timestamps import parse_timestamps, to_utc_micros
from snowmelt.select.scalar.like_patterns import LikePattern, compile_like_pattern
from snowmelt.select.scalar.operators import COMPARISONS
from snowmelt.select.timestamps import Timestamp, parse_iso_timestamp
from snowmelt.select.values import parse_number_text
from snowmelt.select.vector.operands_and_frames import (
    ConstantOperand,
    KernelUnsupported,
    Operand,
    RecordFrame,
    combine_null_and_deferred_masks,
    vector_to_values,
)
from snowmelt.select.vectors import ValueVector, VectorKind

_INT64_MIN = -(2**63)


def calculate_vector(op: str, left: Operand, right: Operand, frame: RecordFrame) -> ValueVector:
    """Return `left op right`. Defers rows that overflow or divide by zero.

    Raises:
        KernelUnsupported: If no kernel supports the operator or its operands.
    """
    if op not in {"+", "-", "*", "/", "%"}:
        raise KernelUnsupported
    null, before = combine_null_and_deferred_masks(left, right, len(frame))
    deferred = before.copy()
    first = _to_numeric_operand(left, frame, deferred)
    second = _to_numeric_operand(right, frame, deferred)
    kinds = {_is_float(first), _is_float(second)}
    if Decimal in {type(first), type(second)}:
        if True not in kinds:
            raise KernelUnsupported
        first = float(first) if isinstance(first, Decimal) else first
        second = float(second) if isinstance(second, Decimal) else second
    if op == "%" and frame.dialect.is_ceph and True in kinds:
        raise KernelUnsupported
    with np.errstate(all="ignore"):
        if True in kinds:
            data = _calculate_floats(op, first, second, deferred)
            # Evaluating a deferred operand may raise an error, even if the other operand is NULL.
            return ValueVector(VectorKind.FLOAT, data, null, before | (deferred & ~null))
        whole = _calculate_integers(op, first, second, deferred)
    return ValueVector(VectorKind.INT, whole, null, deferred)


def negate_vector(operand: Operand) -> ValueVector:
    """Return `-operand`.

    Raises:
        KernelUnsupported: If the operand is not a vector of integers or floats.
    """
    if isinstance(operand, ConstantOperand) or operand.kind not in (
        VectorKind.INT,
        VectorKind.FLOAT,
    ):
        raise KernelUnsupported
    deferred = operand.deferred
    if operand.kind is VectorKind.INT:
        deferred = deferred | (operand.array == _INT64_MIN)
    with np.errstate(all="ignore"):
        return ValueVector(operand.kind, -operand.array, operand.null, deferred)


def _is_float(operand: object) -> bool:
    return isinstance(operand, float) or getattr(operand, "dtype", None) == np.float64


def _to_numeric_operand(
    operand: Operand, frame: RecordFrame, deferred: Mask
) -> NDArray[np.int64] | NDArray[np.float64] | int | float | Decimal:
    if isinstance(operand, ConstantOperand):
        value = operand.value
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise KernelUnsupported
        if isinstance(value, int) and not _INT64_MIN <= value < -_INT64_MIN:
            raise KernelUnsupported
        return value
    if operand.kind is VectorKind.TEXT and frame.dialect is Dialect.AWS:
        values, status = parse_integers(operand.slices)
        deferred |= (status != 0) & ~operand.null
        return values
    if operand.kind in (VectorKind.INT, VectorKind.FLOAT):
        return operand.array
    raise KernelUnsupported


def _calculate_floats(
    op: str, first: object, second: object, deferred: Mask
) -> NDArray[np.float64]:
    left = np.asarray(first, np.float64)
    right = np.asarray(second, np.float64)
    data: NDArray[np.float64]
    if op == "+":
        data = left + right
    elif op == "-":
        data = left - right
    elif op == "*":
        data = left * right
    else:
        deferred |= right == 0
        if op == "%":
            deferred |= ~np.isfinite(left) | ~np.isfinite(right)
            data = np.fmod(left, right)
        else:
            data = left / right
    return np.broadcast_to(data, deferred.shape)


def _calculate_integers(
    op: str, first: object, second: object, deferred: Mask
) -> NDArray[np.int64]:
    left = np.broadcast_to(np.asarray(first, np.int64), deferred.shape)
    right = np.broadcast_to(np.asarray(second, np.int64), deferred.shape)
    if op == "+":
        data = left + right
        deferred |= ((left ^ data) & (right ^ data)) < 0
    elif op == "-":
        data = left - right
        deferred |= ((left ^ right) & (left ^ data)) < 0
    elif op == "*":
        data = left * right
        deferred |= np.abs(left.astype(np.float64) * right.astype(np.float64)) > 2.0**62
    else:
        odd = (right == 0) | ((left == _INT64_MIN) & (right == -1))
        deferred |= odd
        divisor = np.where(odd, 1, right)
        rest = np.fmod(left, divisor)
        data = rest if op == "%" else (left - rest) // divisor
    return data


# An array of numbers, or one number for all rows.
ComparableNumbers: TypeAlias = "NDArray[np.int64] | NDArray[np.float64] | int | float"

NOT_A_NUMBER, TO_BE_EVALUATED = 1, 2
# Floats represent every integer up to this magnitude, and distinguish decimals of up to 15 digits.
MAX_EXACT_INTEGER = 2**53
MAX_EXACT_DIGITS = 15

_MIRRORED_OPERATORS = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compare_vectors(op: str, left: Operand, right: Operand, frame: RecordFrame) -> ValueVector:
    """Return the truth values of `left op right`.

    Raises:
        KernelUnsupported: If no kernel compares these operands.
    """
    if isinstance(left, ConstantOperand):
        left, right, op = right, left, _MIRRORED_OPERATORS[op]
    if isinstance(left, ConstantOperand):
        raise KernelUnsupported
    count = len(frame)
    null, deferred = combine_null_and_deferred_masks(left, right, count)
    if null.all():
        return ValueVector(VectorKind.BOOL, np.zeros(count, np.bool_), null, deferred)
    pair = {_classify_operand(left), _classify_operand(right)}
    if pair == {"text"}:
        data = _compare_texts(op, left, right)
    elif pair == {"number"} or (pair == {"number", "text"} and frame.dialect is Dialect.AWS):
        data = _compare_numbers(op, left, right, null, deferred)
    elif pair == {"instant"} or (pair == {"instant", "text"} and frame.dialect is Dialect.AWS):
        data = _compare_timestamps(op, left, right, null, deferred)
    elif pair == {"bool"} and op in {"=", "<>"}:
        other = right.value if isinstance(right, ConstantOperand) else right.array
        data = COMPARISONS[op](left.array, other)
    else:
        raise KernelUnsupported
    return ValueVector(VectorKind.BOOL, data, null, deferred)


def match_like_vector(
    subject: ValueVector, pattern: object, escape: object, dialect: Dialect
) -> ValueVector:
    """Return the truth values of `subject LIKE pattern ESCAPE escape`.

    Raises:
        KernelUnsupported: If an operand is not text, or the pattern is invalid.
    """
    if subject.kind is not VectorKind.TEXT or not isinstance(pattern, str):
        raise KernelUnsupported
    if escape is not None and not isinstance(escape, str):
        raise KernelUnsupported
    try:
        likeness = compile_like_pattern(pattern, escape, dialect)
    except SelectError:
        raise KernelUnsupported from None
    pieces = likeness.segments_without_classes
    if pieces is None:
        data, odd = _match_like_row_by_row(subject, likeness), np.zeros(len(subject), np.bool_)
    else:
        data, odd = match_like_pattern(subject.slices, pieces)
    return ValueVector(
        VectorKind.BOOL, data, subject.null, subject.deferred | (odd & ~subject.null)
    )


def _match_like_row_by_row(subject: ValueVector, pattern: LikePattern) -> Mask:
    """Match a pattern that no kernel supports (character classes), one text at a time."""
    known = ~(subject.null | subject.deferred)
    found: Mask = np.zeros(len(subject), np.bool_)
    texts = zip(vector_to_values(subject), known.tolist(), strict=True)
    found[:] = [there and pattern.matches(str(text)) for text, there in texts]
    return found


def _classify_operand(operand: Operand) -> str:
    if isinstance(operand, ValueVector):
        sorts = {
            VectorKind.INT: "number",
            VectorKind.FLOAT: "number",
            VectorKind.NUMERIC_TEXT: "number",
        }
        return sorts.get(operand.kind, operand.kind.value)
    value = operand.value
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float | Decimal):
        return "number"
    return {str: "text", Timestamp: "instant"}.get(type(value), "other")


def _compare_texts(op: str, left: ValueVector, right: Operand) -> Mask:
    if isinstance(right, ConstantOperand):
        order = compare_strings(left.slices, str(right.value).encode("utf-8", "surrogateescape"))
    else:
        order = compare_strings(left.slices, right.slices)
    found: Mask = COMPARISONS[op](order, 0)
    return found


def _compare_numbers(op: str, left: Operand, right: Operand, null: Mask, deferred: Mask) -> Mask:
    first, second = (
        to_comparable_numbers(left, null, deferred),
        to_comparable_numbers(right, null, deferred),
    )
    _defer_inexact(left, first, second, deferred)
    _defer_inexact(right, second, first, deferred)
    found = COMPARISONS[op](first, second)
    return np.broadcast_to(found, null.shape) if np.ndim(found) == 0 else found


def to_comparable_numbers(operand: Operand, null: Mask, deferred: Mask) -> ComparableNumbers:
    """Return an operand of a comparison as numbers.

    Sets `null` for texts that are not numbers, and `deferred` for texts that no kernel can parse.

    Raises:
        KernelUnsupported: If neither a float nor a 64-bit integer represents a constant exactly.
    """
    if isinstance(operand, ConstantOperand):
        value = operand.value
        number = parse_number_text(value) if isinstance(value, str) else value
        if number is None:
            null |= True
            return 0
        return to_exact_number(number)
    if operand.kind in (VectorKind.TEXT, VectorKind.NUMERIC_TEXT):
        values, status = parse_floats(operand.slices)
        known = ~(operand.null | operand.deferred)
        null |= known & (status == NOT_A_NUMBER)
        deferred |= known & (status == TO_BE_EVALUATED)
        return values
    return operand.array


def to_exact_number(value: object) -> int | float:
    """Return an integer or float that compares with any number as the constant does.

    Raises:
        KernelUnsupported: If there is no such integer or float.
    """
    if isinstance(value, float):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, Decimal) and value.is_finite():
        short = len(value.as_tuple().digits) <= MAX_EXACT_DIGITS
        if short and abs(value.adjusted()) <= MAX_EXACT_DIGITS:
            return float(value)
    raise KernelUnsupported


def _defer_inexact(
    operand: Operand, own: ComparableNumbers, other: ComparableNumbers, deferred: Mask
) -> None:
    """Defer integers beyond 2**53 in comparisons with floats.

    Raises:
        KernelUnsupported: If such an integer is a constant.
    """
    is_float = isinstance(other, float) or getattr(other, "dtype", None) == np.float64
    if not is_float:
        return
    if isinstance(own, int) and abs(own) > MAX_EXACT_INTEGER:
        raise KernelUnsupported
    if isinstance(operand, ValueVector) and operand.kind is VectorKind.INT:
        deferred |= (operand.array > MAX_EXACT_INTEGER) | (operand.array < -MAX_EXACT_INTEGER)


def _compare_timestamps(op: str, left: Operand, right: Operand, null: Mask, deferred: Mask) -> Mask:
    first, second = _to_epoch_micros(left, null, deferred), _to_epoch_micros(right, null, deferred)
    found = COMPARISONS[op](first, second)
    return np.broadcast_to(found, null.shape) if np.ndim(found) == 0 else found


def _to_epoch_micros(operand: Operand, null: Mask, deferred: Mask) -> NDArray[np.int64] | int:
    """Return microseconds since 1970 in UTC.

    Sets `null` if a constant is not a timestamp, and `deferred` for texts that the kernel does not
    parse.
    """
    if isinstance(operand, ConstantOperand):
        value = (
            parse_iso_timestamp(operand.value) if isinstance(operand.value, str) else operand.value
        )
        if value is None:
            null |= True
            return 0
        if not isinstance(value, Timestamp) or value.instant % 1000:
            raise KernelUnsupported
        return value.instant // 1000
    if operand.kind is VectorKind.TIMESTAMP:
        instants = operand.timestamps
    else:
        instants, odd = parse_timestamps(operand.slices)
        deferred |= odd & ~operand.null
    return to_utc_micros(instants)
