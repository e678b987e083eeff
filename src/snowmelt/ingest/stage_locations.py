"""Upload locations and credentials for the blobs of a client."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from snowmelt.catalog.security import encryption_keys
from snowmelt.clock import Clock
from snowmelt.wire.streaming import StageLocation

if TYPE_CHECKING:
    from snowmelt.catalog.security.encryption_keys import KeyRing

# The bucket of the S3 endpoint that stands in front of the stage.
STAGE_BUCKET = "snowmelt-stage"
# The official client takes only names that AWS has.
_DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class StageRequester:
    """Who asks for a stage.

    `host` is the name or address, without port, by which it reached the service, empty when it
    said none. `renews_by_prefix` tells a client that keeps its prefix when it asks again; the
    official one does not, and goes on naming its blobs by the first prefix it was given.
    """

    user: str
    host: str = ""
    renews_by_prefix: bool = False


class StageGrant(NamedTuple):
    """A location, and for how many seconds it is good (None: for ever)."""

    location: StageLocation
    expires_in_s: float | None


class StageLocator(Protocol):
    """A way to let clients write to the stage."""

    def issue_grant(self, requester: StageRequester, prefix: str) -> StageGrant:
        """Return where blobs of a prefix, issued to that user, are to be put."""


@dataclass(frozen=True, slots=True)
class FolderStageLocator:
    """Clients on this machine write into the stage's folder themselves."""

    folder: Path

    def issue_grant(self, requester: StageRequester, prefix: str) -> StageGrant:
        """Return the folder of the prefix, made."""
        del requester
        location = self.folder / prefix
        # Made here, so that a client of another account on this machine may only fill it.
        location.mkdir(parents=True, exist_ok=True)
        return StageGrant(StageLocation(locationType="LOCAL_FS", location=str(location)), None)


@dataclass(frozen=True, slots=True)
class EndpointStageLocator:
    """Clients anywhere upload to the service's S3 endpoint, with credentials for their prefix.

    `endpoint` is its address as clients reach it; without one it is made of `scheme` and `port`
    and the name by which the client reached the service, or `host` when it named none. `region` is
    the one to sign for; where it is empty any will do.
    """

    keyring: KeyRing
    clock: Clock
    lifetime_s: float
    endpoint: str
    scheme: str
    host: str
    port: int
    region: str

    def issue_grant(self, requester: StageRequester, prefix: str) -> StageGrant:
        """Return the bucket's part for the prefix, with new credentials."""
        credentials = encryption_keys.issue_stage_credentials(
            self.keyring,
            requester.user,
            prefix,
            any_prefix=not requester.renews_by_prefix,
            expires_at=self.clock.now() + dt.timedelta(seconds=self.lifetime_s),
        )
        address = f"{self.scheme}://{requester.host or self.host}:{self.port}"
        location = StageLocation(
            locationType="S3",
            location=f"{STAGE_BUCKET}/{prefix}/",
            creds={
                "AWS_KEY_ID": credentials.access_key_id,
                "AWS_SECRET_KEY": credentials.secret,
                "AWS_TOKEN": credentials.token,
            },
            region=self.region or _DEFAULT_REGION,
            endPoint=self.endpoint or address,
        )
        return StageGrant(location, self.lifetime_s)
