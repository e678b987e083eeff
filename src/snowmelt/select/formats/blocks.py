"""Block reader: splits a byte stream into blocks of whole records, in pooled buffers.

A block ends where a record ends. The incomplete record after it is carried to the start of the
next block. Works for every format whose records end at a delimiter (CSV, JSON lines).

A ScanRange selects whole records: those whose first byte lies in the range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from snowmelt.kernels.csv_tokenizer import can_overlap_itself
from snowmelt.kernels.slices import PADDING_BYTES
from snowmelt.select.errors import SelectError
from snowmelt.select.formats.byte_streams import ByteStream, ObjectSource, UncompressedStream
from snowmelt.select.request import ScanRange


@dataclass(frozen=True, slots=True)
class RecordStartSpan:
    """Offsets in the object, bytes: records that begin in [first, stop); None is its end."""

    start: int = 0
    end: int | None = None


WHOLE_OBJECT = RecordStartSpan()


def resolve_scan_range(
    scan_range: ScanRange | None, object_bytes: int, *, compression: str = "NONE"
) -> RecordStartSpan:
    """Turn a ScanRange (both ends included; an end alone counts from the back) into offsets.

    Raises:
        SelectError: A range that is none or that begins behind the object's end; or an object
            whose records have no offsets: a compressed one, a pipe.
    """
    if scan_range is None:
        return WHOLE_OBJECT
    if compression != "NONE" or object_bytes < 0:
        raise SelectError(
            "UnsupportedScanRangeInput",
            "A ScanRange works on uncompressed objects only: its bytes are the records' bytes.",
        )
    start, end = scan_range.start, scan_range.end
    if start is None and end is None:
        return WHOLE_OBJECT
    if (start or 0) < 0 or (end or 0) < 0:
        raise _invalid_scan_range_error("Start and End may not be negative")
    if start is None:
        return RecordStartSpan(max(0, object_bytes - (end or 0)), None)
    if end is not None and end < start:
        raise _invalid_scan_range_error(f"End ({end}) lies before Start ({start})")
    if start >= object_bytes > 0:
        raise _invalid_scan_range_error(
            f"Start ({start}) lies behind the object's last byte ({object_bytes - 1})"
        )
    return RecordStartSpan(start, None if end is None else end + 1)


def _invalid_scan_range_error(reason: str) -> SelectError:
    return SelectError("InvalidScanRange", f"The ScanRange is not valid: {reason}.")


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MIB = 1024 * 1024
_MAX_POOLED_BUFFERS = 8
# How much is read of a block to find where its last record ends.
_TAIL_BYTES = 16 * 1024


class BufferPool:
    """Buffers of one size that blocks give back; safe across threads (list operations only)."""

    def __init__(self, buffer_bytes: int) -> None:
        self.size = buffer_bytes
        self._free: list[bytearray] = []

    def acquire(self, min_bytes: int) -> bytearray:
        """Return a buffer for at least `min_bytes` bytes and the padding."""
        if min_bytes <= self.size and self._free:
            try:
                return self._free.pop()
            except IndexError:  # another thread was faster
                pass
        return bytearray(max(min_bytes, self.size) + PADDING_BYTES)

    def release(self, buffer: bytearray) -> None:
        """Take a buffer back; larger or too many ones are left to the garbage collector."""
        if len(buffer) == self.size + PADDING_BYTES and len(self._free) < _MAX_POOLED_BUFFERS:
            self._free.append(buffer)


@dataclass(slots=True)
class RecordBlock:
    """Whole records: `data[start:end]`, whose first byte is byte `offset` of the object's text.

    The offset counts uncompressed bytes. `release` when nothing refers to the data any more;
    a block that is not released costs one allocation.
    """

    memory: bytearray
    start: int
    end: int
    offset: int
    block_number: int
    _pool: BufferPool
    data: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        self.data = np.frombuffer(self.memory, np.uint8)

    def load_bytes(self) -> None:
        """Have the bytes at hand, whichever thread asks; the first call reads them.

        Raises:
            SelectError: The object cannot be read there.
        """

    def skip_bytes(self, count: int) -> None:
        """Take bytes off the front."""
        self.start += count
        self.offset += count

    def skip_byte_order_mark(self) -> None:
        """Take UTF-8's byte order mark off the object's front, if this block begins there."""
        if self.offset == 0 and self.memory.startswith(_BYTE_ORDER_MARK, self.start, self.end):
            self.skip_bytes(len(_BYTE_ORDER_MARK))

    def copy_bytes(self) -> bytes:
        """Return a copy of the records."""
        return bytes(memoryview(self.memory)[self.start : self.end])

    def release(self) -> None:
        """Give the buffer back; the block is empty afterwards. May be called twice."""
        memory, self.memory = self.memory, bytearray()
        self.start = self.end = 0
        self.data = np.frombuffer(bytes(PADDING_BYTES), np.uint8)
        if memory:
            self._pool.release(memory)


class RemoteBlock(RecordBlock):
    """A block of known places in the object, read by the thread that works on it."""

    __slots__ = ("_source",)

    def __init__(
        self,
        source: ObjectSource,
        offset: int,
        size_bytes: int,
        block_number: int,
        pool: BufferPool,
    ) -> None:
        """Take note of `size_bytes` bytes at an offset of the source."""
        super().__init__(bytearray(), 0, size_bytes, offset, block_number, pool)
        self._source: ObjectSource | None = source

    def load_bytes(self) -> None:
        """Read the bytes, once.

        Raises:
            SelectError: The object cannot be read there.
        """
        source, self._source = self._source, None
        if source is not None:
            self.memory = self._pool.acquire(self.end)
            read_fully(source, self.offset, self.memory, self.end)
            self.data = np.frombuffer(self.memory, np.uint8)


def read_fully(source: ObjectSource, offset: int, memory: bytearray, size_bytes: int) -> None:
    """Read so many bytes to the front of a buffer.

    Raises:
        SelectError: The object cannot be read, or is over before.
    """
    held = 0
    with memoryview(memory) as view:
        while held < size_bytes:
            count = source.read_into(offset + held, view[held:size_bytes])
            if count == 0:
                raise SelectError("TruncatedInput", f"{source.name} has become shorter meanwhile.")
            held += count


class BlockCutter(Protocol):
    """Finds the end of the last whole record in a buffer."""

    def __call__(self, memory: bytearray, start: int, end: int) -> int:
        """Return the place behind the last whole record of [start, end), `start` if there is none."""


def make_delimiter_cutter(delimiter: bytes) -> BlockCutter:
    """Cut where the delimiter last occurs; for delimiters that do not overlap themselves."""
    size = len(delimiter)

    def cut(memory: bytearray, start: int, end: int) -> int:
        found = memory.rfind(delimiter, start, end)
        return start if found < 0 else found + size

    return cut


def find_stream_offset(delimiter: bytes, span: RecordStartSpan) -> int:
    """Return the offset from which a stream must be read to find the records of a span.

    The delimiter before the span tells where its first record begins; only where occurrences
    may overlap does that depend on all that lies before.
    """
    return 0 if can_overlap_itself(delimiter) else max(0, span.start - len(delimiter))


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """Sizes in bytes: what is read at once, and the longest record there may be."""

    block_bytes: int = 1 * _MIB
    record_bytes: int = 16 * _MIB


class RecordBlockReader:
    """Iterates the blocks of a stream once.

    `span` takes only the records that begin in it; `find_stream_offset` tells where the stream begins.
    """

    def __init__(
        self,
        stream: ByteStream,
        delimiter: bytes,
        *,
        cutter: BlockCutter | None = None,
        span: RecordStartSpan = WHOLE_OBJECT,
        stream_offset: int = 0,
        limits: BlockLimits | None = None,
    ) -> None:
        self.limits = limits or BlockLimits()
        self._stream = stream
        self._delimiter = delimiter
        self._find_block_end = cutter or make_delimiter_cutter(delimiter)
        self._span = span
        self._pool = BufferPool(self.limits.block_bytes)
        self._memory = self._pool.acquire(0)
        self._buffered_bytes = 0
        self._offset = stream_offset  # of the first byte in _memory
        self._next_block_number = 0
        self._ended = False
        self._skipping = span.start > stream_offset
        # Whether a record begins at the first byte in _memory.
        self._aligned = stream_offset == 0
        self._can_skip_ahead = not can_overlap_itself(delimiter)

    @property
    def scanned_bytes(self) -> int:
        """Bytes taken from the object so far, compressed ones if it is compressed."""
        return self._stream.scanned_bytes

    @property
    def processed_bytes(self) -> int:
        """Bytes of text read so far, uncompressed."""
        return self._stream.processed_bytes

    def close(self) -> None:
        """Stop reading and let go of the object. Idempotent."""
        self._ended = True
        self._stream.close()

    def __iter__(self) -> Iterator[RecordBlock]:
        """Yield the blocks in order.

        Raises:
            SelectError: OverMaxRecordSize, after every record before the long one.
        """
        while (block := self._next_block()) is not None:
            yield block

    def iterate_remote_blocks(self, stream: UncompressedStream) -> Iterator[RecordBlock]:
        """Yield the blocks of the stream, most of them not read yet.

        For a source that several threads may read, all of it, where a record ends wherever its
        delimiter stands. From the first block on that seems to end in a long record, blocks
        are read here.

        Raises:
            SelectError: As iterating does.
        """
        if self._offset == 0 and (first := self._next_block()) is not None:
            yield first
        size = self.limits.block_bytes
        tail = bytearray(min(_TAIL_BYTES, size))
        while not self._ended and self._offset + size < stream.source.size:
            behind = self._offset + size
            read_fully(stream.source, behind - len(tail), tail, len(tail))
            end = self._find_block_end(tail, 0, len(tail))
            if end == 0:
                break
            behind += end - len(tail)
            block = RemoteBlock(
                stream.source,
                self._offset,
                behind - self._offset,
                self._next_block_number,
                self._pool,
            )
            self._next_block_number += 1
            self._offset, self._buffered_bytes = behind, 0
            stream.skip_to(behind)
            yield block
        yield from self

    def _next_block(self) -> RecordBlock | None:
        """Return the next block, None behind the last one."""
        while not self._ended:
            self._ended = self._fill_buffer()
            end = (
                self._buffered_bytes
                if self._ended
                else self._find_block_end(self._memory, 0, self._buffered_bytes)
            )
            if end == 0 and not self._ended:
                self._grow_buffer()
                continue
            start, end = self._clip_to_span(end)
            block = self._cut_block(start, end)
            if block is not None:
                return block
        return None

    def _fill_buffer(self) -> bool:
        """Read until the buffer is full; tell whether the stream ended before."""
        with memoryview(self._memory) as view:
            limit = len(view) - PADDING_BYTES
            while self._buffered_bytes < limit:
                count = self._stream.read_into(view[self._buffered_bytes : limit])
                if count == 0:
                    return True
                self._buffered_bytes += count
        return False

    def _grow_buffer(self) -> None:
        """Make the buffer hold more than it does: it is full, and no record ends in it."""
        size = len(self._delimiter)
        longest = self.limits.record_bytes + size + 1
        if self._skipping and self._buffered_bytes > size:
            # The record began before the span: no more of it is needed than may be a delimiter.
            self._discard_bytes(self._buffered_bytes - size + 1)
            return
        if self._buffered_bytes >= longest:
            raise record_too_long_error(self._offset, self.limits.record_bytes)
        larger = self._pool.acquire(min(2 * self._buffered_bytes, longest))
        larger[: self._buffered_bytes] = memoryview(self._memory)[: self._buffered_bytes]
        self._pool.release(self._memory)
        self._memory = larger

    def _discard_bytes(self, count: int) -> None:
        rest = self._buffered_bytes - count
        self._memory[:rest] = self._memory[count : self._buffered_bytes]
        self._buffered_bytes = rest
        self._offset += count
        self._aligned = False

    def _clip_to_span(self, end: int) -> tuple[int, int]:
        """Return the part of the whole records in [0, end) that begin in the span."""
        start = 0
        if self._skipping:
            start = self._find_record_start(self._span.start, 0, end)
            self._skipping = self._offset + end < self._span.start
        self._aligned = True
        stop = self._span.end
        if stop is not None and self._offset + end >= stop:
            self._ended = True
            end = self._find_record_start(stop, start, end)
        return start, end

    def _find_record_start(self, offset: int, start: int, end: int) -> int:
        """Return where the first record from `offset` of the object on begins, at most `end`."""
        size = len(self._delimiter)
        place = start
        aligned = self._aligned
        while place < end and (self._offset + place < offset or not aligned):
            wanted = place
            if self._can_skip_ahead:
                wanted = max(place, offset - self._offset - size)
            found = self._memory.find(self._delimiter, wanted, end)
            if found < 0:
                return end
            place = found + size
            aligned = True
        return place

    def _cut_block(self, start: int, end: int) -> RecordBlock | None:
        """Make [start, end) a block and carry what is behind `end` to the next buffer."""
        carried = self._buffered_bytes - end
        block = None
        memory = self._memory
        if end > start:
            block = RecordBlock(
                memory, start, end, self._offset + start, self._next_block_number, self._pool
            )
            self._next_block_number += 1
            if not self._ended:
                self._memory = self._pool.acquire(carried)
        if not self._ended:
            self._memory[:carried] = memory[end : self._buffered_bytes]
        self._buffered_bytes = carried
        self._offset += end
        return block


def record_too_long_error(offset: int, limit_bytes: int) -> SelectError:
    """Return the error of a record that is longer than the setting allows."""
    return SelectError(
        "OverMaxRecordSize",
        f"The record that begins at byte {offset} is longer than {limit_bytes} bytes; the setting "
        "select_record_bytes allows no more. A quote that is never closed makes one record of the rest.",
    )


def invalid_utf8_error(offset: int) -> SelectError:
    """Return the error of a byte that is no UTF-8."""
    return SelectError(
        "InvalidTextEncoding", f"UTF-8 is required; the object breaks it at byte {offset}."
    )
