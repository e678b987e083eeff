"""Index of S3 objects and multipart uploads: maps keys to metadata and local files.

A file is durable before its row is written. A transaction that replaces a row records the old file in
`dropped_files`. After a crash at any point, each key has its complete old or new object. Each file is
either referenced here or identifiable as garbage.
"""

from __future__ import annotations

import datetime as dt
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import encode_array, in_array, make_insert, make_record
from snowmelt.catalog.objects.s3_buckets import lock_bucket
from snowmelt.errors import ObjectChanged, ObjectMissing, UploadNotFound

_OBJECTS = model.objects
_DROPPED_FILES = model.dropped_files
_UPLOAD_PARTS = model.upload_parts
# Built once, because every request runs `_SELECT_OBJECT`.
_SELECT_OBJECTS = sa.select(*(each for each in _OBJECTS.c if each.name != "bucket_id"))
_SELECT_OBJECT = _SELECT_OBJECTS.where(
    _OBJECTS.c.bucket_id == sa.bindparam("bucket_id"), _OBJECTS.c.key == sa.bindparam("key")
)
_SELECT_OBJECT_FOR_UPDATE = _SELECT_OBJECT.with_for_update()


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """An object. `headers` are returned by GET; `checksum` is opaque."""

    key: bytes
    size: int
    etag: str
    modified_at: dt.datetime
    headers: Mapping[str, str]
    checksum: str | None
    file: str


@dataclass(frozen=True, slots=True)
class WritePrecondition:
    """Conditions that the current object must meet before a write.

    `modified_at` is compared to the second, as in HTTP dates.
    """

    must_not_exist: bool = False
    must_exist: bool = False
    etag: str | None = None
    size: int | None = None
    modified_at: dt.datetime | None = None

    @property
    def requires_object(self) -> bool:
        """True if the condition requires an existing object."""
        return self.must_exist or self.etag is not None

    def is_met_by(self, record: ObjectRecord) -> bool:
        """Return True if the condition holds for this object."""
        return (
            not self.must_not_exist
            and self.etag in {None, record.etag}
            and self.size in {None, record.size}
            and self.modified_at in {None, record.modified_at.replace(microsecond=0)}
        )


NO_PRECONDITION = WritePrecondition()


def find_object(connection: sa.Connection, bucket_id: int, key: bytes) -> ObjectRecord | None:
    """Return an object, or None if it does not exist."""
    row = connection.execute(_SELECT_OBJECT, {"bucket_id": bucket_id, "key": key}).first()
    return None if row is None else _to_object_record(row)


def put_object(
    connection: sa.Connection,
    bucket_id: int,
    record: ObjectRecord,
    *,
    precondition: WritePrecondition = NO_PRECONDITION,
) -> None:
    """Insert or replace the row of an object whose file is durable.

    Raises:
        NotFound: If the bucket was dropped.
        ObjectChanged: If the condition does not hold.
        ObjectMissing: If the condition names an ETag and there is no object.
    """
    lock_bucket(connection, bucket_id)
    values = _to_values(record, bucket_id=bucket_id)
    while True:
        if not precondition.requires_object:
            made = connection.execute(
                make_insert(connection, _OBJECTS)
                .values(values)
                .on_conflict_do_nothing()
                .returning(_OBJECTS.c.size)
            )
            if made.first() is not None:
                return
        older = _lock_object(connection, bucket_id, record.key, precondition)
        if older is not None:
            break
        if precondition.requires_object:
            raise ObjectMissing(path=decode_key(record.key), store="this bucket")
        # Another transaction deleted the object after the insert.
    connection.execute(
        sa.update(_OBJECTS)
        .where(_OBJECTS.c.bucket_id == bucket_id, _OBJECTS.c.key == record.key)
        .values(values)
    )
    mark_files_dropped(connection, [older.file], record.modified_at)


def delete_object(
    connection: sa.Connection,
    bucket_id: int,
    key: bytes,
    *,
    now: dt.datetime,
    precondition: WritePrecondition = NO_PRECONDITION,
) -> str | None:
    """Delete the row of an object. Return its file, or None if there was no object.

    Raises:
        ObjectChanged: If the condition does not hold.
        ObjectMissing: If the condition requires an object and there is none.
    """
    older = _lock_object(connection, bucket_id, key, precondition)
    if older is None:
        if precondition.requires_object:
            raise ObjectMissing(path=decode_key(key), store="this bucket")
        return None
    connection.execute(
        sa.delete(_OBJECTS).where(_OBJECTS.c.bucket_id == bucket_id, _OBJECTS.c.key == key)
    )
    mark_files_dropped(connection, [older.file], now)
    return older.file


