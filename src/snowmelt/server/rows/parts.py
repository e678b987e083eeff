"""The row API's parts, joined."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from snowmelt.catalog import deployment
from snowmelt.errors import ConfigurationError
from snowmelt.ingest.rows.aside import Keeper
from snowmelt.ingest.rows.byte_forms import ByteForms
from snowmelt.ingest.rows.chunking import Stager
from snowmelt.ingest.rows.conversion import Conversions
from snowmelt.ingest.rows.desk import RowDesk
from snowmelt.ingest.rows.evolution import Evolution
from snowmelt.ingest.rows.intake import Intake
from snowmelt.ingest.rows.targets import Targets
from snowmelt.ingest.rows.writing import RowWriter
from snowmelt.server.rows.files import RowFiles
from snowmelt.server.rows.limits import Limits
from snowmelt.server.rows.tokens import LIFETIME_S, ScopedTokens

if TYPE_CHECKING:
    from snowmelt.catalog.database import Database
    from snowmelt.catalog.keys import KeyRing
    from snowmelt.clock import Clock
    from snowmelt.config import Settings
    from snowmelt.ingest.durability import Durability
    from snowmelt.ingest.grouped_writes import GroupedWrites
    from snowmelt.ingest.handing import Handing
    from snowmelt.ingest.pressure import Pressure
    from snowmelt.ingest.rows.tally import RowTally
    from snowmelt.server.auth import Authenticator
    from snowmelt.storage.store import Store

_THREADS = 8


@dataclass(frozen=True, slots=True)
class Shared:
    """What the row API has in common with the rest of a service.

    `handing` is how the SDK is let into the stage, and `bucket` as `RowFiles` has it.
    """

    settings: Settings
    database: Database
    writes: GroupedWrites
    keyring: KeyRing
    stage: Store
    durability: Durability
    pressure: Pressure
    authenticator: Authenticator
    clock: Clock
    handing: Handing
    bucket: str


@dataclass(frozen=True, slots=True)
class RowParts:
    """What the routes of the row API use."""

    desk: RowDesk
    intake: Intake
    files: RowFiles
    tokens: ScopedTokens
    limits: Limits
    authenticator: Authenticator
    threads: ThreadPoolExecutor
    clock: Clock

    @property
    def tally(self) -> RowTally:
        """What has been counted since the start."""
        return self.desk.writer.tally

    def new_id(self) -> str:
        """Return an id for a request that brought none; nobody can repeat it."""
        return str(uuid.uuid4())

    def close(self) -> None:
        """Answer what is waiting, then let go of threads."""
        self.threads.shutdown()
        self.intake.close()
        self.desk.writer.close()
        self.desk.conversions.readiness.wait()


def build_rows(shared: Shared) -> RowParts:
    """Join the parts and start the writer.

    Raises:
        ConfigurationError: A time zone that there is not.
    """
    settings, database, clock = shared.settings, shared.database, shared.clock
    keyring, stage = shared.keyring, shared.stage
    with database.reading() as connection:
        deployment_id = deployment.deployment_id(connection)
    targets = Targets(database, keyring, clock)
    stager = Stager(stage, targets, deployment_id, clock)
    writer = RowWriter(
        database,
        shared.durability,
        stager,
        clock=clock,
        keeper=Keeper(database, keyring, stager, clock),
    )
    forms = ByteForms(database, clock, LIFETIME_S)
    desk = RowDesk(
        database,
        shared.writes,
        targets,
        Conversions(zone_named(settings.rows_timezone), clock),
        writer,
        clock,
        Evolution(database, clock),
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
        Intake(desk, clock),
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
