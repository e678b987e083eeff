"""Arrays that kernels take, and texts as ranges of one buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# Kernels load 64 bytes at once, so a buffer extends that far past its data.
PADDING_BYTES = 64


Bytes: TypeAlias = NDArray[np.uint8]
Positions: TypeAlias = NDArray[np.int32]
Mask: TypeAlias = NDArray[np.bool_]
RowIndexes: TypeAlias = NDArray[np.int64]

# Flags of one slice.
PAST_END = 1  # the record lacks the field
NEEDS_UNQUOTING = 2  # contains quotes or escapes, so the bytes are not the value
EMPTY_NULL = 4  # empty, which is NULL in the dialect
FIELD_QUOTED = 8  # was quoted; the slice excludes the quotes


class _BytesView:
    """Memory with numpy's array interface, declared writable."""

    def __init__(self, memory: object) -> None:
        whole = np.frombuffer(memory, np.uint8)  # type: ignore[call-overload]
        self.__array_interface__ = {**whole.__array_interface__, "data": (whole.ctypes.data, False)}
        self._whole = whole


def view_bytes(memory: object) -> Bytes:
    """Return a view of memory that may be read-only and must not be written.

    For numba a read-only array has another type, for which it would compile each kernel again.
    """
    return np.asarray(_BytesView(memory))


@dataclass(frozen=True, slots=True)
class StringSlices:
    """Texts as ranges of one buffer: UTF-8 from `start` (inclusive) to `end` (exclusive), with `flags`."""

    buffer: Bytes
    start: Positions
    end: Positions
    flags: Bytes

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: RowIndexes) -> StringSlices:
        """Return the slices of these rows, in order; the buffer is shared."""
        return StringSlices(self.buffer, self.start[rows], self.end[rows], self.flags[rows])

    def read_bytes(self, row: int) -> bytes:
        """Return the bytes of one slice."""
        return self.buffer[self.start[row] : self.end[row]].tobytes()
