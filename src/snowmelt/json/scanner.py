"""Compiled scanner: validates JSON objects and locates the values of chosen keys.

The scanner rejects some valid JSON, which the exact reader must read: objects nested `_MAX_DEPTH`
levels deep, escaped surrogates, and numbers above `_MAX_NUMBER_BYTES` or `_MAX_EXPONENT_DIGITS`.
The input must be valid UTF-8, in a buffer that extends `snowmelt.kernels.slices.PADDING_BYTES` past
its end.

Objects of one source repeat their keys. The scanner caches the text between two values of the
previous object (`, "key": `) and compares it with the input, 32 bytes at a time. A repeated key
therefore needs no validation and no lookup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from snowmelt.jit import helper_jit, inline_jit, jit_kernel
from snowmelt.json.intrinsics import (
    find_digits,
    find_equal,
    find_special,
    store_byte,
    store_position,
    store_word,
)
from snowmelt.kernels.delimiter_masks import (
    count_ones,
    count_trailing_zeros,
    load_byte,
    load_word,
)
from snowmelt.kernels.slices import Bytes, Positions

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Each kernel is one long function. Functions that only kernels call have no annotations, because
# Numba infers the types.
# ruff: noqa: ANN001, ANN202, C901, PLR0911, PLR0912, PLR0913, PLR0917
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable, assignment, possibly-undefined, redundant-expr"

# Kinds of values.
ABSENT = 0
TEXT = 1  # A string without escapes.
INTEGER = 2  # A number without a point and without an exponent.
DECIMAL = 3  # A number with a point and without an exponent.
TRUE = 4
FALSE = 5
NULL = 6
OBJECT = 7
OTHER = 8  # An array, or a value that only the exact reader can identify.
ESCAPED_TEXT = 9
EXPONENT = 10  # A number with an exponent that is finite as a double.

# Requested names as three arrays. The first is a buffer with all names. The second has the start of
# each name, and the end of the last one. The third has True for each case-insensitive name.
FieldNames: TypeAlias = "tuple[Bytes, Positions, Bytes]"
# Start, end and kind of each value: three arrays with a row for each name and a column for each
# record.
ValuePositions: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]"
# Three arrays with one item for each member of an object, by position. The first has the text
# between the values of the previous member and this one. The second has the size of that text. The
# third has the index of the member's key among the names.
Templates: TypeAlias = "tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]"

_MAX_DEPTH = 60
_MAX_NUMBER_BYTES = 40
# Maximum digits of an exponent: no number of `_MAX_NUMBER_BYTES` then exceeds a double.
_MAX_EXPONENT_DIGITS = 2
_EXPECT_FIRST, _EXPECT_SEPARATOR, _EXPECT_NEXT = 0, 1, 2
_LINE_FEED, _BLANK, _QUOTE, _BACKSLASH = 10, 32, 34, 92
# First byte of the Kelvin sign, the only non-ASCII character with an ASCII lower-case letter.
_SUSPECT = 0xE2
_MAX_TEMPLATES = 64
_TEMPLATE_BYTES = 32
# Maximum objects per call: larger tables would cost more than another call.
_MAX_FRAMED_OBJECTS = 4096
# A size that never matches, because a comparison covers 32 bytes.
_NO_TEMPLATE = _TEMPLATE_BYTES + 1
_ONE = np.uint64(1)
_TRUE, _NULL, _FALSE_START = (
    np.uint64(int.from_bytes(word, "little")) for word in (b"true", b"null", b"false"[:4])
)
_LOW_HALF = np.uint64(0xFFFF_FFFF)

_LINE_FEEDS = np.full(_TEMPLATE_BYTES, _LINE_FEED, np.uint8)
_SHORT_ESCAPE = np.zeros(256, np.uint8)
_SHORT_ESCAPE[list(b'"\\/bfnrt')] = 1

HEX_DIGITS = np.full(256, 255, np.uint8)
for _digit, _byte in enumerate(b"0123456789abcdef"):
    HEX_DIGITS[_byte] = HEX_DIGITS[_byte - 32 if _byte >= 97 else _byte] = _digit


@inline_jit
def _skip_blanks(data, position, end, line_break):
    """Skip blanks, including `line_break`."""
    while position < end:
        byte = load_byte(data, position)
        if byte > _BLANK or byte not in (_BLANK, 9, 13, line_break):
            break
        position += 1
    return position


@inline_jit
def _check_escape(data, position, end):
    """Return the size of an escape, or 0 if it is rejected."""
    if position + 1 < end and _SHORT_ESCAPE[load_byte(data, position + 1)]:
        return 2
    if position + 5 >= end or load_byte(data, position + 1) != 117:
        return 0
    for place in range(2, 6):
        if HEX_DIGITS[load_byte(data, position + place)] > 15:
            return 0
    if (
        HEX_DIGITS[load_byte(data, position + 2)] == 13
        and HEX_DIGITS[load_byte(data, position + 3)] >= 8
    ):
        # Reject an escaped surrogate.
        return 0
    return 6


@inline_jit
def _scan_string(data, position, end):
    """Return a string's closing quote (-1: rejected), and True if the string has no escapes."""
    plain = True
    while position < end:
        special = find_special(data, position)
        if special == np.uint64(0):
            position += 32
            continue
        position += count_trailing_zeros(special)
        if position >= end:
            break
        byte = load_byte(data, position)
        if byte == _QUOTE:
            return position, plain
        if byte != _BACKSLASH:
            break
        plain = False
        size = _check_escape(data, position, end)
        if size == 0:
            break
        position += size
    return np.int64(-1), False


