"""S3 operations on buckets, and listings of objects and versions.

Every object has exactly one version, `null`. `endpoint` and `supported_parameters` identify
operations by their function names.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from snowmelt.buckets.bucket import ListingEntry, ListingPage
from snowmelt.buckets.errors import S3Error
from snowmelt.server.s3 import xml
from snowmelt.server.s3.body import decode_and_verify_body, receive_small_body
from snowmelt.server.s3.request_context import AuthorizedS3Request, blocking_operation
from snowmelt.server.s3.responses import S3Response, make_owner_elements, xml_response
from snowmelt.server.s3.supported_parameters import reject_unsupported_elements
from snowmelt.storage.store import find_common_prefix

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive


# The region for which S3 returns an empty name.
_DEFAULT_REGION = "us-east-1"
_MAX_LISTED_BUCKETS = 10_000
_MAX_CONFIGURATION_BYTES = 64 * 1024


async def list_buckets(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """ListBuckets: return the buckets on which the user has any privilege."""
    del receive
    prefix = call.query.get("prefix")
    after = call.query.get("continuation-token", "")
    most = parse_integer_parameter(
        call.query, "max-buckets", _MAX_LISTED_BUCKETS, _MAX_LISTED_BUCKETS
    )
    visible = await call.run_in_thread(call.components.bucket_registry.list_visible, call.user)
    region = call.query.get("bucket-region", get_region(call))
    if region != get_region(call):
        visible = []
    found = sorted(
        (each for each in visible if each.name > after and each.name.startswith(prefix or "")),
        key=lambda each: each.name,
    )
    page = found[:most]
    listed: list[xml.XmlElement] = [
        (
            "Bucket",
            [("Name", each.name), ("CreationDate", xml.format_timestamp(each.created_at))],
        )
        for each in page
    ]
    answer: list[xml.XmlElement] = [
        ("Owner", make_owner_elements(call.user)),
        ("Buckets", listed),
        ("ContinuationToken", page[-1].name if page and len(found) > most else None),
        ("Prefix", prefix),
    ]
    return xml_response("ListAllMyBucketsResult", answer)


async def create_bucket(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """CreateBucket. Succeeds if the user already owns the bucket, as in us-east-1."""
    body = await receive_small_body(receive, max_bytes=_MAX_CONFIGURATION_BYTES)
    content = decode_and_verify_body(call, body)
    if content.strip():
        root = xml.parse_document(content, "CreateBucketConfiguration")
        reject_unsupported_elements(root)
        _check_location_constraint(call, (root.findtext("LocationConstraint") or "").strip())
    name = call.request.bucket
    try:
        await call.run_in_thread(call.components.bucket_registry.create, call.user, name)
    except S3Error as error:
        if error.s3_code != "BucketAlreadyOwnedByYou":
            raise
    return S3Response(headers={"location": f"/{name}"})


async def head_bucket(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """HeadBucket."""
    del receive
    region = get_region(call)
    return S3Response(headers={"x-amz-bucket-region": region, "content-type": "application/xml"})


async def delete_bucket(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """DeleteBucket."""
    del receive
    await call.run_in_thread(call.components.bucket_registry.drop, call.bucket_access)
    return S3Response(HTTPStatus.NO_CONTENT)


async def get_location(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """GetBucketLocation: return the region of all buckets, which is empty for us-east-1."""
    del receive
    region = get_region(call)
    return xml_response("LocationConstraint", "" if region == _DEFAULT_REGION else region)


async def get_versioning(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
    """GetBucketVersioning: versioning is never enabled."""
    del call, receive
    return xml_response("VersioningConfiguration", "")


def get_region(call: AuthorizedS3Request) -> str:
    """Return the region of all buckets."""
    return call.components.settings.s3_region or _DEFAULT_REGION


def _check_location_constraint(call: AuthorizedS3Request, requested_region: str) -> None:
    region = get_region(call)
    known = {"", region} | ({"EU"} if region == "eu-west-1" else set())
    if call.components.settings.s3_region and requested_region not in known:
        raise S3Error(
            "IllegalLocationConstraintException",
            f"The {requested_region[:60]} location constraint is incompatible for the region specific "
            f"endpoint this request was sent to; this one is {region}.",
        )


_MAX_LISTED_KEYS = 1000
# Characters that URL decoding changes or XML cannot represent.
_UNSAFE_CHARACTERS_PATTERN = re.compile("[%+\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def make_key_encoder(query: Mapping[str, str]) -> Callable[[str], str]:
    """Return the function that encodes keys in the response to a request.

    Raises:
        S3Error: If the requested encoding is unknown.
    """
    encoding = query.get("encoding-type")
    if encoding is None:
        return lambda text: text
    if encoding != "url":
        raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request.")
    return lambda text: quote(text, safe="/-_.~*")


def parse_integer_parameter(query: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    """Parse an integer query parameter. Values above `maximum` are reduced to it.

    Raises:
        S3Error: If the value is not a number.
    """
    text = query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 10:
        raise S3Error("InvalidArgument", f"{name} must be a number.", ArgumentName=name)
    return min(int(text), maximum)


@blocking_operation
def list_objects(call: AuthorizedS3Request) -> ASGIApp:
    """ListObjects, version 1."""
    query, encode = call.query, make_key_encoder(call.query)
    marker = query.get("marker", "")
    most, page = _read_listing_page(call, marker)
    answer: list[xml.XmlElement] = [
        *_make_common_elements(call, most, page, prefix=_display_prefix_v1(call)),
        ("Marker", encode(marker)),
        # S3 returns NextMarker only with a delimiter. Returning it always is compatible.
        ("NextMarker", encode(page.last_key_or_prefix) if page.truncated else None),
        *_make_entry_elements(call, page, with_owners=True),
    ]
    return xml_response("ListBucketResult", answer)


@blocking_operation
def list_objects_v2(call: AuthorizedS3Request) -> ASGIApp:
    """ListObjectsV2."""
    query, encode = call.query, make_key_encoder(call.query)
    token, start_after = query.get("continuation-token"), query.get("start-after", "")
    after = start_after
    if after == find_common_prefix(after, query.get("prefix", ""), query.get("delimiter", "")):
        # It is a key here, and later keys may be in the common prefix. No key contains NUL. A
        # continuation token that is a common prefix excludes it.
        after += "\0"
    most, page = _read_listing_page(
        call, after if token is None else _decode_continuation_token(token)
    )
    next_token = None
    if page.truncated:
        next_token = base64.urlsafe_b64encode(page.last_key_or_prefix.encode()).decode()
    answer: list[xml.XmlElement] = [
        *_make_common_elements(call, most, page),
        ("KeyCount", len(page.entries)),
        ("ContinuationToken", token),
        ("NextContinuationToken", next_token),
        ("StartAfter", encode(start_after) if start_after else None),
        *_make_entry_elements(call, page, with_owners=query.get("fetch-owner") == "true"),
    ]
    return xml_response("ListBucketResult", answer)


@blocking_operation
def list_versions(call: AuthorizedS3Request) -> ASGIApp:
    """ListObjectVersions: return one version per object, `null`."""
    query, encode = call.query, make_key_encoder(call.query)
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
    most, page = _read_listing_page(call, marker)
    answer: list[xml.XmlElement] = [
        *_make_common_elements(call, most, page),
        ("KeyMarker", encode(marker)),
        ("VersionIdMarker", query.get("version-id-marker", "")),
    ]
    if page.truncated:
        answer += [
            ("NextKeyMarker", encode(page.last_key_or_prefix)),
            ("NextVersionIdMarker", "null"),
        ]
    answer += _make_entry_elements(call, page, with_owners=True, element_name="Version")
    return xml_response("ListVersionsResult", answer)


def _read_listing_page(call: AuthorizedS3Request, after: str) -> tuple[int, ListingPage]:
    query = call.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    call.bucket_access.require_privilege("READ", prefix)
    most = parse_integer_parameter(query, "max-keys", _MAX_LISTED_KEYS, _MAX_LISTED_KEYS)
    if most == 0:
        return 0, ListingPage((), truncated=False)
    page = call.bucket_access.bucket.list_page(prefix, delimiter=delimiter, after=after, limit=most)
    return most, page


def _display_prefix_v1(call: AuthorizedS3Request) -> str:
    """Return the prefix in the form that responses of ListObjects version 1 have.

    botocore does not decode it in these responses, but other clients do. So it is only encoded if
    it contains characters that need it.
    """
    prefix = call.query.get("prefix", "")
    is_plain = not _UNSAFE_CHARACTERS_PATTERN.search(prefix)
    return prefix if is_plain else make_key_encoder(call.query)(prefix)


def _make_common_elements(
    call: AuthorizedS3Request, max_keys: int, page: ListingPage, *, prefix: str | None = None
) -> list[xml.XmlElement]:
    query, encode = call.query, make_key_encoder(call.query)
    delimiter = query.get("delimiter")
    return [
        ("Name", call.bucket_access.record.name),
        ("Prefix", encode(query.get("prefix", "")) if prefix is None else prefix),
        ("MaxKeys", max_keys),
        ("Delimiter", encode(delimiter) if delimiter else None),
        ("EncodingType", query.get("encoding-type")),
        ("IsTruncated", page.truncated),
    ]


def _make_entry_elements(
    call: AuthorizedS3Request,
    page: ListingPage,
    *,
    with_owners: bool,
    element_name: str = "Contents",
) -> list[xml.XmlElement]:
    encode = make_key_encoder(call.query)
    owner = call.bucket_access.record.owner if with_owners else None
    return [_make_entry_element(each, encode, owner, element_name) for each in page.entries]


def _make_entry_element(
    entry: ListingEntry, encode: Callable[[str], str], owner: str | None, element_name: str
) -> xml.XmlElement:
    if isinstance(entry, str):
        return "CommonPrefixes", [("Prefix", encode(entry))]
    shown: list[xml.XmlElement] = [("Key", encode(entry.key))]
    if element_name == "Version":
        shown += [("VersionId", "null"), ("IsLatest", True)]
    shown += [
        ("LastModified", xml.format_timestamp(entry.modified_at)),
        ("ETag", f'"{entry.etag}"'),
        ("Size", entry.size),
        ("StorageClass", "STANDARD"),
    ]
    if entry.checksum is not None:
        shown.append(("ChecksumAlgorithm", entry.checksum.algorithm))
        shown.append(("ChecksumType", entry.checksum.kind))
    if owner is not None:
        shown.append(("Owner", make_owner_elements(owner)))
    return element_name, shown


def _decode_continuation_token(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise S3Error("InvalidArgument", "The continuation token provided is incorrect.") from None
