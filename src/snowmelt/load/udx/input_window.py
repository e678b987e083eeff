"""How much input a call is given, and what it is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from snowmelt.load.udx.vertica_sdk.buffers import InputBuffer, LengthBuffer
from snowmelt.load.udx.vertica_sdk.states import InputState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from snowmelt.load.phases import Reader, Records


class InputRefused(Exception):
    """The phase cannot be given what it asks for; the text says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes and waits in seconds of calls into user code.

    A call is given `chunk_bytes` or all that there is. Where it takes nothing it is given twice
    as much, up to `window_bytes`. With `whole_input` the first call is given everything, up to
    the same. A call may last `patience_seconds`.
    """

    chunk_bytes: int = 1024 * 1024
    window_bytes: int = 1024 * 1024 * 1024
    patience_seconds: float = 600.0
    whole_input: bool = False


class Window:
    """The input buffer of one stream; those that derive from it fill it.

    With `within`, the stream begins in the middle of a file: calls are told START_OF_PORTION until
    one of them has taken something.
    """

    def __init__(self, limits: Limits, *, within: bool = False) -> None:
        self.buffer = InputBuffer()
        self._limits = limits
        self._starting = within
        self._state = self._told = InputState.OK

    def tell(self) -> InputState:
        """Return what the next call is told."""
        self._starting = self._starting and not self.buffer.consumed
        self._told = InputState.START_OF_PORTION if self._starting else self._state
        return self._told

    @property
    def taken(self) -> int:
        """How much was taken so far; it grows with whatever a call takes."""
        return self.buffer.consumed

    @property
    def is_last(self) -> bool:
        """Whether the last call was told that nothing more will come."""
        return self._told is InputState.END_OF_FILE

    @property
    def told_end_of_portion(self) -> bool:
        """Whether the last call was told that the portion ends."""
        return self._told is InputState.END_OF_PORTION

    def begin(self) -> None:
        """Fetch the input of the first call."""
        if self._limits.whole_input:
            self._append(self._limits.window_bytes + 1)
            if self._state is not InputState.END_OF_FILE:
                raise InputRefused(
                    f"its input is longer than {self._limits.window_bytes} bytes, which is the "
                    f"most that is given as a whole"
                )
            return
        self._append(self._limits.chunk_bytes)

    def more(self, *, moved: bool) -> None:
        """Fetch more, after INPUT_NEEDED. `moved` tells whether the call took anything.

        Raises:
            InputRefused: It took nothing of a window that may not grow further.
        """
        if self._state is not InputState.OK and self._told is not self._state:
            self._starting = False  # the end is told before what lies behind it is given
            return
        left, chunk = self.buffer.remaining, self._limits.chunk_bytes
        if moved and left >= chunk:
            return  # or a phase that takes little at a time would pile up its input
        if left >= self._limits.window_bytes:
            raise InputRefused(f"it asks for more input and takes nothing of {left} bytes")
        self._append(chunk if moved else max(chunk, left))

    def _append(self, wanted: int) -> None:
        """Put at least so many bytes behind what is left, or all that there is."""
        raise NotImplementedError

    def _put(self, pieces: list[bytes]) -> None:
        self.buffer.state = self._state
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.buffer.append(data, last=self._state is InputState.END_OF_FILE)


class Feed(Window):
    """Filled from a stream of bytes.

    With `end`, the number of bytes of the portion, the states of portions are told: what lies
    behind the end comes only after everything up to it was given with END_OF_PORTION.
    """

    def __init__(
        self, reader: Reader, limits: Limits, *, end: int | None = None, first: bool = True
    ) -> None:
        super().__init__(limits, within=not first)
        self._reader = reader
        self._end = end
        self._held = b""
        self._given = 0

    def _append(self, wanted: int) -> None:
        pieces: list[bytes] = []
        total = 0
        while total < wanted:
            piece = self._piece()
            if not piece:
                self._state = InputState.END_OF_FILE
                break
            pieces.append(piece)
            total += len(piece)
            if self._given == self._end:
                self._state = InputState.END_OF_PORTION
                break
        self._put(pieces)

    def _piece(self) -> bytes:
        piece = self._held or self._reader.read()
        self._held = b""
        if self._end is not None and self._given < self._end < self._given + len(piece):
            cut = self._end - self._given
            piece, self._held = piece[:cut], piece[cut:]
        self._given += len(piece)
        return piece


class RecordFeed(Window):
    """Filled from batches of records, with their lengths beside it; records come whole."""

    def __init__(self, records: Iterator[Records], limits: Limits) -> None:
        super().__init__(limits)
        self.lengths = LengthBuffer(())
        self._records = records

    @property
    def taken(self) -> int:
        """How much was taken so far: bytes, and records, which may be empty."""
        return self.buffer.consumed + self.lengths.used

    def _append(self, wanted: int) -> None:
        pieces: list[bytes] = []
        lengths: list[NDArray[np.uint32]] = []
        total = 0
        while total < wanted:
            batch = next(self._records, None)
            if batch is None:
                self._state = InputState.END_OF_FILE
                break
            ends = _offsets(batch)
            data = batch.buffers()[2]
            size = int(ends[-1] - ends[0])
            if size:
                pieces.append(data.slice(int(ends[0]), size).to_pybytes())
            lengths.append(np.diff(ends).astype(np.uint32))
            total += max(size, len(batch))
        self.lengths.append(np.concatenate([*lengths, np.zeros(0, dtype=np.uint32)]))
        self._put(pieces)


def _offsets(batch: Records) -> NDArray[np.int32]:
    buffer = batch.buffers()[1]
    if not len(batch) or buffer is None:
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(buffer, dtype=np.int32)[batch.offset : batch.offset + len(batch) + 1]
