"""How many batches may be asked for, going by who reads their values.

What takes values may hand them on to somebody who has enough of them: Spark, for a LIMIT. That is
seen some arrays later, which on a fast service would be many calls for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from snowmelt.clock import Clock

# The last bytes of an array come with the next one, so it takes two until somebody can read one.
_READABLE = 2
# Whoever has read so many wants many.
_CAREFUL = 64
_FIRST_REACTION_S = 0.01
_REACTION_S = 0.001
_REACTIONS = 1_000
# Who reads at all mostly does so at once: a moment's patience keeps as many in flight as may be.
_PATIENCE = 3


class Reader(Protocol):
    """Whoever reads values after they were taken."""

    def is_open(self) -> bool:
        """Tell whether they are read at all; nothing is lost where that is wrong."""

    def unread_bytes(self) -> int | None:
        """Return how much of what was taken is not read yet; None where that cannot be told."""


class Demand:
    """What one task may ask for: batches in flight and those that nobody has read yet together.

    That is so for the first arrays; who has read them all is trusted to want the others, until
    nobody reads any more.
    """

    def __init__(self, most: int, clock: Clock, reader: Reader | None) -> None:
        """Prepare.

        Args:
            most: Batches in flight.
            clock: Tells how long to wait for a reaction: a second in all.
            reader: None if whoever takes values is who reads them.
        """
        self.allowed = most
        # Whether many more values are wanted; until then an array is one batch.
        self.is_sure = False
        self._most = most
        self._clock = clock
        self._reader = reader
        self._given = 0
        self._unread = 0
        self._reactions = _REACTIONS

    def gave(self) -> None:
        """Look who reads, after an array was taken."""
        self._given += 1
        if self._reader is None:
            self.is_sure = True
        elif self._given >= _READABLE:
            is_wanted = self._is_wanted(self._reader)
            self.is_sure = is_wanted and self._given > _CAREFUL
            self.allowed = max(self._most - self._unread, 1) if is_wanted else 1

    def _is_wanted(self, reader: Reader) -> bool:
        if self._given > _CAREFUL:
            self._unread = 0
            return reader.is_open()
        self._unread += 1
        if self._given == _READABLE:
            self._clock.sleep(_FIRST_REACTION_S)
        enough = self._reactions - _PATIENCE
        while reader.is_open():
            if not reader.unread_bytes():
                self._unread = 0
                return True
            may_go_on = self._given > _READABLE and self._unread < self._most
            if (may_go_on and self._reactions <= enough) or not self._reactions:
                return True
            self._reactions -= 1
            self._clock.sleep(_REACTION_S)
        return False
