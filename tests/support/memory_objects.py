"""Object sources in memory, which return slices of a given size."""

from __future__ import annotations

from snowmelt.select.formats.byte_streams import ConcurrentSource


class MemoryObject:
    """Object that returns at most `piece` bytes per read. If its size is -1, it is a pipe."""

    name = "memory"

    def __init__(self, data: bytes, *, piece: int = 1 << 30, size: int | None = None) -> None:
        self.data = data
        self.size = len(data) if size is None else size
        self.closed = False
        self._piece = piece
        self._at = 0

    def read_into(self, offset: int, view: memoryview) -> int:
        if self.size < 0:
            assert offset == self._at, "a pipe is read in order"
        part = self.data[offset : offset + min(len(view), self._piece)]
        view[: len(part)] = part
        self._at = offset + len(part)
        return len(part)

    def close(self) -> None:
        self.closed = True


class SharedObject(ConcurrentSource, MemoryObject):
    """Object that supports concurrent reads."""
