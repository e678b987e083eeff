"""Circuit breakers of services, and the cache of batches that failed permanently.

A breaker opens after several consecutive failed batches. All worker processes of a machine share
the state of a URL, so one process's failures protect the others.

Failed batches are cached so that the next attempt of a task fails immediately instead of calling
again. Spark ends a worker process whose task failed, so the cache is in files, one per batch. Only
attempts after the first read it: a query that is started anew sends its batches anew.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from snowmelt.clock import Clock
from snowmelt.functions.caller.shared_files import (
    SharedFile,
    ensure_private_folder,
    make_shared_file_name,
    share_in_process,
)
from snowmelt.functions.errors import CallFailed, CircuitOpen

if TYPE_CHECKING:
    from snowmelt.functions.caller.plan import QueryPosition

_FAILURE_THRESHOLD = 5
_OPEN_DURATION_S = 30.0
# A service that says so is well; it is what was sent that it does not take.
_BATCH_ERROR_STATUSES = frozenset({400, 413, 422})
_MAX_REASON_BYTES = 1_000
_STATE_FORMAT = struct.Struct(f"=QddH{_MAX_REASON_BYTES}s")


class _BreakerState(NamedTuple):
    """`opened_at` in seconds since 1970, `probe_at` monotonic; both 0 while the breaker is closed."""

    consecutive_failures: int = 0
    opened_at: float = 0.0
    probe_at: float = 0.0
    reason: str = ""


class CircuitBreaker:
    """What one URL's batches came to lately; for any number of threads and processes.

    It opens after so many batches in a row that failed for good. After the pause one batch goes
    through: if it is answered all may, if it fails the pause begins again.
    """

    def __init__(
        self,
        clock: Clock,
        file: SharedFile,
        *,
        failure_threshold: int = _FAILURE_THRESHOLD,
        open_duration_s: float = _OPEN_DURATION_S,
    ) -> None:
        self._clock = clock
        self._file = file
        self._failure_threshold = failure_threshold
        self._open_duration_s = open_duration_s

    def check_call_allowed(self, function: str) -> None:
        """Let a batch through, or not.

        Raises:
            CircuitOpen: Too many have failed, and the pause is not over.
        """
        if not self._read_state().opened_at:
            return
        with self._file.locking():
            state = self._read_state()
            if not state.opened_at:
                return
            now = self._clock.monotonic()
            if now >= state.probe_at:
                # Others wait for the probe's outcome; one that never comes to an end does not
                # keep them out for longer than another pause.
                self._write_state(state._replace(probe_at=now + self._open_duration_s))
                return
        raise CircuitOpen(
            function=function,
            failures=state.consecutive_failures,
            since=dt.datetime.fromtimestamp(state.opened_at, dt.UTC).isoformat(
                sep=" ", timespec="seconds"
            ),
            reason=state.reason,
            seconds=state.probe_at - now,
        )

    def record_success(self) -> None:
        """Count a batch that was answered."""
        if self._read_state().consecutive_failures:
            with self._file.locking():
                self._write_state(_BreakerState())

    def record_failure(self, reason: str, status: int | None = None) -> None:
        """Count a batch that failed for good, unless only this batch is to blame.

        `reason`: It is shown for other batches, too.
        """
        if status in _BATCH_ERROR_STATUSES:
            return
        with self._file.locking():
            failed, opened_at, probe_at, _ = self._read_state()
            failed += 1
            if failed >= self._failure_threshold:
                opened_at = opened_at or self._clock.now().timestamp()
                probe_at = self._clock.monotonic() + self._open_duration_s
            self._write_state(_BreakerState(failed, opened_at, probe_at, reason.rstrip(".")))

    def _read_state(self) -> _BreakerState:
        failed, since, probe_at, size, reason = self._file.read_numbers(_STATE_FORMAT)
        return _BreakerState(failed, since, probe_at, reason[:size].decode(errors="replace"))

    def _write_state(self, state: _BreakerState) -> None:
        *numbers, reason = state
        text = reason.encode(errors="replace")[:_MAX_REASON_BYTES]
        self._file.write_numbers(_STATE_FORMAT, *numbers, len(text), text)


def get_circuit_breaker(url: str, clock: Clock, *, folder: Path | None = None) -> CircuitBreaker:
    """Return the breaker that all calls of this machine and user to a URL share."""
    path = (folder or ensure_private_folder()) / make_shared_file_name("breaker", url)
    return share_in_process(path, lambda: CircuitBreaker(clock, SharedFile(path)))


_FAILURE_TTL_S = 600.0
_MAX_CACHED_FAILURES = 1000


class FailedBatchCache:
    """What the processes of this machine remember for one attempt at a task."""

    def __init__(
        self,
        position: QueryPosition,
        clock: Clock,
        *,
        folder: Path | None = None,
        max_batches: int = _MAX_CACHED_FAILURES,
    ) -> None:
        self._max_batches = max_batches
        self._clock = clock
        self._folder = folder or ensure_private_folder()
        task = (position.query_id, str(position.stage), str(position.partition))
        self._prefix = make_shared_file_name("failed", *task)
        # Mostly there are none: then no batch costs a look.
        known = [*self._folder.glob(f"{self._prefix}-*")]
        if position.attempt == 0:
            for path in known:
                path.unlink(missing_ok=True)
        self._has_failures = position.attempt > 0 and bool(known)

    def raise_cached_failure(self, batch_id: str) -> None:
        """Return if the batch may be sent.

        Raises:
            CallFailed: An earlier attempt on this machine sent it, and it failed for good.
        """
        if not self._has_failures:
            return
        path = self._make_failure_path(batch_id)
        try:
            if path.stat().st_mtime < self._clock.now().timestamp() - _FAILURE_TTL_S:
                return
            fields = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            return
        raise CallFailed(**fields)

    def cache_failure(self, batch_id: str, error: CallFailed) -> None:
        """Keep why a batch failed, for ten minutes.

        What the error says lies in the file; it holds payload only if errors may show some.
        """
        path = self._make_failure_path(batch_id)
        now = self._clock.now().timestamp()
        found = []
        # Drafts, too: those of a process that was killed.
        for each in self._folder.glob("*failed-*"):
            with contextlib.suppress(FileNotFoundError):
                found.append((each.stat().st_mtime, each))
        found.sort(reverse=True)
        for at, (written, each) in enumerate(found, start=2):
            if at > self._max_batches or written < now - _FAILURE_TTL_S:
                each.unlink(missing_ok=True)
        # As a whole or not at all: another attempt may be reading.
        draft = path.with_name(f"draft-{os.getpid()}-{path.name}")
        draft.write_text(json.dumps(error.fields))
        os.utime(draft, (now, now))
        draft.replace(path)

    def _make_failure_path(self, batch_id: str) -> Path:
        return self._folder / f"{self._prefix}-{make_shared_file_name('batch', batch_id)}"
