"""Cache of IMMUTABLE function values in this process, bounded by bytes, evicted by last use."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from snowmelt.functions.definition import ExternalFunction


class CacheMiss:
    """What stands for a value that is not there; None is a value."""


CACHE_MISS: Final = CacheMiss()
CachedValue: TypeAlias = object

# Objects and table slots of an entry, besides its key's and value's own bytes.
_ENTRY_OVERHEAD_BYTES = 200


class ValueCache:
    """Values by encoded arguments, bounded by bytes; for any number of threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: dict[bytes, tuple[CachedValue, int]] = {}
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """What it holds, with an estimate of what Python needs for it."""
        return self._bytes

    def get_many(self, keys: Iterable[bytes]) -> list[CachedValue]:
        """Return a value, or MISSING, for each key."""
        entries = self._entries
        found: list[CachedValue] = []
        with self._lock:
            for key in keys:
                entry = entries.pop(key, None)
                if entry is None:
                    found.append(CACHE_MISS)
                else:
                    entries[key] = entry  # the end of the dict is what was used last
                    found.append(entry[0])
        return found

    def put_many(
        self, keys: Sequence[bytes], values: Sequence[CachedValue], sizes_bytes: Sequence[int]
    ) -> None:
        """Keep values; one that is larger than an eighth of the cache is not worth its place.

        `values`: Whatever is to be had back; it must not be changed afterwards.
        """
        entries = self._entries
        largest = self._max_bytes // 8
        with self._lock:
            for key, value, size in zip(keys, values, sizes_bytes, strict=True):
                whole = size + len(key) + _ENTRY_OVERHEAD_BYTES
                if whole > largest:
                    continue
                before = entries.pop(key, None)
                if before is not None:
                    self._bytes -= before[1]
                entries[key] = (value, whole)
                self._bytes += whole
            while self._bytes > self._max_bytes:
                oldest = next(iter(entries))
                self._bytes -= entries.pop(oldest)[1]


_caches: dict[tuple[int, str], ValueCache] = {}
_MAX_CACHED_FUNCTIONS = 64


def get_value_cache(function: ExternalFunction) -> ValueCache | None:
    """Return the cache that all calls of this process to a function share.

    A function that is changed has another version and begins with an empty one. None where the
    function has no cache.
    """
    if not function.cache_bytes:
        return None
    key = (os.getpid(), function.version)
    found = _caches.get(key)
    if found is None:
        while len(_caches) >= _MAX_CACHED_FUNCTIONS:
            _caches.pop(next(iter(_caches)), None)
        found = _caches.setdefault(key, ValueCache(function.cache_bytes))
    return found
