"""Uploads in parts that are under way: which key, which headers, which parts in which files."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.buckets import lock_bucket
from snowmelt.catalog.objects import drop_files
from snowmelt.errors import UploadNotFound

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

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
