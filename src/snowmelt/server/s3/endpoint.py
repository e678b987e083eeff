"""S3 endpoint as an ASGI application: dispatch and authorization of operations.

Requests with stage credentials may only upload the client's own blobs.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.blob.encryption import parse_blob_path
from snowmelt.buckets.bucket import check_key
from snowmelt.buckets.errors import S3Error
from snowmelt.buckets.write_once_bucket import WriteOnceBucket
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.objects.s3_buckets import BucketPrivileges
from snowmelt.catalog.streaming import registration
from snowmelt.errors import BlobInvalid
from snowmelt.ingest.rows.targets import is_uploaded_row_file_name
from snowmelt.ingest.stage_locations import STAGE_BUCKET
from snowmelt.server.metrics import ROUTE_SCOPE_KEY
from snowmelt.server.s3 import bucket_operations, multipart_operations, object_operations
from snowmelt.server.s3.body import decode_and_verify_body, receive_small_body
from snowmelt.server.s3.request import new_request_id, parse_request
from snowmelt.server.s3.request_context import AuthorizedS3Request, OperationHandler
from snowmelt.server.s3.responses import error_response
from snowmelt.server.s3.supported_parameters import (
    SIGNATURE_PARAMETERS,
    reject_unsupported_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from snowmelt.buckets.bucket_registry import BucketAccess, BucketRegistry
    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.security.encryption_keys import StageCredentials
    from snowmelt.server.s3.authentication import S3Authenticator, S3Identity
    from snowmelt.server.s3.request import S3Request
    from snowmelt.server.s3.request_context import S3Components
    from snowmelt.server.s3.table_access import TableFileAccess


# Privileges that operations on a bucket require: a privilege on the key, any privilege, or
# ownership. None: the bucket need not exist. Listings check the privilege on their prefix
# themselves.
READ, WRITE, ANY_PRIVILEGE, OWNERSHIP = "READ", "WRITE", "KNOWN", "OWN"


@dataclass(frozen=True, slots=True)
class S3Operation:
    """One S3 operation. `stores_object` is True if it accepts options for storing an object."""

    handle: OperationHandler
    required_privilege: str | None
    stores_object: bool = False

    @property
    def name(self) -> str:
        """Name of the operation in metrics."""
        return getattr(self.handle, "__name__", "").strip("_")


# Parameters that select an operation. Operations without a route are not supported.
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

_SERVICE_OPERATIONS = {("GET", ""): S3Operation(bucket_operations.list_buckets, None)}
_BUCKET_OPERATIONS = {
    ("PUT", ""): S3Operation(bucket_operations.create_bucket, None, stores_object=True),
    ("HEAD", ""): S3Operation(bucket_operations.head_bucket, ANY_PRIVILEGE),
    ("DELETE", ""): S3Operation(bucket_operations.delete_bucket, OWNERSHIP),
    ("GET", ""): S3Operation(bucket_operations.list_objects, ANY_PRIVILEGE),
    ("GET", "2"): S3Operation(bucket_operations.list_objects_v2, ANY_PRIVILEGE),
    ("GET", "versions"): S3Operation(bucket_operations.list_versions, ANY_PRIVILEGE),
    ("GET", "uploads"): S3Operation(multipart_operations.list_uploads, ANY_PRIVILEGE),
    ("GET", "location"): S3Operation(bucket_operations.get_location, ANY_PRIVILEGE),
    ("GET", "versioning"): S3Operation(bucket_operations.get_versioning, ANY_PRIVILEGE),
    ("POST", "delete"): S3Operation(object_operations.delete_objects, ANY_PRIVILEGE),
}
_OBJECT_OPERATIONS = {
    ("GET", ""): S3Operation(object_operations.get_object, READ),
    ("HEAD", ""): S3Operation(object_operations.head_object, READ),
    ("PUT", ""): S3Operation(object_operations.put_object, WRITE, stores_object=True),
    ("PUT", "copy"): S3Operation(object_operations.copy_object, WRITE, stores_object=True),
    ("PUT", "uploadId"): S3Operation(object_operations.upload_part, WRITE),
    ("PUT", "uploadId copy"): S3Operation(object_operations.upload_part_copy, WRITE),
    ("DELETE", ""): S3Operation(object_operations.delete_object, WRITE),
    ("POST", "uploads"): S3Operation(multipart_operations.create_upload, WRITE, stores_object=True),
    ("POST", "uploadId"): S3Operation(multipart_operations.complete_upload, WRITE),
    ("DELETE", "uploadId"): S3Operation(multipart_operations.abort_upload, WRITE),
    ("GET", "uploadId"): S3Operation(multipart_operations.list_parts, WRITE),
}


def find_operation(request: S3Request, select: OperationHandler | None = None) -> S3Operation:
    """Return the operation of a request. `select` handles SelectObjectContent, if it is supported.

    Raises:
        S3Error: If the operation is not supported, or the method is unknown.
    """
    asked = _SUBRESOURCES & request.query.keys()
    name = " ".join(sorted(asked))
    if not request.bucket:
        routes = _SERVICE_OPERATIONS
    elif not request.key:
        routes = _BUCKET_OPERATIONS
        if not name and request.query.get("list-type") == "2":
            name = "2"
    else:
        routes = _OBJECT_OPERATIONS
        if request.method == "PUT" and "x-amz-copy-source" in request.headers:
            name = f"{name} copy".strip()
        if select is not None and (request.method, name) == ("POST", "select"):
            return S3Operation(select, READ)
    found = routes.get((request.method, name))
    if found is not None:
        return found
    if name:
        raise S3Error("NotImplemented", f"{request.method} with {name} is not supported.")
    if request.method == "POST":
        raise S3Error(
            "NotImplemented",
            "PostObject (a form, presigned POST) is not supported. Upload with PutObject; "
            "without an SDK, with a presigned PUT.",
        )
    raise S3Error("MethodNotAllowed", Method=request.method)


if TYPE_CHECKING:
    # Arguments: request, bucket, key, and content of the body. The user is authorized to read the
    # key.
    Select: TypeAlias = Callable[[AuthorizedS3Request, str, str, bytes], Awaitable[ASGIApp]]

MAX_SELECT_REQUEST_BYTES = 1024 * 1024


class S3Endpoint:
    """ASGI application that responds to every request in the format of S3.

    `select` handles SelectObjectContent. It may return any ASGI application as its response.
    `table_access` authorizes credentials of the Iceberg REST catalog.
    """

    def __init__(
        self,
        authenticator: S3Authenticator,
        components: S3Components,
        *,
        domains: Sequence[str],
        table_access: TableFileAccess,
        select: Select | None = None,
    ) -> None:
        self._select = select
        self._table_access = table_access
        self._authenticator = authenticator
        self._components = components
        self._domains = tuple(domains)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        request: S3Request | None = None
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
                    # Close the connection: the client has not sent its body, so its next request
                    # would be parsed as the body.
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            request = parse_request(scope, self._domains)
            request_id = request.request_id
            operation = find_operation(request, None if self._select is None else self._selected)
            scope[ROUTE_SCOPE_KEY] = operation.name
            answer = await self._handle(request, operation, receive_marked)
            await answer(scope, receive_marked, send_marked)
        except Exception as error:
            if answered:
                # After the response has started, closing the connection is the only way to signal
                # the failure.
                raise
            resource = request.resource if request is not None else scope["path"]
            refusal = error_response(error, resource=resource, request_id=request_id)
            await refusal(scope, receive, send_marked)

    async def _handle(
        self, request: S3Request, operation: S3Operation, receive: Receive
    ) -> ASGIApp:
        loop = asyncio.get_running_loop()
        call = await loop.run_in_executor(
            self._components.threads, self._authenticate_and_authorize, request, operation
        )
        reject_unsupported_parameters(call, operation.name, stores_object=operation.stores_object)
        return await operation.handle(call, receive)

    def _authenticate_and_authorize(
        self, request: S3Request, operation: S3Operation
    ) -> AuthorizedS3Request:
        """Verify the signature and the privileges. Reads the catalog."""
        identity = self._authenticator.authenticate(request)
        request = _restore_presigned_headers(request, identity)
        if request.key:
            check_key(request.key)
        if identity.table_credentials is not None:
            request, visit = self._table_access.authorize(
                request, operation.handle, identity.table_credentials
            )
            return AuthorizedS3Request(request, identity, self._components, visit)
        if identity.stage_upload_credentials is not None:
            request, visit = restrict_to_stage(
                request,
                operation.handle,
                identity.stage_upload_credentials,
                self._components.bucket_registry,
            )
            return AuthorizedS3Request(request, identity, self._components, visit)
        if operation.required_privilege is None:
            return AuthorizedS3Request(request, identity, self._components)
        visit = self._components.bucket_registry.access_bucket(identity.user, request.bucket)
        if operation.required_privilege in {ANY_PRIVILEGE, OWNERSHIP}:
            visit.require_any_privilege()
        else:
            visit.require_privilege(operation.required_privilege, request.key)
        return AuthorizedS3Request(request, identity, self._components, visit)

    async def _selected(self, call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
        if self._select is None:
            raise S3Error("NotImplemented")
        body = await receive_small_body(receive, max_bytes=MAX_SELECT_REQUEST_BYTES)
        content = await call.run_in_thread(decode_and_verify_body, call, body)
        return await self._select(call, call.request.bucket, call.key, content)


def _restore_presigned_headers(request: S3Request, identity: S3Identity) -> S3Request:
    """Return the request with the headers that presigning has moved to the query.

    Raises:
        S3Error: If the URL is presigned with version 2, which does not sign these parameters.
    """
    moved = {
        name.lower(): value
        for name, value in request.query.items()
        if name.lower().startswith("x-amz-") and name not in SIGNATURE_PARAMETERS
    }
    if not moved:
        return request
    if identity.is_signed and identity.credentials is None:
        name = next(iter(moved))
        raise S3Error(
            "NotImplemented", f"{name} in an address signed in version 2 is not supported."
        )
    return dataclasses.replace(request, headers={**moved, **request.headers})


# Clients may not read, list or delete: they do not need to, and a blob may already be registered.
_STAGE_UPLOAD_HANDLERS: frozenset[Callable[..., Awaitable[object]]] = frozenset(
    {
        object_operations.put_object,
        object_operations.upload_part,
        multipart_operations.create_upload,
        multipart_operations.complete_upload,
        multipart_operations.abort_upload,
        multipart_operations.list_parts,
    }
)


def restrict_to_stage(
    request: S3Request,
    handle: Callable[..., Awaitable[object]],
    credentials: StageCredentials,
    bucket_registry: BucketRegistry,
) -> tuple[S3Request, BucketAccess]:
    """Check that a request uploads to the stage. Return it with the blob's final key, and the bucket.

    The official client does not send its identity when it renews its credentials, and gets
    credentials for another prefix. It continues to use its first prefix in the names of its blobs.
    This prefix therefore determines the key.

    Raises:
        S3Error: If the request is not an upload of a row file or of a blob with a prefix that these
            credentials allow.
    """
    if request.bucket != STAGE_BUCKET or handle not in _STAGE_UPLOAD_HANDLERS:
        raise S3Error("AccessDenied", "These credentials are for uploads to the stage only.")
    folder, _, path = request.key.partition("/")
    if (
        folder == credentials.prefix
        and is_uploaded_row_file_name(path)
        and handle is object_operations.put_object
    ):
        return request, _make_upload_access(bucket_registry, credentials, request.key)
    try:
        named = parse_blob_path(path).client_prefix
    except BlobInvalid as error:
        raise S3Error("AccessDenied", str(error)) from None
    prefix = _find_issued_prefix(bucket_registry.database, named, credentials)
    if folder != credentials.prefix or prefix is None:
        raise S3Error("AccessDenied", "These credentials are for blobs of another client.")
    key = f"{prefix}/{path}"
    visit = _make_upload_access(bucket_registry, credentials, key)
    return (
        dataclasses.replace(request, key=key),
        dataclasses.replace(visit, bucket=WriteOnceBucket(visit.bucket)),
    )


def _make_upload_access(
    bucket_registry: BucketRegistry, credentials: StageCredentials, key: str
) -> BucketAccess:
    reach = BucketPrivileges(is_owner=False, prefixes_by_privilege={"WRITE": (key.encode(),)})
    return bucket_registry.access_with_privileges(credentials.user, STAGE_BUCKET, reach)


def _find_issued_prefix(
    database: Database, client_prefix: str, credentials: StageCredentials
) -> str | None:
    """Return the prefix in a blob's name, or None if it was not issued to the user."""
    with database.reading() as connection:
        suffix = f"_{leases.read_deployment_id(connection)}"
        prefix = client_prefix.removesuffix(suffix)
        if prefix == client_prefix:
            return None
        if prefix == credentials.prefix:
            return prefix
        if not credentials.any_prefix:
            return None
        owner = registration.find_prefix_owner(connection, prefix)
    return prefix if owner == credentials.user else None