def list_objects(
    connection: sa.Connection,
    bucket_id: int,
    start_key: bytes,
    *,
    inclusive: bool,
    end_key: bytes | None,
    limit: int,
) -> list[ObjectRecord]:
    """Return up to `limit` objects, beginning at `start_key`, in byte order of their keys.

    `start_key` is included if `inclusive` is true. `end_key` is excluded; None means no end.
    """
    query = _SELECT_OBJECTS.where(
        _OBJECTS.c.bucket_id == bucket_id,
        _OBJECTS.c.key >= start_key if inclusive else _OBJECTS.c.key > start_key,
    )
    if end_key is not None:
        query = query.where(_OBJECTS.c.key < end_key)
    return [
        _to_object_record(row)
        for row in connection.execute(query.order_by(_OBJECTS.c.key).limit(limit))
    ]


def mark_files_dropped(connection: sa.Connection, files: Collection[str], now: dt.datetime) -> None:
    """Record that no object references these files."""
    if files:
        connection.execute(
            make_insert(connection, _DROPPED_FILES).on_conflict_do_nothing(),
            [{"file": file, "dropped_at": now} for file in files],
        )


def list_dropped_files(connection: sa.Connection, limit: int) -> list[str]:
    """Return unreferenced files that may still exist."""
    query = sa.select(_DROPPED_FILES.c.file).order_by(_DROPPED_FILES.c.dropped_at).limit(limit)
    return list(connection.execute(query).scalars())


def delete_file_records(connection: sa.Connection, files: Sequence[str]) -> None:
    """Delete the records of unreferenced files that were deleted."""
    listed = in_array(_DROPPED_FILES.c.file, encode_array(files))
    connection.execute(sa.delete(_DROPPED_FILES).where(listed))


def find_unreferenced_files(connection: sa.Connection, files: Sequence[str]) -> list[str]:
    """Return the files that neither objects, parts nor the list of dropped files contain."""
    unknown = set(files)
    for table in (_OBJECTS, _UPLOAD_PARTS, _DROPPED_FILES):
        query = sa.select(table.c.file).where(in_array(table.c.file, encode_array(files)))
        unknown.difference_update(connection.execute(query).scalars())
    return sorted(unknown)


def decode_key(key: bytes) -> str:
    """Return a key, which is always UTF-8, as text."""
    return key.decode("utf-8", "replace")


def _lock_object(
    connection: sa.Connection, bucket_id: int, key: bytes, precondition: WritePrecondition
) -> ObjectRecord | None:
    found = connection.execute(
        _SELECT_OBJECT_FOR_UPDATE, {"bucket_id": bucket_id, "key": key}
    ).first()
    older = None if found is None else _to_object_record(found)
    if older is not None and not precondition.is_met_by(older):
        raise ObjectChanged(key=decode_key(key))
    return older


def _to_object_record(row: sa.Row[Any]) -> ObjectRecord:
    return make_record(ObjectRecord, row, key=bytes(row.key), headers=json.loads(row.headers))


def _to_values(record: ObjectRecord | UploadRecord, **others: object) -> dict[str, object]:
    values = {name: getattr(record, name) for name in record.__dataclass_fields__}
    return {**values, "headers": json.dumps(dict(record.headers)), **others}


# Open multipart uploads: key and headers of each, and the files of its parts.

_UPLOADS = model.uploads


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """An upload that was neither completed nor aborted; `checksum` is opaque."""

    upload_id: str
    bucket_id: int
    key: bytes
    user: str
    initiated_at: dt.datetime
    headers: Mapping[str, str]
    checksum: str | None


@dataclass(frozen=True, slots=True)
class PartRecord:
    """One part of an upload, numbered from 1."""

    number: int
    size: int
    etag: str
    modified_at: dt.datetime
    checksum: str | None
    file: str


def new_upload_id(now: dt.datetime) -> str:
    """Return a new ID. IDs sort by creation time, which is the order of listings."""
    return f"{int(now.timestamp() * 1e6):014x}{secrets.token_hex(16)}"


