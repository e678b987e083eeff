"""Scalar operators: arithmetic, string concatenation and three-valued comparison.

Numbers are 64-bit integers, 38-digit decimals and floats. Each dialect has its own rule for the
comparison of different types.
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
    """Return `left sign right` for + - * / % ^; NULL where either is.

    Two integers give an integer (`/` cuts towards zero); a float on either side makes a float,
    else decimals stay exact to 38 digits. A negative power of an integer is a float in `aws`; the
    Ceph dialects cut it to an integer, have floats for decimals, and for `%` cut the left side to
    an integer and take an integer alone on the right.

    Raises:
        SelectError: Where an operand is no number, a divisor is zero or the result is none;
            IntegerOverflow, where 64 bits do not hold it.
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
        return _DECIMAL_OPERATIONS[op](Decimal(first), Decimal(second))
    except (DecimalException, OverflowError, ValueError, ZeroDivisionError):
        shown = f"{format_excerpt(first)} {op} {format_excerpt(second)}"
        raise make_skippable_row_error(
            "EvaluatorInvalidArguments", f"{shown} has no result", dialect
        ) from None


def negate(value: object, dialect: Dialect) -> Number | None:
    """Return `-value`; NULL for NULL.

    Raises:
        SelectError: Where the value is no number; IntegerOverflow, where 64 bits do not hold it.
    """
    if is_null_or_missing(value):
        return None
    number = to_number(value, "-", dialect)
    return require_int64(-number, dialect) if isinstance(number, int) else -number


def concatenate(left: object, right: object, dialect: Dialect) -> str | None:
    """Return the texts of both, one after the other; NULL where either is."""
    if is_null_or_missing(left) or is_null_or_missing(right):
        return None
    return format_value(left, dialect) + format_value(right, dialect)


def to_number(value: object, op: str, dialect: Dialect) -> Number:
    """Return an operand as a number.

    In `aws` a text is read as one; in `ceph-2020` a truth is 0 or 1; decimals are floats in Ceph.

    Raises:
        SelectError: InvalidDataType, where it is none.
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
    message = f"{what}: {op} was given {format_excerpt(value)} ({describe_type(value)}); CAST it to a number"
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
"""What compares two values of one type, or two arrays of them."""


def compare_values(op: str, left: object, right: object, dialect: Dialect) -> bool | None:
    """Return whether `left relation right` holds, None where that is not known.

    NULL and MISSING make it unknown. Numbers compare by value (a decimal with a float as
    floats), texts by their UTF-8 bytes, timestamps by instant. In `aws` a text next to a number,
    a timestamp or a boolean is read as one; where it cannot be, and where types differ
    otherwise, the answer is unknown.

    Raises:
        SelectError: In the Ceph dialects, where types differ; in `ceph-2020` it costs the row.
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
    """Return whether two values of one kind are equal, nothing inferred; NULLIF's rule."""
    if describe_type(left) != describe_type(right) or is_null_or_missing(left):
        return False
    pair = _convert_to_common_type(left, right)
    return pair is not None and bool(pair[0] == pair[1])


def is_less_for_min_max(left: object, right: object, dialect: Dialect) -> bool:
    """Return whether `left` is the smaller for MIN and MAX; NaN is greater than any number.

    Raises:
        SelectError: InvalidDataType, where the two cannot be compared.
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
    """Bring two values to one type, or return None where they stay unknown to each other."""
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
    """Return two values of one kind so that Python compares them as SQL does, else None."""
    prepare = _PAIR_CONVERTERS.get((type(left), type(right)))
    return None if prepare is None else prepare(left, right)


def _pair_unchanged(left: Any, right: Any) -> ComparablePair:
    return left, right


def _pair_as_utf8(left: str, right: str) -> ComparablePair:
    # Code points order as UTF-8 does, but for the stand-ins of bytes that are no UTF-8.
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
    """Bring two values to one type: truths are numbers, which `ceph` only asks for equality."""
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
