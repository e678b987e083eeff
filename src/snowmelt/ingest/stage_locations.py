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

# Bucket of the S3 endpoint that serves the stage.
STAGE_BUCKET = "snowmelt-stage"
# The official client accepts only region names of AWS.
_DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class StageRequester:
    """Client that requests an upload location.

    `host` is the name or address, without port, that the client used to connect to the service;
    empty if unknown. `renews_by_prefix` is True if the client sends its prefix when it renews its
    credentials. The official client does not, and continues to use its first prefix in names of
    blobs.
    """

    user: str
    host: str = ""
    renews_by_prefix: bool = False


class StageGrant(NamedTuple):
    """An upload location, and its lifetime in seconds (None: unlimited)."""

    location: StageLocation
    expires_in_s: float | None


class StageLocator(Protocol):
    """Interface of objects that issue upload locations for blobs."""

    def issue_grant(self, requester: StageRequester, prefix: str) -> StageGrant:
        """Return the upload location for blobs of a prefix. The prefix belongs to the requester's user."""


@dataclass(frozen=True, slots=True)
class FolderStageLocator:
    """Locator for clients on this machine, which write to the folder of the stage."""

    folder: Path

    def issue_grant(self, requester: StageRequester, prefix: str) -> StageGrant:
        """Create and return the folder of the prefix."""
        del requester
        location = self.folder / prefix
        # The service creates the folder, so that another operating-system account can only write
        # into it.
        location.mkdir(parents=True, exist_ok=True)
        return StageGrant(StageLocation(locationType="LOCAL_FS", location=str(location)), None)


@dataclass(frozen=True, slots=True)
class EndpointStageLocator:
    """Locator for remote clients, which upload to the service's S3 endpoint with credentials.

    `endpoint` is the URL that clients use. If empty, it consists of `scheme`, the host name that
    the client used to connect (or `host` if unknown), and `port`. `region` is the region to sign
    for. If empty, any region is accepted.
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
        """Return the bucket path for the prefix, with new credentials."""
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
