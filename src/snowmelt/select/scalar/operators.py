"""Operators on numbers: 64-bit integers, 38-digit decimals and floats, and `||` of texts."""

from __future__ import annotations

import math
import operator
from decimal import Decimal, DecimalException
from typing import TYPE_CHECKING, Any, TypeAlias

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError, row_error
from snowmelt.select.timestamps import Timestamp, parse_iso
from snowmelt.select.values import (
    DECIMALS,
    Number,
    excerpt,
    fit_int,
    infer_bool,
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


# --- Comparison of values: three-valued, with each dialect's rule for types that differ.

Pair: TypeAlias = tuple[Any, Any]

_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def relate(relation: str, left: object, right: object, dialect: Dialect) -> bool | None:
    """Return whether `left relation right` holds, None where that is not known.

    NULL and MISSING make it unknown. Numbers compare by value (a decimal with a float as
    floats), texts by their UTF-8 bytes, timestamps by instant. In `aws` a text next to a number,
    a timestamp or a boolean is read as one; where it cannot be, and where types differ
    otherwise, the answer is unknown.

    Raises:
        SelectError: In the Ceph dialects, where types differ; in `ceph-2020` it costs the row.
    """
    pair = _pair(relation, left, right, dialect)
    if pair is None:
        return None
    first, second = pair
    if isinstance(first, list | dict) and relation not in {"=", "<>"}:
        return None
    return _RELATIONS[relation](first, second)


def same(left: object, right: object) -> bool:
    """Return whether two values of one kind are equal, nothing inferred; NULLIF's rule."""
    if kind_of(left) != kind_of(right) or is_absent(left):
        return False
    pair = _alike(left, right)
    return pair is not None and bool(pair[0] == pair[1])


def precedes(left: object, right: object, dialect: Dialect) -> bool:
    """Return whether `left` is the smaller for MIN and MAX; NaN is greater than any number.

    Raises:
        SelectError: InvalidDataType, where the two cannot be compared.
    """
    if _is_nan(left) or _is_nan(right):
        return not _is_nan(left)
    answer = relate("<", left, right, dialect)
    if answer is None:
        kinds = f"{kind_of(left)} and {kind_of(right)}"
        raise SelectError("InvalidDataType", f"MIN and MAX cannot compare {kinds}")
    return answer


def _pair(relation: str, left: object, right: object, dialect: Dialect) -> Pair | None:
    """Bring two values to one type, or return None where they stay unknown to each other."""
    if is_absent(left) or is_absent(right):
        return None
    if dialect.is_ceph:
        return _ceph_pair(relation, left, right, dialect)
    pair = _alike(left, right)
    if pair is not None:
        return pair
    if isinstance(right, str):
        inferred = _inferred(right, left)
        return None if inferred is None else _alike(left, inferred)
    if isinstance(left, str):
        inferred = _inferred(left, right)
        return None if inferred is None else _alike(inferred, right)
    return None


def _alike(left: object, right: object) -> Pair | None:
    """Return two values of one kind so that Python compares them as SQL does, else None."""
    prepare = _PAIRS.get((type(left), type(right)))
    return None if prepare is None else prepare(left, right)


def _as_they_are(left: Any, right: Any) -> Pair:
    return left, right


def _bytewise(left: str, right: str) -> Pair:
    # Code points order as UTF-8 does, but for the stand-ins of bytes that are no UTF-8.
    if left.isascii() or right.isascii():
        return left, right
    return left.encode("utf-8", "surrogateescape"), right.encode("utf-8", "surrogateescape")


def _as_floats(left: float | Decimal, right: float | Decimal) -> Pair:
    return float(left), float(right)


def _instants(left: Timestamp, right: Timestamp) -> Pair:
    return left.instant, right.instant


_PAIRS: dict[tuple[type, type], Callable[[Any, Any], Pair]] = {
    (str, str): _bytewise,
    (Timestamp, Timestamp): _instants,
    (float, Decimal): _as_floats,
    (Decimal, float): _as_floats,
    **dict.fromkeys(
        [(kind, kind) for kind in (bool, int, float, Decimal, list, dict)], _as_they_are
    ),
    **dict.fromkeys([(int, float), (float, int), (int, Decimal), (Decimal, int)], _as_they_are),
}


def _inferred(text: str, other: object) -> object:
    if isinstance(other, bool):
        return infer_bool(text)
    if isinstance(other, int | float | Decimal):
        return infer_number(text)
    if isinstance(other, Timestamp):
        return parse_iso(text)
    return None


def _ceph_pair(relation: str, left: object, right: object, dialect: Dialect) -> Pair:
    """Bring two values to one type: truths are numbers, which `ceph` only asks for equality."""
    ordered = relation not in {"=", "<>"}
    odd = dialect is Dialect.CEPH and ordered and bool in {type(left), type(right)}
    pair = None if odd else _alike(_counted(left), _counted(right))
    if pair is None:
        kinds = f"{kind_of(left)} , {kind_of(right)}"
        message = f"operands not of the same type({kinds}), while comparision"  # codespell:ignore
        raise row_error("InvalidDataType", message, dialect)
    return pair


def _counted(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and value != value
