"""How many calls, how often: limits that all worker processes of a machine share.

RATE_LIMIT and MAX_IN_FLIGHT of a function hold for the machine; a rate is divided by the number of
executors that the plan names. Besides, an origin that answers 429 or 503 is asked by half as many
at a time, and by one more for each round of good replies. Only the number of calls in flight
changes, never what is in a batch. Where nothing is limited, no file is touched.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from snowmelt.functions.calling.host import HostFile, file_name, private_folder
from snowmelt.functions.calling.pace import Pace
from snowmelt.functions.calling.slots import Slots

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from snowmelt.clock import Clock
    from snowmelt.functions.calling.plan import CallPlan

_WINDOW = struct.Struct("=dddd")
_WINDOW_AT = 64
_LARGEST_WINDOW = 1024
# An origin that was not too busy for so long is no longer held back.
_FORGIVEN_S = 600.0
# With one in flight still too many, all wait: so long unless the service says how long, at most …
_QUIET_S = 0.2
_LONGEST_QUIET_S = 30.0


class Window:
    """How many may be in flight to an origin that was too busy at some time."""

    def __init__(self, file: HostFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock

    def allowed(self) -> int:
        """Return how many may be in flight now; 0 while all wait."""
        limit, _, cut_at, quiet_until = self._file.read(_WINDOW, _WINDOW_AT)
        now = self._clock.monotonic()
        if now < quiet_until <= now + _LONGEST_QUIET_S:
            return 0
        return int(limit) if limit and 0 <= now - cut_at < _FORGIVEN_S else _LARGEST_WINDOW

    def cut(self, began: float, in_flight: int, retry_after_s: float | None) -> None:
        """Halve it, unless the call began before it was halved last.

        Args:
            began: Monotonic seconds at which the call that was turned away began.
            in_flight: What to halve where there is no window yet.
            retry_after_s: What the service said.
        """
        with self._file.locked():
            limit, _, cut_at, quiet_until = self._file.read(_WINDOW, _WINDOW_AT)
            now = self._clock.monotonic()
            if not limit or not 0 <= now - cut_at < _FORGIVEN_S:
                limit = in_flight
            elif began <= cut_at:
                return
            if limit <= 1:
                quiet_s = _QUIET_S if retry_after_s is None else retry_after_s
                quiet_until = now + min(quiet_s, _LONGEST_QUIET_S)
            self._file.write(_WINDOW, max(1, limit // 2), 0, now, quiet_until, at=_WINDOW_AT)

    def grow(self) -> None:
        """Count a good reply: a whole window of them widens it by one."""
        with self._file.locked():
            limit, good, cut_at, quiet_until = self._file.read(_WINDOW, _WINDOW_AT)
            if not limit:
                return
            good += 1
            if good >= limit:
                limit, good = min(limit + 1, _LARGEST_WINDOW), 0
            self._file.write(_WINDOW, limit, good, cut_at, quiet_until, at=_WINDOW_AT)


class _Origin:
    """What a process knows of an origin; slots and window once anybody was turned away."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self.in_flight = 0
        self.shared: tuple[Slots, Window] | None = None
        if path.exists():
            self.share()

    def share(self) -> Window:
        """Return the window, which the processes share from now on."""
        if self.shared is None:
            file = HostFile(self._path)
            self.shared = Slots(file, self._clock), Window(file, self._clock)
        return self.shared[1]


@dataclass(frozen=True, slots=True)
class _Rules:
    """What a function's clauses say, and where it is kept."""

    clock: Clock
    most: int = 0
    slots: Slots | None = None
    per_second: float = 0.0
    pace: Pace | None = None


# By process, because what a fork inherits of them would not be its own: locks above all.
_origins: dict[tuple[int, Path], _Origin] = {}
_slots: dict[tuple[int, Path], Slots] = {}
_paces: dict[tuple[int, Path], Pace] = {}


class Limits:
    """The limits of one function's calls, in any number of tasks of an event loop."""

    def __init__(self, plan: CallPlan, clock: Clock, *, folder: Path | None = None) -> None:
        """Prepare.

        Args:
            plan: The function, and among how many executors its rate is divided.
            clock: Waits.
            folder: Where files are shared; this user's private one if None.
        """
        function = plan.function
        self._clock = clock
        self._folder = folder or private_folder()
        name = (function.url, function.signature.name)
        rules = _Rules(clock)
        if function.max_in_flight is not None:
            slots = _slots_of(self._folder / file_name("slots", *name), clock)
            rules = replace(rules, most=function.max_in_flight, slots=slots)
        if function.rate_limit is not None:
            pace = _pace_of(self._folder / file_name("pace", *name), clock)
            per_second = function.rate_limit / plan.options.executors
            rules = replace(rules, per_second=per_second, pace=pace)
        self._rules = rules
        self._origins: dict[str, _Origin] = {}

    def turn(self, url: str) -> Turn:
        """Return what waits, entered by `async with`, until a call may be made, and ends with it.

        The time waited is nobody's failure: it should count towards no timeout of the call.
        """
        origin = self._origins.get(url)
        if origin is None:
            parts = urlsplit(url)
            path = self._folder / file_name("origin", parts.scheme, parts.netloc)
            origin = _origin_of(path, self._clock)
            self._origins[url] = origin
        return Turn(self._rules, origin)


class Turn:
    """One call that may be made, from when it is entered until it is left."""

    def __init__(self, rules: _Rules, origin: _Origin) -> None:
        self._rules = rules
        self._origin = origin
        self._given: list[tuple[Slots, int]] = []
        self._began = 0.0

    async def __aenter__(self) -> Self:
        rules, shared = self._rules, self._origin.shared
        try:
            if rules.slots is not None:
                self._given.append((rules.slots, await rules.slots.take(lambda: rules.most)))
            if shared is not None:
                slots, window = shared
                self._given.append((slots, await slots.take(window.allowed)))
            await self.again()
        except BaseException:
            self._give_back()
            raise
        self._origin.in_flight += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._origin.in_flight -= 1
        self._give_back()

    async def again(self) -> None:
        """Wait until one more request of the same call may be sent: a retry or a poll."""
        if self._rules.pace is not None:
            await self._rules.pace.turn(self._rules.per_second)
        self._began = self._rules.clock.monotonic()

    def answered(self) -> None:
        """Say that the origin answered well: after a while it is asked by more at a time."""
        if self._origin.shared is not None:
            self._origin.share().grow()

    def turned_away(self, retry_after_s: float | None = None) -> None:
        """Say that the origin is too busy (429, 503): it is asked by half as many at a time.

        Args:
            retry_after_s: What its Retry-After said. That is for the call's own retry; others
                wait for it, half a minute at most, only where one at a time was too much.
        """
        self._origin.share().cut(self._began, self._origin.in_flight, retry_after_s)

    def _give_back(self) -> None:
        while self._given:
            slots, slot = self._given.pop()
            slots.give(slot)


def _slots_of(path: Path, clock: Clock) -> Slots:
    key = (os.getpid(), path)
    return _slots.get(key) or _slots.setdefault(key, Slots(HostFile(path), clock))


def _pace_of(path: Path, clock: Clock) -> Pace:
    key = (os.getpid(), path)
    return _paces.get(key) or _paces.setdefault(key, Pace(HostFile(path), clock))


def _origin_of(path: Path, clock: Clock) -> _Origin:
    key = (os.getpid(), path)
    return _origins.get(key) or _origins.setdefault(key, _Origin(path, clock))
