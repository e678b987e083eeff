"""The index of objects that lie in files of our own: key → what it is, and which file.

A file is written and durable before its row; a row that is replaced leaves its file in
`dropped_files` in the same transaction. So a crash at any point leaves each key whole, old or
new, and every file either named here or known to be waste.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import insert_for
from snowmelt.catalog.objects.s3_buckets import lock_bucket
from snowmelt.errors import ObjectChanged, ObjectMissing, UploadNotFound

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Mapping, Sequence

_O = model.objects
_D = model.dropped_files
_PARTS = model.upload_parts
# Below the least number of parameters that SQLite takes in one statement.
_AT_ONCE = 10_000
# Built once: every request asks the second.
_MANY = sa.select(*(each for each in _O.c if each.name != "bucket_id"))
_ONE = _MANY.where(_O.c.bucket_id == sa.bindparam("bucket_id"), _O.c.key == sa.bindparam("key"))
_ONE_LOCKED = _ONE.with_for_update()


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """One object; `headers` are those that a GET repeats, `checksum` is opaque here."""

    key: bytes
    size: int
    etag: str
    modified_at: dt.datetime
    headers: Mapping[str, str]
    checksum: str | None
    file: str


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be true of the object that is there now, for a write to be carried out.

    `modified_at` is compared to the second, as HTTP dates have it.
    """

    absent: bool = False
    exists: bool = False
    etag: str | None = None
    size: int | None = None
    modified_at: dt.datetime | None = None

    @property
    def needs_object(self) -> bool:
        """Whether it cannot hold where there is no object."""
        return self.exists or self.etag is not None

    def holds(self, row: ObjectRow) -> bool:
        """Return True if it holds for an object that is there."""
        return (
            not self.absent
            and self.etag in {None, row.etag}
            and self.size in {None, row.size}
            and self.modified_at in {None, row.modified_at.replace(microsecond=0)}
        )


ANY = Condition()


def find_object(connection: sa.Connection, bucket_id: int, key: bytes) -> ObjectRow | None:
    """Return an object, None when there is none."""
    row = connection.execute(_ONE, {"bucket_id": bucket_id, "key": key}).first()
    return None if row is None else _row(row)


def put_object(
    connection: sa.Connection,
    bucket_id: int,
    row: ObjectRow,
    *,
    condition: Condition = ANY,
) -> None:
    """Write an object's row, whose file is there and durable; `modified_at` dates the change.

    Raises:
        NotFound: The bucket has been dropped.
        ObjectChanged: The condition does not hold.
        ObjectMissing: The condition names an ETag, and there is no object.
    """
    lock_bucket(connection, bucket_id)
    values = {
        "bucket_id": bucket_id,
        "key": row.key,
        "size": row.size,
        "etag": row.etag,
        "modified_at": row.modified_at,
        "headers": json.dumps(dict(row.headers)),
        "checksum": row.checksum,
        "file": row.file,
    }
    if not condition.needs_object:
        made = connection.execute(
            insert_for(connection, _O).values(values).on_conflict_do_nothing().returning(_O.c.size)
        )
        if made.first() is not None:
            return
    older = _locked(connection, bucket_id, row.key, condition)
    if older is None:
        raise ObjectMissing(path=shown(row.key), store="this bucket")
    connection.execute(
        sa.update(_O).where(_O.c.bucket_id == bucket_id, _O.c.key == row.key).values(values)
    )
    drop_files(connection, [older.file], row.modified_at)


def delete_object(
    connection: sa.Connection,
    bucket_id: int,
    key: bytes,
    *,
    now: dt.datetime,
    condition: Condition = ANY,
) -> str | None:
    """Delete an object's row; return its file, None when there was no such object.

    Raises:
        ObjectChanged: The condition does not hold.
        ObjectMissing: The condition asks for an object, and there is none.
    """
    older = _locked(connection, bucket_id, key, condition)
    if older is None:
        if condition.needs_object:
            raise ObjectMissing(path=shown(key), store="this bucket")
        return None
    connection.execute(sa.delete(_O).where(_O.c.bucket_id == bucket_id, _O.c.key == key))
    drop_files(connection, [older.file], now)
    return older.file


