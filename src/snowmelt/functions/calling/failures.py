"""Batches that failed for good, so that a task's next attempt fails at once instead of calling.

Spark ends a worker process whose task failed, so the memory is in files, one a batch. Only an
attempt after the first looks there: a query that is started anew asks anew.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from snowmelt.functions.calling.host import file_name, private_folder
from snowmelt.functions.refusals import CallFailed

if TYPE_CHECKING:
    from pathlib import Path

    from snowmelt.clock import Clock
    from snowmelt.functions.calling.plan import Place

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
