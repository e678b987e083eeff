"""An object's bytes as blocks of whole records, in a few buffers that are used again and again.

A block ends where a record ends. What is left of the broken record behind it is carried to the
front of the next block. Works for every format whose records end at a delimiter (CSV, JSON lines).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from snowmelt.select.errors import SelectError
from snowmelt.select.vectors import PADDING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from snowmelt.select.formats.decompression import ByteStream, ObjectSource, PlainStream
    from snowmelt.select.request import ScanRange

# --- Which records a ScanRange takes: those whose first byte lies in it, whole.


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets in the object, bytes: records that begin in [first, stop); None is its end."""

    first: int = 0
    stop: int | None = None


WHOLE = Span()


def resolve(scan_range: ScanRange | None, size: int, *, compression: str = "NONE") -> Span:
    """Turn a ScanRange (both ends included; an end alone counts from the back) into offsets.

    Raises:
        SelectError: A range that is none or that begins behind the object's end; or an object
            whose records have no offsets: a compressed one, a pipe.
    """
    if scan_range is None:
        return WHOLE
    if compression != "NONE" or size < 0:
        raise SelectError(
            "UnsupportedScanRangeInput",
            "A ScanRange works on uncompressed objects only: its bytes are the records' bytes.",
        )
    start, end = scan_range.start, scan_range.end
    if start is None and end is None:
        return WHOLE
    if (start or 0) < 0 or (end or 0) < 0:
        raise _refused("Start and End may not be negative")
    if start is None:
        return Span(max(0, size - (end or 0)), None)
    if end is not None and end < start:
        raise _refused(f"End ({end}) lies before Start ({start})")
    if start >= size > 0:
        raise _refused(f"Start ({start}) lies behind the object's last byte ({size - 1})")
    return Span(start, None if end is None else end + 1)


def _refused(reason: str) -> SelectError:
    return SelectError("InvalidScanRange", f"The ScanRange is not valid: {reason}.")


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MIB = 1024 * 1024
_POOLED = 8
# How much is read of a block to find where its last record ends.
_TAIL = 16 * 1024


