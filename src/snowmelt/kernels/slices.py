"""Arrays that kernels take, and texts as places in one buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# Kernels load 64 bytes at once, so a block's buffer goes on for that much behind its data.
PADDING_BYTES = 64


Bytes: TypeAlias = NDArray[np.uint8]
Positions: TypeAlias = NDArray[np.int32]
Mask: TypeAlias = NDArray[np.bool_]
RowIndexes: TypeAlias = NDArray[np.int64]

# Flags of one slice.
PAST_END = 1  # the record has no such field
NEEDS_UNQUOTING = 2  # quotes or escapes inside: the bytes are not the value yet
EMPTY_NULL = 4  # empty, which the dialect reads as NULL
FIELD_QUOTED = 8  # it stood in quotes, which the slice leaves out


class _BytesView:
    """Memory as numpy takes it, under the type of memory that may be written."""

    def __init__(self, memory: object) -> None:
        whole = np.frombuffer(memory, np.uint8)  # type: ignore[call-overload]
        self.__array_interface__ = {**whole.__array_interface__, "data": (whole.ctypes.data, False)}
        self._whole = whole


def view_bytes(memory: object) -> Bytes:
    """View memory that may be read-only, and must not be written.

    For numba read-only arrays are a type of their own, for which each kernel is compiled again.
    """
    return np.asarray(_BytesView(memory))


@dataclass(frozen=True, slots=True)
class StringSlices:
    """Texts as places in one buffer: UTF-8 from `start` up to `end`, with `flags` for each."""

    buffer: Bytes
    start: Positions
    end: Positions
    flags: Bytes

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: RowIndexes) -> StringSlices:
        """Return the slices of these rows, in their order; the buffer is shared."""
        return StringSlices(self.buffer, self.start[rows], self.end[rows], self.flags[rows])

    def read_bytes(self, row: int) -> bytes:
        """Return the bytes of one slice."""
        return self.buffer[self.start[row] : self.end[row]].tobytes()
