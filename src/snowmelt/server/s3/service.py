"""The S3 endpoint's parts, built and joined; it listens on a port of its own, in a thread."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from snowmelt.buckets.bucket_registry import BucketRegistry, mount_backends, mount_stage
from snowmelt.buckets.local_bucket import delete_dropped_files, delete_orphaned_files
from snowmelt.buckets.multipart import MultipartUploads
from snowmelt.config import set_numba_cache_dir
from snowmelt.ingest.stage_locations import STAGE_BUCKET
from snowmelt.server.app import DEVELOPER
from snowmelt.server.listener import Listener
from snowmelt.server.metrics import Counted, Requests
from snowmelt.server.s3.authentication import Door
from snowmelt.server.s3.endpoint import Endpoint
from snowmelt.server.s3.request_context import Parts
from snowmelt.storage.local_store import LocalStore

if TYPE_CHECKING:
    import asyncio
    import socket

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.security.encryption_keys import KeyRing
    from snowmelt.clock import Clock
    from snowmelt.config import Settings
    from snowmelt.server.metrics import Sources
    from snowmelt.server.s3.select_operation import Selecting
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
        mounts = mount_backends(database, clock, settings.s3_backend)
        if stage is not None:
            mounts |= mount_stage(database, clock, STAGE_BUCKET, stage)
        self.directory = BucketRegistry(
            database, LocalStore(settings.objects_dir), clock, mounts=mounts
        )
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="s3")
        self._hashers = ThreadPoolExecutor(_HASHERS, thread_name_prefix="s3-hash")
        parts = Parts(
            settings, self.directory, MultipartUploads(self.directory), self._threads, self._hashers
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
                    removed = delete_orphaned_files(database, files, self._swept_before())
                    swept = True
                    if removed:
                        _log.info("removed %d files that a crash left behind", removed)
                delete_dropped_files(database, files)
            except Exception:  # noqa: BLE001 - the next round may work
                _log.exception("tidying up objects failed; trying again")
            self._stopping.wait(self._settings.cleanup_interval_s)


def _selecting(settings: Settings) -> Selecting | None:
    set_numba_cache_dir(settings.data_dir / "compiled")
    try:
        from snowmelt.server.s3.select_operation import Selecting
    except ModuleNotFoundError as error:
        _log.warning("no S3 Select: %s is missing; install snowmelt[select]", error.name)
        return None
    return Selecting(settings)


# --- HTTP as uvicorn reads it, with limits on the size of a request's head and on its time.

MOST_HEAD_BYTES = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose request line and headers go on and on, or come drop by drop.

    The parser itself collects a header for as long as it comes, and nobody else waits for its end:
    a few thousand connections that never say what they want would hold all there are.
    """

    # How long a head may take to come, in seconds.
    head_timeout_s = 30.0

    _head_bytes = 0
    _in_head = True
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait: a client connects to say something."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to no body, then go on."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._deadline is None:
                self._wait_for_head()
        super().data_received(data)
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request line and headers are too large.")

    def on_headers_complete(self) -> None:
        """Stop to count, and to wait."""
        self._in_head = False
        self._forget_deadline()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Count again from here: the next bytes are another request's."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _wait_for_head(self) -> None:
        self._deadline = self.loop.call_later(self.head_timeout_s, self._give_up)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
