"""Input and output buffers of user code, and the rows and rejected records of parsers.

Methods in camel case are from the SDK for Python. `buf`, `size` and `offset` are from the
SDKs for other languages. Names in snake case are for the host only.
"""

from __future__ import annotations

import codecs
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from snowmelt.load.udx.vertica_sdk.bases import InputState
from snowmelt.load.udx.vertica_sdk.types import SizedColumnTypes

if TYPE_CHECKING:
    from numpy.typing import NDArray

BufferData: TypeAlias = bytes | str

_INITIAL_BUFFER_BYTES = 1024 * 1024
_INITIAL_LENGTH_ENTRIES = 4096
_LENGTH_BYTES = 4
_MAX_PENDING_ROWS = 65_536


class BufferMisused(Exception):
    """User code violated a rule of a buffer."""


class InputUndecodable(Exception):
    """The stream is not in the requested encoding. `offset` is the invalid byte."""

    def __init__(self, offset: int, encoding: str, reason: str) -> None:
        super().__init__(f"byte {offset} of its input is not {encoding}: {reason}")
        self.offset = offset


class InputBuffer:
    """The input of a phase. New input follows unread input.

    The buffer has bytes, or after `setEncoding` decoded text. Lengths and offsets of text count
    characters.
    """

    def __init__(self, inputstate: InputState = InputState.OK) -> None:
        self.state = inputstate
        self._window: BufferData = b""
        self._offset = 0
        self._dropped = 0
        self._encoding: str | None = None
        self._decoder: codecs.IncrementalDecoder | None = None
        self._decoded_bytes = 0

    def setEncoding(self, encoding: str | None) -> None:
        """Decode the stream. Call it before reading; a stream has one encoding.

        Raises:
            BufferMisused: If something was read already, or another encoding is set.
            InputUndecodable: If the buffered bytes are not in this encoding.
        """
        if encoding == self._encoding:
            return
        if self._encoding is not None or self.consumed:
            raise BufferMisused(
                "setEncoding() was called after the first read, or with a second encoding. Call it once,"
                " before the first read"
            )
        self._decoder = codecs.getincrementaldecoder(str(encoding))()
        self._encoding = encoding
        raw, self._window = self._window, ""
        if isinstance(raw, bytes):
            self.append(raw, last=self.state is InputState.END_OF_FILE)

    def read(self, length: int | None = None) -> BufferData:
        """Return the unread input, at most `length`, and advance the offset."""
        if length is not None and length < 0:
            raise BufferMisused(f"read({length}) would move the input's offset backwards")
        data = self.peek(length)
        self._offset += len(data)
        return data

    def peek(self, length: int | None = None) -> BufferData:
        """Return the unread input, at most `length`, without reading it."""
        start = self._offset
        if length is None:
            return self._window[start:] if start else self._window
        return self._window[start : start + max(length, 0)]

    def advance(self, length: int | None = None) -> int:
        """Advance the offset by `length`, or to the end; return the new offset."""
        if length is not None and length < 0:
            raise BufferMisused(f"advance({length}) would move the input's offset backwards")
        whole = len(self._window)
        self._offset = whole if length is None else min(self._offset + length, whole)
        return self._offset

    def getOffset(self) -> int:
        return self._offset

    def getSize(self) -> int:
        return len(self._window)

    @property
    def buf(self) -> memoryview | str:
        return memoryview(self._window) if isinstance(self._window, bytes) else self._window

    @property
    def size(self) -> int:
        return len(self._window)

    @property
    def offset(self) -> int:
        """The read position in the buffer. It can only be set forwards."""
        return self._offset

    @offset.setter
    def offset(self, value: int) -> None:
        if not self._offset <= value <= len(self._window):
            raise BufferMisused(
                f"the input's offset was set from {self._offset} to {value} "
                f"in a buffer of {len(self._window)}"
            )
        self._offset = value

    @property
    def consumed(self) -> int:
        """Amount of the stream read so far."""
        return self._dropped + self._offset

    @property
    def remaining(self) -> int:
        """Amount of unread input."""
        return len(self._window) - self._offset

    def append(self, data: bytes, *, last: bool) -> None:
        """Drop the read input and append `data`.

        Raises:
            InputUndecodable: If `data` is not in the encoding.
        """
        more: BufferData = data if self._decoder is None else self._decode(data, last=last)
        left = self._window[self._offset :] if self._offset else self._window
        self._dropped += self._offset
        self._offset = 0
        # Both have one type, because `setEncoding` precedes reading.
        self._window = left + more if left else more  # type: ignore[operator]

    def find_read_data_offset(self, data: object, since_offset: int) -> int:
        """Return the stream offset of `data`, if it was read last, or else `since_offset`.

        Searches only the data read after `since_offset`. With an encoding, offsets count
        characters.
        """
        start = since_offset - self._dropped
        if not data or not isinstance(data, type(self._window)) or start < 0:
            return since_offset
        place = self._window.rfind(data, start, self._offset)  # type: ignore[arg-type]
        return since_offset if place < 0 else self._dropped + place

    def _decode(self, data: bytes, *, last: bool) -> BufferData:
        assert self._decoder is not None  # noqa: S101 - for the type checker
        held = len(self._decoder.getstate()[0])
        try:
            decoded: BufferData = self._decoder.decode(data, last)
        except UnicodeDecodeError as error:
            offset = self._decoded_bytes - held + error.start
            raise InputUndecodable(offset, error.encoding, error.reason) from error
        self._decoded_bytes += len(data)
        return decoded