def objects_from(
    connection: sa.Connection,
    bucket_id: int,
    start: bytes,
    *,
    inclusive: bool,
    before: bytes | None,
    limit: int,
) -> list[ObjectRow]:
    """Return up to `limit` objects in the order of their keys' bytes, from `start` on.

    Args:
        connection: A transaction.
        bucket_id: Where to look.
        start: The first key.
        inclusive: Whether `start` itself counts.
        before: The first key that no longer counts, None for the end.
        limit: Most objects to return.
    """
    query = _MANY.where(
        _O.c.bucket_id == bucket_id, _O.c.key >= start if inclusive else _O.c.key > start
    )
    if before is not None:
        query = query.where(_O.c.key < before)
    return [_row(row) for row in connection.execute(query.order_by(_O.c.key).limit(limit))]


# --- files


def drop_files(connection: sa.Connection, files: Collection[str], now: dt.datetime) -> None:
    """Note that nothing needs these files any more."""
    if files:
        connection.execute(
            insert_for(connection, _D).on_conflict_do_nothing(),
            [{"file": file, "dropped_at": now} for file in files],
        )


def dropped_files(connection: sa.Connection, limit: int) -> list[str]:
    """Return files that nothing needs any more and that may still exist."""
    query = sa.select(_D.c.file).order_by(_D.c.dropped_at).limit(limit)
    return list(connection.execute(query).scalars())


def forget_files(connection: sa.Connection, files: Sequence[str]) -> None:
    """Note that these dropped files are gone."""
    for start in range(0, len(files), _AT_ONCE):
        some = files[start : start + _AT_ONCE]
        connection.execute(sa.delete(_D).where(_D.c.file.in_(some)))


def unknown_files(connection: sa.Connection, files: Sequence[str]) -> list[str]:
    """Return those of these files that no object, part or list of dropped files names."""
    unknown = set(files)
    for start in range(0, len(files), _AT_ONCE):
        some = files[start : start + _AT_ONCE]
        for table in (_O, _PARTS, _D):
            query = sa.select(table.c.file).where(table.c.file.in_(some))
            unknown.difference_update(connection.execute(query).scalars())
    return sorted(unknown)


def shown(key: bytes) -> str:
    """Return a key as text; keys are UTF-8 always."""
    return key.decode("utf-8", "replace")


def _locked(
    connection: sa.Connection, bucket_id: int, key: bytes, condition: Condition
) -> ObjectRow | None:
    found = connection.execute(_ONE_LOCKED, {"bucket_id": bucket_id, "key": key}).first()
    older = None if found is None else _row(found)
    if older is not None and not condition.holds(older):
        raise ObjectChanged(key=shown(key))
    return older


def _row(row: sa.Row[Any]) -> ObjectRow:
    return ObjectRow(
        key=bytes(row.key),
        size=row.size,
        etag=row.etag,
        modified_at=row.modified_at,
        headers=json.loads(row.headers),
        checksum=row.checksum,
        file=row.file,
    )


# --- Uploads in parts that are under way: which key, which headers, which parts in which files.

_U = model.uploads
_P = model.upload_parts


