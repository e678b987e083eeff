"""What a filter or parser reads from: the bytes of the phase before it, as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Reader:
    """Bytes that arrive in pieces, to be read piece by piece or by number.

    `offset` counts the bytes that were read so far. Not for several threads at once.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = bytearray()
        self._ended = False
        self.offset = 0

    def read(self, size: int | None = None) -> bytes:
        """Return the next piece as it comes, or exactly `size` bytes; fewer only at the end.

        Empty means that nothing more will come.
        """
        if size is None:
            data = bytes(self._held) if self._held else self._pull()
            self._held.clear()
        else:
            self._fill(size)
            data = bytes(memoryview(self._held)[:size])
            del self._held[:size]
        self.offset += len(data)
        return data

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes without reading them; fewer only at the end."""
        self._fill(size)
        return bytes(memoryview(self._held)[:size])

    @property
    def at_end(self) -> bool:
        """Whether nothing more will come; waits for the phase before to tell."""
        self._fill(1)
        return not self._held

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces that are left, none of them empty."""
        while data := self.read():
            yield data

    def close(self) -> None:
        """Read no further: whatever the pieces come from may end. What is held is dropped."""
        self._ended = True
        self._held.clear()
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()

    def _fill(self, size: int) -> None:
        while len(self._held) < size and (piece := self._pull()):
            self._held += piece

    def _pull(self) -> bytes:
        if not self._ended:
            for piece in self._pieces:
                if piece:
                    return piece
            self._ended = True
        return b""
