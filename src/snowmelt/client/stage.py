"""Where this client's blobs go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from snowmelt.client.bucket import BucketStage
from snowmelt.client.transport import trusting
from snowmelt.errors import StageUnavailable, Unsupported
from snowmelt.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.client.bucket import Grant
    from snowmelt.client.settings import ClientSettings
    from snowmelt.storage.store import Readable


class Stage(Protocol):
    """The part of a store that a client needs."""

    def put(self, path: str, data: Readable) -> None:
        """Write a whole object; nothing is visible when it fails."""

    def close(self) -> None:
        """Let go of connections; again is harmless."""


class _Folder:
    """One folder of a store, made again where a put finds it missing."""

    def __init__(self, store: LocalStore, name: str) -> None:
        self._store = store
        self._name = name

    def put(self, path: str, data: Readable) -> None:
        """Write a whole object into the folder; nothing is visible when it fails."""
        self._store.put(f"{self._name}/{path}", data)

    def close(self) -> None:
        """Nothing is held."""


def open_stage(
    grant: Grant, renew: Callable[[], Grant], settings: ClientSettings, *, timeout_s: float
) -> Stage:
    """Return the stage that the service told this client to use.

    Args:
        grant: What the service handed out.
        renew: Asks the service for the stage again, with new credentials.
        settings: The client's; clock and certificates matter here.
        timeout_s: For each step of a connection to a bucket, in seconds.

    Raises:
        StageUnavailable: A folder that is not on this machine, or a bucket without an address.
        Unsupported: A kind of stage that this version cannot write.
    """
    location = grant.location
    if location.locationType == "S3":
        return BucketStage(
            grant,
            renew,
            settings.clock,
            timeout_s=timeout_s,
            trusted=lambda: trusting(settings.ca_file),
        )
    if location.locationType != "LOCAL_FS":
        raise Unsupported(
            what=f"a stage of type {location.locationType}",
            instead="use one in a folder, or behind the service's S3 endpoint",
        )
    folder = Path(location.location)
    # Making the folder would write rows to a disk that the service never sees.
    if not folder.parent.is_dir():
        reason = f"{folder.parent} is not a folder on this machine; client and service share it"
        raise StageUnavailable(reason=reason)
    try:
        # Not the folder itself: the service removes it with the last blob of a client that rests.
        return _Folder(LocalStore(folder.parent), folder.name)
    except OSError as error:
        raise StageUnavailable(reason=f"{folder}: {error.strerror}") from error
