"""The S3 endpoint as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.blob.bdec import parse_blob_path
from snowmelt.buckets.bucket import check_key
from snowmelt.buckets.errors import S3Error
from snowmelt.catalog.jobs import services as deployment
from snowmelt.catalog.objects.s3_buckets import BucketPrivileges
from snowmelt.catalog.objects.s3_objects import NO_PRECONDITION, WritePrecondition
from snowmelt.catalog.streaming import stages
from snowmelt.errors import BlobInvalid
from snowmelt.ingest.rows.targets import is_row_file_name
from snowmelt.ingest.stage_locations import STAGE_BUCKET
from snowmelt.server.metrics import ROUTE
from snowmelt.server.s3 import bucket_operations as buckets
from snowmelt.server.s3 import bucket_operations as listings
from snowmelt.server.s3 import multipart_operations as multipart
from snowmelt.server.s3 import object_operations as objects
from snowmelt.server.s3 import object_operations as writing
from snowmelt.server.s3.body import checked_body, receive_whole
from snowmelt.server.s3.request import new_request_id, request_of
from snowmelt.server.s3.request_context import AuthorisedRequest
from snowmelt.server.s3.responses import refusal_answer
from snowmelt.server.s3.supported_parameters import SIGNING, check_members

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from snowmelt.buckets.bucket import (
        Bucket,
        ListingPage,
        ObjectMetadata,
        ObjectUpload,
        UploadCompletion,
    )
    from snowmelt.buckets.bucket_registry import BucketAccess, BucketRegistry
    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.security.access_keys import StageCredentials
    from snowmelt.server.s3.authentication import Door, Identity
    from snowmelt.server.s3.request import Request
    from snowmelt.server.s3.request_context import Parts

# --- Which operation a request is, and what its user must be allowed to do.

Handler: TypeAlias = "Callable[[AuthorisedRequest, Receive], Awaitable[ASGIApp]]"

# What a bucket's request may need: a privilege on the key, anything at all, or nothing; None
# where no bucket has to exist. Listings ask for their prefix by themselves.
READ, WRITE, KNOWN, OWN = "READ", "WRITE", "KNOWN", "OWN"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of S3; one that `stores` may be asked how."""

    handle: Handler
    needs: str | None
    stores: bool = False

    @property
    def name(self) -> str:
        """What it is called in metrics."""
        return getattr(self.handle, "__name__", "").strip("_")


# Parameters that make another operation of a request; the ones without a route are not offered.
_SUBRESOURCES = frozenset(
    {
        *("accelerate", "acl", "analytics", "annotations", "attributes", "cors", "encryption"),
        *("intelligent-tiering", "inventory", "legal-hold", "lifecycle", "location", "logging"),
        *("metadataTable", "metadataConfiguration", "metrics", "notification", "object-lock"),
        *("ownershipControls", "policy", "policyStatus", "publicAccessBlock", "renameObject"),
        *("replication", "requestPayment", "restore", "retention", "select", "session", "tagging"),
        *("torrent", "uploadId", "uploads", "versioning", "versions", "website", "delete"),
        *("abac", "append"),
    }
)

_SERVICE = {("GET", ""): Operation(buckets.list_buckets, None)}
_BUCKET = {
    ("PUT", ""): Operation(buckets.create_bucket, None, stores=True),
    ("HEAD", ""): Operation(buckets.head_bucket, KNOWN),
    ("DELETE", ""): Operation(buckets.delete_bucket, OWN),
    ("GET", ""): Operation(listings.list_objects, KNOWN),
    ("GET", "2"): Operation(listings.list_objects_v2, KNOWN),
    ("GET", "versions"): Operation(listings.list_versions, KNOWN),
    ("GET", "uploads"): Operation(multipart.list_uploads, KNOWN),
    ("GET", "location"): Operation(buckets.get_location, KNOWN),
    ("GET", "versioning"): Operation(buckets.get_versioning, KNOWN),
    ("POST", "delete"): Operation(objects.delete_objects, KNOWN),
}
_OBJECT = {
    ("GET", ""): Operation(objects.get_object, READ),
    ("HEAD", ""): Operation(objects.head_object, READ),
    ("PUT", ""): Operation(writing.put_object, WRITE, stores=True),
    ("PUT", "copy"): Operation(writing.copy_object, WRITE, stores=True),
    ("PUT", "uploadId"): Operation(writing.upload_part, WRITE),
    ("PUT", "uploadId copy"): Operation(writing.upload_part_copy, WRITE),
    ("DELETE", ""): Operation(objects.delete_object, WRITE),
    ("POST", "uploads"): Operation(multipart.create_upload, WRITE, stores=True),
    ("POST", "uploadId"): Operation(multipart.complete_upload, WRITE),
    ("DELETE", "uploadId"): Operation(multipart.abort_upload, WRITE),
    ("GET", "uploadId"): Operation(multipart.list_parts, WRITE),
}


