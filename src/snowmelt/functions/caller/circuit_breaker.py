"""A service that failed several batches in a row is left alone for a while.

All worker processes of a machine share what they know of a URL: a service that is down is not found
to be down by each of them anew.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.functions.caller.shared_files import HostFile, file_name, private_folder
from snowmelt.functions.errors import CallFailed, CircuitOpen

if TYPE_CHECKING:
    from pathlib import Path

    from snowmelt.clock import Clock
    from snowmelt.functions.caller.plan import Place

_FAILURES = 5
_PAUSE_S = 30.0
# A service that says so is well; it is what was sent that it does not take.
_OF_THE_BATCH = frozenset({400, 413, 422})
_MAX_REASON_BYTES = 1_000
_STATE = struct.Struct(f"=QddH{_MAX_REASON_BYTES}s")


@dataclass(frozen=True, slots=True)
class _State:
    """`since` in seconds since 1970, `probe_at` monotonic; both 0 while the breaker is closed."""

    failed: int = 0
    since: float = 0.0
    probe_at: float = 0.0
    reason: str = ""


class Breaker:
    """What one URL's batches came to lately; for any number of threads and processes.

    It opens after so many batches in a row that failed for good. After the pause one batch goes
    through: if it is answered all may, if it fails the pause begins again.
    """

    def __init__(
        self, clock: Clock, file: HostFile, *, failures: int = _FAILURES, pause_s: float = _PAUSE_S
    ) -> None:
        self._clock = clock
        self._file = file
        self._limit = failures
        self._pause_s = pause_s

    def check(self, function: str) -> None:
        """Let a batch through, or not.

        Raises:
            CircuitOpen: Too many have failed, and the pause is not over.
        """
        if not self._read().since:
            return
        with self._file.locked():
            state = self._read()
            if not state.since:
                return
            now = self._clock.monotonic()
            if now >= state.probe_at:
                # Others wait for the probe's outcome; one that never comes to an end does not
                # keep them out for longer than another pause.
                self._write(state.failed, state.since, now + self._pause_s, state.reason)
                return
        raise CircuitOpen(
            function=function,
            failures=state.failed,
            since=dt.datetime.fromtimestamp(state.since, dt.UTC).isoformat(
                sep=" ", timespec="seconds"
            ),
            reason=state.reason,
            seconds=state.probe_at - now,
        )

    def succeeded(self) -> None:
        """Count a batch that was answered."""
        if self._read().failed:
            with self._file.locked():
                self._write(0, 0.0, 0.0, "")

    def failed(self, reason: str, status: int | None = None) -> None:
        """Count a batch that failed for good, unless only this batch is to blame.

        Args:
            reason: It is shown for other batches, too.
            status: Of the last reply.
        """
        if status in _OF_THE_BATCH:
            return
        with self._file.locked():
            state = self._read()
            failed, since, probe_at = state.failed + 1, state.since, state.probe_at
            if failed >= self._limit:
                since = since or self._clock.now().timestamp()
                probe_at = self._clock.monotonic() + self._pause_s
            self._write(failed, since, probe_at, reason.rstrip("."))

    def _read(self) -> _State:
        failed, since, probe_at, size, reason = self._file.read(_STATE)
        return _State(failed, since, probe_at, reason[:size].decode(errors="replace"))

    def _write(self, failed: int, since: float, probe_at: float, reason: str) -> None:
        text = reason.encode(errors="replace")[:_MAX_REASON_BYTES]
        self._file.write(_STATE, failed, since, probe_at, len(text), text)


# By process, because a fork shares its parent's position of locks.
_breakers: dict[tuple[int, Path], Breaker] = {}


def breaker_of(url: str, clock: Clock, *, folder: Path | None = None) -> Breaker:
    """Return the breaker that all calls of this machine and user to a URL share.

    Args:
        url: Of the function.
        clock: Of the process.
        folder: Where files are shared; this user's private one if None.
    """
    path = (folder or private_folder()) / file_name("breaker", url)
    key = (os.getpid(), path)
    return _breakers.get(key) or _breakers.setdefault(key, Breaker(clock, HostFile(path)))


# --- Batches that failed for good, so that a task's next attempt fails at once instead of calling.
#
# Spark ends a worker process whose task failed, so the memory is in files, one a batch. Only an
# attempt after the first looks there: a query that is started anew asks anew.

_KEPT_S = 600.0
_MOST = 1000


class Failures:
    """What the processes of this machine remember for one attempt at a task."""

    def __init__(
        self, place: Place, clock: Clock, *, folder: Path | None = None, most: int = _MOST
    ) -> None:
        """Prepare.

        Args:
            place: Which attempt.
            clock: Tells what is too old.
            folder: Where files are shared; this user's private one if None.
            most: How many batches are remembered.
        """
        self._most = most
        self._clock = clock
        self._folder = folder or private_folder()
        task = (place.query_id, str(place.stage), str(place.partition))
        self._prefix = file_name("failed", *task)
        # Mostly there are none: then no batch costs a look.
        known = [*self._folder.glob(f"{self._prefix}-*")]
        if place.attempt == 0:
            for path in known:
                path.unlink(missing_ok=True)
        self._any = place.attempt > 0 and bool(known)

    def recall(self, batch_id: str) -> None:
        """Return if the batch may be sent.

        Raises:
            CallFailed: An earlier attempt on this machine sent it, and it failed for good.
        """
        if not self._any:
            return
        path = self._path(batch_id)
        try:
            if path.stat().st_mtime < self._clock.now().timestamp() - _KEPT_S:
                return
            fields = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            return
        raise CallFailed(**fields)

    def remember(self, batch_id: str, error: CallFailed) -> None:
        """Keep why a batch failed, for ten minutes.

        What the error says lies in the file; it holds payload only if errors may show some.
        """
        path = self._path(batch_id)
        self._make_room(path.parent)
        # As a whole or not at all: another attempt may be reading.
        draft = path.with_name(f"draft-{os.getpid()}-{path.name}")
        draft.write_text(json.dumps(error.fields))
        now = self._clock.now().timestamp()
        os.utime(draft, (now, now))
        draft.replace(path)

    def _path(self, batch_id: str) -> Path:
        return self._folder / f"{self._prefix}-{file_name('batch', batch_id)}"

    def _make_room(self, folder: Path) -> None:
        found = []
        # Drafts, too: those of a process that was killed.
        for path in folder.glob("*failed-*"):
            try:
                found.append((path.stat().st_mtime, path))
            except FileNotFoundError:
                continue
        oldest = self._clock.now().timestamp() - _KEPT_S
        found.sort(reverse=True)
        for at, (written, path) in enumerate(found, start=2):
            if at > self._most or written < oldest:
                path.unlink(missing_ok=True)
