"""Requests with credentials for a client's part of the stage: uploads of its blobs, nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from typing import TYPE_CHECKING

from snowmelt.blob.layout import parse_blob_path
from snowmelt.buckets.refusals import S3Refusal
from snowmelt.catalog import deployment, stages
from snowmelt.catalog.buckets import Reach
from snowmelt.catalog.objects import ANY, Condition
from snowmelt.errors import BlobInvalid
from snowmelt.ingest.handing import STAGE_BUCKET
from snowmelt.ingest.rows.places import is_row_file
from snowmelt.server.s3 import multipart, writing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from snowmelt.buckets.bucket import Bucket, Facts, Incoming, Page, Publication
    from snowmelt.buckets.directory import Directory, Visit
    from snowmelt.catalog.database import Database
    from snowmelt.catalog.stage_credentials import StageCredentials
    from snowmelt.server.s3.requests import Request

# No reading, listing or deleting: a client has no need to, and a blob may be registered by then.
_OFFERED: frozenset[Callable[..., Awaitable[object]]] = frozenset(
    {
        writing.put_object,
        writing.upload_part,
        multipart.create_upload,
        multipart.complete_upload,
        multipart.abort_upload,
        multipart.list_parts,
    }
)


def confine(
    request: Request,
    handle: Callable[..., Awaitable[object]],
    credentials: StageCredentials,
    directory: Directory,
) -> tuple[Request, Visit]:
    """Return the request, with the key where the blob belongs, and what it may do in the bucket.

    The official client renews its credentials without saying who it is, and gets those of another
    prefix; it goes on naming its blobs by its first one, which is therefore what settles the place.

    Raises:
        S3Refusal: It is no upload of a file of rows, or of a blob of a prefix that these credentials are good for.
    """
    if request.bucket != STAGE_BUCKET or handle not in _OFFERED:
        raise S3Refusal("AccessDenied", "These credentials are for uploads to the stage only.")
    folder, _, path = request.key.partition("/")
    if folder == credentials.prefix and is_row_file(path) and handle is writing.put_object:
        return request, _visit(directory, credentials, request.key)
    try:
        named = parse_blob_path(path).client_prefix
    except BlobInvalid as error:
        raise S3Refusal("AccessDenied", str(error)) from None
    prefix = _issued(directory.database, named, credentials)
    if folder != credentials.prefix or prefix is None:
        raise S3Refusal("AccessDenied", "These credentials are for blobs of another client.")
    key = f"{prefix}/{path}"
    visit = _visit(directory, credentials, key)
    return (
        dataclasses.replace(request, key=key),
        dataclasses.replace(visit, bucket=WriteOnceBucket(visit.bucket)),
    )


class WriteOnceBucket:
    """A bucket of blobs, whose objects nobody replaces.

    A blob that was registered must stay what was verified: other bytes under its name would fail
    every query of its tables. An upload of the same bytes succeeds again, for clients repeat one
    whose answer was lost.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.facts = bucket.facts
        self.open = bucket.open

    def incoming(self, key: str, headers: Mapping[str, str]) -> WriteOnceIncoming:
        """Begin to write an object."""
        return WriteOnceIncoming(self._bucket, key, self._bucket.incoming(key, headers))

    def delete(self, key: str, condition: Condition = ANY) -> None:
        """Refuse."""
        del key, condition
        raise S3Refusal("AccessDenied")

    def page(self, prefix: str, *, delimiter: str, after: str, limit: int) -> Page:
        """Return one page, as the bucket lists it."""
        return self._bucket.page(prefix, delimiter=delimiter, after=after, limit=limit)


class WriteOnceIncoming:
    """A blob on its way in."""

    def __init__(self, bucket: Bucket, key: str, incoming: Incoming) -> None:
        self._bucket = bucket
        self._key = key
        self._incoming = incoming
        self.write = incoming.write
        self.append = incoming.append
        self.abort = incoming.abort

    def finish(self, publication: Publication) -> Facts:
        """Publish it where there is none, or only the same.

        Raises:
            S3Refusal: A blob of this name with other bytes is there.
        """
        condition = dataclasses.replace(publication.condition, absent=True)
        try:
            return self._incoming.finish(dataclasses.replace(publication, condition=condition))
        except S3Refusal as refusal:
            if publication.condition.absent:
                raise
            if refusal.s3_code == "NotImplemented":
                # Another server's store takes large objects without a condition alone.
                return self._same(publication) or self._incoming.finish(publication)
            if refusal.s3_code != "PreconditionFailed":
                raise
        found = self._same(publication)
        if found is None:
            raise S3Refusal("PreconditionFailed")
        return found

    def _same(self, publication: Publication) -> Facts | None:
        """Return the blob that is there, if it has the same bytes; None if there is none."""
        try:
            facts, found = self._bucket.open(self._key)
        except S3Refusal as refusal:
            if refusal.s3_code == "NoSuchKey":
                return None
            raise
        digest = hashlib.md5(usedforsecurity=False)
        with contextlib.closing(found):
            for piece in found.chunks():
                digest.update(piece)
        if digest.hexdigest() != publication.etag:
            raise S3Refusal(
                "PreconditionFailed",
                f"Blob {self._key} is on the stage with other bytes. Upload under a new name.",
            )
        return facts


def _visit(directory: Directory, credentials: StageCredentials, key: str) -> Visit:
    reach = Reach(owns=False, prefixes={"WRITE": (key.encode(),)})
    return directory.confined(credentials.user, STAGE_BUCKET, reach)


def _issued(database: Database, named: str, credentials: StageCredentials) -> str | None:
    """Return the prefix that a blob's name carries, None when it is none of the user's."""
    with database.reading() as connection:
        suffix = f"_{deployment.deployment_id(connection)}"
        prefix = named.removesuffix(suffix)
        if prefix == named:
            return None
        if prefix == credentials.prefix:
            return prefix
        if not credentials.any_prefix:
            return None
        owner = stages.prefix_owner(connection, prefix)
    return prefix if owner == credentials.user else None
