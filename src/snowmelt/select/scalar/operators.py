"""Scalar operators: arithmetic, string concatenation and three-valued comparison.

Numbers are 64-bit integers, 38-digit decimals and floats. Each dialect has its own rule for
comparing values of different types.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Decimal, DecimalException
from typing import Any, TypeAlias

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError, make_skippable_row_error
from snowmelt.select.timestamps import Timestamp, parse_iso_timestamp
from snowmelt.select.values import (
    DECIMAL_CONTEXT,
    Number,
    describe_type,
    format_excerpt,
    format_value,
    is_null_or_missing,
    normalize_zero,
    parse_boolean_text,
    parse_number_text,
    require_int64,
)

_MAX_POWER_EXPONENT = 64
_NUMBER_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_DECIMAL_OPERATIONS: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": DECIMAL_CONTEXT.add,
    "-": DECIMAL_CONTEXT.subtract,
    "*": DECIMAL_CONTEXT.multiply,
    "/": DECIMAL_CONTEXT.divide,
    "%": DECIMAL_CONTEXT.remainder,
    "^": DECIMAL_CONTEXT.power,
}


def calculate_arithmetic(op: str, left: object, right: object, dialect: Dialect) -> Number | None:
    """Return `left op right` for + - * / % ^, or NULL if either operand is NULL.

    Two integers give an integer; `/` truncates towards zero. A float operand gives a float. Other
    decimal results are exact to 38 digits. In `aws` an integer to a negative power gives a float.

    The Ceph dialects truncate such a power to an integer and convert decimals to floats. Their `%`
    truncates the left operand to an integer, and requires an integer on the right.

    Raises:
        SelectError: If an operand is not a number, a divisor is zero, the result is undefined, or it
            exceeds 64 bits (IntegerOverflow).
    """
    if is_null_or_missing(left) or is_null_or_missing(right):
        return None
    first, second = to_number(left, op, dialect), to_number(right, op, dialect)
    if second == 0 and op in {"/", "%"}:
        text = "division by zero is not allowed" if op == "/" else "Mod zero is not allowed"
        raise make_skippable_row_error("EvaluatorInvalidArguments", text, dialect)
    try:
        if isinstance(first, int) and isinstance(second, int):
            return _calculate_ints(op, first, second, dialect)
        if op == "%" and dialect.is_ceph:
            return _calculate_ceph_modulo(first, second, dialect)
        if isinstance(first, float) or isinstance(second, float):
            return _calculate_floats(op, float(first), float(second))
        return normalize_zero(_DECIMAL_OPERATIONS[op](Decimal(first), Decimal(second)))
    except (DecimalException, OverflowError, ValueError, ZeroDivisionError):
        shown = f"{format_excerpt(first)} {op} {format_excerpt(second)}"
        raise make_skippable_row_error(
            "EvaluatorInvalidArguments", f"{shown} has no result", dialect
        ) from None


def negate(value: object, dialect: Dialect) -> Number | None:
    """Return `-value`, or NULL for NULL.

    Raises:
        SelectError: If the value is not a number, or the result exceeds 64 bits (IntegerOverflow).
    """
    if is_null_or_missing(value):
        return None
    number = to_number(value, "-", dialect)
    if isinstance(number, int):
        return require_int64(-number, dialect)
    # The operator of `decimal` would round to 28 digits.
    return normalize_zero(number.copy_negate()) if isinstance(number, Decimal) else -number


def concatenate(left: object, right: object, dialect: Dialect) -> str | None:
    """Return the concatenated texts of both values, or NULL if either is NULL."""
    if is_null_or_missing(left) or is_null_or_missing(right):
        return None
    return format_value(left, dialect) + format_value(right, dialect)


def to_number(value: object, op: str, dialect: Dialect) -> Number:
    """Convert an operand to a number.

    `aws` parses text. `ceph-2020` converts booleans to 0 or 1. The Ceph dialects convert decimals to
    floats.

    Raises:
        SelectError: If the operand is not a number (InvalidDataType).
    """
    if isinstance(value, bool):
        if dialect is Dialect.CEPH_2020:
            return int(value)
    elif isinstance(value, int | float | Decimal):
        return float(value) if dialect.is_ceph and isinstance(value, Decimal) else value
    elif isinstance(value, str) and not dialect.is_ceph:
        inferred = parse_number_text(value)
        if inferred is not None:
            return inferred
    what = "illegal binary operation with string" if isinstance(value, str) else "not a number"
    message = (
        f"{what}: {op} got {format_excerpt(value)} ({describe_type(value)}); CAST it to a number"
    )
    raise make_skippable_row_error("InvalidDataType", message, dialect)


def _calculate_ints(op: str, left: int, right: int, dialect: Dialect) -> Number:
    if op in _NUMBER_OPERATIONS:
        return require_int64(_NUMBER_OPERATIONS[op](left, right), dialect)
    if op == "^":
        return _calculate_int_power(left, right, dialect)
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient
    return require_int64(quotient if op == "/" else left - quotient * right, dialect)


def _calculate_ceph_modulo(left: Number, right: Number, dialect: Dialect) -> float:
    if not isinstance(right, int):
        raise make_skippable_row_error("InvalidDataType", "wrong use of modulo operation!", dialect)
    return math.fmod(math.trunc(left), right)


def _calculate_int_power(base: int, exponent: int, dialect: Dialect) -> Number:
    if exponent < 0:
        return math.trunc(math.pow(base, exponent)) if dialect.is_ceph else math.pow(base, exponent)
    if abs(base) <= 1:
        return base if exponent % 2 else base * base if exponent else 1
    if exponent > _MAX_POWER_EXPONENT:
        message = f"{base} ^ {exponent} does not fit in 64 bits"
        raise make_skippable_row_error("IntegerOverflow", message, dialect)
    return require_int64(pow(base, exponent), dialect)


def _calculate_floats(op: str, left: float, right: float) -> float:
    if op == "/":
        return left / right
    if op == "%":
        return math.fmod(left, right)
    if op == "^":
        return math.pow(left, right)
    result: float = _NUMBER_OPERATIONS[op](left, right)
    return result


ComparablePair: TypeAlias = tuple[Any, Any]

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Comparison functions for two values of one type, or two arrays of such values."""


