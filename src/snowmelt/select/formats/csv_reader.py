"""CSV objects as batches of records: header, blocks, fields that are cleaned when they are read.

`CsvReader` belongs to one thread, which takes the blocks; `CsvTokenizer` works in any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from snowmelt.select.errors import SelectError
from snowmelt.select.formats import csv_state_machine
from snowmelt.select.formats.blocks import (
    WHOLE,
    Block,
    BlockLimits,
    RecordBlocks,
    Span,
    bad_encoding,
    delimiter_cutter,
    first_offset,
    resolve,
    too_long,
)
from snowmelt.select.formats.csv_dialect import CsvRules, csv_rules
from snowmelt.select.formats.csv_tokenizer import (
    IRREGULAR,
    MARKED,
    RaggedTokens,
    RecordCounter,
    RecordCutter,
    RecordFinder,
    Tokens,
    first_bad_byte,
)
from snowmelt.select.formats.decompression import ManyReaders, PlainStream, open_stream
from snowmelt.select.values import MISSING, Missing
from snowmelt.select.vectors import PAST_END, UNCLEAN, Slices, Vector, text_vector

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.select.dialect import Dialect
    from snowmelt.select.formats.decompression import ByteStream, ObjectSource
    from snowmelt.select.request import CsvInput, ScanRange
    from snowmelt.select.sql.ast import Column
    from snowmelt.select.vectors import Mask, Places


# The exact state machine reads a header, at some 0.5 MB/s, and holds the interpreter meanwhile.
_MAX_HEADER_BYTES = 1 << 20


class CsvReader:
    """Reads one CSV object once. `header_names` is known from the start."""

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
        """Open the object and read its header, if it has one that counts.

        Raises:
            SelectError: Delimiters, ScanRange or compression that do not fit the object, or a
                header that cannot be read.
        """
        self.rules = csv_rules(options, dialect, ranged=scan_range is not None)
        self.limits = limits or BlockLimits()
        self._source = source
        self._span = resolve(scan_range, source.size, compression=compression)
        self._first: Block | None = None
        self.header_names: tuple[str, ...] | None = None
        begin = first_offset(self.rules.record, self._span)
        self._stream = open_stream(source, compression, at=begin)
        self._blocks = self._reading(self._stream, self._span, begin)
        self._data_offset = 0
        if options.header != "NONE":
            try:
                names = self._read_header(begin)
            except BaseException:
                self.close()
                raise
            self.header_names = names if options.header == "USE" else None

    @property
    def scanned(self) -> int:
        """Bytes taken from the object so far, compressed ones if it is compressed."""
        return self._blocks.scanned

    @property
    def processed(self) -> int:
        """Bytes of text read so far."""
        return self._blocks.processed

    def tokenizer(self, places: Sequence[int] | None) -> CsvTokenizer:
        """Return what finds the fields with these places (from zero, ascending); None: all."""
        return CsvTokenizer(self.rules, places, self.limits.record_bytes)

    def blocks(self) -> Iterator[Block]:
        """Yield whole records, without header and byte order mark, in order; once.

        Raises:
            SelectError: The object cannot be read further; every record before was yielded.
        """
        first, self._first = self._first, None
        if first is not None and first.end > first.start:
            yield first
        for block in self._from_here():
            self._trim(block)
            if block.end > block.start:
                yield block

    def close(self) -> None:
        """Let go of the buffers; the source stays open. Idempotent."""
        self._blocks.close()

    def _from_here(self) -> Iterator[Block]:
        """Iterate the blocks; whoever works on one reads it, where several threads can read."""
        stream = self._stream
        if (
            isinstance(stream, PlainStream)
            and isinstance(stream.source, ManyReaders)
            and self.rules.cuts_anywhere
            and self._span == WHOLE
        ):
            return self._blocks.distant(stream)
        return iter(self._blocks)

    def _reading(self, stream: ByteStream, span: Span, offset: int) -> RecordBlocks:
        cutter = (
            delimiter_cutter(self.rules.record)
            if self.rules.cuts_anywhere
            else RecordCutter(self.rules)
        )
        return RecordBlocks(
            stream,
            self.rules.record,
            cutter=cutter,
            span=span,
            stream_offset=offset,
            limits=self.limits,
        )

    def _trim(self, block: Block) -> None:
        """Take the byte order mark and the header off the object's front."""
        if self.rules.skips_mark:
            block.skip_mark()
        if block.offset < self._data_offset:
            block.skip(min(self._data_offset - block.offset, block.end - block.start))

    def _read_header(self, begin: int) -> tuple[str, ...]:
        """Read the first record of the object, wherever the data to be read begin."""
        if begin == 0 and self._span.first == 0 and self._span.stop is None:
            return self._header_of(self._blocks, keep=True)
        stream = open_stream(self._source)
        blocks = self._reading(stream, WHOLE, 0)
        try:
            return self._header_of(blocks, keep=False)
        finally:
            blocks.close()

    def _header_of(self, blocks: RecordBlocks, *, keep: bool) -> tuple[str, ...]:
        for block in blocks:
            self._trim(block)
            text = block.bytes()
            start = text[:_MAX_HEADER_BYTES]
            record = next(csv_state_machine.records(start, self.rules), None)
            if len(text) > len(start) and (record is None or not record.closed):
                raise SelectError(
                    "OverMaxRecordSize",
                    f"The header does not end within {_MAX_HEADER_BYTES:,} bytes from byte"
                    f" {block.offset} on.",
                )
            if record is None:
                self._data_offset = block.offset + len(text)
                block.release()
                continue
            self._data_offset = block.offset + record.next
            _check_header(record, block.offset, text, self)
            if keep:
                self._trim(block)
                self._first = block
            return tuple(_decoded(field.value) for field in record.fields)
        return ()


