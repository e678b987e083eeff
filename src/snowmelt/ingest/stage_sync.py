"""Sync of the stage before commit; after a failed sync, blobs on the stage are rejected.

The file system of the stage is held open from start to end, so no failed write is missed,
whichever program receives the error first. Blobs that were staged before the start are read from
the disk (`RegistrationVerifier`).
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

    The kernel reports a failed write only once. So a failed sync must be reported to everyone whose
    blobs were not durable yet; otherwise their next sync would succeed without these blobs.
    """

    def __init__(self, stage: Store, verifier: RegistrationVerifier, clock: Clock) -> None:
        self._stage = stage
        self._verifier = verifier
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        # Opened before any blob is read, so that no later failed write goes unreported.
        stage.watch_writes()

    @property
    def failure_count(self) -> int:
        """Number of failed syncs. Read it before a blob is written, or read for verification."""
        return self._failures

    def sync(self, failures_before: int) -> bool:
        """Make written blobs durable; return False if a sync failed after `failure_count` was read.

        Raises:
            StageUnavailable: If the stage cannot be reached; no sync was tried.
        """
        # One sync at a time: a sync that succeeds during another's failure would miss the error.
        with self._lock:
            try:
                self._stage.sync()
            except SyncFailed as error:
                self._failures += 1
                self._verifier.reject_blobs_before(self._clock.now())
                _log.critical(
                    "%s Blobs that were staged before and are not registered are refused from now"
                    " on; check the disk.",
                    error,
                )
            return self._failures == failures_before
