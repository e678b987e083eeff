"""Cache of immutable catalog data: prefix owners, data keys and schema versions.

The cache makes no final decision. The registering transaction checks again whether the table,
role, key and schema are valid.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from snowmelt.catalog.objects import tables
from snowmelt.catalog.streaming import unregistered_blobs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.security.encryption_keys import KeyRing
    from snowmelt.schema.types import TableSchema

_MAX_CACHED_ENTRIES = 100_000
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class CachedDataKey:
    """A data key and whose it is: one table incarnation, one user."""

    table_id: int
    user: str
    data_key: bytes = field(repr=False)


class CatalogCache:
    """Look-ups that the catalog answers once; thread-safe."""

    def __init__(self, database: Database, keyring: KeyRing) -> None:
        self._database = database
        self._keyring = keyring
        self._owners: dict[str, str] = {}
        self._keys: dict[int, CachedDataKey] = {}
        self._schemas: dict[int, Mapping[int, TableSchema]] = {}
        self._lock = threading.Lock()

    def find_prefix_owner(self, prefix: str) -> str | None:
        """Return the user to whom a client prefix was issued, None when it never was."""
        owner = self._owners.get(prefix)
        if owner is None:
            with self._database.reading() as connection:
                owner = unregistered_blobs.find_prefix_owner(connection, prefix)
            if owner is not None:
                self._put_in_cache(self._owners, prefix, owner)
        return owner

    def find_data_key(self, key_id: int) -> CachedDataKey | None:
        """Return a data key by its id, None when there is none."""
        known = self._keys.get(key_id)
        if known is None:
            with self._database.reading() as connection:
                scope = self._keyring.find_key_scope(connection, key_id)
                if scope is None:
                    return None
                data_key = self._keyring.find_data_keys(connection, [key_id])[key_id]
            known = CachedDataKey(scope[0], scope[1], data_key)
            self._put_in_cache(self._keys, key_id, known)
        return known

    def get_schemas(self, table_id: int, *, refresh: bool = False) -> Mapping[int, TableSchema]:
        """Return the schema versions of a table known so far; `refresh` asks the catalog."""
        known = self._schemas.get(table_id)
        if known is None or refresh:
            with self._database.reading() as connection:
                known = tables.list_table_schema_versions(connection, table_id)
            self._put_in_cache(self._schemas, table_id, known)
        return known

    def load_new_schemas(self, table_id: int) -> bool:
        """Tell whether a table has versions that were not known so far; they are from now on."""
        before = self.get_schemas(table_id)
        return self.get_schemas(table_id, refresh=True).keys() != before.keys()

    def _put_in_cache(self, cache: dict[_Key, _Value], key: _Key, value: _Value) -> None:
        with self._lock:
            if len(cache) >= _MAX_CACHED_ENTRIES:
                cache.clear()
            cache[key] = value
