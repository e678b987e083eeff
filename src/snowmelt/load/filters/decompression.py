"""Decompression filters for GZip, BZip, Xz and Lz4 with bounded output.

A stream may have several concatenated members. The decoders verify the checksums.
"""

from __future__ import annotations

import bz2
import functools
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import lz4.frame
from isal import igzip_lib

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import ByteReader

# Slices that fit in the CPU cache double the speed on well compressed data.
SLICE_BYTES = 1024 * 1024
_MAX_STEP_BYTES = 256 * 1024
_MIN_STEP_BYTES = 4 * 1024


@dataclass(frozen=True, slots=True)
class CompressionCodec:
    """A compression format.

    Attributes:
        magic_length: Number of bytes that `make_decoder` receives.
        make_decoder: Returns a decoder for a member, or None if the bytes are not of this format.
            Decoders have the standard library's interface: `decompress`, `eof`, `needs_input`,
            `unused_data`.
        errors: Errors of `decompress`.
        allows_zero_padding: Zero bytes may follow each member.
    """

    name: str
    magic_length: int
    make_decoder: Callable[[bytes], Any]
    errors: tuple[type[Exception], ...]
    allows_zero_padding: bool = False


class Decompressor:
    """A decompression filter. The output of an empty input is empty."""

    # True because decoders release the interpreter lock, so prefetching runs them in parallel.
    overlaps = True

    def __init__(self, codec: CompressionCodec, max_output: int | None = None) -> None:
        check_max_output(codec.name, max_output)
        self._codec = codec
        self._max_output = max_output

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the decompressed bytes in slices of up to 1 MiB.

        Raises:
            PhaseFailed: If the input is not in this format, truncated or corrupt, if other data
                follows, or if the output exceeds `max_output`.
        """
        pieces = self._decompress_members(_CompressedInput(reader))
        yield from limit_output(pieces, self._codec.name, self._max_output)

    def _decompress_members(self, source: _CompressedInput) -> Iterator[bytes]:
        while True:
            if self._codec.allows_zero_padding and source.offset:
                source.skip_zeros()
            head = source.peek(self._codec.magic_length)
            if not head:
                return
            decoder = self._codec.make_decoder(head)
            if decoder is None:
                name, offset, shown = self._codec.name, source.offset, source.peek(8).hex(" ")
                reason = f"{name} data ends at byte {offset}, but other data follows ({shown})"
                if not offset:
                    reason = f"not {name} data: it starts with {shown}"
                raise PhaseFailed(reason=reason, offset=offset)
            yield from self._decompress_member(source, decoder)

    def _decompress_member(self, source: _CompressedInput, decoder: Any) -> Iterator[bytes]:
        start, step = source.offset, _MAX_STEP_BYTES
        while not decoder.eof:
            before = source.offset
            data = source.read_some(step) if decoder.needs_input else b""
            if decoder.needs_input and not data:
                reason = f"the {self._codec.name} data from byte {start} is truncated: the input ends at byte {before}"
                raise PhaseFailed(reason=reason, offset=before)
            try:
                output = decoder.decompress(data, SLICE_BYTES)
            except self._codec.errors as error:
                reason = f"the {self._codec.name} data from byte {start} is corrupt before byte {source.offset}: {error}"
                raise PhaseFailed(reason=reason, offset=before) from error
            if output:
                yield output
        # After a small member, smaller reads save time: each member copies the unused rest of its
        # read.
        source.unread(len(decoder.unused_data or b""), source.offset - start)


def limit_output(slices: Iterator[bytes], name: str, max_bytes: int | None) -> Iterator[bytes]:
    """Yield slices. Raise PhaseFailed after more than `max_bytes` bytes. None: no limit."""
    total = 0
    for piece in slices:
        total += len(piece)
        if max_bytes is not None and total > max_bytes:
            reason = f"the {name} data exceeds max_output of {max_bytes:,} bytes"
            raise PhaseFailed(reason=reason)
        yield piece


class _CompressedInput:
    """A reader of compressed bytes that can unread the end of its last read."""

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        self._slice = memoryview(b"")
        self._position = 0
        self._step = _MAX_STEP_BYTES
        self.offset = 0

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the end."""
        while len(self._slice) - self._position < size:
            more = self._reader.read()
            if not more:
                break
            self._slice = memoryview(bytes(self._slice[self._position :]) + more)
            self._position = 0
        return bytes(self._slice[self._position : self._position + size])

    def read_some(self, size: int) -> memoryview:
        """Return at most `size` bytes; none at the end."""
        if self._position == len(self._slice):
            self._slice, self._position = memoryview(self._reader.read()), 0
        taken = self._slice[self._position : self._position + min(size, self._step)]
        self._step = min(self._step * 2, _MAX_STEP_BYTES)
        self._position += len(taken)
        self.offset += len(taken)
        return taken

    def unread(self, size: int, bytes_read: int) -> None:
        """Unread the last `size` of `bytes_read` bytes. The used part sets the next read size."""
        self._position -= size
        self.offset -= size
        self._step = min(max(2 * (bytes_read - size), _MIN_STEP_BYTES), _MAX_STEP_BYTES)

    def skip_zeros(self) -> None:
        """Skip to the next nonzero byte."""
        while data := self.read_some(_MIN_STEP_BYTES):
            rest = len(bytes(data).lstrip(b"\0"))
            if rest:
                self._position -= rest
                self.offset -= rest
                return


