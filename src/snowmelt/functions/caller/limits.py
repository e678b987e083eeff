"""How many calls, how often: limits that all worker processes of a machine share.

RATE_LIMIT and MAX_IN_FLIGHT of a function hold for the machine; a rate is divided by the number of
executors that the plan names. Besides, an origin that answers 429 or 503 is asked by half as many
at a time, and by one more for each round of good replies. Only the number of calls in flight
changes, never what is in a batch. Where nothing is limited, no file is touched.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from snowmelt.functions.caller.shared_files import HostFile, file_name, private_folder, remove_old
from snowmelt.functions.errors import BudgetExceeded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from snowmelt.clock import Clock
    from snowmelt.functions.caller.plan import CallPlan, Place

# --- So many a second, over all worker processes of a machine.

_NEXT = struct.Struct("=d")
# What a loop that woke late may make up for; it bounds the burst after a pause, too.
_MADE_UP_S = 0.05


class Pace:
    """Requests of all processes at equal distances; one object for a file in each process.

    The file holds the instant of the next request. Each process books one instant at a time, so
    processes take turns, and one that dies wastes a single request.
    """

    def __init__(self, file: HostFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def turn(self, per_second: float) -> None:
        """Wait until a request may be sent."""
        queue = self._queues.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with queue:
            at, following = self._book(1.0 / per_second)
            try:
                await self._clock.pause(at - self._clock.monotonic())
            except asyncio.CancelledError:
                self._give_back(at, following)
                raise

    def _book(self, distance_s: float) -> tuple[float, float]:
        with self._file.locked():
            (at,) = self._file.read(_NEXT)
            at = max(at, self._clock.monotonic() - _MADE_UP_S)
            self._file.write(_NEXT, at + distance_s)
            return at, at + distance_s

    def _give_back(self, at: float, following: float) -> None:
        with self._file.locked():
            if self._file.read(_NEXT) == (following,):
                self._file.write(_NEXT, at)


# --- So many at a time, over all worker processes of a machine.

_CONTENDED = struct.Struct("=d")
# A process that waits for others looks so often: no process can wake another one's loop cheaply.
_LOOK_S = 0.004
# So long a process hands its slots on to its own batches while others wait for one.
_HANDED_ON_S = 0.1
# As long is a process that waits for others believed to wait still.
_BELIEVED_S = 0.05


class _Waiter:
    """A task that waits, woken when it may look again."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self.loop.create_future()

    async def woken(self, timeout_s: float | None) -> None:
        await asyncio.wait((self._woken,), timeout=timeout_s)
        if self._woken.done():
            self._woken = self.loop.create_future()

    def wake(self) -> None:
        self.loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)


