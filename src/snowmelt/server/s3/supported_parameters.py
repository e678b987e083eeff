"""Headers and parameters that each operation supports. All others are rejected with their name.

If a request with a condition, an encryption or an owner succeeds, the client assumes that the
server applied it. So every supported name is applied, or has no effect for a reason given here.
Other names get NotImplemented. Names are as sent, headers in lower case. The keys of
SUPPORTED_PARAMETERS are the function names of the operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from snowmelt.buckets.checksums import CHECKSUM_ALGORITHMS, new_hasher, to_checksum
from snowmelt.buckets.errors import S3Error
from snowmelt.server.s3.request_context import AuthorizedS3Request

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


METADATA_HEADER_PREFIX = "x-amz-meta-"
_ENCRYPTION_HEADER_PREFIX = "x-amz-server-side-encryption"
_CUSTOMER_KEY_PREFIXES = (
    f"{_ENCRYPTION_HEADER_PREFIX}-customer-",
    "x-amz-copy-source-server-side-encryption-customer-",
)

# Parameters of presigned URLs, of both signature versions.
SIGNATURE_PARAMETERS = frozenset(
    {
        *("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires"),
        *("X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Security-Token"),
        *("X-Amz-Content-Sha256", "AWSAccessKeyId", "Signature", "Expires"),
    }
)
# Headers about the request itself: signature, encoding of the body, and client.
_REQUEST_HEADERS = frozenset(
    {
        *("x-amz-content-sha256", "x-amz-date", "x-amz-security-token", "x-amz-user-agent"),
        *("x-amz-decoded-content-length", "x-amz-trailer", "x-amz-sdk-checksum-algorithm"),
        *("x-amz-api-version", "x-amz-expected-bucket-owner"),
    }
)
# Conditional headers of HTTP. Ignoring one on a write could overwrite data.
_CONDITION_HEADERS = frozenset(
    {"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"}
)

# Names that have no effect on any operation, with the reason.
IGNORED_HEADERS: Mapping[str, str] = {
    "x-amz-request-payer": "requests cost nothing",
    "x-amz-bypass-governance-retention": "no object is locked",
    "x-amz-te": "a response never ends with the MD5 of its body",
}
# Names with their neutral values. Other values are rejected.
NEUTRAL_HEADER_VALUES: Mapping[str, tuple[frozenset[str], str]] = {
    "x-amz-acl": (
        frozenset({"private", "bucket-owner-full-control", "bucket-owner-read"}),
        "ACLs are not supported: grants in the catalog control access",
    ),
    "x-amz-bucket-namespace": (frozenset({"global"}), "there is one namespace of buckets"),
    "x-amz-bucket-object-lock-enabled": (frozenset({"false"}), "no object is locked"),
    "x-amz-object-lock-legal-hold": (frozenset({"off"}), "no object is locked"),
    "x-amz-object-lock-event-hold": (frozenset({"off"}), "no object is locked"),
    "x-amz-object-ownership": (frozenset({"bucketownerenforced"}), "objects belong to the bucket"),
    "x-amz-optional-object-attributes": (
        frozenset({"restorestatus"}),
        "objects are never archived and have no restore status",
    ),
    "x-amz-storage-class": (frozenset({"standard"}), "there is one class"),
    "x-amz-tagging": (frozenset({""}), "there are no tags"),
    "x-amz-tagging-directive": (frozenset({"copy"}), "there are no tags"),
    "x-amz-object-annotation-directive": (
        frozenset({"copy", "exclude"}),
        "there are no annotations",
    ),
    f"{_ENCRYPTION_HEADER_PREFIX}-bucket-key-enabled": (
        frozenset({"false"}),
        "nothing is encrypted with keys",
    ),
}
_STORAGE_HEADERS = frozenset(
    {
        *("x-amz-acl", "x-amz-object-lock-legal-hold", "x-amz-object-lock-event-hold"),
        *(
            "x-amz-storage-class",
            "x-amz-tagging",
            f"{_ENCRYPTION_HEADER_PREFIX}-bucket-key-enabled",
        ),
    }
)

_CHECKSUM_HEADERS = frozenset(f"x-amz-checksum-{each.lower()}" for each in CHECKSUM_ALGORITHMS)
# The AWS SDK for Java sends the checksum of the empty body with operations that have no body.
_EMPTY_BODY_CHECKSUMS = {
    checksum.header_name: checksum.value
    for checksum in (to_checksum(each, new_hasher(each)) for each in CHECKSUM_ALGORITHMS)
}
_READ_PARAMETERS = frozenset(
    {
        *_CONDITION_HEADERS,
        *("range", "if-range", "x-amz-checksum-mode", "versionId", "partNumber"),
        *(f"response-{each}" for each in ("cache-control", "content-disposition")),
        *(f"response-{each}" for each in ("content-encoding", "content-language")),
        *(f"response-{each}" for each in ("content-type", "expires")),
    }
)
_COPY_HEADERS = frozenset(
    {
        "x-amz-copy-source",
        *(f"x-amz-copy-source-{each}" for each in _CONDITION_HEADERS),
        "x-amz-source-expected-bucket-owner",
    }
)
_WRITE_CONDITION_HEADERS = frozenset({"if-match", "if-none-match"})
_LISTING_PARAMETERS = frozenset({"prefix", "delimiter", "encoding-type"})
_ATTRIBUTE_HEADERS = frozenset({"x-amz-optional-object-attributes"})

# For each operation: names that it applies, and names that it accepts with a neutral value.
SUPPORTED_PARAMETERS: Mapping[str, frozenset[str]] = {
    "list_buckets": frozenset({"prefix", "continuation-token", "max-buckets", "bucket-region"}),
    "create_bucket": frozenset(
        {
            *("x-amz-acl", "x-amz-bucket-object-lock-enabled", "x-amz-object-ownership"),
            *("x-amz-bucket-namespace",),
        }
        | _CHECKSUM_HEADERS
    ),
    "head_bucket": frozenset(),
    "delete_bucket": frozenset(),
    "get_location": frozenset({"location"}),
    "get_versioning": frozenset({"versioning"}),
    "list_objects": _LISTING_PARAMETERS | _ATTRIBUTE_HEADERS | {"marker", "max-keys"},
    "list_objects_v2": _LISTING_PARAMETERS
    | _ATTRIBUTE_HEADERS
    | {"list-type", "max-keys", "continuation-token", "fetch-owner", "start-after"},
    "list_versions": _LISTING_PARAMETERS
    | _ATTRIBUTE_HEADERS
    | {"versions", "max-keys", "key-marker", "version-id-marker"},
    "list_uploads": _LISTING_PARAMETERS
    | {"uploads", "max-uploads", "key-marker", "upload-id-marker"},
    "delete_objects": frozenset({"delete"}) | _CHECKSUM_HEADERS,
    "get_object": _READ_PARAMETERS,
    "head_object": _READ_PARAMETERS,
    "put_object": _WRITE_CONDITION_HEADERS | _CHECKSUM_HEADERS | _STORAGE_HEADERS,
    "copy_object": _WRITE_CONDITION_HEADERS
    | _COPY_HEADERS
    | _STORAGE_HEADERS
    | {
        *("x-amz-metadata-directive", "x-amz-tagging-directive", "x-amz-checksum-algorithm"),
        "x-amz-object-annotation-directive",
    },
    "upload_part": _CHECKSUM_HEADERS | {"partNumber", "uploadId"},
    "upload_part_copy": _COPY_HEADERS | {"partNumber", "uploadId", "x-amz-copy-source-range"},
    "delete_object": frozenset(
        {
            *("versionId", "if-match"),
            *("x-amz-if-match-size", "x-amz-if-match-last-modified-time"),
        }
    ),
    "create_upload": _STORAGE_HEADERS
    | {"uploads", "x-amz-checksum-algorithm", "x-amz-checksum-type"},
    "complete_upload": _WRITE_CONDITION_HEADERS
    | _CHECKSUM_HEADERS
    | {"uploadId", "x-amz-checksum-type", "x-amz-mp-object-size"},
    "abort_upload": frozenset({"uploadId", "x-amz-if-match-initiated-time"}),
    "list_parts": frozenset({"uploadId", "max-parts", "part-number-marker", "encoding-type"}),
    "selected": frozenset({"select", "select-type", "versionId"}) | _CHECKSUM_HEADERS,
}
_METADATA_OPERATIONS = frozenset({"put_object", "copy_object", "create_upload"})
# Child elements of XML bodies, by the name of the parent element.
SUPPORTED_XML_ELEMENTS: Mapping[str, frozenset[str]] = {
    "Delete": frozenset({"Object", "Quiet"}),
    "Object": frozenset({"Key", "VersionId", "ETag", "LastModifiedTime", "Size"}),
    "CompleteMultipartUpload": frozenset({"Part"}),
    "Part": frozenset({"PartNumber", "ETag", *(f"Checksum{each}" for each in CHECKSUM_ALGORITHMS)}),
    "CreateBucketConfiguration": frozenset({"LocationConstraint"}),
}


def reject_unsupported_parameters(
    call: AuthorizedS3Request, operation: str, *, stores_object: bool
) -> None:
    """Verify that every header and parameter of a request is supported.

    Raises:
        S3Error: If one is not supported: NotImplemented with its name. If an operation that stores
            nothing has a customer encryption key: InvalidRequest, as for unencrypted objects in S3.
    """
    heeded = SUPPORTED_PARAMETERS[operation]
    for name, value in _list_requested_parameters(call):
        if name in heeded or name in _REQUEST_HEADERS or name in IGNORED_HEADERS:
            _check_neutral_value(name, value)
        elif (
            name.startswith(METADATA_HEADER_PREFIX) and operation in _METADATA_OPERATIONS
        ) or _EMPTY_BODY_CHECKSUMS.get(name) == value:
            continue
        elif name.startswith(_CUSTOMER_KEY_PREFIXES):
            _reject_customer_encryption_key(name, stores_object=stores_object)
        else:
            raise _unsupported_error(name, value)
    _check_expected_owner(call)


def reject_unsupported_elements(element: Element) -> None:
    """Verify that every descendant of an element is supported.

    Raises:
        S3Error: If one is not supported: NotImplemented with the name.
    """
    known = SUPPORTED_XML_ELEMENTS.get(element.tag)
    if known is None:
        return
    for child in element:
        if child.tag not in known:
            raise S3Error("NotImplemented", f"<{child.tag}> in <{element.tag}> is not supported.")
        reject_unsupported_elements(child)


def _list_requested_parameters(call: AuthorizedS3Request) -> Iterator[tuple[str, str]]:
    """Yield the names of S3 headers, conditional headers and parameters of a request."""
    for name, value in call.headers.items():
        if name.startswith("x-amz-") or name in _CONDITION_HEADERS:
            yield name, value
    for name, value in call.query.items():
        # Parameters with x- are only for access logs. S3 ignores them.
        if name not in SIGNATURE_PARAMETERS and not name.lower().startswith("x-"):
            yield name, value


def _check_neutral_value(name: str, value: str) -> None:
    harmless = NEUTRAL_HEADER_VALUES.get(name)
    if harmless is not None and value.strip().lower() not in harmless[0]:
        raise _unsupported_error(name, value)


def _reject_customer_encryption_key(name: str, *, stores_object: bool) -> None:
    if stores_object and not name.startswith("x-amz-copy-source-"):
        # The response must not contain the key.
        raise S3Error("NotImplemented", f"{name} is not supported.")
    raise S3Error(
        "InvalidRequest",
        "The encryption parameters are not applicable to this object: none is encrypted "
        "with a key of its caller (SSE-C) here.",
    )


def _unsupported_error(name: str, value: str) -> S3Error:
    return S3Error("NotImplemented", f"{name}: {value[:60]} is not supported.", Header=name)


def _check_expected_owner(call: AuthorizedS3Request) -> None:
    """Verify that the bucket has the expected owner. An owner has the name that listings return."""
    wanted = call.headers.get("x-amz-expected-bucket-owner")
    if (
        wanted is not None
        and call.optional_bucket_access is not None
        and call.optional_bucket_access.record.owner != wanted
    ):
        raise S3Error("AccessDenied", "The bucket does not belong to the expected owner.")
