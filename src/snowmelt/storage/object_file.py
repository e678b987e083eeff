"""An object as a file, for libraries that read files."""

from __future__ import annotations

import io
from typing import Any, Protocol


class RandomAccess(Protocol):
    """Bytes that can be read at any offset."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read bytes at `offset` into `view`. Return their number, 0 at the end."""


class ObjectFile(io.RawIOBase):
    """File of an object. Closing it does not close the object."""

    def __init__(self, source: RandomAccess) -> None:
        super().__init__()
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}
        self._position = base[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer. Return the number of bytes, which is smaller only at the end of the object."""
        filled = 0
        with memoryview(buffer).cast("B") as view:
            while filled < len(view):
                count = self._source.read_into(self._position + filled, view[filled:])
                if count == 0:
                    break
                filled += count
        self._position += filled
        return filled
