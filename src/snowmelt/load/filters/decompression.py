"""Decompression with bounded output: members that follow one another, and where one is broken."""

from __future__ import annotations

import bz2
import functools
import lzma
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import lz4.frame
from isal import igzip_lib

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.definition import Definition, Parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from snowmelt.load.phases import Reader

# Output stays in the processor's cache; on well compressed data that doubles the speed.
PIECE = 1024 * 1024
_LARGEST_STEP = 256 * 1024
_SMALLEST_STEP = 4 * 1024


class Decoder(Protocol):
    """Decompresses one member; the standard library's decompressors are of this kind."""

    @property
    def eof(self) -> bool:
        """Whether the member has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing more comes of what was given."""

    @property
    def unused_data(self) -> bytes | None:
        """What was given and lies behind the member."""

    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes:
        """Return up to `max_length` bytes; what of `data` did not fit is kept."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A format: `begin` makes a decoder for a member by its first `magic` bytes, None if alien.

    `padded` tells that zero bytes may stand between members and behind the last.
    """

    name: str
    magic: int
    begin: Callable[[bytes], Decoder | None]
    errors: tuple[type[Exception], ...]
    padded: bool = False


class Decompressor:
    """A filter that undoes one format; an empty input is an empty output."""

    # It works without the interpreter's lock, and so beside what reads its output.
    overlaps = True

    def __init__(self, codec: Codec, max_output: int | None) -> None:
        self._codec = codec
        self._limit = OutputLimit(codec.name, max_output)

    def run(self, reader: Reader) -> Iterator[bytes]:
        """Yield what was compressed, in pieces of up to 1 MiB.

        Raises:
            PhaseFailed: Not of this format, truncated, damaged, something else behind it, or
                more output than allowed; with the offset in the compressed bytes.
        """
        yield from self._limit.watch(self._members(_Window(reader)))

    def _members(self, window: _Window) -> Iterator[bytes]:
        while True:
            if self._codec.padded and window.offset:
                window.skip_zeros()
            head = window.peek(self._codec.magic)
            if not head:
                return
            decoder = self._codec.begin(head)
            if decoder is None:
                raise self._alien(window)
            yield from self._member(window, decoder)

    def _member(self, window: _Window, decoder: Decoder) -> Iterator[bytes]:
        start, step = window.offset, _LARGEST_STEP
        while not decoder.eof:
            before = window.offset
            data = window.take(step) if decoder.needs_input else b""
            if decoder.needs_input and not data:
                reason = f"the {self._codec.name} data that begins at byte {start} is cut off: the input ends at byte {before}"
                raise PhaseFailed(reason=reason, offset=before)
            try:
                output = decoder.decompress(data, PIECE)
            except self._codec.errors as error:
                reason = f"the {self._codec.name} data that begins at byte {start} is damaged before byte {window.offset}: {error}"
                raise PhaseFailed(reason=reason, offset=before) from error
            if output:
                yield output
        # Members much smaller than a step would be copied again and again with what follows.
        window.give_back(len(decoder.unused_data or b""), window.offset - start)

    def _alien(self, window: _Window) -> PhaseFailed:
        name, offset = self._codec.name, window.offset
        shown = window.peek(8).hex(" ")
        if offset:
            reason = f"{name} data ends at byte {offset}, and something else follows ({shown})"
        else:
            reason = f"this is not {name} data: it begins with {shown}"
        return PhaseFailed(reason=reason, offset=offset)


