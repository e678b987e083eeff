"""Numbers of whole columns as a pipe computes with them: exact decimals, and floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.schema.arrow import decimal_from_int64, int64_of_decimal, nulls_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_types = pa.types
_INT_DIGITS = 18
_MOST_DIGITS = 38
_CONTEXT_DIGITS = 28
_TEXT_SCALE = 9
_PLAIN_TEXT = rf"^-?[0-9]{{1,{_INT_DIGITS}}}(\.[0-9]{{1,{_TEXT_SCALE}}})?$"
_MORE_DIGITS, _LEAST_DIGITS = 6, 12
_LARGEST = 4e18
SIGNS = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}


class Undone(Exception):
    """Columns do not give what rows would; computed row by row, then."""


class Doubting(Protocol):
    """Who takes note of rows in doubt."""

    def doubt(self, mask: pa.Array) -> None:
        """Take note of rows; null is no doubt."""


@dataclass(frozen=True, slots=True)
class Vector:
    """Values of an expression for all rows.

    `exponent` is that of each decimal in Python's form, the scale's negative; None where they
    differ.
    """

    values: pa.Array
    exponent: int | None = None

    @property
    def type(self) -> pa.DataType:
        """Which values these are."""
        return self.values.type

    def texts(self) -> pa.Array:
        """Return the values as texts.

        Raises:
            Undone: They have others than Arrow writes.
        """
        if _types.is_string(self.type):
            return self.values
        if _types.is_integer(self.type) or _types.is_boolean(self.type):
            return self.values.cast(pa.string())
        raise Undone


def vector_of(stored: pa.Array) -> Vector:
    """Return decimals that a cast gave; such of no scale are integers."""
    if stored.type.scale:
        return Vector(stored, -stored.type.scale)
    narrow = _narrow(stored)
    return Vector(narrow.cast(pa.int64()) if narrow.type.precision <= _INT_DIGITS else stored, 0)


def calculated(work: Doubting, sign: str, left: Vector, right: Vector) -> Vector:
    """Return the sum, difference, product or quotient."""
    if _types.is_floating(left.type) or _types.is_floating(right.type):
        first, second = _floats(left), _floats(right)
        if sign == "/":
            work.doubt(pc.equal(second, 0.0))
        found = SIGNS[sign](first, second)
        work.doubt(pc.invert(pc.is_finite(found)))
        return Vector(found)
    first, second = _decimals(work, left), _decimals(work, right)
    if sign == "/":
        return _quotient(work, first, second)
    one, other = _narrow(first.values), _narrow(second.values)
    known = None if first.exponent is None or second.exponent is None else 0
    if sign == "*":
        exponent = None if known is None else (first.exponent or 0) + (second.exponent or 0)
        return Vector(_narrow(pc.multiply(one, other)), exponent)
    exponent = None if known is None else min(first.exponent or 0, second.exponent or 0)
    return Vector(_narrow(SIGNS[sign](one, other)), exponent)


def absolute(work: Doubting, given: Vector) -> Vector:
    """Return the numbers without their signs."""
    if _types.is_floating(given.type) or _types.is_integer(given.type):
        return Vector(pc.abs(given.values))
    found = _decimals(work, given)
    narrow = _narrow(found.values)
    if narrow.type.precision > _CONTEXT_DIGITS:
        raise Undone
    return Vector(pc.abs(narrow), found.exponent)


def rounded(work: Doubting, how: str, given: Vector, digits: int) -> Vector:
    """Return the numbers with so many digits behind the point, halves away from zero."""
    if _types.is_floating(given.type):
        if how == "ROUND":
            raise Undone
        return Vector(pc.ceil(given.values) if how == "CEIL" else pc.floor(given.values))
    narrow = _narrow(_decimals(work, given).values)
    if narrow.type.precision >= _MOST_DIGITS:
        raise Undone
    # One digit more, into which 9.9 may go.
    wide = narrow.cast(pa.decimal128(narrow.type.precision + 1, narrow.type.scale))
    if how == "CEIL":
        return Vector(pc.ceil(wide))
    if how == "FLOOR":
        return Vector(pc.floor(wide))
    if digits >= wide.type.scale:
        return Vector(wide)
    return Vector(pc.round(wide, digits, "half_towards_infinity"))


def _floats(given: Vector) -> pa.Array:
    if _types.is_floating(given.type):
        return given.values
    if not _types.is_integer(given.type):
        raise Undone
    return given.values.cast(pa.float64(), safe=False)


def _decimals(work: Doubting, given: Vector) -> Vector:
    """Return exact numbers; texts that are none in an obvious way are in doubt."""
    kind = given.type
    if _types.is_decimal(kind):
        return given
    if _types.is_integer(kind):
        return Vector(given.values.cast(pa.decimal128(19, 0)), 0)
    if not _types.is_string(kind):
        raise Undone
    plain = pc.match_substring_regex(given.values, _PLAIN_TEXT)
    work.doubt(pc.invert(plain))
    texts = pc.if_else(plain, given.values, pa.scalar(None, pa.string()))
    return Vector(texts.cast(pa.decimal128(_INT_DIGITS + _TEXT_SCALE, _TEXT_SCALE)))


def _narrow(decimals: pa.Array) -> pa.Array:
    """Return the same in a type of as many digits as there are: results have more."""
    scale = decimals.type.scale
    bounds = pc.min_max(decimals)
    largest = max(
        (abs(each) for side in ("min", "max") if (each := bounds[side].as_py()) is not None),
        default=0,
    )
    whole = len(str(int(largest))) if largest >= 1 else 0
    return decimals.cast(pa.decimal128(max(whole + scale, 1), scale))


def _quotient(work: Doubting, left: Vector, right: Vector) -> Vector:
    """Divide exactly, halves away from zero, with six digits more than the dividend has."""
    if left.exponent is None or right.exponent is None:
        raise Undone
    scale, other = -left.exponent, -right.exponent
    digits = max(scale, min(scale + _MORE_DIGITS, _LEAST_DIGITS))
    if left.type.scale != scale or right.type.scale != other:
        raise Undone
    dividend, divisor = (_int64(each.values) for each in (left, right))
    power = 10 ** (digits - scale + other)
    too_large = np.abs(dividend.astype(np.float64)) * float(power) >= _LARGEST
    zero = divisor == 0
    # A row without a value is in no doubt, whatever stands in its place.
    nulls = nulls_of(left.values) | nulls_of(right.values)
    work.doubt(pa.array((too_large | zero) & ~nulls))
    top = np.where(too_large, 0, dividend) * np.int64(power)
    bottom = np.where(zero, 1, divisor)
    size = np.abs(top) // np.abs(bottom)
    rest = np.abs(top) % np.abs(bottom)
    size += rest >= np.abs(bottom) - rest
    signed = np.where((top < 0) != (bottom < 0), -size, size)
    return Vector(decimal_from_int64(signed, nulls, 19, digits), -digits)


def _int64(decimals: pa.Array) -> NDArray[np.int64]:
    if _narrow(decimals).type.precision > _INT_DIGITS:
        raise Undone
    return int64_of_decimal(decimals)
