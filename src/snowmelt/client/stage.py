"""Where this client's blobs go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from snowmelt.errors import StageUnavailable, Unsupported
from snowmelt.storage.local import LocalStore

if TYPE_CHECKING:
    from snowmelt.storage.store import Readable
    from snowmelt.wire.streaming import StageLocation


class Stage(Protocol):
    """The part of a store that a client needs."""

    def put(self, path: str, data: Readable) -> None:
        """Write a whole object; nothing is visible when it fails."""


class _Folder:
    """One folder of a store, made again where a put finds it missing."""

    def __init__(self, store: LocalStore, name: str) -> None:
        self._store = store
        self._name = name

    def put(self, path: str, data: Readable) -> None:
        """Write a whole object into the folder; nothing is visible when it fails."""
        self._store.put(f"{self._name}/{path}", data)


def open_stage(location: StageLocation) -> Stage:
    """Return the stage that the service told this client to use.

    Raises:
        StageUnavailable: A folder that is not on this machine.
        Unsupported: A kind of stage that this version cannot write.
    """
    if location.locationType != "LOCAL_FS":
        raise Unsupported(
            what=f"a stage of type {location.locationType}", instead="use a stage in a folder"
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
