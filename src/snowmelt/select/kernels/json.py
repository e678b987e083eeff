"""JSON kernels: scanner that validates JSON lines and locates values, and compact object copier.

The scanner accepts less than a decoder does and never more. The decoder reads everything that the
scanner rejects. The copier writes JSON objects as they were read, without the blanks between
values, and leaves out objects that would be written differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from snowmelt.jit import inline_jit, jit_kernel
from snowmelt.select.kernels.delimiter_masks import load_byte
from snowmelt.select.vectors import view_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.kernels.slices import Bytes, Mask, Positions

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: C901, PLR0911, PLR0912, PLR0915
# mypy: disable-error-code="arg-type, no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable"


# What a name's value is.
ABSENT = 0
TEXT = 1  # without escapes
INTEGER = 2  # an integer
DECIMAL = 3  # with a point, without an exponent
TRUE = 4
FALSE = 5
NULL = 6
OBJECT = 7
OTHER = 8  # for the evaluator

# Names in one buffer, where each begins and the end of the last, and whether each stands for
# names in any case.
FieldNames: TypeAlias = "tuple[Bytes, Positions, Bytes]"
# Where values begin and end, and what each is: names by records.
ValuePositions: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]"

_MAX_DEPTH = 60
_MAX_NUMBER_BYTES = 40
# Digits; from 19 on, numbers are beyond every decimal.
_MAX_EXPONENT_DIGITS = 6
_EXPECT_FIRST, _EXPECT_SEPARATOR, _EXPECT_NEXT = 0, 1, 2
_PLAIN, _QUOTE, _BACKSLASH, _CONTROL, _SUSPECT = 0, 1, 2, 3, 4

_STRING_BYTE_CLASSES = np.zeros(256, np.uint8)
_STRING_BYTE_CLASSES[:32] = _CONTROL
_STRING_BYTE_CLASSES[34] = _QUOTE
_STRING_BYTE_CLASSES[92] = _BACKSLASH
# Begins the Kelvin sign, the one character beyond ASCII whose small letter is ASCII.
_STRING_BYTE_CLASSES[0xE2] = _SUSPECT

_SHORT_ESCAPE = np.zeros(256, np.uint8)
_SHORT_ESCAPE[list(b'"\\/bfnrt')] = 1

_HEX_DIGITS = np.full(256, 255, np.uint8)
for _digit, _byte in enumerate(b"0123456789abcdef"):
    _HEX_DIGITS[_byte] = _HEX_DIGITS[_byte - 32 if _byte >= 97 else _byte] = _digit


@inline_jit
def _skip_blanks(data: int, position: int, end: int) -> int:
    while position < end and (
        load_byte(data, position) == 32
        or load_byte(data, position) == 9
        or load_byte(data, position) == 13
    ):
        position += 1
    return position


@inline_jit
def _scan_string(data: int, position: int, end: int) -> tuple[int, bool]:
    """Return where a string's closing quote stands (-1: refused), and whether it is plain."""
    plain = True
    while position < end:
        kind = _STRING_BYTE_CLASSES[load_byte(data, position)]
        if kind == 0:
            position += 1
            continue
        if kind == 1:
            return position, plain
        if kind == 3:
            return -1, False
        plain = False
        if kind == 4:
            position += 1
            continue
        if position + 1 < end and _SHORT_ESCAPE[load_byte(data, position + 1)]:
            position += 2
            continue
        if position + 5 >= end or load_byte(data, position + 1) != 117:
            return -1, False
        for place in range(2, 6):
            if _HEX_DIGITS[load_byte(data, position + place)] > 15:
                return -1, False
        if (
            _HEX_DIGITS[load_byte(data, position + 2)] == 13
            and _HEX_DIGITS[load_byte(data, position + 3)] >= 8
        ):
            # Half of a pair.
            return -1, False
        position += 6
    return -1, False


@inline_jit
def _skip_digits(data: int, position: int, end: int) -> int:
    while position < end and 48 <= load_byte(data, position) <= 57:
        position += 1
    return position


