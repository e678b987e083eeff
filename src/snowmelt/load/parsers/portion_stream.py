"""Stream of one portion for a parser.

It ends after the portion's last record. `RecordBoundaryFinder` finds the end of a record without
reading the bytes before it, so two adjacent portions agree on their boundary.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from snowmelt.errors import PhaseFailed
from snowmelt.load.parsers.delimited_text import UTF8_BOM
from snowmelt.load.phase_protocols import ParsedBatch, ParseReject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Protocol

    import pyarrow as pa

    from snowmelt.load.column_converter import TableConverter
    from snowmelt.load.parsers.delimited_text import DelimitedDialect, DelimitedRecordReader
    from snowmelt.load.phase_protocols import ByteReader, HeaderMismatch
    from snowmelt.load.portion import Portion

# --- Record boundaries between portions.


class RecordBoundaryFinder:
    """Finder of record ends that does not need earlier bytes.

    `can_split` is True if the dialect permits it, so that a file can be split into portions.
    """

    def __init__(self, dialect: DelimitedDialect) -> None:
        terminator = dialect.terminator
        self._pattern = re.compile(re.escape(terminator) if terminator else rb"\r?\n")
        self._escape = dialect.default_field.escape
        self.width = len(terminator) or 2
        marks = [dialect.default_field, *(own for _, own in dialect.field_overrides)]
        one_escape = len({marked.escape for marked in marks}) == 1
        # Without earlier bytes, an opening quote cannot be distinguished from a closing one.
        self.can_split = (
            not dialect.is_terminator_self_overlapping
            and one_escape
            and not any(marked.quote for marked in marks)
        )

    def find_record_end(self, data: bytes, start: int) -> int | None:
        """Return the end of the first record terminator at or after `start`, or None.

        Skips terminators that are escaped, or may be escaped by a byte before `start`.
        """
        for match in self._pattern.finditer(data, start):
            if not self._escape or self._is_unescaped(data, start, match.start()):
                return match.end()
        return None

    def find_first_terminator(self, data: bytes) -> int | None:
        """Return the end of the first record terminator, ignoring escapes and quotes, or None."""
        match = self._pattern.search(data)
        return None if match is None else match.end()

    def _is_unescaped(self, data: bytes, start: int, end: int) -> bool:
        at = end
        while at > start and data[at - 1 : at] == self._escape:
            at -= 1
        return at > start and (end - at) % 2 == 0


if TYPE_CHECKING:

    class BlockParser(Protocol):
        """Parser of the records at the start of a block."""

        def parse(
            self, data: bytes, offset: int, *, is_last: bool
        ) -> tuple[ParsedBatch | None, int]:
            """Return the parsed complete records, and the number of bytes consumed."""

        def make_reject_batch(self, data: bytes, offset: int, reason: str) -> ParsedBatch:
            """Return a batch that consists of one rejected record."""


# Measured: scan speed is the same from 128 KiB to 2 MiB. Larger blocks exceed the CPU cache.
_BLOCK_BYTES = 1 << 20
# Length to which a reject truncates an oversized record.
_MAX_RETAINED_BYTES = 1 << 16
# Size of the sample for detecting UTF-16: at least nine tenths of the bytes at even or at odd
# positions are 0, and none of the others.
_ENCODING_SAMPLE_BYTES = 256
_NONZERO_DIVISOR = 10
_MIN_SAMPLE_BYTES = 4


class ParsedBatchBuilder:
    """Builder of the batches of one stream. Numbers the records of the stream."""

    def __init__(self, converter: TableConverter) -> None:
        self._converter = converter
        self._record_count = 0

    def build(
        self,
        table: pa.Table,
        reasons: Mapping[int, tuple[str | None, str]],
        count: int,
        get_origin: Callable[[int], tuple[int, bytes]],
        header_mismatch: HeaderMismatch | None = None,
    ) -> ParsedBatch:
        """Build a batch from the accepted rows and the rejects of `count` records.

        Args:
            table: Accepted rows.
            reasons: Column name and reason of each reject, by index in the batch.
            count: Number of records.
            get_origin: Returns the offset and the bytes of a record.
            header_mismatch: Difference between the header and the columns.
        """
        rejects = []
        for index in sorted(reasons):
            offset, data = get_origin(index)
            column, reason = reasons[index]
            rejects.append(
                ParseReject(self._record_count + index + 1, offset, data, reason, column)
            )
        self._record_count += count
        truncated = self._converter.pop_truncated_count()
        return ParsedBatch(table, tuple(rejects), count, truncated, header_mismatch)

    def build_reject(self, data: bytes, offset: int, reason: str) -> ParsedBatch:
        """Build a batch that consists of one rejected record."""
        empty = self._converter.arrow_schema.empty_table()
        return self.build(empty, {0: (None, reason)}, 1, lambda _: (offset, data))


class PortionStream:
    """Unparsed bytes of one portion, and the bytes after it that complete its last record."""

    def __init__(
        self, reader: ByteReader, boundary: RecordBoundaryFinder, portion: Portion
    ) -> None:
        self._reader = reader
        self._boundary = boundary
        self._size = portion.size
        self._end: int | None = None
        self.data = b""
        self.offset = 0
        self.is_last = False
        self.wanted = _BLOCK_BYTES

    def fill_block(self) -> bool:
        """Read until `data` has `wanted` bytes or the input ends. Return False if `data` is empty."""
        pieces = [self.data]
        held = len(self.data)
        while held < self.wanted and not self.is_last:
            piece = self._reader.read()
            if not piece:
                self.is_last = True
            pieces.append(piece)
            held += len(piece)
            if self._size is not None and self.offset + held > self._size:
                self.data = b"".join(pieces)
                self._cut_at_portion_end()
                pieces, held = [self.data], len(self.data)
        self.data = b"".join(pieces) if len(pieces) > 1 else self.data
        return bool(self.data)

    def parse_blocks(
        self, block_parser: BlockParser, max_record_bytes: int
    ) -> Iterator[ParsedBatch]:
        """Yield parsed batches. Reject records that exceed `max_record_bytes`."""
        while self.fill_block():
            parsed, size = block_parser.parse(self.data, self.offset, is_last=self.is_last)
            if size:
                self.advance(size)
                if parsed is not None and parsed.records:
                    yield parsed
            elif self.is_last:
                return
            elif len(self.data) < max_record_bytes:
                self.wanted = 2 * len(self.data)
            else:
                kept, offset = self.data[:_MAX_RETAINED_BYTES], self.offset
                whole = self.skip_oversized_record()
                reason = f"the record has {whole} bytes, more than {max_record_bytes}; {len(kept)} bytes are stored"
                yield block_parser.make_reject_batch(kept, offset, reason)

    def advance(self, size: int) -> None:
        """Consume the first `size` bytes."""
        self.data = self.data[size:]
        self.offset += size
        self.wanted = _BLOCK_BYTES

    def skip_byte_order_mark(self, *, expects_zeros: bool = False) -> None:
        """Skip a UTF-8 byte-order mark, and verify that the text does not look like UTF-16.

        Args:
            expects_zeros: True if zero bytes are valid, because a format character is one.

        Raises:
            PhaseFailed: If the text looks like UTF-16.
        """
        if not self.fill_block():
            return
        if self.data.startswith(UTF8_BOM):
            self.advance(len(UTF8_BOM))
        elif (encoding := _detect_encoding(self.data, expects_zeros=expects_zeros)) is not None:
            # Without this check, UTF-16 would be rejected later, or loaded as text with zero bytes.
            reason = (
                f"the text is not UTF-8 but looks like {encoding}: put FILTER "
                f"Iconverter(from_encoding='{encoding}', to_encoding='UTF-8') before the parser"
            )
            raise PhaseFailed(reason=reason, offset=self.offset)

    def skip_bytes(self, count: int) -> None:
        """Skip `count` bytes, or up to the end."""
        while count and self.fill_block():
            step = min(count, len(self.data))
            self.advance(step)
            count -= step

    def read_record(self, record_reader: DelimitedRecordReader) -> list[bytes | None] | None:
        """Consume one record and return its fields, or None at the end."""
        while self.fill_block():
            record = record_reader.read_record(self.data, 0, is_last=self.is_last)
            if record is not None:
                self.advance(record.next_start)
                return record.fields
            self.wanted = 2 * len(self.data)
        return None

    def skip_to_next_record(self) -> None:
        """Skip to the first record end. The bytes before it belong to the previous portion."""
        while self.fill_block():
            end = self._boundary.find_record_end(self.data, 0)
            if end is not None:
                self.advance(end)
                return
            if self.is_last:
                self.advance(len(self.data))
                return
            self.wanted = 2 * len(self.data)

    def skip_oversized_record(self) -> int:
        """Skip one record of any length, and return its size in bytes."""
        size = 0
        while self.fill_block():
            end = self._boundary.find_first_terminator(self.data)
            if end is not None or self.is_last:
                end = len(self.data) if end is None else end
                self.advance(end)
                return size + end
            # Keep the bytes at the end that may begin a terminator.
            step = len(self.data) - self._boundary.width
            self.advance(step)
            size += step
        return size

    def _cut_at_portion_end(self) -> None:
        """Truncate `data` after the portion's last record, once its end is known."""
        if self._size is None:
            return
        start = max(0, self._size - self.offset)
        end = self._boundary.find_record_end(self.data, start)
        if end is not None:
            self.data = self.data[:end]
            self._size = None
            self.is_last = True


def _detect_encoding(data: bytes, *, expects_zeros: bool) -> str | None:
    """Return the encoding that the first bytes indicate, or None if the text may be UTF-8."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    head = data[: min(len(data), _ENCODING_SAMPLE_BYTES) // 2 * 2]
    if expects_zeros or len(head) < _MIN_SAMPLE_BYTES:
        return None
    first, second = head[::2].count(0), head[1::2].count(0)
    most = len(head) // 2 - len(head) // 2 // _NONZERO_DIVISOR
    if not first and second >= most:
        return "UTF-16LE"
    return "UTF-16BE" if first >= most and not second else None
