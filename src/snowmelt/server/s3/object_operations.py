"""S3 operations that read, write, copy and delete objects and upload parts.

`supported_parameters` identifies operations by their function names.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

from snowmelt.buckets import checksums
from snowmelt.buckets.bucket import (
    DEFAULT_CONTENT_TYPE,
    ObjectMetadata,
    ObjectUpload,
    UploadCompletion,
    check_key,
)
from snowmelt.buckets.checksums import COMPOSITE, Checksum
from snowmelt.buckets.errors import S3Error
from snowmelt.buckets.multipart import MAX_PARTS
from snowmelt.catalog.objects.s3_objects import NO_PRECONDITION, WritePrecondition
from snowmelt.errors import SnowmeltError
from snowmelt.server.s3 import xml
from snowmelt.server.s3.body import (
    BodyReceiver,
    declared_checksum_algorithm,
    decode_and_verify_body,
    receive_into,
    receive_small_body,
)
from snowmelt.server.s3.conditional_requests import (
    check_conditions,
    format_http_date,
    parse_copy_range,
    parse_delete_condition,
    parse_range,
    parse_write_condition,
)
from snowmelt.server.s3.request_context import AuthorizedS3Request, blocking_operation
from snowmelt.server.s3.responses import (
    S3Response,
    S3StreamingResponse,
    make_checksum_elements,
    xml_response,
)
from snowmelt.server.s3.supported_parameters import (
    METADATA_HEADER_PREFIX,
    reject_unsupported_elements,
)
from snowmelt.storage.store import OpenObject

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive


MAX_DELETED_KEYS = 1000
_MAX_DELETE_REQUEST_BYTES = 4 * 1024 * 1024
# Objects up to this size are read completely by the thread that opens them.
_MAX_UNSTREAMED_BYTES = 256 * 1024
_OVERRIDABLE_HEADERS = (
    "content-type",
    "content-language",
    "expires",
    "cache-control",
    "content-disposition",
    "content-encoding",
)


async def delete_object(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """DeleteObject."""
    del receive
    check_version_id(call)
    headers = call.headers
    condition = parse_delete_condition(
        headers.get("if-match"),
        headers.get("x-amz-if-match-size"),
        headers.get("x-amz-if-match-last-modified-time"),
    )
    await call.run_in_thread(call.bucket_access.bucket.delete, call.key, condition)
    return S3Response(HTTPStatus.NO_CONTENT)


async def delete_objects(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """DeleteObjects: return a result for each key."""
    body = await receive_small_body(receive, max_bytes=_MAX_DELETE_REQUEST_BYTES)
    return await call.run_in_thread(_delete_objects, call, body)


@blocking_operation
def get_object(call: AuthorizedS3Request) -> ASGIApp:
    """GetObject."""
    facts, opened = _open_object(call)
    try:
        start, end, status, headers = _prepare_response_head(call, facts)
        if end - start > _MAX_UNSTREAMED_BYTES:
            chunks = opened.read_blocks(start, end)
            return S3StreamingResponse(
                status, headers, chunks, opened.close, call.components.threads
            )
        body = b"".join(opened.read_blocks(start, end))
    except BaseException:
        opened.close()
        raise
    opened.close()
    return S3Response(status, headers, body)


@blocking_operation
def head_object(call: AuthorizedS3Request) -> ASGIApp:
    """HeadObject."""
    check_version_id(call)
    facts = call.bucket_access.bucket.head(call.key)
    check_conditions(call.headers, facts)
    _, _, status, headers = _prepare_response_head(call, facts)
    return S3Response(status, headers)


def _open_object(call: AuthorizedS3Request) -> tuple[ObjectMetadata, OpenObject]:
    check_version_id(call)
    facts, opened = call.bucket_access.bucket.open(call.key)
    try:
        check_conditions(call.headers, facts)
    except BaseException:
        opened.close()
        raise
    return facts, opened


def _prepare_response_head(
    call: AuthorizedS3Request, metadata: ObjectMetadata
) -> tuple[int, int, int, dict[str, str]]:
    headers = build_object_headers(call, metadata)
    found = _find_part_range(call, metadata) or parse_range(
        _effective_range_header(call, metadata), metadata.size
    )
    start, end = found or (0, metadata.size)
    if metadata.part_sizes and "partNumber" in call.query:
        headers["x-amz-mp-parts-count"] = str(len(metadata.part_sizes))
    status = HTTPStatus.OK
    if found is not None:
        status = HTTPStatus.PARTIAL_CONTENT
        headers["content-range"] = f"bytes {start}-{end - 1}/{metadata.size}"
    elif metadata.checksum is not None and call.headers.get("x-amz-checksum-mode") == "ENABLED":
        headers[metadata.checksum.header_name] = metadata.checksum.value
        headers["x-amz-checksum-type"] = metadata.checksum.kind
    headers["content-length"] = str(end - start)
    return start, end, status, headers


def build_object_headers(call: AuthorizedS3Request, metadata: ObjectMetadata) -> dict[str, str]:
    """Return the response headers of an object, including overrides in the request."""
    headers = {
        "content-type": DEFAULT_CONTENT_TYPE,
        **metadata.headers,
        "etag": f'"{metadata.etag}"',
        "last-modified": format_http_date(metadata.modified_at),
        "accept-ranges": "bytes",
    }
    for name in _OVERRIDABLE_HEADERS:
        value = call.query.get(f"response-{name}")
        if value is not None:
            if not call.identity.is_signed:
                raise S3Error("InvalidRequest", "response- parameters need a signed request.")
            if not value.isprintable():
                raise S3Error("InvalidArgument", f"response-{name} cannot be a header.")
            headers[name] = value
    return headers


def check_version_id(call: AuthorizedS3Request) -> None:
    """Verify that a request is for the only version, `null`.

    Raises:
        S3Error: If the request is for another version.
    """
    version = call.query.get("versionId", "null")
    if version not in {"null", ""}:
        raise S3Error("NoSuchVersion", Key=call.key, VersionId=version)


def _effective_range_header(call: AuthorizedS3Request, metadata: ObjectMetadata) -> str | None:
    """Return the range header of a request, or None if If-Range does not match the object."""
    only_if = call.headers.get("if-range")
    if only_if is not None and only_if.strip() not in {
        f'"{metadata.etag}"',
        format_http_date(metadata.modified_at),
    }:
        return None
    return call.headers.get("range")


def _find_part_range(call: AuthorizedS3Request, metadata: ObjectMetadata) -> tuple[int, int] | None:
    """Return the start and the exclusive end of the requested part, or None."""
    text = call.query.get("partNumber")
    if text is None:
        return None
    if "range" in call.headers:
        raise S3Error(
            "InvalidRequest", "Cannot specify both Range header and partNumber query parameter"
        )
    number = parse_part_number(text)
    if "-" in metadata.etag and not metadata.part_sizes:
        raise S3Error("NotImplemented", "partNumber: the parts of this object are not known here.")
    sizes = metadata.part_sizes or (metadata.size,)
    if number > len(sizes):
        raise S3Error("InvalidPartNumber", ActualPartCount=len(sizes), PartNumberRequested=number)
    start = sum(sizes[: number - 1])
    return (start, start + sizes[number - 1]) if metadata.size else None


def _delete_objects(call: AuthorizedS3Request, body: bytes) -> ASGIApp:
    root = xml.parse_document(decode_and_verify_body(call, body), "Delete")
    reject_unsupported_elements(root)
    wanted = root.findall("Object")
    if not 0 < len(wanted) <= MAX_DELETED_KEYS:
        raise S3Error("MalformedXML", f"A Delete names 1 to {MAX_DELETED_KEYS} objects.")
    quiet = (root.findtext("Quiet") or "").strip().lower() == "true"
    deleted: list[xml.XmlElement] = []
    errors: list[xml.XmlElement] = []
    for each in wanted:
        key = each.findtext("Key") or ""
        version = (each.findtext("VersionId") or "").strip()
        try:
            condition = parse_delete_condition(
                each.findtext("ETag"), each.findtext("Size"), each.findtext("LastModifiedTime")
            )
            check_key(key)
            call.bucket_access.require_privilege("WRITE", key)
            if version not in {"", "null"}:
                raise S3Error("NoSuchVersion")
            call.bucket_access.bucket.delete(key, condition)
        except SnowmeltError as error:
            code = getattr(error, "s3_code", "InternalError")
            errors.append(("Error", [("Key", key), ("Code", code), ("Message", str(error))]))
        else:
            shown = [("VersionId", version)] if version else []
            deleted.append(("Deleted", [("Key", key), *shown]))
    content = itertools.chain(() if quiet else deleted, errors)
    return xml_response("DeleteResult", list(content))


MAX_UPLOAD_BYTES = 5 * 1024**3
_MAX_METADATA_BYTES = 2048
_STORED_HEADERS = (
    "content-type",
    "content-language",
    "content-disposition",
    "cache-control",
    "expires",
)


async def put_object(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """PutObject."""
    _check_content_length(call)
    headers = collect_stored_headers(call)
    condition = parse_write_condition(call.headers)
    incoming = await call.run_in_thread(call.bucket_access.bucket.start_upload, call.key, headers)
    return await _receive_upload(call, receive, incoming, condition)


async def upload_part(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """UploadPart."""
    _check_content_length(call)
    upload_id, number = parse_part_parameters(call)
    uploads = call.components.multipart_uploads
    upload = await call.run_in_thread(uploads.find, call.bucket_access, call.key, upload_id)
    algorithm = None if upload.checksum is None else Checksum.parse(upload.checksum).algorithm
    sent = declared_checksum_algorithm(call.headers)
    if algorithm is not None and sent not in {None, algorithm}:
        raise S3Error(
            "InvalidRequest",
            f"Checksum Type mismatch occurred, expected checksum Type: {algorithm.lower()}, "
            f"actual checksum Type: {sent.lower() if sent else 'null'}",
        )
    incoming = await call.run_in_thread(uploads.start_part, upload, number)
    return await _receive_upload(call, receive, incoming, NO_PRECONDITION, algorithm)


async def _receive_upload(
    call: AuthorizedS3Request,
    receive: Receive,
    upload: ObjectUpload,
    condition: WritePrecondition,
    algorithm: str | None = None,
) -> ASGIApp:
    try:
        payload = BodyReceiver(call, upload, algorithm=algorithm)
        await receive_into(
            receive, payload, call.components.threads, max_bytes=MAX_UPLOAD_BYTES + 2**24
        )
        facts = await call.run_in_thread(_finish_upload, payload, upload, condition)
    finally:
        await call.run_in_thread(upload.abort)
    headers = {"etag": f'"{facts.etag}"'}
    if facts.checksum is not None:
        headers[facts.checksum.header_name] = facts.checksum.value
        headers["x-amz-checksum-type"] = facts.checksum.kind
    return S3Response(headers=headers)


def _finish_upload(
    receiver: BodyReceiver, upload: ObjectUpload, condition: WritePrecondition
) -> ObjectMetadata:
    arrived = receiver.finish()
    return upload.finish(
        UploadCompletion(etag=arrived.md5, checksum=arrived.checksum, condition=condition)
    )


def collect_stored_headers(call: AuthorizedS3Request) -> dict[str, str]:
    """Return the headers to store with an object. A GET returns them.

    Raises:
        S3Error: If the user metadata exceeds 2 KiB.
    """
    kept = {name: call.headers[name] for name in _STORED_HEADERS if name in call.headers}
    kept.setdefault("content-type", DEFAULT_CONTENT_TYPE)
    encodings = [each.strip() for each in call.headers.get("content-encoding", "").split(",")]
    encoding = ",".join(each for each in encodings if each and each != "aws-chunked")
    if encoding:
        kept["content-encoding"] = encoding
    own = {
        name: encode_metadata_value(value)
        for name, value in call.headers.items()
        if name.startswith(METADATA_HEADER_PREFIX)
    }
    size = sum(len(name) - len(METADATA_HEADER_PREFIX) + len(value) for name, value in own.items())
    if size > _MAX_METADATA_BYTES:
        raise S3Error("MetadataTooLarge", Size=size, MaxSizeAllowed=_MAX_METADATA_BYTES)
    return kept | own


def parse_part_parameters(call: AuthorizedS3Request) -> tuple[str, int]:
    """Parse the upload ID and the part number of a request.

    Raises:
        S3Error: If the number is not between 1 and 10,000.
    """
    return call.query.get("uploadId", ""), parse_part_number(call.query.get("partNumber", ""))


def parse_part_number(text: str) -> int:
    """Parse a part number.

    Raises:
        S3Error: If the number is not between 1 and 10,000.
    """
    if not text.isdecimal() or not 1 <= int(text[:6]) <= MAX_PARTS:
        raise S3Error(
            "InvalidArgument",
            f"Part number must be an integer between 1 and {MAX_PARTS}, inclusive.",
            ArgumentName="partNumber",
            ArgumentValue=text[:20],
        )
    return int(text)


@blocking_operation
def copy_object(call: AuthorizedS3Request) -> ASGIApp:
    """CopyObject."""
    replace = _parse_directive(call, "x-amz-metadata-directive") == "REPLACE"
    if _parse_directive(call, "x-amz-tagging-directive") == "REPLACE":
        raise S3Error("NotImplemented", "Tags are not supported.")
    new_headers = collect_stored_headers(call)
    condition = parse_write_condition(call.headers)
    algorithm = checksums.parse_checksum_algorithm(call.headers.get("x-amz-checksum-algorithm"))
    facts, opened, same = _open_copy_source(call)
    with contextlib.closing(opened):
        if same and not replace:
            raise S3Error(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself "
                "without changing the object's metadata.",
            )
        incoming = call.bucket_access.bucket.start_upload(
            call.key, new_headers if replace else facts.headers
        )
        try:
            incoming.append(opened)
            etag = facts.etag if "-" not in facts.etag else _compute_md5(opened)
            checksum = facts.checksum
            if algorithm is None and checksum is not None and checksum.kind == COMPOSITE:
                # The copy has no parts, so it has the checksum of its bytes, as in S3.
                algorithm = checksum.algorithm
            if algorithm is not None:
                checksum = _compute_checksum(opened, algorithm)
            copied = incoming.finish(
                UploadCompletion(etag=etag, checksum=checksum, condition=condition)
            )
        finally:
            incoming.abort()
    return xml_response("CopyObjectResult", _make_copy_result(copied))


@blocking_operation
def upload_part_copy(call: AuthorizedS3Request) -> ASGIApp:
    """UploadPartCopy."""
    upload_id, number = parse_part_parameters(call)
    uploads = call.components.multipart_uploads
    upload = uploads.find(call.bucket_access, call.key, upload_id)
    facts, opened, _ = _open_copy_source(call)
    with contextlib.closing(opened):
        header = call.headers.get("x-amz-copy-source-range")
        start, end = parse_copy_range(header, facts.size) or (0, facts.size)
        incoming = uploads.start_part(upload, number)
        try:
            incoming.append(opened, start, end)
            copied = incoming.finish(UploadCompletion(etag=_compute_md5(opened, start, end)))
        finally:
            incoming.abort()
    return xml_response("CopyPartResult", _make_copy_result(copied))


def _make_copy_result(metadata: ObjectMetadata) -> list[xml.XmlElement]:
    return [
        ("LastModified", xml.format_timestamp(metadata.modified_at)),
        ("ETag", f'"{metadata.etag}"'),
        *make_checksum_elements(metadata.checksum),
    ]


def _open_copy_source(call: AuthorizedS3Request) -> tuple[ObjectMetadata, OpenObject, bool]:
    """Check READ on the source of a copy, and open it. Also return whether it equals the target."""
    text, _, version = call.headers["x-amz-copy-source"].partition("?versionId=")
    bucket, _, key = unquote(text).removeprefix("/").partition("/")
    if not bucket or not key:
        raise S3Error("InvalidArgument", "Copy Source must mention the source bucket and key.")
    if version not in {"", "null"}:
        raise S3Error("NoSuchVersion", Key=key, VersionId=version)
    visit = call.components.bucket_registry.access_bucket(call.user, bucket)
    visit.require_privilege("READ", key)
    owner = call.headers.get("x-amz-source-expected-bucket-owner")
    if owner is not None and owner != visit.record.owner:
        raise S3Error("AccessDenied", "The source bucket does not belong to the expected owner.")
    facts, opened = visit.bucket.open(key)
    try:
        check_conditions(call.headers, facts, prefix="x-amz-copy-source-")
    except BaseException:
        opened.close()
        raise
    same = (visit.record.bucket_id, key) == (call.bucket_access.record.bucket_id, call.key)
    return facts, opened, same


def _compute_md5(opened: OpenObject, start: int = 0, end: int | None = None) -> str:
    md5 = hashlib.md5(usedforsecurity=False)
    for chunk in opened.read_blocks(start, end):
        md5.update(chunk)
    return md5.hexdigest()


def _compute_checksum(opened: OpenObject, algorithm: str) -> Checksum:
    hashing = checksums.new_hasher(algorithm)
    for chunk in opened.read_blocks():
        hashing.update(chunk)
    return checksums.to_checksum(algorithm, hashing)


def encode_metadata_value(value: str) -> str:
    """Encode a value of user metadata in ASCII (RFC 2047), the form that is stored and returned.

    Args:
        value: The sent bytes, decoded as Latin-1. They are UTF-8, Latin-1, or encoded words.
    """
    raw = value.encode("latin-1")
    if raw.isascii():
        return value
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = value
    return f"=?UTF-8?B?{base64.b64encode(text.encode()).decode()}?="


def _parse_directive(call: AuthorizedS3Request, name: str) -> str:
    value = call.headers.get(name, "COPY").upper()
    if value not in {"COPY", "REPLACE"}:
        raise S3Error("InvalidArgument", f"{name} must be COPY or REPLACE.")
    return value


def _check_content_length(call: AuthorizedS3Request) -> None:
    headers = call.headers
    text = headers.get("x-amz-decoded-content-length", headers.get("content-length"))
    if text is None:
        if "transfer-encoding" not in headers:
            raise S3Error("MissingContentLength")
        return
    if text.isdecimal() and int(text[:20]) > MAX_UPLOAD_BYTES:
        raise S3Error("EntityTooLarge", ProposedSize=text[:20], MaxSizeAllowed=MAX_UPLOAD_BYTES)
