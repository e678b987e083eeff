"""Objects in S3, GCS, Azure and whatever else obstore speaks to."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import obstore
import obstore.exceptions
import obstore.store

from snowmelt.errors import (
    AlreadyExists,
    ConfigurationError,
    ObjectMissing,
    PathRefused,
    StageUnavailable,
)
from snowmelt.storage.remote_objects import RemoteObject, RemoteWriter
from snowmelt.storage.scanning import grouped
from snowmelt.storage.store import ObjectInfo, Readable, is_path, path_parts

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator

    from obstore import ObjectMeta


# Every other store lists in the order of bytes.
_UNORDERED = (obstore.store.LocalStore, obstore.store.HTTPStore)


class RemoteStore:
    """Objects of an obstore store; what a put answered is durable, so `sync` has nothing to do."""

    def __init__(self, url: str, store: obstore.store.ObjectStore) -> None:
        self._url = url
        self._store = store

    @property
    def url(self) -> str:
        """The URL that it was opened with."""
        return self._url

    def get(self, path: str) -> bytes:
        """Return a whole object."""
        path_parts(path)
        with self._failures(path):
            return obstore.get(self._store, path).bytes().to_bytes()

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer when the object ends before."""
        if offset < 0 or length < 0:
            raise ValueError("offset and length must not be negative")
        path_parts(path)
        with self._failures(path):
            try:
                if length:
                    found = obstore.get_range(self._store, path, start=offset, length=length)
                    return found.to_bytes()
            except obstore.exceptions.BaseError:
                # Most stores refuse a range that begins at the end or beyond.
                if offset < obstore.head(self._store, path)["size"]:
                    raise
            else:
                obstore.head(self._store, path)
        return b""

    def read(self, path: str, most: int) -> tuple[ObjectInfo, bytes]:
        """Return what is known of an object and its first bytes, `most` at most; one request."""
        path_parts(path)
        with self._failures(path):
            try:
                found = obstore.get(self._store, path, options={"range": (0, most)})
                return _info(found.meta), found.bytes().to_bytes()
            except obstore.exceptions.BaseError:
                # Of an empty object no range can be had.
                info = _info(obstore.head(self._store, path))
                if info.size:
                    raise
                return info, b""

    def head(self, path: str) -> ObjectInfo | None:
        """Return size and change mark of an object, None when it does not exist."""
        path_parts(path)
        try:
            with self._failures(path):
                return _info(obstore.head(self._store, path))
        except ObjectMissing:
            return None

    def put(
        self,
        path: str,
        data: Readable,
        *,
        create_only: bool = False,
        durable: bool = False,  # noqa: ARG002 - what a store answered is durable
    ) -> None:
        """Write a whole object; with `create_only` only if the store has none by that path."""
        path_parts(path)
        with self._failures(path):
            if create_only:
                # Conditional writes do not exist for uploads in parts.
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
            else:
                obstore.put(self._store, path, data)

    def open(self, path: str) -> RemoteObject:
        """Open an object for random reads of what it is now."""
        path_parts(path)
        with self._failures(path):
            found = obstore.get(self._store, path, options={"head": True})
            attributes = dict(found.attributes)
            return RemoteObject(
                self._store, _info(found.meta), attributes, lambda: self._failures(path)
            )

    def writer(self, path: str) -> RemoteWriter:
        """Begin to write an object, which is sent when it is whole."""
        path_parts(path)
        return RemoteWriter(
            self._store, path, lambda: self._failures(path), lambda: self.head(path)
        )

    def copy(self, source: str, target: str) -> None:
        """Let the store copy an object."""
        path_parts(target)
        path_parts(source)
        with self._failures(source):
            obstore.copy(self._store, source, target)

    def delete(self, path: str) -> None:
        """Delete an object; a missing one is fine."""
        path_parts(path)
        with contextlib.suppress(ObjectMissing), self._failures(path):
            obstore.delete(self._store, path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects beneath folder `prefix`, page by page."""
        folder = "/".join(path_parts(prefix.removesuffix("/"))) if prefix else None
        with self._failures(prefix):
            for page in obstore.list(self._store, folder):
                yield from map(_info, page)

    def scan(
        self, prefix: str = "", *, after: str = "", delimiter: str = ""
    ) -> Iterator[ObjectInfo | str]:
        """Yield objects and groups in the order of their bytes, as the store lists them."""
        if delimiter == "/":
            return self._one_level(prefix, after)
        found = self._ordered(prefix, after)
        return grouped(found, prefix, after=after, delimiter=delimiter)

    def _one_level(self, prefix: str, after: str) -> Iterator[ObjectInfo | str]:
        folder = prefix[: prefix.rfind("/") + 1]
        if folder and not is_path(folder[:-1]):
            return
        with self._failures(prefix):
            level = obstore.list_with_delimiter(self._store, folder[:-1] or None)
        entries: list[tuple[str, ObjectInfo | None]] = [
            (info.path, info) for info in map(_info, level["objects"])
        ]
        entries += [(f"{group}/", None) for group in level["common_prefixes"]]
        for path, info in sorted(entries, key=lambda entry: entry[0]):
            if not path.startswith(prefix):
                continue
            if info is not None:
                if path > after:
                    yield info
            elif path > after or (
                path != after and after.startswith(path) and any(self._ordered(path, after))
            ):
                yield path

    def _ordered(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        # Stores list whole folders only, and from any path on.
        folder = prefix[: prefix.rfind("/") + 1]
        if folder and not is_path(folder[:-1]):
            return
        if prefix != folder and after < prefix:
            if is_path(prefix) and (exact := self.head(prefix)) is not None:
                yield exact
            after = prefix
        offset = after if is_path(after) else None
        with self._failures(prefix):
            pages = obstore.list(self._store, folder[:-1] or None, offset=offset, chunk_size=1000)
            found: Iterable[ObjectInfo] = (info for page in pages for info in map(_info, page))
            if isinstance(self._store, _UNORDERED):
                found = sorted(found, key=lambda info: info.path)
            for info in found:
                if info.path > after and info.path.startswith(prefix):
                    yield info
                elif info.path > prefix and not info.path.startswith(prefix):
                    return

    def watch(self) -> None:
        """Return at once: a store reports a failed write to the put that made it."""

    def sync(self) -> None:
        """Return at once: puts are durable when they return."""

    def is_on_disk(self, path: str, md5: str) -> bool:  # noqa: ARG002 - the protocol's signature
        """Return True: puts are durable when they return."""
        return True

    def sweep(
        self,
        before: dt.datetime,  # noqa: ARG002 - the protocol's signature
        *,
        between: Callable[[], None] | None = None,  # noqa: ARG002 - likewise
    ) -> int:
        """Return 0: an interrupted put leaves nothing that a listing would show."""
        return 0

    @contextlib.contextmanager
    def _failures(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise ObjectMissing(path=path, store=self._url) from None
        except obstore.exceptions.AlreadyExistsError:
            raise AlreadyExists(kind="Object", name=path) from None
        except obstore.exceptions.InvalidPathError as error:
            raise PathRefused(path=path, reason=_first_line(error)) from None
        except (obstore.exceptions.BaseError, OSError) as error:
            cause = _first_line(error)
            raise StageUnavailable(reason=f"{path}: {cause}", cause=cause) from error


def open_remote(url: str) -> RemoteStore:
    """Open the store of an `s3:`, `gs:`, `az:` … URL with the settings of the environment.

    Raises:
        ConfigurationError: obstore knows no such URL, or settings are missing.
    """
    try:
        return RemoteStore(url, obstore.store.from_url(url))
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise ConfigurationError(setting=url, reason=_first_line(error)) from error


def _info(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"], meta["e_tag"])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