def operation_of(request: Request, select: Handler | None = None) -> Operation:
    """Return the operation that a request asks for.

    Args:
        request: The request.
        select: Answers SelectObjectContent; without it that is not offered.

    Raises:
        S3Refusal: It is not offered, or the method is none of S3's.
    """
    asked = _SUBRESOURCES & request.query.keys()
    name = " ".join(sorted(asked))
    if not request.bucket:
        routes = _SERVICE
    elif not request.key:
        routes = _BUCKET
        if not name and request.query.get("list-type") == "2":
            name = "2"
    else:
        routes = _OBJECT
        if request.method == "PUT" and "x-amz-copy-source" in request.headers:
            name = f"{name} copy".strip()
        if select is not None and (request.method, name) == ("POST", "select"):
            return Operation(select, READ)
    found = routes.get((request.method, name))
    if found is not None:
        return found
    if name:
        raise S3Error("NotImplemented", f"{request.method} with {name} is not offered.")
    if request.method == "POST":
        raise S3Error(
            "NotImplemented",
            "PostObject (a form, presigned POST) is not offered here. Upload with PutObject; "
            "without an SDK, with a presigned PUT.",
        )
    raise S3Error("MethodNotAllowed", Method=request.method)


if TYPE_CHECKING:
    # Request, bucket, key, and the content of the body; the user may read the key.
    Select: TypeAlias = Callable[[AuthorisedRequest, str, str, bytes], Awaitable[ASGIApp]]

MOST_SELECT_BYTES = 1024 * 1024


class Endpoint:
    """Answers every request, whatever it is, in S3's way.

    `select` answers SelectObjectContent; it may return any ASGI application as its answer.
    """

    def __init__(
        self, door: Door, parts: Parts, *, domains: Sequence[str], select: Select | None = None
    ) -> None:
        self._select = select
        self._door = door
        self._parts = parts
        self._domains = tuple(domains)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request: Request | None = None
        answered = asked_for_body = False
        request_id = new_request_id()

        async def receive_marked() -> Message:
            nonlocal asked_for_body
            asked_for_body = True
            return await receive()

        async def send_marked(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                message["headers"] += [
                    (b"x-amz-request-id", request_id.encode()),
                    (b"x-amz-id-2", request_id.encode()),
                ]
                if not asked_for_body and request is not None and "expect" in request.headers:
                    # The client keeps back its body: what comes next would be taken for it.
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            request = request_of(scope, self._domains)
            request_id = request.request_id
            operation = operation_of(request, None if self._select is None else self._selected)
            scope[ROUTE] = operation.name
            answer = await self._answer(request, operation, receive_marked)
            await answer(scope, receive_marked, send_marked)
        except Exception as error:
            if answered:
                # Cutting the connection is the only way left to say that it failed.
                raise
            resource = request.resource if request is not None else scope["path"]
            refusal = refusal_answer(error, resource=resource, request_id=request_id)
            await refusal(scope, receive, send_marked)

    async def _answer(self, request: Request, operation: Operation, receive: Receive) -> ASGIApp:
        loop = asyncio.get_running_loop()
        call = await loop.run_in_executor(self._parts.threads, self._admit, request, operation)
        check_members(call, operation.name, stores=operation.stores)
        return await operation.handle(call, receive)

    def _admit(self, request: Request, operation: Operation) -> AuthorisedRequest:
        """Check signature and privileges; reads the catalog."""
        identity = self._door.identify(request)
        request = _with_hoisted(request, identity)
        if request.key:
            check_key(request.key)
        if identity.confined_to is not None:
            request, visit = confine(
                request, operation.handle, identity.confined_to, self._parts.directory
            )
            return AuthorisedRequest(request, identity, self._parts, visit)
        if operation.needs is None:
            return AuthorisedRequest(request, identity, self._parts)
        visit = self._parts.directory.access_bucket(identity.user, request.bucket)
        if operation.needs in {KNOWN, OWN}:
            visit.require_any_privilege()
        else:
            visit.require_privilege(operation.needs, request.key)
        return AuthorisedRequest(request, identity, self._parts, visit)

    async def _selected(self, call: AuthorisedRequest, receive: Receive) -> ASGIApp:
        if self._select is None:
            raise S3Error("NotImplemented")
        body = await receive_whole(receive, most=MOST_SELECT_BYTES)
        content = await call.run(checked_body, call, body)
        return await self._select(call, call.request.bucket, call.key, content)


def _with_hoisted(request: Request, identity: Identity) -> Request:
    """Return the request with the headers that presigning moved into its address.

    Raises:
        S3Refusal: Version 2 signs no such parameter, so anybody could have added it.
    """
    moved = {
        name.lower(): value
        for name, value in request.query.items()
        if name.lower().startswith("x-amz-") and name not in SIGNING
    }
    if not moved:
        return request
    if identity.is_signed and identity.credentials is None:
        name = next(iter(moved))
        raise S3Error("NotImplemented", f"{name} in an address signed in version 2 is not offered.")
    return dataclasses.replace(request, headers={**moved, **request.headers})


# --- Requests with credentials for a client's part of the stage: uploads of its blobs, nothing else.

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
    directory: BucketRegistry,
) -> tuple[Request, BucketAccess]:
    """Return the request, with the key where the blob belongs, and what it may do in the bucket.

    The official client renews its credentials without saying who it is, and gets those of another
    prefix; it goes on naming its blobs by its first one, which is therefore what settles the place.

    Raises:
        S3Refusal: It is no upload of a file of rows, or of a blob of a prefix that these credentials are good for.
    """
    if request.bucket != STAGE_BUCKET or handle not in _OFFERED:
        raise S3Error("AccessDenied", "These credentials are for uploads to the stage only.")
    folder, _, path = request.key.partition("/")
    if folder == credentials.prefix and is_row_file_name(path) and handle is writing.put_object:
        return request, _visit(directory, credentials, request.key)
    try:
        named = parse_blob_path(path).client_prefix
    except BlobInvalid as error:
        raise S3Error("AccessDenied", str(error)) from None
    prefix = _issued(directory.database, named, credentials)
    if folder != credentials.prefix or prefix is None:
        raise S3Error("AccessDenied", "These credentials are for blobs of another client.")
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
        self.head = bucket.head
        self.open = bucket.open

    def start_upload(self, key: str, headers: Mapping[str, str]) -> WriteOnceIncoming:
        """Begin to write an object."""
        return WriteOnceIncoming(self._bucket, key, self._bucket.start_upload(key, headers))

    def delete(self, key: str, condition: WritePrecondition = NO_PRECONDITION) -> None:
        """Refuse."""
        del key, condition
        raise S3Error("AccessDenied")

    def list_page(self, prefix: str, *, delimiter: str, after: str, limit: int) -> ListingPage:
        """Return one page, as the bucket lists it."""
        return self._bucket.list_page(prefix, delimiter=delimiter, after=after, limit=limit)


