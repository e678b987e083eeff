"""How many requests of rows there were, how they ended, and what they brought; plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.ingest.tally import Durations

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class RowsTallied:
    """What a tally held at one moment.

    Attributes:
        rows: Rows committed, each once.
        bytes: Those of their chunks on the stage.
        refused: Rows that were refused in requests that are committed.
        codes: How many requests were answered with which code of the row API.
        classes: How many took up to each of `BOUNDS_S`, and last how many took longer.
        seconds: How long all of them took together.
    """

    rows: int
    bytes: int
    refused: int
    codes: Mapping[str, int]
    classes: tuple[int, ...]
    seconds: float


class RowTally:
    """Counts: the writer's thread what is committed, the event loop what is answered."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._durations = Durations()
        self.rows = 0
        self.bytes = 0
        self.refused = 0

    def answered(self, code: str, seconds: float) -> None:
        """Count a request that was answered after so many seconds."""
        self._codes[code] = self._codes.get(code, 0) + 1
        self._durations.add(seconds)

    def taken(self) -> RowsTallied:
        """Return the numbers as they are now."""
        durations = self._durations
        return RowsTallied(
            rows=self.rows,
            bytes=self.bytes,
            refused=self.refused,
            # One step, in which no other thread counts.
            codes=self._codes.copy(),
            classes=durations.classes,
            seconds=durations.seconds,
        )
