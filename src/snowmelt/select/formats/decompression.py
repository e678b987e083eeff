"""An object's text as one stream of bytes: as it lies there, or inflated in a thread of its own.

The thread keeps a few pieces ahead, so that inflating and parsing overlap.
"""

from __future__ import annotations

import bz2
import functools
import queue
import threading
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from snowmelt.select.errors import SelectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _New: TypeAlias = Callable[[], "_Decompressor"]

COMPRESSIONS = frozenset({"NONE", "GZIP", "BZIP2", "ZSTD"})
_PIECE = 256 * 1024
_PIECES_AHEAD = 4
_MAGIC = {"GZIP": b"\x1f\x8b", "BZIP2": b"BZh", "ZSTD": b"\x28\xb5\x2f\xfd"}


class ObjectSource(Protocol):
    """One object, the same from its first to its last byte; a pipe has size -1."""

    @property
    def size(self) -> int:
        """Bytes in the object; -1 if that is not known, then it is read once, in order."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill the front of `view` from an offset; return how much, 0 behind the last byte."""

    def close(self) -> None:
        """Let go of the object. Idempotent."""


class ManyReaders:
    """Marks a source whose `read_into` several threads may call at once, at any offsets."""


class ByteStream(Protocol):
    """Text that is read once, from front to back."""

    @property
    def scanned(self) -> int:
        """Bytes taken from the object so far, compressed ones if it is compressed."""

    @property
    def processed(self) -> int:
        """Bytes of text read so far."""

    def read_into(self, view: memoryview) -> int:
        """Fill the front of `view`; return how many bytes, 0 only at the end."""

    def close(self) -> None:
        """Stop. Idempotent; the source stays open."""


class _Decompressor(Protocol):
    eof: bool
    needs_input: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


def open_stream(source: ObjectSource, compression: str = "NONE", *, at: int = 0) -> ByteStream:
    """Open the text of an object; `at` is the offset to begin at, of uncompressed ones only.

    Raises:
        SelectError: InvalidCompressionFormat, if the object does not begin as such a file does,
            or TruncatedInput if it is empty. Reading raises TruncatedInput where it breaks off
            or is damaged.
    """
    if compression == "NONE":
        return PlainStream(source, at)
    if compression not in COMPRESSIONS or at:
        raise SelectError(
            "InvalidCompressionFormat", f"{compression} is none of GZIP, BZIP2, ZSTD and NONE."
        )
    return InflatedStream(source, compression)


class PlainStream:
    """The bytes of an object as they are."""

    def __init__(self, source: ObjectSource, at: int = 0) -> None:
        self._scanned = 0
        self.source = source
        self._at = at

    @property
    def scanned(self) -> int:
        """Bytes read so far."""
        return self._scanned

    @property
    def processed(self) -> int:
        """Bytes read so far."""
        return self._scanned

    def read_into(self, view: memoryview) -> int:
        """Read on from where the last call ended."""
        count = self.source.read_into(self._at, view)
        self._at += count
        self._scanned += count
        return count

    def move_to(self, at: int) -> None:
        """Read on from an offset; what lies before it is told as read, others read it."""
        self._scanned += at - self._at
        self._at = at

    def close(self) -> None:
        """Do nothing: the source belongs to the caller."""


