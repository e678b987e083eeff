"""Object sources and byte streams: uncompressed, or decompressed in a background thread.

The thread decompresses up to four segments ahead, in parallel with parsing.
"""

from __future__ import annotations

import bz2
import functools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from snowmelt.select.errors import SelectError

if TYPE_CHECKING:
    _New: TypeAlias = Callable[[], "_Decompressor"]

COMPRESSIONS = frozenset({"NONE", "GZIP", "BZIP2", "ZSTD"})
_SEGMENT_BYTES = 256 * 1024
_MAX_QUEUED_SEGMENTS = 4
_MAGIC_BYTES = {"GZIP": b"\x1f\x8b", "BZIP2": b"BZh", "ZSTD": b"\x28\xb5\x2f\xfd"}


class ObjectSource(Protocol):
    """Readable object whose bytes must not change during the query. A pipe has size -1."""

    @property
    def size(self) -> int:
        """Size of the object in bytes, or -1 if unknown. An object of unknown size is read once, in order."""

    @property
    def name(self) -> str:
        """Name of the object in messages."""

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read from `offset` into the start of `view`. Return the byte count, 0 at the object's end."""

    def close(self) -> None:
        """Close the object. Idempotent."""


class ConcurrentSource:
    """Base class of sources whose `read_into` supports concurrent calls at any offsets."""


class ByteStream(Protocol):
    """Decompressed text of an object, read once in order."""

    @property
    def scanned_bytes(self) -> int:
        """Bytes read from the object, compressed if it is compressed."""

    @property
    def processed_bytes(self) -> int:
        """Bytes of decompressed text read."""

    def read_into(self, view: memoryview) -> int:
        """Read into the start of `view` and return the byte count, 0 only at the end."""

    def close(self) -> None:
        """Stop reading. Idempotent. Does not close the source."""


class _Decompressor(Protocol):
    eof: bool
    needs_input: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


def open_decompressed_stream(
    source: ObjectSource, compression: str = "NONE", *, offset: int = 0
) -> ByteStream:
    """Open the decompressed text of an object.

    `offset` is the start offset, which must be 0 for compressed objects. Reading raises TruncatedInput
    if the object is truncated or damaged.

    Raises:
        SelectError: If the object does not start with the magic bytes of the compression
            (InvalidCompressionFormat), or is empty (TruncatedInput).
    """
    if compression == "NONE":
        return UncompressedStream(source, offset)
    if compression not in COMPRESSIONS or offset:
        raise SelectError(
            "InvalidCompressionFormat",
            f"Invalid CompressionType {compression}. Expected GZIP, BZIP2, ZSTD or NONE.",
        )
    return DecompressedStream(source, compression)


class UncompressedStream:
    """Bytes of an uncompressed object."""

    def __init__(self, source: ObjectSource, offset: int = 0) -> None:
        self._scanned_bytes = 0
        self.source = source
        self._offset = offset

    @property
    def scanned_bytes(self) -> int:
        """Bytes read."""
        return self._scanned_bytes

    @property
    def processed_bytes(self) -> int:
        """Bytes read."""
        return self._scanned_bytes

    def read_into(self, view: memoryview) -> int:
        """Read from the current position."""
        count = self.source.read_into(self._offset, view)
        self._offset += count
        self._scanned_bytes += count
        return count

    def skip_to(self, offset: int) -> None:
        """Continue reading at `offset`. Skipped bytes count as read, because workers read them."""
        self._scanned_bytes += offset - self._offset
        self._offset = offset

    def close(self) -> None:
        """Do nothing: the caller owns the source."""


class DecompressedStream:
    """Decompressed text of an object. Concatenated members are read as one text."""

    def __init__(self, source: ObjectSource, compression: str) -> None:
        self._processed_bytes = 0
        self._input = _CompressedInput(source, compression)
        pieces = _decompress_zstd if compression == "ZSTD" else _decompress_members
        self._segments = pieces(self._input)
        self._segment_queue: queue.Queue[bytes | BaseException] = queue.Queue(_MAX_QUEUED_SEGMENTS)
        self._current_segment = memoryview(b"")
        self._stopped = threading.Event()
        self._is_exhausted = False
        self._thread = threading.Thread(target=self._run_decompressor, name="inflate", daemon=True)
        self._thread.start()

    @property
    def scanned_bytes(self) -> int:
        """Compressed bytes read from the object."""
        return self._input.offset

    @property
    def processed_bytes(self) -> int:
        """Bytes of decompressed text read."""
        return self._processed_bytes

    def read_into(self, view: memoryview) -> int:
        """Copy decompressed bytes into the start of `view` and return their count, 0 at the end.

        Raises:
            SelectError: If the object is truncated or damaged (TruncatedInput).
        """
        if not self._current_segment:
            if self._is_exhausted:
                return 0
            piece = self._segment_queue.get()
            if isinstance(piece, BaseException):
                self._is_exhausted = True
                raise piece
            self._is_exhausted = not piece
            self._current_segment = memoryview(piece)
        count = min(len(view), len(self._current_segment))
        view[:count] = self._current_segment[:count]
        self._current_segment = self._current_segment[count:]
        self._processed_bytes += count
        return count

    def close(self) -> None:
        """Stop the thread and wait for it, because it uses the source."""
        self._stopped.set()
        self._is_exhausted = True
        self._current_segment = memoryview(b"")
        while self._thread.is_alive():
            try:
                self._segment_queue.get(timeout=0.01)
            except queue.Empty:
                continue
        self._thread.join()

    def _run_decompressor(self) -> None:
        try:
            for piece in self._segments:
                if self._stopped.is_set():
                    return
                if piece:
                    self._segment_queue.put(piece)
            self._segment_queue.put(b"")
        except BaseException as error:  # noqa: BLE001 - raised again by read_into
            self._segment_queue.put(error)


