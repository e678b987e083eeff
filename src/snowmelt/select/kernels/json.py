"""Numba kernels that read JSON lines: what is JSON, and where the values of some names lie.

They accept less than a decoder does and never more: what they refuse is left to the decoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from snowmelt.jit import jit_kernel
from snowmelt.select.kernels.bitmask import byte_at, inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.select.vectors import Bytes, Mask, Places

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: C901, PLR0911, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable"


# What a name's value is.
ABSENT = 0
TEXT = 1  # without escapes
WHOLE = 2  # an integer
DECIMAL = 3  # with a point, without an exponent
TRUE = 4
FALSE = 5
NULL = 6
OBJECT = 7
OTHER = 8  # for the evaluator

# Names in one buffer, where each begins and the end of the last, and whether each stands for
# names in any case.
Names: TypeAlias = "tuple[Bytes, Places, Bytes]"
# Where values begin and end, and what each is: names by records.
Found: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]"

_DEEPEST = 60
_LONGEST_NUMBER = 40
# Digits; from 19 on, numbers are beyond every decimal.
_LONGEST_EXPONENT = 6
_FRESH, _AFTER, _NEXT = 0, 1, 2
_PLAIN, _QUOTE, _BACKSLASH, _CONTROL, _SUSPECT = 0, 1, 2, 3, 4

_STRING = np.zeros(256, np.uint8)
_STRING[:32] = _CONTROL
_STRING[34] = _QUOTE
_STRING[92] = _BACKSLASH
# Begins the Kelvin sign, the one character beyond ASCII whose small letter is ASCII.
_STRING[0xE2] = _SUSPECT

_SHORT_ESCAPE = np.zeros(256, np.uint8)
_SHORT_ESCAPE[list(b'"\\/bfnrt')] = 1

_HEX = np.full(256, 255, np.uint8)
for _digit, _byte in enumerate(b"0123456789abcdef"):
    _HEX[_byte] = _HEX[_byte - 32 if _byte >= 97 else _byte] = _digit


@inlined
def _past_blanks(data: int, at: int, end: int) -> int:
    while at < end and (
        byte_at(data, at) == 32 or byte_at(data, at) == 9 or byte_at(data, at) == 13
    ):
        at += 1
    return at


@inlined
def _string(data: int, at: int, end: int) -> tuple[int, bool]:
    """Return where a string's closing quote stands (-1: refused), and whether it is plain."""
    plain = True
    while at < end:
        kind = _STRING[byte_at(data, at)]
        if kind == 0:
            at += 1
            continue
        if kind == 1:
            return at, plain
        if kind == 3:
            return -1, False
        plain = False
        if kind == 4:
            at += 1
            continue
        if at + 1 < end and _SHORT_ESCAPE[byte_at(data, at + 1)]:
            at += 2
            continue
        if at + 5 >= end or byte_at(data, at + 1) != 117:
            return -1, False
        for place in range(2, 6):
            if _HEX[byte_at(data, at + place)] > 15:
                return -1, False
        if _HEX[byte_at(data, at + 2)] == 13 and _HEX[byte_at(data, at + 3)] >= 8:
            # Half of a pair.
            return -1, False
        at += 6
    return -1, False


@inlined
def _digits(data: int, at: int, end: int) -> int:
    while at < end and 48 <= byte_at(data, at) <= 57:
        at += 1
    return at


@inlined
def _number(data: int, at: int, end: int) -> tuple[int, int]:
    """Return where a number ends (-1: refused) and what it is."""
    begin = at
    if byte_at(data, at) == 45:
        at += 1
    first = at
    at = _digits(data, at, end)
    if at == first or (byte_at(data, first) == 48 and at > first + 1):
        return -1, OTHER
    # The integer -0 is 0: not what is written.
    what = OTHER if first > begin and byte_at(data, first) == 48 else WHOLE
    if at < end and byte_at(data, at) == 46:
        fraction = at + 1
        at = _digits(data, fraction, end)
        if at == fraction:
            return -1, OTHER
        what = DECIMAL
    if at < end and (byte_at(data, at) == 101 or byte_at(data, at) == 69):
        at += 1
        if at < end and (byte_at(data, at) == 43 or byte_at(data, at) == 45):
            at += 1
        exponent = at
        at = _digits(data, exponent, end)
        if at == exponent or at - exponent > _LONGEST_EXPONENT:
            return -1, OTHER
        what = OTHER
    if at - begin > _LONGEST_NUMBER:
        return -1, OTHER
    return at, what


