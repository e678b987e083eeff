"""Objects for readers: bytes in memory that are handed out in pieces of any size."""

from __future__ import annotations

from snowmelt.select.formats.byte_streams import ConcurrentSource


class MemoryObject:
    """An object that gives at most `piece` bytes at a time; size -1 makes it a pipe."""

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
    """An object that several threads may read."""