@inline_jit
def _skip_digits(data, position, end):
    while position < end and 48 <= load_byte(data, position) <= 57:
        position += 1
    return position


@helper_jit
def _scan_long_number(data, position, end):
    """Return the end of a number (-1: rejected) and its kind."""
    begin = position
    if load_byte(data, position) == 45:
        position += 1
    first = position
    position = _skip_digits(data, position, end)
    if position == first or (load_byte(data, first) == 48 and position > first + 1):
        return np.int64(-1), OTHER
    # Reject the integer -0, which would lose its sign.
    what = OTHER if first > begin and load_byte(data, first) == 48 else INTEGER
    if position < end and load_byte(data, position) == 46:
        fraction = position + 1
        position = _skip_digits(data, fraction, end)
        if position == fraction:
            return np.int64(-1), OTHER
        what = DECIMAL
    if position < end and load_byte(data, position) | 32 == 101:
        position += 1
        if position < end and (load_byte(data, position) == 43 or load_byte(data, position) == 45):
            position += 1
        exponent = position
        position = _skip_digits(data, exponent, end)
        if position == exponent or position - exponent > _MAX_EXPONENT_DIGITS:
            return np.int64(-1), OTHER
        what = EXPONENT
    if position - begin > _MAX_NUMBER_BYTES:
        return np.int64(-1), OTHER
    return position, what


@inline_jit
def _scan_number(data, position, end):
    """Return the end of a number (-1: rejected) and its kind."""
    is_negative = load_byte(data, position) == 45
    first = position + is_negative
    digits = find_digits(data, first)
    whole = count_trailing_zeros(~digits)
    stop = first + whole
    what = INTEGER
    if whole < 31 and load_byte(data, stop) == 46:
        fraction = count_trailing_zeros(~(digits >> np.uint64(whole + 1)))
        stop += 1 + fraction
        what = DECIMAL
        if fraction == 0:
            return np.int64(-1), OTHER
    elif is_negative and load_byte(data, first) == 48:
        what = OTHER
    if stop - first >= 31 or load_byte(data, stop) | 32 == 101:
        return _scan_long_number(data, position, end)
    if whole == 0 or (whole > 1 and load_byte(data, first) == 48):
        return np.int64(-1), OTHER
    return stop, what


