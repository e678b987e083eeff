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
    """Makes durable what lies on the stage; one for all who register what lies there.

    The kernel tells of pages that it could not write once. Whoever hears of it must tell all others
    whose blobs were not on the disk yet, or their next sync would succeed without these.
    """

    def __init__(self, stage: Store, verifier: RegistrationVerifier, clock: Clock) -> None:
        self._stage = stage
        self._verifier = verifier
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        # Before any blob is read: what is put from now on cannot be lost unheard.
        stage.watch_writes()

    @property
    def failure_count(self) -> int:
        """How many syncs have failed; remember it before a blob is put, or read to be verified."""
        return self._failures

    def sync(self, failures_before: int) -> bool:
        """Make durable what was put; False when a sync has failed since `failure_count` was that.

        Raises:
            StageUnavailable: The stage cannot be reached; nothing was tried.
        """
        # One at a time: who succeeds while another one fails would not have heard of it.
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
