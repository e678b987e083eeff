"""CSV kernels: tokenizer, record counter and UTF-8 validation.

The tokenizer visits only bytes that begin a delimiter, quote or escape. Its rules are those of
`formats/csv_state_machine`, and tests compare the two. The record counter does not look at fields.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from snowmelt.jit import inline_jit, jit_kernel
from snowmelt.kernels.delimiter_masks import (
    ONE,
    DelimiterSet,
    clip_mask,
    count_ones,
    count_trailing_zeros,
    find_delimiters,
    is_ascii_block,
    load_byte,
    load_delimiter_mask,
    load_non_ascii_mask,
    matches_after_first_byte,
    matches_pattern,
)
from snowmelt.kernels.slices import Bytes, Positions, RowIndexes

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: ANN001, ANN202, C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable"


FIELD, RECORD, END = 0, 1, 2

_PAST_END, _NEEDS_UNQUOTING, _EMPTY_NULL, _QUOTED = 1, 2, 4, 8
_ROW_HAS_QUOTES, _ROW_IRREGULAR, _ROW_OPEN_QUOTE = 1, 2, 4
_CARRIAGE_RETURN = 13


class TokenTables(NamedTuple):
    """What is filled: a place for each record, and cells for fields.

    The cells of one wanted field lie next to each other, as many as there are rows. If all fields
    are wanted, those of one record do, and `first` has the number of cells before each record.
    """

    row_starts: Positions
    row_ends: Positions
    row_flags: Bytes
    first: RowIndexes
    starts: Positions
    ends: Positions
    flags: Bytes


@inline_jit
def _scan_quote(data, position, field_start, end, in_quotes, delimiters):
    """Read a quote at `position`, in a field that begins at `field_start`.

    Returns:
        What it does (0: it is text, 1: toggles, 2: with the next it is one), where to read on.
    """
    size = delimiters.quote.size
    if (
        in_quotes
        and delimiters.doubles
        and matches_pattern(data, position + size, end, delimiters.quote)
    ):
        return 2, position + 2 * size
    if in_quotes or delimiters.quotes_anywhere or position == field_start:
        return 1, position + size
    return 0, position + 1


@inline_jit
def _scan_escape(data, position, end, in_quotes, delimiters):
    """Read an escape at `position`; return where to read on, zero if it is text."""
    after = position + delimiters.escape.size
    if delimiters.escapes_anywhere:
        return after + 1
    if in_quotes:
        if matches_pattern(data, after, end, delimiters.escape):
            return after + delimiters.escape.size
        if matches_pattern(data, after, end, delimiters.quote):
            return after + delimiters.quote.size
    return 0


@inline_jit
def _scan_field(data, field_start, end, mask_position, delimiter_mask, delimiters):
    """Read one field from `field_start` on; `mask_position` and `delimiter_mask` are where reading is and the marks there.

    Returns:
        base, word, what ended it, where, where its value begins and ends, flags of the value,
        flags of the record.
    """
    inside = False
    resume = field_start
    quotes = 0
    first = last = np.int64(-1)
    dirty = needed = irregular = False
    flags = row_flags = 0
    how = END
    p = end
    while True:
        if delimiter_mask == 0:
            mask_position += 64
            if mask_position >= end:
                p = end
                break
            delimiter_mask = find_delimiters(data, mask_position, end, delimiters.first)
            continue
        p = mask_position + count_trailing_zeros(delimiter_mask)
        delimiter_mask &= delimiter_mask - ONE
        byte = load_byte(data, p)
        if (
            byte == delimiters.first[0]
            and p >= (resume if delimiters.escapes_records else field_start)
            and matches_after_first_byte(data, p, end, delimiters.record)
        ):
            if not (inside and delimiters.quoted_records):
                how = RECORD
                break
            needed = True
            continue
        if p < resume:
            continue
        if (
            byte == delimiters.first[3]
            and delimiters.escape.size > 0
            and matches_after_first_byte(data, p, end, delimiters.escape)
        ):
            row_flags |= _ROW_HAS_QUOTES | _ROW_IRREGULAR
            after = _scan_escape(data, p, end, inside, delimiters)
            if after:
                dirty = True
                resume = after
                continue
        if (
            byte == delimiters.first[2]
            and delimiters.quote.size > 0
            and matches_after_first_byte(data, p, end, delimiters.quote)
        ):
            row_flags |= _ROW_HAS_QUOTES
            what, resume = _scan_quote(data, p, field_start, end, inside, delimiters)
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
        if byte == delimiters.first[1] and matches_after_first_byte(data, p, end, delimiters.field):
            if not inside:
                how = FIELD
                break
            needed = True
    value_start = field_start
    value_end = p
    if (
        how == RECORD
        and delimiters.drops_return
        and p > (resume if delimiters.escapes_records else field_start)
        and load_byte(data, p - 1) == _CARRIAGE_RETURN
    ):
        value_end = p - 1
    if row_flags:
        size = delimiters.quote.size
        around = quotes == 2 and first == field_start and last + size == value_end
        if dirty or (quotes and not around and not delimiters.keeps_quotes):
            flags = _NEEDS_UNQUOTING
        elif quotes and not delimiters.keeps_quotes:
            flags = _QUOTED
            value_start += size
            value_end -= size
        if delimiters.quotes_anywhere or irregular or (quotes and not (around and needed)):
            row_flags |= _ROW_IRREGULAR
        if inside or (delimiters.text_after_quote_fails and quotes and not around):
            row_flags |= _ROW_OPEN_QUOTE
    if delimiters.empty_is_null and value_start == value_end:
        flags |= _EMPTY_NULL
    return mask_position, delimiter_mask, how, p, value_start, value_end, flags, row_flags


@inline_jit
def _scan_plain_field(data, end, mask_position, delimiter_mask, delimiters):
    """Read one field if it is as most are: the next mark is the field delimiter behind it.

    Returns:
        base, word, where the field ends or -1: then it is still to be read.
    """
    while delimiter_mask == 0 and mask_position + 64 < end:
        mask_position += 64
        delimiter_mask = find_delimiters(data, mask_position, end, delimiters.first)
    if delimiter_mask != 0:
        p = mask_position + count_trailing_zeros(delimiter_mask)
        if load_byte(data, p) == delimiters.first[1]:
            return mask_position, delimiter_mask & (delimiter_mask - ONE), p
    return mask_position, delimiter_mask, -1


@inline_jit
def _scan_quoted_field(data, field_start, end, mask_position, delimiter_mask, delimiters):
    """Read one field if it is quotes around nothing that has a meaning, and another follows it.

    Returns:
        base, word, where the field ends or -1: then it is still to be read.
    """
    quote = delimiters.first[2]
    if delimiter_mask == 0 or load_byte(data, field_start) != quote:
        return mask_position, delimiter_mask, -1
    base, word = mask_position, delimiter_mask & (delimiter_mask - ONE)
    while word == 0:
        base += 64
        if base >= end:
            return mask_position, delimiter_mask, -1
        word = find_delimiters(data, base, end, delimiters.first)
    p = base + count_trailing_zeros(word) + 1
    if p >= end or load_byte(data, p - 1) != quote or load_byte(data, p) != delimiters.first[1]:
        return mask_position, delimiter_mask, -1
    word &= word - ONE
    if word == 0:
        base += 64
        word = find_delimiters(data, base, end, delimiters.first)
    return base, word & (word - ONE), p


@inline_jit
def _scan_rest_of_record(data, position, end, delimiters):
    """Read from a field's first byte to the end of its record.

    Returns:
        What ended it, where, flags of the record.
    """
    begin = position
    row_flags = 0
    first = (delimiters.first[0], delimiters.first[2], delimiters.first[3])
    base = position
    while delimiters.skims:
        if base >= end:
            return END, end, row_flags
        word = find_delimiters(data, base, end, first)
        if word == 0:
            base += 64
            continue
        p = base + count_trailing_zeros(word)
        base = p + 1
        byte = load_byte(data, p)
        if byte == delimiters.first[0] and matches_after_first_byte(
            data, p, end, delimiters.record
        ):
            return RECORD, p, row_flags
        escape = byte == delimiters.first[3] and matches_pattern(data, p, end, delimiters.escape)
        if not escape and not (
            byte == delimiters.first[2] and matches_pattern(data, p, end, delimiters.quote)
        ):
            continue
        size = delimiters.field.size
        if not delimiters.quotes_anywhere and (
            escape
            or not (
                p == begin
                or (p - size >= begin and matches_pattern(data, p - size, end, delimiters.field))
            )
        ):
            row_flags |= _ROW_HAS_QUOTES | _ROW_IRREGULAR
            continue
        _, _, how, p, _, _, _, more = _scan_field(data, p, end, p - 64, np.uint64(0), delimiters)
        row_flags |= more
        if how != FIELD:
            return how, p, row_flags
        begin = base = p + size
    word = np.uint64(0)
    base = position - 64
    while True:
        base, word, how, p, _, _, _, more = _scan_field(data, position, end, base, word, delimiters)
        row_flags |= more
        if how != FIELD:
            return how, p, row_flags
        position = p + delimiters.field.size


@inline_jit
def _find_line_end(data, position, end, delimiters):
    """Return where the record after this line begins, whatever quotes are in it."""
    first = (delimiters.first[0],)
    base = position
    while base < end:
        word = find_delimiters(data, base, end, first)
        if word == 0:
            base += 64
            continue
        p = base + count_trailing_zeros(word)
        if matches_after_first_byte(data, p, end, delimiters.record):
            return p + delimiters.record.size
        base = p + 1
    return end


@jit_kernel
def find_records(
    buffer: Bytes,
    position: int,
    end: int,
    delimiters: DelimiterSet,
    field_runs: RowIndexes,
    all_fields: bool,
    tables: TokenTables,
) -> tuple[int, int, int, bool]:
    """Find records and fields until the tables are full or the data end.

    Args:
        buffer: Bytes, with 64 more behind `end`.
        position: Where to begin: where a record begins.
        end: Where the data end.
        delimiters: The rules.
        field_runs: Which fields are wanted: how many to pass over, how many to take, and so on; two
            zeros behind the last.
        all_fields: Whether all fields are wanted, whatever `field_runs` says.
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
    wanted = field_runs[1::2].sum()
    # Cells of one record lie next to each other, or a table's row apart.
    step = 1 if all_fields else len(row_starts)
    limit = len(starts) if all_fields else len(starts) + step
    empty = _EMPTY_NULL if delimiters.empty_is_null else 0
    while position < end and count < len(row_starts) and total < limit:
        if matches_pattern(data, position, end, delimiters.comment):
            position = _find_line_end(data, position, end, delimiters)
            continue
        row_start = position
        row_flags = 0
        how = FIELD
        base = position - 64
        word = np.uint64(0)
        p = position
        # The next cell to fill, where its run of cells ends, how many fields lie before it.
        cell = total if all_fields else np.int64(count)
        room = limit if all_fields else cell
        skip = 0
        k = 0
        while True:
            if cell >= room:
                if all_fields:
                    return count, total, row_start, False
                skip, take = field_runs[k], field_runs[k + 1]
                if take == 0:
                    break
                room = cell + take * step
                k += 2
            p = -1
            if delimiters.simple:
                # Plain fields have loops of their own that do next to nothing.
                base, word, p = _scan_plain_field(data, end, base, word, delimiters)
                while p >= 0 and skip > 0:
                    skip -= 1
                    position = p + 1
                    base, word, p = _scan_plain_field(data, end, base, word, delimiters)
                while p >= 0:
                    starts[cell] = position
                    ends[cell] = p
                    every_flags[cell] = empty if position == p else 0
                    cell += step
                    position = p + 1
                    if cell >= room:
                        break
                    base, word, p = _scan_plain_field(data, end, base, word, delimiters)
                if p < 0 and delimiters.quotes_simply:
                    began = position
                    base, word, p = _scan_quoted_field(data, position, end, base, word, delimiters)
                    while p >= 0:
                        if skip > 0:
                            skip -= 1
                        else:
                            starts[cell] = position + 1
                            ends[cell] = p - 1
                            every_flags[cell] = _QUOTED | (empty if position + 2 == p else 0)
                            cell += step
                        position = p + 1
                        if cell >= room:
                            break
                        base, word, p = _scan_quoted_field(
                            data, position, end, base, word, delimiters
                        )
                    if position > began:
                        row_flags |= _ROW_HAS_QUOTES | _ROW_IRREGULAR
                        continue
            if p < 0:
                base, word, how, p, start, stop, flags, more = _scan_field(
                    data, position, end, base, word, delimiters
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
                position = p + delimiters.field.size
        if how == FIELD:
            how, p, more = _scan_rest_of_record(data, position, end, delimiters)
            row_flags |= more
        if row_flags & _ROW_OPEN_QUOTE and delimiters.open_quote_fails:
            return count, total, row_start, True
        row_end = p
        position = end
        if how == RECORD:
            position = p + delimiters.record.size
            if (
                delimiters.drops_return
                and p > row_start
                and load_byte(data, p - 1) == _CARRIAGE_RETURN
            ):
                row_end -= 1
            if row_start == row_end and delimiters.skips_blank:
                continue
        while not all_fields and cell < wanted * step:
            starts[cell] = 0
            ends[cell] = 0
            every_flags[cell] = _PAST_END
            cell += step
        row_starts[count] = row_start
        row_ends[count] = row_end
        every_row_flags[count] = row_flags & 3
        if all_fields:
            first[count] = total
            total = cell
        count += 1
    return count, total, position, False


@jit_kernel
def find_last_record_end(buffer: Bytes, position: int, end: int, delimiters: DelimiterSet) -> int:
    """Return the place behind the last whole record of data[at:end], `position` if there is none."""
    data = buffer.ctypes.data
    whole = position
    while position < end:
        if matches_pattern(data, position, end, delimiters.comment):
            after = _find_line_end(data, position, end, delimiters)
            if after == end and not _ends_with_delimiter(data, position, end, delimiters):
                return whole
            whole = position = after
            continue
        how, p, _ = _scan_rest_of_record(data, position, end, delimiters)
        if how != RECORD:
            return whole
        whole = position = p + delimiters.record.size
    return whole


@inline_jit
def _ends_with_delimiter(data, position, end, delimiters):
    """Tell whether data[at:end] end with a record delimiter."""
    size = delimiters.record.size
    return end - position >= size and matches_pattern(data, end - size, end, delimiters.record)


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
def count_records(buffer: Bytes, position: int, end: int, rules: CountRules) -> tuple[int, bool]:
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
    base = position
    while base < end:
        # Most of a text: outside of quotes, and nothing but fields and records.
        while (
            before == zero
            and base + 64 <= end
            and load_non_ascii_mask(data, base) | load_delimiter_mask(data, base, rules.rare)
            == zero
        ):
            records = load_delimiter_mask(data, base, (rules.record,))
            odd |= ((records << ONE) | ended) & load_delimiter_mask(
                data, base, (rules.record, back)
            )
            ended, closed = records >> np.uint64(63), zero
            count += count_ones(records)
            base += 64
        if base >= end:
            break
        records = find_delimiters(data, base, end, (rules.record,))
        starts = (records << ONE) | ended
        odd |= starts & find_delimiters(data, base, end, (rules.record, comment, back))
        high |= clip_mask(load_non_ascii_mask(data, base), base, end)
        if rules.quoted:
            if rules.escaped:
                odd |= find_delimiters(data, base, end, (rules.escape,))
            quotes = find_delimiters(data, base, end, (rules.quote,))
            inside = before
            closes = zero
            if quotes != zero:
                inside = _compute_quoted_mask(quotes, before)
                if not rules.quotes_anywhere:
                    # In front of a quote that opens: a record's begin, a delimiter, or a quote
                    # that closed, which makes the two of them one.
                    closes = quotes & ~inside
                    divides = find_delimiters(data, base, end, (rules.field,)) << ONE
                    if base > position and load_byte(data, base - 1) == rules.field:
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
        count += count_ones(records)
        base += 64
    if odd | before != zero:
        return -1, high == zero
    if end > position and load_byte(data, end - 1) != rules.record:
        count += 1
    return count, high == zero


@inline_jit
def _compute_quoted_mask(quote_mask, open_before):
    """Return which bytes lie in quotes, the opening ones included; `open_before`: all ones or zero."""
    word = quote_mask
    for shift in (1, 2, 4, 8, 16, 32):
        word ^= word << np.uint64(shift)
    return word ^ open_before


@jit_kernel
def find_invalid_utf8(buffer: Bytes, position: int, end: int) -> int:
    """Return the place of the first byte that breaks UTF-8, -1 if there is none."""
    data = buffer.ctypes.data
    while position < end:
        position = _skip_ascii(data, position, end)
        if position >= end:
            break
        lead = load_byte(data, position)
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
            return position
        for i in range(1, more + 1):
            if position + i >= end or not low <= load_byte(data, position + i) <= high:
                return position
            low, high = 0x80, 0xBF
        position += more + 1
    return -1


@inline_jit
def _skip_ascii(data, position, end):
    """Return the place of the first byte from `position` on that is not ASCII, `end` if none is."""
    while position + 64 <= end and is_ascii_block(data, position):
        position += 64
    while position < end and load_byte(data, position) < 0x80:
        position += 1
    return position
