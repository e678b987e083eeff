"""Input, output and length buffers of user code; the rows and rejected records of its parsers.

Methods in camel case are the SDK's. So are `buf`, `size` and `offset`, which the SDKs for other
languages have. Names in snake case are for the host only.
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
    """User code broke a rule of a buffer; the text says which."""


class InputUndecodable(Exception):
    """The stream is not in the encoding that the phase asked for; `offset` counts its bytes."""

    def __init__(self, offset: int, encoding: str, reason: str) -> None:
        super().__init__(f"byte {offset} of its input is not {encoding}: {reason}")
        self.offset = offset


class InputBuffer:
    """What a phase reads from; unread input stays in front of what comes later.

    Without an encoding it is bytes. With one it is what the encoding decodes to, and all lengths
    and offsets count its elements (characters).
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
        """Decode the stream from here on; before anything was read, one encoding for a stream.

        Raises:
            BufferMisused: Something was read already, or there is another encoding.
            Undecodable: The bytes that are here are not in this encoding.
        """
        if encoding == self._encoding:
            return
        if self._encoding is not None or self.consumed:
            raise BufferMisused("setEncoding() was called after the stream was begun")
        self._decoder = codecs.getincrementaldecoder(str(encoding))()
        self._encoding = encoding
        raw, self._window = self._window, ""
        if isinstance(raw, bytes):
            self.append(raw, last=self.state is InputState.END_OF_FILE)

    def read(self, length: int | None = None) -> BufferData:
        """Return what is there, at most `length`, and move the offset behind it."""
        start = self._offset
        if length is None:
            data = self._window[start:] if start else self._window
        elif length < 0:
            raise BufferMisused(f"read({length}) would move the input's offset backwards")
        else:
            data = self._window[start : start + length]
        self._offset = start + len(data)
        return data

    def peek(self, length: int | None = None) -> BufferData:
        """Return what is there, at most `length`, without reading it."""
        start = self._offset
        if length is None:
            return self._window[start:] if start else self._window
        return self._window[start : start + max(length, 0)]

    def advance(self, length: int | None = None) -> int:
        """Move the offset by `length`, or behind all that is there; return the new offset."""
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
        """What the buffer holds, read or not."""
        return memoryview(self._window) if isinstance(self._window, bytes) else self._window

    @property
    def size(self) -> int:
        """As getSize()."""
        return len(self._window)

    @property
    def offset(self) -> int:
        """As getOffset(); it may be set, forwards only."""
        return self._offset

    @offset.setter
    def offset(self, value: int) -> None:
        if not self._offset <= value <= len(self._window):
            raise BufferMisused(
                f"the input's offset was set from {self._offset} to {value} "
                f"with {len(self._window)} in the buffer"
            )
        self._offset = value

    @property
    def consumed(self) -> int:
        """How much of the stream was read so far."""
        return self._dropped + self._offset

    @property
    def remaining(self) -> int:
        """How much is there that was not read."""
        return len(self._window) - self._offset

    def append(self, data: bytes, *, last: bool) -> None:
        """Drop what was read, and put `data` behind what is left.

        Raises:
            Undecodable: It is not in the encoding.
        """
        more: BufferData = data if self._decoder is None else self._decode(data, last=last)
        left = self._window[self._offset :] if self._offset else self._window
        self._dropped += self._offset
        self._offset = 0
        # Both are of one type: an encoding is set before anything is read.
        self._window = left + more if left else more  # type: ignore[operator]

    def find_read_data_offset(self, data: object, since_offset: int) -> int:
        """Return the offset in the stream of what was read last, if it is `data`, or else `since_offset`.

        Only what was read since then is looked at. With an encoding, offsets count characters.
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
    """What a phase writes to, by `write`, or through `buf` and `offset`.

    `write` takes everything. Through `buf` there is room for `size` bytes; a phase that needs more
    returns OUTPUT_NEEDED, and is given as much again, or twice as much where it wrote nothing.
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
        """Encode texts that are written from here on; one encoding for a stream."""
        if encoding == self._encoding:
            return
        if self._encoding is not None:
            raise BufferMisused("the output's encoding was changed in the middle of the stream")
        self._encoding = encoding
        self._encoder = codecs.getincrementalencoder(str(encoding))()

    def write(self, data: bytes | bytearray | memoryview | str) -> bytes | str:
        """Take all of `data`; return what did not fit, which is nothing."""
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
        """Room for `size` bytes, the first `offset` of them written."""
        if self._space is None:
            self._space = bytearray(self._size)
        return memoryview(self._space)

    @property
    def size(self) -> int:
        """How much room there is in `buf`."""
        return self._size

    @property
    def offset(self) -> int:
        """How much of `buf` was written; it is set forwards only."""
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
        """How much of the stream was written so far, for the host."""
        return self._handed + self._pending + self._offset - self._taken

    def pop_written(self) -> bytes:
        """Return what was written and not taken yet."""
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
        """Give a new buffer, twice as large if asked; False where the limit is reached.

        Otherwise one that had grown is halved, so that only who asks again and again without
        having read or written reaches the limit.
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
        """Refuse whatever is written from here on."""
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
            raise BufferMisused(f"write() takes bytes or text, not {type(data).__name__}")
        if self._encoder is not None:
            encoded: bytes = self._encoder.encode(data)
            return encoded
        if not self._warned:
            self._warned = True
            warnings.warn(
                "text was written without setEncoding(); UTF-8 is taken", UserWarning, stacklevel=3
            )
        return data.encode()


class LengthBuffer:
    """Lengths of records, beside the bytes of a buffer; each is one entry of 32 bits.

    As input it holds `size` entries, of which `offset` were used. As output it has room for
    `size` entries, of which `offset` were written; `write` makes room.
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
        """The number of entries."""
        return len(self.buf)

    @property
    def offset(self) -> int:
        """How many entries were used or written; it is set forwards only."""
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
        """How many entries of the stream were used so far, for the host."""
        return self._dropped + self._offset

    def getByteOffset(self) -> int:
        return _LENGTH_BYTES * self._offset

    def read(self, count: int | None = None) -> list[int]:
        """Return the entries that were not used yet, at most `count`, as used from here on."""
        end = len(self.buf) if count is None else min(self._offset + count, len(self.buf))
        lengths: list[int] = self.buf[self._offset : end].tolist()
        self._offset = max(end, self._offset)
        return lengths

    def write(self, lengths: int | Iterable[int]) -> None:
        """Add the length of a record, or several."""
        more = np.atleast_1d(np.asarray(lengths, dtype=np.uint32))
        end = self._offset + len(more)
        if end > len(self.buf):
            self.buf = np.concatenate(
                [self.buf[: self._offset], np.zeros(2 * end - self._offset, dtype=np.uint32)]
            )
        self.buf[self._offset : end] = more
        self._offset = end

    def append(self, lengths: NDArray[np.uint32]) -> None:
        """Drop the entries that were used, and put more behind those that are left."""
        self._dropped += self._offset
        self.buf = np.concatenate([self.buf[self._offset :], lengths])
        self._offset = 0

    def pop_written(self) -> NDArray[np.uint32]:
        """Return the entries that were written, and begin anew."""
        taken = self.buf[: self._offset].copy()
        self._offset = 0
        return taken


