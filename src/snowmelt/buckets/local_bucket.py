"""Local buckets: an index in the catalog, and one file for each object in a local store.

The second section deletes unneeded files: files of replaced or deleted objects, and files that a
crash left.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlalchemy as sa

from snowmelt import failpoints
from snowmelt.buckets.bucket import ListingEntry, ListingPage, ObjectMetadata, UploadCompletion
from snowmelt.buckets.checksums import Checksum
from snowmelt.buckets.errors import S3Error
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.objects import s3_objects
from snowmelt.catalog.objects.s3_buckets import BucketRecord
from snowmelt.catalog.objects.s3_objects import (
    NO_PRECONDITION,
    ObjectRecord,
    WritePrecondition,
    prefix_end,
)
from snowmelt.clock import Clock
from snowmelt.errors import NotFound, ObjectChanged, ObjectMissing
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store import BytesLike, ObjectWriter, OpenObject, find_common_prefix

# Maximum attempts to open an object that is replaced between the index lookup and the opening.
_MAX_OPEN_ATTEMPTS = 10
# Key under which the headers of an object include the sizes of its parts. Not a possible header
# name.
_PART_SIZES_HEADER = ":parts"


@lru_cache(maxsize=1)
def _make_process_suffix(_process_id: int) -> str:
    return secrets.token_hex(4)


def process_file_suffix() -> str:
    """Return the suffix of the names of all files that this process writes.

    The suffix distinguishes them from files that earlier processes left. A fork has a new suffix.
    """
    return _make_process_suffix(os.getpid())


class LocalBucket:
    """Bucket with an index in the catalog. Any key is valid."""

    def __init__(
        self, record: BucketRecord, database: Database, files: LocalStore, clock: Clock
    ) -> None:
        self.record = record
        self._database = database
        self._files = files
        self._clock = clock

    def head(self, key: str) -> ObjectMetadata:
        """Return the metadata of an object."""
        return _to_metadata(self._find_row(key))

    def open(self, key: str) -> tuple[ObjectMetadata, OpenObject]:
        """Open an object. Later writes and deletions do not affect the open object."""
        for _ in range(_MAX_OPEN_ATTEMPTS):
            row = self._find_row(key)
            try:
                return _to_metadata(row), self._files.open(row.file)
            except ObjectMissing:
                continue
        raise S3Error(
            "SlowDown",
            "Other requests replaced the object in each attempt to read it. Retry later.",
        )

    def start_upload(self, key: str, headers: Mapping[str, str]) -> LocalObjectUpload:
        """Start to write an object in a new file."""
        file = new_file_path(self.record.bucket_id)
        return LocalObjectUpload(self, key, headers, file, self._files.open_writer(file))

    def delete(self, key: str, condition: WritePrecondition = NO_PRECONDITION) -> None:
        """Delete an object and its file."""
        try:
            with self._database.writing() as connection:
                file = s3_objects.delete_object(
                    connection,
                    self.record.bucket_id,
                    key.encode(),
                    now=self._clock.now(),
                    precondition=condition,
                )
        except ObjectChanged:
            raise S3Error("PreconditionFailed") from None
        except ObjectMissing:
            raise S3Error("NoSuchKey", Key=key) from None
        if file is not None:
            self._files.delete(file)

    def list_page(self, prefix: str, *, delimiter: str, after: str, limit: int) -> ListingPage:
        """Return one page of the listing. Skips the keys of a group with one index lookup."""
        with self._database.reading() as connection:
            found = _IndexListing(connection, self.record.bucket_id, prefix, delimiter, after)
            return found.read_page(limit)

    def index_object(
        self,
        key: str,
        headers: Mapping[str, str],
        file: str,
        size: int,
        completion: UploadCompletion,
    ) -> ObjectMetadata:
        """Point the index to a finished file, and mark the replaced file for deletion.

        Raises:
            S3Error: If the condition does not hold, or the bucket was dropped.
        """
        row = s3_objects.ObjectRecord(
            key=key.encode(),
            size=size,
            etag=completion.etag or "",
            modified_at=self._clock.now(),
            headers={**headers, _PART_SIZES_HEADER: _encode_part_sizes(completion.part_sizes)}
            if completion.part_sizes
            else headers,
            checksum=None if completion.checksum is None else str(completion.checksum),
            file=file,
        )
        bucket_id = self.record.bucket_id
        try:
            with self._database.writing() as connection:
                older = s3_objects.find_object(connection, bucket_id, row.key)
                s3_objects.put_object(connection, bucket_id, row, precondition=completion.condition)
                if completion.in_transaction is not None:
                    completion.in_transaction(connection)
                failpoints.hit_failpoint(failpoints.Failpoint.OBJECT_INDEXING)
        except ObjectChanged:
            raise S3Error("PreconditionFailed") from None
        except ObjectMissing:
            raise S3Error("NoSuchKey", Key=key) from None
        except NotFound:
            raise S3Error("NoSuchBucket", BucketName=self.record.name) from None
        if older is not None:
            self._files.delete(older.file)
        return _to_metadata(row)

    def delete_file(self, file: str) -> None:
        """Delete a file that is not in the index."""
        self._files.delete(file)

    def _find_row(self, key: str) -> ObjectRecord:
        with self._database.reading() as connection:
            row = s3_objects.find_object(connection, self.record.bucket_id, key.encode())
        if row is None:
            raise S3Error("NoSuchKey", Key=key)
        return row


@dataclass(eq=False, slots=True)
class LocalObjectUpload:
    """Upload to a new file, and its future row in the index."""

    _bucket: LocalBucket
    _key: str
    _headers: Mapping[str, str]
    _file: str
    _writer: ObjectWriter

    def write(self, data: BytesLike) -> None:
        """Append bytes."""
        self._writer.write(data)
        failpoints.hit_failpoint(failpoints.Failpoint.OBJECT_WRITING)

    def append(self, source: OpenObject, start: int = 0, end: int | None = None) -> None:
        """Append bytes of another object."""
        self._writer.append(source, start, end)

    def finish(self, completion: UploadCompletion) -> ObjectMetadata:
        """Make the file durable, then add it to the index."""
        info = self._writer.finish()
        failpoints.hit_failpoint(failpoints.Failpoint.OBJECT_WRITTEN)
        try:
            facts = self._bucket.index_object(
                self._key, self._headers, self._file, info.size, completion
            )
        except S3Error:
            # After any other error the transaction may have been committed, so keep the file.
            self._bucket.delete_file(self._file)
            raise
        failpoints.hit_failpoint(failpoints.Failpoint.OBJECT_INDEXED)
        return facts

    def abort(self) -> None:
        """Delete the unfinished file."""
        self._writer.abort()


class _IndexListing:
    """Traversal of the index in one transaction."""

    def __init__(
        self, connection: sa.Connection, bucket_id: int, prefix: str, delimiter: str, after: str
    ) -> None:
        self._connection = connection
        self._bucket_id = bucket_id
        self._prefix = prefix
        self._delimiter = delimiter
        self._end = prefix_end(prefix.encode())
        self._inclusive = after < prefix
        self._position = max(prefix, after).encode()
        if (
            after
            and find_common_prefix(after, prefix, delimiter) == after
            and after.startswith(prefix)
        ):
            self._skip_group(after)

    def read_page(self, limit: int) -> ListingPage:
        entries: list[ListingEntry] = []
        while len(entries) <= limit:
            wanted = limit + 1 - len(entries)
            rows = self._fetch_rows(wanted)
            self._append_entries(rows, entries, limit + 1)
            if len(rows) < wanted:
                break
        return ListingPage(tuple(entries[:limit]), truncated=len(entries) > limit)

    def _append_entries(
        self, rows: list[ObjectRecord], entries: list[ListingEntry], max_entries: int
    ) -> None:
        group: str | None = None
        for row in rows:
            key = row.key.decode()
            if group is not None and key.startswith(group):
                continue
            if len(entries) == max_entries:
                return
            group = find_common_prefix(key, self._prefix, self._delimiter)
            entries.append(_to_metadata(row) if group is None else group)
            self._position, self._inclusive = row.key, False
            if group is not None:
                self._skip_group(group)

    def _fetch_rows(self, limit: int) -> list[ObjectRecord]:
        return s3_objects.list_objects(
            self._connection,
            self._bucket_id,
            self._position,
            inclusive=self._inclusive,
            end_key=self._end,
            limit=limit,
        )

    def _skip_group(self, group: str) -> None:
        # UTF-8 has no byte 0xFF, so the group and this byte sort after all keys of the group.
        self._position, self._inclusive = prefix_end(group.encode()) or b"\xff", True


def new_file_path(bucket_id: int) -> str:
    """Return the path of a new file, in one of 256 folders of the bucket."""
    name = f"{secrets.token_hex(16)}-{process_file_suffix()}"
    return f"{bucket_id}/{name[:2]}/{name}"


def _to_metadata(row: ObjectRecord) -> ObjectMetadata:
    headers = dict(row.headers)
    return ObjectMetadata(
        key=row.key.decode(),
        size=row.size,
        etag=row.etag,
        modified_at=row.modified_at,
        headers=headers,
        part_sizes=_decode_part_sizes(headers.pop(_PART_SIZES_HEADER, "")),
        checksum=None if row.checksum is None else Checksum.parse(row.checksum),
    )


def _encode_part_sizes(sizes: Sequence[int]) -> str:
    """Encode sizes of parts as text, with runs of equal sizes: `8388608x2 17`."""
    runs = [(size, len(list(run))) for size, run in itertools.groupby(sizes)]
    return " ".join(f"{size}x{count}" if count > 1 else str(size) for size, count in runs)


def _decode_part_sizes(text: str) -> tuple[int, ...]:
    runs = (run.partition("x")[::2] for run in text.split())
    return tuple(itertools.chain.from_iterable((int(s),) * int(n or 1) for s, n in runs))


_FILES_PER_BATCH = 1000


def delete_dropped_files(database: Database, files: LocalStore, now: dt.datetime) -> int:
    """Delete files of replaced or deleted objects. Return the number of marked files.

    Deletes nothing while a backup runs, because it may copy the files.
    """
    done = 0
    while True:
        with database.reading() as connection:
            if leases.is_backup_running(connection, now):
                return done
            dropped = s3_objects.list_dropped_files(connection, _FILES_PER_BATCH)
        for file in dropped:
            files.delete(file)
        if dropped:
            with database.writing() as connection:
                s3_objects.delete_file_records(connection, dropped)
        done += len(dropped)
        if len(dropped) < _FILES_PER_BATCH:
            return done


def delete_orphaned_files(database: Database, files: LocalStore, before: dt.datetime) -> int:
    """Delete files of earlier processes that are not in the catalog.

    Keeps files younger than `before`, for example the start time of this process.
    """
    removed = files.delete_partial_writes(before)
    batch: list[str] = []
    ours = process_file_suffix()
    for info in files.list():
        if not info.path.endswith(ours) and info.modified_at < before:
            batch.append(info.path)
        if len(batch) == _FILES_PER_BATCH:
            removed += _delete_unknown_files(database, files, batch)
            batch = []
    return removed + _delete_unknown_files(database, files, batch)


def _delete_unknown_files(database: Database, files: LocalStore, paths: list[str]) -> int:
    with database.reading() as connection:
        unknown = s3_objects.find_unreferenced_files(connection, paths)
    for file in unknown:
        files.delete(file)
    return len(unknown)