@inlined
def _word(data: int, at: int, end: int) -> tuple[int, int]:
    """Return where true, false or null ends (-1: refused) and what it is."""
    left = end - at
    if (
        left >= 4
        and byte_at(data, at + 1) == 114
        and byte_at(data, at + 2) == 117
        and byte_at(data, at + 3) == 101
    ):
        return at + 4 if byte_at(data, at) == 116 else -1, TRUE
    if (
        left >= 4
        and byte_at(data, at + 1) == 117
        and byte_at(data, at + 2) == 108
        and byte_at(data, at + 3) == 108
    ):
        return at + 4 if byte_at(data, at) == 110 else -1, NULL
    if (
        left >= 5
        and byte_at(data, at) == 102
        and byte_at(data, at + 1) == 97
        and byte_at(data, at + 2) == 108
    ):
        return at + 5 if byte_at(data, at + 3) == 115 and byte_at(
            data, at + 4
        ) == 101 else -1, FALSE
    return -1, OTHER


@inlined
def _place_of(data: int, at: int, end: int, names: Names) -> int:
    """Return the place of a name among those that are wanted, -1 if it is none."""
    text, places, folds = names
    for name in range(len(folds)):
        begin = places[name]
        if places[name + 1] - begin != end - at:
            continue
        same = True
        for i in range(end - at):
            byte = byte_at(data, at + i)
            if folds[name] and 65 <= byte <= 90:
                byte += 32
            if byte != text[begin + i]:
                same = False
                break
        if same:
            return name
    return -1


@jit_kernel
def _record(data: int, at: int, end: int, names: Names, row: int, found: Found) -> int:
    """Read the object that begins at a place and note its wanted values.

    Returns:
        Where it ends; -1 where it is refused.
    """
    starts, ends, kinds = found
    wanted = -1
    odd = False
    depth = 1
    # A bit for each open bracket, the innermost lowest: 1 for an object.
    stack = np.uint64(1)
    state = _FRESH
    at += 1
    while True:
        at = _past_blanks(data, at, end)
        if at >= end:
            return -1
        byte = byte_at(data, at)
        is_object = stack & np.uint64(1) == np.uint64(1)
        if state != _NEXT and byte == (125 if is_object else 93):
            at += 1
            stack >>= np.uint64(1)
            depth -= 1
            if depth == 0:
                break
            if depth == 1 and wanted >= 0:
                ends[wanted, row] = at
            state = _AFTER
            continue
        if state == _AFTER:
            if byte != 44:
                return -1
            at += 1
            state = _NEXT
            continue
        if is_object:
            if byte != 34:
                return -1
            stop, plain = _string(data, at + 1, end)
            if stop < 0:
                return -1
            if depth == 1:
                odd |= not plain
                wanted = _place_of(data, at + 1, stop, names)
                # Which of two counts is not for here to say.
                odd |= wanted >= 0 and kinds[wanted, row] != ABSENT
            at = _past_blanks(data, stop + 1, end)
            if at >= end or byte_at(data, at) != 58:
                return -1
            at = _past_blanks(data, at + 1, end)
            if at >= end:
                return -1
            byte = byte_at(data, at)
        begin = at
        opens = byte == 123 or byte == 91
        is_text = byte == 34
        what = OTHER
        if is_text:
            stop, plain = _string(data, at + 1, end)
            if stop < 0:
                return -1
            at = stop + 1
            for i in range(begin + 1, 0 if plain or depth > 1 else stop):
                plain = byte_at(data, i) != 92
                if not plain:
                    break
            what = TEXT if plain else OTHER
        elif opens:
            at += 1
            what = OBJECT if byte == 123 else OTHER
        elif byte >= 97:
            at, what = _word(data, at, end)
        else:
            at, what = _number(data, at, end)
        if at < 0:
            return -1
        if depth == 1 and wanted >= 0:
            # A text without its quotes.
            starts[wanted, row] = begin + is_text
            ends[wanted, row] = at - is_text
            kinds[wanted, row] = what
        state = _AFTER
        if opens:
            if depth == _DEEPEST:
                return -1
            depth += 1
            stack = (stack << np.uint64(1)) | np.uint64(byte == 123)
            state = _FRESH
    if odd:
        kinds[:, row] = OTHER
    return at


