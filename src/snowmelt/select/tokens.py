"""Where the records of a block and their fields lie: what both tokenizers make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from snowmelt.select import state_machine
from snowmelt.select.vectors import EMPTY_NULL, PAST_END, UNCLEAN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.select.csv_rules import CsvRules
    from snowmelt.select.vectors import Bytes, Places, Rows

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
