"""S3 operations that start, complete, abort and list multipart uploads.

`supported_parameters` identifies operations by their function names.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from snowmelt.buckets import checksums
from snowmelt.buckets.bucket import ObjectMetadata
from snowmelt.buckets.checksums import Checksum
from snowmelt.buckets.errors import S3Error
from snowmelt.buckets.multipart import CompletedPart, ExpectedObject, compute_multipart_etag
from snowmelt.catalog.objects.s3_objects import PartRecord, UploadRecord
from snowmelt.server.s3 import xml
from snowmelt.server.s3.body import receive_small_body, require_single_checksum, verify_signed_body
from snowmelt.server.s3.bucket_operations import make_key_encoder, parse_integer_parameter
from snowmelt.server.s3.conditional_requests import parse_timestamp, parse_write_condition
from snowmelt.server.s3.object_operations import collect_stored_headers
from snowmelt.server.s3.request_context import AuthorizedS3Request, blocking_operation
from snowmelt.server.s3.responses import (
    S3Response,
    make_checksum_elements,
    make_owner_elements,
    xml_response,
)
from snowmelt.server.s3.supported_parameters import reject_unsupported_elements

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from starlette.types import ASGIApp, Receive


_MAX_PART_LIST_BYTES = 4 * 1024 * 1024
_LISTING_PAGE_ENTRIES = 1000
_MAX_SIZE_DIGITS = 20


async def create_upload(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """CreateMultipartUpload."""
    del receive
    checksum = _parse_checksum_algorithm_and_type(call)
    headers = collect_stored_headers(call)
    upload = await call.run_in_thread(
        call.components.multipart_uploads.begin, call.bucket_access, call.key, headers, checksum
    )
    answer: list[xml.XmlElement] = [
        ("Bucket", call.bucket_access.record.name),
        ("Key", call.key),
        ("UploadId", upload.upload_id),
    ]
    told = {}
    if checksum is not None:
        told = {
            "x-amz-checksum-algorithm": checksum.algorithm,
            "x-amz-checksum-type": checksum.kind,
        }
    return xml_response("InitiateMultipartUploadResult", answer, told)


async def complete_upload(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """CompleteMultipartUpload."""
    body = await receive_small_body(receive, max_bytes=_MAX_PART_LIST_BYTES)
    return await call.run_in_thread(_complete_upload, call, body)


async def abort_upload(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """AbortMultipartUpload."""
    del receive
    uploads = call.components.multipart_uploads
    upload = await call.run_in_thread(
        uploads.find, call.bucket_access, call.key, call.query["uploadId"]
    )
    initiated = call.headers.get("x-amz-if-match-initiated-time")
    if initiated is not None and parse_timestamp("initiated time", initiated) != (
        upload.initiated_at.replace(microsecond=0)
    ):
        raise S3Error("PreconditionFailed", Condition="x-amz-if-match-initiated-time")
    await call.run_in_thread(uploads.abort, upload)
    return S3Response(HTTPStatus.NO_CONTENT)


def _parse_checksum_algorithm_and_type(call: AuthorizedS3Request) -> Checksum | None:
    algorithm = checksums.parse_checksum_algorithm(call.headers.get("x-amz-checksum-algorithm"))
    if algorithm is None:
        if "x-amz-checksum-type" in call.headers:
            raise S3Error(
                "InvalidRequest",
                "The x-amz-checksum-type header can only be used with the "
                "x-amz-checksum-algorithm header.",
            )
        return None
    kind = call.headers.get(
        "x-amz-checksum-type", checksums.default_checksum_kind(algorithm)
    ).upper()
    checksums.check_checksum_kind(algorithm, kind)
    return Checksum(algorithm, "", kind)


def _complete_upload(call: AuthorizedS3Request, body: bytes) -> ASGIApp:
    # The checksum headers describe the object, and not this body.
    root = xml.parse_document(verify_signed_body(call, body), "CompleteMultipartUpload")
    reject_unsupported_elements(root)
    named = [_parse_completed_part(part) for part in root.findall("Part")]
    uploads = call.components.multipart_uploads
    try:
        upload = uploads.find(call.bucket_access, call.key, call.query["uploadId"])
        facts = uploads.complete(
            call.bucket_access,
            upload,
            named,
            expected=_parse_expected_object(call),
            condition=parse_write_condition(call.headers),
        )
    except S3Error as error:
        done = _find_completed_object(call, named) if error.s3_code == "NoSuchUpload" else None
        if done is None:
            raise
        facts = done
    answer: list[xml.XmlElement] = [
        ("Location", f"/{call.bucket_access.record.name}/{call.key}"),
        ("Bucket", call.bucket_access.record.name),
        ("Key", call.key),
        ("ETag", f'"{facts.etag}"'),
        *make_checksum_elements(facts.checksum),
    ]
    return xml_response("CompleteMultipartUploadResult", answer)


def _find_completed_object(
    call: AuthorizedS3Request, parts: list[CompletedPart]
) -> ObjectMetadata | None:
    """Return the object if it consists of exactly these parts, for a retry after a lost response."""
    try:
        facts = call.bucket_access.bucket.head(call.key)
        return (
            facts if facts.etag == compute_multipart_etag([part.etag for part in parts]) else None
        )
    except (S3Error, ValueError):
        return None


def _parse_completed_part(part: Element) -> CompletedPart:
    number, etag = part.findtext("PartNumber"), part.findtext("ETag")
    if number is None or etag is None or not number.strip().isdecimal():
        raise S3Error("MalformedXML")
    found = None
    for algorithm in checksums.CHECKSUM_ALGORITHMS:
        value = part.findtext(f"Checksum{algorithm}")
        if value is not None:
            found = checksums.parse_client_checksum(algorithm, value.strip())
    return CompletedPart(int(number), etag.strip().strip('"').lower(), found)


def _parse_expected_object(call: AuthorizedS3Request) -> ExpectedObject:
    size = call.headers.get("x-amz-mp-object-size")
    if size is not None and (not size.isdecimal() or len(size) > _MAX_SIZE_DIGITS):
        raise S3Error("InvalidRequest", "x-amz-mp-object-size must be a number of bytes.")
    kind = call.headers.get("x-amz-checksum-type")
    found = [
        Checksum(algorithm, call.headers[name].strip())
        for algorithm in checksums.CHECKSUM_ALGORITHMS
        if (name := f"x-amz-checksum-{algorithm.lower()}") in call.headers
    ]
    return ExpectedObject(
        checksum=require_single_checksum(found),
        kind=None if kind is None else kind.upper(),
        size=None if size is None else int(size),
    )


@blocking_operation
def list_parts(call: AuthorizedS3Request) -> ASGIApp:
    """ListParts."""
    uploads = call.components.multipart_uploads
    upload = uploads.find(call.bucket_access, call.key, call.query["uploadId"])
    marker = parse_integer_parameter(call.query, "part-number-marker", 0, 10_000)
    most = parse_integer_parameter(
        call.query, "max-parts", _LISTING_PAGE_ENTRIES, _LISTING_PAGE_ENTRIES
    )
    beyond = [part for part in uploads.list_parts(upload) if part.number > marker]
    page = beyond[:most]
    encode = make_key_encoder(call.query)
    answer: list[xml.XmlElement] = [
        ("Bucket", call.bucket_access.record.name),
        ("Key", encode(call.key)),
        ("UploadId", upload.upload_id),
        ("Initiator", make_owner_elements(upload.user)),
        ("Owner", make_owner_elements(call.bucket_access.record.owner)),
        ("StorageClass", "STANDARD"),
        ("PartNumberMarker", marker),
        ("NextPartNumberMarker", page[-1].number if page else 0),
        ("MaxParts", most),
        ("IsTruncated", len(beyond) > most),
    ]
    if upload.checksum is not None:
        checksum = Checksum.parse(upload.checksum)
        answer.append(("ChecksumAlgorithm", checksum.algorithm))
        answer.append(("ChecksumType", checksum.kind))
    answer += [("Part", _make_part_elements(part)) for part in page]
    return xml_response("ListPartsResult", answer)


def _make_part_elements(part: PartRecord) -> list[xml.XmlElement]:
    shown: list[xml.XmlElement] = [
        ("PartNumber", part.number),
        ("LastModified", xml.format_timestamp(part.modified_at)),
        ("ETag", f'"{part.etag}"'),
        ("Size", part.size),
    ]
    if part.checksum is not None:
        checksum = Checksum.parse(part.checksum)
        shown.append((f"Checksum{checksum.algorithm}", checksum.value))
    return shown


@blocking_operation
def list_uploads(call: AuthorizedS3Request) -> ASGIApp:
    """ListMultipartUploads."""
    query = call.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    call.bucket_access.require_privilege("WRITE", prefix)
    most = parse_integer_parameter(
        query, "max-uploads", _LISTING_PAGE_ENTRIES, _LISTING_PAGE_ENTRIES
    )
    key_marker = query.get("key-marker", "")
    # S3 ignores an upload marker without a key marker.
    id_marker = query.get("upload-id-marker") if key_marker else None
    found: list[UploadRecord] = []
    groups: dict[str, None] = {}
    after: tuple[str, str | None] = (key_marker, id_marker)
    truncated = False
    while not truncated:
        page = call.components.multipart_uploads.list_uploads(
            call.bucket_access, prefix, after, _LISTING_PAGE_ENTRIES
        )
        for upload in page:
            key = upload.key.decode()
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            group = None if at < 0 else key[: at + len(delimiter)]
            if group is not None and (group in groups or group == key_marker):
                # The next page begins after the uploads of the group.
                after = (key, upload.upload_id)
                continue
            if len(found) + len(groups) == most:
                truncated = True
                break
            after = (key, upload.upload_id)
            if group is None:
                found.append(upload)
            else:
                groups[group] = None
        if len(page) < _LISTING_PAGE_ENTRIES:
            break
        if not truncated:
            after = (page[-1].key.decode(), page[-1].upload_id)
    return _build_uploads_response(call, (found, list(groups)), most, after if truncated else None)


def _build_uploads_response(
    call: AuthorizedS3Request,
    entries: tuple[list[UploadRecord], list[str]],
    max_uploads: int,
    next_marker: tuple[str, str | None] | None,
) -> ASGIApp:
    query, encode = call.query, make_key_encoder(call.query)
    found, groups = entries
    answer: list[xml.XmlElement] = [
        ("Bucket", call.bucket_access.record.name),
        ("KeyMarker", encode(query.get("key-marker", ""))),
        ("UploadIdMarker", query.get("upload-id-marker", "")),
        ("Prefix", encode(query.get("prefix", ""))),
        ("Delimiter", encode(query["delimiter"]) if query.get("delimiter") else None),
        ("EncodingType", query.get("encoding-type")),
        ("MaxUploads", max_uploads),
        ("IsTruncated", next_marker is not None),
    ]
    if next_marker is not None:
        answer += [
            ("NextKeyMarker", encode(next_marker[0])),
            ("NextUploadIdMarker", next_marker[1] or ""),
        ]
    for upload in found:
        shown: list[xml.XmlElement] = [
            ("Key", encode(upload.key.decode())),
            ("UploadId", upload.upload_id),
            ("Initiator", make_owner_elements(upload.user)),
            ("Owner", make_owner_elements(call.bucket_access.record.owner)),
            ("StorageClass", "STANDARD"),
            ("Initiated", xml.format_timestamp(upload.initiated_at)),
        ]
        answer.append(("Upload", shown))
    answer += [("CommonPrefixes", [("Prefix", encode(group))]) for group in groups]
    return xml_response("ListMultipartUploadsResult", answer)
