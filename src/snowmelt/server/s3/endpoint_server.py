"""S3 service: builds the endpoint and runs it in a thread on a separate port.

Includes the HTTP protocol class that limits the size and the duration of a request head.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from snowmelt.buckets.bucket_registry import BucketRegistry, mount_backends, mount_stage
from snowmelt.buckets.local_bucket import delete_dropped_files, delete_orphaned_files
from snowmelt.buckets.multipart import MultipartUploads
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.clock import Clock
from snowmelt.config import Settings, set_numba_cache_dir
from snowmelt.ingest.stage_locations import STAGE_BUCKET
from snowmelt.server.app import DEV_USER
from snowmelt.server.listener import HttpListener, TlsCertificate
from snowmelt.server.metrics import CountingMiddleware, MetricSources, RequestCounts
from snowmelt.server.s3.authentication import S3Authenticator
from snowmelt.server.s3.endpoint import S3Endpoint
from snowmelt.server.s3.request_context import S3Components
from snowmelt.server.s3.responses import WRITE_CHUNK
from snowmelt.server.s3.table_access import TableFileAccess
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store import Store
from snowmelt.table.warehouse_paths import open_warehouse

if TYPE_CHECKING:
    from snowmelt.server.s3.select_operation import SelectOperation

_log = logging.getLogger("snowmelt.server")

_THREAD_COUNT = 16
# Minimum age of unreferenced files to delete. Longer than any upload of another service takes.
_SHARED_FOLDER_MARGIN = dt.timedelta(days=1)
_HASH_THREAD_COUNT = 2


class S3Service:
    """The S3 endpoint with its threads."""

    def __init__(
        self,
        settings: Settings,
        listening_socket: socket.socket,
        database: Database,
        keyring: KeyRing,
        clock: Clock,
        *,
        stage: Store | None = None,
        certificate: TlsCertificate | None = None,
    ) -> None:
        """Open stores and build the endpoint.

        Args:
            settings: Settings of the service.
            listening_socket: Socket that already listens.
            database: The catalog.
            keyring: Keys of the catalog.
            clock: Clock.
            stage: Store of the stage. None: the endpoint does not serve the stage.
            certificate: TLS certificate. None: no TLS.

        Raises:
            ConfigurationError: If a backend cannot be opened.
        """
        self._clock = clock
        self._started_at = clock.now()
        self._settings = settings
        mounts = mount_backends(database, clock, settings.s3_backend)
        if stage is not None:
            mounts |= mount_stage(database, clock, STAGE_BUCKET, stage)
        self.bucket_registry = BucketRegistry(
            database, LocalStore(settings.objects_dir), clock, mounts=mounts
        )
        self._threads = ThreadPoolExecutor(_THREAD_COUNT, thread_name_prefix="s3")
        self._hash_threads = ThreadPoolExecutor(_HASH_THREAD_COUNT, thread_name_prefix="s3-hash")
        parts = S3Components(
            settings,
            self.bucket_registry,
            MultipartUploads(self.bucket_registry),
            self._threads,
            self._hash_threads,
        )
        self._select_operation = _make_select_operation(settings)
        self.endpoint = S3Endpoint(
            S3Authenticator(
                database,
                keyring,
                clock,
                region=settings.s3_region,
                anonymous_user=DEV_USER if settings.dev else None,
            ),
            parts,
            domains=[each.strip() for each in settings.s3_domains.lower().split(",") if each],
            table_access=TableFileAccess(database, open_warehouse(settings.warehouse_url), clock),
            select=self._select_operation,
        )
        self._request_counts = RequestCounts()
        self._listener = HttpListener(
            CountingMiddleware(self.endpoint, self._request_counts),
            listening_socket,
            drain_s=settings.drain_s,
            protocol=HeadLimitProtocol,
            certificate=certificate,
        )
        self._stopping = threading.Event()
        self._cleanup_thread = threading.Thread(
            target=self._run_cleanup, name="s3-house", daemon=True
        )

    @property
    def url(self) -> str:
        """URL of the endpoint."""
        return self._listener.url

    def register_metrics(self, sources: MetricSources) -> None:
        """Add the metrics of this endpoint to those of the service."""
        sources.requests_by_port["s3"] = self._request_counts
        if self._select_operation is not None:
            sources.select_count_getters.append(self._select_operation.get_query_counts)

    def start(self) -> None:
        """Start the threads that serve requests and delete unreferenced files."""
        self._listener.start("s3")
        self._cleanup_thread.start()
        if self._select_operation is not None:
            self._select_operation.start_kernel_warmup()

    def close(self) -> None:
        """Finish open requests and stop."""
        self._stopping.set()
        self._listener.close()
        if self._cleanup_thread.ident is not None:
            self._cleanup_thread.join()
        self._threads.shutdown()
        self._hash_threads.shutdown()
        if self._select_operation is not None:
            self._select_operation.close()

    def _orphan_cutoff(self) -> dt.datetime:
        """Return the time before which an unreferenced file may be deleted.

        Other services may be writing to a shared folder.
        """
        settings = self._settings
        if settings.objects_dir.is_relative_to(settings.data_dir):
            return self._started_at
        return self._started_at - _SHARED_FOLDER_MARGIN

    def _run_cleanup(self) -> None:
        swept = False
        while not self._stopping.is_set():
            database, files = self.bucket_registry.database, self.bucket_registry.files
            try:
                if not swept:
                    removed = delete_orphaned_files(database, files, self._orphan_cutoff())
                    swept = True
                    if removed:
                        _log.info("deleted %d files of interrupted uploads", removed)
                delete_dropped_files(database, files, self._clock.now())
                # After a promotion, this site must create the records of mounted buckets.
                self.bucket_registry.register_mounts()
            except Exception:  # noqa: BLE001 - the next round may work
                _log.exception("deleting unreferenced objects failed; retrying")
            self._stopping.wait(self._settings.cleanup_interval_s)


def _make_select_operation(settings: Settings) -> SelectOperation | None:
    set_numba_cache_dir(settings.data_dir / "compiled")
    try:
        from snowmelt.server.s3.select_operation import SelectOperation
    except ModuleNotFoundError as error:
        _log.warning("no S3 Select: %s is missing; install snowmelt[select]", error.name)
        return None
    return SelectOperation(settings)


MAX_HEAD_BYTES = 64 * 1024


class HeadLimitProtocol(HttpToolsProtocol):
    """HTTP protocol that limits a request head to 64 KiB and 30 s, and then closes the connection.

    The parser has no such limits. Without them, unfinished heads could occupy all connections.
    """

    # Maximum duration of a request head, in seconds.
    head_timeout_s = 30.0

    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request head."""
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._cancel_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of the head, then parse the data."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._start_head_timer()
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request line and headers are too large.")

    def on_message_begin(self) -> None:
        """Add `write_chunk`, which bypasses ASGI, to the request's scope."""
        super().on_message_begin()
        self.scope["extensions"] = {WRITE_CHUNK: self.write_chunk}  # type: ignore[dict-item]

    async def write_chunk(self, pieces: list[bytes | memoryview]) -> None:
        """Write one chunk of a chunked body without copying. Waits for slow clients."""
        if self.flow.write_paused:
            await self.flow.drain()
        if not self.transport.is_closing():
            self.transport.writelines([b"%x\r\n" % sum(map(len, pieces)), *pieces, b"\r\n"])

    def on_headers_complete(self) -> None:
        """Stop the timer and the count."""
        self._in_head = False
        self._cancel_head_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Restart the count for the next request."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._close_on_head_timeout)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_on_head_timeout(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
