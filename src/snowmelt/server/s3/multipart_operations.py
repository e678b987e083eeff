"""Operations that begin, end and list uploads in parts."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from snowmelt.buckets import checksums
from snowmelt.buckets.checksums import Checksum
from snowmelt.buckets.errors import S3Error
from snowmelt.buckets.multipart import CompletedPart, ExpectedObject, compute_multipart_etag
from snowmelt.server.s3 import xml as markup
from snowmelt.server.s3.body import receive_whole, signed_body
from snowmelt.server.s3.bucket_operations import encoder_of, number_of
from snowmelt.server.s3.conditions import time_of, write_condition
from snowmelt.server.s3.object_operations import headers_to_keep
from snowmelt.server.s3.responses import Answer, xml_answer
from snowmelt.server.s3.supported_parameters import check_document

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from starlette.types import ASGIApp, Receive

    from snowmelt.buckets.bucket import ObjectMetadata
    from snowmelt.catalog.objects.s3_objects import PartRecord, UploadRecord
    from snowmelt.server.s3.request_context import AuthorisedRequest

_MOST_LIST_BYTES = 4 * 1024 * 1024
_CHUNK = 1000
_MOST_DIGITS = 20


async def create_upload(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """CreateMultipartUpload."""
    del receive
    checksum = _announced(call)
    headers = headers_to_keep(call)
    upload = await call.run(call.parts.uploads.begin, call.visit, call.key, headers, checksum)
    answer: list[markup.Element] = [
        ("Bucket", call.visit.record.name),
        ("Key", call.key),
        ("UploadId", upload.upload_id),
    ]
    told = {}
    if checksum is not None:
        told = {
            "x-amz-checksum-algorithm": checksum.algorithm,
            "x-amz-checksum-type": checksum.kind,
        }
    return xml_answer("InitiateMultipartUploadResult", answer, told)


async def complete_upload(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """CompleteMultipartUpload."""
    body = await receive_whole(receive, most=_MOST_LIST_BYTES)
    return await call.run(_complete, call, body)


async def abort_upload(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """AbortMultipartUpload."""
    del receive
    uploads = call.parts.uploads
    upload = await call.run(uploads.find, call.visit, call.key, call.query["uploadId"])
    initiated = call.headers.get("x-amz-if-match-initiated-time")
    if initiated is not None and time_of("initiated time", initiated) != (
        upload.initiated_at.replace(microsecond=0)
    ):
        raise S3Error("PreconditionFailed", Condition="x-amz-if-match-initiated-time")
    await call.run(uploads.abort, upload)
    return Answer(HTTPStatus.NO_CONTENT)


async def list_parts(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """ListParts."""
    del receive
    return await call.run(_parts, call)


async def list_uploads(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """ListMultipartUploads."""
    del receive
    return await call.run(_uploads, call)


def _announced(call: AuthorisedRequest) -> Checksum | None:
    algorithm = checksums.parse_algorithm(call.headers.get("x-amz-checksum-algorithm"))
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


def _complete(call: AuthorisedRequest, body: bytes) -> ASGIApp:
    # The headers' checksum is of the object, not of this body.
    root = markup.parse(signed_body(call, body), "CompleteMultipartUpload")
    check_document(root)
    named = [_named(part) for part in root.findall("Part")]
    uploads = call.parts.uploads
    try:
        upload = uploads.find(call.visit, call.key, call.query["uploadId"])
        facts = uploads.complete(
            call.visit,
            upload,
            named,
            expected=_promised(call),
            condition=write_condition(call.headers),
        )
    except S3Error as error:
        done = _completed_before(call, named) if error.s3_code == "NoSuchUpload" else None
        if done is None:
            raise
        facts = done
    answer: list[markup.Element] = [
        ("Location", f"/{call.visit.record.name}/{call.key}"),
        ("Bucket", call.visit.record.name),
        ("Key", call.key),
        ("ETag", f'"{facts.etag}"'),
    ]
    if facts.checksum is not None:
        answer.append((f"Checksum{facts.checksum.algorithm}", facts.checksum.value))
        answer.append(("ChecksumType", facts.checksum.kind))
    return xml_answer("CompleteMultipartUploadResult", answer)


def _completed_before(call: AuthorisedRequest, named: list[CompletedPart]) -> ObjectMetadata | None:
    """Return the object if exactly these parts made it: the answer was lost on its way."""
    try:
        facts = call.visit.bucket.head(call.key)
        return (
            facts if facts.etag == compute_multipart_etag([part.etag for part in named]) else None
        )
    except (S3Error, ValueError):
        return None


def _named(part: Element) -> CompletedPart:
    number, etag = part.findtext("PartNumber"), part.findtext("ETag")
    if number is None or etag is None or not number.strip().isdecimal():
        raise S3Error("MalformedXML")
    found = None
    for algorithm in checksums.CHECKSUM_ALGORITHMS:
        value = part.findtext(f"Checksum{algorithm}")
        if value is not None:
            found = checksums.parse_client_checksum(algorithm, value.strip())
    return CompletedPart(int(number), etag.strip().strip('"').lower(), found)


def _promised(call: AuthorisedRequest) -> ExpectedObject:
    size = call.headers.get("x-amz-mp-object-size")
    if size is not None and (not size.isdecimal() or len(size) > _MOST_DIGITS):
        raise S3Error("InvalidRequest", "x-amz-mp-object-size must be a number of bytes.")
    kind = call.headers.get("x-amz-checksum-type")
    found = [
        Checksum(algorithm, call.headers[name].strip())
        for algorithm in checksums.CHECKSUM_ALGORITHMS
        if (name := f"x-amz-checksum-{algorithm.lower()}") in call.headers
    ]
    if len(found) > 1:
        raise S3Error(
            "InvalidRequest",
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
        )
    return ExpectedObject(
        checksum=found[0] if found else None,
        kind=None if kind is None else kind.upper(),
        size=None if size is None else int(size),
    )


def _parts(call: AuthorisedRequest) -> ASGIApp:
    uploads = call.parts.uploads
    upload = uploads.find(call.visit, call.key, call.query["uploadId"])
    marker = number_of(call.query, "part-number-marker", 0, 10_000)
    most = number_of(call.query, "max-parts", _CHUNK, _CHUNK)
    beyond = [part for part in uploads.list_parts(upload) if part.number > marker]
    page = beyond[:most]
    encode = encoder_of(call.query)
    answer: list[markup.Element] = [
        ("Bucket", call.visit.record.name),
        ("Key", encode(call.key)),
        ("UploadId", upload.upload_id),
        ("Initiator", person(upload.user)),
        ("Owner", person(call.visit.record.owner)),
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
    answer += [("Part", _part(part)) for part in page]
    return xml_answer("ListPartsResult", answer)


def _part(part: PartRecord) -> list[markup.Element]:
    shown: list[markup.Element] = [
        ("PartNumber", part.number),
        ("LastModified", markup.instant(part.modified_at)),
        ("ETag", f'"{part.etag}"'),
        ("Size", part.size),
    ]
    if part.checksum is not None:
        checksum = Checksum.parse(part.checksum)
        shown.append((f"Checksum{checksum.algorithm}", checksum.value))
    return shown


def _uploads(call: AuthorisedRequest) -> ASGIApp:
    query = call.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    call.visit.require_privilege("WRITE", prefix)
    most = number_of(query, "max-uploads", _CHUNK, _CHUNK)
    key_marker = query.get("key-marker", "")
    # S3 passes over an upload marker without a key marker.
    id_marker = query.get("upload-id-marker") if key_marker else None
    found: list[UploadRecord] = []
    groups: dict[str, None] = {}
    after: tuple[str, str | None] = (key_marker, id_marker)
    truncated = False
    while not truncated:
        page = call.parts.uploads.list_uploads(call.visit, prefix, after, _CHUNK)
        for upload in page:
            key = upload.key.decode()
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            group = None if at < 0 else key[: at + len(delimiter)]
            if group is not None and (group in groups or group == key_marker):
                continue
            if len(found) + len(groups) == most:
                truncated = True
                break
            after = (key, upload.upload_id)
            if group is None:
                found.append(upload)
            else:
                groups[group] = None
        if len(page) < _CHUNK:
            break
        if not truncated:
            after = (page[-1].key.decode(), page[-1].upload_id)
    return _uploads_answer(call, (found, list(groups)), most, after if truncated else None)


def _uploads_answer(
    call: AuthorisedRequest,
    entries: tuple[list[UploadRecord], list[str]],
    most: int,
    following: tuple[str, str | None] | None,
) -> ASGIApp:
    query, encode = call.query, encoder_of(call.query)
    found, groups = entries
    answer: list[markup.Element] = [
        ("Bucket", call.visit.record.name),
        ("KeyMarker", encode(query.get("key-marker", ""))),
        ("UploadIdMarker", query.get("upload-id-marker", "")),
        ("Prefix", encode(query.get("prefix", ""))),
        ("Delimiter", encode(query["delimiter"]) if query.get("delimiter") else None),
        ("EncodingType", query.get("encoding-type")),
        ("MaxUploads", most),
        ("IsTruncated", following is not None),
    ]
    if following is not None:
        answer += [
            ("NextKeyMarker", encode(following[0])),
            ("NextUploadIdMarker", following[1] or ""),
        ]
    for upload in found:
        shown: list[markup.Element] = [
            ("Key", encode(upload.key.decode())),
            ("UploadId", upload.upload_id),
            ("Initiator", person(upload.user)),
            ("Owner", person(call.visit.record.owner)),
            ("StorageClass", "STANDARD"),
            ("Initiated", markup.instant(upload.initiated_at)),
        ]
        answer.append(("Upload", shown))
    answer += [("CommonPrefixes", [("Prefix", encode(group))]) for group in groups]
    return xml_answer("ListMultipartUploadsResult", answer)


def person(name: str) -> list[markup.Element]:
    """Return a user or role as S3 shows an owner."""
    return [("ID", name), ("DisplayName", name)]