@inline_jit
def _scan_number(data: int, position: int, end: int) -> tuple[int, int]:
    """Return where a number ends (-1: refused) and what it is."""
    begin = position
    if load_byte(data, position) == 45:
        position += 1
    first = position
    position = _skip_digits(data, position, end)
    if position == first or (load_byte(data, first) == 48 and position > first + 1):
        return -1, OTHER
    # The integer -0 is 0: not what is written.
    what = OTHER if first > begin and load_byte(data, first) == 48 else INTEGER
    if position < end and load_byte(data, position) == 46:
        fraction = position + 1
        position = _skip_digits(data, fraction, end)
        if position == fraction:
            return -1, OTHER
        what = DECIMAL
    if position < end and (load_byte(data, position) == 101 or load_byte(data, position) == 69):
        position += 1
        if position < end and (load_byte(data, position) == 43 or load_byte(data, position) == 45):
            position += 1
        exponent = position
        position = _skip_digits(data, exponent, end)
        if position == exponent or position - exponent > _MAX_EXPONENT_DIGITS:
            return -1, OTHER
        what = OTHER
    if position - begin > _MAX_NUMBER_BYTES:
        return -1, OTHER
    return position, what


@inline_jit
def _scan_keyword(data: int, position: int, end: int) -> tuple[int, int]:
    """Return where true, false or null ends (-1: refused) and what it is."""
    left = end - position
    if (
        left >= 4
        and load_byte(data, position + 1) == 114
        and load_byte(data, position + 2) == 117
        and load_byte(data, position + 3) == 101
    ):
        return position + 4 if load_byte(data, position) == 116 else -1, TRUE
    if (
        left >= 4
        and load_byte(data, position + 1) == 117
        and load_byte(data, position + 2) == 108
        and load_byte(data, position + 3) == 108
    ):
        return position + 4 if load_byte(data, position) == 110 else -1, NULL
    if (
        left >= 5
        and load_byte(data, position) == 102
        and load_byte(data, position + 1) == 97
        and load_byte(data, position + 2) == 108
    ):
        return position + 5 if load_byte(data, position + 3) == 115 and load_byte(
            data, position + 4
        ) == 101 else -1, FALSE
    return -1, OTHER


@inline_jit
def _find_field_index(data: int, position: int, end: int, field_names: FieldNames) -> int:
    """Return the place of a name among those that are wanted, -1 if it is none."""
    text, places, folds = field_names
    for name in range(len(folds)):
        begin = places[name]
        if places[name + 1] - begin != end - position:
            continue
        same = True
        for i in range(end - position):
            byte = load_byte(data, position + i)
            if folds[name] and 65 <= byte <= 90:
                byte += 32
            if byte != text[begin + i]:
                same = False
                break
        if same:
            return name
    return -1


@jit_kernel
def _scan_object(
    data: int,
    position: int,
    end: int,
    field_names: FieldNames,
    row: int,
    value_positions: ValuePositions,
) -> int:
    """Read the object that begins at a place and note its wanted values.

    Returns:
        Where it ends; -1 where it is refused.
    """
    starts, ends, kinds = value_positions
    wanted = -1
    odd = False
    depth = 1
    # A bit for each open bracket, the innermost lowest: 1 for an object.
    stack = np.uint64(1)
    state = _EXPECT_FIRST
    position += 1
    while True:
        position = _skip_blanks(data, position, end)
        if position >= end:
            return -1
        byte = load_byte(data, position)
        is_object = stack & np.uint64(1) == np.uint64(1)
        if state != _EXPECT_NEXT and byte == (125 if is_object else 93):
            position += 1
            stack >>= np.uint64(1)
            depth -= 1
            if depth == 0:
                break
            if depth == 1 and wanted >= 0:
                ends[wanted, row] = position
            state = _EXPECT_SEPARATOR
            continue
        if state == _EXPECT_SEPARATOR:
            if byte != 44:
                return -1
            position += 1
            state = _EXPECT_NEXT
            continue
        if is_object:
            if byte != 34:
                return -1
            stop, plain = _scan_string(data, position + 1, end)
            if stop < 0:
                return -1
            if depth == 1:
                odd |= not plain
                wanted = _find_field_index(data, position + 1, stop, field_names)
                # Which of two counts is not for here to say.
                odd |= wanted >= 0 and kinds[wanted, row] != ABSENT
            position = _skip_blanks(data, stop + 1, end)
            if position >= end or load_byte(data, position) != 58:
                return -1
            position = _skip_blanks(data, position + 1, end)
            if position >= end:
                return -1
            byte = load_byte(data, position)
        begin = position
        opens = byte == 123 or byte == 91
        is_text = byte == 34
        what = OTHER
        if is_text:
            stop, plain = _scan_string(data, position + 1, end)
            if stop < 0:
                return -1
            position = stop + 1
            for i in range(begin + 1, 0 if plain or depth > 1 else stop):
                plain = load_byte(data, i) != 92
                if not plain:
                    break
            what = TEXT if plain else OTHER
        elif opens:
            position += 1
            what = OBJECT if byte == 123 else OTHER
        elif byte >= 97:
            position, what = _scan_keyword(data, position, end)
        else:
            position, what = _scan_number(data, position, end)
        if position < 0:
            return -1
        if depth == 1 and wanted >= 0:
            # A text without its quotes.
            starts[wanted, row] = begin + is_text
            ends[wanted, row] = position - is_text
            kinds[wanted, row] = what
        state = _EXPECT_SEPARATOR
        if opens:
            if depth == _MAX_DEPTH:
                return -1
            depth += 1
            stack = (stack << np.uint64(1)) | np.uint64(byte == 123)
            state = _EXPECT_FIRST
    if odd:
        kinds[:, row] = OTHER
    return position