@jit_kernel
def _lines(
    buffer: Bytes, start: int, end: int, names: Names, bounds: NDArray[np.int32], found: Found
) -> int:
    """Read lines of one object each; return how many, -1 where anything else stands there."""
    data = buffer.ctypes.data
    count = 0
    at = start
    while True:
        at = _past_blanks(data, at, end)
        if at >= end:
            return count
        if byte_at(data, at) == 10:
            at += 1
            continue
        if byte_at(data, at) != 123:
            return -1
        bounds[0, count] = at
        at = _record(data, at, end, names, count, found)
        if at < 0:
            return -1
        bounds[1, count] = at
        count += 1
        at = _past_blanks(data, at, end)
        if at < end and byte_at(data, at) != 10:
            return -1


@jit_kernel
def _inside(
    buffer: Bytes, starts: Places, ends: Places, kinds: Bytes, names: Names, found: Found
) -> None:
    data = buffer.ctypes.data
    for row in range(len(starts)):
        if kinds[row] == OBJECT:
            _record(data, starts[row], ends[row], names, row, found)
        elif kinds[row] == OTHER:
            found[2][:, row] = OTHER


def read_lines(
    data: Bytes, start: int, end: int, names: Names, most: int
) -> tuple[NDArray[np.int32], Found] | None:
    """Find the records of data[start:end], one object a line, and the values of some names.

    Args:
        data: The text, valid UTF-8.
        start: Where the first line begins.
        end: Where the last one ends.
        names: What is wanted.
        most: No more records than this are there.

    Returns:
        Where each record begins and ends, and the values; None where a line is something else,
        or may be.
    """
    bounds = np.empty((2, most), np.int32)
    found = _tables(len(names[2]), most)
    count = _lines(data, start, end, names, bounds, found)
    if count < 0:
        return None
    starts, ends, kinds = found
    return bounds[:, :count], (starts[:, :count], ends[:, :count], kinds[:, :count])


def read_inside(data: Bytes, starts: Places, ends: Places, kinds: Bytes, names: Names) -> Found:
    """Find the values of some names in objects that `read_lines` found."""
    found = _tables(len(names[2]), len(starts))
    _inside(data, starts, ends, kinds, names, found)
    return found


def names_of(names: list[tuple[bytes, bool]]) -> Names:
    """Return names as kernels take them; small letters of one that stands for names in any case."""
    texts = [text for text, _ in names]
    places = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    folds = np.array([folds for _, folds in names], np.uint8)
    return np.frombuffer(b"".join(texts) or b"\0", np.uint8), places, folds


def _tables(names: int, rows: int) -> Found:
    shape = (names, rows)
    return np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.uint8)


# --- Kernel that writes JSON objects again as they were read, without the blanks between values.

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, assignment, redundant-expr, var-annotated, unreachable"


# Objects deeper than this, with more names and numbers longer than this are left alone.
_DEEPEST_JSON_COPYING = 16
_MOST_NAMES = 64
_LONGEST_NUMBER_JSON_COPYING = 18

