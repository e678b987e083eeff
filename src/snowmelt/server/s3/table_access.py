"""Access to a table's files with credentials that the Iceberg REST catalog has issued.

The credentials give access to the files of one table. A role that may select from the table can
read the files. A role that may also change rows can create files, for commits through the catalog.
Files cannot be listed, replaced or deleted. A deletion succeeds without effect, because engines
delete files of other commits by mistake, and their own files after a lost response. Garbage
collection deletes unused files. Each request checks the privileges of the role; the result is
cached for 5 s.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from snowmelt.buckets.bucket import ObjectMetadata, ObjectUpload, UploadCompletion
from snowmelt.buckets.bucket_registry import NO_BUCKET_ID, BucketAccess, register_mount
from snowmelt.buckets.errors import S3Error
from snowmelt.buckets.mounted_store_bucket import MountedBucket
from snowmelt.buckets.write_once_bucket import WriteOnceBucket
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import ROW_PRIVILEGES
from snowmelt.catalog.objects.published_snapshots import record_engine_write
from snowmelt.catalog.objects.s3_buckets import BucketPrivileges
from snowmelt.catalog.objects.s3_objects import NO_PRECONDITION, WritePrecondition
from snowmelt.catalog.objects.tables import find_table_by_id
from snowmelt.catalog.security.access_control import (
    require_table_privilege,
    resolve_effective_role,
)
from snowmelt.catalog.security.encryption_keys import TableCredentials
from snowmelt.clock import Clock
from snowmelt.errors import UserError
from snowmelt.server.auth import RECHECK_INTERVAL_S
from snowmelt.server.s3 import multipart_operations, object_operations
from snowmelt.server.s3.request import S3Request
from snowmelt.storage.store import BytesLike, OpenObject
from snowmelt.table.warehouse_paths import WAREHOUSE_BUCKET, Warehouse, is_published_path

_READ_HANDLERS: frozenset[Callable[..., Awaitable[Any]]] = frozenset(
    {object_operations.get_object, object_operations.head_object}
)
_WRITE_HANDLERS: frozenset[Callable[..., Awaitable[Any]]] = frozenset(
    {
        object_operations.put_object,
        object_operations.upload_part,
        object_operations.delete_object,
        multipart_operations.create_upload,
        multipart_operations.complete_upload,
        multipart_operations.abort_upload,
        multipart_operations.list_parts,
    }
)
_MAX_CACHED_ENTRIES = 10_000
_NO_TIME = dt.datetime.fromtimestamp(0, dt.UTC)


class TableFileAccess:
    """Authorizes requests for table files. Thread-safe."""

    def __init__(self, database: Database, warehouse: Warehouse, clock: Clock) -> None:
        """Register the bucket of the warehouse.

        Raises:
            ConfigurationError: If a bucket with objects already has the name.
        """
        self._database = database
        self._warehouse = warehouse
        self._clock = clock
        self._open_bucket()
        # Time until which a cached privilege of a role on a table is valid.
        self._allowed_until: dict[tuple[str, str, int, bool], float] = {}
        self._lock = threading.Lock()

    def authorize(
        self, request: S3Request, handle: Callable[..., Awaitable[object]], key: TableCredentials
    ) -> tuple[S3Request, BucketAccess]:
        """Authorize a request. Return it with its path in the warehouse, and the bucket.

        Raises:
            S3Error: If the request is not for a file of the table, or the role lacks a privilege on it.
        """
        folder = self._warehouse.to_public_key(key.folder)
        path = request.key.removeprefix(folder)
        is_table_file = (
            request.bucket == self._record.name
            and path != request.key
            and path.startswith(("/data/", "/metadata/"))
            and "/../" not in path
        )
        writes = handle in _WRITE_HANDLERS
        if not is_table_file or not (writes or handle in _READ_HANDLERS):
            raise S3Error(
                "AccessDenied", "These credentials only read and create the files of one table."
            )
        if writes and is_published_path(path):
            raise S3Error("AccessDenied", "Snowmelt alone writes this folder.")
        self._require_privilege(key, writes=writes)
        if writes and self._record.bucket_id == NO_BUCKET_ID:
            # The bucket has no record because the service started as a secondary.
            self._open_bucket()
        full_path = f"{key.folder}{path}"
        privileges = BucketPrivileges(
            is_owner=False,
            prefixes_by_privilege={"WRITE" if writes else "READ": (full_path.encode(),)},
        )
        bucket = self._growing_bucket if writes else self._bucket
        return (
            dataclasses.replace(request, key=full_path),
            BucketAccess(key.user, self._record, privileges, bucket),
        )

    def _open_bucket(self) -> None:
        # The registry does not serve this bucket, because only credentials of the Iceberg REST catalog
        # may access table files.
        record = register_mount(self._database, self._clock, WAREHOUSE_BUCKET, self._warehouse.url)
        self._record = dataclasses.replace(record, name=self._warehouse.public_bucket)
        self._bucket = MountedBucket(self._record, self._database, self._warehouse.store)
        self._growing_bucket = _GrowingBucket(self._bucket)

    def _require_privilege(self, key: TableCredentials, *, writes: bool) -> None:
        now = self._clock.monotonic()
        entry = (key.user, key.role, key.table_id, writes)
        if now < self._allowed_until.get(entry, now):
            return
        try:
            with self._database.reading() as connection:
                resolve_effective_role(connection, key.user, key.role)
                table = find_table_by_id(connection, key.table_id)
                require_table_privilege(connection, key.role, table, "SELECT")
                if writes:
                    require_table_privilege(connection, key.role, table, *ROW_PRIVILEGES)
        except UserError:
            self._allowed_until.pop(entry, None)
            verb = "change" if writes else "select from"
            raise S3Error(
                "AccessDenied", f"The role of these credentials may not {verb} the table."
            ) from None
        if writes:
            # Record the write, so that garbage collection does not delete the files before their
            # commit.
            with self._database.writing() as connection:
                record_engine_write(connection, key.table_id, self._clock.now())
        with self._lock:
            if len(self._allowed_until) >= _MAX_CACHED_ENTRIES:
                self._allowed_until.clear()
            self._allowed_until[entry] = now + RECHECK_INTERVAL_S


class _GrowingBucket(WriteOnceBucket):
    """Bucket whose objects cannot be replaced or deleted. Deletions succeed without effect.

    Objects for folders are ignored. PyArrow writes one for the folder of a deleted file.
    """

    def start_upload(self, key: str, headers: Mapping[str, str]) -> ObjectUpload:
        """Start an upload of an object."""
        return _IgnoredUpload(key) if key.endswith("/") else super().start_upload(key, headers)

    def delete(self, key: str, condition: WritePrecondition = NO_PRECONDITION) -> None:
        """Do nothing."""


class _IgnoredUpload:
    """An upload that stores nothing."""

    def __init__(self, key: str) -> None:
        self._key = key

    def write(self, data: BytesLike) -> None:
        """Do nothing."""

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Do nothing."""

    def finish(self, completion: UploadCompletion) -> ObjectMetadata:
        """Return the metadata of an empty object."""
        return ObjectMetadata(self._key, 0, completion.etag or "", _NO_TIME)

    def abort(self) -> None:
        """Do nothing."""
