"""Operations on buckets themselves."""

from __future__ import annotations

import base64
import binascii
import re
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from snowmelt.buckets.bucket import ListingPage
from snowmelt.buckets.errors import S3Error
from snowmelt.server.s3 import xml as markup
from snowmelt.server.s3.body import checked_body, receive_whole
from snowmelt.server.s3.responses import Answer, xml_answer
from snowmelt.server.s3.supported_parameters import check_document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Receive

    from snowmelt.buckets.bucket import ListingEntry, ObjectMetadata
    from snowmelt.server.s3.request_context import AuthorisedRequest

# What S3 calls the region that its answers leave without a name.
_UNNAMED_REGION = "us-east-1"
_MOST_BUCKETS = 10_000
_MOST_CONFIGURATION_BYTES = 64 * 1024


async def list_buckets(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """ListBuckets: those in which the user may do anything."""
    del receive
    prefix = call.query.get("prefix")
    after = call.query.get("continuation-token", "")
    most = number_of(call.query, "max-buckets", _MOST_BUCKETS, _MOST_BUCKETS)
    visible = await call.run(call.parts.directory.list_visible, call.user)
    region = call.query.get("bucket-region", region_of(call))
    if region != region_of(call):
        visible = []
    found = sorted(
        (each for each in visible if each.name > after and each.name.startswith(prefix or "")),
        key=lambda each: each.name,
    )
    page = found[:most]
    listed: list[markup.Element] = [
        ("Bucket", [("Name", each.name), ("CreationDate", markup.instant(each.created_at))])
        for each in page
    ]
    owner: list[markup.Element] = [("ID", call.user), ("DisplayName", call.user)]
    answer: list[markup.Element] = [
        ("Owner", owner),
        ("Buckets", listed),
        ("ContinuationToken", page[-1].name if page and len(found) > most else None),
        ("Prefix", prefix),
    ]
    return xml_answer("ListAllMyBucketsResult", answer)


async def create_bucket(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """CreateBucket; again by the owner is fine, as in us-east-1."""
    body = await receive_whole(receive, most=_MOST_CONFIGURATION_BYTES)
    content = checked_body(call, body)
    if content.strip():
        root = markup.parse(content, "CreateBucketConfiguration")
        check_document(root)
        _check_location(call, (root.findtext("LocationConstraint") or "").strip())
    name = call.request.bucket
    try:
        await call.run(call.parts.directory.create, call.user, name)
    except S3Error as error:
        if error.s3_code != "BucketAlreadyOwnedByYou":
            raise
    return Answer(headers={"location": f"/{name}"})


async def head_bucket(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """HeadBucket."""
    del receive
    region = region_of(call)
    return Answer(headers={"x-amz-bucket-region": region, "content-type": "application/xml"})


async def delete_bucket(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """DeleteBucket."""
    del receive
    await call.run(call.parts.directory.drop, call.visit)
    return Answer(HTTPStatus.NO_CONTENT)


async def get_location(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """GetBucketLocation: the region of all buckets; us-east-1 is the one without a name."""
    del receive
    region = region_of(call)
    return xml_answer("LocationConstraint", "" if region == _UNNAMED_REGION else region)


async def get_versioning(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """GetBucketVersioning: it was never enabled."""
    del call, receive
    return xml_answer("VersioningConfiguration", "")


def region_of(call: AuthorisedRequest) -> str:
    """Return the region of all buckets."""
    return call.parts.settings.s3_region or _UNNAMED_REGION


def _check_location(call: AuthorisedRequest, wanted: str) -> None:
    region = region_of(call)
    known = {"", region} | ({"EU"} if region == "eu-west-1" else set())
    if call.parts.settings.s3_region and wanted not in known:
        raise S3Error(
            "IllegalLocationConstraintException",
            f"The {wanted[:60]} location constraint is incompatible for the region specific "
            f"endpoint this request was sent to; this one is {region}.",
        )


# --- Operations that list objects: in both forms of S3, and as versions, of which each has one.

_MOST_KEYS = 1000
# What decoding would change, and what XML cannot say.
_NEEDS_ENCODING = re.compile("[%+\x00-\x08\x0b\x0c\x0e-\x1f]")


async def list_objects(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """ListObjects, the first form."""
    del receive
    return await call.run(_list_v1, call)


async def list_objects_v2(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """ListObjectsV2."""
    del receive
    return await call.run(_list_v2, call)


async def list_versions(call: AuthorisedRequest, receive: Receive) -> ASGIApp:
    """ListObjectVersions: one version each, `null`."""
    del receive
    return await call.run(_list_versions, call)


def encoder_of(query: Mapping[str, str]) -> Callable[[str], str]:
    """Return how keys are written in this answer.

    Raises:
        S3Refusal: There is no such encoding.
    """
    encoding = query.get("encoding-type")
    if encoding is None:
        return lambda text: text
    if encoding != "url":
        raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request.")
    return lambda text: quote(text, safe="/-_.~*")


def number_of(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    """Return a number of the address, at most `most`.

    Raises:
        S3Refusal: It is no number.
    """
    text = query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 10:
        raise S3Error("InvalidArgument", f"{name} must be a number.", ArgumentName=name)
    return min(int(text), most)


def _list_v1(call: AuthorisedRequest) -> ASGIApp:
    query, encode = call.query, encoder_of(call.query)
    marker = query.get("marker", "")
    most, page = _page(call, marker)
    answer: list[markup.Element] = [
        *_common(call, most, page, prefix=_prefix_v1(call)),
        ("Marker", encode(marker)),
        # S3 tells it with a delimiter only; everybody may know.
        ("NextMarker", encode(page.last_entry) if page.truncated else None),
        *_entries(call, page, owners=True),
    ]
    return xml_answer("ListBucketResult", answer)


def _list_v2(call: AuthorisedRequest) -> ASGIApp:
    query, encode = call.query, encoder_of(call.query)
    token, start_after = query.get("continuation-token"), query.get("start-after", "")
    most, page = _page(call, start_after if token is None else _from_token(token))
    answer: list[markup.Element] = [
        *_common(call, most, page),
        ("KeyCount", len(page.entries)),
        ("ContinuationToken", token),
        ("NextContinuationToken", _token(page.last_entry) if page.truncated else None),
        ("StartAfter", encode(start_after) if start_after else None),
        *_entries(call, page, owners=query.get("fetch-owner") == "true"),
    ]
    return xml_answer("ListBucketResult", answer)


def _list_versions(call: AuthorisedRequest) -> ASGIApp:
    query, encode = call.query, encoder_of(call.query)
    marker = query.get("key-marker", "")
    version = query.get("version-id-marker", "")
    if version and not marker:
        raise S3Error(
            "InvalidArgument", "A version-id marker cannot be specified without a key marker."
        )
    if version not in {"", "null"}:
        raise S3Error(
            "InvalidArgument",
            "Invalid version id specified",
            ArgumentName="version-id-marker",
            ArgumentValue=version[:60],
        )
    most, page = _page(call, marker)
    answer: list[markup.Element] = [
        *_common(call, most, page),
        ("KeyMarker", encode(marker)),
        ("VersionIdMarker", query.get("version-id-marker", "")),
    ]
    if page.truncated:
        answer += [("NextKeyMarker", encode(page.last_entry)), ("NextVersionIdMarker", "null")]
    answer += _entries(call, page, owners=True, name="Version")
    return xml_answer("ListVersionsResult", answer)


def _page(call: AuthorisedRequest, after: str) -> tuple[int, ListingPage]:
    query = call.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    call.visit.require_privilege("READ", prefix)
    most = number_of(query, "max-keys", _MOST_KEYS, _MOST_KEYS)
    if most == 0:
        return 0, ListingPage((), truncated=False)
    page = call.visit.bucket.list_page(prefix, delimiter=delimiter, after=after, limit=most)
    return most, page


def _prefix_v1(call: AuthorisedRequest) -> str:
    """Return the prefix as answers of the first form show it.

    botocore does not decode it there, other clients do: it is encoded only where that matters.
    """
    prefix = call.query.get("prefix", "")
    is_plain = not _NEEDS_ENCODING.search(prefix)
    return prefix if is_plain else encoder_of(call.query)(prefix)


def _common(
    call: AuthorisedRequest, most: int, page: ListingPage, *, prefix: str | None = None
) -> list[markup.Element]:
    query, encode = call.query, encoder_of(call.query)
    delimiter = query.get("delimiter")
    return [
        ("Name", call.visit.record.name),
        ("Prefix", encode(query.get("prefix", "")) if prefix is None else prefix),
        ("MaxKeys", most),
        ("Delimiter", encode(delimiter) if delimiter else None),
        ("EncodingType", query.get("encoding-type")),
        ("IsTruncated", page.truncated),
    ]


def _entries(
    call: AuthorisedRequest, page: ListingPage, *, owners: bool, name: str = "Contents"
) -> list[markup.Element]:
    encode = encoder_of(call.query)
    owner = call.visit.record.owner if owners else None
    return [_entry(each, encode, owner, name) for each in page.entries]


def _entry(
    each: ListingEntry, encode: Callable[[str], str], owner: str | None, name: str
) -> markup.Element:
    if isinstance(each, str):
        return "CommonPrefixes", [("Prefix", encode(each))]
    shown: list[markup.Element] = [("Key", encode(each.key))]
    if name == "Version":
        shown += [("VersionId", "null"), ("IsLatest", True)]
    shown += _facts(each)
    if owner is not None:
        shown.append(("Owner", [("ID", owner), ("DisplayName", owner)]))
    return name, shown


def _facts(facts: ObjectMetadata) -> list[markup.Element]:
    shown: list[markup.Element] = [
        ("LastModified", markup.instant(facts.modified_at)),
        ("ETag", f'"{facts.etag}"'),
        ("Size", facts.size),
        ("StorageClass", "STANDARD"),
    ]
    if facts.checksum is not None:
        shown.append(("ChecksumAlgorithm", facts.checksum.algorithm))
        shown.append(("ChecksumType", facts.checksum.kind))
    return shown


def _token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def _from_token(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise S3Error("InvalidArgument", "The continuation token provided is incorrect.") from None
