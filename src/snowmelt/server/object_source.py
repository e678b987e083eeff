"""Objects of buckets as input of the select engine."""

from __future__ import annotations

import threading

from snowmelt.errors import ObjectChanged, SnowmeltError
from snowmelt.select.errors import SelectError
from snowmelt.select.formats.byte_streams import ConcurrentSource
from snowmelt.storage.local_store import LocalObject
from snowmelt.storage.store import OpenObject


class BucketObjectSource:
    """An object of a bucket as input of the select engine. Thread-safe."""

    def __init__(self, key: str, opened: OpenObject) -> None:
        self.name = key
        self.size = opened.size
        self._opened = opened
        self._lock = threading.Lock()

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read bytes at `offset` into the view. Return their number, which is lower at the end."""
        with self._lock:
            return self._read_range(offset, view)

    def _read_range(self, offset: int, view: memoryview) -> int:
        # Bytes appended after opening are not part of the object.
        wanted = max(0, min(len(view), self.size - offset))
        try:
            count = self._opened.read_into(offset, view[:wanted])
        except ObjectChanged as error:
            raise self._source_changed_error() from error
        except SnowmeltError as error:
            raise SelectError("Busy", f"{self.name} cannot be read: {error}") from error
        if count < wanted:
            # Without this check, a truncated file would seem complete.
            raise self._source_changed_error()
        return count

    def _source_changed_error(self) -> SelectError:
        return SelectError(
            "InvalidDataSource", f"{self.name} was changed while it was read; ask again."
        )

    def close(self) -> None:
        """Close the object."""
        with self._lock:
            self._opened.close()


class _LocalFileSource(BucketObjectSource, ConcurrentSource):
    """An object in a local file. Reads have explicit offsets, so they need no lock."""

    def read_into(self, offset: int, view: memoryview) -> int:
        return self._read_range(offset, view)


def make_object_source(key: str, opened: OpenObject) -> BucketObjectSource:
    """Return a source for an open object. The engine closes it."""
    return (_LocalFileSource if isinstance(opened, LocalObject) else BucketObjectSource)(
        key, opened
    )
