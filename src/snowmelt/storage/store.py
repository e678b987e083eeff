"""What every store of objects offers, whatever lies underneath."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from snowmelt.errors import PathRefused

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

Readable: TypeAlias = bytes | bytearray | memoryview

# Name of a file that a put has not finished yet: never an object, so never listed.
UNFINISHED = ".put-"

_MAX_PART_BYTES = 255
_MAX_PATH_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object: path within its store, bytes, aware instant of the last change, change mark."""

    path: str
    size: int
    modified_at: dt.datetime
    etag: str | None


class Store(Protocol):
    """Objects by path, relative to one root; `/` separates folders, which need no creation.

    A put is all or nothing: readers see the old object or the new one. What was put is
    durable after `sync`. Paths are checked by `path_parts`; an object that is no regular file
    (a link, a pipe) is refused.
    """

    @property
    def url(self) -> str:
        """The text by which `open_store` finds this store again, in another process too."""

    def get(self, path: str) -> bytes:
        """Return a whole object.

        Raises:
            ObjectMissing: No such object.
            PathRefused: The path is not one of an object.
            StageUnavailable: The store does not answer.
        """

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer when the object ends before.

        Raises:
            ObjectMissing: No such object.
            PathRefused: The path is not one of an object.
            StageUnavailable: The store does not answer.
        """

    def head(self, path: str) -> ObjectInfo | None:
        """Return what is known of an object, None when it does not exist.

        Raises:
            PathRefused: The path is not one of an object.
            StageUnavailable: The store does not answer.
        """

    def put(self, path: str, data: Readable, *, create_only: bool = False) -> None:
        """Write a whole object, replacing an older one unless `create_only`.

        Raises:
            AlreadyExists: `create_only`, and the object exists.
            PathRefused: The path is not one of an object.
            StageUnavailable: No space, no permission, or the store does not answer; nothing
                new is visible.
        """

    def delete(self, path: str) -> None:
        """Delete an object; a missing one is fine.

        Raises:
            PathRefused: The path is not one of an object.
            StageUnavailable: The store does not answer.
        """

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects beneath folder `prefix` (all when empty), at any depth, in any order.

        Raises:
            PathRefused: The prefix is not one of a folder.
            StageUnavailable: The store does not answer.
        """

    def sync(self) -> None:
        """Return when everything put before is durable.

        Raises:
            StageUnavailable: It cannot be made durable.
        """

    def sweep(self, before: dt.datetime) -> int:
        """Remove what interrupted puts left behind before that instant; return how many."""


def path_parts(path: str) -> tuple[str, ...]:
    """Return the parts of an object's path.

    Raises:
        PathRefused: Empty or absolute, empty part, `.` or `..`, NUL or backslash, over
            1,024 bytes (255 a part), not Unicode, or the name of an unfinished put.
    """
    reason = _objection(path)
    if reason is not None:
        raise PathRefused(path=path, reason=reason)
    return tuple(path.split("/"))


def is_path(path: str) -> bool:
    """Return whether `path_parts` takes this path."""
    return _objection(path) is None


def _objection(path: str) -> str | None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if not 0 < size <= _MAX_PATH_BYTES:
        return f"it must have 1 to {_MAX_PATH_BYTES:,} bytes"
    if "\0" in path or "\\" in path:
        return "NUL and backslash are not allowed"
    return next(filter(None, map(_part_objection, path.split("/"))), None)


def _part_objection(part: str) -> str | None:
    if part in {"", ".", ".."}:
        return "it must be relative, without empty, . or .. parts"
    if part.startswith(UNFINISHED):
        return f"parts that begin with {UNFINISHED} are unfinished writes"
    if len(part.encode()) > _MAX_PART_BYTES:
        return f"a part has more than {_MAX_PART_BYTES} bytes"
    return None
