"""The interface of object stores, validation of paths, and ordered listings.

Listings are in the order of bytes, with groups by a delimiter. Python compares strings by code
points, which is the order of their UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from snowmelt.errors import PathRefused

if TYPE_CHECKING:
    import datetime as dt

BytesLike: TypeAlias = bytes | bytearray | memoryview

# Name of a file that a put has not finished yet: never an object, so never listed.
PARTIAL_PREFIX = ".put-"

_MAX_SEGMENT_BYTES = 255
_MAX_PATH_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object: path within its store, bytes, aware instant of the last change, change mark."""

    path: str
    size: int
    modified_at: dt.datetime
    etag: str | None


class OpenObject(Protocol):
    """One object to read at random, the same from the first byte to the last.

    Whoever replaces or deletes it meanwhile either does not matter (local files), or makes the
    next read fail. `attributes` are the headers that the store keeps with it, such as
    `Content-Type`; other names are the user's own. Not for several threads at once.
    """

    info: ObjectInfo
    attributes: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its path in the store."""
        return self.info.path

    @property
    def size(self) -> int:
        """Its length, in bytes."""
        return self.info.size

    @property
    def etag(self) -> str | None:
        """Its change mark."""
        return self.info.etag

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read bytes from `offset` on into `view`; fewer than it takes only at the end.

        Raises:
            ObjectChanged: The object was replaced or deleted since it was opened.
            StageUnavailable: The store does not answer.
        """

    def read_blocks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` up to before `end`, in pieces of up to some MiB.

        Raises:
            ObjectChanged: The object was replaced or deleted since it was opened.
            StageUnavailable: The store does not answer.
        """

    def close(self) -> None:
        """Let go of it; again is harmless."""


class ObjectWriter(Protocol):
    """An object that is being written piece by piece; nobody sees it before `finish`."""

    def write(self, data: BytesLike) -> None:
        """Append bytes.

        Raises:
            StageUnavailable: No space left, or the store does not answer.
        """

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Append bytes of another object, from `start` up to before `end`.

        Raises:
            ObjectChanged: The source was replaced meanwhile.
            StageUnavailable: No space left, or a store does not answer.
        """

    def finish(
        self, *, create_only: bool = False, attributes: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Publish the object, durable when this returns; a store without attributes drops them.

        Raises:
            AlreadyExists: `create_only`, and there is such an object.
            StageUnavailable: The store does not answer; nothing new is visible.
        """

    def abort(self) -> None:
        """Leave nothing behind; after `finish`, or again, it is harmless."""


class Store(Protocol):
    """Objects by path, relative to one root; `/` separates folders, which need no creation.

    A put is all or nothing: readers see the old object or the new one. What was put is
    durable after `sync`. Paths are checked by `split_path`; an object that is no regular file
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

    def read_prefix(self, path: str, max_bytes: int) -> tuple[ObjectInfo, bytes]:
        """Return what is known of an object and its first bytes, `max_bytes` at most; one request.

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

    def put(
        self, path: str, data: BytesLike, *, create_only: bool = False, durable: bool = False
    ) -> None:
        """Write a whole object, replacing an older one unless `create_only`.

        Durable when it returns if `durable`, else after `sync`.

        Raises:
            AlreadyExists: `create_only`, and the object exists.
            PathRefused: The path is not one of an object.
            StageUnavailable: No space, no permission, or the store does not answer; nothing
                new is visible.
        """

    def open(self, path: str) -> OpenObject:
        """Open an object for random reads; the caller closes it.

        Raises:
            ObjectMissing: No such object.
            PathRefused: The path is not one of an object.
            StageUnavailable: The store does not answer.
        """

    def open_writer(self, path: str) -> ObjectWriter:
        """Begin to write an object piece by piece, in bounded memory.

        Raises:
            PathRefused: The path is not one of an object.
            StageUnavailable: No space, no permission, or the store does not answer.
        """

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store, with its attributes; durable when it returns.

        Raises:
            ObjectMissing: No such object.
            PathRefused: A path is not one of an object.
            StageUnavailable: The store does not answer.
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

    def list_ordered(
        self, prefix: str = "", *, after: str = "", delimiter: str = ""
    ) -> Iterator[ObjectInfo | str]:
        """Yield the objects whose paths begin with the text `prefix`, in the order of their bytes.

        With a delimiter, objects whose path has it beyond the prefix are one entry each: the
        path up to and with the delimiter, as text. Entries up to and with `after` are left out;
        a group that `after` lies in is there if it has an object beyond.

        Raises:
            StageUnavailable: The store does not answer.
        """

    def watch_writes(self) -> None:
        """Begin to hear of failed writes; call it before what `sync` is to make durable is put.

        Raises:
            StageUnavailable: The store does not answer.
        """

    def sync(self) -> None:
        """Return when everything put since `watch_writes`, by any process, is durable.

        Raises:
            SyncFailed: What was put since the last sync that succeeded may be lost.
            StageUnavailable: The store does not answer; nothing was tried.
        """

    def is_on_disk(self, path: str, md5: str) -> bool:
        """Return False if an object may have lost bytes before `watch_writes`, and is not that MD5.

        Call it for what others put, before it is relied on after a `sync`.

        Raises:
            ObjectMissing: No such object.
            StageUnavailable: The store does not answer.
        """

    def delete_partial_writes(
        self, before: dt.datetime, *, on_step: Callable[[], None] | None = None
    ) -> int:
        """Remove what interrupted puts left behind before that instant; return how many.

        What `on_step` raises, which is called between folders, ends it there.
        """


def split_path(path: str) -> tuple[str, ...]:
    """Return the parts of an object's path.

    Raises:
        PathRefused: Empty or absolute, empty part, `.` or `..`, NUL or backslash, over
            1,024 bytes (255 a part), not Unicode, or the name of an unfinished put.
    """
    reason = _find_path_error(path)
    if reason is not None:
        raise PathRefused(path=path, reason=reason)
    return tuple(path.split("/"))


def is_valid_path(path: str) -> bool:
    """Return whether `split_path` takes this path."""
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
    return next(filter(None, map(_find_segment_error, path.split("/"))), None)


def _find_segment_error(segment: str) -> str | None:
    if segment in {"", ".", ".."}:
        return "it must be relative, without empty, . or .. parts"
    if segment.startswith(PARTIAL_PREFIX):
        return f"parts that begin with {PARTIAL_PREFIX} are unfinished writes"
    if len(segment.encode()) > _MAX_SEGMENT_BYTES:
        return f"a part has more than {_MAX_SEGMENT_BYTES} bytes"
    return None


# --- Listings in the order of bytes, with groups by a delimiter.
#
# Text in Python compares by code points, which is the order of its UTF-8 bytes.


def list_tree(
    list_children: Callable[[str], Sequence[ObjectInfo | str]],
    prefix: str,
    *,
    after: str,
    delimiter: str,
) -> Iterator[ObjectInfo | str]:
    """Walk a tree of folders in the order of their objects' paths, past what is not asked for.

    Args:
        list_children: Returns objects, and paths of subfolders (which end in `/`), of a folder.
        prefix: Text that paths begin with.
        after: Entries up to and with this one are left out.
        delimiter: Groups paths beyond the prefix when not empty.
    """
    if delimiter == "/":
        return _list_one_level(list_children, prefix, after)
    found = _walk_tree(list_children, _prefix_folder(prefix), prefix, after)
    return group_by_delimiter(found, prefix, after=after, delimiter=delimiter)


def group_by_delimiter(
    objects: Iterable[ObjectInfo], prefix: str, *, after: str, delimiter: str
) -> Iterator[ObjectInfo | str]:
    """Replace neighbours with the same text up to a delimiter by that text, once."""
    last = after
    for each in objects:
        group = find_common_prefix(each.path, prefix, delimiter)
        if group is None:
            yield each
        elif group != last:
            last = group
            yield group


def find_common_prefix(path: str, prefix: str, delimiter: str) -> str | None:
    """Return the path up to and with the first delimiter beyond the prefix, None without one."""
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