@jit_kernel
def _scan_lines(
    buffer: Bytes,
    start: int,
    end: int,
    field_names: FieldNames,
    bounds: NDArray[np.int32],
    value_positions: ValuePositions,
) -> int:
    """Read lines of one object each; return how many, -1 where anything else stands there."""
    data = buffer.ctypes.data
    # A plain 0 would compile the reader of objects once more, for the first one.
    count = np.int64(0)
    at = start
    while True:
        at = _skip_blanks(data, at, end)
        if at >= end:
            return count
        if load_byte(data, at) == 10:
            at += 1
            continue
        if load_byte(data, at) != 123:
            return -1
        bounds[0, count] = at
        at = _scan_object(data, at, end, field_names, count, value_positions)
        if at < 0:
            return -1
        bounds[1, count] = at
        count += 1
        at = _skip_blanks(data, at, end)
        if at < end and load_byte(data, at) != 10:
            return -1


@jit_kernel
def _scan_nested_objects(
    buffer: Bytes,
    starts: Positions,
    ends: Positions,
    kinds: Bytes,
    field_names: FieldNames,
    value_positions: ValuePositions,
) -> None:
    data = buffer.ctypes.data
    for row in range(len(starts)):
        if kinds[row] == OBJECT:
            begin, end = np.int64(starts[row]), np.int64(ends[row])
            _scan_object(data, begin, end, field_names, row, value_positions)
        elif kinds[row] == OTHER:
            value_positions[2][:, row] = OTHER


def scan_json_lines(
    data: Bytes, start: int, end: int, field_names: FieldNames, max_records: int
) -> tuple[NDArray[np.int32], ValuePositions] | None:
    """Find the records of data[start:end], one object a line, and the values of some names.

    Args:
        data: The text, valid UTF-8.
        start: Where the first line begins.
        end: Where the last one ends.
        field_names: What is wanted.
        max_records: No more records than this are there.

    Returns:
        Where each record begins and ends, and the values; None where a line is something else,
        or may be.
    """
    bounds = np.empty((2, max_records), np.int32)
    found = _allocate_positions(len(field_names[2]), max_records)
    count = _scan_lines(data, start, end, field_names, bounds, found)
    if count < 0:
        return None
    starts, ends, kinds = found
    return bounds[:, :count], (starts[:, :count], ends[:, :count], kinds[:, :count])


def scan_nested_fields(
    data: Bytes, starts: Positions, ends: Positions, kinds: Bytes, field_names: FieldNames
) -> ValuePositions:
    """Find the values of some names in objects that `scan_json_lines` found."""
    found = _allocate_positions(len(field_names[2]), len(starts))
    _scan_nested_objects(data, starts, ends, kinds, field_names, found)
    return found


def encode_field_names(names: list[tuple[bytes, bool]]) -> FieldNames:
    """Return names as kernels take them; small letters of one that stands for names in any case."""
    texts = [text for text, _ in names]
    places = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    folds = np.array([folds for _, folds in names], np.uint8)
    return view_bytes(b"".join(texts) or b"\0"), places, folds


def _allocate_positions(name_count: int, row_count: int) -> ValuePositions:
    shape = (name_count, row_count)
    return np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.uint8)


# --- Kernel that writes JSON objects again as they were read, without the blanks between values.

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, assignment, redundant-expr, var-annotated, unreachable"


# Objects deeper than this, with more names and numbers longer than this are left alone.
_MAX_COPY_DEPTH = 16
_MAX_COPY_NAMES = 64
_MAX_COPY_NUMBER_BYTES = 18

