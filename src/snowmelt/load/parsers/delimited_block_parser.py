"""Parser of blocks of delimited text into rows and rejects.

Uses the compiled scanner if it supports the dialect, and the exact record reader otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import pyarrow as pa

from snowmelt.errors import InternalError
from snowmelt.load.parsers.delimited_text import DelimitedDialect, DelimitedRecordReader
from snowmelt.load.parsers.portion_stream import ParsedBatchBuilder
from snowmelt.load.parsers.warmup import COMPILED_READERS
from snowmelt.load.phase_protocols import HeaderMismatch, ParsedBatch

if TYPE_CHECKING:
    from snowmelt.load.column_converter import TableConverter
    from snowmelt.load.parsers.delimited_scanner import DelimitedScanner

    Reasons = dict[int, tuple[str | None, str]]

# Minimum size of the first block for the scanner. The exact reader parses a smaller block in less
# time than it takes to load the scanner.
_MIN_SCANNED_BYTES = 1 << 15
# Limits of the scanner: 32-bit positions, and terminators of up to 16 bytes.
_END_SCANNED_BYTES = 1 << 31
_MAX_TERMINATOR_BYTES = 16


@dataclass(slots=True)
class RecordFieldMapping:
    """Expected number of fields in a record, and the field of each column.

    `field_indexes` has the field index of each target column, or None. With
    `pads_missing_fields`, fields missing at the end of a record are NULL.
    """

    field_count: int
    field_indexes: list[int | None]
    pads_missing_fields: bool = False


class DelimitedBlockParser:
    """Parser of the consecutive blocks of one stream."""

    def __init__(
        self,
        dialect: DelimitedDialect,
        converter: TableConverter,
        shape: RecordFieldMapping,
        header_mismatch: HeaderMismatch | None = None,
    ) -> None:
        self._dialect = dialect
        self._converter = converter
        self._shape = shape
        self._header_mismatch = header_mismatch
        self._record_reader = DelimitedRecordReader(dialect)
        self._batches = ParsedBatchBuilder(converter)
        self._is_scannable = _is_scannable(dialect)
        self._scanner: DelimitedScanner | None = None

    def parse(self, data: bytes, offset: int, *, is_last: bool) -> tuple[ParsedBatch | None, int]:
        """Parse the complete records at the start of a block.

        Args:
            data: The block.
            offset: Position of the block in its stream, in bytes.
            is_last: True if the stream ends with this block.

        Returns:
            The parsed records, or None if there are none, and the number of bytes consumed.
        """
        least = _MIN_SCANNED_BYTES if self._scanner is None else 0
        if (
            self._is_scannable
            and least <= len(data) < _END_SCANNED_BYTES
            and COMPILED_READERS["DELIMITED"].can_be_used()
        ):
            return self._parse_scanned(data, offset, is_last=is_last)
        return self._parse_exactly(data, offset, is_last=is_last)

    def make_reject_batch(self, data: bytes, offset: int, reason: str) -> ParsedBatch:
        """Return a batch that consists of one rejected record."""
        return self._batches.build_reject(data, offset, reason)

    def _parse_scanned(
        self, data: bytes, offset: int, *, is_last: bool
    ) -> tuple[ParsedBatch | None, int]:
        scanner = self._scanner or self._load_scanner()
        block = scanner.scan(data, is_last=is_last)
        count, rows = len(block.record_starts), len(block.row_records)
        if not count:
            return None, block.size
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        for column, cells in zip(self._converter.columns, block.columns, strict=True):
            parts, found = (
                column.make_missing_arrays(rows) if cells is None else column.convert_cells(cells)
            )
            arrays.extend(parts)
            for row, reason in found.items():
                refused.setdefault(row, (column.column.display_name, reason))
        spans: dict[int, tuple[int, int]] = {}
        reasons: Reasons = {int(block.row_records[row]): why for row, why in refused.items()}
        others = set(range(count)).difference(block.row_records.tolist()) if rows < count else set()
        for index in others.union(reasons):
            start = int(block.record_starts[index])
            record = self._record_reader.read_record(data, start, is_last=is_last)
            if record is None:
                raise InternalError("a scanned record has no end")
            spans[index] = start, record.end
            if index in others:
                problem = record.problem or self._find_count_error(record.fields)
                if problem is None:
                    raise InternalError("the scanner omitted a valid record")
                reasons[index] = None, problem
        table = self._converter.drop_rejected_rows(self._converter.make_table(arrays), refused)
        return self._make_batch(data, offset, count, table, reasons, spans), block.size

    def _load_scanner(self) -> DelimitedScanner:
        """Create the scanner. Imports its module late, because that loads the compiler."""
        module = import_module("snowmelt.load.parsers.delimited_scanner")
        scanner: DelimitedScanner = module.DelimitedScanner(
            self._dialect,
            self._record_reader,
            self._shape.field_count,
            self._shape.field_indexes,
            pads_missing_fields=self._shape.pads_missing_fields,
        )
        self._scanner = scanner
        return scanner

    def _make_batch(
        self,
        data: bytes,
        offset: int,
        count: int,
        table: pa.Table,
        reasons: Reasons,
        spans: Mapping[int, tuple[int, int]],
    ) -> ParsedBatch:
        """Build a batch from `count` records. `spans` has the byte range of each reject."""
        mismatch, self._header_mismatch = self._header_mismatch, None
        return self._batches.build(
            table,
            reasons,
            count,
            lambda index: (offset + spans[index][0], data[slice(*spans[index])]),
            mismatch,
        )

    def _parse_exactly(
        self, data: bytes, offset: int, *, is_last: bool
    ) -> tuple[ParsedBatch | None, int]:
        at = 0
        columns: list[list[bytes | None]] = [[] for _ in self._shape.field_indexes]
        spans: list[tuple[int, int]] = []
        numbers: list[int] = []
        reasons: Reasons = {}
        while at < len(data):
            record = self._record_reader.read_record(data, at, is_last=is_last)
            if record is None:
                break
            start, at = at, record.next_start
            blank = record.end == start
            if blank and not self._dialect.keeps_blank_lines and self._shape.field_count > 1:
                continue
            problem = record.problem or self._find_count_error(record.fields)
            if problem:
                reasons[len(spans)] = (None, problem)
            else:
                numbers.append(len(spans))
                self._append_fields(columns, record.fields)
            spans.append((start, record.end))
        if not at:
            return None, 0
        texts = [
            None if place is None else pa.array(column, pa.binary())
            for column, place in zip(columns, self._shape.field_indexes, strict=True)
        ]
        table, refused = self._converter.convert_columns(texts, len(numbers))
        reasons |= {numbers[row]: reason for row, reason in refused.items()}
        table = self._converter.drop_rejected_rows(table, refused)
        batch = self._make_batch(data, offset, len(spans), table, reasons, dict(enumerate(spans)))
        return batch, at

    def _append_fields(
        self, columns: list[list[bytes | None]], fields: Sequence[bytes | None]
    ) -> None:
        for column, place in zip(columns, self._shape.field_indexes, strict=True):
            column.append(None if place is None or place >= len(fields) else fields[place])

    def _find_count_error(self, fields: Sequence[bytes | None]) -> str | None:
        if len(fields) == self._shape.field_count:
            return None
        if len(fields) < self._shape.field_count and self._shape.pads_missing_fields:
            return None
        return self._describe_count_error(len(fields))

    def _describe_count_error(self, count: int) -> str:
        expected = self._shape.field_count
        text = f"Expected {expected} {'field' if expected == 1 else 'fields'}, got {count}"
        if count > expected:
            return text
        for column, place in zip(self._converter.columns, self._shape.field_indexes, strict=True):
            if place is not None and place >= count:
                return f"{text}: no value for {column.label}"
        return text


def _is_scannable(dialect: DelimitedDialect) -> bool:
    """Return True if the scanner supports a dialect.

    The terminator must have at most 16 bytes, must not overlap itself and must not contain another
    format character. Fields may differ in their NULL texts only.
    """
    marks = dialect.default_field
    return (
        len(dialect.terminator) <= _MAX_TERMINATOR_BYTES
        and not dialect.is_terminator_self_overlapping
        and dialect.null_overrides is not None
        and not any(
            mark and mark in dialect.terminator
            for mark in (marks.delimiter, marks.quote, marks.escape)
        )
    )
