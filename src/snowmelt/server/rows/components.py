"""Components of the row API, and its limits on sizes and request rates.

The limits apply to the size of one request, the requests of one channel per second, and the bytes
of all requests in flight.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.clock import Clock
from snowmelt.config import Settings
from snowmelt.errors import ConfigurationError, RowsBusy, TooManyRequests
from snowmelt.ingest.channel_write_batcher import WriteBatcher
from snowmelt.ingest.metrics import RequestMetrics
from snowmelt.ingest.migration_backlog import BackPressure
from snowmelt.ingest.rows.binary_encoding_tracker import ClientEncodingInstructions
from snowmelt.ingest.rows.chunk_builder import ErrorRowStager, RowChunkStager
from snowmelt.ingest.rows.group_commit import GroupCommitter
from snowmelt.ingest.rows.request_batcher import RequestBatcher
from snowmelt.ingest.rows.row_converter import ConverterPool
from snowmelt.ingest.rows.row_service import RowService
from snowmelt.ingest.rows.schema_evolution import TableEvolver
from snowmelt.ingest.rows.targets import TargetResolver
from snowmelt.ingest.stage_locations import StageLocator
from snowmelt.ingest.stage_sync import StageSync
from snowmelt.server.rows.row_files import RowFileService
from snowmelt.server.rows.scoped_tokens import SCOPED_TOKEN_LIFETIME_S, ScopedTokenIssuer
from snowmelt.storage.store import Store

if TYPE_CHECKING:
    from snowmelt.server.auth import Authenticator

_MAX_TRACKED_CHANNELS = 50_000


@dataclass(slots=True)
class RowApiLimits:
    """Limits of the row API. Must be used in the event loop only.

    `max_body_bytes` limits a body as sent, and `max_decompressed_bytes` a body after decompression.
    `max_held_bytes` limits the total of all requests in flight. `max_requests_per_s` limits one
    channel; 0 means no limit.
    """

    clock: Clock
    max_body_bytes: int
    max_decompressed_bytes: int
    max_held_bytes: int
    max_requests_per_s: int
    _token_buckets: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def count_and_check_request_rate(self, pipe: str, channel: str, *, allow_429: bool) -> None:
        """Count a request of a channel and check its request rate.

        `pipe` must include the sender, so that senders do not share a limit. If `allow_429` is
        false, the error is a 503, after which clients only retry.

        Raises:
            TooManyRequests: If the channel exceeds `max_requests_per_s`, with `allow_429`.
            RowsBusy: If the channel exceeds `max_requests_per_s`, without `allow_429`.
        """
        if not self.max_requests_per_s:
            return
        now = self.clock.monotonic()
        left, since = self._token_buckets.get(
            (pipe, channel), (float(self.max_requests_per_s), now)
        )
        left = min(left + (now - since) * self.max_requests_per_s, float(self.max_requests_per_s))
        if left < 1:
            if allow_429:
                raise TooManyRequests(channel=channel, limit=self.max_requests_per_s)
            raise RowsBusy(
                reason=f"channel {channel} exceeds {self.max_requests_per_s} requests per second"
            )
        if len(self._token_buckets) >= _MAX_TRACKED_CHANNELS:
            self._token_buckets.clear()
        self._token_buckets[pipe, channel] = (left - 1, now)


_THREAD_COUNT = 8


@dataclass(frozen=True, slots=True)
class SharedComponents:
    """Components that the row API shares with the rest of a service.

    `stage_locator` gives the SDK access to the stage. `bucket_prefix` is described at
    `RowFileService`.
    """

    settings: Settings
    database: Database
    write_batcher: WriteBatcher
    keyring: KeyRing
    stage: Store
    stage_sync: StageSync
    back_pressure: BackPressure
    authenticator: Authenticator
    clock: Clock
    stage_locator: StageLocator
    bucket_prefix: str


@dataclass(frozen=True, slots=True)
class RowApiComponents:
    """Components that the routes of the row API need."""

    row_service: RowService
    request_batcher: RequestBatcher
    row_files: RowFileService
    scoped_tokens: ScopedTokenIssuer
    limits: RowApiLimits
    authenticator: Authenticator
    threads: ThreadPoolExecutor
    clock: Clock

    @property
    def metrics(self) -> RequestMetrics[str]:
        """Metrics since the start of the service."""
        return self.row_service.group_committer.metrics

    def new_request_id(self) -> str:
        """Return an ID for a request that has none. The client cannot repeat such a request safely."""
        return str(uuid.uuid4())

    def close(self) -> None:
        """Finish pending requests, then stop all threads."""
        self.threads.shutdown()
        self.request_batcher.close()
        self.row_service.group_committer.close()
        self.row_service.converter_pool.kernel_loader.wait_until_loaded()


def build_row_api(shared: SharedComponents) -> RowApiComponents:
    """Create the components and start the writer.

    Raises:
        ConfigurationError: If the time zone is unknown.
    """
    settings, database, clock = shared.settings, shared.database, shared.clock
    keyring, stage = shared.keyring, shared.stage
    with database.reading() as connection:
        deployment_id = leases.read_deployment_id(connection)
    targets = TargetResolver(database, keyring, clock)
    stager = RowChunkStager(stage, targets, deployment_id, clock)
    writer = GroupCommitter(
        database,
        shared.stage_sync,
        stager,
        clock=clock,
        error_row_stager=ErrorRowStager(database, keyring, stager, clock),
    )
    forms = ClientEncodingInstructions(database, clock, SCOPED_TOKEN_LIFETIME_S)
    desk = RowService(
        database,
        shared.write_batcher,
        targets,
        ConverterPool(parse_time_zone(settings.rows_timezone), clock),
        writer,
        clock,
        TableEvolver(database, clock),
        shared.back_pressure,
        forms,
    )
    files = RowFileService(
        database,
        targets,
        stage,
        clock,
        stage_locator=shared.stage_locator,
        bucket_prefix=shared.bucket_prefix,
        max_file_bytes=settings.rows_max_file_bytes,
        flush_interval_ms=settings.rows_flush_ms,
        binary_encodings=forms,
    )
    limits = RowApiLimits(
        clock,
        max_body_bytes=settings.rows_max_body_bytes,
        max_decompressed_bytes=settings.rows_max_bytes,
        max_held_bytes=settings.rows_held_bytes,
        max_requests_per_s=settings.rows_requests_per_s,
    )
    return RowApiComponents(
        desk,
        RequestBatcher(desk, clock),
        files,
        ScopedTokenIssuer(keyring, clock),
        limits,
        shared.authenticator,
        ThreadPoolExecutor(_THREAD_COUNT, thread_name_prefix="rows"),
        clock,
    )


def parse_time_zone(name: str) -> ZoneInfo:
    """Return a time zone by name.

    Raises:
        ConfigurationError: If there is no time zone of that name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigurationError(
            setting="rows_timezone", reason=f"{name!r} is not a time zone such as Europe/Berlin"
        ) from None
