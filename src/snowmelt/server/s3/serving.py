"""The S3 endpoint's parts, built and joined; it listens on a port of its own, in a thread."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from snowmelt.buckets.cleanup import delete_dropped, sweep
from snowmelt.buckets.directory import Directory, mount, mount_stage
from snowmelt.buckets.uploads import Uploads
from snowmelt.config import keep_compiled_code
from snowmelt.ingest.handing import STAGE_BUCKET
from snowmelt.server.app import DEVELOPER
from snowmelt.server.counting import Counted, Requests
from snowmelt.server.listening import Listener
from snowmelt.server.s3.calls import Parts
from snowmelt.server.s3.door import Door
from snowmelt.server.s3.endpoint import Endpoint
from snowmelt.server.s3.protocol import BoundedProtocol
from snowmelt.storage.local import LocalStore

if TYPE_CHECKING:
    import socket

    from snowmelt.catalog.database import Database
    from snowmelt.catalog.keys import KeyRing
    from snowmelt.clock import Clock
    from snowmelt.config import Settings
    from snowmelt.server.metrics import Sources
    from snowmelt.server.s3.selecting import Selecting
    from snowmelt.server.tls import Certificate
    from snowmelt.storage.store import Store

_log = logging.getLogger("snowmelt.server")

_THREADS = 16
# Longer than anything takes that another service is writing.
_SHARED_FOR = dt.timedelta(days=1)
_HASHERS = 2


class S3Service:
    """The endpoint with its threads; `start` answers, `close` stops."""

    def __init__(  # noqa: PLR0913 - the parts of a service, joined once
        self,
        settings: Settings,
        listening: socket.socket,
        database: Database,
        keyring: KeyRing,
        clock: Clock,
        *,
        stage: Store | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        """Open stores and prepare to answer on a socket that listens.

        Raises:
            ConfigurationError: If a backend cannot be opened.
        """
        self._began = clock.now()
        self._settings = settings
        mounts = mount(database, clock, settings.s3_backend)
        if stage is not None:
            mounts |= mount_stage(database, clock, STAGE_BUCKET, stage)
        self.directory = Directory(database, LocalStore(settings.objects_dir), clock, mounts=mounts)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="s3")
        self._hashers = ThreadPoolExecutor(_HASHERS, thread_name_prefix="s3-hash")
        parts = Parts(
            settings, self.directory, Uploads(self.directory), self._threads, self._hashers
        )
        self._selecting = _selecting(settings)
        self.endpoint = Endpoint(
            Door(
                database,
                keyring,
                clock,
                region=settings.s3_region,
                anonymous_user=DEVELOPER if settings.dev else None,
            ),
            parts,
            domains=[each.strip() for each in settings.s3_domains.lower().split(",") if each],
            select=self._selecting,
        )
        self._requests = Requests()
        self._listener = Listener(
            Counted(self.endpoint, self._requests),
            listening,
            drain_s=settings.drain_s,
            protocol=BoundedProtocol,
            certificate=certificate,
        )
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep_house, name="s3-house", daemon=True)

    @property
    def url(self) -> str:
        """Where it answers."""
        return self._listener.url

    def tell(self, sources: Sources) -> None:
        """Add this endpoint's numbers to those of the service."""
        sources.requests["s3"] = self._requests
        if self._selecting is not None:
            sources.selects.append(self._selecting.counts)

    def start(self) -> None:
        """Answer requests, and tidy up behind them, in threads."""
        self._listener.start("s3")
        self._keeper.start()
        if self._selecting is not None:
            self._selecting.start()

    def close(self) -> None:
        """Finish open requests and stop."""
        self._stopping.set()
        self._listener.close()
        if self._keeper.ident is not None:
            self._keeper.join()
        self._threads.shutdown()
        self._hashers.shutdown()
        if self._selecting is not None:
            self._selecting.close()

    def _swept_before(self) -> dt.datetime:
        """Return how old it must be what nobody needs: others may be writing to a folder elsewhere."""
        settings = self._settings
        if settings.objects_dir.is_relative_to(settings.data_dir):
            return self._began
        return self._began - _SHARED_FOR

    def _keep_house(self) -> None:
        swept = False
        while not self._stopping.is_set():
            database, files = self.directory.database, self.directory.files
            try:
                if not swept:
                    removed = sweep(database, files, self._swept_before())
                    swept = True
                    if removed:
                        _log.info("removed %d files that a crash left behind", removed)
                delete_dropped(database, files)
            except Exception:  # noqa: BLE001 - the next round may work
                _log.exception("tidying up objects failed; trying again")
            self._stopping.wait(self._settings.cleanup_interval_s)


def _selecting(settings: Settings) -> Selecting | None:
    keep_compiled_code(settings.data_dir / "compiled")
    try:
        from snowmelt.server.s3.selecting import Selecting
    except ModuleNotFoundError as error:
        _log.warning("no S3 Select: %s is missing; install snowmelt[select]", error.name)
        return None
    return Selecting(settings)
