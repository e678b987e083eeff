"""The compiled tokenizer: it visits marks, nothing else.

The rules are those of `state_machine`, which tests compare with this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from snowmelt.jit import jit_kernel
from snowmelt.select.kernels.bitmask import (
    ONE,
    Marks,
    are_ascii,
    byte_at,
    follows,
    inlined,
    load_high,
    load_marks,
    lowest,
    marks_at,
    ones,
    stands,
    until,
)

if TYPE_CHECKING:
    from snowmelt.select.vectors import Bytes, Places, Rows

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: ANN001, ANN202, C901, PLR0912, PLR0913, PLR0915, PLR0917
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable"


FIELD, RECORD, END = 0, 1, 2

_PAST_END, _UNCLEAN, _EMPTY_NULL, _QUOTED = 1, 2, 4, 8
_MARKED, _IRREGULAR, _OPEN = 1, 2, 4
_RETURN = 13


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


@inlined
def _quoting(data, p, at, end, inside, marks):
    """Read a quote at `p`, in a field that begins at `at`.

    Returns:
        What it does (0: it is text, 1: toggles, 2: with the next it is one), where to read on.
    """
    size = marks.quote.size
    if inside and marks.doubles and follows(data, p + size, end, marks.quote):
        return 2, p + 2 * size
    if inside or marks.quotes_anywhere or p == at:
        return 1, p + size
    return 0, p + 1


@inlined
def _escaping(data, p, end, inside, marks):
    """Read an escape at `p`; return where to read on, zero if it is text."""
    after = p + marks.escape.size
    if marks.escapes_anywhere:
        return after + 1
    if inside:
        if follows(data, after, end, marks.escape):
            return after + marks.escape.size
        if follows(data, after, end, marks.quote):
            return after + marks.quote.size
    return 0


@inlined
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
            word = marks_at(data, base, end, marks.first)
            continue
        p = base + lowest(word)
        word &= word - ONE
        byte = byte_at(data, p)
        if byte == marks.first[0] and p >= at and stands(data, p, end, marks.record):
            if not (inside and marks.quoted_records):
                how = RECORD
                break
            needed = True
            continue
        if p < resume:
            continue
        if byte == marks.first[3] and marks.escape.size > 0 and stands(data, p, end, marks.escape):
            row_flags |= _MARKED | _IRREGULAR
            after = _escaping(data, p, end, inside, marks)
            if after:
                dirty = True
                resume = after
                continue
        if byte == marks.first[2] and marks.quote.size > 0 and stands(data, p, end, marks.quote):
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
        if byte == marks.first[1] and stands(data, p, end, marks.field):
            if not inside:
                how = FIELD
                break
            needed = True
    value_start = at
    value_end = p
    if how == RECORD and marks.drops_return and p > at and byte_at(data, p - 1) == _RETURN:
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


@inlined
def _plain_field(data, end, base, word, marks):
    """Read one field if it is as most are: the next mark is the field delimiter behind it.

    Returns:
        base, word, where the field ends or -1: then it is still to be read.
    """
    while word == 0 and base + 64 < end:
        base += 64
        word = marks_at(data, base, end, marks.first)
    if word != 0:
        p = base + lowest(word)
        if byte_at(data, p) == marks.first[1]:
            return base, word & (word - ONE), p
    return base, word, -1


@inlined
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
        word = marks_at(data, base, end, first)
        if word == 0:
            base += 64
            continue
        p = base + lowest(word)
        base = p + 1
        byte = byte_at(data, p)
        if byte == marks.first[0] and stands(data, p, end, marks.record):
            return RECORD, p, row_flags
        escape = byte == marks.first[3] and follows(data, p, end, marks.escape)
        if not escape and not (byte == marks.first[2] and follows(data, p, end, marks.quote)):
            continue
        size = marks.field.size
        if not marks.quotes_anywhere and (
            escape
            or not (p == begin or (p - size >= begin and follows(data, p - size, end, marks.field)))
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


@inlined
def _line_end(data, at, end, marks):
    """Return where the record after this line begins, whatever quotes are in it."""
    first = (marks.first[0],)
    base = at
    while base < end:
        word = marks_at(data, base, end, first)
        if word == 0:
            base += 64
            continue
        p = base + lowest(word)
        if stands(data, p, end, marks.record):
            return p + marks.record.size
        base = p + 1
    return end


@jit_kernel
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
        if follows(data, at, end, marks.comment):
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
            if marks.drops_return and p > row_start and byte_at(data, p - 1) == _RETURN:
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


@jit_kernel
def last_record_end(buffer: Bytes, at: int, end: int, marks: Marks) -> int:
    """Return the place behind the last whole record of data[at:end], `at` if there is none."""
    data = buffer.ctypes.data
    whole = at
    while at < end:
        if follows(data, at, end, marks.comment):
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


@inlined
def _closes(data, at, end, marks):
    """Tell whether data[at:end] end with a record delimiter."""
    size = marks.record.size
    return end - at >= size and follows(data, end - size, end, marks.record)


# --- What can be said of a block without looking at its fields: how many records, and if it is UTF-8.

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: ANN001, ANN202, C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable"


class CountRules(NamedTuple):
    """The rules as `count_records` takes them: flat, as a call costs less then.

    A byte that there is not is the record's delimiter in `first`, and any other in `rare`.
    """

    record: np.uint8
    field: np.uint8
    # Bytes that no record may begin with, besides the record's delimiter: a comment's, a return.
    first: tuple[np.uint8, np.uint8]
    # Three bytes that are seldom, which only the longer way understands: quote, escape, comment.
    rare: tuple[np.uint8, ...]
    quote: np.uint8
    escape: np.uint8
    # Whether quotes mean anything here, and escapes in them.
    quoted: bool
    escaped: bool
    quotes_anywhere: bool
    doubles: bool
    quoted_records: bool


@jit_kernel
def count_records(buffer: Bytes, at: int, end: int, rules: CountRules) -> tuple[int, bool]:
    """Count the records of data[at:end] by their delimiters, without looking at fields.

    Works for delimiters and quotes of one byte. A bit for each byte says whether it lies in
    quotes: an odd number of quotes stands before it.

    Returns:
        How many; -1 where only the tokenizer can say: comments, blank lines, escapes, a quote
        within a field, a quote that is open where it may not be. And whether all is ASCII.
    """
    data = buffer.ctypes.data
    zero = np.uint64(0)
    before = odd = high = zero
    # Whether the byte before ended a record, or was a quote that closed.
    ended, closed = ONE, zero
    comment, back = rules.first
    count = 0
    base = at
    while base < end:
        # Most of a text: outside of quotes, and nothing but fields and records.
        while (
            before == zero
            and base + 64 <= end
            and load_high(data, base) | load_marks(data, base, rules.rare) == zero
        ):
            records = load_marks(data, base, (rules.record,))
            odd |= ((records << ONE) | ended) & load_marks(data, base, (rules.record, back))
            ended, closed = records >> np.uint64(63), zero
            count += ones(records)
            base += 64
        if base >= end:
            break
        records = marks_at(data, base, end, (rules.record,))
        starts = (records << ONE) | ended
        odd |= starts & marks_at(data, base, end, (rules.record, comment, back))
        high |= until(load_high(data, base), base, end)
        if rules.quoted:
            if rules.escaped:
                odd |= marks_at(data, base, end, (rules.escape,))
            quotes = marks_at(data, base, end, (rules.quote,))
            inside = before
            closes = zero
            if quotes != zero:
                inside = _inside(quotes, before)
                if not rules.quotes_anywhere:
                    # In front of a quote that opens: a record's begin, a delimiter, or a quote
                    # that closed, which makes the two of them one.
                    closes = quotes & ~inside
                    divides = marks_at(data, base, end, (rules.field,)) << ONE
                    if base > at and byte_at(data, base - 1) == rules.field:
                        divides |= ONE
                    may = starts | divides
                    if rules.doubles:
                        may |= (closes << ONE) | closed
                    odd |= quotes & inside & ~may
            closed = closes >> np.uint64(63)
            if rules.quoted_records:
                records &= ~inside
            else:
                odd |= records & inside
            before = zero - (inside >> np.uint64(63))
        ended = records >> np.uint64(63)
        count += ones(records)
        base += 64
    if odd | before != zero:
        return -1, high == zero
    if end > at and byte_at(data, end - 1) != rules.record:
        count += 1
    return count, high == zero


@inlined
def _inside(quotes, before):
    """Return which bytes lie in quotes, the opening ones included; `before`: all ones or zero."""
    word = quotes
    for shift in (1, 2, 4, 8, 16, 32):
        word ^= word << np.uint64(shift)
    return word ^ before


@jit_kernel
def first_bad_byte(buffer: Bytes, at: int, end: int) -> int:
    """Return the place of the first byte that breaks UTF-8, -1 if there is none."""
    data = buffer.ctypes.data
    while at < end:
        at = _past_ascii(data, at, end)
        if at >= end:
            break
        lead = byte_at(data, at)
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
            if at + i >= end or not low <= byte_at(data, at + i) <= high:
                return at
            low, high = 0x80, 0xBF
        at += more + 1
    return -1


@inlined
def _past_ascii(data, at, end):
    """Return the place of the first byte from `at` on that is not ASCII, `end` if none is."""
    while at + 64 <= end and are_ascii(data, at):
        at += 64
    while at < end and byte_at(data, at) < 0x80:
        at += 1
    return at
