"""What waits because the service takes nothing of its table now: in order, with pauses of its own.

Such as of a table with too long a backlog (code 7), or when it is not known what became of a chunk
(code 10). Rows of other tables are registered meanwhile.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from snowmelt.clock import SystemClock
from snowmelt.retry import Patience

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from snowmelt.client.backlog import Backlog
    from snowmelt.client.encoding import StagedChunk
    from snowmelt.clock import Clock
    from snowmelt.errors import ServiceUnavailable

# What is due so soon is asked for by the same request: a thousand tables are not a thousand requests.
_TOGETHER_S = 0.25


@dataclass(slots=True)
class _Lane:
    """Chunks of one table: those of the oldest flush, which are asked for, and later flushes.

    `due_at` is None while they are asked for; `trouble` is why they wait.
    """

    patience: Patience
    first: list[StagedChunk] = field(default_factory=list)
    later: deque[list[StagedChunk]] = field(default_factory=deque)
    due_at: float | None = None
    trouble: ServiceUnavailable | None = None


class Lanes:
    """A lane for each table that takes nothing now; for one thread.

    At most one flush of a table is asked for at a time, which keeps the order of each channel.
    """

    def __init__(self, backlog: Backlog, clock: Clock, give_up_s: float) -> None:
        self._backlog = backlog
        self._clock = clock
        # Pauses are the machine's, as those between requests, whatever clock the rows go by.
        self._machine = SystemClock()
        self._give_up_s = give_up_s
        self._lanes: dict[int, _Lane] = {}

    @property
    def trouble(self) -> ServiceUnavailable | None:
        """Why a table takes nothing, None where none waits."""
        return next((lane.trouble for lane in list(self._lanes.values())), None)

    def join(self, flush: Iterable[StagedChunk]) -> list[StagedChunk]:
        """Put a flush's chunks behind those that wait; return those that need not wait."""
        behind: dict[int, list[StagedChunk]] = {}
        free: list[StagedChunk] = []
        for chunk in flush:
            unit = chunk.plan.target.unit
            (behind.setdefault(unit, []) if unit in self._lanes else free).append(chunk)
        for unit, chunks in behind.items():
            self._lanes[unit].later.append(chunks)
        return free

    def set_aside(self, chunk: StagedChunk, trouble: ServiceUnavailable, *, is_busy: bool) -> None:
        """Let a chunk wait, which was asked for just now; a busy service is never given up."""
        unit = chunk.plan.target.unit
        lane = self._lanes.get(unit)
        if lane is None:
            lane = self._lanes[unit] = _Lane(Patience(self._give_up_s, self._clock))
            self._backlog.hold(unit)
        lane.first.append(chunk)
        lane.trouble = trouble
        if is_busy:
            lane.patience.extend()

    def take_due(self) -> list[StagedChunk]:
        """Return what is to be asked for again, chunks of one blob behind each other."""
        now = self._machine.monotonic()
        if all(lane.due_at is None or lane.due_at > now for lane in self._lanes.values()):
            return []
        taken: list[StagedChunk] = []
        for lane in self._lanes.values():
            if lane.due_at is None or lane.due_at <= now + _TOGETHER_S:
                lane.due_at = None
                taken += lane.first
                lane.first = []
        return sorted(taken, key=lambda chunk: chunk.path)

    def rest(self) -> list[tuple[Sequence[StagedChunk], ServiceUnavailable]]:
        """Say when what was asked for is due again, or what comes after it; return what is given up."""
        given_up: list[tuple[Sequence[StagedChunk], ServiceUnavailable]] = []
        now = self._machine.monotonic()
        for unit, lane in list(self._lanes.items()):
            if lane.due_at is not None:
                continue
            pause_s = lane.patience.next_pause_s() if lane.first else None
            if pause_s is not None:
                lane.due_at = now + pause_s
                continue
            if lane.first and lane.trouble is not None:
                given_up.append((lane.first, lane.trouble))
            if lane.later:
                lane.first = lane.later.popleft()
                lane.due_at = now
                lane.patience.renew()
            else:
                del self._lanes[unit]
                self._backlog.release(unit)
        return given_up

    def pause_s(self) -> float | None:
        """Return after how many seconds something is due, None where nothing waits."""
        due = [lane.due_at for lane in self._lanes.values() if lane.due_at is not None]
        return max(min(due) - self._machine.monotonic(), 0.0) if due else None