class CsvTokenizer:
    """Finds records and fields in blocks; keeps nothing but the rules, so any thread may call it."""

    def __init__(
        self, rules: CsvRules, places: Sequence[int] | None, record_bytes: int = 16 << 20
    ) -> None:
        self.rules = rules
        self.places = None if places is None else tuple(places)
        self._record_bytes = record_bytes
        self._find = RecordFinder(rules, self.places)
        self._counter = RecordCounter(rules)

    def __call__(self, block: Block) -> CsvBatch:
        """Return the records of a block, up to the first that breaks the rules."""
        end = block.end
        failure = None
        if self.rules.checks_encoding:
            bad = first_bad_byte(block.data, block.start, block.end)
            if bad >= 0:
                failure = bad_encoding(block.offset + bad - block.start)
                end = self._record_start(block, bad)
        tokens = self._find(block.data, block.start, end)
        if tokens.stop is not None:
            failure = _open_quote(
                block.offset + tokens.stop - block.start, last=self._ends_at(block, tokens.stop)
            )
        sizes = tokens.row_ends - tokens.row_starts
        if len(sizes) and int(sizes.max()) > self._record_bytes:
            row = int(np.argmax(sizes > self._record_bytes))
            place = int(tokens.row_starts[row])
            failure = too_long(block.offset + place - block.start, self._record_bytes)
            tokens = tokens.front(row, place)
        return CsvBatch(block, tokens, self.rules, self.places, failure)

    def count(self, block: Block) -> int | None:
        """Return how many records a block holds; None where it must be tokenized to know."""
        if block.end - block.start > self._record_bytes:
            return None
        count, ascii_only = self._counter(block.data, block.start, block.end)
        if count is None or ascii_only or not self.rules.checks_encoding:
            return count
        return None if first_bad_byte(block.data, block.start, block.end) >= 0 else count

    def _record_start(self, block: Block, place: int) -> int:
        """Return where the record (or comment) begins that holds a place."""
        text = block.data[block.start : block.end].tobytes()
        start = 0
        for record in csv_state_machine.records(text, self.rules):
            if record.next > place - block.start:
                start = min(record.start, place - block.start)
                break
            start = record.next
        return block.start + start

    def _ends_at(self, block: Block, place: int) -> bool:
        """Tell whether a record's delimiter is missing: it is the object's last."""
        text = block.data[place : block.end].tobytes()
        record = next(csv_state_machine.records(text, self.rules))
        return not record.closed