@inline_jit
def _scan_keyword(data, position):
    """Return the end of true, false or null (-1: rejected) and its kind."""
    word = load_word(data, position) & _LOW_HALF
    if word == _TRUE:
        return position + 4, TRUE
    if word == _NULL:
        return position + 4, NULL
    if word == _FALSE_START and load_byte(data, position + 4) == 101:
        return position + 5, FALSE
    return np.int64(-1), OTHER


@inline_jit
def _find_field_index(data, position, end, field_names):
    """Return the index of a name among the requested names, or -1."""
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


@helper_jit
def _skip_container(data, position, end, line_break):
    """Return the end of the object or array at a position, or -1 if it is rejected."""
    # One bit per open bracket (1 for an object), with the innermost bracket in the lowest bit.
    stack = np.uint64(load_byte(data, position) == 123)
    depth = 1
    state = _EXPECT_FIRST
    position += 1
    while True:
        position = _skip_blanks(data, position, end, line_break)
        if position >= end:
            return np.int64(-1)
        byte = load_byte(data, position)
        is_object = stack & _ONE == _ONE
        if state != _EXPECT_NEXT and byte == (125 if is_object else 93):
            position += 1
            stack >>= _ONE
            depth -= 1
            if depth == 0:
                return position
            state = _EXPECT_SEPARATOR
            continue
        if state == _EXPECT_SEPARATOR:
            if byte != 44:
                return np.int64(-1)
            position += 1
            state = _EXPECT_NEXT
            continue
        if is_object:
            if byte != _QUOTE:
                return np.int64(-1)
            stop, _ = _scan_string(data, position + 1, end)
            if stop < 0:
                return np.int64(-1)
            position = _skip_blanks(data, stop + 1, end, line_break)
            if position >= end or load_byte(data, position) != 58:
                return np.int64(-1)
            position = _skip_blanks(data, position + 1, end, line_break)
            if position >= end:
                return np.int64(-1)
            byte = load_byte(data, position)
        state = _EXPECT_SEPARATOR
        if byte == _QUOTE:
            stop, _ = _scan_string(data, position + 1, end)
            position = stop + 1 if stop >= 0 else stop
        elif byte == 123 or byte == 91:
            # Count the enclosing object as one level.
            if depth == _MAX_DEPTH - 1:
                return np.int64(-1)
            depth += 1
            stack = (stack << _ONE) | np.uint64(byte == 123)
            state = _EXPECT_FIRST
            position += 1
        elif byte >= 97:
            position, _ = _scan_keyword(data, position)
        else:
            position, _ = _scan_number(data, position, end)
        if position < 0:
            return np.int64(-1)


@helper_jit
def _scan_key(data, position, end, line_break, is_first, names_all, field_names):
    """Read a key and the punctuation around it.

    Returns:
        The start of the key's value, or the end of the object if there is no key (-1: rejected).
        The index of the key among the names (-1: not among them, -2: end of the object). True if
        the key has no escapes and no non-ASCII letter that can equal an ASCII letter.
    """
    refused = np.int64(-1), np.int64(-1), False
    position = _skip_blanks(data, position + is_first, end, line_break)
    if position >= end:
        return refused
    byte = load_byte(data, position)
    if byte == 125:
        return position + 1, np.int64(-2), True
    if not is_first:
        if byte != 44:
            return refused
        position = _skip_blanks(data, position + 1, end, line_break)
        if position >= end:
            return refused
        byte = load_byte(data, position)
    if byte != _QUOTE:
        return refused
    begin = position + 1
    stop, plain = _scan_string(data, begin, end)
    if stop < 0:
        return refused
    if not names_all:
        for i in range(begin, stop):
            plain &= load_byte(data, i) != _SUSPECT
    wanted = _find_field_index(data, begin, stop, field_names)
    position = _skip_blanks(data, stop + 1, end, line_break)
    if position >= end or load_byte(data, position) != 58:
        return refused
    position = _skip_blanks(data, position + 1, end, line_break)
    return position, np.int64(wanted), plain


