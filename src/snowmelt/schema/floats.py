"""A float as decimal text, digit by digit as the official client's virtual machine writes it.

Java before version 19 does not always write the shortest text that reads back as the same float:
large whole numbers, exact powers of two and the smallest numbers get other digits. What is stored
as a number or as text depends on them, so they are developed in Java's way wherever they may differ.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Between these (and not at a power of two below the second) the shortest text is Java's, too.
_SMALLEST_SURE, _PLAIN, _END_SURE = 2.0**-1022, 1e-3, 2.0**53
_SMALLEST_SURE_32, _END_SURE_32 = 2.0**-126, 2.0**24

_BITS = 53
"""Floats of both widths are looked at with as many bits as a double has."""
# What Java takes for the number of bits of a power of five.
_BITS_OF_FIVES = tuple((5**power).bit_length() if power else 0 for power in range(27))
_MAX_WHOLE_EXPONENT = 62


class _Parts(NamedTuple):
    """A positive float: `fraction` (53 bits, the first set) times 2**(exponent - 52)."""

    fraction: int
    exponent: int
    significant: int


def float_text(value: float | np.floating) -> str:
    """Return a text that reads back as this float of its own width, as Java's; an exponent has an E."""
    if isinstance(value, float):
        if _is_shortest(value, _SMALLEST_SURE, _END_SURE):
            return float.__repr__(value)
        return _written(value, _double(abs(value)))
    return _text_of_numpy(value)


def _text_of_numpy(value: object) -> str:
    if isinstance(value, np.float32):
        plain = float(value)
        if _is_shortest(plain, _SMALLEST_SURE_32, _END_SURE_32):
            return str(value)
        return _written(plain, _single(abs(plain)))
    return str(value)


def surely_shortest_singles(values: NDArray[np.float32]) -> bool:
    """Tell whether the shortest texts of an array of float32 are all Java's, too."""
    size = np.abs(values)
    power = np.frexp(size)[0] == 0.5
    within = (size >= _SMALLEST_SURE_32) & (size < _END_SURE_32) & ((size >= _PLAIN) | ~power)
    return bool((within | (size == 0) | ~np.isfinite(size)).all())


def _is_shortest(value: float, smallest: float, end: float) -> bool:
    size = abs(value)
    if size >= _PLAIN:
        return size < end or size == math.inf
    return size == 0 or size != size or (size >= smallest and math.frexp(size)[0] != 0.5)


def _written(value: float, parts: _Parts) -> str:
    digits, point = _whole(parts) or _developed(parts)
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def _double(size: float) -> _Parts:
    (bits,) = struct.unpack(">Q", struct.pack(">d", size))
    return _parts(bits >> 52, bits & (1 << 52) - 1, 52, 1023)


def _single(size: float) -> _Parts:
    (bits,) = struct.unpack(">I", struct.pack(">f", size))
    return _parts(bits >> 23, bits & (1 << 23) - 1, 23, 127)


def _parts(exponent: int, fraction: int, width: int, bias: int) -> _Parts:
    if exponent:
        return _Parts((fraction | 1 << width) << (_BITS - 1 - width), exponent - bias, width + 1)
    significant = fraction.bit_length()
    return _Parts(fraction << (_BITS - significant), significant - width - bias, significant)


def _whole(parts: _Parts) -> tuple[str, int] | None:
    """Return the digits of a whole number of at most 63 bits, and where its point is."""
    tail = (parts.fraction & -parts.fraction).bit_length() - 1
    if not _BITS - 1 - tail <= parts.exponent <= _MAX_WHOLE_EXPONENT:
        return None
    shift = parts.exponent - (_BITS - 1)
    whole = parts.fraction << shift if shift >= 0 else parts.fraction >> -shift
    # Digits that stand for less than the last bit are rounded away.
    spare = parts.exponent - parts.significant - 1
    dropped = len(str(1 << spare)) - 1 if spare > 1 else 0
    if dropped:
        whole, rest = divmod(whole, 10**dropped)
        whole += rest >= 10**dropped >> 1
    text = str(whole)
    return text.rstrip("0"), len(text) + dropped


def _developed(parts: _Parts) -> tuple[str, int]:
    """Return digits until what is left is below half of the last bit, and where their point is."""
    estimate = math.floor(
        (parts.fraction / 2 ** (_BITS - 1) - 1.5) * 0.289529654
        + 0.176091259
        + parts.exponent * 0.301029995663981
    )
    rest, unit, half, word = _scaled(parts, estimate)
    ten = 10 * unit
    digits: list[int] = []
    first, low, high = True, False, False
    while not (low or high):
        digit, rest = divmod(rest, unit)
        rest *= 10
        half = _wrapped(half * 10, word)
        low = rest < half
        # Java's machine words overflow in the sum; its large numbers count the exact half, too.
        high = rest + half >= ten if word is None else _wrapped(rest + half, word) > ten
        if half <= 0:
            low = high = True
        if first and not digit and not high:
            estimate -= 1
        else:
            digits.append(digit)
        if first and not -3 <= estimate < 8:
            # There is a digit after the point before an exponent.
            low = high = False
        first = False
    text = "".join(map(str, digits))
    if high and (not low or 2 * rest > ten or (2 * rest == ten and digits[-1] & 1)):
        rounded = str(int(text) + 1)
        estimate += len(rounded) - len(text)
        text = rounded
    return text.rstrip("0"), estimate + 1


def _scaled(parts: _Parts, estimate: int) -> tuple[int, int, int, int | None]:
    """Return the number, its unit and half of its last bit, all scaled; the bits of Java's words."""
    tail = (parts.fraction & -parts.fraction).bit_length() - 1
    length = _BITS - tail
    tiny = max(0, length - parts.exponent - 1)
    fives, unit_fives = max(0, -estimate), max(0, estimate)
    twos, unit_twos = fives + tiny + parts.exponent, unit_fives + tiny
    half_twos = twos - parts.significant
    twos -= length - 1
    common = min(twos, unit_twos)
    # Below a power of two its neighbour is only half as far.
    half_twos -= common + (length == 1)
    more = max(0, -half_twos) - common
    twos, unit_twos, half_twos = twos + more, unit_twos + more, max(0, half_twos)
    number_bits = length + twos + _bits_of_five(fives)
    ten_bits = unit_twos + 1 + _bits_of_five(unit_fives + 1)
    largest = max(number_bits, ten_bits)
    word = 32 if largest < 32 else 64 if largest < 64 else None
    number = (parts.fraction >> tail) * 5**fives << twos
    return number, 5**unit_fives << unit_twos, 5**fives << half_twos, word


def _bits_of_five(power: int) -> int:
    return _BITS_OF_FIVES[power] if power < len(_BITS_OF_FIVES) else power * 3


def _wrapped(number: int, word: int | None) -> int:
    if word is None:
        return number
    half = 1 << (word - 1)
    return (number + half) % (2 * half) - half
