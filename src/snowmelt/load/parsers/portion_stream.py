"""The bytes of one portion in blocks for a parser, cut at the portion's last record.

`RecordBoundaryFinder` finds the end of a record without the bytes before it. Two adjacent portions
therefore agree on the boundary between them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from snowmelt.errors import PhaseFailed
from snowmelt.load.parsers.delimited_text import UTF8_BOM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    from snowmelt.load.parsers.delimited_text import DelimitedDialect, DelimitedRecordReader
    from snowmelt.load.phase_protocols import ByteReader, ParsedBatch
    from snowmelt.load.portion import Portion

# --- Where records can be told to end by the bytes behind some place alone: borders of portions.


class RecordBoundaryFinder:
    """Finds record ends without what stands before; two portions that ask agree on one."""

    def __init__(self, dialect: DelimitedDialect) -> None:
        terminator = dialect.terminator
        self._pattern = re.compile(re.escape(terminator) if terminator else rb"\r?\n")
        self._escape = dialect.default_field.escape
        self.width = len(terminator) or 2
        marks = [dialect.default_field, *(own for _, own in dialect.field_overrides)]
        one_escape = len({marked.escape for marked in marks}) == 1
        # Of a quote nobody knows whether it opens or closes.
        self.can_split = (
            not dialect.is_terminator_self_overlapping
            and one_escape
            and not any(marked.quote for marked in marks)
        )

    def find_record_end(self, data: bytes, start: int) -> int | None:
        """Return where the first record end at or after `start` ends; None if there is none.

        With escapes, one that may be escaped by a byte before `start` is passed over.
        """
        for match in self._pattern.finditer(data, start):
            if not self._escape or self._is_unescaped(data, start, match.start()):
                return match.end()
        return None

    def find_first_terminator(self, data: bytes) -> int | None:
        """Return where the first record end ends, escapes and quotes aside."""
        match = self._pattern.search(data)
        return None if match is None else match.end()

    def _is_unescaped(self, data: bytes, start: int, end: int) -> bool:
        at = end
        while at > start and data[at - 1 : at] == self._escape:
            at -= 1
        return at > start and (end - at) % 2 == 0


if TYPE_CHECKING:

    class BlockParser(Protocol):
        """What parses the records at the front of a block."""

        def parse(
            self, data: bytes, offset: int, *, is_last: bool
        ) -> tuple[ParsedBatch | None, int]:
            """Return what became of whole records, and how many bytes they take."""

        def make_reject_batch(self, data: bytes, offset: int, reason: str) -> ParsedBatch:
            """Return a rejected record as all that was parsed."""


# Measured: blocks of 128 KiB to 2 MiB are scanned alike, longer ones leave the processor's cache.
_BLOCK_BYTES = 1 << 20
# Of a record that is too long, what a reject keeps of it.
_MAX_RETAINED_BYTES = 1 << 16
# Of so many bytes every second one is 0 in UTF-16, but for one in so many.
_ENCODING_SAMPLE_BYTES = 256
_NONZERO_DIVISOR = 10
_MIN_SAMPLE_BYTES = 4


class PortionStream:
    """The bytes of one portion that are not parsed yet, and those behind it that end its last record."""

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
        """Have a block's bytes at least, or all that there are; tell whether there are any."""
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
        """Yield what became of the records; one of more than `max_record_bytes` bytes is rejected."""
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
                reason = (
                    f"a record of {whole} bytes, more than {max_record_bytes}; {len(kept)} are kept"
                )
                yield block_parser.make_reject_batch(kept, offset, reason)

    def advance(self, size: int) -> None:
        """Go on behind the first bytes."""
        self.data = self.data[size:]
        self.offset += size
        self.wanted = _BLOCK_BYTES

    def skip_byte_order_mark(self, *, expects_zeros: bool = False) -> None:
        """Leave out a byte order mark. `expects_zeros` says that bytes of 0 are to be expected.

        Raises:
            PhaseFailed: The text is in another encoding than UTF-8.
        """
        if not self.fill_block():
            return
        if self.data.startswith(UTF8_BOM):
            self.advance(len(UTF8_BOM))
        elif (encoding := _detect_encoding(self.data, expects_zeros=expects_zeros)) is not None:
            # It would be read as rejects at best, as texts with zeros in them at worst.
            reason = (
                f"the text is not UTF-8 but looks like {encoding}: put FILTER "
                f"Iconverter(from_encoding='{encoding}', to_encoding='UTF-8') before the parser"
            )
            raise PhaseFailed(reason=reason, offset=self.offset)

    def skip_bytes(self, count: int) -> None:
        """Leave out so many bytes, or all that there are."""
        while count and self.fill_block():
            step = min(count, len(self.data))
            self.advance(step)
            count -= step

    def read_record(self, record_reader: DelimitedRecordReader) -> list[bytes | None] | None:
        """Take one record off the front; None at the end."""
        while self.fill_block():
            record = record_reader.read_record(self.data, 0, is_last=self.is_last)
            if record is not None:
                self.advance(record.next_start)
                return record.fields
            self.wanted = 2 * len(self.data)
        return None

    def skip_to_next_record(self) -> None:
        """Leave out what belongs to the portion before: all to the first end of a record."""
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
        """Leave out a record of any length; return its bytes."""
        size = 0
        while self.fill_block():
            end = self._boundary.find_first_terminator(self.data)
            if end is not None or self.is_last:
                end = len(self.data) if end is None else end
                self.advance(end)
                return size + end
            # What may be the first byte of an end stays.
            step = len(self.data) - self._boundary.width
            self.advance(step)
            size += step
        return size

    def _cut_at_portion_end(self) -> None:
        """Cut what the next portion holds, once the end of this one's last record is known."""
        if self._size is None:
            return
        start = max(0, self._size - self.offset)
        end = self._boundary.find_record_end(self.data, start)
        if end is not None:
            self.data = self.data[:end]
            self._size = None
            self.is_last = True


def _detect_encoding(data: bytes, *, expects_zeros: bool) -> str | None:
    """Return the encoding that the first bytes of a text tell of; None if it may be UTF-8."""
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
