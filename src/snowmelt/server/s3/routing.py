"""Which operation a request is, and what its user must be allowed to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.buckets.refusals import S3Refusal
from snowmelt.server.s3 import buckets, listings, multipart, objects, writing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Receive

    from snowmelt.server.s3.calls import AuthorisedRequest
    from snowmelt.server.s3.requests import Request

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
        raise S3Refusal("NotImplemented", f"{request.method} with {name} is not offered.")
    if request.method == "POST":
        raise S3Refusal(
            "NotImplemented",
            "PostObject (a form, presigned POST) is not offered here. Upload with PutObject; "
            "without an SDK, with a presigned PUT.",
        )
    raise S3Refusal("MethodNotAllowed", Method=request.method)
