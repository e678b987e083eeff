"""Compiled scanner of delimited text: splits blocks of records into the cells of columns.

The exact reader (`delimited_text.DelimitedRecordReader`) reads the records that the scanner cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from snowmelt.kernels.cells import find_nulls
from snowmelt.kernels.csv_tokenizer import (
    CsvRecordFinder,
    CsvRules,
    CsvTokens,
    find_invalid_utf8_byte,
)
from snowmelt.kernels.slices import (
    PADDING_BYTES,
    PAST_END,
    Bytes,
    Mask,
    Positions,
    RowIndexes,
    StringSlices,
    view_bytes,
)
from snowmelt.load.parsers.delimited_text import DelimitedDialect, DelimitedRecordReader
from snowmelt.load.text_cells import TextCells


@dataclass(frozen=True, slots=True)
class ScannedBlock:
    """Records at the start of a block, which occupy its first `size` bytes.

    `record_starts` has the positions of all records. `row_records` has the zero-based numbers of
    the records that are rows. In `columns`, a target column without a field is None.
    """

    size: int
    record_starts: Positions
    row_records: RowIndexes
    columns: list[TextCells | None]


class DelimitedScanner:
    """Scanner of the blocks of one stream. `field_indexes` has each column's field index, or None."""

    def __init__(
        self,
        dialect: DelimitedDialect,
        record_reader: DelimitedRecordReader,
        field_count: int,
        field_indexes: Sequence[int | None],
        *,
        pads_missing_fields: bool,
    ) -> None:
        marks = dialect.default_field
        escape = b"" if marks.escape == marks.quote else marks.escape
        rules = CsvRules(
            record=dialect.terminator or b"\n",
            field=marks.delimiter,
            quote=marks.quote,
            escape=escape,
            comment=b"",
            quotes_anywhere=False,
            keeps_quotes=False,
            escapes_anywhere=True,
            doubles=True,
            quoted_records=bool(marks.quote),
            open_quote_fails=True,
            drops_return=not dialect.terminator,
            skips_blank=not dialect.keeps_blank_lines and field_count > 1,
            empty_is_null=False,
            skips_byte_order_mark=False,
            validates_utf8=False,
            escapes_records=bool(escape),
            text_after_quote_fails=True,
        )
        self._record_reader = record_reader
        self._field_indexes = field_indexes
        self._pads_missing_fields = pads_missing_fields
        # Also scan the last expected field and the one after it, to check the number of fields.
        places = {place for place in field_indexes if place is not None}
        wanted = sorted(places | {field_count - 1, field_count})
        self._cell_rows = {place: row for row, place in enumerate(wanted)}
        self._finder = CsvRecordFinder(rules, wanted)
        self._quote = marks.quote[0] if marks.quote else -1
        self._escape = escape[0] if escape else -1
        own = dialect.null_overrides or {}
        self._more_nulls = [np.frombuffer(each, np.uint8) for each in marks.more_nulls]
        self._nulls = {
            place: np.frombuffer(own.get(place, marks.null), np.uint8) for place in places
        }

    def scan(self, data: bytes, *, is_last: bool) -> ScannedBlock:
        """Scan the complete records at the start of a block."""
        end = len(data) - PADDING_BYTES
        if not is_last and end > 0:
            # Kernels may read past `end`, so the last bytes of the block serve as padding.
            block = self._scan(data, view_bytes(data), end, is_last=False)
            if block.size:
                return block
        # np.zeros would allocate new pages for each block.
        buffer = np.empty(len(data) + PADDING_BYTES, np.uint8)
        buffer[: len(data)] = np.frombuffer(data, np.uint8)
        buffer[len(data) :] = 0
        return self._scan(data, buffer, len(data), is_last=is_last)

    def _scan(self, data: bytes, buffer: Bytes, end: int, *, is_last: bool) -> ScannedBlock:
        found: list[CsvTokens] = []
        broken: list[int] = []
        starts: list[Positions] = []
        count = size = 0
        while size < end:
            tokens = self._finder(buffer, size, end)
            rows, stop = tokens.row_count, tokens.invalid_record_start
            is_cut = bool(stop is None and not is_last and rows and tokens.row_ends[-1] == end)
            if is_cut:
                # The last record may continue in the next block.
                rows -= 1
                stop = int(tokens.row_starts[rows])
                tokens = tokens.truncate(rows, stop)
            found.append(tokens)
            starts.append(tokens.row_starts)
            count += rows
            size = end if stop is None else stop
            if is_cut or stop is None:
                break
            record = self._record_reader.read_record(data, stop, is_last=is_last)
            if record is None or record.next_start > end:
                break
            broken.append(count)
            starts.append(np.array([stop], np.int32))
            count += 1
            size = record.next_start
        if not found:
            return ScannedBlock(0, np.empty(0, np.int32), np.empty(0, np.int64), [])
        row_records = np.delete(np.arange(count), broken) if broken else np.arange(count)
        return self._make_block(size, buffer, found, np.concatenate(starts), row_records)

    def _make_block(
        self,
        size: int,
        buffer: Bytes,
        found: Sequence[CsvTokens],
        record_starts: Positions,
        row_records: RowIndexes,
    ) -> ScannedBlock:
        first = found[0]
        cells = (first.starts, first.ends, first.flags)
        if len(found) > 1:
            cells = (
                np.concatenate([tokens.starts for tokens in found], axis=1),
                np.concatenate([tokens.ends for tokens in found], axis=1),
                np.concatenate([tokens.flags for tokens in found], axis=1),
            )
        wrong: Mask = cells[2][-1] != PAST_END
        if not self._pads_missing_fields:
            wrong |= cells[2][-2] == PAST_END
        if wrong.any():
            # compress() keeps rows contiguous, which indexing does not, so that kernels compile for
            # one type.
            cells = (
                cells[0].compress(~wrong, axis=1),
                cells[1].compress(~wrong, axis=1),
                cells[2].compress(~wrong, axis=1),
            )
            row_records = row_records[~wrong]
        is_utf8 = find_invalid_utf8_byte(buffer, 0, size) < 0
        columns: list[TextCells | None] = []
        for place in self._field_indexes:
            if place is None:
                columns.append(None)
                continue
            row = self._cell_rows[place]
            slices = StringSlices(buffer, cells[0][row], cells[1][row], cells[2][row])
            null = find_nulls(
                buffer, slices.start, slices.end, slices.flags, self._nulls[place], self._quote
            )
            for each in self._more_nulls:
                null |= find_nulls(
                    buffer, slices.start, slices.end, slices.flags, each, self._quote
                )
            columns.append(TextCells(slices, null, self._quote, self._escape, is_utf8))
        return ScannedBlock(size, record_starts, row_records, columns)
