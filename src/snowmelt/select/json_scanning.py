"""Numba kernels that read JSON lines: what is JSON, and where the values of some names lie.

They accept less than a decoder does and never more: what they refuse is left to the decoder.
"""

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: C901, PLR0911, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from snowmelt.select.compiled import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.select.vectors import Bytes, Places

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


@kernel
def _past_blanks(data: Bytes, at: int, end: int) -> int:
    while at < end and (data[at] == 32 or data[at] == 9 or data[at] == 13):
        at += 1
    return at


@kernel
def _string(data: Bytes, at: int, end: int) -> tuple[int, bool]:
    """Return where a string's closing quote stands (-1: refused), and whether it is plain."""
    plain = True
    while at < end:
        kind = _STRING[data[at]]
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
        if at + 1 < end and _SHORT_ESCAPE[data[at + 1]]:
            at += 2
            continue
        if at + 5 >= end or data[at + 1] != 117:
            return -1, False
        for place in range(2, 6):
            if _HEX[data[at + place]] > 15:
                return -1, False
        if _HEX[data[at + 2]] == 13 and _HEX[data[at + 3]] >= 8:
            # Half of a pair.
            return -1, False
        at += 6
    return -1, False


@kernel
def _digits(data: Bytes, at: int, end: int) -> int:
    while at < end and 48 <= data[at] <= 57:
        at += 1
    return at


@kernel
def _number(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return where a number ends (-1: refused) and what it is."""
    begin = at
    if data[at] == 45:
        at += 1
    first = at
    at = _digits(data, at, end)
    if at == first or (data[first] == 48 and at > first + 1):
        return -1, OTHER
    # The integer -0 is 0: not what is written.
    what = OTHER if first > begin and data[first] == 48 else WHOLE
    if at < end and data[at] == 46:
        fraction = at + 1
        at = _digits(data, fraction, end)
        if at == fraction:
            return -1, OTHER
        what = DECIMAL
    if at < end and (data[at] == 101 or data[at] == 69):
        at += 1
        if at < end and (data[at] == 43 or data[at] == 45):
            at += 1
        exponent = at
        at = _digits(data, exponent, end)
        if at == exponent:
            return -1, OTHER
        what = OTHER
    if at - begin > _LONGEST_NUMBER:
        return -1, OTHER
    return at, what


@kernel
def _word(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return where true, false or null ends (-1: refused) and what it is."""
    left = end - at
    if left >= 4 and data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101:
        return at + 4 if data[at] == 116 else -1, TRUE
    if left >= 4 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108:
        return at + 4 if data[at] == 110 else -1, NULL
    if left >= 5 and data[at] == 102 and data[at + 1] == 97 and data[at + 2] == 108:
        return at + 5 if data[at + 3] == 115 and data[at + 4] == 101 else -1, FALSE
    return -1, OTHER


@kernel
def _place_of(data: Bytes, at: int, end: int, names: Names) -> int:
    """Return the place of a name among those that are wanted, -1 if it is none."""
    text, places, folds = names
    for name in range(len(folds)):
        begin = places[name]
        if places[name + 1] - begin != end - at:
            continue
        same = True
        for i in range(end - at):
            byte = data[at + i]
            if folds[name] and 65 <= byte <= 90:
                byte += 32
            if byte != text[begin + i]:
                same = False
                break
        if same:
            return name
    return -1


@kernel
def _record(data: Bytes, at: int, end: int, names: Names, row: int, found: Found) -> int:
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
        byte = data[at]
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
            if at >= end or data[at] != 58:
                return -1
            at = _past_blanks(data, at + 1, end)
            if at >= end:
                return -1
            byte = data[at]
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
                plain = data[i] != 92
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


@kernel
def _lines(
    data: Bytes, start: int, end: int, names: Names, bounds: NDArray[np.int32], found: Found
) -> int:
    """Read lines of one object each; return how many, -1 where anything else stands there."""
    count = 0
    at = start
    while True:
        at = _past_blanks(data, at, end)
        if at >= end:
            return count
        if data[at] == 10:
            at += 1
            continue
        if data[at] != 123:
            return -1
        bounds[0, count] = at
        at = _record(data, at, end, names, count, found)
        if at < 0:
            return -1
        bounds[1, count] = at
        count += 1
        at = _past_blanks(data, at, end)
        if at < end and data[at] != 10:
            return -1


@kernel
def _inside(
    data: Bytes, starts: Places, ends: Places, kinds: Bytes, names: Names, found: Found
) -> None:
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
    """Return names, each with whether it stands for names in any case, as kernels take them."""
    texts = [text.lower() if folds else text for text, folds in names]
    places = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    folds = np.array([folds for _, folds in names], np.uint8)
    return np.frombuffer(b"".join(texts) or b"\0", np.uint8), places, folds


def _tables(names: int, rows: int) -> Found:
    shape = (names, rows)
    return np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.uint8)