class RejectedRecord:
    """A record that becomes no row, and why.

    Flavours of the SDK disagree on the order; here it is reason, data, terminator, and `length`
    and `offset` may be given by name as the others have them.
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
    """Takes rows, column by column, counted from 0; a column that is not set is NULL."""

    def __init__(self, types: SizedColumnTypes | None = None) -> None:
        self._types = types or SizedColumnTypes()
        self._width = self._types.getColumnCount()
        # By number in a dictionary, so that one below zero is refused.
        self._columns: dict[int, list[object]] = {place: [] for place in range(self._width)}
        self._finished = 0
        self._total = 0

    def getNumCols(self) -> int:
        return self._width

    def getTotalRowCount(self) -> int:
        """Return how many rows were finished in this stream."""
        return self._total + self._finished

    def getTypeMetadata(self) -> SizedColumnTypes:
        return self._types

    getTypeMetaData = getTypeMetadata

    def next(self) -> bool:
        """Finish the row; tell whether there is space for another before OUTPUT_NEEDED."""
        self._finished += 1
        return self._finished < _MAX_PENDING_ROWS

    def setInt(self, idx: int, value: object) -> None:
        """Set a column of the row; all setters take what the column's type takes, and None."""
        try:
            column = self._columns[idx]
        except KeyError:
            raise BufferMisused(
                f"there is no column {idx}; there are {self._width}, counted from 0"
            ) from None
        if len(column) == self._finished:
            column.append(value)
        else:
            self._pad_column(column)[self._finished :] = [value]

    setBool = setDate = setFloat = setInterval = setIntervalYM = setInt
    setNumeric = setString = setTime = setTimeTz = setTimestamp = setTimestampTz = setInt

    def setBinary(self, idx: int, value: object) -> None:
        """Set a column of the row to bytes, which are copied if they may change."""
        if isinstance(value, (bytearray, memoryview)):
            value = bytes(value)
        self.setInt(idx, value)

    def setNull(self, idx: int) -> None:
        self.setInt(idx, None)

    def _pad_column(self, column: list[object]) -> list[object]:
        """Return a column with NULL for the finished rows that did not set it."""
        column.extend([None] * (self._finished - len(column)))
        return column

    @property
    def pending_rows(self) -> int:
        """How many rows were finished and not taken, for the host."""
        return self._finished

    def pop_rows(self) -> list[list[object]]:
        """Return the columns of the finished rows, for the host; a row that was begun stays."""
        columns = [self._pad_column(column) for column in self._columns.values()]
        begun = [column[self._finished :] for column in columns]
        for column in columns:
            del column[self._finished :]
        self._columns = dict(enumerate(begun))
        self._total += self._finished
        self._finished = 0
        return columns

    def discard_open_row(self) -> bool:
        """Forget the row that was begun; tell whether there was one, for the host."""
        begun = False
        for column in self._columns.values():
            begun |= len(column) > self._finished
            del column[self._finished :]
        return begun
