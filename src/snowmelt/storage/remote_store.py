"""Store of objects in S3, GCS, Azure and other services that obstore supports.

The first section handles single objects: reading and writing.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import obstore
import obstore.exceptions
import obstore.store

from snowmelt.errors import (
    AlreadyExists,
    ConfigurationError,
    ObjectChanged,
    ObjectMissing,
    PathRefused,
    StageUnavailable,
    Unsupported,
)
from snowmelt.storage.store import (
    BytesLike,
    ObjectInfo,
    OpenObject,
    group_by_delimiter,
    is_valid_path,
    split_path,
)

if TYPE_CHECKING:
    import datetime as dt

    from obstore import GetOptions, ObjectMeta


# --- Single objects of a remote store: reading and writing.

_READ_BLOCK_BYTES = 1024 * 1024
# Smaller objects are buffered in memory, larger ones in a temporary file.
_MAX_IN_MEMORY_BYTES = 8 * 1024 * 1024
_MIN_PART_BYTES = 8 * 1024 * 1024
_MAX_PARTS = 9_000
_MAX_CONCURRENT_PARTS = 4
# Maximum size of conditional puts: each is a single request, which obstore holds in memory.
MAX_CREATE_ONLY_BYTES = 64 * 1024 * 1024


class RemoteObject(OpenObject):
    """An object version: every read requires the ETag that the object had when it was opened."""

    def __init__(
        self,
        store: obstore.store.ObjectStore,
        info: ObjectInfo,
        attributes: Mapping[str, str],
        translating_errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._store = store
        self._translating_errors = translating_errors
        self.info = info
        self.attributes = attributes

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read bytes at `offset` into `view`. Reads fewer than its size only at the end of the object."""
        length = min(len(view), self.size - offset)
        if length <= 0:
            return 0
        with self._detecting_changes():
            found = obstore.get(
                self._store, self.name, options=self._make_get_options(offset, offset + length)
            )
            data = memoryview(found.buffer()).cast("B")
        view[: len(data)] = data
        return len(data)

    def read_blocks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` (inclusive) to `end` (exclusive), with one request."""
        end = self.size if end is None else min(end, self.size)
        if start >= end:
            return
        with self._detecting_changes():
            found = obstore.get(self._store, self.name, options=self._make_get_options(start, end))
            for chunk in found.stream(min_chunk_size=_READ_BLOCK_BYTES):
                yield bytes(chunk)

    def close(self) -> None:
        """Do nothing, because there is no open resource."""

    def _make_get_options(self, start: int, end: int) -> GetOptions:
        options: GetOptions = {"range": (start, end)}
        if self.etag is not None:
            options["if_match"] = self.etag
        return options

    @contextlib.contextmanager
    def _detecting_changes(self) -> Iterator[None]:
        try:
            with self._translating_errors():
                try:
                    yield
                except obstore.exceptions.PreconditionError:
                    raise ObjectChanged(key=self.name) from None
        except ObjectMissing:
            raise ObjectChanged(key=self.name) from None


class RemoteObjectWriter:
    """Writer that buffers an object locally until it is complete, because stores cannot undo uploads."""

    def __init__(
        self,
        store: obstore.store.ObjectStore,
        path: str,
        translating_errors: Callable[[], AbstractContextManager[None]],
        head_object: Callable[[], ObjectInfo | None],
    ) -> None:
        self._store = store
        self._path = path
        self._translating_errors = translating_errors
        self._head_object = head_object
        self._size = 0
        self._spool = tempfile.SpooledTemporaryFile(max_size=_MAX_IN_MEMORY_BYTES)  # noqa: SIM115

    def write(self, data: BytesLike) -> None:
        """Append bytes."""
        with self._translating_errors():
            self._spool.write(data)
        self._size += memoryview(data).nbytes

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Append bytes of another object."""
        for chunk in source.read_blocks(start, end):
            self.write(chunk)

    def finish(
        self, *, create_only: bool = False, attributes: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Upload the object.

        Raises:
            Unsupported: If `create_only` is set, and the object is too large for a conditional put.
        """
        if create_only and self._size > MAX_CREATE_ONLY_BYTES:
            raise Unsupported(
                what=f"An object of more than {MAX_CREATE_ONLY_BYTES:,} bytes with the condition that it "
                "does not exist",
                instead="write it without the condition",
            )
        with self._translating_errors():
            self._spool.seek(0)
            whole = create_only or self._size <= _MAX_IN_MEMORY_BYTES
            obstore.put(
                self._store,
                self._path,
                self._spool.read() if whole else self._spool,
                attributes=dict(attributes or {}),
                mode="create" if create_only else None,
                use_multipart=not whole,
                chunk_size=max(_MIN_PART_BYTES, self._size // _MAX_PARTS + 1),
                max_concurrency=_MAX_CONCURRENT_PARTS,
            )
        self.abort()
        info = self._head_object()
        if info is None:
            raise ObjectChanged(key=self._path)
        return info

    def abort(self) -> None:
        """Discard the buffer."""
        self._spool.close()


# Stores that do not list in byte order.
_UNORDERED_STORES = (obstore.store.LocalStore, obstore.store.HTTPStore)


class RemoteStore:
    """Objects of an obstore store. A completed put is durable, so `sync` does nothing."""

    def __init__(self, url: str, store: obstore.store.ObjectStore) -> None:
        self._url = url
        self._store = store

    @property
    def url(self) -> str:
        """The URL with which the store was opened."""
        return self._url

    def get(self, path: str) -> bytes:
        """Return a whole object."""
        split_path(path)
        with self._translating_errors(path):
            return obstore.get(self._store, path).bytes().to_bytes()

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`, fewer at the end of the object."""
        if offset < 0 or length < 0:
            raise ValueError("offset and length must not be negative")
        split_path(path)
        with self._translating_errors(path):
            try:
                if length:
                    found = obstore.get_range(self._store, path, start=offset, length=length)
                    return found.to_bytes()
            except obstore.exceptions.BaseError:
                # Most stores reject a range that starts at the end of the object or beyond.
                if offset < obstore.head(self._store, path)["size"]:
                    raise
            else:
                obstore.head(self._store, path)
        return b""

    def read_prefix(self, path: str, max_bytes: int) -> tuple[ObjectInfo, bytes]:
        """Return the properties of an object and at most its first `max_bytes` bytes, with one request."""
        split_path(path)
        with self._translating_errors(path):
            try:
                found = obstore.get(self._store, path, options={"range": (0, max_bytes)})
                return _make_object_info(found.meta), found.bytes().to_bytes()
            except obstore.exceptions.BaseError:
                # An empty object has no valid range.
                info = _make_object_info(obstore.head(self._store, path))
                if info.size:
                    raise
                return info, b""

    def head(self, path: str) -> ObjectInfo | None:
        """Return the properties of an object, or None if it does not exist."""
        split_path(path)
        try:
            with self._translating_errors(path):
                return _make_object_info(obstore.head(self._store, path))
        except ObjectMissing:
            return None

    def put(
        self,
        path: str,
        data: BytesLike,
        *,
        create_only: bool = False,
        durable: bool = False,  # noqa: ARG002 - what a store answered is durable
    ) -> None:
        """Write a whole object. With `create_only`, only if no object has that path."""
        split_path(path)
        with self._translating_errors(path):
            if create_only:
                # Multipart uploads cannot be conditional.
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
            else:
                obstore.put(self._store, path, data)

    def open(self, path: str) -> RemoteObject:
        """Open the current version of an object for random reads."""
        split_path(path)
        with self._translating_errors(path):
            found = obstore.get(self._store, path, options={"head": True})
            attributes = dict(found.attributes)
            return RemoteObject(
                self._store,
                _make_object_info(found.meta),
                attributes,
                lambda: self._translating_errors(path),
            )

    def open_writer(self, path: str) -> RemoteObjectWriter:
        """Start to write an object. It is uploaded when it is complete."""
        split_path(path)
        return RemoteObjectWriter(
            self._store, path, lambda: self._translating_errors(path), lambda: self.head(path)
        )

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store."""
        split_path(target)
        split_path(source)
        with self._translating_errors(source):
            obstore.copy(self._store, source, target)

    def delete(self, path: str) -> None:
        """Delete an object. A missing object is not an error."""
        split_path(path)
        with contextlib.suppress(ObjectMissing), self._translating_errors(path):
            obstore.delete(self._store, path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below folder `prefix`, page by page."""
        folder = "/".join(split_path(prefix.removesuffix("/"))) if prefix else None
        with self._translating_errors(prefix):
            for page in obstore.list(self._store, folder):
                yield from map(_make_object_info, page)

    def list_ordered(
        self, prefix: str = "", *, after: str = "", delimiter: str = ""
    ) -> Iterator[ObjectInfo | str]:
        """Yield objects and groups in byte order, as the store lists them."""
        if delimiter == "/":
            return self._list_one_level(prefix, after)
        found = self._list_ordered_objects(prefix, after)
        return group_by_delimiter(found, prefix, after=after, delimiter=delimiter)

    def _list_one_level(self, prefix: str, after: str) -> Iterator[ObjectInfo | str]:
        folder = prefix[: prefix.rfind("/") + 1]
        if folder and not is_valid_path(folder[:-1]):
            return
        with self._translating_errors(prefix):
            level = obstore.list_with_delimiter(self._store, folder[:-1] or None)
        entries: list[tuple[str, ObjectInfo | None]] = [
            (info.path, info) for info in map(_make_object_info, level["objects"])
        ]
        entries += [(f"{group}/", None) for group in level["common_prefixes"]]
        for path, info in sorted(entries, key=lambda entry: entry[0]):
            if not path.startswith(prefix):
                continue
            if info is not None:
                if path > after:
                    yield info
            elif path > after or (
                path != after
                and after.startswith(path)
                and any(self._list_ordered_objects(path, after))
            ):
                yield path

    def _list_ordered_objects(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        # Stores only list whole folders, but from any start path.
        folder = prefix[: prefix.rfind("/") + 1]
        if folder and not is_valid_path(folder[:-1]):
            return
        if prefix != folder and after < prefix:
            if is_valid_path(prefix) and (exact := self.head(prefix)) is not None:
                yield exact
            after = prefix
        offset = after if is_valid_path(after) else None
        with self._translating_errors(prefix):
            pages = obstore.list(self._store, folder[:-1] or None, offset=offset, chunk_size=1000)
            found: Iterable[ObjectInfo] = (
                info for page in pages for info in map(_make_object_info, page)
            )
            if isinstance(self._store, _UNORDERED_STORES):
                found = sorted(found, key=lambda info: info.path)
            for info in found:
                if info.path > after and info.path.startswith(prefix):
                    yield info
                elif info.path > prefix and not info.path.startswith(prefix):
                    return

    def watch_writes(self) -> None:
        """Do nothing, because a store reports a failed write in the response to the put."""

    def sync(self) -> None:
        """Do nothing, because puts are durable when they return."""

    def is_on_disk(self, path: str, md5: str) -> bool:  # noqa: ARG002 - the protocol's signature
        """Return True, because puts are durable when they return."""
        return True

    def delete_partial_writes(
        self,
        before: dt.datetime,  # noqa: ARG002 - the protocol's signature
        *,
        on_step: Callable[[], None] | None = None,  # noqa: ARG002 - see above
    ) -> int:
        """Return 0, because listings contain no interrupted puts."""
        return 0

    @contextlib.contextmanager
    def _translating_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise ObjectMissing(path=path, store=self._url) from None
        except obstore.exceptions.AlreadyExistsError:
            raise AlreadyExists(kind="Object", name=path) from None
        except obstore.exceptions.InvalidPathError as error:
            raise PathRefused(path=path, reason=_first_error_line(error)) from None
        except (obstore.exceptions.BaseError, OSError) as error:
            cause = _first_error_line(error)
            raise StageUnavailable(reason=f"{path}: {cause}", cause=cause) from error


def open_remote_store(url: str) -> RemoteStore:
    """Open the store of an `s3:`, `gs:`, `az:` … URL. Credentials come from the environment.

    Raises:
        ConfigurationError: If obstore does not support the URL, or settings are missing.
    """
    try:
        return RemoteStore(url, obstore.store.from_url(url))
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise ConfigurationError(setting=url, reason=_first_error_line(error)) from error


def _make_object_info(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"], meta["e_tag"])


def _first_error_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