def compare_values(op: str, left: object, right: object, dialect: Dialect) -> bool | None:
    """Compare two values with `op`, or return None if the result is unknown.

    A comparison with NULL or MISSING is unknown. Numbers compare by value (a decimal and a float as
    floats), texts by UTF-8 bytes, and timestamps by instant.

    `aws` parses a text that is compared with a number, timestamp or boolean. The result is unknown if
    the text cannot be parsed, or if the types differ otherwise.

    Raises:
        SelectError: If types differ in a Ceph dialect. In `ceph-2020` the error drops the row.
    """
    pair = _make_comparable_pair(op, left, right, dialect)
    if pair is None:
        return None
    first, second = pair
    if isinstance(first, list | dict) and op not in {"=", "<>"}:
        return None
    holds: bool = COMPARISONS[op](first, second)
    return holds


def are_equal_without_inference(left: object, right: object) -> bool:
    """Return True if two values are of one kind and equal, without parsing text (the rule of NULLIF)."""
    if describe_type(left) != describe_type(right) or is_null_or_missing(left):
        return False
    pair = _convert_to_common_type(left, right)
    return pair is not None and bool(pair[0] == pair[1])


def is_less_for_min_max(left: object, right: object, dialect: Dialect) -> bool:
    """Return True if `left` is less than `right` for MIN and MAX. NaN is greater than any number.

    Raises:
        SelectError: If the values cannot be compared (InvalidDataType).
    """
    if _is_nan(left) or _is_nan(right):
        return not _is_nan(left)
    answer = compare_values("<", left, right, dialect)
    if answer is None:
        kinds = f"{describe_type(left)} and {describe_type(right)}"
        raise SelectError("InvalidDataType", f"MIN and MAX cannot compare {kinds}")
    return answer


def _make_comparable_pair(
    op: str, left: object, right: object, dialect: Dialect
) -> ComparablePair | None:
    """Convert two values to a common type, or return None if their comparison is unknown."""
    if is_null_or_missing(left) or is_null_or_missing(right):
        return None
    if dialect.is_ceph:
        return _make_ceph_pair(op, left, right, dialect)
    pair = _convert_to_common_type(left, right)
    if pair is not None:
        return pair
    if isinstance(right, str):
        inferred = _infer_value(right, left)
        return None if inferred is None else _convert_to_common_type(left, inferred)
    if isinstance(left, str):
        inferred = _infer_value(left, right)
        return None if inferred is None else _convert_to_common_type(inferred, right)
    return None


def _convert_to_common_type(left: object, right: object) -> ComparablePair | None:
    """Convert two values of one kind so that Python compares them as SQL does, or return None."""
    prepare = _PAIR_CONVERTERS.get((type(left), type(right)))
    return None if prepare is None else prepare(left, right)


def _pair_unchanged(left: Any, right: Any) -> ComparablePair:
    return left, right


def _pair_as_utf8(left: str, right: str) -> ComparablePair:
    # Code points sort as UTF-8 does, except for surrogate escapes of invalid bytes.
    if left.isascii() or right.isascii():
        return left, right
    return left.encode("utf-8", "surrogateescape"), right.encode("utf-8", "surrogateescape")


def _pair_as_floats(left: float | Decimal, right: float | Decimal) -> ComparablePair:
    return float(left), float(right)


def _pair_as_epoch_nanos(left: Timestamp, right: Timestamp) -> ComparablePair:
    return left.instant, right.instant


_PAIR_CONVERTERS: dict[tuple[type, type], Callable[[Any, Any], ComparablePair]] = {
    (str, str): _pair_as_utf8,
    (Timestamp, Timestamp): _pair_as_epoch_nanos,
    (float, Decimal): _pair_as_floats,
    (Decimal, float): _pair_as_floats,
    **dict.fromkeys(
        [(kind, kind) for kind in (bool, int, float, Decimal, list, dict)], _pair_unchanged
    ),
    **dict.fromkeys([(int, float), (float, int), (int, Decimal), (Decimal, int)], _pair_unchanged),
}


def _infer_value(text: str, other: object) -> object:
    if isinstance(other, bool):
        return parse_boolean_text(text)
    if isinstance(other, int | float | Decimal):
        return parse_number_text(text)
    if isinstance(other, Timestamp):
        return parse_iso_timestamp(text)
    return None


def _make_ceph_pair(op: str, left: object, right: object, dialect: Dialect) -> ComparablePair:
    """Convert two values to a common type. Booleans become integers; `ceph` does not order them."""
    ordered = op not in {"=", "<>"}
    odd = dialect is Dialect.CEPH and ordered and bool in {type(left), type(right)}
    pair = None if odd else _convert_to_common_type(_boolean_to_int(left), _boolean_to_int(right))
    if pair is None:
        kinds = f"{describe_type(left)} , {describe_type(right)}"
        message = f"operands not of the same type({kinds}), while comparision"  # codespell:ignore
        raise make_skippable_row_error("InvalidDataType", message, dialect)
    return pair


def _boolean_to_int(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and value != value
