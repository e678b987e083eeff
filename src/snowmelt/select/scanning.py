"""The compiled tokenizer: 64 bytes at a time become a word of marks, and only marks are visited.

A mark is a byte with which a delimiter, a quote or an escape begins. The rules are those of
`state_machine`, which tests compare with this. Everything a kernel here calls stands in this
file: the cache of compiled code is renewed when its file changes, not when another one does.
"""

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: ANN001, ANN202, ARG001, C901, PLR0912, PLR0913, PLR0915, PLR0917
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable"

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

from snowmelt.select.compiled import kernel

if TYPE_CHECKING:
    from snowmelt.select.vectors import Bytes, Places, Rows

FIELD, RECORD, END = 0, 1, 2

_PAST_END, _UNCLEAN, _EMPTY_NULL, _QUOTED = 1, 2, 4, 8
_MARKED, _IRREGULAR, _OPEN = 1, 2, 4
_RETURN = 13
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_ONE = np.uint64(1)
_inlined = njit(nogil=True, forceinline=True)


class Mark(NamedTuple):
    """Up to 16 bytes as two words and the bits of them that count; no array, which is costly."""

    size: int
    low: np.uint64
    low_bits: np.uint64
    high: np.uint64
    high_bits: np.uint64


class Marks(NamedTuple):
    """The rules as kernels take them."""

    record: Mark
    field: Mark
    quote: Mark
    escape: Mark
    comment: Mark
    # The first bytes of record, field, quote, escape; one that there is not is the record's.
    first: tuple[np.uint8, np.uint8, np.uint8, np.uint8]
    quotes_anywhere: bool
    keeps_quotes: bool
    escapes_anywhere: bool
    doubles: bool
    quoted_records: bool
    open_quote_fails: bool
    drops_return: bool
    skips_blank: bool
    empty_is_null: bool
    # Whether a delimiter before a place tells that a field begins there.
    skims: bool
    # Whether a byte alone tells that a field delimiter stands there.
    simple: bool


class Tables(NamedTuple):
    """What is filled: a place for each record, and cells for fields.

    The cells of one wanted field lie next to each other, as many as there are rows. If all fields
    are wanted, those of one record do, and `first` has the number of cells before each record.
    """

    row_starts: Places
    row_ends: Places
    row_flags: Bytes
    first: Rows
    starts: Places
    ends: Places
    flags: Bytes


# Inside, `data` is the buffer's address: an array would have its references counted all the time.


def _load(builder, arguments, kind):
    """Load from address + place, which need not be aligned."""
    address, place = arguments
    pointer = builder.inttoptr(builder.add(address, place), kind.as_pointer())
    return builder.load(pointer, align=1)


@intrinsic
def _load_marks(_context, data, place, first):
    """Return a bit for each of data[place:place + 64] that is one of four bytes."""
    wide = ir.VectorType(ir.IntType(8), 64)
    signature = types.uint64(data, place, first)

    def generate(_context, builder, signature, arguments):
        block = _load(builder, arguments[:2], wide)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        found = None
        for index in range(len(signature.args[2])):
            wanted = builder.extract_value(arguments[2], index)
            one = builder.insert_element(
                ir.Constant(wide, ir.Undefined), wanted, ir.Constant(ir.IntType(32), 0)
            )
            every = builder.shuffle_vector(one, ir.Constant(wide, ir.Undefined), zeros)
            equal = builder.icmp_unsigned("==", block, every)
            found = equal if found is None else builder.or_(found, equal)
        return builder.bitcast(found, ir.IntType(64))

    return signature, generate


