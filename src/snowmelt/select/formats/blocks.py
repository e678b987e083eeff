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
    """Byte range [start, end) of the object that contains the starts of selected records.

    An `end` of None is the end of the object.
    """

    start: int = 0
    end: int | None = None


WHOLE_OBJECT = RecordStartSpan()


def resolve_scan_range(
    scan_range: ScanRange | None, object_bytes: int, *, compression: str = "NONE"
) -> RecordStartSpan:
    """Convert a ScanRange to a byte range of record starts.

    Both ends of a ScanRange are inclusive. An End without a Start counts bytes from the object's end.

    Raises:
        SelectError: If the range is invalid or starts after the object's end, or if the object is
            compressed or a pipe.
    """
    if scan_range is None:
        return WHOLE_OBJECT
    if compression != "NONE" or object_bytes < 0:
        raise SelectError(
            "UnsupportedScanRangeInput",
            "A ScanRange requires an uncompressed object.",
        )
    start, end = scan_range.start, scan_range.end
    if start is None and end is None:
        return WHOLE_OBJECT
    if (start or 0) < 0 or (end or 0) < 0:
        raise _invalid_scan_range_error("Start and End may not be negative")
    if start is None:
        return RecordStartSpan(max(0, object_bytes - (end or 0)), None)
    if end is not None and end < start:
        raise _invalid_scan_range_error(f"End ({end}) is before Start ({start})")
    if start >= object_bytes > 0:
        raise _invalid_scan_range_error(
            f"Start ({start}) is after the object's last byte ({object_bytes - 1})"
        )
    return RecordStartSpan(start, None if end is None else end + 1)


def _invalid_scan_range_error(reason: str) -> SelectError:
    return SelectError("InvalidScanRange", f"Invalid ScanRange: {reason}.")


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MIB = 1024 * 1024
_MAX_POOLED_BUFFERS = 8
# Bytes read from the end of a block to find the end of its last record.
_TAIL_BYTES = 16 * 1024


class BufferPool:
    """Pool of block buffers of one size. Thread-safe because it uses only atomic list operations."""

    def __init__(self, buffer_bytes: int) -> None:
        self.size = buffer_bytes
        self._free: list[bytearray] = []

    def acquire(self, min_bytes: int) -> bytearray:
        """Return a buffer for at least `min_bytes` bytes plus padding."""
        if min_bytes <= self.size and self._free:
            try:
                return self._free.pop()
            except IndexError:  # Another thread took the last buffer.
                pass
        return bytearray(max(min_bytes, self.size) + PADDING_BYTES)

    def release(self, buffer: bytearray) -> None:
        """Return a buffer to the pool, or drop it if it is larger or the pool is full."""
        if len(buffer) == self.size + PADDING_BYTES and len(self._free) < _MAX_POOLED_BUFFERS:
            self._free.append(buffer)


@dataclass(slots=True)
class RecordBlock:
    """Block of whole records in `data[start:end]`. It starts at byte `offset` of the object's text.

    `offset` counts uncompressed bytes. Call `release` when nothing refers to the data. A block that is
    not released costs one allocation.
    """

    memory: bytearray
    start: int
    end: int
    offset: int
    _pool: BufferPool
    data: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        self.data = np.frombuffer(self.memory, np.uint8)

    def load_bytes(self) -> None:
        """Read the bytes on the first call, in the calling thread. A block in memory needs no read.

        Raises:
            SelectError: If the object cannot be read.
        """

    def skip_bytes(self, count: int) -> None:
        """Remove `count` bytes from the start of the block."""
        self.start += count
        self.offset += count

    def skip_byte_order_mark(self) -> None:
        """Remove a UTF-8 byte-order mark if this block starts the object."""
        if self.offset == 0 and self.memory.startswith(_BYTE_ORDER_MARK, self.start, self.end):
            self.skip_bytes(len(_BYTE_ORDER_MARK))

    def copy_bytes(self) -> bytes:
        """Return a copy of the records."""
        return bytes(memoryview(self.memory)[self.start : self.end])

    def release(self) -> None:
        """Return the buffer to the pool and empty the block. Idempotent."""
        memory, self.memory = self.memory, bytearray()
        self.start = self.end = 0
        self.data = np.frombuffer(bytes(PADDING_BYTES), np.uint8)
        if memory:
            self._pool.release(memory)


class RemoteBlock(RecordBlock):
    """Block at a known position in the object. The worker that processes it reads it."""

    __slots__ = ("_source",)

    def __init__(
        self,
        source: ObjectSource,
        offset: int,
        size_bytes: int,
        pool: BufferPool,
    ) -> None:
        """Create a block of `size_bytes` bytes at an offset of the source, without reading them."""
        super().__init__(bytearray(), 0, size_bytes, offset, pool)
        self._source: ObjectSource | None = source

    def load_bytes(self) -> None:
        """Read the bytes on the first call.

        Raises:
            SelectError: If the object cannot be read.
        """
        source, self._source = self._source, None
        if source is not None:
            self.memory = self._pool.acquire(self.end)
            read_fully(source, self.offset, self.memory, self.end)
            self.data = np.frombuffer(self.memory, np.uint8)


