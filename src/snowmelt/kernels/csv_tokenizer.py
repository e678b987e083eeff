"""CSV tokenizer: positions and flags of the records and fields in a block.

Calls the compiled kernels with tables of sufficient size.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from snowmelt.kernels import csv
from snowmelt.kernels.csv import CountRules, TokenTables
from snowmelt.kernels.delimiter_masks import DelimiterPattern, DelimiterSet
from snowmelt.kernels.slices import PADDING_BYTES, Bytes, Positions, RowIndexes


@dataclass(frozen=True, slots=True)
class CsvRules:
    """CSV rules. Delimiters have one or more bytes. Quote, escape and comment may be empty (none)."""

    record: bytes
    field: bytes
    quote: bytes
    # Escape character. Empty if quotes are escaped by doubling.
    escape: bytes
    comment: bytes
    # True if a quote has a meaning anywhere, not only as the first byte of a field.
    quotes_anywhere: bool
    # True if quotes are part of the value.
    keeps_quotes: bool
    # True if the escape has a meaning anywhere (else only in quotes, before a quote or an escape).
    escapes_anywhere: bool
    # True if two quotes inside quotes are one quote.
    doubles: bool
    # True if a record delimiter in quotes is data.
    quoted_records: bool
    # True if an open quote at the end of a record is an error.
    open_quote_fails: bool
    # True if a carriage return before the record delimiter is part of the delimiter.
    drops_return: bool
    skips_blank: bool
    # True if an empty field is NULL.
    empty_is_null: bool
    skips_byte_order_mark: bool
    validates_utf8: bool
    # True if an escape also makes the first byte of a record delimiter data.
    escapes_records: bool = False
    # True if text after the closing quote of a field is an error, as an open quote is.
    text_after_quote_fails: bool = False

    @property
    def ends_at_every_delimiter(self) -> bool:
        """True if the last occurrence of the record delimiter always ends a record."""
        return not self.quoted_records and not can_overlap_itself(self.record)


def can_overlap_itself(delimiter: bytes) -> bool:
    """Return True if occurrences of a delimiter can overlap, so that matches depend on earlier ones."""
    return any(delimiter[:size] == delimiter[-size:] for size in range(1, len(delimiter)))


# Flags of a record.
ROW_HAS_QUOTES = 1  # The record contains a quote or an escape.
ROW_IRREGULAR = 2  # A writer that quotes only if necessary would write the record differently.
ROW_OPEN_QUOTE = 4  # A quote is open at the record's end, which the rules do not allow.


@dataclass(frozen=True, slots=True)
class CsvTokens:
    """Positions of records and fields in a block.

    `starts`, `ends` and `flags` have a row for each requested field and a column for each record.
    If all fields were requested, they have one row, in which the fields of record i are at
    [first[i], first[i+1]). `invalid_record_start` is the start of the first record with
    `ROW_OPEN_QUOTE`, which is omitted.
    """

    row_starts: Positions
    row_ends: Positions
    row_flags: Bytes
    starts: Positions
    ends: Positions
    flags: Bytes
    field_offsets: RowIndexes | None = None
    invalid_record_start: int | None = None

    @property
    def row_count(self) -> int:
        """Number of records."""
        return len(self.row_starts)

    def truncate(self, row_count: int, invalid_record_start: int) -> CsvTokens:
        """Return only the first `row_count` records."""
        offsets = self.field_offsets
        fields = row_count if offsets is None else int(offsets[row_count])
        return CsvTokens(
            self.row_starts[:row_count],
            self.row_ends[:row_count],
            self.row_flags[:row_count],
            self.starts[:, :fields],
            self.ends[:, :fields],
            self.flags[:, :fields],
            None if offsets is None else offsets[: row_count + 1],
            invalid_record_start,
        )


class RaggedCsvTokens(NamedTuple):
    """Positions of all fields, concatenated over the records.

    The fields of record i have the indexes first[i] (inclusive) to first[i + 1] (exclusive).
    """

    field_offsets: RowIndexes
    starts: Positions
    ends: Positions
    flags: Bytes


# Initial estimate of the bytes per record; tables grow if records are shorter.
_INITIAL_RECORD_BYTES = 64
_INITIAL_FIELD_BYTES = 8
# Avoid a power of two as row length: fields would evict each other from the processor's cache.
_CACHE_OFFSET_ROWS = 208
_MIN_TABLE_ROWS = 256
_CARRIAGE_RETURN = 13


class CsvRecordFinder:
    """Finder of records and of the fields with given zero-based, ascending indexes (None: all)."""

    def __init__(
        self,
        rules: CsvRules,
        field_indexes: Sequence[int] | None,
        *,
        min_table_rows: int = _MIN_TABLE_ROWS,
    ) -> None:
        """Prepare the search, with tables for at least `min_table_rows` records and fields."""
        self._delimiters = make_delimiter_set(rules)
        self._min_table_rows = min_table_rows
        self._all_fields = field_indexes is None
        self._field_count = 0 if field_indexes is None else len(field_indexes)
        self._field_runs = np.array(_encode_field_runs(field_indexes or ()), np.int64)

    def __call__(self, data: Bytes, start: int, end: int) -> CsvTokens:
        """Return the records in data[start:end], up to the first with an invalid open quote.

        `data` must extend `PADDING_BYTES` bytes past `end`. Positions are int32.
        """
        if not 0 <= start <= end <= len(data) - PADDING_BYTES:
            raise ValueError((start, end, len(data)))
        guess = (end - start) // max(_INITIAL_RECORD_BYTES, 2 * self._field_count)
        rows = max(
            self._min_table_rows,
            guess + _CACHE_OFFSET_ROWS if guess > _CACHE_OFFSET_ROWS else guess,
        )
        cells = max(self._min_table_rows, (end - start) // _INITIAL_FIELD_BYTES)
        at, parts = start, []
        while True:
            tables = self._allocate_tables(rows, cells)
            found = csv.find_records(
                data, at, end, self._delimiters, self._field_runs, self._all_fields, tables
            )
            count, total, stopped, is_open = found
            parts.append(self._view_filled_tables(tables, count, total))
            if is_open or stopped >= end:
                return _concatenate_tokens(parts, stopped if is_open else None)
            if stopped > at:
                # Assume as many records per byte in the rest, and add 25 %.
                scale = (end - stopped) / (stopped - at) * 1.25
                rows = max(self._min_table_rows, int(count * scale))
                cells = max(self._min_table_rows, int(total * scale))
            else:
                cells *= 4
            at = stopped

    def _allocate_tables(self, rows: int, cells: int) -> TokenTables:
        if not self._all_fields:
            cells = self._field_count * rows
        return TokenTables(
            np.empty(rows, np.int32),
            np.empty(rows, np.int32),
            np.empty(rows, np.uint8),
            np.empty(rows + 1 if self._all_fields else 0, np.int64),
            np.empty(cells, np.int32),
            np.empty(cells, np.int32),
            np.empty(cells, np.uint8),
        )

    def _view_filled_tables(self, tables: TokenTables, rows: int, cells: int) -> CsvTokens:
        """Return views of the filled parts of the tables."""
        if self._all_fields:
            tables.first[rows] = cells
        else:
            cells = rows
        shape = (1 if self._all_fields else self._field_count, -1)
        if not len(tables.starts):
            shape = (0, rows)
        return CsvTokens(
            tables.row_starts[:rows],
            tables.row_ends[:rows],
            tables.row_flags[:rows],
            tables.starts.reshape(shape)[:, :cells],
            tables.ends.reshape(shape)[:, :cells],
            tables.flags.reshape(shape)[:, :cells],
            tables.first[: rows + 1] if self._all_fields else None,
        )


class CsvBlockCutter:
    """Finder of the end of the last complete record, for rules with delimiters in quotes."""

    def __init__(self, rules: CsvRules) -> None:
        self._delimiters = make_delimiter_set(rules)

    def __call__(self, memory: bytearray, start: int, end: int) -> int:
        """Return the end of the last complete record of [start, end), or `start` without one."""
        data = np.frombuffer(memory, np.uint8)
        return int(csv.find_last_record_end(data, start, end, self._delimiters))


class CsvRecordCounter:
    """Counter of records by their delimiters, without reading fields."""

    def __init__(self, rules: CsvRules) -> None:
        self._rules = _make_count_rules(rules)
        self._single = len(rules.record) == len(rules.field) == 1 and len(rules.quote) <= 1

    def __call__(self, data: Bytes, start: int, end: int) -> tuple[int | None, bool]:
        """Return the number of records in data[start:end], and True if all bytes are ASCII.

        The number is None if the fields must be read to count the records. The second value is then
        meaningless.
        """
        if not self._single:
            return None, False
        count, ascii_only = csv.count_records(data, start, end, self._rules)
        return None if count < 0 else count, ascii_only


def find_invalid_utf8_byte(data: Bytes, start: int, end: int) -> int:
    """Return the position of the first byte that is invalid UTF-8, or -1."""
    # Arrow validates without the global interpreter lock, but does not report the position.
    text, offsets = data[start:end], np.array([0, end - start], np.int32)
    try:
        pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(text)).validate(
            full=True
        )
    except pa.ArrowInvalid:
        try:
            str(text.data, "utf-8")
        except UnicodeDecodeError as error:
            return start + error.start
    return -1


def make_delimiter_set(rules: CsvRules) -> DelimiterSet:
    """Convert the rules to the form for kernels."""
    record = rules.record[0]
    simple = len(rules.field) == 1 and not any(
        mark.startswith(rules.field) for mark in (rules.record, rules.quote, rules.escape)
    )
    others = (rules.record[:1], rules.escape[:1])
    return DelimiterSet(
        record=_make_delimiter_pattern(rules.record),
        field=_make_delimiter_pattern(rules.field),
        quote=_make_delimiter_pattern(rules.quote),
        escape=_make_delimiter_pattern(rules.escape),
        comment=_make_delimiter_pattern(rules.comment),
        first=(
            np.uint8(record),
            np.uint8(rules.field[0]),
            np.uint8(rules.quote[0] if rules.quote else record),
            np.uint8(rules.escape[0] if rules.escape else record),
        ),
        quotes_anywhere=rules.quotes_anywhere,
        keeps_quotes=rules.keeps_quotes,
        escapes_anywhere=rules.escapes_anywhere,
        doubles=rules.doubles,
        quoted_records=rules.quoted_records,
        open_quote_fails=rules.open_quote_fails,
        drops_return=rules.drops_return,
        skips_blank=rules.skips_blank,
        empty_is_null=rules.empty_is_null,
        skims=not can_overlap_itself(rules.field) and not rules.escapes_records,
        simple=simple,
        quotes_simply=simple
        and len(rules.quote) == 1
        and not rules.keeps_quotes
        and rules.quote not in others,
        escapes_records=rules.escapes_records,
        text_after_quote_fails=rules.text_after_quote_fails,
    )


def _make_count_rules(rules: CsvRules) -> CountRules:
    record = rules.record[0]
    quoted = bool(rules.quote) and (rules.quoted_records or rules.open_quote_fails)
    quote = rules.quote[:1] if quoted else b""
    escape = rules.escape[:1] if quoted else b""
    rare = quote + escape + rules.comment[:1] or b"\0"
    back = _CARRIAGE_RETURN if rules.drops_return else record
    return CountRules(
        record=np.uint8(record),
        field=np.uint8(rules.field[0]),
        first=(np.uint8((rules.comment or rules.record)[0]), np.uint8(back)),
        rare=tuple(np.uint8(byte) for byte in rare.ljust(3, rare[:1])),
        quote=np.uint8((quote or rules.record)[0]),
        escape=np.uint8((escape or rules.record)[0]),
        quoted=quoted,
        escaped=bool(escape),
        quotes_anywhere=rules.quotes_anywhere,
        doubles=rules.doubles,
        quoted_records=rules.quoted_records,
    )


def _encode_field_runs(field_indexes: Sequence[int]) -> list[int]:
    """Return the run lengths of skipped and taken fields, with zeros at the end."""
    runs: list[int] = []
    after = 0
    for place in field_indexes:
        if place == after and runs:
            runs[-1] += 1
        else:
            runs += [place - after, 1]
        after = place + 1
    return [*runs, 0, 0]


def _make_delimiter_pattern(delimiter: bytes) -> DelimiterPattern:
    bits = b"\xff" * len(delimiter)
    return DelimiterPattern(
        len(delimiter),
        *(
            np.uint64(int.from_bytes(part, sys.byteorder))
            for half in (slice(0, 8), slice(8, 16))
            for part in (delimiter[half].ljust(8, b"\0"), bits[half].ljust(8, b"\0"))
        ),
    )


def _concatenate_tokens(segments: list[CsvTokens], invalid_record_start: int | None) -> CsvTokens:
    if len(segments) == 1 and invalid_record_start is None:
        return segments[0]
    first = None
    if segments[0].field_offsets is not None:
        steps = [np.diff(part.field_offsets) for part in segments if part.field_offsets is not None]
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(steps))])
    return CsvTokens(
        np.concatenate([part.row_starts for part in segments]),
        np.concatenate([part.row_ends for part in segments]),
        np.concatenate([part.row_flags for part in segments]),
        np.concatenate([part.starts for part in segments], axis=1),
        np.concatenate([part.ends for part in segments], axis=1),
        np.concatenate([part.flags for part in segments], axis=1),
        first,
        invalid_record_start,
    )
