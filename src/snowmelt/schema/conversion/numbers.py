"""Conversion of values of FIXED, REAL and BOOLEAN columns (Streaming v1, §5.4).

The second section formats floats as decimal text with the digits of the official client's Java
virtual machine. Java before version 19 does not always write the shortest text that parses as the
same float.
"""

from __future__ import annotations

import decimal
import math
import re
import struct
from decimal import Decimal
from typing import NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from snowmelt.schema.types import Column, number_range_error, wrong_type_error, wrong_value_error

TRIMMED_CHARACTERS = "".join(map(chr, range(33)))
"""Characters that the wire format trims: U+0000 to U+0020."""

_NUMBER_TYPES = (int, float, Decimal, np.integer, np.floating)

_ROUND_HALF_UP = decimal.Context(
    prec=100,
    rounding=decimal.ROUND_HALF_UP,
    Emax=decimal.MAX_EMAX,
    Emin=decimal.MIN_EMIN,
    traps=[decimal.InvalidOperation],
)
_SCALE_UNITS = tuple(Decimal(1).scaleb(-scale) for scale in range(39))
# \d matches any Unicode digit, as the wire format's parser does (for 16-bit characters). An
# exponent has at most ten digits. The possessive `++` prevents backtracking: before an invalid
# character, a million digits could be split in a million ways.
_NUMBER_PATTERN = re.compile(
    r"[+-]?(?:\d++\.?(?P<fraction>\d*)|\.(?P<only>\d+))(?:[eE](?P<exponent>[+-]?0*\d{1,10}))?"
)
_MAX_EXPONENT = 2**31 - 1
# Maximum digits: the reference client's arithmetic fails for numbers with more.
_MAX_DIGITS = 500_000_000
_DECIMAL_FLOAT_PATTERN = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:\d++\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)", re.ASCII
)
_HEX_FLOAT_PATTERN = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?", re.ASCII
)
# The same pattern without Java's width suffix (`1d`).
_PLAIN_FLOAT_PATTERN = re.compile(r"[+-]?(?:\d++\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_PLAIN_SPECIAL_FLOAT_PATTERN = re.compile(r"[+-]?(?:nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
_FLOAT_RANGE_REASON = "Beyond the range of FLOAT, ±1.8e308"
_SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TRUE_WORDS = frozenset({"1", "yes", "y", "t", "true", "on"})
_FALSE_WORDS = frozenset({"0", "no", "n", "f", "false", "off"})
_ZERO_AND_ONE = (Decimal(0), Decimal(1))
_BOOLEAN_REASON = (
    "Not a valid boolean; use true, t, yes, y, on, 1 or false, f, no, n, off, 0, in any case"
)


def convert_fixed(value: object, column: Column, row_index: int) -> int:
    """Return the unscaled value, rounded half up to the column's scale."""
    precision, scale = column.precision or 38, column.scale or 0
    if type(value) is int:
        unscaled: int = value * 10**scale
        if -(10**precision) < unscaled < 10**precision:
            return unscaled
    if isinstance(value, (np.float16, np.float32)):
        # Widen narrow floats. Only text and JSON columns use the shortest text of the narrow width.
        value = float(value)
    number = to_exact_decimal(value)
    if number is None:
        if isinstance(value, str) or is_number(value):
            raise wrong_value_error(column, row_index, "Not a valid number")
        raise wrong_type_error(value, column, row_index, "int, float, decimal.Decimal, str")
    # Check the exponent before expanding digits, because it may be in the billions.
    if not number or number.adjusted() < -scale - 1:
        return 0
    digits = precision - scale
    if number.adjusted() > digits:
        raise number_range_error(column, row_index, digits, str(number))
    rounded = number.quantize(_SCALE_UNITS[scale], context=_ROUND_HALF_UP)
    unscaled = int(rounded.scaleb(scale, context=_ROUND_HALF_UP))
    if abs(unscaled) >= 10**precision:
        raise number_range_error(column, row_index, digits, format(rounded, "f"))
    return unscaled


def is_number(value: object) -> TypeGuard[int | float | Decimal | np.integer | np.floating]:
    """Return True if a value is a number. Excludes NumPy's timedelta, a subclass of integers."""
    return isinstance(value, _NUMBER_TYPES) and not isinstance(value, (bool, np.timedelta64))


def to_exact_decimal(value: object) -> Decimal | None:
    """Return the exact value of a number or its text, or None if it is not a finite number.

    Uses the value of a float's shortest decimal text, not its binary value.
    """
    if isinstance(value, (bool, np.timedelta64)):
        return None
    number: Decimal | None = None
    if isinstance(value, str):
        number = _parse_decimal(value.strip(TRIMMED_CHARACTERS))
    elif isinstance(value, Decimal):
        number = value
    elif isinstance(value, (int, np.integer)):
        number = Decimal(int(value))
    elif isinstance(value, (float, np.floating)):
        number = Decimal(format_java_float(value))
    return number if number is not None and number.is_finite() else None


def convert_float(value: object, column: Column, row_index: int, *, java: bool = True) -> float:
    """Return the value as a double, rounded to nearest.

    With `java`, a number out of the range of a double becomes infinite, and text may be a Java
    literal. Otherwise, both are rejected.
    """
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        text = value.strip(TRIMMED_CHARACTERS)
        parsed = _parse_float(text) if java or _PLAIN_FLOAT_PATTERN.fullmatch(text) else None
        if parsed is None and not java and _PLAIN_SPECIAL_FLOAT_PATTERN.fullmatch(text):
            # Drop the sign of a NaN, which `float` keeps.
            parsed = math.nan if math.isnan(float(text)) else float(text)
        if parsed is None:
            raise wrong_value_error(column, row_index, "Not a valid decimal number")
        if not java and math.isinf(parsed) and any(map(str.isdigit, text)):
            raise wrong_value_error(column, row_index, _FLOAT_RANGE_REASON)
        return parsed
    if not is_number(value):
        raise wrong_type_error(value, column, row_index, "int, float, decimal.Decimal, str")
    if isinstance(value, Decimal) and value.is_snan():
        raise wrong_value_error(column, row_index, "Not a valid decimal number")
    found = _number_to_float(value)
    if not java and math.isinf(found) and not _is_infinite(value):
        raise wrong_value_error(column, row_index, _FLOAT_RANGE_REASON)
    return found


def convert_boolean(value: object, column: Column, row_index: int, *, java: bool = True) -> bool:
    """Return the boolean value of a boolean, a number or a word.

    With `java`, every number except zero is true. Otherwise only 0 and 1 are valid.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, str):
        word = value.strip(TRIMMED_CHARACTERS).lower()
        if word in _TRUE_WORDS:
            return True
        if word in _FALSE_WORDS:
            return False
        raise wrong_value_error(column, row_index, _BOOLEAN_REASON)
    if not is_number(value):
        raise wrong_type_error(value, column, row_index, "bool, int, float, decimal.Decimal, str")
    number = to_exact_decimal(value)
    if number is None or not (java or number in _ZERO_AND_ONE):
        raise wrong_value_error(column, row_index, _BOOLEAN_REASON)
    return bool(number)


def is_bmp_text(text: str) -> bool:
    """Return True if all characters have 16 bits, as the wire format's parsers require."""
    return text.isascii() or max(text) <= "\uffff"


def _parse_decimal(text: str) -> Decimal | None:
    found = _NUMBER_PATTERN.fullmatch(text)
    if found is None or not is_bmp_text(text):
        return None
    exponent = int(found["exponent"] or 0)
    scale = len(found["fraction"] or found["only"] or "") - exponent
    if abs(exponent) > _MAX_EXPONENT or abs(scale) > _MAX_EXPONENT:
        return None
    number = Decimal(text)
    return None if number and abs(number.adjusted()) > _MAX_DIGITS else number


def _number_to_float(value: int | float | Decimal | np.integer | np.floating) -> float:
    if isinstance(value, np.floating):
        return float(format_java_float(value))
    try:
        # Remove the sign of a decimal zero.
        return float(value) if value else 0.0
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_infinite(value: int | float | Decimal | np.integer | np.floating) -> bool:
    if isinstance(value, Decimal):
        return value.is_infinite()
    return isinstance(value, np.floating) and bool(np.isinf(value))


def _parse_float(text: str) -> float | None:
    if _DECIMAL_FLOAT_PATTERN.fullmatch(text):
        found = float(text.rstrip("fFdD") if text[-1:] in "fFdD" else text)
        # Drop the sign of a NaN, which `float` keeps.
        return math.nan if math.isnan(found) else found
    hexadecimal = _HEX_FLOAT_PATTERN.fullmatch(text)
    if hexadecimal is None:
        return _SPECIAL_FLOATS.get(text.lower())
    try:
        return float.fromhex(hexadecimal[1])
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf


# --- Floats as decimal text, with the digits of the official client's Java virtual machine.
# Java before version 19 does not always write the shortest text that parses as the same float:
# large whole numbers, exact powers of two and the smallest numbers have other digits. Stored
# numbers and text depend on the digits, so Java's algorithm is used where they may differ.

# Between these limits, Java writes the shortest text, except for powers of two below the second
# limit.
_MIN_SHORTEST, _MIN_PLAIN, _SHORTEST_END = 2.0**-1022, 1e-3, 2.0**53
_MIN_SHORTEST_32, _SHORTEST_END_32 = 2.0**-126, 2.0**24

_DOUBLE_FRACTION_BITS = 53
"""Fraction bits of a double, used for floats of both widths."""
# Java's estimates of the number of bits of powers of five.
_POWER_OF_FIVE_BITS = tuple((5**power).bit_length() if power else 0 for power in range(27))
_MAX_WHOLE_EXPONENT = 62


class _BinaryFloat(NamedTuple):
    """Positive float `fraction` * 2**(exponent - 52). `fraction` has 53 bits; the first is set."""

    fraction: int
    exponent: int
    significant: int


def format_java_float(value: float | np.floating) -> str:
    """Format a float as Java does. The text parses as the same float of the same width.

    An exponent is written with an E.
    """
    if isinstance(value, float):
        if _is_shortest_text_java(value, _MIN_SHORTEST, _SHORTEST_END):
            return float.__repr__(value)
        return _format_scientific(value, _split_float(abs(value), (">d", ">Q"), 52, 1023))
    return _format_numpy_float(value)


def _format_numpy_float(value: object) -> str:
    if isinstance(value, np.float32):
        plain = float(value)
        if _is_shortest_text_java(plain, _MIN_SHORTEST_32, _SHORTEST_END_32):
            return str(value)
        return _format_scientific(plain, _split_float(abs(plain), (">f", ">I"), 23, 127))
    return str(value)


def are_shortest_float32s_java(values: NDArray[np.float32]) -> bool:
    """Return True if Java writes the shortest text for all values of a float32 array."""
    size = np.abs(values)
    power = np.frexp(size)[0] == 0.5
    within = (
        (size >= _MIN_SHORTEST_32) & (size < _SHORTEST_END_32) & ((size >= _MIN_PLAIN) | ~power)
    )
    return bool((within | (size == 0) | ~np.isfinite(size)).all())


def _is_shortest_text_java(value: float, minimum: float, end: float) -> bool:
    size = abs(value)
    if size >= _MIN_PLAIN:
        return size < end or size == math.inf
    return size == 0 or size != size or (size >= minimum and math.frexp(size)[0] != 0.5)


def _format_scientific(value: float, parts: _BinaryFloat) -> str:
    digits, point = _try_whole_digits(parts) or _generate_digits(parts)
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def _split_float(magnitude: float, formats: tuple[str, str], width: int, bias: int) -> _BinaryFloat:
    (bits,) = struct.unpack(formats[1], struct.pack(formats[0], magnitude))
    exponent, fraction = bits >> width, bits & (1 << width) - 1
    if exponent:
        fraction = (fraction | 1 << width) << (_DOUBLE_FRACTION_BITS - 1 - width)
        return _BinaryFloat(fraction, exponent - bias, width + 1)
    significant = fraction.bit_length()
    return _BinaryFloat(
        fraction << (_DOUBLE_FRACTION_BITS - significant), significant - width - bias, significant
    )


def _try_whole_digits(parts: _BinaryFloat) -> tuple[str, int] | None:
    """Return digits and point position of a whole number of at most 63 bits, else None."""
    tail = (parts.fraction & -parts.fraction).bit_length() - 1
    if not _DOUBLE_FRACTION_BITS - 1 - tail <= parts.exponent <= _MAX_WHOLE_EXPONENT:
        return None
    shift = parts.exponent - (_DOUBLE_FRACTION_BITS - 1)
    whole = parts.fraction << shift if shift >= 0 else parts.fraction >> -shift
    # Round away digits below the last significant bit.
    spare = parts.exponent - parts.significant - 1
    dropped = len(str(1 << spare)) - 1 if spare > 1 else 0
    if dropped:
        whole, rest = divmod(whole, 10**dropped)
        whole += rest >= 10**dropped >> 1
    text = str(whole)
    return text.rstrip("0"), len(text) + dropped


def _generate_digits(parts: _BinaryFloat) -> tuple[str, int]:
    """Generate digits until the rest is below half of the last bit. Also return point position."""
    estimate = math.floor(
        (parts.fraction / 2 ** (_DOUBLE_FRACTION_BITS - 1) - 1.5) * 0.289529654
        + 0.176091259
        + parts.exponent * 0.301029995663981
    )
    rest, unit, half, word = _scale_to_integers(parts, estimate)
    ten = 10 * unit
    digits: list[int] = []
    first, low, high = True, False, False
    while not (low or high):
        digit, rest = divmod(rest, unit)
        rest *= 10
        half = _wrap_to_word(half * 10, word)
        low = rest < half
        # Reproduce Java: its machine words overflow in the sum, and its big integers include the
        # exact half.
        high = rest + half >= ten if word is None else _wrap_to_word(rest + half, word) > ten
        if half <= 0:
            low = high = True
        if first and not digit and not high:
            estimate -= 1
        else:
            digits.append(digit)
        if first and not -3 <= estimate < 8:
            # Scientific notation has at least one digit after the point.
            low = high = False
        first = False
    text = "".join(map(str, digits))
    if high and (not low or 2 * rest > ten or (2 * rest == ten and digits[-1] & 1)):
        rounded = str(int(text) + 1)
        estimate += len(rounded) - len(text)
        text = rounded
    return text.rstrip("0"), estimate + 1


def _scale_to_integers(parts: _BinaryFloat, estimate: int) -> tuple[int, int, int, int | None]:
    """Return the scaled number, unit and half of the last bit, and Java's word size in bits."""
    tail = (parts.fraction & -parts.fraction).bit_length() - 1
    length = _DOUBLE_FRACTION_BITS - tail
    tiny = max(0, length - parts.exponent - 1)
    fives, unit_fives = max(0, -estimate), max(0, estimate)
    twos, unit_twos = fives + tiny + parts.exponent, unit_fives + tiny
    half_twos = twos - parts.significant
    twos -= length - 1
    common = min(twos, unit_twos)
    # The lower neighbor of a power of two is only half as far away.
    half_twos -= common + (length == 1)
    more = max(0, -half_twos) - common
    twos, unit_twos, half_twos = twos + more, unit_twos + more, max(0, half_twos)
    number_bits = length + twos + _power_of_five_bits(fives)
    ten_bits = unit_twos + 1 + _power_of_five_bits(unit_fives + 1)
    largest = max(number_bits, ten_bits)
    word = 32 if largest < 32 else 64 if largest < 64 else None
    number = (parts.fraction >> tail) * 5**fives << twos
    return number, 5**unit_fives << unit_twos, 5**fives << half_twos, word


def _power_of_five_bits(power: int) -> int:
    return _POWER_OF_FIVE_BITS[power] if power < len(_POWER_OF_FIVE_BITS) else power * 3


def _wrap_to_word(number: int, word_bits: int | None) -> int:
    if word_bits is None:
        return number
    half = 1 << (word_bits - 1)
    return (number + half) % (2 * half) - half