class Slots:
    """Slots of one file; one object for a file in each process.

    Within a process, whoever came first is first. Among processes that wait for each other, each
    lets go of a slot after a tenth of a second and looks for another only after a pause. A slot is
    a lock of the operating system: it is free as soon as its process is dead.
    """

    def __init__(self, file: HostFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._since: dict[int, float] = {}
        self._handed_on: list[int] = []
        self._waiting: deque[_Waiter] = deque()
        self._resting_until = 0.0
        self._lock = threading.Lock()

    async def take(self, allowed: Callable[[], int]) -> int:
        """Wait for a slot and return it.

        Args:
            allowed: How many there are just now; asked again while waiting.
        """
        if not self._waiting:
            slot = self._take(allowed())
            if slot is not None:
                return slot
        me = _Waiter()
        self._waiting.append(me)
        try:
            while True:
                first = self._waiting[0] is me
                slot = self._take(allowed()) if first else None
                if slot is not None:
                    return slot
                await me.woken(_LOOK_S if first else None)
        finally:
            self._leave(me)

    def give(self, slot: int) -> None:
        """Give a slot back."""
        with self._lock:
            now = self._clock.monotonic()
            if self._waiting and not self._others_turn(slot, now):
                self._handed_on.append(slot)
            else:
                self._let_go(slot)
                if self._waiting:
                    self._resting_until = now + 2 * _LOOK_S
        self._wake_first()

    def _take(self, allowed: int) -> int | None:
        with self._lock:
            now = self._clock.monotonic()
            while self._handed_on:
                slot = self._handed_on.pop()
                if slot < allowed:
                    return slot
                self._let_go(slot)
            if now < self._resting_until:
                return None
            # Processes begin at different places, so that they seldom try each other's slots.
            begin = os.getpid() * 7
            for at in range(allowed):
                slot = (begin + at) % allowed
                if slot not in self._since and self._file.hold(slot):
                    self._since[slot] = now
                    return slot
            if len(self._since) < allowed:
                self._file.write(_CONTENDED, now)
            return None

    def _others_turn(self, slot: int, now: float) -> bool:
        if now - self._since[slot] < _HANDED_ON_S:
            return False
        (contended,) = self._file.read(_CONTENDED)
        return bool(now - contended < _BELIEVED_S)

    def _let_go(self, slot: int) -> None:
        del self._since[slot]
        self._file.let_go(slot)

    def _leave(self, waiter: _Waiter) -> None:
        self._waiting.remove(waiter)
        if not self._waiting:
            with self._lock:
                while self._handed_on:
                    self._let_go(self._handed_on.pop())
        self._wake_first()

    def _wake_first(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if not first.loop.is_closed():
                first.wake()
                return
            self._waiting.popleft()


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


# --- How much a query may spend: rows and calls, per task and over the processes of a machine.
#
# A call is one request: a retry and a poll are calls, too.

_SPENT = struct.Struct("=QQ")
# A query's file is of no use once the query is over, and none lasts for so long.
_KEPT_S = 7 * 24 * 3600.0


class Budget:
    """What one task may still spend; for any number of threads, to be closed at the end.

    What was spent is not given back: a retry is another call, and so is a task's next attempt.
    """

    def __init__(
        self, plan: CallPlan, place: Place, clock: Clock, *, folder: Path | None = None
    ) -> None:
        """Prepare; without a budget of the query, no file is touched.

        Args:
            plan: Its options hold the limits; those of a query are divided among executors.
            place: Which query.
            clock: Tells which old files may go.
            folder: Where files are shared; this user's private one if None.
        """
        options = plan.options
        self._function = plan.function.signature.name
        self._task = (options.max_rows_per_task, options.max_calls_per_task)
        self._said = (options.max_rows_per_query, options.max_calls_per_query)
        self._machines = options.executors
        # Shares that together are never more than the whole; less than one each is none.
        self._query = tuple(
            None if limit is None else limit // self._machines for limit in self._said
        )
        self._limited = self._task != (None, None)
        self._spent = (0, 0)
        self._lock = threading.Lock()
        self._file: HostFile | None = None
        if self._query != (None, None):
            folder = folder or private_folder()
            path = folder / file_name("budget", place.query_id)
            if not path.exists():
                remove_old(folder, "budget", clock, _KEPT_S)
            self._file = HostFile(path)

    def spend(self, *, rows: int = 0, calls: int = 1) -> None:
        """Spend before a request is sent; nothing is spent where it is refused.

        Args:
            rows: In the request; 0 for one that is sent again.
            calls: Requests.

        Raises:
            BudgetExceeded: It would be more than a setting allows.
        """
        if self._limited:
            with self._lock:
                self._spent = self._added(self._spent, (rows, calls), self._task, "task")
        if self._file is not None:
            with self._file.locked():
                spent = self._file.read(_SPENT)
                spent = self._added((spent[0], spent[1]), (rows, calls), self._query, "query")
                self._file.write(_SPENT, *spent)

    def close(self) -> None:
        """Close the query's file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _added(
        self,
        spent: tuple[int, int],
        more: tuple[int, int],
        limits: tuple[int | None, ...],
        whose: str,
    ) -> tuple[int, int]:
        total = (spent[0] + more[0], spent[1] + more[1])
        for at, what in enumerate(("rows", "calls")):
            limit = limits[at]
            if limit is not None and total[at] > limit:
                shared = whose == "query" and self._machines > 1
                raise BudgetExceeded(
                    function=self._function,
                    what=what,
                    limit=self._said[at] if shared else limit,
                    setting=f"max_{what}_per_{whose}",
                    share=f" (the share of each of {self._machines} machines is {limit})"
                    if shared
                    else "",
                )
        return total
