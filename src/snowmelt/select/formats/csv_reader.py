"""CSV reader: reads the header, blocks and record batches. Unquotes a field only on access.

`CsvReader` is not thread-safe: one thread iterates over the blocks. `CsvTokenizer` is thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from snowmelt.kernels.csv_tokenizer import (
    ROW_IRREGULAR,
    CsvBlockCutter,
    CsvRecordCounter,
    CsvRecordFinder,
    CsvRules,
    CsvTokens,
    RaggedCsvTokens,
    find_invalid_utf8_byte,
)
from snowmelt.kernels.slices import NEEDS_UNQUOTING, PAST_END, Mask, Positions, StringSlices
from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.formats import csv_state_machine
from snowmelt.select.formats.blocks import (
    WHOLE_OBJECT,
    BlockLimits,
    RecordBlock,
    RecordBlockReader,
    RecordStartSpan,
    find_stream_offset,
    invalid_utf8_error,
    make_delimiter_cutter,
    record_too_long_error,
    resolve_scan_range,
)
from snowmelt.select.formats.byte_streams import (
    ByteStream,
    ConcurrentSource,
    ObjectSource,
    UncompressedStream,
    open_decompressed_stream,
)
from snowmelt.select.formats.csv_dialect import make_csv_rules
from snowmelt.select.request import CsvInput, ScanRange
from snowmelt.select.sql.ast import ColumnRef
from snowmelt.select.values import MISSING, Missing
from snowmelt.select.vectors import ValueVector, make_masked_text_vector

# Limits the time for a header: the state machine parses about 0.5 MB/s and holds the GIL.
_MAX_HEADER_BYTES = 1 << 20


class CsvReader:
    """Single-use reader of one CSV object. The constructor sets `header_names`."""

    def __init__(
        self,
        source: ObjectSource,
        options: CsvInput,
        dialect: Dialect,
        *,
        compression: str = "NONE",
        scan_range: ScanRange | None = None,
        limits: BlockLimits | None = None,
    ) -> None:
        """Open the object and read its header unless the header mode is NONE.

        Raises:
            SelectError: If delimiters, ScanRange or compression do not fit the object, or if the header
                cannot be read.
        """
        self.rules = make_csv_rules(options, dialect, has_scan_range=scan_range is not None)
        self.limits = limits or BlockLimits()
        self._source = source
        self._span = resolve_scan_range(scan_range, source.size, compression=compression)
        self._first_block: RecordBlock | None = None
        self.header_names: tuple[str, ...] | None = None
        begin = find_stream_offset(self.rules.record, self._span)
        self._stream = open_decompressed_stream(source, compression, offset=begin)
        self._blocks = self._make_block_reader(self._stream, self._span, begin)
        self._data_offset = 0
        if options.header != "NONE":
            try:
                names = self._read_header(begin)
            except BaseException:
                self.close()
                raise
            self.header_names = names if options.header == "USE" else None

    @property
    def scanned_bytes(self) -> int:
        """Bytes read from the object, compressed if it is compressed."""
        return self._blocks.scanned_bytes

    @property
    def processed_bytes(self) -> int:
        """Bytes of decompressed text read."""
        return self._blocks.processed_bytes

    def make_tokenizer(self, field_indexes: Sequence[int] | None) -> CsvTokenizer:
        """Return a tokenizer for the fields with these indexes (from 0, ascending), or all if None."""
        return CsvTokenizer(self.rules, field_indexes, self.limits.record_bytes)

    def read_blocks(self) -> Iterator[RecordBlock]:
        """Yield blocks of whole records in order, without header and byte-order mark. Single use.

        Raises:
            SelectError: If reading fails. All records before the failure were yielded.
        """
        first, self._first_block = self._first_block, None
        if first is not None and first.end > first.start:
            yield first
        for block in self._iterate_blocks():
            self._skip_mark_and_header(block)
            if block.end > block.start:
                yield block

    def close(self) -> None:
        """Release the buffers. Idempotent. Does not close the source."""
        self._blocks.close()

    def _iterate_blocks(self) -> Iterator[RecordBlock]:
        """Iterate over the blocks. Workers read the blocks of an uncompressed whole object.

        Otherwise, this thread reads them. This thread also reads them if the source does not
        support concurrent reads, or if a delimiter may not end a record.
        """
        stream = self._stream
        if (
            isinstance(stream, UncompressedStream)
            and isinstance(stream.source, ConcurrentSource)
            and self.rules.ends_at_every_delimiter
            and self._span == WHOLE_OBJECT
        ):
            return self._blocks.iterate_remote_blocks(stream)
        return iter(self._blocks)

    def _make_block_reader(
        self, stream: ByteStream, span: RecordStartSpan, offset: int
    ) -> RecordBlockReader:
        cutter = (
            make_delimiter_cutter(self.rules.record)
            if self.rules.ends_at_every_delimiter
            else CsvBlockCutter(self.rules)
        )
        return RecordBlockReader(
            stream,
            self.rules.record,
            cutter=cutter,
            span=span,
            stream_offset=offset,
            limits=self.limits,
        )

    def _skip_mark_and_header(self, block: RecordBlock) -> None:
        """Remove the byte-order mark and the header from the start of the object."""
        if self.rules.skips_byte_order_mark:
            block.skip_byte_order_mark()
        if block.offset < self._data_offset:
            block.skip_bytes(min(self._data_offset - block.offset, block.end - block.start))

    def _read_header(self, stream_offset: int) -> tuple[str, ...]:
        """Read the first record of the object, even if the span starts later."""
        if stream_offset == 0 and self._span.start == 0 and self._span.end is None:
            return self._parse_header(self._blocks, keep_block=True)
        stream = open_decompressed_stream(self._source)
        blocks = self._make_block_reader(stream, WHOLE_OBJECT, 0)
        try:
            return self._parse_header(blocks, keep_block=False)
        finally:
            blocks.close()

    def _parse_header(self, blocks: RecordBlockReader, *, keep_block: bool) -> tuple[str, ...]:
        for block in blocks:
            self._skip_mark_and_header(block)
            text = block.copy_bytes()
            start = text[:_MAX_HEADER_BYTES]
            record = next(csv_state_machine.parse_records(start, self.rules), None)
            if len(text) > len(start) and (record is None or not record.has_delimiter):
                raise SelectError(
                    "OverMaxRecordSize",
                    f"The header does not end within {_MAX_HEADER_BYTES:,} bytes from byte"
                    f" {block.offset} on.",
                )
            if record is None:
                self._data_offset = block.offset + len(text)
                block.release()
                continue
            self._data_offset = block.offset + record.next_start
            _check_header(record, block.offset, text, self)
            if keep_block:
                self._skip_mark_and_header(block)
                self._first_block = block
            return tuple(_decode_text(field.value) for field in record.fields)
        return ()


class CsvTokenizer:
    """Tokenizer that finds the records and fields of a block. Thread-safe: keeps no state."""

    def __init__(
        self, rules: CsvRules, field_indexes: Sequence[int] | None, max_record_bytes: int = 16 << 20
    ) -> None:
        self.rules = rules
        self.field_indexes = None if field_indexes is None else tuple(field_indexes)
        self._max_record_bytes = max_record_bytes
        self._record_finder = CsvRecordFinder(rules, self.field_indexes)
        self._record_counter = CsvRecordCounter(rules)

    def __call__(self, block: RecordBlock) -> CsvBatch:
        """Tokenize a block up to its first invalid record."""
        end = block.end
        failure = None
        if self.rules.validates_utf8:
            bad = find_invalid_utf8_byte(block.data, block.start, block.end)
            if bad >= 0:
                failure = invalid_utf8_error(block.offset + bad - block.start)
                end = self._find_record_start(block, bad)
        tokens = self._record_finder(block.data, block.start, end)
        if tokens.invalid_record_start is not None:
            failure = _unclosed_quote_error(
                block.offset + tokens.invalid_record_start - block.start,
                at_object_end=self._lacks_delimiter(block, tokens.invalid_record_start),
            )
        sizes = tokens.row_ends - tokens.row_starts
        if len(sizes) and int(sizes.max()) > self._max_record_bytes:
            row = int(np.argmax(sizes > self._max_record_bytes))
            place = int(tokens.row_starts[row])
            failure = record_too_long_error(
                block.offset + place - block.start, self._max_record_bytes
            )
            tokens = tokens.truncate(row, place)
        return CsvBatch(block, tokens, self.rules, self.field_indexes, failure)

    def count_records(self, block: RecordBlock) -> int | None:
        """Return the number of records in a block, or None if it must be tokenized to count them."""
        if block.end - block.start > self._max_record_bytes:
            return None
        count, ascii_only = self._record_counter(block.data, block.start, block.end)
        if count is None or ascii_only or not self.rules.validates_utf8:
            return count
        return None if find_invalid_utf8_byte(block.data, block.start, block.end) >= 0 else count

    def _find_record_start(self, block: RecordBlock, position: int) -> int:
        """Return the start of the record or comment that contains a position."""
        text = block.data[block.start : block.end].tobytes()
        start = 0
        for record in csv_state_machine.parse_records(text, self.rules):
            if record.next_start > position - block.start:
                start = min(record.start, position - block.start)
                break
            start = record.next_start
        return block.start + start

    def _lacks_delimiter(self, block: RecordBlock, position: int) -> bool:
        """Return True if the record has no delimiter. Only the object's last record may lack it."""
        text = block.data[position : block.end].tobytes()
        record = next(csv_state_machine.parse_records(text, self.rules))
        return not record.has_delimiter


