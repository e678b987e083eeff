"""Requests with credentials for a client's part of the stage: uploads of its blobs, nothing else."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from snowmelt.blob.layout import parse_blob_path
from snowmelt.buckets.refusals import S3Refusal
from snowmelt.catalog import deployment, stages
from snowmelt.catalog.buckets import Reach
from snowmelt.errors import BlobInvalid
from snowmelt.ingest.handing import STAGE_BUCKET
from snowmelt.ingest.rows.places import is_row_file
from snowmelt.server.s3 import multipart, writing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
    return dataclasses.replace(request, key=key), _visit(directory, credentials, key)


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