class WriteOnceIncoming:
    """A blob on its way in."""

    def __init__(self, bucket: Bucket, key: str, incoming: ObjectUpload) -> None:
        self._bucket = bucket
        self._key = key
        self._incoming = incoming
        self.write = incoming.write
        self.append = incoming.append
        self.abort = incoming.abort

    def finish(self, completion: UploadCompletion) -> ObjectMetadata:
        """Publish it where there is none, or only the same.

        Raises:
            S3Refusal: A blob of this name with other bytes is there.
        """
        condition = dataclasses.replace(completion.condition, must_not_exist=True)
        try:
            return self._incoming.finish(dataclasses.replace(completion, condition=condition))
        except S3Error as refusal:
            if completion.condition.must_not_exist:
                raise
            if refusal.s3_code == "NotImplemented":
                # Another server's store takes large objects without a condition alone.
                return self._same(completion) or self._incoming.finish(completion)
            if refusal.s3_code != "PreconditionFailed":
                raise
        found = self._same(completion)
        if found is None:
            raise S3Error("PreconditionFailed")
        return found

    def _same(self, publication: UploadCompletion) -> ObjectMetadata | None:
        """Return the blob that is there, if it has the same bytes; None if there is none."""
        try:
            facts, found = self._bucket.open(self._key)
        except S3Error as refusal:
            if refusal.s3_code == "NoSuchKey":
                return None
            raise
        digest = hashlib.md5(usedforsecurity=False)
        with contextlib.closing(found):
            for piece in found.read_blocks():
                digest.update(piece)
        if digest.hexdigest() != publication.etag:
            raise S3Error(
                "PreconditionFailed",
                f"Blob {self._key} is on the stage with other bytes. Upload under a new name.",
            )
        return facts


def _visit(directory: BucketRegistry, credentials: StageCredentials, key: str) -> BucketAccess:
    reach = BucketPrivileges(is_owner=False, prefixes_by_privilege={"WRITE": (key.encode(),)})
    return directory.access_with_privileges(credentials.user, STAGE_BUCKET, reach)


def _issued(database: Database, named: str, credentials: StageCredentials) -> str | None:
    """Return the prefix that a blob's name carries, None when it is none of the user's."""
    with database.reading() as connection:
        suffix = f"_{deployment.read_deployment_id(connection)}"
        prefix = named.removesuffix(suffix)
        if prefix == named:
            return None
        if prefix == credentials.prefix:
            return prefix
        if not credentials.any_prefix:
            return None
        owner = stages.find_prefix_owner(connection, prefix)
    return prefix if owner == credentials.user else None
