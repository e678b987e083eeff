"""Sync of the stage before commit; after a failed sync, blobs on the stage are rejected.

A descriptor of the stage's file system stays open while the service runs. So the service receives
every write error, even if another program receives it first. `RegistrationVerifier` reads blobs
that were staged before the start from the disk.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from snowmelt.clock import Clock
from snowmelt.errors import SyncFailed
from snowmelt.storage.store import Store

if TYPE_CHECKING:
    from snowmelt.ingest.registration_verifier import RegistrationVerifier

_log = logging.getLogger("snowmelt.ingest")


class StageSync:
    """Makes blobs on the stage durable. All users of a stage share one instance.

    The kernel reports a failed write only once per descriptor. A failed sync must therefore be
    reported to all users whose blobs were not durable yet. Otherwise their next sync would succeed
    although blobs were lost.
    """

    def __init__(self, stage: Store, verifier: RegistrationVerifier, clock: Clock) -> None:
        self._stage = stage
        self._verifier = verifier
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        # Open it before any blob is read, so that all later failed writes are reported.
        stage.watch_writes()

    @property
    def failure_count(self) -> int:
        """Number of failed syncs. Callers read it before they write or verify a blob."""
        return self._failures

    def sync(self, failures_before: int) -> bool:
        """Make written blobs durable. Return False if a sync has failed since `failure_count` was read.

        Raises:
            StageUnavailable: If the stage cannot be reached. No sync was attempted.
        """
        # Run one sync at a time: a sync that is concurrent to a failing one could miss the error.
        with self._lock:
            try:
                self._stage.sync()
            except SyncFailed as error:
                self._failures += 1
                self._verifier.reject_blobs_before(self._clock.now())
                _log.critical(
                    "%s Blobs that were staged before this failure and are not registered are"
                    " rejected.",
                    error,
                )
            return self._failures == failures_before
