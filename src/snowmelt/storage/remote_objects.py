"""Single objects of a remote store: one being read, one being written."""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING

import obstore
import obstore.exceptions
import obstore.store

from snowmelt.errors import ObjectChanged, ObjectMissing, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from obstore import GetOptions

    from snowmelt.storage.store import ObjectInfo, OpenObject, Readable

_BLOCK = 1024 * 1024
# Smaller objects wait in memory, larger ones in a temporary file, until they are whole.
_IN_MEMORY_BYTES = 8 * 1024 * 1024
_SMALLEST_PART = 8 * 1024 * 1024
_MOST_PARTS = 9_000
_AT_ONCE = 4
# Stores make an object on condition in one request only, which obstore holds in memory.
MOST_BYTES_CREATE_ONLY = 64 * 1024 * 1024


class RemoteObject:
    """An object as it was when it was opened: every read asks for that ETag."""

    def __init__(
        self,
        store: obstore.store.ObjectStore,
        info: ObjectInfo,
        attributes: Mapping[str, str],
        failures: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._store = store
        self._failures = failures
        self.info = info
        self.attributes = attributes

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
        """Read bytes from `offset` on into `view`; fewer than it takes only at the end."""
        length = min(len(view), self.size - offset)
        if length <= 0:
            return 0
        with self._changes():
            found = obstore.get(
                self._store, self.name, options=self._options(offset, offset + length)
            )
            data = memoryview(found.buffer()).cast("B")
        view[: len(data)] = data
        return len(data)

    def chunks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` up to before `end`, all of one request."""
        end = self.size if end is None else min(end, self.size)
        if start >= end:
            return
        with self._changes():
            found = obstore.get(self._store, self.name, options=self._options(start, end))
            for chunk in found.stream(min_chunk_size=_BLOCK):
                yield bytes(chunk)

    def close(self) -> None:
        """Nothing is held."""

    def _options(self, start: int, end: int) -> GetOptions:
        options: GetOptions = {"range": (start, end)}
        if self.etag is not None:
            options["if_match"] = self.etag
        return options

    @contextlib.contextmanager
    def _changes(self) -> Iterator[None]:
        try:
            with self._failures():
                try:
                    yield
                except obstore.exceptions.PreconditionError:
                    raise ObjectChanged(key=self.name) from None
        except ObjectMissing:
            raise ObjectChanged(key=self.name) from None


class RemoteWriter:
    """An object that waits here until it is whole: stores cannot take back what they began."""

    def __init__(
        self,
        store: obstore.store.ObjectStore,
        path: str,
        failures: Callable[[], AbstractContextManager[None]],
        head: Callable[[], ObjectInfo | None],
    ) -> None:
        self._store = store
        self._path = path
        self._failures = failures
        self._head = head
        self._size = 0
        self._spool = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115

    def write(self, data: Readable) -> None:
        """Append bytes."""
        with self._failures():
            self._spool.write(data)
        self._size += memoryview(data).nbytes

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Append bytes of another object."""
        for chunk in source.chunks(start, end):
            self.write(chunk)

    def finish(
        self, *, create_only: bool = False, attributes: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Send the object.

        Raises:
            Unsupported: `create_only`, and it is larger than stores take on condition.
        """
        if create_only and self._size > MOST_BYTES_CREATE_ONLY:
            raise Unsupported(
                what=f"Creating an object of more than {MOST_BYTES_CREATE_ONLY:,} bytes in "
                "another store only if there is none",
                instead="write it without the condition",
            )
        with self._failures():
            self._spool.seek(0)
            whole = create_only or self._size <= _IN_MEMORY_BYTES
            obstore.put(
                self._store,
                self._path,
                self._spool.read() if whole else self._spool,
                attributes=dict(attributes or {}),
                mode="create" if create_only else None,
                use_multipart=not whole,
                chunk_size=max(_SMALLEST_PART, self._size // _MOST_PARTS + 1),
                max_concurrency=_AT_ONCE,
            )
        self.abort()
        info = self._head()
        if info is None:
            raise ObjectChanged(key=self._path)
        return info

    def abort(self) -> None:
        """Drop what was not sent."""
        self._spool.close()
