"""Interface of object stores, validation of paths, and ordered listings.

Listings are in byte order, optionally grouped by a delimiter. Python compares strings by code
points, which is the order of their UTF-8 bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from snowmelt.errors import PathRefused

if TYPE_CHECKING:
    import datetime as dt

BytesLike: TypeAlias = bytes | bytearray | memoryview

# Suffix of a put's temporary file, which is not an object and never listed.
PARTIAL_PREFIX = ".put-"

_MAX_SEGMENT_BYTES = 255
_MAX_PATH_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Properties of an object: path in its store, size in bytes, last change (aware), and ETag."""

    path: str
    size: int
    modified_at: dt.datetime
    etag: str | None


class OpenObject(Protocol):
    """An object open for random reads. All reads return bytes of the same version. Not thread-safe.

    If the object is replaced or deleted, reads either continue on the old version (local files), or
    fail. `attributes` are the headers that were stored with the object, such as
    `Content-Type`, and user metadata.
    """

    info: ObjectInfo
    attributes: Mapping[str, str]

    @property
    def name(self) -> str:
        """Path in the store."""
        return self.info.path

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.info.size

    @property
    def etag(self) -> str | None:
        """ETag, or None if the store has none."""
        return self.info.etag

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read bytes at `offset` into `view`. Reads fewer than its size only at the end of the object.

        Raises:
            ObjectChanged: If the object was replaced or deleted since it was opened.
            StageUnavailable: If the store does not respond.
        """

    def read_blocks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` (inclusive) to `end` (exclusive), in blocks.

        Raises:
            ObjectChanged: If the object was replaced or deleted since it was opened.
            StageUnavailable: If the store does not respond.
        """

    def close(self) -> None:
        """Release the object. Idempotent."""


class ObjectWriter(Protocol):
    """Incremental writer of an object, which is invisible until `finish`."""

    def write(self, data: BytesLike) -> None:
        """Append bytes.

        Raises:
            StageUnavailable: If there is no free space, or the store does not respond.
        """

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Append bytes of another object, from `start` (inclusive) to `end` (exclusive).

        Raises:
            ObjectChanged: If the source changed while it was read.
            StageUnavailable: If there is no free space, or a store does not respond.
        """

    def finish(
        self, *, create_only: bool = False, attributes: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Make the object durable and visible. A store without support for attributes drops them.

        Raises:
            AlreadyExists: If `create_only` is set and the object exists.
            StageUnavailable: If the store does not respond. Nothing new is visible then.
        """

    def abort(self) -> None:
        """Discard the object. Does nothing after `finish`. Idempotent."""