@intrinsic
def _lowest(_context, word):
    """Return the place of the lowest bit of a word that is not zero."""
    signature = types.int64(types.uint64)

    def generate(_context, builder, _signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    del word
    return signature, generate


@_inlined
def _marks_at(data, place, end, first):
    """Return the marks in data[place:place + 64] that lie before `end`."""
    word = _load_marks(data, place, first)
    if end - place < 64:
        word &= (_ONE << np.uint64(end - place)) - _ONE
    return word


@intrinsic
def _word(_context, data, place):
    """Return data[place:place + 8] as a word."""
    signature = types.uint64(data, place)

    def generate(_context, builder, _signature, arguments):
        return _load(builder, arguments, ir.IntType(64))

    return signature, generate


@intrinsic
def _byte(_context, data, place):
    """Return data[place]."""
    signature = types.uint8(data, place)

    def generate(_context, builder, _signature, arguments):
        return _load(builder, arguments, ir.IntType(8))

    return signature, generate


@_inlined
def _stands(data, place, end, mark):
    """Tell whether a mark stands at a place where its first byte does."""
    if mark.size == 1:
        return True
    return _follows(data, place, end, mark)


@_inlined
def _follows(data, place, end, mark):
    """Tell whether a mark stands at a place, of which nothing is known; an empty one never does."""
    if mark.size == 0 or place + mark.size > end:
        return False
    if _word(data, place) & mark.low_bits != mark.low:
        return False
    return mark.size <= 8 or _word(data, place + 8) & mark.high_bits == mark.high


@_inlined
def _quoting(data, p, at, end, inside, marks):
    """Read a quote at `p`, in a field that begins at `at`.

    Returns:
        What it does (0: it is text, 1: toggles, 2: with the next it is one), where to read on.
    """
    size = marks.quote.size
    if inside and marks.doubles and _follows(data, p + size, end, marks.quote):
        return 2, p + 2 * size
    if inside or marks.quotes_anywhere or p == at:
        return 1, p + size
    return 0, p + 1


@_inlined
def _escaping(data, p, end, inside, marks):
    """Read an escape at `p`; return where to read on, zero if it is text."""
    after = p + marks.escape.size
    if marks.escapes_anywhere:
        return after + 1
    if inside:
        if _follows(data, after, end, marks.escape):
            return after + marks.escape.size
        if _follows(data, after, end, marks.quote):
            return after + marks.quote.size
    return 0


@_inlined
def _field(data, at, end, base, word, marks):
    """Read one field from `at` on; `base` and `word` are where reading is and the marks there.

    Returns:
        base, word, what ended it, where, where its value begins and ends, flags of the value,
        flags of the record.
    """
    inside = False
    resume = at
    quotes = 0
    first = last = np.int64(-1)
    dirty = needed = irregular = False
    flags = row_flags = 0
    how = END
    p = end
    while True:
        if word == 0:
            base += 64
            if base >= end:
                p = end
                break
            word = _marks_at(data, base, end, marks.first)
            continue
        p = base + _lowest(word)
        word &= word - _ONE
        byte = _byte(data, p)
        if byte == marks.first[0] and p >= at and _stands(data, p, end, marks.record):
            if not (inside and marks.quoted_records):
                how = RECORD
                break
            needed = True
            continue
        if p < resume:
            continue
        if byte == marks.first[3] and marks.escape.size > 0 and _stands(data, p, end, marks.escape):
            row_flags |= _MARKED | _IRREGULAR
            after = _escaping(data, p, end, inside, marks)
            if after:
                dirty = True
                resume = after
                continue
        if byte == marks.first[2] and marks.quote.size > 0 and _stands(data, p, end, marks.quote):
            row_flags |= _MARKED
            what, resume = _quoting(data, p, at, end, inside, marks)
            if what == 0:
                irregular = True
            elif what == 2:
                dirty = needed = True
            else:
                inside = not inside
                first = p if quotes == 0 else first
                last = p
                quotes += 1
            continue
        if byte == marks.first[1] and _stands(data, p, end, marks.field):
            if not inside:
                how = FIELD
                break
            needed = True
    value_start = at
    value_end = p
    if how == RECORD and marks.drops_return and p > at and _byte(data, p - 1) == _RETURN:
        value_end = p - 1
    if row_flags:
        size = marks.quote.size
        around = quotes == 2 and first == at and last + size == value_end
        if dirty or (quotes and not around and not marks.keeps_quotes):
            flags = _UNCLEAN
        elif quotes and not marks.keeps_quotes:
            flags = _QUOTED
            value_start += size
            value_end -= size
        if marks.quotes_anywhere or irregular or (quotes and not (around and needed)):
            row_flags |= _IRREGULAR
        if inside:
            row_flags |= _OPEN
    if marks.empty_is_null and value_start == value_end:
        flags |= _EMPTY_NULL
    return base, word, how, p, value_start, value_end, flags, row_flags


@_inlined
def _plain_field(data, end, base, word, marks):
    """Read one field if it is as most are: the next mark is the field delimiter behind it.

    Returns:
        base, word, where the field ends or -1: then it is still to be read.
    """
    while word == 0 and base + 64 < end:
        base += 64
        word = _marks_at(data, base, end, marks.first)
    if word != 0:
        p = base + _lowest(word)
        if _byte(data, p) == marks.first[1]:
            return base, word & (word - _ONE), p
    return base, word, -1


@_inlined
def _rest(data, at, end, marks):
    """Read from a field's first byte to the end of its record.

    Returns:
        What ended it, where, flags of the record.
    """
    begin = at
    row_flags = 0
    first = (marks.first[0], marks.first[2], marks.first[3])
    base = at
    while marks.skims:
        if base >= end:
            return END, end, row_flags
        word = _marks_at(data, base, end, first)
        if word == 0:
            base += 64
            continue
        p = base + _lowest(word)
        base = p + 1
        byte = _byte(data, p)
        if byte == marks.first[0] and _stands(data, p, end, marks.record):
            return RECORD, p, row_flags
        escape = byte == marks.first[3] and _follows(data, p, end, marks.escape)
        if not escape and not (byte == marks.first[2] and _follows(data, p, end, marks.quote)):
            continue
        size = marks.field.size
        if not marks.quotes_anywhere and (
            escape
            or not (
                p == begin or (p - size >= begin and _follows(data, p - size, end, marks.field))
            )
        ):
            row_flags |= _MARKED | _IRREGULAR
            continue
        _, _, how, p, _, _, _, more = _field(data, p, end, p - 64, np.uint64(0), marks)
        row_flags |= more
        if how != FIELD:
            return how, p, row_flags
        begin = base = p + size
    word = np.uint64(0)
    base = at - 64
    while True:
        base, word, how, p, _, _, _, more = _field(data, at, end, base, word, marks)
        row_flags |= more
        if how != FIELD:
            return how, p, row_flags
        at = p + marks.field.size


@_inlined
def _line_end(data, at, end, marks):
    """Return where the record after this line begins, whatever quotes are in it."""
    first = (marks.first[0],)
    base = at
    while base < end:
        word = _marks_at(data, base, end, first)
        if word == 0:
            base += 64
            continue
        p = base + _lowest(word)
        if _stands(data, p, end, marks.record):
            return p + marks.record.size
        base = p + 1
    return end


@kernel
def find_records(
    buffer: Bytes, at: int, end: int, marks: Marks, runs: Rows, ragged: bool, tables: Tables
) -> tuple[int, int, int, bool]:
    """Find records and fields until the tables are full or the data end.

    Args:
        buffer: Bytes, with 64 more behind `end`.
        at: Where to begin: where a record begins.
        end: Where the data end.
        marks: The rules.
        runs: Which fields are wanted: how many to pass over, how many to take, and so on; two
            zeros behind the last.
        ragged: Whether all fields are wanted, whatever `runs` says.
        tables: What is filled, from its front.

    Returns:
        How many records, how many fields (ragged), where reading stopped, whether it stopped
        because a quote is open that may not be.
    """
    data = buffer.ctypes.data
    # Taken out once: each look into the tuple would count references.
    row_starts, row_ends, every_row_flags, first, starts, ends, every_flags = tables
    count = 0
    total = np.int64(0)
    wanted = runs[1::2].sum()
    # Cells of one record lie next to each other, or a table's row apart.
    step = 1 if ragged else len(row_starts)
    limit = len(starts) if ragged else len(starts) + step
    empty = _EMPTY_NULL if marks.empty_is_null else 0
    while at < end and count < len(row_starts) and total < limit:
        if _follows(data, at, end, marks.comment):
            at = _line_end(data, at, end, marks)
            continue
        row_start = at
        row_flags = 0
        how = FIELD
        base = at - 64
        word = np.uint64(0)
        p = at
        # The next cell to fill, where its run of cells ends, how many fields lie before it.
        cell = total if ragged else np.int64(count)
        room = limit if ragged else cell
        skip = 0
        k = 0
        while True:
            if cell >= room:
                if ragged:
                    return count, total, row_start, False
                skip, take = runs[k], runs[k + 1]
                if take == 0:
                    break
                room = cell + take * step
                k += 2
            p = -1
            if marks.simple:
                # Plain fields have loops of their own that do next to nothing.
                base, word, p = _plain_field(data, end, base, word, marks)
                while p >= 0 and skip > 0:
                    skip -= 1
                    at = p + 1
                    base, word, p = _plain_field(data, end, base, word, marks)
                while p >= 0:
                    starts[cell] = at
                    ends[cell] = p
                    every_flags[cell] = empty if at == p else 0
                    cell += step
                    at = p + 1
                    if cell >= room:
                        break
                    base, word, p = _plain_field(data, end, base, word, marks)
            if p < 0:
                base, word, how, p, start, stop, flags, more = _field(
                    data, at, end, base, word, marks
                )
                row_flags |= more
                if skip > 0:
                    skip -= 1
                else:
                    starts[cell] = start
                    ends[cell] = stop
                    every_flags[cell] = flags
                    cell += step
                if how != FIELD:
                    break
                at = p + marks.field.size
        if how == FIELD:
            how, p, more = _rest(data, at, end, marks)
            row_flags |= more
        if row_flags & _OPEN and marks.open_quote_fails:
            return count, total, row_start, True
        row_end = p
        at = end
        if how == RECORD:
            at = p + marks.record.size
            if marks.drops_return and p > row_start and _byte(data, p - 1) == _RETURN:
                row_end -= 1
            if row_start == row_end and marks.skips_blank:
                continue
        while not ragged and cell < wanted * step:
            starts[cell] = 0
            ends[cell] = 0
            every_flags[cell] = _PAST_END
            cell += step
        row_starts[count] = row_start
        row_ends[count] = row_end
        every_row_flags[count] = row_flags & 3
        if ragged:
            first[count] = total
            total = cell
        count += 1
    return count, total, at, False


@kernel
def last_record_end(buffer: Bytes, at: int, end: int, marks: Marks) -> int:
    """Return the place behind the last whole record of data[at:end], `at` if there is none."""
    data = buffer.ctypes.data
    whole = at
    while at < end:
        if _follows(data, at, end, marks.comment):
            after = _line_end(data, at, end, marks)
            if after == end and not _closes(data, at, end, marks):
                return whole
            whole = at = after
            continue
        how, p, _ = _rest(data, at, end, marks)
        if how != RECORD:
            return whole
        whole = at = p + marks.record.size
    return whole


@_inlined
def _closes(data, at, end, marks):
    """Tell whether data[at:end] end with a record delimiter."""
    size = marks.record.size
    return end - at >= size and _follows(data, end - size, end, marks.record)


@kernel
def first_bad_byte(buffer: Bytes, at: int, end: int) -> int:
    """Return the place of the first byte that breaks UTF-8, -1 if there is none."""
    data = buffer.ctypes.data
    while at < end:
        at = _past_ascii(data, at, end)
        if at >= end:
            break
        lead = _byte(data, at)
        # How many bytes follow, and between what the first of them must lie (RFC 3629, 4).
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            low = 0xA0 if lead == 0xE0 else low
            high = 0x9F if lead == 0xED else high
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            low = 0x90 if lead == 0xF0 else low
            high = 0x8F if lead == 0xF4 else high
        else:
            return at
        for i in range(1, more + 1):
            if at + i >= end or not low <= _byte(data, at + i) <= high:
                return at
            low, high = 0x80, 0xBF
        at += more + 1
    return -1


@_inlined
def _past_ascii(data, at, end):
    """Return the place of the first byte from `at` on that is not ASCII, `end` if none is."""
    while at + 64 <= end and _plain(data, at):
        at += 64
    while at < end and _byte(data, at) < 0x80:
        at += 1
    return at


@intrinsic
def _plain(_context, data, place):
    """Tell whether data[place:place + 64] are ASCII."""
    signature = types.boolean(data, place)
    wide = ir.VectorType(ir.IntType(8), 64)

    def generate(_context, builder, signature, arguments):
        block = _load(builder, arguments[:2], wide)
        high = builder.icmp_signed("<", block, ir.Constant(wide, [0] * 64))
        word = builder.bitcast(high, ir.IntType(64))
        return builder.icmp_unsigned("==", word, ir.Constant(ir.IntType(64), 0))

    return signature, generate


@intrinsic
def _ones(_context, word):
    """Return how many bits of a word are one."""
    signature = types.int64(types.uint64)

    def generate(_context, builder, _signature, arguments):
        return builder.ctpop(arguments[0])

    return signature, generate


@_inlined
def _inside(quotes, before):
    """Return which bytes lie in quotes, the opening ones included; `before`: all ones or zero."""
    word = quotes
    for shift in (1, 2, 4, 8, 16, 32):
        word ^= word << np.uint64(shift)
    return word ^ before


@kernel
def count_records(buffer: Bytes, at: int, end: int, marks: Marks) -> int:
    """Count the records of data[at:end] by their delimiters, without looking at fields.

    Works for delimiters and quotes of one byte. A bit for each byte says whether it lies in
    quotes: an odd number of quotes stands before it.

    Returns:
        How many; -1 where only the tokenizer can say: comments, blank lines, escapes, a quote
        within a field, a quote that is open where it may not be.
    """
    data = buffer.ctypes.data
    zero = np.uint64(0)
    record, field, quote, escape = marks.first
    quoted = marks.quote.size > 0 and (marks.quoted_records or marks.open_quote_fails)
    # What a record does not begin with if it is one of those that delimiters alone can count.
    odd_first = (
        np.uint8(marks.comment.low & np.uint64(255)) if marks.comment.size > 0 else record,
        record,
        np.uint8(_RETURN) if marks.drops_return else record,
    )
    before = zero
    # Whether the byte before ended a record, or was a quote that closed.
    ended, closed = _ONE, zero
    count = 0
    base = at
    while base < end:
        records = _marks_at(data, base, end, (record,))
        starts = (records << _ONE) | ended
        odd = starts & _marks_at(data, base, end, odd_first)
        if quoted:
            if marks.escape.size > 0:
                odd |= _marks_at(data, base, end, (escape,))
            quotes = _marks_at(data, base, end, (quote,))
            inside = before
            closes = zero
            if quotes != zero:
                inside = _inside(quotes, before)
                if not marks.quotes_anywhere:
                    # In front of a quote that opens: a record's begin, a delimiter, or a quote
                    # that closed, which makes the two of them one.
                    closes = quotes & ~inside
                    divides = _marks_at(data, base, end, (field,)) << _ONE
                    if base > at and _byte(data, base - 1) == field:
                        divides |= _ONE
                    may = starts | divides
                    if marks.doubles:
                        may |= (closes << _ONE) | closed
                    odd |= quotes & inside & ~may
            closed = closes >> np.uint64(63)
            if marks.quoted_records:
                records &= ~inside
            else:
                odd |= records & inside
            before = zero - (inside >> np.uint64(63))
        if odd != zero:
            return -1
        ended = records >> np.uint64(63)
        count += _ones(records)
        base += 64
    if before != zero:
        return -1
    if end > at and _byte(data, end - 1) != record:
        count += 1
    return count
