"""Numbers: what FIXED, REAL and BOOLEAN take (specification of v1, §5.4)."""

from __future__ import annotations

import decimal
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from snowmelt.schema.floats import float_text
from snowmelt.schema.refusals import number_out_of_range, wrong_type, wrong_value

if TYPE_CHECKING:
    from snowmelt.schema.types import Column

BLANKS = "".join(map(chr, range(33)))
"""What the wire's trimming removes: everything up to the blank."""

_NUMBERS = (int, float, Decimal, np.integer, np.floating)

_HALF_UP = decimal.Context(
    prec=100,
    rounding=decimal.ROUND_HALF_UP,
    Emax=decimal.MAX_EMAX,
    Emin=decimal.MIN_EMIN,
    traps=[decimal.InvalidOperation],
)
_UNITS = tuple(Decimal(1).scaleb(-scale) for scale in range(39))
# \d is any Unicode digit here: the wire's parser takes them too, if they have 16 bits. An exponent
# has ten digits at most. Digits are given back to nobody (`++`), or a million of them before a
# wrong character would be divided in a million ways.
_NUMBER = re.compile(
    r"[+-]?(?:\d++\.?(?P<fraction>\d*)|\.(?P<only>\d+))(?:[eE](?P<exponent>[+-]?0*\d{1,10}))?"
)
_MAX_EXPONENT = 2**31 - 1
# Nobody counts with numbers of so many digits; the wire's arithmetic gives up on them.
_MAX_DIGITS = 500_000_000
_DECIMAL_REAL = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:\d++\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)", re.ASCII
)
_HEX_REAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?", re.ASCII
)
# The same without what only Java writes: a suffix for the width, as in `1d`.
_PLAIN_REAL = re.compile(r"[+-]?(?:\d++\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_PLAIN_SPECIAL = re.compile(r"[+-]?(?:nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
_TOO_LARGE = "Beyond the range of FLOAT, ±1.8e308"
_SPECIAL_REALS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TRUE = frozenset({"1", "yes", "y", "t", "true", "on"})
_FALSE = frozenset({"0", "no", "n", "f", "false", "off"})
_BITS = (Decimal(0), Decimal(1))
_BOOLEAN_REASON = (
    "Not a valid boolean; use true, t, yes, y, on, 1 or false, f, no, n, off, 0, in any case"
)


def fixed(value: object, column: Column, row_index: int) -> int:
    """Return the unscaled value, rounded half up to the column's scale."""
    precision, scale = column.precision or 38, column.scale or 0
    if type(value) is int:
        unscaled: int = value * 10**scale
        if -(10**precision) < unscaled < 10**precision:
            return unscaled
    if isinstance(value, (np.float16, np.float32)):
        # Only as text and in JSON does a narrow float stand for its own shortest text.
        value = float(value)
    number = exact_decimal(value)
    if number is None:
        if isinstance(value, str) or is_number(value):
            raise wrong_value(column, row_index, "Not a valid number")
        raise wrong_type(value, column, row_index, "int, float, decimal.Decimal, str")
    # Exponents may be in the billions: decide by them before any digits are made.
    if not number or number.adjusted() < -scale - 1:
        return 0
    digits = precision - scale
    if number.adjusted() > digits:
        raise number_out_of_range(column, row_index, digits, str(number))
    rounded = number.quantize(_UNITS[scale], context=_HALF_UP)
    unscaled = int(rounded.scaleb(scale, context=_HALF_UP))
    if abs(unscaled) >= 10**precision:
        raise number_out_of_range(column, row_index, digits, format(rounded, "f"))
    return unscaled


def is_number(value: object) -> TypeGuard[int | float | Decimal | np.integer | np.floating]:
    """Tell whether a value is a number; NumPy counts its spans of time among the integers."""
    return isinstance(value, _NUMBERS) and not isinstance(value, (bool, np.timedelta64))


def exact_decimal(value: object) -> Decimal | None:
    """Return a number or its text exactly; None when it is no (finite) number.

    A float stands for its short decimal text, not for its binary value.
    """
    if isinstance(value, (bool, np.timedelta64)):
        return None
    number: Decimal | None = None
    if isinstance(value, str):
        number = _decimal_of_text(value.strip(BLANKS))
    elif isinstance(value, Decimal):
        number = value
    elif isinstance(value, (int, np.integer)):
        number = Decimal(int(value))
    elif isinstance(value, (float, np.floating)):
        number = Decimal(float_text(value))
    return number if number is not None and number.is_finite() else None


def real(value: object, column: Column, row_index: int, *, java: bool = True) -> float:
    """Return the value as a double, rounded to nearest.

    With `java`, a number beyond a double's range is infinite, and text may be a Java literal.
    Otherwise both are rejected.
    """
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        text = value.strip(BLANKS)
        parsed = _real_of_text(text) if java or _PLAIN_REAL.fullmatch(text) else None
        if parsed is None and not java and _PLAIN_SPECIAL.fullmatch(text):
            # Python's NaN has the text's sign.
            parsed = math.nan if math.isnan(float(text)) else float(text)
        if parsed is None:
            raise wrong_value(column, row_index, "Not a valid decimal number")
        if not java and math.isinf(parsed) and any(map(str.isdigit, text)):
            raise wrong_value(column, row_index, _TOO_LARGE)
        return parsed
    if not is_number(value):
        raise wrong_type(value, column, row_index, "int, float, decimal.Decimal, str")
    if isinstance(value, Decimal) and value.is_snan():
        raise wrong_value(column, row_index, "Not a valid decimal number")
    found = _real_of_number(value)
    if not java and math.isinf(found) and not _is_infinite(value):
        raise wrong_value(column, row_index, _TOO_LARGE)
    return found


def boolean(value: object, column: Column, row_index: int, *, java: bool = True) -> bool:
    """Return the truth of a boolean, a number or a word.

    With `java`, every number but zero is true; otherwise numbers are 0 and 1.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, str):
        word = value.strip(BLANKS).lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise wrong_value(column, row_index, _BOOLEAN_REASON)
    if not is_number(value):
        raise wrong_type(value, column, row_index, "bool, int, float, decimal.Decimal, str")
    number = exact_decimal(value)
    if number is None or not (java or number in _BITS):
        raise wrong_value(column, row_index, _BOOLEAN_REASON)
    return bool(number)


def is_narrow(text: str) -> bool:
    """Tell whether all characters have 16 bits: what the wire's parsers look at one by one."""
    return text.isascii() or max(text) <= "\uffff"


def _decimal_of_text(text: str) -> Decimal | None:
    found = _NUMBER.fullmatch(text)
    if found is None or not is_narrow(text):
        return None
    exponent = int(found["exponent"] or 0)
    scale = len(found["fraction"] or found["only"] or "") - exponent
    if abs(exponent) > _MAX_EXPONENT or abs(scale) > _MAX_EXPONENT:
        return None
    number = Decimal(text)
    return None if number and abs(number.adjusted()) > _MAX_DIGITS else number


def _real_of_number(value: int | float | Decimal | np.integer | np.floating) -> float:
    if isinstance(value, np.floating):
        return float(float_text(value))
    try:
        # A decimal zero has no sign.
        return float(value) if value else 0.0
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_infinite(value: int | float | Decimal | np.integer | np.floating) -> bool:
    if isinstance(value, Decimal):
        return value.is_infinite()
    return isinstance(value, np.floating) and bool(np.isinf(value))


def _real_of_text(text: str) -> float | None:
    if _DECIMAL_REAL.fullmatch(text):
        found = float(text.rstrip("fFdD") if text[-1:] in "fFdD" else text)
        # Python's NaN has the text's sign.
        return math.nan if math.isnan(found) else found
    hexadecimal = _HEX_REAL.fullmatch(text)
    if hexadecimal is None:
        return _SPECIAL_REALS.get(text.lower())
    try:
        return float.fromhex(hexadecimal[1])
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf
