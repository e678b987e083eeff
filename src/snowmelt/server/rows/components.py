"""The row API's parts, joined."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from snowmelt.catalog.jobs import services as deployment
from snowmelt.errors import ConfigurationError, RowsBusy, TooManyRequests
from snowmelt.ingest.rows.binary_encoding import BinaryEncodingTracker
from snowmelt.ingest.rows.chunk_builder import ErrorRowStager, RowChunkStager
from snowmelt.ingest.rows.group_commit import GroupCommitter
from snowmelt.ingest.rows.request_batcher import RequestBatcher
from snowmelt.ingest.rows.row_converter import ConverterPool
from snowmelt.ingest.rows.row_service import RowService
from snowmelt.ingest.rows.schema_evolution import TableEvolver
from snowmelt.ingest.rows.targets import TargetResolver
from snowmelt.server.rows.row_files import RowFiles
from snowmelt.server.rows.scoped_tokens import LIFETIME_S, ScopedTokens

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.security.encryption_keys import KeyRing
    from snowmelt.clock import Clock
    from snowmelt.config import Settings
    from snowmelt.ingest.back_pressure import BackPressure
    from snowmelt.ingest.durability import StageSync
    from snowmelt.ingest.metrics import RowMetrics
    from snowmelt.ingest.stage_locations import StageLocator
    from snowmelt.ingest.write_batcher import WriteBatcher
    from snowmelt.server.auth import Authenticator
    from snowmelt.storage.store import Store

# --- How much the row API takes: of one request, of a channel in a second, of all at a time.

_MOST_CHANNELS = 50_000


@dataclass(slots=True)
class Limits:
    """Settings of the row API; used in the event loop only.

    `body_bytes` as sent, `unpacked_bytes` without compression, `held_bytes` of all requests that
    are not answered yet; `requests_per_s` of one channel, 0 for any number.
    """

    clock: Clock
    body_bytes: int
    unpacked_bytes: int
    held_bytes: int
    requests_per_s: int
    _allowances: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def pass_channel(self, pipe: str, channel: str, *, may_refuse_softly: bool) -> None:
        """Count a request of a channel.

        Args:
            pipe: Who sends it, and where it goes: nobody uses up what is another's.
            channel: Whose it is.
            may_refuse_softly: Answer 429; else 503, which no client draws conclusions from.

        Raises:
            TooManyRequests: There were too many within a second; RowsBusy likewise.
        """
        if not self.requests_per_s:
            return
        now = self.clock.monotonic()
        left, since = self._allowances.get((pipe, channel), (float(self.requests_per_s), now))
        left = min(left + (now - since) * self.requests_per_s, float(self.requests_per_s))
        if left < 1:
            if may_refuse_softly:
                raise TooManyRequests(channel=channel, limit=self.requests_per_s)
            raise RowsBusy(reason=f"channel {channel} sends too many requests")
        if len(self._allowances) >= _MOST_CHANNELS:
            self._allowances.clear()
        self._allowances[pipe, channel] = (left - 1, now)


_THREADS = 8


@dataclass(frozen=True, slots=True)
class Shared:
    """What the row API has in common with the rest of a service.

    `handing` is how the SDK is let into the stage, and `bucket` as `RowFiles` has it.
    """

    settings: Settings
    database: Database
    writes: WriteBatcher
    keyring: KeyRing
    stage: Store
    durability: StageSync
    pressure: BackPressure
    authenticator: Authenticator
    clock: Clock
    handing: StageLocator
    bucket: str


@dataclass(frozen=True, slots=True)
class RowParts:
    """What the routes of the row API use."""

    desk: RowService
    intake: RequestBatcher
    files: RowFiles
    tokens: ScopedTokens
    limits: Limits
    authenticator: Authenticator
    threads: ThreadPoolExecutor
    clock: Clock

    @property
    def tally(self) -> RowMetrics:
        """What has been counted since the start."""
        return self.desk.group_committer.metrics

    def new_id(self) -> str:
        """Return an id for a request that brought none; nobody can repeat it."""
        return str(uuid.uuid4())

    def close(self) -> None:
        """Answer what is waiting, then let go of threads."""
        self.threads.shutdown()
        self.intake.close()
        self.desk.group_committer.close()
        self.desk.converter_pool.kernel_loader.wait_until_loaded()


def build_rows(shared: Shared) -> RowParts:
    """Join the parts and start the writer.

    Raises:
        ConfigurationError: A time zone that there is not.
    """
    settings, database, clock = shared.settings, shared.database, shared.clock
    keyring, stage = shared.keyring, shared.stage
    with database.reading() as connection:
        deployment_id = deployment.read_deployment_id(connection)
    targets = TargetResolver(database, keyring, clock)
    stager = RowChunkStager(stage, targets, deployment_id, clock)
    writer = GroupCommitter(
        database,
        shared.durability,
        stager,
        clock=clock,
        error_row_stager=ErrorRowStager(database, keyring, stager, clock),
    )
    forms = BinaryEncodingTracker(database, clock, LIFETIME_S)
    desk = RowService(
        database,
        shared.writes,
        targets,
        ConverterPool(zone_named(settings.rows_timezone), clock),
        writer,
        clock,
        TableEvolver(database, clock),
        shared.pressure,
        forms,
    )
    files = RowFiles(
        database,
        targets,
        stage,
        clock,
        handing=shared.handing,
        bucket=shared.bucket,
        max_file_bytes=settings.rows_max_file_bytes,
        flush_ms=settings.rows_flush_ms,
        forms=forms,
    )
    limits = Limits(
        clock,
        body_bytes=settings.rows_max_body_bytes,
        unpacked_bytes=settings.rows_max_bytes,
        held_bytes=settings.rows_held_bytes,
        requests_per_s=settings.rows_requests_per_s,
    )
    return RowParts(
        desk,
        RequestBatcher(desk, clock),
        files,
        ScopedTokens(keyring, clock),
        limits,
        shared.authenticator,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="rows"),
        clock,
    )


def zone_named(name: str) -> ZoneInfo:
    """Return a time zone.

    Raises:
        ConfigurationError: There is none of that name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigurationError(
            setting="rows_timezone", reason=f"{name!r} is not a time zone such as Europe/Berlin"
        ) from None
