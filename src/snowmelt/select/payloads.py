"""Output cut into payloads: small enough for one frame, ending where a record ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# A frame of 128 KiB, less what its headers may take: larger ones are refused by some clients.
PAYLOAD_BYTES = 128 * 1024 - 256


class PayloadCutter:
    """Gathers output and cuts it: a record that fits into a payload is never split.

    Where the cuts lie depends on the output alone, not on how it was handed in.
    """

    def __init__(self, limit: int = PAYLOAD_BYTES) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0

    def add(self, output: bytes, ends: NDArray[np.int64]) -> Iterator[bytes]:
        """Take whole records, `ends` being the end of each in `output`; yield full payloads."""
        at = 0
        while len(output) - at > self._limit - self._held:
            place = int(np.searchsorted(ends, at + self._limit - self._held, side="right"))
            end = int(ends[place - 1]) if place else 0
            if end > at:
                self._hold(output[at:end])
            elif not self._held:
                end = at + self._limit  # a record longer than a payload
                self._hold(output[at:end])
            else:
                end = at
            yield from self.flush()
            at = end
        if at < len(output):
            self._hold(output[at:] if at else output)

    def flush(self) -> Iterator[bytes]:
        """Yield what is held, if anything."""
        if self._held:
            whole = b"".join(self._parts)
            self._parts = []
            self._held = 0
            yield whole

    def _hold(self, part: bytes) -> None:
        self._parts.append(part)
        self._held += len(part)