# `xz -9` needs 65 MiB. Files that need more than this limit fail.
_XZ_MEMORY_LIMIT_BYTES = 128 * 1024 * 1024
_XZ_MAGIC = b"\xfd7zXZ\x00"
_LZMA_MAGIC = b"\x5d\x00\x00"
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_SKIPPABLE = b"\x2a\x4d\x18"

# The package's type stub declares this exception incorrectly.
_ISAL_ERROR = cast("type[Exception]", igzip_lib.IsalError)

MAX_OUTPUT_PARAMETER = PhaseParameter("max_output", int)


def _make_gzip_decoder(head: bytes) -> Any:
    if head == b"\x1f\x8b":
        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    # zlib: method 8, and the header is a multiple of 31. Vertica's filter reads gzip and zlib.
    if len(head) == 2 and head[0] & 15 == 8 and int.from_bytes(head, "big") % 31 == 0:
        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_ZLIB)
    return None


def _make_bzip_decoder(head: bytes) -> Any:
    return bz2.BZ2Decompressor() if head == b"BZh" else None


def _make_xz_decoder(head: bytes) -> Any:
    if head != _XZ_MAGIC and not head.startswith(_LZMA_MAGIC):
        return None
    return lzma.LZMADecompressor(memlimit=_XZ_MEMORY_LIMIT_BYTES)


def _make_lz4_decoder(head: bytes) -> Any:
    skippable = head[1:] == _LZ4_SKIPPABLE and 0x50 <= head[0] <= 0x5F
    return lz4.frame.LZ4FrameDecompressor() if head == _LZ4_MAGIC or skippable else None


def check_max_output(filter_name: str, max_output: int | None) -> None:
    """Raise LoadRefused if `max_output` is below 1 byte."""
    if max_output is not None and max_output < 1:
        raise LoadRefused(
            what=filter_name, reason=f"max_output must be 1 byte or more, got {max_output}"
        )


def _define(name: str, codec: CompressionCodec) -> PhaseDefinition[Decompressor]:
    return PhaseDefinition(name, functools.partial(Decompressor, codec), (MAX_OUTPUT_PARAMETER,))


GZIP = _define(
    "GZip",
    CompressionCodec("gzip", 2, _make_gzip_decoder, (_ISAL_ERROR,), allows_zero_padding=True),
)
BZIP = _define("BZip", CompressionCodec("bzip2", 3, _make_bzip_decoder, (OSError, ValueError)))
XZ = _define(
    "Xz",
    CompressionCodec("xz", 6, _make_xz_decoder, (lzma.LZMAError,), allows_zero_padding=True),
)
LZ4 = _define("Lz4", CompressionCodec("lz4", 4, _make_lz4_decoder, (RuntimeError,)))