class OutputBuffer:
    """The output of a phase, by `write`, or through `buf` and `offset`.

    `write` is limited only per call. `buf` has space for `size` bytes. After OUTPUT_NEEDED the
    space is empty again; if the call neither read nor wrote, it is also doubled.
    """

    def __init__(self, limit: int = 1 << 30) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._pending = 0
        self._encoder: codecs.IncrementalEncoder | None = None
        self._encoding: str | None = None
        self._space: bytearray | None = None
        self._size = self._smallest = min(_INITIAL_BUFFER_BYTES, limit)
        self._taken = 0
        self._offset = 0
        self._closed = False
        self._warned = False
        self._handed = 0

    def setEncoding(self, encoding: str | None) -> None:
        """Encode strings passed to `write`. A stream has one encoding."""
        if encoding == self._encoding:
            return
        if self._encoding is not None:
            raise BufferMisused("the output's encoding was changed within the stream")
        self._encoding = encoding
        self._encoder = codecs.getincrementalencoder(str(encoding))()

    def write(self, data: bytes | bytearray | memoryview | str) -> bytes | str:
        """Write all of `data`. Return the part that did not fit, which is always empty."""
        piece = data if type(data) is bytes else self._encode_data(data)
        if self._offset > self._taken:
            self._collect_written_space()
        self._pieces.append(piece)
        self._pending += len(piece)
        if self._pending > self._limit:
            self._raise_misuse()
        return b"" if type(data) is bytes else data[:0]  # type: ignore[return-value]

    @property
    def buf(self) -> memoryview:
        """Output space of `size` bytes. The first `offset` bytes are written."""
        if self._space is None:
            self._space = bytearray(self._size)
        return memoryview(self._space)

    @property
    def size(self) -> int:
        return self._size

    @property
    def offset(self) -> int:
        """Number of bytes written to `buf`. It can only be set forwards."""
        return self._offset

    @offset.setter
    def offset(self, value: int) -> None:
        if self._closed:
            raise BufferMisused("output was written after DONE")
        if not self._offset <= value <= self._size:
            raise BufferMisused(
                f"the output's offset was set from {self._offset} to {value} of {self._size}"
            )
        self._offset = value

    @property
    def written(self) -> int:
        """Number of bytes written to the stream so far."""
        return self._handed + self._pending + self._offset - self._taken

    def pop_written(self) -> bytes:
        """Return the bytes written since the last call."""
        if self._offset > self._taken:
            self._collect_written_space()
        pieces = self._pieces
        if not pieces:
            return b""
        self._pieces = []
        self._handed += self._pending
        self._pending = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def renew_space(self, *, larger: bool) -> bool:
        """Provide new space, doubled if `larger`. Return False at the limit.

        If not `larger`, halve space that was doubled before. Only repeated requests without
        progress reach the limit.
        """
        size = self._size * 2 if larger else max(self._size // 2, self._smallest)
        if size > self._limit:
            return False
        if size != self._size:
            self._space = None
        self._size = size
        self._taken = self._offset = 0
        return True

    def close(self) -> None:
        """Reject further writes."""
        self._closed = True
        self._limit = -1

    def _raise_misuse(self) -> None:
        if self._closed:
            raise BufferMisused("output was written after DONE")
        raise BufferMisused(f"more than {self._limit} bytes were written in one call")

    def _collect_written_space(self) -> None:
        if self._space is not None:
            self._pieces.append(bytes(memoryview(self._space)[self._taken : self._offset]))
        self._pending += self._offset - self._taken
        self._taken = self._offset

    def _encode_data(self, data: bytes | bytearray | memoryview | str) -> bytes:
        if not isinstance(data, str):
            if isinstance(data, (bytes, bytearray, memoryview)):
                return bytes(data)
            raise BufferMisused(f"write() expects bytes or str, got {type(data).__name__}")
        if self._encoder is not None:
            encoded: bytes = self._encoder.encode(data)
            return encoded
        if not self._warned:
            self._warned = True
            warnings.warn(
                "text was written without setEncoding(); using UTF-8", UserWarning, stacklevel=3
            )
        return data.encode()


class LengthBuffer:
    """Lengths of the records in another buffer, as 32-bit entries.

    As input, it has `size` entries, and the first `offset` are used. As output, it has space for
    `size` entries, and the first `offset` are written. `write` adds space as needed.
    """

    def __init__(self, lengths: Iterable[int] | NDArray[np.uint32] | None = None) -> None:
        if lengths is None:
            self.buf = np.zeros(_INITIAL_LENGTH_ENTRIES, dtype=np.uint32)
        else:
            self.buf = np.fromiter(lengths, dtype=np.uint32)
        self._offset = 0
        self._dropped = 0

    @property
    def size(self) -> int:
        return len(self.buf)

    @property
    def offset(self) -> int:
        """Number of used or written entries. It can only be set forwards."""
        return self._offset

    @offset.setter
    def offset(self, value: int) -> None:
        if not self._offset <= value <= len(self.buf):
            raise BufferMisused(
                f"the offset of lengths was set from {self._offset} to {value} of {len(self.buf)}"
            )
        self._offset = value

    @property
    def used(self) -> int:
        """Number of entries used since the start of the stream."""
        return self._dropped + self._offset

    def getByteOffset(self) -> int:
        return _LENGTH_BYTES * self._offset

    def read(self, count: int | None = None) -> list[int]:
        """Return the unused entries, at most `count`, and mark them as used."""
        end = len(self.buf) if count is None else min(self._offset + count, len(self.buf))
        lengths: list[int] = self.buf[self._offset : end].tolist()
        self._offset = max(end, self._offset)
        return lengths

    def write(self, lengths: int | Iterable[int]) -> None:
        """Add the length of one record, or of several."""
        more = np.atleast_1d(np.asarray(lengths, dtype=np.uint32))
        end = self._offset + len(more)
        if end > len(self.buf):
            self.buf = np.concatenate(
                [self.buf[: self._offset], np.zeros(2 * end - self._offset, dtype=np.uint32)]
            )
        self.buf[self._offset : end] = more
        self._offset = end

    def append(self, lengths: NDArray[np.uint32]) -> None:
        """Drop the used entries and append more."""
        self._dropped += self._offset
        self.buf = np.concatenate([self.buf[self._offset :], lengths])
        self._offset = 0

    def pop_written(self) -> NDArray[np.uint32]:
        """Return the written entries and clear the buffer."""
        taken = self.buf[: self._offset].copy()
        self._offset = 0
        return taken


class RejectedRecord:
    """A rejected record and the reason.

    The SDKs differ in the order of arguments. Here it is reason, data, terminator. `length` and
    `offset` are keyword arguments.
    """

    def __init__(
        self,
        reason: str = "",
        data: bytes | str = b"",
        terminator: bytes | str = "\n",
        *,
        length: int | None = None,
        offset: int = 0,
    ) -> None:
        end = None if length is None else offset + length
        self._reason = str(reason)
        self._data = data[offset:end]
        self._terminator = terminator

    def getData(self) -> bytes | str:
        return self._data

    def getReason(self) -> str:
        return self._reason

    def getTerminator(self) -> bytes | str:
        return self._terminator


class StreamWriter:
    """Row writer. Columns are numbered from 0. A column that is not set is NULL."""

    def __init__(self, types: SizedColumnTypes | None = None) -> None:
        self._types = types or SizedColumnTypes()
        self._width = self._types.getColumnCount()
        # A dictionary, because a list would accept negative column numbers.
        self._columns: dict[int, list[object]] = {place: [] for place in range(self._width)}
        self._finished = 0
        self._total = 0

    def getNumCols(self) -> int:
        return self._width

    def getTotalRowCount(self) -> int:
        """Return the number of finished rows of the stream."""
        return self._total + self._finished

    def getTypeMetadata(self) -> SizedColumnTypes:
        return self._types

    getTypeMetaData = getTypeMetadata

    def next(self) -> bool:
        """Finish the row. Return False if the parser should return OUTPUT_NEEDED."""
        self._finished += 1
        return self._finished < _MAX_PENDING_ROWS

    def setInt(self, idx: int, value: object) -> None:
        """Set a column of the row. All setters accept any value of the column's type, and None."""
        try:
            column = self._columns[idx]
        except KeyError:
            raise BufferMisused(
                f"unknown column {idx}: the row has {self._width} columns, counted from 0"
            ) from None
        if len(column) == self._finished:
            column.append(value)
        else:
            self._pad_column(column)[self._finished :] = [value]

    setBool = setDate = setFloat = setInterval = setIntervalYM = setInt
    setNumeric = setString = setTime = setTimeTz = setTimestamp = setTimestampTz = setInt

    def setBinary(self, idx: int, value: object) -> None:
        """Set a column of the row to bytes. Mutable buffers are copied."""
        if isinstance(value, (bytearray, memoryview)):
            value = bytes(value)
        self.setInt(idx, value)

    def setNull(self, idx: int) -> None:
        self.setInt(idx, None)

    def _pad_column(self, column: list[object]) -> list[object]:
        """Append NULL for the finished rows that did not set this column."""
        column.extend([None] * (self._finished - len(column)))
        return column

    @property
    def pending_rows(self) -> int:
        """Number of finished rows that `pop_rows` has not returned."""
        return self._finished

    def pop_rows(self) -> list[list[object]]:
        """Return the columns of the finished rows. The open row stays."""
        columns = [self._pad_column(column) for column in self._columns.values()]
        begun = [column[self._finished :] for column in columns]
        for column in columns:
            del column[self._finished :]
        self._columns = dict(enumerate(begun))
        self._total += self._finished
        self._finished = 0
        return columns

    def discard_open_row(self) -> bool:
        """Discard the open row. Return True if there was one."""
        begun = False
        for column in self._columns.values():
            begun |= len(column) > self._finished
            del column[self._finished :]
        return begun
