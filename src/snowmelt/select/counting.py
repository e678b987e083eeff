"""What can be said of a block without looking at its fields: how many records, and if it is UTF-8."""

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: ANN001, ANN202, C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable"

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from snowmelt.select.compiled import kernel
from snowmelt.select.marks import ONE, are_ascii, byte_at, inlined, marks_at, ones

if TYPE_CHECKING:
    from snowmelt.select.marks import Marks
    from snowmelt.select.vectors import Bytes

_RETURN = 13


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
    ended, closed = ONE, zero
    count = 0
    base = at
    while base < end:
        records = marks_at(data, base, end, (record,))
        starts = (records << ONE) | ended
        odd = starts & marks_at(data, base, end, odd_first)
        if quoted:
            if marks.escape.size > 0:
                odd |= marks_at(data, base, end, (escape,))
            quotes = marks_at(data, base, end, (quote,))
            inside = before
            closes = zero
            if quotes != zero:
                inside = _inside(quotes, before)
                if not marks.quotes_anywhere:
                    # In front of a quote that opens: a record's begin, a delimiter, or a quote
                    # that closed, which makes the two of them one.
                    closes = quotes & ~inside
                    divides = marks_at(data, base, end, (field,)) << ONE
                    if base > at and byte_at(data, base - 1) == field:
                        divides |= ONE
                    may = starts | divides
                    if marks.doubles:
                        may |= (closes << ONE) | closed
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
        count += ones(records)
        base += 64
    if before != zero:
        return -1
    if end > at and byte_at(data, end - 1) != record:
        count += 1
    return count


@inlined
def _inside(quotes, before):
    """Return which bytes lie in quotes, the opening ones included; `before`: all ones or zero."""
    word = quotes
    for shift in (1, 2, 4, 8, 16, 32):
        word ^= word << np.uint64(shift)
    return word ^ before


@kernel
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
