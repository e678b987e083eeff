"""Zstd decompression filter that scans frames block by block, with bounded output.

The library has two interfaces: one does not limit its output, the other does not report truncated
frames. A block has at most 128 KiB of output, and its header contains its length (RFC 8878, 3.1.1).
Scanning the block headers therefore bounds the output and finds the end of every frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import zstandard

from snowmelt.errors import PhaseFailed
from snowmelt.load.filters.decompression import (
    MAX_OUTPUT_PARAMETER,
    check_max_output,
    limit_output,
)
from snowmelt.load.phase_definition import PhaseDefinition

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import ByteReader

_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
# Sizes of the frame fields "content size" and "dictionary ID", by their flags in the descriptor.
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_MAX_HEADER_BYTES = 18
_RLE_BLOCK, _RESERVED_BLOCK = 1, 3
_BLOCKS_PER_CALL = 8
# Maximum window size: the default limit of `zstd -d` (--long=27).
_MAX_WINDOW_BYTES = 128 * 1024 * 1024
_SKIP_STEP_BYTES = 1024 * 1024


class ZstdFilter:
    """Decompressor of consecutive frames. Ignores skippable frames."""

    overlaps = True

    def __init__(self, max_output: int | None = None) -> None:
        check_max_output("Zstd", max_output)
        self._max_output = max_output

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the decompressed bytes in slices of up to 1 MiB; raises as `Decompressor.run`."""
        pieces = _decompress_frames(_CompressedInput(reader))
        yield from limit_output(pieces, "zstd", self._max_output)


def _decompress_frames(data: _CompressedInput) -> Iterator[bytes]:
    while head := data.peek(_MAX_HEADER_BYTES):
        if head[:4] == _MAGIC:
            yield from _decompress_frame(data, head)
        elif head[1:4] == _SKIPPABLE_MAGIC and 0x50 <= head[0] <= 0x5F:
            data.skip(8 + int.from_bytes(head[4:8], "little"))
        else:
            reason = f"zstd data ends at byte {data.offset}, but other data follows ({head[:8].hex(' ')})"
            if not data.offset:
                reason = f"not zstd data: it starts with {head[:8].hex(' ')}"
            raise PhaseFailed(reason=reason, offset=data.offset)


def _decompress_frame(data: _CompressedInput, head: bytes) -> Iterator[bytes]:
    start = data.frame_start = data.offset
    whole = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    decoder = whole.decompressobj(write_size=_BLOCKS_PER_CALL * 128 * 1024)
    descriptor = head[4] if len(head) > 4 else 0
    single, sums = descriptor >> 5 & 1, descriptor >> 2 & 1
    sizes = _CONTENT_SIZE_BYTES[descriptor >> 6] or single
    wanted = 5 + (1 - single) + _DICTIONARY_ID_BYTES[descriptor & 3] + sizes
    last = False
    while not last:
        wanted, last = _scan_blocks(data, wanted)
        try:
            output = decoder.decompress(data.read_exactly(wanted + 4 * sums if last else wanted))
        except zstandard.ZstdError as error:
            reason = (
                f"the zstd data from byte {start} is corrupt before byte {data.offset}: {error}"
            )
            raise PhaseFailed(reason=reason, offset=data.offset) from error
        wanted = 0
        if output:
            yield output


def _scan_blocks(data: _CompressedInput, block_start: int) -> tuple[int, bool]:
    """Scan up to 8 blocks. Their output is at most one slice.

    Returns:
        The offset of their end, and True if the last block of the frame is among them.
    """
    for _ in range(_BLOCKS_PER_CALL):
        block = int.from_bytes(
            data.peek_at_least(block_start + 3)[block_start : block_start + 3], "little"
        )
        last, kind = block & 1, block >> 1 & 3
        if kind == _RESERVED_BLOCK:
            reason = (
                f"the zstd data is corrupt at byte {data.offset + block_start}: reserved block type"
            )
            raise PhaseFailed(reason=reason, offset=data.offset + block_start)
        block_start += 3 + (1 if kind == _RLE_BLOCK else block >> 3)
        if last:
            return block_start, True
    return block_start, False


class _CompressedInput:
    """A reader of compressed bytes at `offset`."""

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        self._buffer = memoryview(b"")
        self.frame_start = 0
        self.offset = 0

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the end."""
        self._fill(size)
        return bytes(self._buffer[:size])

    def peek_at_least(self, size: int) -> memoryview:
        """Return the buffered bytes, at least `size`. Raise PhaseFailed if the input ends earlier."""
        self._fill(size)
        if len(self._buffer) < size:
            end = self.offset + len(self._buffer)
            reason = f"the zstd data from byte {self.frame_start} is truncated: the input ends at byte {end}"
            raise PhaseFailed(reason=reason, offset=end)
        return self._buffer

    def read_exactly(self, size: int) -> memoryview:
        """Read exactly `size` bytes; raises as `peek_at_least`."""
        taken = self.peek_at_least(size)[:size]
        self._buffer = self._buffer[size:]
        self.offset += size
        return taken

    def skip(self, size: int) -> None:
        """Skip a frame of `size` bytes; raises as `peek_at_least`."""
        self.frame_start = self.offset
        while size:
            step = min(size, _SKIP_STEP_BYTES)
            self.read_exactly(step)
            size -= step

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            more = self._reader.read()
            if not more:
                return
            self._buffer = memoryview(bytes(self._buffer) + more)


ZSTD = PhaseDefinition("Zstd", ZstdFilter, (MAX_OUTPUT_PARAMETER,))
