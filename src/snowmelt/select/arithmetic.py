"""Operators on numbers: 64-bit integers, 38-digit decimals and floats, and `||` of texts."""

from __future__ import annotations

import math
import operator
from decimal import Decimal, DecimalException
from typing import TYPE_CHECKING, Any

from snowmelt.select.dialect import Dialect
from snowmelt.select.refusals import row_error
from snowmelt.select.values import (
    DECIMALS,
    Number,
    excerpt,
    fit_int,
    infer_number,
    is_absent,
    kind_of,
    print_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_WIDEST_POWER = 64
_SIMPLE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_DECIMAL: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": DECIMALS.add,
    "-": DECIMALS.subtract,
    "*": DECIMALS.multiply,
    "/": DECIMALS.divide,
    "%": DECIMALS.remainder,
    "^": DECIMALS.power,
}


def calculate(sign: str, left: object, right: object, dialect: Dialect) -> Number | None:
    """Return `left sign right` for + - * / % ^; NULL where either is.

    Two integers give an integer (`/` cuts towards zero); a float on either side makes a float,
    else decimals stay exact to 38 digits. A negative power of an integer is a float in `aws`; the
    Ceph dialects cut it to an integer, have floats for decimals, and for `%` cut the left side to
    an integer and take an integer alone on the right.

    Raises:
        SelectError: Where an operand is no number, a divisor is zero or the result is none;
            IntegerOverflow, where 64 bits do not hold it.
    """
    if is_absent(left) or is_absent(right):
        return None
    first, second = as_number(left, sign, dialect), as_number(right, sign, dialect)
    if second == 0 and sign in {"/", "%"}:
        text = "division by zero is not allowed" if sign == "/" else "Mod zero is not allowed"
        raise row_error("EvaluatorInvalidArguments", text, dialect)
    try:
        if isinstance(first, int) and isinstance(second, int):
            return _of_ints(sign, first, second, dialect)
        if sign == "%" and dialect.is_ceph:
            return _ceph_modulo(first, second, dialect)
        if isinstance(first, float) or isinstance(second, float):
            return _of_floats(sign, float(first), float(second))
        return _DECIMAL[sign](Decimal(first), Decimal(second))
    except (DecimalException, OverflowError, ValueError, ZeroDivisionError):
        shown = f"{excerpt(first)} {sign} {excerpt(second)}"
        raise row_error("EvaluatorInvalidArguments", f"{shown} has no result", dialect) from None


def negate(value: object, dialect: Dialect) -> Number | None:
    """Return `-value`; NULL for NULL.

    Raises:
        SelectError: Where the value is no number; IntegerOverflow, where 64 bits do not hold it.
    """
    if is_absent(value):
        return None
    number = as_number(value, "-", dialect)
    return fit_int(-number, dialect) if isinstance(number, int) else -number


def concatenate(left: object, right: object, dialect: Dialect) -> str | None:
    """Return the texts of both, one after the other; NULL where either is."""
    if is_absent(left) or is_absent(right):
        return None
    return print_value(left, dialect) + print_value(right, dialect)


def as_number(value: object, sign: str, dialect: Dialect) -> Number:
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
        inferred = infer_number(value)
        if inferred is not None:
            return inferred
    what = "illegal binary operation with string" if isinstance(value, str) else "not a number"
    message = f"{what}: {sign} was given {excerpt(value)} ({kind_of(value)}); CAST it to a number"
    raise row_error("InvalidDataType", message, dialect)


def _of_ints(sign: str, left: int, right: int, dialect: Dialect) -> Number:
    if sign in _SIMPLE:
        return fit_int(_SIMPLE[sign](left, right), dialect)
    if sign == "^":
        return _power(left, right, dialect)
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient
    return fit_int(quotient if sign == "/" else left - quotient * right, dialect)


def _ceph_modulo(left: Number, right: Number, dialect: Dialect) -> float:
    if not isinstance(right, int):
        raise row_error("InvalidDataType", "wrong use of modulo operation!", dialect)
    return math.fmod(math.trunc(left), right)


def _power(base: int, exponent: int, dialect: Dialect) -> Number:
    if exponent < 0:
        return math.trunc(math.pow(base, exponent)) if dialect.is_ceph else math.pow(base, exponent)
    if abs(base) <= 1:
        return base if exponent % 2 else base * base if exponent else 1
    if exponent > _WIDEST_POWER:
        message = f"{base} ^ {exponent} does not fit in 64 bits"
        raise row_error("IntegerOverflow", message, dialect)
    return fit_int(pow(base, exponent), dialect)


def _of_floats(sign: str, left: float, right: float) -> float:
    if sign == "/":
        return left / right
    if sign == "%":
        return math.fmod(left, right)
    if sign == "^":
        return math.pow(left, right)
    result: float = _SIMPLE[sign](left, right)
    return result
