"""Bytes that stand for others: search and replace, line ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.errors import LoadRefused
from snowmelt.load.definition import Definition, Parameter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.load.reader import Reader

_LONGEST_PATTERN = 1000
_ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}


class SearchAndReplace:
    """Replaces a text, from left to right; what was put in is not searched again."""

    def __init__(self, pattern: str, replace_with: str) -> None:
        self._pattern = pattern.encode()
        self._new = replace_with.encode()
        if not 1 <= len(self._pattern) <= _LONGEST_PATTERN:
            reason = f"the pattern has 1 to {_LONGEST_PATTERN} bytes, not {len(self._pattern)}"
            raise LoadRefused(what="SearchAndReplace", reason=reason)
        # Occurrences of a pattern that ends as it begins may overlap: the last one that is found
        # from the right need not be one that counts from the left.
        self._overlaps = any(
            self._pattern.startswith(self._pattern[start:])
            for start in range(1, len(self._pattern))
        )

    def run(self, reader: Reader) -> Iterator[bytes]:
        """Yield the bytes with the replacements; occurrences may lie across pieces."""
        kept = b""
        for piece in reader:
            data = kept + piece if kept else piece
            end = self._behind_last(data)
            cut = len(data) - self._begun(data, end)
            kept = data[cut:]
            if cut:
                yield (data[:cut] if kept else data).replace(self._pattern, self._new)
        if kept:
            yield kept

    def _behind_last(self, data: bytes) -> int:
        if self._overlaps:
            return len(data) - len(data.split(self._pattern)[-1])
        found = data.rfind(self._pattern)
        return 0 if found < 0 else found + len(self._pattern)

    def _begun(self, data: bytes, start: int) -> int:
        """Return how many last bytes from `start` on may begin an occurrence."""
        longest = min(len(self._pattern) - 1, len(data) - start)
        fits = (size for size in range(longest, 0, -1) if data.endswith(self._pattern[:size]))
        return next(fits, 0)


class LineEndings:
    """Makes all line ends alike: LF, CRLF and a lone CR become what `to` says."""

    def __init__(self, to: str = "LF") -> None:
        if to.upper() not in _ENDS:
            raise LoadRefused(what="LineEndings", reason=f"to is LF, CRLF or CR, not {to}")
        self._end = _ENDS[to.upper()]

    def run(self, reader: Reader) -> Iterator[bytes]:
        """Yield the bytes with the new line ends."""
        kept = b""
        for piece in reader:
            data = kept + piece if kept else piece
            # A CR at the end may be half of a CRLF.
            kept = b"\r" if data.endswith(b"\r") else b""
            if ready := self._changed(data[:-1] if kept else data):
                yield ready
        if kept:
            yield self._end

    def _changed(self, data: bytes) -> bytes:
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data if self._end == b"\n" else data.replace(b"\n", self._end)


SEARCH_AND_REPLACE = Definition(
    "SearchAndReplace",
    SearchAndReplace,
    (Parameter("pattern", str, required=True), Parameter("replace_with", str, required=True)),
)
LINE_ENDINGS = Definition("LineEndings", LineEndings, (Parameter("to", str),))
