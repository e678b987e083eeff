"""Numba kernels that read uniform JSON lines: all have the fields of the first line in its order.

The kernels accept a subset of what the JSON decoder accepts. The decoder reads all other bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from snowmelt.jit import helper_jit, inline_jit, jit_kernel
from snowmelt.kernels.delimiter_masks import count_trailing_zeros, load_word

if TYPE_CHECKING:
    from numpy.typing import NDArray

# One loop is one compiled function; numba infers the types.
# ruff: noqa: ANN001, ANN201, ANN202, ARG001, C901, PLR0911, PLR0912, PLR0913, PLR0915, PLR0917
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated, unreachable, redundant-expr"


if TYPE_CHECKING:
    Bytes: TypeAlias = "NDArray[np.uint8]"
    Numbers: TypeAlias = "NDArray[np.int64]"

# Kinds of a field's values.
INTEGER, FLOAT, BOOLEAN, TEXT, DECIMAL, DATE, NAIVE_TIMESTAMP, UTC_TIMESTAMP = range(8)
# Kinds with values of variable length.
TEXT_KINDS = (FLOAT, TEXT)

# Result codes of `read_lines`. Other results are the number of a field.
ALL_LINES_READ, UNSUPPORTED_LINE = -1, -2

_NEWLINE, _QUOTE, _POINT, _ZERO, _NINE, _MINUS, _PLUS = 10, 34, 46, 48, 57, 45, 43
_SPACE, _BACKSLASH, _CLOSING_BRACE, _COLON = 32, 92, 125, 58
_LOWER_E, _UPPER_E, _Z, _T = 101, 69, 90, 84
_LETTER_U, _FALSE, _NULL, _TRUE = 117, 102, 110, 116
_MAX_DIGITS = 18
_INVALID = np.int64(-(1 << 62))
_DATE_LENGTH, _SECONDS_LENGTH, _MICROSECONDS_LENGTH = 10, 19, 26
_MIN_YEAR, _MAX_YEAR = 1000, 2999

_ESCAPED_BYTES = np.zeros(256, np.uint8)
for _letter, _byte in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    _ESCAPED_BYTES[_letter] = _byte
_HEX_VALUES = np.full(256, 255, np.uint8)
for _digit, _byte in enumerate(b"0123456789abcdef"):
    _HEX_VALUES[_byte] = _HEX_VALUES[_byte - 32 if _byte >= 97 else _byte] = _digit
# Code with several callers is a helper, because inlining it would add seconds of compilation.


@inline_jit
def _is_digit(byte):
    return _ZERO <= byte <= _NINE


@inline_jit
def _matches_word(data, at, second, third, fourth):
    return (
        load_byte(data, at + 1) == second
        and load_byte(data, at + 2) == third
        and load_byte(data, at + 3) == fourth
    )


@inline_jit
def _skip_digits(data, at):
    while _is_digit(load_byte(data, at)):
        at += 1
    return at


@helper_jit
def _skip_number(data, at):
    """Return the end of a number, or -1 if there is none or JSON decoders would read it differently."""
    begin = at
    if load_byte(data, at) == _MINUS:
        at += 1
    if not _is_digit(load_byte(data, at)) or (
        load_byte(data, at) == _ZERO and _is_digit(load_byte(data, at + 1))
    ):
        return -1
    at = _skip_digits(data, at)
    is_zero = (
        at == begin + 2 and load_byte(data, begin) == _MINUS and load_byte(data, begin + 1) == _ZERO
    )
    if is_zero and load_byte(data, at) != _POINT:
        # The integer -0 has no sign, the float -0.0 has.
        return -1
    if load_byte(data, at) == _POINT:
        if not _is_digit(load_byte(data, at + 1)):
            return -1
        at = _skip_digits(data, at + 1)
    if load_byte(data, at) in (_UPPER_E, _LOWER_E):
        at += 1
        if load_byte(data, at) in (_PLUS, _MINUS):
            at += 1
        if not _is_digit(load_byte(data, at)):
            return -1
        at = _skip_digits(data, at)
    return at


@helper_jit
def _parse_digits(data, at, count):
    """Return the value of `count` digits, or a negative number if there are other characters."""
    number = np.int64(0)
    for place in range(count):
        byte = np.int64(load_byte(data, at + place))
        if not _is_digit(byte):
            return _INVALID
        number = number * 10 + (byte - _ZERO)
    return number


@helper_jit
def _parse_decimal(data, at, end, scale):
    """Return the unscaled value of a decimal with `scale` fraction digits."""
    is_negative = load_byte(data, at) == _MINUS
    if is_negative:
        at += 1
    number = np.int64(0)
    digits = 0
    behind = -1
    for place in range(at, end):
        byte = np.int64(load_byte(data, place))
        if byte == _POINT and behind < 0 and place > at:
            behind = 0
        elif _is_digit(byte):
            number = number * 10 + (byte - _ZERO)
            digits += 1
            if behind >= 0:
                behind += 1
        else:
            return _INVALID
        if digits > _MAX_DIGITS:
            return _INVALID
    if digits == 0 or behind == 0 or behind > scale:
        return _INVALID
    for _ in range(scale - max(behind, 0)):
        number *= 10
        digits += 1
    if digits > _MAX_DIGITS:
        return _INVALID
    return -number if is_negative else number


@helper_jit
def _parse_date(data, at):
    """Return the days since 1970 of YYYY-MM-DD."""
    year = _parse_digits(data, at, 4)
    month = _parse_digits(data, at + 5, 2)
    day = _parse_digits(data, at + 8, 2)
    if load_byte(data, at + 4) != _MINUS or load_byte(data, at + 7) != _MINUS:
        return _INVALID
    if year < _MIN_YEAR or year > _MAX_YEAR or month < 1 or month > 12 or day < 1:
        return _INVALID
    last = 30 if month in (4, 6, 9, 11) else 31
    if month == 2:
        is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        last = 29 if is_leap else 28
    if day > last:
        return _INVALID
    # In years that begin in March, the leap day is the last one.
    if month < 3:
        year -= 1
        month += 12
    return (
        365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day
    ) - 719_469


@helper_jit
def _parse_timestamp(data, at, end):
    """Return the microseconds since 1970 of YYYY-MM-DDThh:mm:ss, with or without six fraction digits."""
    size = end - at
    if size not in (_SECONDS_LENGTH, _MICROSECONDS_LENGTH):
        return _INVALID
    day = _parse_date(data, at)
    hour = _parse_digits(data, at + 11, 2)
    minute = _parse_digits(data, at + 14, 2)
    second = _parse_digits(data, at + 17, 2)
    if (
        day == _INVALID
        or load_byte(data, at + 10) != _T
        or load_byte(data, at + 13) != _COLON
        or load_byte(data, at + 16) != _COLON
    ):
        return _INVALID
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return _INVALID
    micros = np.int64(0)
    if size == _MICROSECONDS_LENGTH:
        micros = _parse_digits(data, at + 20, 6)
        if load_byte(data, at + 19) != _POINT or micros < 0:
            return _INVALID
    return ((day * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + micros


@inline_jit
def _parse_text_value(data, kind, scale, at, end):
    """Return the number that a text of this kind represents."""
    if kind == DECIMAL:
        return _parse_decimal(data, at, end, scale)
    if kind == DATE:
        return _parse_date(data, at) if end - at == _DATE_LENGTH else _INVALID
    if kind == UTC_TIMESTAMP:
        return _parse_timestamp(data, at, end - 1) if load_byte(data, end - 1) == _Z else _INVALID
    return _parse_timestamp(data, at, end)


@helper_jit
def _decode_unicode_escape(data, at, target, used):
    """Write the character of `uXXXX` as UTF-8. Return the end of the escape, or -1 if it is invalid."""
    code = 0
    for place in range(1, 5):
        digit = np.int64(_HEX_VALUES[load_byte(data, at + place)])
        if digit > 15:
            return -1
        code = code * 16 + digit
    if code < 0x80:
        store_word(target, used, np.uint64(code))
        return used + 1
    if code < 0x800:
        store_word(target, used, np.uint64(0xC0 | (code >> 6) | ((0x80 | (code & 63)) << 8)))
        return used + 2
    if 0xD800 <= code < 0xE000:
        return -1
    middle, last = 0x80 | ((code >> 6) & 63), 0x80 | (code & 63)
    store_word(target, used, np.uint64(0xE0 | (code >> 12) | (middle << 8) | (last << 16)))
    return used + 3


@inline_jit
def _copy_unescaped_text(data, at, safe, target, used):
    """Copy a text and decode escapes. Return its closing quote's position or -1, and the output's end."""
    while True:
        if at <= safe:
            # Always writes eight bytes. Bytes beyond the text are overwritten later.
            word = load_word(data, at)
            plain = count_plain_bytes(word)
            store_word(target, used, word)
            at += plain
            used += plain
            if plain == WORD_BYTES:
                continue
        byte = load_byte(data, at)
        if byte == _QUOTE:
            return at, used
        if byte == _BACKSLASH:
            byte = load_byte(data, at + 1)
            if byte == _LETTER_U:
                used = _decode_unicode_escape(data, at + 1, target, used)
                if used < 0:
                    return -1, used
                at += 6
                continue
            byte = np.int64(_ESCAPED_BYTES[byte])
            if byte == 0:
                return -1, used
            at += 1
        elif byte < _SPACE:
            return -1, used
        store_word(target, used, np.uint64(byte))
        used += 1
        at += 1


@inline_jit
def _skip_key(data, at, safe, keys, begin, end):
    """Return the end of the expected key, or -1 if another key follows."""
    while end - begin >= WORD_BYTES and at <= safe:
        if load_word(data, at) != load_word(keys, begin):
            return -1
        at += WORD_BYTES
        begin += WORD_BYTES
    while begin < end:
        if load_byte(data, at) != load_byte(keys, begin):
            return -1
        at += 1
        begin += 1
    return at


@jit_kernel
def read_lines(
    line_bytes: Bytes,
    keys: Bytes,
    key_ends: Numbers,
    kinds: Numbers,
    scales: Numbers,
    output_positions: Numbers,
    numbers: Numbers,
    valid: Bytes,
    ends: NDArray[np.int32],
    texts: Bytes,
) -> tuple[int, int]:
    """Read lines. Return their number and a result code. The last line must end with a newline.

    Args:
        line_bytes: The lines.
        keys: The bytes before each value, concatenated.
        key_ends: End of each of these byte strings in `keys`.
        kinds: Kind of each field's values.
        scales: Fraction digits of each decimal field.
        output_positions: Index of each field's output, in `numbers`, or in `ends` and `texts`.
        numbers: By index and line: integers, booleans, and values parsed from texts.
        valid: By field and line: True if there is a value.
        ends: By index and line, from the second line on: end of the text in `texts`.
        texts: By index: the concatenated texts, followed by eight spare bytes.

    Returns:
        Number of lines, and ALL_LINES_READ, UNSUPPORTED_LINE, or the number of a field whose text
        does not have its kind.
    """
    used = np.zeros(len(texts), np.int64)
    data, size, names = line_bytes.ctypes.data, len(line_bytes), keys.ctypes.data
    safe = size - WORD_BYTES
    row = 0
    at = 0
    # No key, number or text contains a newline, so every loop stops at the last newline.
    while at < size:
        if load_byte(data, at) == _NEWLINE:
            at += 1
            continue
        key = 0
        for field in range(len(kinds)):
            at = _skip_key(data, at, safe, names, key, key_ends[field])
            if at < 0:
                return row, UNSUPPORTED_LINE
            key = key_ends[field]
            kind, place = kinds[field], output_positions[field]
            is_text = kind in (FLOAT, TEXT)
            byte = load_byte(data, at)
            if byte == _NULL:
                if not _matches_word(data, at, 117, 108, 108):
                    return row, UNSUPPORTED_LINE
                at += 4
                valid[field, row] = 0
                if not is_text:
                    numbers[place, row] = 0
            elif kind == TEXT:
                if byte != _QUOTE:
                    return row, UNSUPPORTED_LINE
                at, used[place] = _copy_unescaped_text(
                    data, at + 1, safe, texts[place].ctypes.data, used[place]
                )
                if at < 0:
                    return row, UNSUPPORTED_LINE
                at += 1
            elif kind == INTEGER:
                end = _skip_digits(data, at + (byte == _MINUS))
                if end - at > _MAX_DIGITS or _skip_number(data, at) != end:
                    return row, UNSUPPORTED_LINE
                begin = at + (byte == _MINUS)
                number = _parse_digits(data, begin, end - begin)
                numbers[place, row] = -number if byte == _MINUS else number
                at = end
            elif kind == FLOAT:
                end = _skip_number(data, at)
                if end < 0:
                    return row, UNSUPPORTED_LINE
                while at < end:
                    texts[place, used[place]] = load_byte(data, at)
                    used[place] += 1
                    at += 1
            elif kind == BOOLEAN:
                if byte == _TRUE and _matches_word(data, at, 114, 117, 101):
                    numbers[place, row] = 1
                    at += 4
                elif (
                    byte == _FALSE
                    and _matches_word(data, at + 1, 108, 115, 101)
                    and load_byte(data, at + 1) == 97
                ):
                    numbers[place, row] = 0
                    at += 5
                else:
                    return row, UNSUPPORTED_LINE
            else:
                if byte != _QUOTE:
                    return row, UNSUPPORTED_LINE
                at += 1
                end = at
                while (
                    load_byte(data, end) != _QUOTE
                    and load_byte(data, end) >= _SPACE
                    and load_byte(data, end) != _BACKSLASH
                ):
                    end += 1
                if load_byte(data, end) != _QUOTE:
                    return row, field
                number = _parse_text_value(data, kind, scales[field], at, end)
                if number == _INVALID:
                    return row, field
                numbers[place, row] = number
                at = end + 1
            if is_text:
                ends[place, row + 1] = used[place]
        if load_byte(data, at) != _CLOSING_BRACE or load_byte(data, at + 1) != _NEWLINE:
            return row, UNSUPPORTED_LINE
        at += 2
        row += 1
    return row, ALL_LINES_READ


WORD_BYTES = 8
_LOW_BITS = np.uint64(0x0101_0101_0101_0101)
_HIGH_BITS = np.uint64(0x8080_8080_8080_8080)
_QUOTES = np.uint64(0x2222_2222_2222_2222)
_BACKSLASHES = np.uint64(0x5C5C_5C5C_5C5C_5C5C)
_SPACES = np.uint64(0x2020_2020_2020_2020)


def _build_pointer(builder, arguments, bits):
    return builder.inttoptr(builder.add(*arguments[:2]), ir.IntType(bits).as_pointer())


@intrinsic
def load_byte(_context, memory, offset):
    """Return the byte at `memory + offset`."""

    def generate(_context, builder, _signature, arguments):
        byte = builder.load(_build_pointer(builder, arguments, 8))
        return builder.zext(byte, ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def store_word(_context, memory, offset, word):
    """Write eight bytes at `memory + offset`."""

    def generate(context, builder, _signature, arguments):
        builder.store(arguments[2], _build_pointer(builder, arguments, 64), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint64), generate


@inline_jit
def count_plain_bytes(word):
    """Return the number of bytes in a word before a quote, backslash or control character."""
    quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
    # A borrow can only mark bytes above a matching byte, so the first mark is correct.
    found = (
        ((quotes - _LOW_BITS) & ~quotes)
        | ((backslashes - _LOW_BITS) & ~backslashes)
        | ((word - _SPACES) & ~word)
    ) & _HIGH_BITS
    return WORD_BYTES if found == 0 else count_trailing_zeros(found) >> 3