class Store(Protocol):
    """Interface of object stores. Paths are relative to one root; `/` separates implicit folders.

    A put is atomic: readers see the old or the new object. Puts are durable after `sync`.
    `split_path` validates paths. Objects that are not regular files (links, pipes) are rejected.
    """

    @property
    def url(self) -> str:
        """The URL or path with which `open_store` opens this store in another process."""

    def get(self, path: str) -> bytes:
        """Return a whole object.

        Raises:
            ObjectMissing: If the object does not exist.
            PathRefused: If the path is invalid.
            StageUnavailable: If the store does not respond.
        """

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`, fewer at the end of the object.

        Raises:
            ObjectMissing: If the object does not exist.
            PathRefused: If the path is invalid.
            StageUnavailable: If the store does not respond.
        """

    def read_prefix(self, path: str, max_bytes: int) -> tuple[ObjectInfo, bytes]:
        """Return the properties of an object and at most its first `max_bytes` bytes, with one request.

        Raises:
            ObjectMissing: If the object does not exist.
            PathRefused: If the path is invalid.
            StageUnavailable: If the store does not respond.
        """

    def head(self, path: str) -> ObjectInfo | None:
        """Return the properties of an object, or None if it does not exist.

        Raises:
            PathRefused: If the path is invalid.
            StageUnavailable: If the store does not respond.
        """

    def put(
        self, path: str, data: BytesLike, *, create_only: bool = False, durable: bool = False
    ) -> None:
        """Write a whole object. Replaces an existing object unless `create_only` is set.

        If `durable` is set, the object is durable when this returns, else after `sync`.

        Raises:
            AlreadyExists: If `create_only` is set and the object exists.
            PathRefused: If the path is invalid.
            StageUnavailable: If there is no space or no permission, or the store does not respond.
                Nothing new is visible then.
        """

    def open(self, path: str) -> OpenObject:
        """Open an object for random reads. The caller closes it.

        Raises:
            ObjectMissing: If the object does not exist.
            PathRefused: If the path is invalid.
            StageUnavailable: If the store does not respond.
        """

    def open_writer(self, path: str) -> ObjectWriter:
        """Start to write an object incrementally, with bounded memory.

        Raises:
            PathRefused: If the path is invalid.
            StageUnavailable: If there is no space or no permission, or the store does not respond.
        """

    def copy(self, source: str, target: str) -> None:
        """Copy an object with its attributes within the store. The copy is durable when this returns.

        Raises:
            ObjectMissing: If the object does not exist.
            PathRefused: If a path is invalid.
            StageUnavailable: If the store does not respond.
        """

    def delete(self, path: str) -> None:
        """Delete an object. A missing object is not an error.

        Raises:
            PathRefused: If the path is invalid.
            StageUnavailable: If the store does not respond.
        """

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below folder `prefix` (all if empty), at any depth, in any order.

        Raises:
            PathRefused: If the prefix is not a valid folder path.
            StageUnavailable: If the store does not respond.
        """

    def list_ordered(
        self, prefix: str = "", *, after: str = "", delimiter: str = ""
    ) -> Iterator[ObjectInfo | str]:
        """Yield the objects whose paths start with the text `prefix`, in byte order.

        With a delimiter, objects whose paths contain it after the prefix are grouped: objects with
        the same path up to the delimiter form one entry, which is that path as text. Entries up to
        and including `after` are omitted. A group that contains `after` is included if it has later
        objects.

        Raises:
            StageUnavailable: If the store does not respond.
        """

    def watch_writes(self) -> None:
        """Start to track failed writes. Must be called before the first put that `sync` makes durable.

        Raises:
            StageUnavailable: If the store does not respond.
        """

    def sync(self) -> None:
        """Make all puts of all processes since `watch_writes` durable.

        Raises:
            SyncFailed: If puts since the last successful sync may be lost.
            StageUnavailable: If the store does not respond. No sync was attempted.
        """

    def is_on_disk(self, path: str, md5: str) -> bool:
        """Return False if an object may have lost bytes before `watch_writes`, and its MD5 differs.

        Required for objects of other writers, before their durability after a `sync` is relied
        upon.

        Raises:
            ObjectMissing: If the object does not exist.
            StageUnavailable: If the store does not respond.
        """

    def delete_partial_writes(
        self, before: dt.datetime, *, on_step: Callable[[], None] | None = None
    ) -> int:
        """Delete temporary files of puts that were interrupted before a time. Return their number.

        `on_step` is called between folders. An exception that it raises ends the deletion.
        """


def split_path(path: str) -> tuple[str, ...]:
    """Validate an object's path and return its parts.

    Raises:
        PathRefused: If the path is empty or absolute, has an empty part, `.`, `..`, NUL or a
            backslash, exceeds 1,024 bytes (255 per part), is not valid Unicode, or is the name of
            an unfinished put.
    """
    reason = _find_path_error(path)
    if reason is not None:
        raise PathRefused(path=path, reason=reason)
    return tuple(path.split("/"))


def is_valid_path(path: str) -> bool:
    """Return True if `split_path` accepts this path."""
    return _find_path_error(path) is None


def _find_path_error(path: str) -> str | None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if not 0 < size <= _MAX_PATH_BYTES:
        return f"it must have 1 to {_MAX_PATH_BYTES:,} bytes"
    if "\0" in path or "\\" in path:
        return "NUL and backslash are not allowed"
    folder, separator, name = path.rpartition("/")
    return (_find_folder_error(folder) if separator else None) or _find_segment_error(name)


# Most objects share their folder with others.
@functools.lru_cache(maxsize=1024)
def _find_folder_error(folder: str) -> str | None:
    return next(filter(None, map(_find_segment_error, folder.split("/"))), None)


def _find_segment_error(segment: str) -> str | None:
    if segment in {"", ".", ".."}:
        return "it must be relative, without empty, . or .. parts"
    if segment.startswith(PARTIAL_PREFIX):
        return f"parts that begin with {PARTIAL_PREFIX} are unfinished writes"
    if len(segment.encode()) > _MAX_SEGMENT_BYTES:
        return f"a part has more than {_MAX_SEGMENT_BYTES} bytes"
    return None


# --- Listings in byte order, with groups by a delimiter.
#
# Python compares strings by code points, which is the order of their UTF-8 bytes.


def list_tree(
    list_children: Callable[[str], Sequence[ObjectInfo | str]],
    prefix: str,
    *,
    after: str,
    delimiter: str,
) -> Iterator[ObjectInfo | str]:
    """Walk a tree of folders in the order of object paths. Skips subtrees if possible.

    Args:
        list_children: Returns the objects of a folder, and the paths of its subfolders, which end
            in `/`.
        prefix: Text that paths start with.
        after: Entries up to and including this one are omitted.
        delimiter: Groups paths after the prefix. Empty: no groups.
    """
    if delimiter == "/":
        return _list_one_level(list_children, prefix, after)
    found = _walk_tree(list_children, _prefix_folder(prefix), prefix, after)
    return group_by_delimiter(found, prefix, after=after, delimiter=delimiter)


def group_by_delimiter(
    objects: Iterable[ObjectInfo], prefix: str, *, after: str, delimiter: str
) -> Iterator[ObjectInfo | str]:
    """Replace consecutive objects that have the same path up to a delimiter by that path."""
    last = after
    for each in objects:
        group = find_common_prefix(each.path, prefix, delimiter)
        if group is None:
            yield each
        elif group != last:
            last = group
            yield group


def find_common_prefix(path: str, prefix: str, delimiter: str) -> str | None:
    """Return the path up to and including the first delimiter after the prefix, or None."""
    at = path.find(delimiter, len(prefix)) if delimiter else -1
    return None if at < 0 else path[: at + len(delimiter)]


def _list_one_level(
    list_children: Callable[[str], Sequence[ObjectInfo | str]], prefix: str, after: str
) -> Iterator[ObjectInfo | str]:
    for each in _sort_by_path(list_children(_prefix_folder(prefix))):
        path = _entry_path(each)
        if not path.startswith(prefix):
            continue
        if isinstance(each, ObjectInfo):
            if path > after:
                yield each
        elif after != path and any(True for _ in _walk_tree(list_children, path, prefix, after)):
            yield path


def _walk_tree(
    list_children: Callable[[str], Sequence[ObjectInfo | str]], folder: str, prefix: str, after: str
) -> Iterator[ObjectInfo]:
    for each in _sort_by_path(list_children(folder)):
        if not _entry_path(each).startswith(prefix):
            continue
        if isinstance(each, ObjectInfo):
            if each.path > after:
                yield each
        elif each > after or after.startswith(each):
            yield from _walk_tree(list_children, each, prefix, after)


def _sort_by_path(children: Sequence[ObjectInfo | str]) -> list[ObjectInfo | str]:
    return sorted(children, key=_entry_path)


def _entry_path(entry: ObjectInfo | str) -> str:
    return entry.path if isinstance(entry, ObjectInfo) else entry


def _prefix_folder(prefix: str) -> str:
    return prefix[: prefix.rfind("/") + 1]
