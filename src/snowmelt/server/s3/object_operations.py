"""Operations that read or delete objects."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

from snowmelt.buckets import checksums
from snowmelt.buckets.bucket import DEFAULT_CONTENT_TYPE, UploadCompletion, check_key
from snowmelt.buckets.checksums import Checksum
from snowmelt.buckets.errors import S3Error
from snowmelt.buckets.multipart import MAX_PARTS
from snowmelt.catalog.objects.s3_objects import NO_PRECONDITION
from snowmelt.errors import SnowmeltError
from snowmelt.server.s3 import xml as markup
from snowmelt.server.s3.body import Payload, algorithm_of, checked_body, receive_into, receive_whole
from snowmelt.server.s3.conditions import (
    check_conditions,
    copy_range_of,
    delete_condition,
    http_date,
    range_of,
    write_condition,
)
from snowmelt.server.s3.responses import Answer, Stream, xml_answer
from snowmelt.server.s3.supported_parameters import META, check_document

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive

    from snowmelt.buckets.bucket import ObjectMetadata, ObjectUpload
    from snowmelt.catalog.objects.s3_objects import WritePrecondition
    from snowmelt.server.s3.request_context import AuthorisedRequest
    from snowmelt.storage.store import OpenObject

MOST_KEYS = 1000
_MOST_DELETE_BYTES = 4 * 1024 * 1024
# What is not larger is read by the thread that opens it.
_AT_ONCE_BYTES = 256 * 1024
_OVERRIDES = (
    "content-type",
    "content-language",
    "expires",
    "cache-control",
    "content-disposition",
    "content-encoding",
)


async def get_object(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """GetObject."""
    del receive
    return await call.run(_get, call)


async def head_object(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """HeadObject."""
    del receive
    return await call.run(_head, call)


async def delete_object(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """DeleteObject."""
    del receive
    check_version(call)
    headers = call.headers
    condition = delete_condition(
        headers.get("if-match"),
        headers.get("x-amz-if-match-size"),
        headers.get("x-amz-if-match-last-modified-time"),
    )
    await call.run(call.visit.bucket.delete, call.key, condition)
    return Answer(HTTPStatus.NO_CONTENT)


async def delete_objects(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """DeleteObjects: each key is answered for by itself."""
    body = await receive_whole(receive, most=_MOST_DELETE_BYTES)
    return await call.run(_delete_many, call, body)


def _get(call: AuthorisedRequest) -> ASGIApp:
    facts, opened = _opened(call)
    try:
        start, end, status, headers = _described(call, facts)
        if end - start > _AT_ONCE_BYTES:
            chunks = opened.read_blocks(start, end)
            return Stream(status, headers, chunks, opened.close, call.parts.threads)
        body = b"".join(opened.read_blocks(start, end))
    except BaseException:
        opened.close()
        raise
    opened.close()
    return Answer(status, headers, body)


def _head(call: AuthorisedRequest) -> ASGIApp:
    check_version(call)
    facts = call.visit.bucket.head(call.key)
    check_conditions(call.headers, facts)
    _, _, status, headers = _described(call, facts)
    return Answer(status, headers)


def _opened(call: AuthorisedRequest) -> tuple[ObjectMetadata, OpenObject]:
    check_version(call)
    facts, opened = call.visit.bucket.open(call.key)
    try:
        check_conditions(call.headers, facts)
    except BaseException:
        opened.close()
        raise
    return facts, opened


def _described(
    call: AuthorisedRequest, facts: ObjectMetadata
) -> tuple[int, int, int, dict[str, str]]:
    headers = object_headers(call, facts)
    found = _part_range(call, facts) or range_of(_range_header(call, facts), facts.size)
    start, end = found or (0, facts.size)
    if facts.part_sizes and "partNumber" in call.query:
        headers["x-amz-mp-parts-count"] = str(len(facts.part_sizes))
    status = HTTPStatus.OK
    if found is not None:
        status = HTTPStatus.PARTIAL_CONTENT
        headers["content-range"] = f"bytes {start}-{end - 1}/{facts.size}"
    elif facts.checksum is not None and call.headers.get("x-amz-checksum-mode") == "ENABLED":
        headers[facts.checksum.header_name] = facts.checksum.value
        headers["x-amz-checksum-type"] = facts.checksum.kind
    headers["content-length"] = str(end - start)
    return start, end, status, headers


def object_headers(call: AuthorisedRequest, facts: ObjectMetadata) -> dict[str, str]:
    """Return the headers that tell what an object is, as the request wants some of them."""
    headers = {
        "content-type": DEFAULT_CONTENT_TYPE,
        **facts.headers,
        "etag": f'"{facts.etag}"',
        "last-modified": http_date(facts.modified_at),
        "accept-ranges": "bytes",
    }
    for name in _OVERRIDES:
        value = call.query.get(f"response-{name}")
        if value is not None:
            if not call.identity.is_signed:
                raise S3Error("InvalidRequest", "response- parameters need a signed request.")
            if not value.isprintable():
                raise S3Error("InvalidArgument", f"response-{name} cannot be a header.")
            headers[name] = value
    return headers


def check_version(call: AuthorisedRequest) -> None:
    """Let pass what asks for the only version that there is.

    Raises:
        S3Refusal: It asks for another.
    """
    version = call.query.get("versionId", "null")
    if version not in {"null", ""}:
        raise S3Error("NoSuchVersion", Key=call.key, VersionId=version)


def _range_header(call: AuthorisedRequest, facts: ObjectMetadata) -> str | None:
    """Return the range that is asked for; none if it was of another object (If-Range)."""
    only_if = call.headers.get("if-range")
    if only_if is not None and only_if.strip() not in {
        f'"{facts.etag}"',
        http_date(facts.modified_at),
    }:
        return None
    return call.headers.get("range")


def _part_range(call: AuthorisedRequest, facts: ObjectMetadata) -> tuple[int, int] | None:
    """Return first byte and the one after the last of the part that is asked for."""
    text = call.query.get("partNumber")
    if text is None:
        return None
    if "range" in call.headers:
        raise S3Error(
            "InvalidRequest", "Cannot specify both Range header and partNumber query parameter"
        )
    number = part_number_of(text)
    if "-" in facts.etag and not facts.part_sizes:
        raise S3Error("NotImplemented", "partNumber: the parts of this object are not known here.")
    sizes = facts.part_sizes or (facts.size,)
    if number > len(sizes):
        raise S3Error("InvalidPartNumber", ActualPartCount=len(sizes), PartNumberRequested=number)
    start = sum(sizes[: number - 1])
    return (start, start + sizes[number - 1]) if facts.size else None


def _delete_many(call: AuthorisedRequest, body: bytes) -> ASGIApp:
    root = markup.parse(checked_body(call, body), "Delete")
    check_document(root)
    wanted = root.findall("Object")
    if not 0 < len(wanted) <= MOST_KEYS:
        raise S3Error("MalformedXML", f"A Delete names 1 to {MOST_KEYS} objects.")
    quiet = (root.findtext("Quiet") or "").strip().lower() == "true"
    deleted: list[markup.Element] = []
    errors: list[markup.Element] = []
    for each in wanted:
        key = each.findtext("Key") or ""
        version = (each.findtext("VersionId") or "").strip()
        try:
            condition = delete_condition(
                each.findtext("ETag"), each.findtext("Size"), each.findtext("LastModifiedTime")
            )
            _delete_one(call, key, version, condition)
        except SnowmeltError as error:
            errors.append(("Error", _error_of(key, error)))
        else:
            shown = [("VersionId", version)] if version else []
            deleted.append(("Deleted", [("Key", key), *shown]))
    content = itertools.chain(() if quiet else deleted, errors)
    return xml_answer("DeleteResult", list(content))


def _delete_one(
    call: AuthorisedRequest, key: str, version: str, condition: WritePrecondition
) -> None:
    check_key(key)
    call.visit.require_privilege("WRITE", key)
    if version not in {"", "null"}:
        raise S3Error("NoSuchVersion")
    call.visit.bucket.delete(key, condition)


def _error_of(key: str, error: SnowmeltError) -> list[markup.Element]:
    code = getattr(error, "s3_code", "InternalError")
    return [("Key", key), ("Code", code), ("Message", str(error))]


# --- Operations that write objects and parts: from the request's body, or from another object.

MOST_BYTES = 5 * 1024**3
_MOST_METADATA_BYTES = 2048
_KEPT = (
    "content-type",
    "content-language",
    "content-disposition",
    "cache-control",
    "expires",
)


async def put_object(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """PutObject."""
    _check_length(call)
    headers = headers_to_keep(call)
    condition = write_condition(call.headers)
    incoming = await call.run(call.visit.bucket.start_upload, call.key, headers)
    return await _take_in(call, receive, incoming, condition)


async def upload_part(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """UploadPart."""
    _check_length(call)
    upload_id, number = part_of(call)
    uploads = call.parts.uploads
    upload = await call.run(uploads.find, call.visit, call.key, upload_id)
    algorithm = None if upload.checksum is None else Checksum.parse(upload.checksum).algorithm
    sent = algorithm_of(call.headers)
    if algorithm is not None and sent not in {None, algorithm}:
        raise S3Error(
            "InvalidRequest",
            f"Checksum Type mismatch occurred, expected checksum Type: {algorithm.lower()}, "
            f"actual checksum Type: {sent.lower() if sent else 'null'}",
        )
    incoming = await call.run(uploads.start_part, upload, number)
    return await _take_in(call, receive, incoming, NO_PRECONDITION, algorithm)


async def copy_object(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """CopyObject."""
    del receive
    return await call.run(_copy, call)


async def upload_part_copy(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """UploadPartCopy."""
    del receive
    return await call.run(_copy_part, call)


async def _take_in(
    call: AuthorisedRequest,
    receive: Receive,
    incoming: ObjectUpload,
    condition: WritePrecondition,
    algorithm: str | None = None,
) -> ASGIApp:
    try:
        payload = Payload(call, incoming, algorithm=algorithm)
        await receive_into(receive, payload, call.parts.threads, most=MOST_BYTES + 2**24)
        facts = await call.run(_publish, payload, incoming, condition)
    finally:
        await call.run(incoming.abort)
    headers = {"etag": f'"{facts.etag}"'}
    if facts.checksum is not None:
        headers[facts.checksum.header_name] = facts.checksum.value
        headers["x-amz-checksum-type"] = facts.checksum.kind
    return Answer(headers=headers)


def _publish(
    payload: Payload, incoming: ObjectUpload, condition: WritePrecondition
) -> ObjectMetadata:
    arrived = payload.finish()
    return incoming.finish(
        UploadCompletion(etag=arrived.md5, checksum=arrived.checksum, condition=condition)
    )


def headers_to_keep(call: AuthorisedRequest) -> dict[str, str]:
    """Return the headers that a GET of the object will repeat.

    Raises:
        S3Refusal: They are too long.
    """
    kept = {name: call.headers[name] for name in _KEPT if name in call.headers}
    kept.setdefault("content-type", DEFAULT_CONTENT_TYPE)
    encodings = [each.strip() for each in call.headers.get("content-encoding", "").split(",")]
    encoding = ",".join(each for each in encodings if each and each != "aws-chunked")
    if encoding:
        kept["content-encoding"] = encoding
    own = {name: mail_safe(value) for name, value in call.headers.items() if name.startswith(META)}
    size = sum(len(name) - len(META) + len(value) for name, value in own.items())
    if size > _MOST_METADATA_BYTES:
        raise S3Error("MetadataTooLarge", Size=size, MaxSizeAllowed=_MOST_METADATA_BYTES)
    return kept | own


def part_of(call: AuthorisedRequest) -> tuple[str, int]:
    """Return upload id and part number of a request.

    Raises:
        S3Refusal: The number is not one of 1 to 10,000.
    """
    return call.query.get("uploadId", ""), part_number_of(call.query.get("partNumber", ""))


def part_number_of(number: str) -> int:
    """Return a part number that is given as text.

    Raises:
        S3Refusal: It is not one of 1 to 10,000.
    """
    if not number.isdecimal() or not 1 <= int(number[:6]) <= MAX_PARTS:
        raise S3Error(
            "InvalidArgument",
            f"Part number must be an integer between 1 and {MAX_PARTS}, inclusive.",
            ArgumentName="partNumber",
            ArgumentValue=number[:20],
        )
    return int(number)


def _copy(call: AuthorisedRequest) -> ASGIApp:
    replace = _directive(call, "x-amz-metadata-directive") == "REPLACE"
    if _directive(call, "x-amz-tagging-directive") == "REPLACE":
        raise S3Error("NotImplemented", "Tags are not offered here.")
    new_headers = headers_to_keep(call)
    condition = write_condition(call.headers)
    algorithm = checksums.parse_algorithm(call.headers.get("x-amz-checksum-algorithm"))
    facts, opened, same = _source(call)
    with contextlib.closing(opened):
        if same and not replace:
            raise S3Error(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself "
                "without changing the object's metadata.",
            )
        incoming = call.visit.bucket.start_upload(
            call.key, new_headers if replace else facts.headers
        )
        try:
            incoming.append(opened)
            etag = facts.etag if "-" not in facts.etag else _md5_of(opened)
            checksum = facts.checksum
            if algorithm is not None:
                checksum = _checksum_of(opened, algorithm)
            copied = incoming.finish(
                UploadCompletion(etag=etag, checksum=checksum, condition=condition)
            )
        finally:
            incoming.abort()
    return xml_answer("CopyObjectResult", _copy_result(copied))


def _copy_part(call: AuthorisedRequest) -> ASGIApp:
    upload_id, number = part_of(call)
    uploads = call.parts.uploads
    upload = uploads.find(call.visit, call.key, upload_id)
    facts, opened, _ = _source(call)
    with contextlib.closing(opened):
        header = call.headers.get("x-amz-copy-source-range")
        start, end = copy_range_of(header, facts.size) or (0, facts.size)
        incoming = uploads.start_part(upload, number)
        try:
            incoming.append(opened, start, end)
            copied = incoming.finish(UploadCompletion(etag=_md5_of(opened, start, end)))
        finally:
            incoming.abort()
    return xml_answer("CopyPartResult", _copy_result(copied))


def _copy_result(facts: ObjectMetadata) -> list[markup.Element]:
    result: list[markup.Element] = [
        ("LastModified", markup.instant(facts.modified_at)),
        ("ETag", f'"{facts.etag}"'),
    ]
    if facts.checksum is not None:
        result.append((f"Checksum{facts.checksum.algorithm}", facts.checksum.value))
        result.append(("ChecksumType", facts.checksum.kind))
    return result


def _source(call: AuthorisedRequest) -> tuple[ObjectMetadata, OpenObject, bool]:
    """Open the object that a copy takes, which the user must be allowed to read."""
    text, _, version = call.headers["x-amz-copy-source"].partition("?versionId=")
    bucket, _, key = unquote(text).removeprefix("/").partition("/")
    if not bucket or not key:
        raise S3Error("InvalidArgument", "Copy Source must mention the source bucket and key.")
    if version not in {"", "null"}:
        raise S3Error("NoSuchVersion", Key=key, VersionId=version)
    visit = call.parts.directory.access_bucket(call.user, bucket)
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
    same = (visit.record.bucket_id, key) == (call.visit.record.bucket_id, call.key)
    return facts, opened, same


def _md5_of(opened: OpenObject, start: int = 0, end: int | None = None) -> str:
    md5 = hashlib.md5(usedforsecurity=False)
    for chunk in opened.read_blocks(start, end):
        md5.update(chunk)
    return md5.hexdigest()


def _checksum_of(opened: OpenObject, algorithm: str) -> Checksum:
    hashing = checksums.new_hasher(algorithm)
    for chunk in opened.read_blocks():
        hashing.update(chunk)
    return checksums.to_checksum(algorithm, hashing)


def mail_safe(value: str) -> str:
    """Return a value of user metadata as it is kept and answered: in ASCII (RFC 2047).

    Args:
        value: Latin-1 text of the bytes sent: UTF-8, Latin-1, or words encoded already.
    """
    raw = value.encode("latin-1")
    if raw.isascii():
        return value
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = value
    return f"=?UTF-8?B?{base64.b64encode(text.encode()).decode()}?="


def _directive(call: AuthorisedRequest, name: str) -> str:
    value = call.headers.get(name, "COPY").upper()
    if value not in {"COPY", "REPLACE"}:
        raise S3Error("InvalidArgument", f"{name} must be COPY or REPLACE.")
    return value


def _check_length(call: AuthorisedRequest) -> None:
    headers = call.headers
    text = headers.get("x-amz-decoded-content-length", headers.get("content-length"))
    if text is None:
        if "transfer-encoding" not in headers:
            raise S3Error("MissingContentLength")
        return
    if text.isdecimal() and int(text[:20]) > MOST_BYTES:
        raise S3Error("EntityTooLarge", ProposedSize=text[:20], MaxSizeAllowed=MOST_BYTES)
