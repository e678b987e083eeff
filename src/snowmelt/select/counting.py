"""What can be said of a block without looking at its fields: how many records, and if it is UTF-8."""

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: ANN001, ANN202, C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable"

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from snowmelt.compiled import kernel
from snowmelt.select.marks import (
    ONE,
    are_ascii,
    byte_at,
    inlined,
    load_high,
    load_marks,
    marks_at,
    ones,
    until,
)

if TYPE_CHECKING:
    from snowmelt.select.vectors import Bytes


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


@kernel
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
