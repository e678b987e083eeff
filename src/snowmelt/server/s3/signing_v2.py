"""Presigned addresses of signature version 2, which boto3 and the AWS CLI still make by default.

Source: AWS, "Signing and authenticating REST requests", query string authentication. Version 2 in
the Authorization header is not taken: no client of today sends it.
"""

from __future__ import annotations

import base64
import datetime as dt
import hmac
from typing import TYPE_CHECKING

from snowmelt.buckets.refusals import S3Refusal
from snowmelt.server.s3.requests import pairs_of

if TYPE_CHECKING:
    from snowmelt.server.s3.requests import Request

_MOST_DIGITS = 11
_XML_TIME = "%Y-%m-%dT%H:%M:%SZ"
# The parameters that are signed; the others do not count.
_SIGNED = frozenset(
    {
        *("accelerate", "acl", "analytics", "cors", "delete", "inventory", "lifecycle", "location"),
        *("logging", "metrics", "notification", "object-lock", "partNumber", "policy", "restore"),
        *("replication", "requestPayment", "select", "select-type", "storageClass", "tagging"),
        *("torrent", "uploadId", "uploads", "versionId", "versioning", "versions", "website"),
        *("response-cache-control", "response-content-disposition", "response-content-encoding"),
        *("response-content-language", "response-content-type", "response-expires"),
    }
)


def access_key_id_of(request: Request) -> str | None:
    """Return the access key id of an address presigned in version 2, None for any other request."""
    if "authorization" in request.headers or "Signature" not in request.query:
        return None
    return request.query.get("AWSAccessKeyId")


def check(request: Request, secret: str, now: dt.datetime) -> None:
    """Let pass an address that is still valid, and whose signature this secret makes.

    Raises:
        S3Refusal: It has expired, or the signature is another.
    """
    expires = request.query.get("Expires", "")
    if not expires.isdecimal() or len(expires) > _MOST_DIGITS:
        raise S3Refusal("AccessDenied", "Query-string authentication of version 2 needs Expires.")
    if now.timestamp() > int(expires):
        ended = dt.datetime.fromtimestamp(int(expires), dt.UTC)
        raise S3Refusal(
            "AccessDenied",
            "Request has expired",
            Expires=ended.strftime(_XML_TIME),
            ServerTime=now.strftime(_XML_TIME),
        )
    text = _string_to_sign(request, expires)
    digest = hmac.digest(secret.encode(), text.encode("utf-8"), "sha1")
    expected = base64.b64encode(digest).decode()
    if not hmac.compare_digest(expected.encode(), request.query["Signature"].encode()):
        raise S3Refusal("SignatureDoesNotMatch", StringToSign=text)


def _string_to_sign(request: Request, expires: str) -> str:
    headers = request.headers
    lines = [
        request.method,
        headers.get("content-md5", ""),
        headers.get("content-type", ""),
        expires,
    ]
    lines += [
        f"{name}:{headers[name].strip()}" for name in sorted(headers) if name.startswith("x-amz-")
    ]
    signed = sorted(
        (name, value) for name, value in pairs_of(request.query_text) if name in _SIGNED
    )
    query = "&".join(f"{name}={value}" if value else name for name, value in signed)
    return "\n".join(lines) + "\n" + _resource(request) + (f"?{query}" if query else "")


def _resource(request: Request) -> str:
    return f"/{request.bucket}{request.path}" if request.in_host else request.path