@inline_jit
def _scan_object(data, position, end, line_break, names_all, field_names, row, found, templates):
    """Read the object at a position and record its requested values.

    All parameters except `field_names` are addresses and numbers, because an array costs reference
    counting at each use.

    Returns:
        The end of the object (-1: rejected), and True if only the exact reader can find the values
        of the names.
    """
    starts, ends, kinds, rows = found
    texts, sizes, wanted_names = templates
    odd = False
    member = np.int64(0)
    while True:
        hit = False
        wanted = np.int64(-1)
        if member < _MAX_TEMPLATES:
            size = load_word(sizes, member * 8)
            expected = (_ONE << size) - _ONE
            hit = (
                find_equal(data, position, texts + member * _TEMPLATE_BYTES) & expected == expected
            )
        if hit:
            position += np.int64(size)
            wanted = np.int64(load_word(wanted_names, member * 8))
        else:
            begin = position
            position, wanted, plain = _scan_key(
                data, begin, end, line_break, member == 0, names_all, field_names
            )
            if position < 0:
                return np.int64(-1), odd
            if wanted == -2:
                return position, odd
            if not plain or (names_all and wanted < 0):
                odd = True
            elif member < _MAX_TEMPLATES:
                length = position - begin
                if length <= _TEMPLATE_BYTES:
                    for i in range(length):
                        store_byte(texts, member * _TEMPLATE_BYTES + i, load_byte(data, begin + i))
                    store_word(wanted_names, member, wanted)
                store_word(sizes, member, min(length, _NO_TEMPLATE))
        if position >= end:
            return np.int64(-1), odd
        begin = position
        byte = load_byte(data, position)
        is_text = byte == _QUOTE
        if is_text:
            stop, plain = _scan_string(data, position + 1, end)
            position = stop + 1 if stop >= 0 else stop
            what = TEXT if plain else ESCAPED_TEXT
        elif byte < 58:
            position, what = _scan_number(data, position, end)
        elif byte == 123 or byte == 91:
            position = _skip_container(data, position, end, line_break)
            what = OBJECT if byte == 123 else OTHER
        else:
            position, what = _scan_keyword(data, position)
        if position < 0 or position >= end:
            return np.int64(-1), odd
        if wanted >= 0:
            place = wanted * rows + row
            # Leave repeated keys to the exact reader, which decides which one counts.
            odd |= load_byte(kinds, place) != ABSENT
            # Exclude the quotes of a string.
            store_position(starts, place, begin + is_text)
            store_position(ends, place, position - is_text)
            store_byte(kinds, place, what)
        if load_byte(data, position) == 125:
            return position + 1, odd
        member += 1


@inline_jit
def _take_addresses(value_positions, templates):
    """Return the addresses of the found values and of the cached keys."""
    starts, ends, kinds = value_positions
    texts, sizes, wanted = templates
    found = starts.ctypes.data, ends.ctypes.data, kinds.ctypes.data, starts.shape[1]
    return found, (texts.ctypes.data, sizes.ctypes.data, wanted.ctypes.data)


@jit_kernel
def _count_line_feeds(buffer: Bytes, start: int, end: int, line_feeds: Bytes) -> int:
    """Count the line feeds in a range, extended to a multiple of 32 bytes (an upper bound)."""
    data, wanted = buffer.ctypes.data, line_feeds.ctypes.data
    count = np.int64(0)
    for at in range(start, end, _TEMPLATE_BYTES):
        count += count_ones(find_equal(data, at, wanted))
    return count


