"""Reads of a table's files with credentials that the Iceberg REST catalog has issued.

They reach the files of one table, and can neither list nor write. Each request checks that the role
may still select from the table; the result is remembered for five seconds.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
from collections.abc import Awaitable, Callable

from snowmelt.buckets.bucket_registry import BucketAccess
from snowmelt.buckets.errors import S3Error
from snowmelt.buckets.mounted_store_bucket import MountedBucket
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.objects.s3_buckets import BucketPrivileges, BucketRecord
from snowmelt.catalog.objects.tables import find_table_by_id
from snowmelt.catalog.security.access_control import (
    require_table_privilege,
    resolve_effective_role,
)
from snowmelt.catalog.security.encryption_keys import TableCredentials
from snowmelt.clock import Clock
from snowmelt.errors import UserError
from snowmelt.server.auth import RECHECK_INTERVAL_S
from snowmelt.server.s3 import object_operations
from snowmelt.server.s3.request import S3Request
from snowmelt.table.warehouse_paths import Warehouse

_READ_HANDLERS: frozenset[Callable[..., Awaitable[object]]] = frozenset(
    {object_operations.get_object, object_operations.head_object}
)
_MAX_CACHED_ENTRIES = 10_000


class TableFileAccess:
    """Authorization of reads in the warehouse. Thread-safe."""

    def __init__(self, database: Database, warehouse: Warehouse, clock: Clock) -> None:
        self._database = database
        self._warehouse = warehouse
        self._clock = clock
        record = BucketRecord(
            0,
            warehouse.public_bucket,
            ACCOUNTADMIN,
            warehouse.url,
            None,
            dt.datetime.fromtimestamp(0, dt.UTC),
        )
        self._record = record
        self._bucket = MountedBucket(record, database, warehouse.store)
        # Until when a role is known to be allowed to read a table.
        self._allowed_until: dict[tuple[str, str, int], float] = {}
        self._lock = threading.Lock()

    def authorize(
        self, request: S3Request, handle: Callable[..., Awaitable[object]], key: TableCredentials
    ) -> tuple[S3Request, BucketAccess]:
        """Return the request with its path in the warehouse, and the access to it.

        Raises:
            S3Error: If it is no read of a file of the table, or the role may not select from it.
        """
        folder = self._warehouse.to_public_key(key.folder)
        path = request.key.removeprefix(folder)
        is_table_file = (
            request.bucket == self._record.name
            and path != request.key
            and path.startswith(("/data/", "/metadata/"))
            and "/../" not in path
        )
        if handle not in _READ_HANDLERS or not is_table_file:
            raise S3Error("AccessDenied", "These credentials only read the files of one table.")
        self._require_select(key)
        privileges = BucketPrivileges(
            is_owner=False, prefixes_by_privilege={"READ": (f"{key.folder}{path}".encode(),)}
        )
        return (
            dataclasses.replace(request, key=f"{key.folder}{path}"),
            BucketAccess(key.user, self._record, privileges, self._bucket),
        )

    def _require_select(self, key: TableCredentials) -> None:
        now = self._clock.monotonic()
        entry = (key.user, key.role, key.table_id)
        if now < self._allowed_until.get(entry, now):
            return
        try:
            with self._database.reading() as connection:
                resolve_effective_role(connection, key.user, key.role)
                table = find_table_by_id(connection, key.table_id)
                require_table_privilege(connection, key.role, table, "SELECT")
        except UserError:
            self._allowed_until.pop(entry, None)
            raise S3Error(
                "AccessDenied", "The role of these credentials may not select from the table."
            ) from None
        with self._lock:
            if len(self._allowed_until) >= _MAX_CACHED_ENTRIES:
                self._allowed_until.clear()
            self._allowed_until[entry] = now + RECHECK_INTERVAL_S
