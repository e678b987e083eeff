"""Arrays for kernels, and strings as ranges of one buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# Kernels load 64 bytes at a time, so a buffer must extend that far past its data.
PADDING_BYTES = 64


Bytes: TypeAlias = NDArray[np.uint8]
Positions: TypeAlias = NDArray[np.int32]
Mask: TypeAlias = NDArray[np.bool_]
RowIndexes: TypeAlias = NDArray[np.int64]

# Flags of one slice.
PAST_END = 1  # The record does not have the field.
NEEDS_UNQUOTING = 2  # The slice has quotes or escapes, so its bytes are not the value.
EMPTY_NULL = 4  # The field is empty, which is NULL in the dialect.
FIELD_QUOTED = 8  # The field was quoted. The slice excludes the quotes.


class _BytesView:
    """Memory with numpy's array interface, declared writable."""

    def __init__(self, memory: object) -> None:
        whole = np.frombuffer(memory, np.uint8)  # type: ignore[call-overload]
        self.__array_interface__ = {**whole.__array_interface__, "data": (whole.ctypes.data, False)}
        self._whole = whole


def pad_bytes(data: bytes | memoryview) -> Bytes:
    """Return a copy with the padding that kernels require."""
    padded = np.zeros(len(data) + PADDING_BYTES, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    return padded


def view_bytes(memory: object) -> Bytes:
    """Return a view of memory that may be read-only. Do not write to the view.

    The view is declared writable: for Numba, a read-only array has another type, so it would
    compile each kernel again.
    """
    return np.asarray(_BytesView(memory))


@dataclass(frozen=True, slots=True)
class StringSlices:
    """Strings in UTF-8 as ranges [start, end) of one buffer, with `flags`."""

    buffer: Bytes
    start: Positions
    end: Positions
    flags: Bytes

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: RowIndexes) -> StringSlices:
        """Return the slices of these rows, in order. Shares the buffer."""
        return StringSlices(self.buffer, self.start[rows], self.end[rows], self.flags[rows])

    def read_bytes(self, row: int) -> bytes:
        """Return the bytes of one slice."""
        return self.buffer[self.start[row] : self.end[row]].tobytes()