def create_upload(connection: sa.Connection, upload: UploadRecord) -> None:
    """Begin a multipart upload.

    Raises:
        NotFound: If the bucket was dropped.
    """
    lock_bucket(connection, upload.bucket_id)
    connection.execute(sa.insert(_UPLOADS).values(_to_values(upload)))


def find_upload(
    connection: sa.Connection, bucket_id: int, key: bytes, upload_id: str, *, lock: bool = False
) -> UploadRecord:
    """Return an upload. With `lock`, it cannot be completed or aborted before this transaction ends.

    Raises:
        UploadNotFound: If there is no such upload for this key.
    """
    query = sa.select(_UPLOADS).where(
        _UPLOADS.c.upload_id == upload_id, _UPLOADS.c.bucket_id == bucket_id, _UPLOADS.c.key == key
    )
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise UploadNotFound(upload=upload_id)
    return _to_upload_record(row)


def put_part(connection: sa.Connection, upload: UploadRecord, part: PartRecord) -> None:
    """Insert or replace the row of a part whose file is durable.

    Raises:
        UploadNotFound: If the upload has ended meanwhile.
    """
    find_upload(connection, upload.bucket_id, upload.key, upload.upload_id, lock=True)
    mine = sa.and_(
        _UPLOAD_PARTS.c.upload_id == upload.upload_id, _UPLOAD_PARTS.c.number == part.number
    )
    older = list(connection.execute(sa.select(_UPLOAD_PARTS.c.file).where(mine)).scalars())
    connection.execute(sa.delete(_UPLOAD_PARTS).where(mine))
    mark_files_dropped(connection, older, part.modified_at)
    connection.execute(sa.insert(_UPLOAD_PARTS).values(upload_id=upload.upload_id, **asdict(part)))


def list_parts(connection: sa.Connection, upload: UploadRecord) -> list[PartRecord]:
    """Return the uploaded parts by number."""
    query = (
        sa.select(_UPLOAD_PARTS)
        .where(_UPLOAD_PARTS.c.upload_id == upload.upload_id)
        .order_by(_UPLOAD_PARTS.c.number)
    )
    return [make_record(PartRecord, row) for row in connection.execute(query)]


def delete_upload(connection: sa.Connection, upload: UploadRecord, now: dt.datetime) -> list[str]:
    """Delete an upload and its parts. Record their files as dropped, and return them.

    Raises:
        UploadNotFound: If it has ended.
    """
    find_upload(connection, upload.bucket_id, upload.key, upload.upload_id, lock=True)
    files = [part.file for part in list_parts(connection, upload)]
    connection.execute(
        sa.delete(_UPLOAD_PARTS).where(_UPLOAD_PARTS.c.upload_id == upload.upload_id)
    )
    connection.execute(sa.delete(_UPLOADS).where(_UPLOADS.c.upload_id == upload.upload_id))
    mark_files_dropped(connection, files, now)
    return files


def list_uploads(
    connection: sa.Connection,
    bucket_id: int,
    *,
    prefix: bytes,
    after: tuple[bytes, str | None],
    limit: int,
) -> list[UploadRecord]:
    """Return open uploads ordered by key and age, after the key and upload ID in `after`.

    If the upload ID is None, all uploads of that key are skipped.
    """
    key, upload_id = after
    later = _UPLOADS.c.key > key
    if upload_id is not None:
        later = sa.or_(later, sa.and_(_UPLOADS.c.key == key, _UPLOADS.c.upload_id > upload_id))
    query = sa.select(_UPLOADS).where(_UPLOADS.c.bucket_id == bucket_id, later)
    if prefix:
        query = query.where(_UPLOADS.c.key >= prefix)
        end = prefix_end(prefix)
        query = query if end is None else query.where(_UPLOADS.c.key < end)
    query = query.order_by(_UPLOADS.c.key, _UPLOADS.c.upload_id).limit(limit)
    return [_to_upload_record(row) for row in connection.execute(query)]


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the smallest key after all keys that start with `prefix`, or None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _to_upload_record(row: sa.Row[Any]) -> UploadRecord:
    return make_record(UploadRecord, row, key=bytes(row.key), headers=json.loads(row.headers))
