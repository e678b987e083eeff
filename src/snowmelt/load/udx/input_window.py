"""Input windows: the input buffer and input state of each call of a user-defined phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from snowmelt.load.phase_protocols import ByteReader, Records, join_records
from snowmelt.load.udx.vertica_sdk.bases import InputState
from snowmelt.load.udx.vertica_sdk.buffers import InputBuffer, LengthBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray


class InputLimitExceeded(Exception):
    """A phase requires more input per call than `window_bytes`."""


@dataclass(frozen=True, slots=True)
class UdxLimits:
    """Limits of calls into user code.

    Attributes:
        chunk_bytes: Minimum number of input bytes of a call, except at the stream's end. The input
            at least doubles after each call that reads nothing.
        window_bytes: Maximum number of input bytes of a call.
        call_timeout_s: Maximum duration of a call, in seconds.
        whole_input: Pass the whole input to the first call, up to `window_bytes`.
    """

    chunk_bytes: int = 1024 * 1024
    window_bytes: int = 1024 * 1024 * 1024
    call_timeout_s: float = 600.0
    whole_input: bool = False


class InputWindow:
    """The input buffer of one stream, filled by subclasses.

    With `starts_inside_file`, calls receive START_OF_PORTION until a call reads something.
    """

    def __init__(self, limits: UdxLimits, *, starts_inside_file: bool = False) -> None:
        self.buffer = InputBuffer()
        self.lengths = LengthBuffer(())
        self._limits = limits
        self._starting = starts_inside_file
        self._state = InputState.OK
        # Input state that the last call received.
        self.reported_state = InputState.OK

    def report_state(self) -> InputState:
        """Return the state for the next call."""
        self._starting = self._starting and not self.buffer.consumed
        self.reported_state = InputState.START_OF_PORTION if self._starting else self._state
        return self.reported_state

    @property
    def consumed(self) -> int:
        """Amount of input read so far. Only its changes are meaningful."""
        return self.buffer.consumed

    def fetch_first(self) -> None:
        """Fetch the input of the first call."""
        if self._limits.whole_input:
            self._fetch_input(self._limits.window_bytes + 1)
            if self._state is not InputState.END_OF_FILE:
                raise InputLimitExceeded(
                    f"its input exceeds {self._limits.window_bytes} bytes, the limit of "
                    "`whole_input`"
                )
            return
        self._fetch_input(self._limits.chunk_bytes)

    def fetch_more(self, *, made_progress: bool) -> None:
        """Fetch more input after INPUT_NEEDED. `made_progress`: the last call read something.

        Raises:
            InputLimitExceeded: If the last call read nothing of a window of `window_bytes`.
        """
        if self._state is not InputState.OK and self.reported_state is not self._state:
            self._starting = False  # Report the portion's end before the bytes after it.
            return
        left, chunk = self.buffer.remaining, self._limits.chunk_bytes
        if made_progress and left >= chunk:
            return  # Otherwise the buffer of a phase that reads little per call would grow.
        if left >= self._limits.window_bytes:
            raise InputLimitExceeded(f"it requested more input without reading any of {left} bytes")
        self._fetch_input(chunk if made_progress else max(chunk, left))

    def _fetch_input(self, min_size: int) -> None:
        """Append at least `min_size` bytes, or the rest of the input."""
        raise NotImplementedError

    def _append_to_buffer(self, slices: list[bytes]) -> None:
        self.buffer.state = self._state
        data = slices[0] if len(slices) == 1 else b"".join(slices)
        self.buffer.append(data, last=self._state is InputState.END_OF_FILE)


class ByteWindow(InputWindow):
    """A window filled from a stream of bytes.

    With `portion_bytes`, the call that receives the last bytes of the portion has the state
    END_OF_PORTION. Later calls receive the bytes after the portion.
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
    """A window filled from batches of whole records, with their lengths in `lengths`."""

    def __init__(self, records: Iterator[Records], limits: UdxLimits) -> None:
        super().__init__(limits)
        self._records = records

    @property
    def consumed(self) -> int:
        """Number of bytes plus number of records read so far, because records may be empty."""
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
            pieces.append(join_records(batch))
            lengths.append(pc.binary_length(batch).to_numpy().astype(np.uint32))
            total += max(len(pieces[-1]), len(batch))
        self.lengths.append(np.concatenate([*lengths, np.zeros(0, dtype=np.uint32)]))
        self._append_to_buffer(pieces)
