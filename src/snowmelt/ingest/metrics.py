"""How many registrations there were, how they ended, and how long they took; plain numbers.

Thousands of registrations pass here each second, so nothing is labelled, locked or formatted
before somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.errors import SnowmeltError
from snowmelt.wire.streaming import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.wire.streaming import RegisterResponse

# Upper ends of the classes of durations, in seconds; what takes longer is in a class of its own.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Tallied:
    """What a tally held at one moment.

    Attributes:
        codes: How many answers to a channel of a chunk had which code of the protocol.
        rows: Rows of the chunks that were added; repetitions count once.
        bytes: Their bytes on the stage.
        classes: How many requests took up to each of `BOUNDS_S`, and last how many took longer.
        seconds: How long all of them took together.
        waiting: How many requests are not answered yet.
    """

    codes: Mapping[int, int]
    rows: int
    bytes: int
    classes: tuple[int, ...]
    seconds: float
    waiting: int


class Durations:
    """How long requests took, by classes."""

    def __init__(self) -> None:
        self._classes = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one that took so long."""
        self._classes[bisect_left(BOUNDS_S, seconds)] += 1
        self.seconds += seconds

    @property
    def classes(self) -> tuple[int, ...]:
        """How many took up to each of `BOUNDS_S`, and last how many took longer."""
        return tuple(self._classes)


class Tally:
    """Counts answers; its owner sees to it that one thread at a time does."""

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}
        self._durations = Durations()
        self.rows = 0
        self.bytes = 0

    def answered(self, answer: RegisterResponse | Exception, seconds: float) -> None:
        """Count a request that was answered after so many seconds."""
        self._durations.add(seconds)
        codes = self._codes
        if isinstance(answer, Exception):
            code = _code(answer)
            codes[code] = codes.get(code, 0) + 1
            return
        for blob in answer.blobs:
            for chunk in blob.chunks:
                for channel in chunk.channels:
                    code = channel.status_code
                    codes[code] = codes.get(code, 0) + 1

    def taken(self, waiting: int) -> Tallied:
        """Return the numbers as they are now."""
        return Tallied(
            codes=dict(self._codes),
            rows=self.rows,
            bytes=self.bytes,
            classes=self._durations.classes,
            seconds=self._durations.seconds,
            waiting=waiting,
        )


def _code(error: Exception) -> int:
    if isinstance(error, SnowmeltError):
        return int(getattr(error, "wire_code", error.response_code))
    return int(ResponseCode.TRY_AGAIN)


# --- How many requests of rows there were, how they ended, and what they brought; plain numbers.


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