class BufferPool:
    """Buffers of one size that blocks give back; safe across threads (list operations only)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """Return a buffer for at least `size` bytes and the padding."""
        if size <= self.size and self._free:
            try:
                return self._free.pop()
            except IndexError:  # another thread was faster
                pass
        return bytearray(max(size, self.size) + PADDING)

    def give(self, buffer: bytearray) -> None:
        """Take a buffer back; larger or too many ones are left to the garbage collector."""
        if len(buffer) == self.size + PADDING and len(self._free) < _POOLED:
            self._free.append(buffer)


@dataclass(slots=True)
class Block:
    """Whole records: `data[start:end]`, whose first byte is byte `offset` of the object's text.

    The offset counts uncompressed bytes. `release` when nothing refers to the data any more;
    a block that is not released costs one allocation.
    """

    memory: bytearray
    start: int
    end: int
    offset: int
    number: int
    _pool: BufferPool
    data: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        self.data = np.frombuffer(self.memory, np.uint8)

    def load(self) -> None:
        """Have the bytes at hand, whichever thread asks; the first call reads them.

        Raises:
            SelectError: The object cannot be read there.
        """

    def skip(self, count: int) -> None:
        """Take bytes off the front."""
        self.start += count
        self.offset += count

    def skip_mark(self) -> None:
        """Take UTF-8's byte order mark off the object's front, if this block begins there."""
        if self.offset == 0 and self.memory.startswith(_BYTE_ORDER_MARK, self.start, self.end):
            self.skip(len(_BYTE_ORDER_MARK))

    def bytes(self) -> bytes:
        """Return a copy of the records."""
        return bytes(memoryview(self.memory)[self.start : self.end])

    def release(self) -> None:
        """Give the buffer back; the block is empty afterwards. May be called twice."""
        memory, self.memory = self.memory, bytearray()
        self.start = self.end = 0
        self.data = np.frombuffer(bytes(PADDING), np.uint8)
        if memory:
            self._pool.give(memory)


class DistantBlock(Block):
    """A block of known places in the object, read by the thread that works on it."""

    __slots__ = ("_source",)

    def __init__(
        self, source: ObjectSource, offset: int, size: int, number: int, pool: BufferPool
    ) -> None:
        """Take note of `size` bytes at an offset of the source."""
        super().__init__(bytearray(), 0, size, offset, number, pool)
        self._source: ObjectSource | None = source

    def load(self) -> None:
        """Read the bytes, once.

        Raises:
            SelectError: The object cannot be read there.
        """
        source, self._source = self._source, None
        if source is not None:
            self.memory = self._pool.take(self.end)
            read_fully(source, self.offset, self.memory, self.end)
            self.data = np.frombuffer(self.memory, np.uint8)


def read_fully(source: ObjectSource, offset: int, memory: bytearray, size: int) -> None:
    """Read so many bytes to the front of a buffer.

    Raises:
        SelectError: The object cannot be read, or is over before.
    """
    held = 0
    with memoryview(memory) as view:
        while held < size:
            count = source.read_into(offset + held, view[held:size])
            if count == 0:
                raise SelectError("TruncatedInput", f"{source.name} has become shorter meanwhile.")
            held += count


class Cutter(Protocol):
    """Finds the end of the last whole record in a buffer."""

    def __call__(self, memory: bytearray, start: int, end: int) -> int:
        """Return the place behind the last whole record of [start, end), `start` if there is none."""


def delimiter_cutter(delimiter: bytes) -> Cutter:
    """Cut where the delimiter last occurs; for delimiters that do not overlap themselves."""
    size = len(delimiter)

    def cut(memory: bytearray, start: int, end: int) -> int:
        found = memory.rfind(delimiter, start, end)
        return start if found < 0 else found + size

    return cut


def first_offset(delimiter: bytes, span: Span) -> int:
    """Return the offset from which a stream must be read to find the records of a span.

    The delimiter before the span tells where its first record begins; only where occurrences
    may overlap does that depend on all that lies before.
    """
    return 0 if overlaps_itself(delimiter) else max(0, span.first - len(delimiter))


def overlaps_itself(delimiter: bytes) -> bool:
    """Tell whether occurrences can overlap, so that where one begins depends on those before."""
    return any(delimiter[:size] == delimiter[-size:] for size in range(1, len(delimiter)))


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """Sizes in bytes: what is read at once, and the longest record there may be."""

    block_bytes: int = 1 * _MIB
    record_bytes: int = 16 * _MIB


class RecordBlocks:
    """Iterates the blocks of a stream once.

    `span` takes only the records that begin in it; `first_offset` tells where the stream begins.
    """

    def __init__(
        self,
        stream: ByteStream,
        delimiter: bytes,
        *,
        cutter: Cutter | None = None,
        span: Span = WHOLE,
        stream_offset: int = 0,
        limits: BlockLimits | None = None,
    ) -> None:
        self.limits = limits or BlockLimits()
        self._stream = stream
        self._delimiter = delimiter
        self._cut = cutter or delimiter_cutter(delimiter)
        self._span = span
        self._pool = BufferPool(self.limits.block_bytes)
        self._memory = self._pool.take(0)
        self._held = 0
        self._offset = stream_offset  # of the first byte in _memory
        self._number = 0
        self._ended = False
        self._skipping = span.first > stream_offset
        # Whether a record begins at the first byte in _memory.
        self._aligned = stream_offset == 0
        self._jumps = not overlaps_itself(delimiter)

    @property
    def scanned(self) -> int:
        """Bytes taken from the object so far, compressed ones if it is compressed."""
        return self._stream.scanned

    @property
    def processed(self) -> int:
        """Bytes of text read so far, uncompressed."""
        return self._stream.processed

    def close(self) -> None:
        """Stop reading and let go of the object. Idempotent."""
        self._ended = True
        self._stream.close()

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks in order.

        Raises:
            SelectError: OverMaxRecordSize, after every record before the long one.
        """
        while (block := self._next()) is not None:
            yield block

    def distant(self, stream: PlainStream) -> Iterator[Block]:
        """Yield the blocks of the stream, most of them not read yet.

        For a source that several threads may read, all of it, where a record ends wherever its
        delimiter stands. From the first block on that seems to end in a long record, blocks
        are read here.

        Raises:
            SelectError: As iterating does.
        """
        if self._offset == 0 and (first := self._next()) is not None:
            yield first
        size = self.limits.block_bytes
        tail = bytearray(min(_TAIL, size))
        while not self._ended and self._offset + size < stream.source.size:
            behind = self._offset + size
            read_fully(stream.source, behind - len(tail), tail, len(tail))
            end = self._cut(tail, 0, len(tail))
            if end == 0:
                break
            behind += end - len(tail)
            block = DistantBlock(
                stream.source, self._offset, behind - self._offset, self._number, self._pool
            )
            self._number += 1
            self._offset, self._held = behind, 0
            stream.move_to(behind)
            yield block
        yield from self

    def _next(self) -> Block | None:
        """Return the next block, None behind the last one."""
        while not self._ended:
            self._ended = self._fill()
            end = self._held if self._ended else self._cut(self._memory, 0, self._held)
            if end == 0 and not self._ended:
                self._make_room()
                continue
            start, end = self._within_span(end)
            block = self._hand_out(start, end)
            if block is not None:
                return block
        return None

    def _fill(self) -> bool:
        """Read until the buffer is full; tell whether the stream ended before."""
        with memoryview(self._memory) as view:
            limit = len(view) - PADDING
            while self._held < limit:
                count = self._stream.read_into(view[self._held : limit])
                if count == 0:
                    return True
                self._held += count
        return False

    def _make_room(self) -> None:
        """Make the buffer hold more than it does: it is full, and no record ends in it."""
        size = len(self._delimiter)
        longest = self.limits.record_bytes + size + 1
        if self._skipping and self._held > size:
            # The record began before the span: no more of it is needed than may be a delimiter.
            self._discard(self._held - size + 1)
            return
        if self._held >= longest:
            raise too_long(self._offset, self.limits.record_bytes)
        larger = self._pool.take(min(2 * self._held, longest))
        larger[: self._held] = memoryview(self._memory)[: self._held]
        self._pool.give(self._memory)
        self._memory = larger

    def _discard(self, count: int) -> None:
        rest = self._held - count
        self._memory[:rest] = self._memory[count : self._held]
        self._held = rest
        self._offset += count
        self._aligned = False

    def _within_span(self, end: int) -> tuple[int, int]:
        """Return the part of the whole records in [0, end) that begin in the span."""
        start = 0
        if self._skipping:
            start = self._record_at(self._span.first, 0, end)
            self._skipping = self._offset + end < self._span.first
        self._aligned = True
        stop = self._span.stop
        if stop is not None and self._offset + end >= stop:
            self._ended = True
            end = self._record_at(stop, start, end)
        return start, end

    def _record_at(self, offset: int, start: int, end: int) -> int:
        """Return where the first record from `offset` of the object on begins, at most `end`."""
        size = len(self._delimiter)
        place = start
        aligned = self._aligned
        while place < end and (self._offset + place < offset or not aligned):
            wanted = place
            if self._jumps:
                wanted = max(place, offset - self._offset - size)
            found = self._memory.find(self._delimiter, wanted, end)
            if found < 0:
                return end
            place = found + size
            aligned = True
        return place

    def _hand_out(self, start: int, end: int) -> Block | None:
        """Make [start, end) a block and carry what is behind `end` to the next buffer."""
        carried = self._held - end
        block = None
        memory = self._memory
        if end > start:
            block = Block(memory, start, end, self._offset + start, self._number, self._pool)
            self._number += 1
            if not self._ended:
                self._memory = self._pool.take(carried)
        if not self._ended:
            self._memory[:carried] = memory[end : self._held]
        self._held = carried
        self._offset += end
        return block


def too_long(offset: int, limit: int) -> SelectError:
    """Return the error of a record that is longer than the setting allows."""
    return SelectError(
        "OverMaxRecordSize",
        f"The record that begins at byte {offset} is longer than {limit} bytes; the setting "
        "select_record_bytes allows no more. A quote that is never closed makes one record of the rest.",
    )


def bad_encoding(offset: int) -> SelectError:
    """Return the error of a byte that is no UTF-8."""
    return SelectError(
        "InvalidTextEncoding", f"UTF-8 is required; the object breaks it at byte {offset}."
    )
