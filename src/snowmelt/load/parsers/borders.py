"""Where records can be told to end by the bytes behind some place alone: borders of portions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snowmelt.load.parsers.dialect import Dialect


class Border:
    """Finds record ends without what stands before; two portions that ask agree on one."""

    def __init__(self, dialect: Dialect) -> None:
        terminator = dialect.terminator
        self._pattern = re.compile(re.escape(terminator) if terminator else rb"\r?\n")
        self._escape = dialect.usual.escape
        self.width = len(terminator) or 2
        marks = [dialect.usual, *(own for _, own in dialect.own)]
        one_escape = len({marked.escape for marked in marks}) == 1
        # Of a quote nobody knows whether it opens or closes.
        self.can_split = (
            not dialect.repeats and one_escape and not any(marked.quote for marked in marks)
        )

    def find(self, data: bytes, start: int) -> int | None:
        """Return where the first record end at or after `start` ends; None if there is none.

        With escapes, one that may be escaped by a byte before `start` is passed over.
        """
        for match in self._pattern.finditer(data, start):
            if not self._escape or self._is_free(data, start, match.start()):
                return match.end()
        return None

    def end_of_record(self, data: bytes) -> int | None:
        """Return where the first record end ends, escapes and quotes aside."""
        match = self._pattern.search(data)
        return None if match is None else match.end()

    def _is_free(self, data: bytes, start: int, end: int) -> bool:
        at = end
        while at > start and data[at - 1 : at] == self._escape:
            at -= 1
        return at > start and (end - at) % 2 == 0
