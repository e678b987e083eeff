"""Finds records and fields in a block: the compiled kernels with tables of the right size."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from snowmelt.select.formats import csv_state_machine as state_machine
from snowmelt.select.formats.blocks import overlaps_itself
from snowmelt.select.kernels import csv as counting
from snowmelt.select.kernels import csv as scanning
from snowmelt.select.kernels.bitmask import Mark, Marks
from snowmelt.select.kernels.csv import CountRules, Tables
from snowmelt.select.vectors import EMPTY_NULL, PADDING, PAST_END, UNCLEAN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.select.formats.csv_dialect import CsvRules
    from snowmelt.select.vectors import Bytes, Places, Rows

# --- Where the records of a block and their fields lie: what both tokenizers make.

# Flag of a slice, beside those of `vectors`: it stood in quotes, which the slice leaves out.
QUOTED = 8

# Flags of a record.
MARKED = 1  # it holds a quote or an escape
IRREGULAR = 2  # a writer that quotes only what needs quotes would write it in another way
OPEN = 4  # a quote is open where it ends, and the rules do not allow that


@dataclass(frozen=True, slots=True)
class Tokens:
    """Places in a block's data.

    `starts`, `ends` and `flags` have a row for each wanted field and a column for each record. If
    all fields were wanted they have one row: the fields of record i are at [first[i], first[i+1]).
    `stop` is where the first record begins that is not in here, because it is `OPEN`.
    """

    row_starts: Places
    row_ends: Places
    row_flags: Bytes
    starts: Places
    ends: Places
    flags: Bytes
    first: Rows | None = None
    stop: int | None = None

    @property
    def rows(self) -> int:
        """How many records there are."""
        return len(self.row_starts)

    def front(self, rows: int, stop: int) -> Tokens:
        """Return the first records alone."""
        ragged = self.first is not None
        fields = int(self.first[rows]) if self.first is not None else rows
        return Tokens(
            self.row_starts[:rows],
            self.row_ends[:rows],
            self.row_flags[:rows],
            self.starts[:, :fields],
            self.ends[:, :fields],
            self.flags[:, :fields],
            self.first[: rows + 1] if ragged and self.first is not None else None,
            stop,
        )


class RaggedTokens(NamedTuple):
    """Places of all fields, those of one record after the other.

    The fields of record i have the numbers from first[i] up to first[i + 1].
    """

    first: Rows
    starts: Places
    ends: Places
    flags: Bytes


def tokenize_plainly(
    data: Bytes, start: int, end: int, rules: CsvRules, places: Sequence[int] | None
) -> Tokens:
    """Find records and fields with the state machine: slow, where numba is not installed."""
    text = data[start:end].tobytes()
    rows: list[tuple[int, int, int]] = []
    cells: list[list[tuple[int, int, int]]] = []
    stop = None
    for record in state_machine.records(text, rules):
        if record.open and rules.open_quote_fails:
            stop = start + record.start
            break
        fields = [_cell(text, start, field, rules) for field in record.fields]
        row_flags = 0
        for field in record.fields:
            row_flags |= _row_flags(text, field, rules)
        rows.append((start + record.start, start + record.end, row_flags))
        if places is not None:
            past = (0, 0, PAST_END)
            fields = [fields[place] if place < len(fields) else past for place in places]
        cells.append(fields)
    bounds = np.array(rows, np.int32).reshape(-1, 3)
    first = None
    if places is None:
        first = np.zeros(len(cells) + 1, np.int64)
        np.cumsum([len(fields) for fields in cells], out=first[1:])
        table = np.array([cell for fields in cells for cell in fields], np.int32)
        table = table.reshape(1, -1, 3)
    else:
        table = np.array(cells, np.int32).reshape(len(cells), len(places), 3).transpose(1, 0, 2)
    return Tokens(
        bounds[:, 0],
        bounds[:, 1],
        bounds[:, 2].astype(np.uint8),
        table[:, :, 0],
        table[:, :, 1],
        table[:, :, 2].astype(np.uint8),
        first,
        stop,
    )


def _cell(
    text: bytes, start: int, field: state_machine.Field, rules: CsvRules
) -> tuple[int, int, int]:
    flags = 0
    at, end = field.start, field.end
    if text[at:end] != field.value:
        if not field.plain:
            return start + at, start + end, UNCLEAN
        at, end, flags = at + len(rules.quote), end - len(rules.quote), QUOTED
    if at == end and rules.empty_is_null:
        flags |= EMPTY_NULL
    return start + at, start + end, flags


def _row_flags(text: bytes, field: state_machine.Field, rules: CsvRules) -> int:
    """Return what a field adds to the flags of its record."""
    raw = text[field.start : field.end]
    marks = [mark for mark in (rules.quote, rules.escape) if mark]
    if not any(mark in raw for mark in marks):
        return 0
    needed = any(mark in field.value for mark in (rules.field, rules.record, rules.quote))
    doubled = rules.quote + field.value.replace(rules.quote, 2 * rules.quote) + rules.quote
    if rules.quotes_anywhere or not needed or raw != doubled:
        return MARKED | IRREGULAR
    return MARKED


# The first guess of how long a record is; tables grow where records are shorter.
_RECORD_BYTES = 64
_FIELD_BYTES = 8
# Columns that lie a power of two apart would push each other out of the processor's cache.
_APART = 208
_FEWEST = 256
_RETURN = 13


class RecordFinder:
    """Finds records and the fields with some places (ascending, from zero); None: all fields."""

    def __init__(
        self, rules: CsvRules, places: Sequence[int] | None, *, fewest: int = _FEWEST
    ) -> None:
        """Settle what is looked for; tables are made for at least `fewest` records and fields."""
        self._marks = marks_of(rules)
        self._fewest = fewest
        self._ragged = places is None
        self._wanted = 0 if places is None else len(places)
        self._runs = np.array(_runs(places or ()), np.int64)

    def __call__(self, data: Bytes, start: int, end: int) -> Tokens:
        """Return the records in data[start:end], up to one with a quote open that may not be.

        `data` must go on for `PADDING` bytes behind `end`; positions are int32.
        """
        if not 0 <= start <= end <= len(data) - PADDING:
            raise ValueError((start, end, len(data)))
        guess = (end - start) // _RECORD_BYTES
        rows = max(self._fewest, guess + _APART if guess > _APART else guess)
        cells = max(self._fewest, (end - start) // _FIELD_BYTES)
        at, parts = start, []
        while True:
            tables = self._tables(rows, cells)
            found = scanning.find_records(
                data, at, end, self._marks, self._runs, self._ragged, tables
            )
            count, total, stopped, is_open = found
            parts.append(self._filled(tables, count, total))
            if is_open or stopped >= end:
                return _joined(parts, stopped if is_open else None)
            if stopped > at:
                # What is left is as dense as what was read, or nearly so.
                scale = (end - stopped) / (stopped - at) * 1.25
                rows = max(self._fewest, int(count * scale))
                cells = max(self._fewest, int(total * scale))
            else:
                cells *= 4
            at = stopped

    def _tables(self, rows: int, cells: int) -> Tables:
        if not self._ragged:
            cells = self._wanted * rows
        return Tables(
            np.empty(rows, np.int32),
            np.empty(rows, np.int32),
            np.empty(rows, np.uint8),
            np.empty(rows + 1 if self._ragged else 0, np.int64),
            np.empty(cells, np.int32),
            np.empty(cells, np.int32),
            np.empty(cells, np.uint8),
        )

    def _filled(self, tables: Tables, rows: int, cells: int) -> Tokens:
        """Return what was filled, as views."""
        if self._ragged:
            tables.first[rows] = cells
        else:
            cells = rows
        shape = (1 if self._ragged else self._wanted, -1)
        if not len(tables.starts):
            shape = (0, rows)
        return Tokens(
            tables.row_starts[:rows],
            tables.row_ends[:rows],
            tables.row_flags[:rows],
            tables.starts.reshape(shape)[:, :cells],
            tables.ends.reshape(shape)[:, :cells],
            tables.flags.reshape(shape)[:, :cells],
            tables.first[: rows + 1] if self._ragged else None,
        )


class RecordCutter:
    """Finds the end of the last whole record where quotes decide where records end."""

    def __init__(self, rules: CsvRules) -> None:
        self._marks = marks_of(rules)

    def __call__(self, memory: bytearray, start: int, end: int) -> int:
        """Return the place behind the last whole record of [start, end), `start` if none."""
        data = np.frombuffer(memory, np.uint8)
        return int(scanning.last_record_end(data, start, end, self._marks))


class RecordCounter:
    """Counts records without looking at their fields, where delimiters alone tell how many."""

    def __init__(self, rules: CsvRules) -> None:
        self._rules = _count_rules(rules)
        self._single = len(rules.record) == len(rules.field) == 1 and len(rules.quote) <= 1

    def __call__(self, data: Bytes, start: int, end: int) -> tuple[int | None, bool]:
        """Return how many records are in data[start:end], and whether all is surely ASCII.

        Their number is None where fields must be looked at.
        """
        if not self._single:
            return None, False
        count, ascii_only = counting.count_records(data, start, end, self._rules)
        return None if count < 0 else count, ascii_only


def first_bad_byte(data: Bytes, start: int, end: int) -> int:
    """Return the place of the first byte that breaks UTF-8, -1 if there is none."""
    return int(counting.first_bad_byte(data, start, end))


def marks_of(rules: CsvRules) -> Marks:
    """Return rules in the form that kernels take."""
    record = rules.record[0]
    return Marks(
        record=_mark(rules.record),
        field=_mark(rules.field),
        quote=_mark(rules.quote),
        escape=_mark(rules.escape),
        comment=_mark(rules.comment),
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
        skims=not overlaps_itself(rules.field),
        simple=len(rules.field) == 1
        and not any(
            mark.startswith(rules.field) for mark in (rules.record, rules.quote, rules.escape)
        ),
    )


def _count_rules(rules: CsvRules) -> CountRules:
    record = rules.record[0]
    quoted = bool(rules.quote) and (rules.quoted_records or rules.open_quote_fails)
    quote = rules.quote[:1] if quoted else b""
    escape = rules.escape[:1] if quoted else b""
    rare = quote + escape + rules.comment[:1] or b"\0"
    back = _RETURN if rules.drops_return else record
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


def _runs(places: Sequence[int]) -> list[int]:
    """Return how many fields to pass over, how many to take, and so on, zeros at the end."""
    runs: list[int] = []
    after = 0
    for place in places:
        if place == after and runs:
            runs[-1] += 1
        else:
            runs += [place - after, 1]
        after = place + 1
    return [*runs, 0, 0]


def _mark(text: bytes) -> Mark:
    bits = b"\xff" * len(text)
    return Mark(
        len(text),
        *(
            np.uint64(int.from_bytes(part, sys.byteorder))
            for half in (slice(0, 8), slice(8, 16))
            for part in (text[half].ljust(8, b"\0"), bits[half].ljust(8, b"\0"))
        ),
    )


def _joined(parts: list[Tokens], stop: int | None) -> Tokens:
    if len(parts) == 1 and stop is None:
        return parts[0]
    first = None
    if parts[0].first is not None:
        steps = [np.diff(part.first) for part in parts if part.first is not None]
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(steps))])
    return Tokens(
        np.concatenate([part.row_starts for part in parts]),
        np.concatenate([part.row_ends for part in parts]),
        np.concatenate([part.row_flags for part in parts]),
        np.concatenate([part.starts for part in parts], axis=1),
        np.concatenate([part.ends for part in parts], axis=1),
        np.concatenate([part.flags for part in parts], axis=1),
        first,
        stop,
    )