@jit_kernel
def _scan_lines(
    buffer: Bytes,
    start: int,
    end: int,
    field_names: FieldNames,
    bounds: NDArray[np.int32],
    value_positions: ValuePositions,
    templates: Templates,
) -> int:
    """Read lines that have one object each. Return their number, or -1 for other content."""
    data = buffer.ctypes.data
    found, known = _take_addresses(value_positions, templates)
    count = 0
    at = np.int64(start)
    end = np.int64(end)
    while True:
        at = _skip_blanks(data, at, end, _BLANK)
        if at >= end:
            return count
        if load_byte(data, at) == _LINE_FEED:
            at += 1
            continue
        if load_byte(data, at) != 123:
            return -1
        bounds[0, count] = at
        at, odd = _scan_object(data, at, end, _BLANK, False, field_names, count, found, known)
        if at < 0:
            return -1
        if odd:
            value_positions[2][:, count] = OTHER
        bounds[1, count] = at
        count += 1
        at = _skip_blanks(data, at, end, _BLANK)
        if at < end and load_byte(data, at) != _LINE_FEED:
            return -1


@jit_kernel
def _frame_objects(
    buffer: Bytes,
    start: int,
    end: int,
    is_last: bool,
    one_per_line: bool,
    after_object: bool,
    bounds: NDArray[np.int64],
) -> tuple[int, int]:
    data = buffer.ctypes.data
    at = np.int64(start)
    end = np.int64(end)
    count = 0
    while at < end and count < bounds.shape[1]:
        begin = at + (after_object and load_byte(data, at) == _LINE_FEED)
        first = _skip_blanks(data, begin, end, _BLANK)
        if first < end and load_byte(data, first) == 123:
            stop = _skip_container(data, first, end, _BLANK)
            after = _skip_blanks(data, stop, end, _BLANK) if stop >= 0 else end
            if after < end and load_byte(data, after) == _LINE_FEED:
                bounds[0, count] = begin
                bounds[1, count] = after
                count += 1
                at = after + 1
                after_object = False
                continue
        at = begin
        if one_per_line:
            break
        first = begin
        while first < end and (
            _skip_blanks(data, first, end, _LINE_FEED) != first
            or load_byte(data, first) in (44, 91, 93)
        ):
            first += 1
        if first >= end or load_byte(data, first) != 123:
            break
        stop = _skip_container(data, first, end, _BLANK)
        if stop >= 0:
            after = _skip_blanks(data, stop, end, _BLANK)
            if (after < end and load_byte(data, after) == _LINE_FEED) or (after == end and is_last):
                stop = after
        else:
            stop = _skip_container(data, first, end, _LINE_FEED)
        if stop < 0:
            break
        bounds[0, count] = first
        bounds[1, count] = stop
        count += 1
        at = stop
        after_object = True
    return count, at


@jit_kernel
def _scan_nested_objects(
    buffer: Bytes,
    starts: Positions,
    ends: Positions,
    kinds: Bytes,
    field_names: FieldNames,
    value_positions: ValuePositions,
    templates: Templates,
) -> None:
    data = buffer.ctypes.data
    found, known = _take_addresses(value_positions, templates)
    for row in range(len(starts)):
        odd = kinds[row] == OTHER
        if kinds[row] == OBJECT:
            _, odd = _scan_object(
                data,
                np.int64(starts[row]),
                np.int64(ends[row]),
                _LINE_FEED,
                False,
                field_names,
                row,
                found,
                known,
            )
        if odd:
            value_positions[2][:, row] = OTHER


@jit_kernel
def _scan_records(
    buffer: Bytes,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    field_names: FieldNames,
    value_positions: ValuePositions,
    templates: Templates,
    is_read: NDArray[np.bool_],
) -> None:
    data = buffer.ctypes.data
    found, known = _take_addresses(value_positions, templates)
    for row in range(len(starts)):
        end = ends[row]
        at = _skip_blanks(data, starts[row], end, _LINE_FEED)
        odd = at >= end or load_byte(data, at) != 123
        if not odd:
            at, odd = _scan_object(data, at, end, _LINE_FEED, True, field_names, row, found, known)
            odd |= at < 0 or _skip_blanks(data, at, end, _LINE_FEED) != end
        is_read[row] = not odd
        if odd:
            value_positions[2][:, row] = ABSENT