class InflatedStream:
    """The text of a compressed object; concatenated members are one text."""

    def __init__(self, source: ObjectSource, compression: str) -> None:
        self._processed = 0
        self._input = _Input(source, compression)
        pieces = _zstd_pieces if compression == "ZSTD" else _member_pieces
        self._pieces = pieces(self._input)
        self._ahead: queue.Queue[bytes | BaseException] = queue.Queue(_PIECES_AHEAD)
        self._piece = memoryview(b"")
        self._stopped = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._inflate, name="inflate", daemon=True)
        self._thread.start()

    @property
    def scanned(self) -> int:
        """Compressed bytes taken from the object so far."""
        return self._input.at

    @property
    def processed(self) -> int:
        """Bytes of text read so far."""
        return self._processed

    def read_into(self, view: memoryview) -> int:
        """Copy what is inflated.

        Raises:
            SelectError: TruncatedInput where the object breaks off or is damaged.
        """
        if not self._piece:
            if self._over:
                return 0
            piece = self._ahead.get()
            if isinstance(piece, BaseException):
                self._over = True
                raise piece
            self._over = not piece
            self._piece = memoryview(piece)
        count = min(len(view), len(self._piece))
        view[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        self._processed += count
        return count

    def close(self) -> None:
        """End the thread and wait for it: it uses the source."""
        self._stopped.set()
        self._over = True
        self._piece = memoryview(b"")
        while self._thread.is_alive():
            try:
                self._ahead.get(timeout=0.01)
            except queue.Empty:
                continue
        self._thread.join()

    def _inflate(self) -> None:
        try:
            for piece in self._pieces:
                if self._stopped.is_set():
                    return
                if piece:
                    self._ahead.put(piece)
            self._ahead.put(b"")
        except BaseException as error:  # noqa: BLE001 - raised again where the text is read
            self._ahead.put(error)


class _Input:
    """Compressed bytes, a piece at a time; also the file that Arrow reads from."""

    closed = False

    def __init__(self, source: ObjectSource, compression: str) -> None:
        self.at = 0
        self.compression = compression
        self._source = source
        self._buffer = bytearray(_PIECE)
        self._front = self._piece(len(_MAGIC[compression]))
        if not self._front:
            raise self.broken("it is empty")
        if not _MAGIC[compression].startswith(self._front):
            raise SelectError(
                "InvalidCompressionFormat",
                f"{source.name} is not in the compression format {compression}: it begins with "
                f"the bytes {self._front.hex(' ')}.",
            )

    def read(self, size: int = _PIECE) -> bytes:
        """Return at most `size` bytes more, none at the end of the object."""
        front, self._front = self._front, b""
        return front or self._piece(min(size, _PIECE))

    def broken(self, reason: str) -> SelectError:
        """Return the error of an object that cannot be inflated."""
        return SelectError(
            "TruncatedInput",
            f"{self._source.name} could not be decompressed ({self.compression}) near byte "
            f"{self.at}: {reason}.",
        )

    def close(self) -> None:
        """Do nothing: the source belongs to the caller."""

    def _piece(self, size: int) -> bytes:
        """Read exactly `size` bytes, or up to the end."""
        held = 0
        with memoryview(self._buffer) as view:
            while held < size:
                count = self._source.read_into(self.at, view[held:size])
                if not count:
                    break
                held += count
                self.at += count
            return bytes(view[:held])


def _member_pieces(source: _Input) -> Iterator[bytes]:
    """Inflate GZIP or BZIP2: one member, or several one after the other."""
    new, failures = _decompressors(source.compression)
    magic = _MAGIC[source.compression]
    data = source.read()
    while data:
        member = new()
        while not member.eof:
            if member.needs_input and not data and not (data := source.read()):
                raise source.broken("it ends before its compressed data do")
            try:
                yield member.decompress(data, _PIECE)
            except failures as error:
                raise source.broken(f"its compressed data are damaged ({error})") from error
            data = b""
        data = member.unused_data
        # Files on tape are filled up with zeros.
        while not data.strip(b"\0") and (more := source.read()):
            data = more
        data = data.lstrip(b"\0")
        while data and len(data) < len(magic) and (more := source.read()):
            data += more
        if data and not data.startswith(magic):
            raise source.broken("what follows the compressed data is something else")


def _decompressors(
    compression: str,
) -> tuple[_New, tuple[type[Exception], ...]]:
    """Return what makes a decompressor of one member, and what it raises for damaged data."""
    if compression == "BZIP2":
        return cast("_New", bz2.BZ2Decompressor), (OSError, ValueError)
    from isal import igzip_lib

    new = functools.partial(igzip_lib.IgzipDecompressor, flag=igzip_lib.DECOMP_GZIP)
    failure = cast("type[Exception]", igzip_lib.IsalError)
    return cast("_New", new), (failure, OSError, ValueError)


def _zstd_pieces(source: _Input) -> Iterator[bytes]:
    """Inflate ZSTD frames."""
    import pyarrow as pa

    try:
        stream = pa.CompressedInputStream(pa.PythonFile(source, mode="r"), "zstd")
        while piece := stream.read(_PIECE):
            yield piece
    except OSError as error:
        raise source.broken(str(error)) from error