_PLAIN_JSON_COPYING, _QUOTE_JSON_COPYING, _BLANK, _NUMBER, _OPEN, _CLOSE, _COLON = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
)
_CLASSES = np.zeros(256, np.uint8)
_CLASSES[34] = _QUOTE_JSON_COPYING
_CLASSES[list(b" \t\r")] = _BLANK
_CLASSES[list(b"-0123456789")] = _NUMBER
_CLASSES[ord("{")] = _OPEN
_CLASSES[ord("}")] = _CLOSE
_CLASSES[ord(":")] = _COLON
# Escapes that are written as they are read.
_KEPT = np.zeros(256, np.uint8)
_KEPT[list(b'"\\nrtbf')] = 1
_IN_NUMBERS = np.zeros(256, np.uint8)
_IN_NUMBERS[list(b"+-.eE0123456789")] = 1
_HASH, _PRIME = np.uint64(0xCBF2_9CE4_8422_2325), np.uint64(0x0000_0100_0000_01B3)


@inlined
def _number_end(data: int, at: int, end: int) -> tuple[int, bool]:
    """Return where a number ends, and whether it is written as it is read."""
    begin = at
    kept = True
    while at < end and _IN_NUMBERS[byte_at(data, at)]:
        kept &= byte_at(data, at) | 32 != 101
        at += 1
    # The integer -0 is written as 0.
    minus_zero = at - begin == 2 and byte_at(data, begin) == 45 and byte_at(data, begin + 1) == 48
    return at, kept and not minus_zero and at - begin <= _LONGEST_NUMBER_JSON_COPYING


@jit_kernel
def copy_objects(
    buffer: Bytes, starts: Places, ends: Places, after: Bytes
) -> tuple[Bytes, NDArray[np.int64], Mask]:
    """Copy valid JSON objects without blanks, `after` behind each.

    Returns:
        What was written, where each object ends in it, and which were left out: those with a
        name that occurs twice in one object, or with text that would be written in another way.
    """
    rows = len(starts)
    out = np.empty((ends - starts).sum() + rows * len(after), np.uint8)
    row_ends = np.empty(rows, np.int64)
    odd = np.zeros(rows, np.bool_)
    names = np.empty((_DEEPEST_JSON_COPYING, _MOST_NAMES), np.uint64)
    counts = np.zeros(_DEEPEST_JSON_COPYING, np.int64)
    data = buffer.ctypes.data
    at = 0
    for r in range(rows):
        begin = at
        place, end = np.int64(starts[r]), np.int64(ends[r])
        depth = -1
        hashed = _HASH
        kept = True
        while place < end and kept:
            byte = byte_at(data, place)
            kind = _CLASSES[byte]
            if kind == _BLANK:
                place += 1
                continue
            if kind == _NUMBER:
                stop, kept = _number_end(data, place, end)
                while place < stop:
                    out[at] = byte_at(data, place)
                    at += 1
                    place += 1
                continue
            out[at] = byte
            at += 1
            place += 1
            if kind == _QUOTE_JSON_COPYING:
                hashed = _HASH
                while True:
                    byte = byte_at(data, place)
                    out[at] = byte
                    at += 1
                    place += 1
                    if byte == 34:
                        break
                    hashed = (hashed ^ np.uint64(byte)) * _PRIME
                    if byte == 92:
                        byte = byte_at(data, place)
                        kept &= _KEPT[byte] != 0
                        hashed = (hashed ^ np.uint64(byte)) * _PRIME
                        out[at] = byte
                        at += 1
                        place += 1
            elif kind == _COLON:
                count = counts[depth]
                kept = count < _MOST_NAMES
                for i in range(count):
                    kept &= names[depth, i] != hashed
                if kept:
                    names[depth, count] = hashed
                    counts[depth] = count + 1
            elif kind == _OPEN:
                depth += 1
                kept = depth < _DEEPEST_JSON_COPYING
                if kept:
                    counts[depth] = 0
            elif kind == _CLOSE:
                depth -= 1
        if kept:
            for i in range(len(after)):
                out[at] = after[i]
                at += 1
        else:
            odd[r] = True
            at = begin
        row_ends[r] = at
    return out[:at], row_ends, odd