def scan_json_lines(
    data: Bytes, start: int, end: int, field_names: FieldNames
) -> tuple[NDArray[np.int32], ValuePositions] | None:
    """Find the records of data[start:end], one object per line, and the values of some names.

    `data` must be valid UTF-8. Lines start at `start` and end at `end`.

    Returns:
        Start and end of each record, and the values. None if a line may be anything but one object.
    """
    max_records = _count_line_feeds(data, start, end, _LINE_FEEDS) + 1
    bounds = np.empty((2, max_records), np.int32)
    found = _allocate_positions(len(field_names[2]), max_records)
    count = _scan_lines(data, start, end, field_names, bounds, found, _make_templates())
    if count < 0:
        return None
    starts, ends, kinds = found
    return bounds[:, :count], (starts[:, :count], ends[:, :count], kinds[:, :count])


def scan_json_records(
    data: Bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], field_names: FieldNames
) -> tuple[ValuePositions, NDArray[np.bool_]]:
    """Find the values of names in records. Does not read a record that is not one simple object.

    `data` must be valid UTF-8 of less than 2 GiB. `field_names` has all keys that an object may
    have.

    Returns:
        The values, and a mask of the records that were read: objects without unknown or repeated
        keys.
    """
    found = _allocate_positions(len(field_names[2]), len(starts))
    is_read = np.empty(len(starts), np.bool_)
    _scan_records(data, starts, ends, field_names, found, _make_templates(), is_read)
    return found, is_read


def frame_json_objects(
    data: Bytes, start: int, end: int, *, is_last: bool, one_per_line: bool, after_object: bool
) -> tuple[NDArray[np.int64], int]:
    """Find up to 4,096 consecutive objects at the start of data[start:end].

    With `one_per_line`, each object is a line. Otherwise, blanks, commas and brackets may separate
    objects. If only blanks surround an object, its record extends to the end of the line.

    Args:
        data: The text.
        start: Possible start of a record.
        end: End of the text.
        is_last: True if no text follows `end`.
        one_per_line: True if each line is one object.
        after_object: True if a line feed at `start` ends the line of a previous object.

    Returns:
        Start and end of each object, and the possible start of the next record.
    """
    bounds = np.empty((2, _MAX_FRAMED_OBJECTS), np.int64)
    count, at = _frame_objects(data, start, end, is_last, one_per_line, after_object, bounds)
    return bounds[:, :count], at


def scan_nested_fields(
    data: Bytes, starts: Positions, ends: Positions, kinds: Bytes, field_names: FieldNames
) -> ValuePositions:
    """Find the values of some names in nested objects: located values of the kind `OBJECT`."""
    found = _allocate_positions(len(field_names[2]), len(starts))
    _scan_nested_objects(data, starts, ends, kinds, field_names, found, _make_templates())
    return found


def encode_field_names(names: list[tuple[bytes, bool]]) -> FieldNames:
    """Encode names for the kernels. Converts case-insensitive names to lower case."""
    texts = [text for text, _ in names]
    places = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    folds = np.array([folds for _, folds in names], np.uint8)
    return np.frombuffer(b"".join(texts) or b"\0", np.uint8), places, folds


def _allocate_positions(name_count: int, row_count: int) -> ValuePositions:
    shape = (name_count, row_count)
    return np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.uint8)


def _make_templates() -> Templates:
    return (
        np.empty(_MAX_TEMPLATES * _TEMPLATE_BYTES, np.uint8),
        np.full(_MAX_TEMPLATES, _NO_TEMPLATE, np.int64),
        np.empty(_MAX_TEMPLATES, np.int64),
    )