@dataclass(frozen=True, slots=True)
class CsvBatch:
    """The records of a block as places in its data; valid until the block is released.

    `failure` is the error of the record behind the last one here: raise it after these.
    """

    block: Block
    tokens: Tokens
    rules: CsvRules
    places: tuple[int, ...] | None
    failure: SelectError | None = None

    @property
    def rows(self) -> int:
        """How many records."""
        return self.tokens.rows

    @property
    def row_starts(self) -> Places:
        """Where each record begins in the block's data."""
        return self.tokens.row_starts

    @property
    def row_ends(self) -> Places:
        """Where each record ends, without its delimiter."""
        return self.tokens.row_ends

    @property
    def marked(self) -> Mask:
        """Which records hold a quote or an escape somewhere."""
        return (self.tokens.row_flags & MARKED).astype(np.bool_)

    @property
    def irregular(self) -> Mask:
        """Which records differ from what a writer makes that quotes only what needs quotes."""
        return (self.tokens.row_flags & IRREGULAR).astype(np.bool_)

    def slices(self, place: int) -> Slices:
        """Return one wanted field of every record.

        Raises:
            KeyError: The place was not wanted.
        """
        if self.places is None:
            return self._ragged(place)
        if place not in self.places:
            raise KeyError(place)
        k = self.places.index(place)
        tokens = self.tokens
        return Slices(self.block.data, tokens.starts[k], tokens.ends[k], tokens.flags[k])

    def _ragged(self, place: int) -> Slices:
        tokens = self.tokens
        first = tokens.first
        if first is None:
            raise KeyError(place)
        there = first[:-1] + place < first[1:]
        at = np.where(there, first[:-1] + place, 0)
        if not tokens.starts.shape[1]:
            empty = np.empty(0, np.int32)
            return Slices(self.block.data, empty, empty, empty.astype(np.uint8))
        return Slices(
            self.block.data,
            tokens.starts[0][at],
            tokens.ends[0][at],
            np.where(there, tokens.flags[0][at], PAST_END).astype(np.uint8),
        )

    def all_fields(self) -> RaggedTokens:
        """Return the tokens of all fields of each record."""
        tokens = self.tokens
        if tokens.first is None:
            find = RecordFinder(self.rules, None)
            tokens = find(self.block.data, self.block.start, self.block.end)
        if tokens.first is None:
            raise TypeError(self.places)
        return RaggedTokens(tokens.first, tokens.starts[0], tokens.ends[0], tokens.flags[0])

    def vector(self, column: Column, *, shown: bool = False) -> Vector | None:  # noqa: ARG002  all are shown
        """Return a column as text; None for a path into a field."""
        if column.steps or column.index is None:
            return None
        return text_vector(self.slices(column.index))

    def row(self, place: int) -> CsvRow:
        """Return one record for the evaluator."""
        return CsvRow(self, place)

    def offset(self, place: int) -> int:
        """Return the byte of the object's text where a record begins."""
        return self.block.offset + int(self.row_starts[place]) - self.block.start

    def raw(self, place: int) -> bytes:
        """Return one record as read, without its delimiter."""
        tokens = self.tokens
        start, end = int(tokens.row_starts[place]), int(tokens.row_ends[place])
        return self.block.data[start:end].tobytes()

    def value(self, place: int, field: int) -> bytes | Missing | None:
        """Return what one field of one record says: bytes, NULL or MISSING."""
        if self.places is not None and field not in self.places:
            fields = self.fields(place)
            return self._said(fields[field]) if field < len(fields) else MISSING
        tokens = self.tokens
        if self.places is not None:
            k, at = self.places.index(field), place
        elif tokens.first is not None and field < tokens.first[place + 1] - tokens.first[place]:
            k, at = 0, int(tokens.first[place]) + field
        else:
            return MISSING
        flags = int(tokens.flags[k, at])
        if flags & PAST_END:
            return MISSING
        text = self.block.data[tokens.starts[k, at] : tokens.ends[k, at]].tobytes()
        return self._said(csv_state_machine.clean(text, self.rules) if flags & UNCLEAN else text)

    def fields(self, place: int) -> list[bytes]:
        """Return all fields of one record, for `*`: empty ones are empty in every dialect."""
        first = self.tokens.first
        if first is not None:
            count = int(first[place + 1] - first[place])
            values = [self.value(place, field) for field in range(count)]
            return [value if isinstance(value, bytes) else b"" for value in values]
        record = next(csv_state_machine.records(self.raw(place), self.rules), None)
        return [b""] if record is None else [field.value for field in record.fields]

    def _said(self, text: bytes) -> bytes | None:
        return None if self.rules.empty_is_null and not text else text


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One record as the evaluator reads it."""

    batch: CsvBatch
    place: int

    def field(self, column: Column) -> str | Missing | None:
        """Return a field's text; bytes that are no UTF-8 become lone surrogates."""
        if column.index is None:
            return MISSING
        value = self.batch.value(self.place, column.index)
        return _decoded(value) if isinstance(value, bytes) else value

    def fields(self) -> list[str]:
        """Return the texts of all fields, for `*`."""
        return [_decoded(value) for value in self.batch.fields(self.place)]


def _check_header(
    record: csv_state_machine.Record, offset: int, text: bytes, reader: CsvReader
) -> None:
    at = offset + record.start
    if record.end - record.start > reader.limits.record_bytes:
        raise too_long(at, reader.limits.record_bytes)
    if record.open and reader.rules.open_quote_fails:
        raise _open_quote(at, last=not record.closed)
    if reader.rules.checks_encoding:
        try:
            text[record.start : record.end].decode()
        except UnicodeDecodeError as error:
            raise bad_encoding(at + error.start) from error


def _open_quote(offset: int, *, last: bool) -> SelectError:
    if last:
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


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
