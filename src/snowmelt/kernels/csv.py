"""CSV kernels: tokenizer and record counter.

The tokenizer examines only bytes that may start a delimiter, quote or escape. It follows the rules
of `snowmelt.select.formats.csv_state_machine`, and tests compare the two. The record counter
ignores fields.
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
    load_byte,
    load_delimiter_mask,
    load_non_ascii_mask,
    matches_after_first_byte,
    matches_pattern,
)
from snowmelt.kernels.slices import Bytes, Positions, RowIndexes

# Each kernel is one long function. Functions that only kernels call have no annotations, because
# Numba infers the types.
# ruff: noqa: ANN001, ANN202, C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, return-value, var-annotated, unreachable"


FIELD, RECORD, END = 0, 1, 2

_PAST_END, _NEEDS_UNQUOTING, _EMPTY_NULL, _QUOTED = 1, 2, 4, 8
_ROW_HAS_QUOTES, _ROW_IRREGULAR, _ROW_OPEN_QUOTE = 1, 2, 4
_CARRIAGE_RETURN = 13


class TokenTables(NamedTuple):
    """Output of the tokenizer: a position for each record, and cells for fields.

    The cells of one requested field are contiguous, with one cell per row. If all fields are
    requested, the cells of one record are contiguous, and `first` has the number of cells before
    each record.
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
        Its meaning (0: text, 1: opens or closes quotes, 2: first byte of an escaped quote), and the
        position to continue at.
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
    """Read an escape at `position`. Return the position to continue at, or 0 if it is text."""
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
    """Read the field at `field_start`. `mask_position` and `delimiter_mask` are the read state.

    Returns:
        New mask position and mask; kind and position of the field's end; start, end and flags of
        the value; flags of the record.
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
    """Read a field in the common case, in which the next marked byte is its delimiter.

    Returns:
        New mask position and mask, and the end of the field (-1 if the case does not apply).
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
    """Read a quoted field of plain text that another field follows.

    Returns:
        New mask position and mask, and the end of the field (-1 if the case does not apply).
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
    """Read from the first byte of a field to the end of its record.

    Returns:
        Kind and position of the record's end, and the flags of the record.
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
    """Return the start of the next record after this line, ignoring quotes."""
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
    """Find records and fields until the tables are full or the data ends.

    Args:
        buffer: Data, with 64 more bytes after `end`.
        position: Start of a record.
        end: End of the data.
        delimiters: The rules.
        field_runs: Requested fields as run lengths of skipped, taken, skipped fields and so on,
            with two zeros at the end.
        all_fields: True if all fields are requested. `field_runs` is then ignored.
        tables: Output, filled from index 0.

    Returns:
        Number of records, number of fields (ragged), the position where reading stopped, and True
        if it stopped at an invalid open quote.
    """
    data = buffer.ctypes.data
    # Read these once, because each access to the tuple costs reference counting.
    row_starts, row_ends, every_row_flags, first, starts, ends, every_flags = tables
    count = 0
    total = np.int64(0)
    wanted = field_runs[1::2].sum()
    # Distance between the cells of one record: one, or a table row.
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
        # Next cell to fill, end of its run of cells, and number of fields before the cell.
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
                # Use smaller loops for plain fields.
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
    """Return the end of the last complete record of data[position:end], else `position`."""
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
    """Return True if data[position:end] ends with a record delimiter."""
    size = delimiters.record.size
    return end - position >= size and matches_pattern(data, end - size, end, delimiters.record)


class CountRules(NamedTuple):
    """Rules of `count_records`, as scalars to make calls cheaper.

    The record delimiter replaces an undefined byte. In `rare`, another rare byte replaces it, or 0
    if none is defined.
    """

    record: np.uint8
    field: np.uint8
    # Bytes other than the record delimiter that start no counted record: comment, carriage return.
    first: tuple[np.uint8, np.uint8]
    # Three rare bytes that the loop for the common case does not handle: quote, escape, comment.
    rare: tuple[np.uint8, ...]
    quote: np.uint8
    escape: np.uint8
    # `quoted`: quotes have a meaning. `escaped`: escapes inside quotes have a meaning.
    quoted: bool
    escaped: bool
    quotes_anywhere: bool
    doubles: bool
    quoted_records: bool


@jit_kernel
def count_records(buffer: Bytes, position: int, end: int, rules: CountRules) -> tuple[int, bool]:
    """Count the records of data[position:end] by their delimiters, ignoring fields.

    Supports delimiters and quotes of one byte. A byte is inside quotes if an odd number of quotes
    precedes it.

    Returns:
        The number of records, and True if all bytes are ASCII. The number is -1 if the tokenizer
        must determine it: for comments, blank lines, escapes, quotes within a field, or an invalid
        open quote.
    """
    data = buffer.ctypes.data
    zero = np.uint64(0)
    before = odd = high = zero
    # True if the previous byte ended a record, or was a closing quote.
    ended, closed = ONE, zero
    comment, back = rules.first
    count = 0
    base = position
    while base < end:
        # Common case: 64 ASCII bytes outside quotes, without quote, escape and comment.
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
                    # An opening quote follows the start of a record, a delimiter, or a closing
                    # quote; the latter two are one escaped quote.
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
    """Return a mask of opening quotes and bytes inside quotes. `open_before` is all ones or 0."""
    word = quote_mask
    for shift in (1, 2, 4, 8, 16, 32):
        word ^= word << np.uint64(shift)
    return word ^ open_before