@dataclass(frozen=True, slots=True)
class UploadRow:
    """An upload that was neither completed nor aborted; `checksum` is opaque here."""

    upload_id: str
    bucket_id: int
    key: bytes
    user: str
    initiated_at: dt.datetime
    headers: Mapping[str, str]
    checksum: str | None


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part of an upload, numbered from 1."""

    number: int
    size: int
    etag: str
    modified_at: dt.datetime
    checksum: str | None
    file: str


def new_upload_id(now: dt.datetime) -> str:
    """Return an id that was never given; those of one key sort by age, as listings show them."""
    return f"{int(now.timestamp() * 1e6):014x}{secrets.token_hex(16)}"


def begin_upload(connection: sa.Connection, upload: UploadRow) -> None:
    """Begin an upload in parts.

    Raises:
        NotFound: The bucket has been dropped.
    """
    lock_bucket(connection, upload.bucket_id)
    connection.execute(
        sa.insert(_U).values(
            upload_id=upload.upload_id,
            bucket_id=upload.bucket_id,
            key=upload.key,
            user=upload.user,
            initiated_at=upload.initiated_at,
            headers=json.dumps(dict(upload.headers)),
            checksum=upload.checksum,
        )
    )


def find_upload(
    connection: sa.Connection,
    bucket_id: int,
    key: bytes,
    upload_id: str,
    *,
    lock: bool = False,
) -> UploadRow:
    """Return an upload; with `lock` nobody else ends it until this transaction does.

    Raises:
        UploadNotFound: There is none of that id for this key.
    """
    query = sa.select(_U).where(
        _U.c.upload_id == upload_id, _U.c.bucket_id == bucket_id, _U.c.key == key
    )
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise UploadNotFound(upload=upload_id)
    return _upload(row)


def put_part(connection: sa.Connection, upload: UploadRow, part: PartRow) -> None:
    """Write one part's row, replacing an older one; its file is there and durable.

    Raises:
        UploadNotFound: The upload has ended meanwhile.
    """
    find_upload(connection, upload.bucket_id, upload.key, upload.upload_id, lock=True)
    mine = sa.and_(_P.c.upload_id == upload.upload_id, _P.c.number == part.number)
    older = list(connection.execute(sa.select(_P.c.file).where(mine)).scalars())
    connection.execute(sa.delete(_P).where(mine))
    drop_files(connection, older, part.modified_at)
    connection.execute(
        sa.insert(_P).values(
            upload_id=upload.upload_id,
            number=part.number,
            size=part.size,
            etag=part.etag,
            modified_at=part.modified_at,
            checksum=part.checksum,
            file=part.file,
        )
    )


def parts_of(connection: sa.Connection, upload: UploadRow) -> list[PartRow]:
    """Return the parts that have arrived, by number."""
    query = sa.select(_P).where(_P.c.upload_id == upload.upload_id).order_by(_P.c.number)
    return [
        PartRow(row.number, row.size, row.etag, row.modified_at, row.checksum, row.file)
        for row in connection.execute(query)
    ]


def end_upload(connection: sa.Connection, upload: UploadRow, now: dt.datetime) -> list[str]:
    """Forget an upload and its parts; return their files, which are noted as dropped.

    Raises:
        UploadNotFound: It has ended already.
    """
    find_upload(connection, upload.bucket_id, upload.key, upload.upload_id, lock=True)
    files = [part.file for part in parts_of(connection, upload)]
    connection.execute(sa.delete(_P).where(_P.c.upload_id == upload.upload_id))
    connection.execute(sa.delete(_U).where(_U.c.upload_id == upload.upload_id))
    drop_files(connection, files, now)
    return files


def uploads_from(
    connection: sa.Connection,
    bucket_id: int,
    *,
    prefix: bytes,
    after: tuple[bytes, str | None],
    limit: int,
) -> list[UploadRow]:
    """Return uploads under way by key and age; `after` is a key, and an upload id of that key.

    Without an upload id all uploads of the key itself are left out.
    """
    key, upload_id = after
    later = _U.c.key > key
    if upload_id is not None:
        later = sa.or_(later, sa.and_(_U.c.key == key, _U.c.upload_id > upload_id))
    query = sa.select(_U).where(_U.c.bucket_id == bucket_id, later)
    if prefix:
        query = query.where(_U.c.key >= prefix)
        end = end_of_prefix(prefix)
        query = query if end is None else query.where(_U.c.key < end)
    query = query.order_by(_U.c.key, _U.c.upload_id).limit(limit)
    return [_upload(row) for row in connection.execute(query)]


def end_of_prefix(prefix: bytes) -> bytes | None:
    """Return the least key after every key that begins with `prefix`, None when there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _upload(row: sa.Row[Any]) -> UploadRow:
    return UploadRow(
        upload_id=row.upload_id,
        bucket_id=row.bucket_id,
        key=bytes(row.key),
        user=row.user,
        initiated_at=row.initiated_at,
        headers=json.loads(row.headers),
        checksum=row.checksum,
    )