@dataclass(frozen=True, slots=True)
class CsvBatch:
    """Records of a block, stored as positions in its data. Valid until the block is released.

    `failure` is the error of the record after the batch. The caller raises it after these records.
    """

    block: RecordBlock
    tokens: CsvTokens
    rules: CsvRules
    field_indexes: tuple[int, ...] | None
    failure: SelectError | None = None

    @property
    def row_count(self) -> int:
        """Number of records."""
        return self.tokens.row_count

    @property
    def row_starts(self) -> Positions:
        """Start of each record in the block's data."""
        return self.tokens.row_starts

    @property
    def row_ends(self) -> Positions:
        """End of each record without its delimiter."""
        return self.tokens.row_ends

    @property
    def needs_requoting_mask(self) -> Mask:
        """Mask of records that a writer with minimal quoting would write differently."""
        return (self.tokens.row_flags & ROW_IRREGULAR).astype(np.bool_)

    def read_field_slices(self, field_index: int) -> StringSlices:
        """Return the positions of one field in every record.

        Raises:
            KeyError: If the field was not tokenized.
        """
        if self.field_indexes is None:
            return self._read_ragged_field_slices(field_index)
        if field_index not in self.field_indexes:
            raise KeyError(field_index)
        k = self.field_indexes.index(field_index)
        tokens = self.tokens
        return StringSlices(self.block.data, tokens.starts[k], tokens.ends[k], tokens.flags[k])

    def _read_ragged_field_slices(self, field_index: int) -> StringSlices:
        tokens = self.tokens
        first = tokens.field_offsets
        if first is None:
            raise KeyError(field_index)
        there = first[:-1] + field_index < first[1:]
        at = np.where(there, first[:-1] + field_index, 0)
        if not tokens.starts.shape[1]:
            empty = np.empty(0, np.int32)
            return StringSlices(self.block.data, empty, empty, empty.astype(np.uint8))
        return StringSlices(
            self.block.data,
            tokens.starts[0][at],
            tokens.ends[0][at],
            np.where(there, tokens.flags[0][at], PAST_END).astype(np.uint8),
        )

    def tokenize_all_fields(self) -> RaggedCsvTokens:
        """Return the tokens of all fields of each record."""
        tokens = self.tokens
        if tokens.field_offsets is None:
            find = CsvRecordFinder(self.rules, None)
            tokens = find(self.block.data, self.block.start, self.block.end)
        if tokens.field_offsets is None:
            raise TypeError(self.field_indexes)
        return RaggedCsvTokens(
            tokens.field_offsets, tokens.starts[0], tokens.ends[0], tokens.flags[0]
        )

    def read_column(self, column: ColumnRef, *, for_output: bool = False) -> ValueVector | None:  # noqa: ARG002  output omits no field
        """Return a column as strings, or None for a path into a field, which CSV lacks."""
        if column.steps or column.index is None:
            return None
        return make_masked_text_vector(self.read_field_slices(column.index))

    def read_row(self, row_index: int) -> CsvRow:
        """Return one record for the scalar evaluator."""
        return CsvRow(self, row_index)

    def record_offset(self, row_index: int) -> int:
        """Return the byte offset of a record in the object's decompressed text."""
        return self.block.offset + int(self.row_starts[row_index]) - self.block.start

    def read_raw_record(self, row_index: int) -> bytes:
        """Return the bytes of one record without its delimiter."""
        tokens = self.tokens
        start, end = int(tokens.row_starts[row_index]), int(tokens.row_ends[row_index])
        return self.block.data[start:end].tobytes()

    def read_field(self, row_index: int, field_index: int) -> bytes | Missing | None:
        """Return the value of one field of one record: bytes, NULL or MISSING."""
        if self.field_indexes is not None and field_index not in self.field_indexes:
            fields = self.read_record_fields(row_index)
            return (
                self._empty_to_null(fields[field_index]) if field_index < len(fields) else MISSING
            )
        tokens = self.tokens
        if self.field_indexes is not None:
            k, at = self.field_indexes.index(field_index), row_index
        elif (
            tokens.field_offsets is not None
            and field_index < tokens.field_offsets[row_index + 1] - tokens.field_offsets[row_index]
        ):
            k, at = 0, int(tokens.field_offsets[row_index]) + field_index
        else:
            return MISSING
        flags = int(tokens.flags[k, at])
        if flags & PAST_END:
            return MISSING
        text = self.block.data[tokens.starts[k, at] : tokens.ends[k, at]].tobytes()
        return self._empty_to_null(
            csv_state_machine.unquote_field(text, self.rules) if flags & NEEDS_UNQUOTING else text
        )

    def read_record_fields(self, row_index: int) -> list[bytes]:
        """Return all fields of one record, for `*`. Empty fields are empty, not NULL, in every dialect."""
        first = self.tokens.field_offsets
        if first is not None:
            count = int(first[row_index + 1] - first[row_index])
            values = [self.read_field(row_index, field) for field in range(count)]
            return [value if isinstance(value, bytes) else b"" for value in values]
        record = next(
            csv_state_machine.parse_records(self.read_raw_record(row_index), self.rules), None
        )
        return [b""] if record is None else [field.value for field in record.fields]

    def _empty_to_null(self, text: bytes) -> bytes | None:
        return None if self.rules.empty_is_null and not text else text


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One record, for the scalar evaluator."""

    batch: CsvBatch
    row_index: int

    def field(self, column: ColumnRef) -> str | Missing | None:
        """Return a field as a string. Bytes that are not UTF-8 become lone surrogates."""
        if column.index is None:
            return MISSING
        value = self.batch.read_field(self.row_index, column.index)
        return _decode_text(value) if isinstance(value, bytes) else value

    def fields(self) -> list[str]:
        """Return all fields as strings, for `*`."""
        return [_decode_text(value) for value in self.batch.read_record_fields(self.row_index)]


def _check_header(
    record: csv_state_machine.CsvRecord, offset: int, text: bytes, reader: CsvReader
) -> None:
    at = offset + record.start
    if record.end - record.start > reader.limits.record_bytes:
        raise record_too_long_error(at, reader.limits.record_bytes)
    if record.has_open_quote and reader.rules.open_quote_fails:
        raise _unclosed_quote_error(at, at_object_end=not record.has_delimiter)
    if reader.rules.validates_utf8:
        try:
            text[record.start : record.end].decode()
        except UnicodeDecodeError as error:
            raise invalid_utf8_error(at + error.start) from error


def _unclosed_quote_error(offset: int, *, at_object_end: bool) -> SelectError:
    if at_object_end:
        return SelectError(
            "CSVUnescapedQuote",
            f"A quote in the record that begins at byte {offset} is not closed before the object "
            "ends.",
        )
    return SelectError(
        "CSVEscapingRecordDelimiter",
        f"A quote is open at the end of the record that begins at byte {offset}. If fields may "
        "hold record delimiters, set AllowQuotedRecordDelimiter to TRUE.",
    )


def _decode_text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