class _CompressedInput:
    """Segmented reader of compressed bytes. Arrow can use it as a file."""

    closed = False

    def __init__(self, source: ObjectSource, compression: str) -> None:
        self.offset = 0
        self.compression = compression
        self._source = source
        self._buffer = bytearray(_SEGMENT_BYTES)
        self._unread_magic = self._read_exactly(len(_MAGIC_BYTES[compression]))
        if not self._unread_magic:
            raise self.corrupt_data_error("it is empty")
        if not _MAGIC_BYTES[compression].startswith(self._unread_magic):
            raise SelectError(
                "InvalidCompressionFormat",
                f"{source.name} is not in the compression format {compression}: it begins with "
                f"the bytes {self._unread_magic.hex(' ')}.",
            )

    def read(self, size: int = _SEGMENT_BYTES) -> bytes:
        """Return up to `size` bytes, or none at the end of the object."""
        front, self._unread_magic = self._unread_magic, b""
        return front or self._read_exactly(min(size, _SEGMENT_BYTES))

    def corrupt_data_error(self, reason: str) -> SelectError:
        """Return the error for an object that cannot be decompressed."""
        return SelectError(
            "TruncatedInput",
            f"{self._source.name} could not be decompressed ({self.compression}) near byte "
            f"{self.offset}: {reason}.",
        )

    def close(self) -> None:
        """Do nothing: the caller owns the source."""

    def _read_exactly(self, size: int) -> bytes:
        """Read `size` bytes, or fewer at the end of the object."""
        held = 0
        with memoryview(self._buffer) as view:
            while held < size:
                count = self._source.read_into(self.offset, view[held:size])
                if not count:
                    break
                held += count
                self.offset += count
            return bytes(view[:held])


def _decompress_members(source: _CompressedInput) -> Iterator[bytes]:
    """Decompress GZIP or BZIP2 data of one or more concatenated members."""
    new, failures = _get_decompressor_factory(source.compression)
    magic = _MAGIC_BYTES[source.compression]
    data = source.read()
    while data:
        member = new()
        while not member.eof:
            if member.needs_input and not data and not (data := source.read()):
                raise source.corrupt_data_error("it ends within its compressed data")
            try:
                yield member.decompress(data, _SEGMENT_BYTES)
            except failures as error:
                raise source.corrupt_data_error(
                    f"its compressed data is damaged ({error})"
                ) from error
            data = b""
        data = member.unused_data
        # gzip files from tapes may have zero bytes as padding after a member.
        while not data.strip(b"\0") and (more := source.read()):
            data = more
        data = data.lstrip(b"\0")
        while data and len(data) < len(magic) and (more := source.read()):
            data += more
        if data and not data.startswith(magic):
            raise source.corrupt_data_error("other data follows its compressed data")


def _get_decompressor_factory(
    compression: str,
) -> tuple[_New, tuple[type[Exception], ...]]:
    """Return a factory of member decompressors, and the exceptions they raise for damaged data."""
    if compression == "BZIP2":
        return cast("_New", bz2.BZ2Decompressor), (OSError, ValueError)
    from isal import igzip_lib

    new = functools.partial(igzip_lib.IgzipDecompressor, flag=igzip_lib.DECOMP_GZIP)
    failure = cast("type[Exception]", igzip_lib.IsalError)
    return cast("_New", new), (failure, OSError, ValueError)


def _decompress_zstd(source: _CompressedInput) -> Iterator[bytes]:
    import pyarrow as pa

    try:
        stream = pa.CompressedInputStream(pa.PythonFile(source, mode="r"), "zstd")
        while piece := stream.read(_SEGMENT_BYTES):
            yield piece
    except OSError as error:
        raise source.corrupt_data_error(str(error)) from error