def read_fully(source: ObjectSource, offset: int, memory: bytearray, size_bytes: int) -> None:
    """Read exactly `size_bytes` bytes into the start of a buffer.

    Raises:
        SelectError: If the object cannot be read or is shorter.
    """
    held = 0
    with memoryview(memory) as view:
        while held < size_bytes:
            count = source.read_into(offset + held, view[held:size_bytes])
            if count == 0:
                raise SelectError(
                    "TruncatedInput",
                    f"{source.name} was truncated during the query. Retry the query.",
                )
            held += count


class BlockCutter(Protocol):
    """Function that finds the end of the last whole record in a buffer."""

    def __call__(self, memory: bytearray, start: int, end: int) -> int:
        """Return the end of the last whole record in [start, end), or `start` if there is none."""


def make_delimiter_cutter(delimiter: bytes) -> BlockCutter:
    """Return a cutter that searches for the last delimiter.

    The delimiter must not be able to overlap itself.
    """
    size = len(delimiter)

    def cut(memory: bytearray, start: int, end: int) -> int:
        found = memory.rfind(delimiter, start, end)
        return start if found < 0 else found + size

    return cut


def find_stream_offset(delimiter: bytes, span: RecordStartSpan) -> int:
    """Return the offset at which to start reading in order to find the records of a span.

    The delimiter before the span determines where its first record starts. If a delimiter can overlap
    itself, reading starts at 0, because its matches depend on all preceding bytes.
    """
    return 0 if can_overlap_itself(delimiter) else max(0, span.start - len(delimiter))


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """Block size and maximum record size, in bytes."""

    block_bytes: int = 1 * _MIB
    record_bytes: int = 16 * _MIB


class RecordBlockReader:
    """Single-use iterator over the blocks of a stream.

    Only records that start in `span` are returned. `find_stream_offset` computes `stream_offset`.
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
        self._offset = stream_offset  # Stream offset of the first byte in _memory.
        self._ended = False
        self._skipping = span.start > stream_offset
        # True if a record starts at the first byte in _memory.
        self._aligned = stream_offset == 0
        self._can_skip_ahead = not can_overlap_itself(delimiter)

    @property
    def scanned_bytes(self) -> int:
        """Bytes read from the object, compressed if it is compressed."""
        return self._stream.scanned_bytes

    @property
    def processed_bytes(self) -> int:
        """Bytes of decompressed text read."""
        return self._stream.processed_bytes

    def close(self) -> None:
        """Stop reading and close the stream. Idempotent."""
        self._ended = True
        self._stream.close()

    def __iter__(self) -> Iterator[RecordBlock]:
        """Yield the blocks in order.

        Raises:
            SelectError: If a record is too long (OverMaxRecordSize), after all records before it.
        """
        while (block := self._next_block()) is not None:
            yield block

    def iterate_remote_blocks(self, stream: UncompressedStream) -> Iterator[RecordBlock]:
        """Yield the blocks of the stream, most of them unread, so that workers read them.

        The source must support concurrent reads. Every delimiter must end a record. The span must
        be the whole object. If the last `_TAIL_BYTES` bytes of a block contain no delimiter, this
        thread reads that block and all later ones.

        Raises:
            SelectError: If a record is too long or the object cannot be read.
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
                self._pool,
            )
            self._offset, self._buffered_bytes = behind, 0
            stream.skip_to(behind)
            yield block
        yield from self

    def _next_block(self) -> RecordBlock | None:
        """Return the next block, or None after the last one."""
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
        """Read until the buffer is full. Return True if the stream ended before that."""
        with memoryview(self._memory) as view:
            limit = len(view) - PADDING_BYTES
            while self._buffered_bytes < limit:
                count = self._stream.read_into(view[self._buffered_bytes : limit])
                if count == 0:
                    return True
                self._buffered_bytes += count
        return False

    def _grow_buffer(self) -> None:
        """Make room in a full buffer that contains no end of a record."""
        size = len(self._delimiter)
        longest = self.limits.record_bytes + size + 1
        if self._skipping and self._buffered_bytes > size:
            # The record started before the span. Keep only the bytes at the end that may begin its
            # delimiter.
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
        """Return the range of the whole records in [0, end) that start in the span."""
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
        """Return the position of the first record that starts at or after `offset`, at most `end`."""
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
        """Return [start, end) as a block, and move the bytes after `end` to the next buffer."""
        carried = self._buffered_bytes - end
        block = None
        memory = self._memory
        if end > start:
            block = RecordBlock(memory, start, end, self._offset + start, self._pool)
            if not self._ended:
                self._memory = self._pool.acquire(carried)
        if not self._ended:
            self._memory[:carried] = memory[end : self._buffered_bytes]
        self._buffered_bytes = carried
        self._offset += end
        return block


def record_too_long_error(offset: int, limit_bytes: int) -> SelectError:
    """Return the error for a record that exceeds the limit."""
    return SelectError(
        "OverMaxRecordSize",
        f"The record that begins at byte {offset} is longer than {limit_bytes} bytes (setting "
        "select_record_bytes). In CSV, the rest of the object is one record if a quote is not closed.",
    )


def invalid_utf8_error(offset: int) -> SelectError:
    """Return the error for a byte that is not valid UTF-8."""
    return SelectError(
        "InvalidTextEncoding",
        f"The object is not valid UTF-8 at byte {offset}. If it is compressed, set "
        "CompressionType.",
    )