class OutputLimit:
    """Refuses more output than allowed, so that a small file does not fill every disk."""

    def __init__(self, name: str, most: int | None) -> None:
        self._name = name
        self._most = most

    def watch(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Hand the pieces on.

        Raises:
            PhaseFailed: They are more bytes than allowed.
        """
        if self._most is None:
            yield from pieces
            return
        left = self._most
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                reason = f"the {self._name} data holds more than max_output, {self._most:,} bytes"
                raise PhaseFailed(reason=reason)
            yield piece


class _Window:
    """The compressed bytes, with a place in them that can go back a little."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._piece = memoryview(b"")
        self._at = 0
        self._step = _LARGEST_STEP
        self.offset = 0

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end."""
        while len(self._piece) - self._at < size:
            more = self._reader.read()
            if not more:
                break
            self._piece = memoryview(bytes(self._piece[self._at :]) + more)
            self._at = 0
        return bytes(self._piece[self._at : self._at + size])

    def take(self, size: int) -> memoryview:
        """Return some bytes, at most `size`; none at the end."""
        if self._at == len(self._piece):
            self._piece, self._at = memoryview(self._reader.read()), 0
        taken = self._piece[self._at : self._at + min(size, self._step)]
        self._step = min(self._step * 2, _LARGEST_STEP)
        self._at += len(taken)
        self.offset += len(taken)
        return taken

    def give_back(self, size: int, taken: int) -> None:
        """Go back `size` of the `taken` bytes; the next steps are like what was used of them."""
        self._at -= size
        self.offset -= size
        self._step = min(max(2 * (taken - size), _SMALLEST_STEP), _LARGEST_STEP)

    def skip_zeros(self) -> None:
        """Go on to the next byte that is not zero."""
        while data := self.take(_SMALLEST_STEP):
            rest = len(bytes(data).lstrip(b"\0"))
            if rest:
                self._at -= rest
                self.offset -= rest
                return


# --- GZip, BZip, Xz and Lz4: a member is decompressed as its header says, with checked sums.

# What `xz -9` needs is 65 MiB; a file that wants more is not read.
_XZ_MEMORY = 128 * 1024 * 1024
_XZ_MAGIC = b"\xfd7zXZ\x00"
_LZMA_MAGIC = b"\x5d\x00\x00"
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_SKIPPABLE = b"\x2a\x4d\x18"

# Its package says that it is an error, and means that it is a class of errors.
_ISAL_ERROR = cast("type[Exception]", igzip_lib.IsalError)

MAX_OUTPUT = Parameter("max_output", int)


def _gzip(head: bytes) -> Decoder | None:
    if head == b"\x1f\x8b":
        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    # Zlib: method 8 and a check sum of its two bytes. Vertica's filter takes both.
    if len(head) == 2 and head[0] & 15 == 8 and int.from_bytes(head, "big") % 31 == 0:
        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_ZLIB)
    return None


def _bzip(head: bytes) -> Decoder | None:
    return bz2.BZ2Decompressor() if head == b"BZh" else None


def _xz(head: bytes) -> Decoder | None:
    if head != _XZ_MAGIC and not head.startswith(_LZMA_MAGIC):
        return None
    return lzma.LZMADecompressor(memlimit=_XZ_MEMORY)


def _lz4(head: bytes) -> Decoder | None:
    skippable = head[1:] == _LZ4_SKIPPABLE and 0x50 <= head[0] <= 0x5F
    return lz4.frame.LZ4FrameDecompressor() if head == _LZ4_MAGIC or skippable else None


_GZIP = Codec("gzip", 2, _gzip, (_ISAL_ERROR,), padded=True)
_BZIP = Codec("bzip2", 3, _bzip, (OSError, ValueError))
_XZ = Codec("xz", 6, _xz, (lzma.LZMAError,), padded=True)
_LZ4 = Codec("lz4", 4, _lz4, (RuntimeError,))


def _make(codec: Codec, max_output: int | None = None) -> Decompressor:
    check_max_output(codec.name, max_output)
    return Decompressor(codec, max_output)


def check_max_output(what: str, max_output: int | None) -> None:
    """Check the limit of a decompressor's output, in bytes.

    Raises:
        LoadRefused: It is below 1.
    """
    if max_output is not None and max_output < 1:
        raise LoadRefused(what=what, reason=f"max_output is bytes, 1 or more, not {max_output}")


GZIP = Definition("GZip", functools.partial(_make, _GZIP), (MAX_OUTPUT,))
BZIP = Definition("BZip", functools.partial(_make, _BZIP), (MAX_OUTPUT,))
XZ = Definition("Xz", functools.partial(_make, _XZ), (MAX_OUTPUT,))
LZ4 = Definition("Lz4", functools.partial(_make, _LZ4), (MAX_OUTPUT,))
