"""Input windows: how much input a user-defined phase is given per call, and with which state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from snowmelt.load.udx.vertica_sdk.bases import InputState
from snowmelt.load.udx.vertica_sdk.buffers import InputBuffer, LengthBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from snowmelt.load.phase_protocols import ByteReader, Records


class InputLimitExceeded(Exception):
    """The phase cannot be given what it asks for; the text says why."""


@dataclass(frozen=True, slots=True)
class UdxLimits:
    """Sizes in bytes and waits in seconds of calls into user code.

    A call is given `chunk_bytes` or all that there is. Where it takes nothing it is given twice
    as much, up to `window_bytes`. With `whole_input` the first call is given everything, up to
    the same. A call may last `call_timeout_s`.
    """

    chunk_bytes: int = 1024 * 1024
    window_bytes: int = 1024 * 1024 * 1024
    call_timeout_s: float = 600.0
    whole_input: bool = False


class InputWindow:
    """The input buffer of one stream; those that derive from it fill it.

    With `within`, the stream begins in the middle of a file: calls are told START_OF_PORTION until
    one of them has taken something.
    """

    def __init__(self, limits: UdxLimits, *, starts_inside_file: bool = False) -> None:
        self.buffer = InputBuffer()
        self.lengths = LengthBuffer(())
        self._limits = limits
        self._starting = starts_inside_file
        self._state = InputState.OK
        # What the last call was told.
        self.reported_state = InputState.OK

    def report_state(self) -> InputState:
        """Return what the next call is told."""
        self._starting = self._starting and not self.buffer.consumed
        self.reported_state = InputState.START_OF_PORTION if self._starting else self._state
        return self.reported_state

    @property
    def consumed(self) -> int:
        """How much was taken so far; it grows with whatever a call takes."""
        return self.buffer.consumed

    def fetch_first(self) -> None:
        """Fetch the input of the first call."""
        if self._limits.whole_input:
            self._fetch_input(self._limits.window_bytes + 1)
            if self._state is not InputState.END_OF_FILE:
                raise InputLimitExceeded(
                    f"its input is longer than {self._limits.window_bytes} bytes, which is the "
                    f"most that is given as a whole"
                )
            return
        self._fetch_input(self._limits.chunk_bytes)

    def fetch_more(self, *, made_progress: bool) -> None:
        """Fetch more, after INPUT_NEEDED. `made_progress` tells whether the call took anything.

        Raises:
            InputRefused: It took nothing of a window that may not grow further.
        """
        if self._state is not InputState.OK and self.reported_state is not self._state:
            self._starting = False  # the end is told before what lies behind it is given
            return
        left, chunk = self.buffer.remaining, self._limits.chunk_bytes
        if made_progress and left >= chunk:
            return  # or a phase that takes little at a time would pile up its input
        if left >= self._limits.window_bytes:
            raise InputLimitExceeded(f"it asks for more input and takes nothing of {left} bytes")
        self._fetch_input(chunk if made_progress else max(chunk, left))

    def _fetch_input(self, min_size: int) -> None:
        """Put at least so many bytes behind what is left, or all that there is."""
        raise NotImplementedError

    def _append_to_buffer(self, slices: list[bytes]) -> None:
        self.buffer.state = self._state
        data = slices[0] if len(slices) == 1 else b"".join(slices)
        self.buffer.append(data, last=self._state is InputState.END_OF_FILE)


class ByteWindow(InputWindow):
    """Filled from a stream of bytes.

    With `end`, the number of bytes of the portion, the states of portions are told: what lies
    behind the end comes only after everything up to it was given with END_OF_PORTION.
    """

    def __init__(
        self,
        reader: ByteReader,
        limits: UdxLimits,
        *,
        portion_bytes: int | None = None,
        is_first_portion: bool = True,
    ) -> None:
        super().__init__(limits, starts_inside_file=not is_first_portion)
        self._reader = reader
        self._portion_bytes = portion_bytes
        self._leftover = b""
        self._bytes_given = 0

    def _fetch_input(self, min_size: int) -> None:
        pieces: list[bytes] = []
        total = 0
        while total < min_size:
            piece = self._next_slice()
            if not piece:
                self._state = InputState.END_OF_FILE
                break
            pieces.append(piece)
            total += len(piece)
            if self._bytes_given == self._portion_bytes:
                self._state = InputState.END_OF_PORTION
                break
        self._append_to_buffer(pieces)

    def _next_slice(self) -> bytes:
        piece = self._leftover or self._reader.read()
        self._leftover = b""
        if (
            self._portion_bytes is not None
            and self._bytes_given < self._portion_bytes < self._bytes_given + len(piece)
        ):
            cut = self._portion_bytes - self._bytes_given
            piece, self._leftover = piece[:cut], piece[cut:]
        self._bytes_given += len(piece)
        return piece


class RecordWindow(InputWindow):
    """Filled from batches of records, with their lengths beside it; records come whole."""

    def __init__(self, records: Iterator[Records], limits: UdxLimits) -> None:
        super().__init__(limits)
        self._records = records

    @property
    def consumed(self) -> int:
        """How much was taken so far: bytes, and records, which may be empty."""
        return self.buffer.consumed + self.lengths.used

    def _fetch_input(self, min_size: int) -> None:
        pieces: list[bytes] = []
        lengths: list[NDArray[np.uint32]] = []
        total = 0
        while total < min_size:
            batch = next(self._records, None)
            if batch is None:
                self._state = InputState.END_OF_FILE
                break
            offsets = batch.buffers()[1]
            ends = np.zeros(1, dtype=np.int32)
            if len(batch) and offsets is not None:
                ends = np.frombuffer(offsets, dtype=np.int32)[batch.offset :][: len(batch) + 1]
            data = batch.buffers()[2]
            size = int(ends[-1] - ends[0])
            if size:
                pieces.append(data.slice(int(ends[0]), size).to_pybytes())
            lengths.append(np.diff(ends).astype(np.uint32))
            total += max(size, len(batch))
        self.lengths.append(np.concatenate([*lengths, np.zeros(0, dtype=np.uint32)]))
        self._append_to_buffer(pieces)