_CLASS_PLAIN, _CLASS_QUOTE, _CLASS_BLANK, _CLASS_NUMBER, _CLASS_OPEN, _CLASS_CLOSE, _CLASS_COLON = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
)
_BYTE_CLASSES = np.zeros(256, np.uint8)
_BYTE_CLASSES[34] = _CLASS_QUOTE
_BYTE_CLASSES[list(b" \t\r")] = _CLASS_BLANK
_BYTE_CLASSES[list(b"-0123456789")] = _CLASS_NUMBER
_BYTE_CLASSES[ord("{")] = _CLASS_OPEN
_BYTE_CLASSES[ord("}")] = _CLASS_CLOSE
_BYTE_CLASSES[ord(":")] = _CLASS_COLON
# Escapes that are written as they are read.
_UNCHANGED_ESCAPES = np.zeros(256, np.uint8)
_UNCHANGED_ESCAPES[list(b'"\\nrtbf')] = 1
_NUMBER_BYTES = np.zeros(256, np.uint8)
_NUMBER_BYTES[list(b"+-.eE0123456789")] = 1
_FNV_OFFSET_BASIS, _FNV_PRIME = np.uint64(0xCBF2_9CE4_8422_2325), np.uint64(0x0000_0100_0000_01B3)


@inline_jit
def _find_number_end(data: int, position: int, end: int) -> tuple[int, bool]:
    """Return where a number ends, and whether it is written as it is read."""
    begin = position
    kept = True
    while position < end and _NUMBER_BYTES[load_byte(data, position)]:
        kept &= load_byte(data, position) | 32 != 101
        position += 1
    # The integer -0 is written as 0.
    minus_zero = (
        position - begin == 2 and load_byte(data, begin) == 45 and load_byte(data, begin + 1) == 48
    )
    return position, kept and not minus_zero and position - begin <= _MAX_COPY_NUMBER_BYTES


@jit_kernel
def copy_json_objects(
    buffer: Bytes, starts: Positions, ends: Positions, record_delimiter: Bytes
) -> tuple[Bytes, NDArray[np.int64], Mask]:
    """Copy valid JSON objects without blanks, `record_delimiter` behind each.

    Returns:
        What was written, where each object ends in it, and which were left out: those with a
        name that occurs twice in one object, or with text that would be written in another way.
    """
    rows = len(starts)
    out = np.empty((ends - starts).sum() + rows * len(record_delimiter), np.uint8)
    row_ends = np.empty(rows, np.int64)
    odd = np.zeros(rows, np.bool_)
    names = np.empty((_MAX_COPY_DEPTH, _MAX_COPY_NAMES), np.uint64)
    counts = np.zeros(_MAX_COPY_DEPTH, np.int64)
    data = buffer.ctypes.data
    at = 0
    for r in range(rows):
        begin = at
        place, end = np.int64(starts[r]), np.int64(ends[r])
        depth = -1
        hashed = _FNV_OFFSET_BASIS
        kept = True
        while place < end and kept:
            byte = load_byte(data, place)
            kind = _BYTE_CLASSES[byte]
            if kind == _CLASS_BLANK:
                place += 1
                continue
            if kind == _CLASS_NUMBER:
                stop, kept = _find_number_end(data, place, end)
                while place < stop:
                    out[at] = load_byte(data, place)
                    at += 1
                    place += 1
                continue
            out[at] = byte
            at += 1
            place += 1
            if kind == _CLASS_QUOTE:
                hashed = _FNV_OFFSET_BASIS
                while True:
                    byte = load_byte(data, place)
                    out[at] = byte
                    at += 1
                    place += 1
                    if byte == 34:
                        break
                    hashed = (hashed ^ np.uint64(byte)) * _FNV_PRIME
                    if byte == 92:
                        byte = load_byte(data, place)
                        kept &= _UNCHANGED_ESCAPES[byte] != 0
                        hashed = (hashed ^ np.uint64(byte)) * _FNV_PRIME
                        out[at] = byte
                        at += 1
                        place += 1
            elif kind == _CLASS_COLON:
                count = counts[depth]
                kept = count < _MAX_COPY_NAMES
                for i in range(count):
                    kept &= names[depth, i] != hashed
                if kept:
                    names[depth, count] = hashed
                    counts[depth] = count + 1
            elif kind == _CLASS_OPEN:
                depth += 1
                kept = depth < _MAX_COPY_DEPTH
                if kept:
                    counts[depth] = 0
            elif kind == _CLASS_CLOSE:
                depth -= 1
        if kept:
            for i in range(len(record_delimiter)):
                out[at] = record_delimiter[i]
                at += 1
        else:
            odd[r] = True
            at = begin
        row_ends[r] = at
    return out[:at], row_ends, odd
