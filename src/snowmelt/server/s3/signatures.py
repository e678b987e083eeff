"""Signature version 4: what was signed, and whether the signature holds. No input or output.

Source: AWS, "Signature Version 4 signing process" and "Signature calculations for the
Authorization header", with S3's own rule: paths are encoded once and never normalised.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

from snowmelt.buckets.errors import S3Error
from snowmelt.server.s3.request import pairs_of

if TYPE_CHECKING:
    from snowmelt.server.s3.request import Request

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
MAX_SKEW = dt.timedelta(minutes=15)
MAX_LIFETIME_S = 7 * 24 * 3600

_HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"
_STAMP = "%Y%m%dT%H%M%SZ"
_XML_TIME = "%Y-%m-%dT%H:%M:%SZ"
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_BLANKS = re.compile(r" +")
# A request need not sign these of its `x-amz-` headers: they change nothing that is done.
_NEED_NOT_BE_SIGNED = frozenset({"x-amz-content-sha256", "x-amz-user-agent"})


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request says of its signature."""

    access_key_id: str
    date: str
    region: str
    signed_headers: tuple[str, ...]
    signature: str
    stamp: str
    payload: str
    expires_s: int | None

    @property
    def scope(self) -> str:
        """What the signing key is good for."""
        return f"{self.date}/{self.region}/s3/aws4_request"

    @property
    def signed_at(self) -> dt.datetime:
        """When it was signed, by the client's clock."""
        return dt.datetime.strptime(self.stamp, _STAMP).replace(tzinfo=dt.UTC)


def credentials_of(request: Request) -> Credentials | None:
    """Return a request's credentials, from header or query; None when it is not signed.

    Raises:
        S3Refusal: They are malformed, or of another kind than version 4.
    """
    header = request.headers.get("authorization")
    if header is not None:
        return _from_header(request, header)
    if "X-Amz-Algorithm" in request.query or "X-Amz-Signature" in request.query:
        return _from_query(request)
    return None


def check_time(credentials: Credentials, now: dt.datetime) -> None:
    """Let pass what was signed about now; or, presigned, is still valid.

    Raises:
        S3Refusal: The clocks differ too much, or the address has expired.
    """
    age = now - credentials.signed_at
    if credentials.expires_s is None:
        if abs(age) > MAX_SKEW:
            raise S3Error(
                "RequestTimeTooSkewed",
                RequestTime=credentials.stamp,
                ServerTime=now.strftime(_STAMP),
                MaxAllowedSkewMilliseconds=int(MAX_SKEW.total_seconds() * 1000),
            )
        return
    if age < -MAX_SKEW:
        raise S3Error(
            "AccessDenied", "Request is not yet valid", ServerTime=now.strftime(_XML_TIME)
        )
    ends = credentials.signed_at + dt.timedelta(seconds=credentials.expires_s)
    if now > ends:
        raise S3Error(
            "AccessDenied",
            "Request has expired",
            **{"X-Amz-Expires": credentials.expires_s},
            Expires=ends.strftime(_XML_TIME),
            ServerTime=now.strftime(_XML_TIME),
        )


def check_region(credentials: Credentials, region: str) -> None:
    """Let pass what is signed for a region; every region is fine where none is given.

    Raises:
        S3Refusal: It is signed for another; clients sign again for the one that is named.
    """
    if region and credentials.region != region:
        wrong = f"the region '{credentials.region[:60]}' is wrong; expecting '{region}'"
        if credentials.expires_s is None:
            raise S3Error(
                "AuthorizationHeaderMalformed",
                f"The authorization header is malformed; {wrong}",
                Region=region,
            )
        raise S3Error(
            "AuthorizationQueryParametersError",
            f"Error parsing the X-Amz-Credential parameter; {wrong}",
            Region=region,
        )


@lru_cache(maxsize=4096)
def signing_key(secret: str, date: str, region: str) -> bytes:
    """Return the key that signs requests of one day and region."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, "s3", "aws4_request"):
        key = sign(key, part)
    return key


def sign(key: bytes, text: str) -> bytes:
    """Return the HMAC-SHA256 of a text."""
    return hmac.digest(key, text.encode(), "sha256")


def check_signature(request: Request, credentials: Credentials, key: bytes) -> None:
    """Let pass a request whose signature this key makes.

    Raises:
        S3Refusal: The signature is another, or leaves out what must be signed.
    """
    _check_signed_headers(request, credentials)
    paths = dict.fromkeys((quote(_unquoted(request), safe="/-_.~"), request.path or "/"))
    text = ""
    for path in paths:
        text = string_to_sign(request, credentials, path)
        if hmac.compare_digest(sign(key, text).hex(), credentials.signature):
            return
    raise S3Error(
        "SignatureDoesNotMatch",
        AWSAccessKeyId=credentials.access_key_id,
        StringToSign=text,
        SignatureProvided=credentials.signature,
    )


def string_to_sign(request: Request, credentials: Credentials, path: str) -> str:
    """Return what a signature signs, for a path encoded in this way."""
    lines = [request.method, path, _canonical_query(request)]
    for name in credentials.signed_headers:
        value = _BLANKS.sub(" ", request.headers.get(name, "").strip())
        lines.append(f"{name}:{value}")
    lines += ["", ";".join(credentials.signed_headers), credentials.payload]
    digest = hashlib.sha256("\n".join(lines).encode("latin-1")).hexdigest()
    return "\n".join((ALGORITHM, credentials.stamp, credentials.scope, digest))


def _from_header(request: Request, header: str) -> Credentials:
    algorithm, _, rest = header.partition(" ")
    if algorithm != ALGORITHM:
        raise _other_kind()
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    if not {"Credential", "SignedHeaders", "Signature"} <= fields.keys():
        raise S3Error(
            "AuthorizationHeaderMalformed",
            "The authorization header needs Credential, SignedHeaders and Signature.",
        )
    payload = request.headers.get("x-amz-content-sha256")
    if payload is None:
        raise S3Error("InvalidRequest", "Missing required header: x-amz-content-sha256")
    return _credentials(
        "AuthorizationHeaderMalformed",
        fields["Credential"],
        fields["SignedHeaders"],
        fields["Signature"],
        (_stamp_of(request), payload, None),
    )


def _from_query(request: Request) -> Credentials:
    query = request.query
    wanted = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
    missing = [name for name in wanted if f"X-Amz-{name}" not in query]
    if missing:
        raise _query_error(f"Query-string authentication needs X-Amz-{missing[0]}.")
    if query["X-Amz-Algorithm"] != ALGORITHM:
        raise _query_error(f"X-Amz-Algorithm only supports {ALGORITHM}.")
    expires = query["X-Amz-Expires"]
    if not expires.isdecimal() or not 0 < int(expires[:9]) <= MAX_LIFETIME_S:
        raise _query_error(f"X-Amz-Expires must be between 1 and {MAX_LIFETIME_S}.")
    payload = query.get("X-Amz-Content-Sha256", UNSIGNED)
    if "x-amz-content-sha256" in query["X-Amz-SignedHeaders"].lower().split(";"):
        payload = request.headers.get("x-amz-content-sha256", payload)
    return _credentials(
        "AuthorizationQueryParametersError",
        query["X-Amz-Credential"],
        query["X-Amz-SignedHeaders"],
        query["X-Amz-Signature"],
        (query["X-Amz-Date"], payload, int(expires)),
    )


def _credentials(
    code: str,
    credential: str,
    signed_headers: str,
    signature: str,
    rest: tuple[str, str, int | None],
) -> Credentials:
    stamp, payload, expires_s = rest
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or parts[3:] != ["s3", "aws4_request"]:
        raise S3Error(code, "The credential must be KEY/DATE/REGION/s3/aws4_request.")
    found = Credentials(
        access_key_id=parts[0],
        date=parts[1],
        region=parts[2],
        signed_headers=tuple(signed_headers.lower().split(";")),
        signature=signature,
        stamp=stamp,
        payload=payload,
        expires_s=expires_s,
    )
    try:
        day = found.signed_at.strftime("%Y%m%d")
    except ValueError:
        raise S3Error(code, "The time of the request must be YYYYMMDD'T'HHMMSS'Z'.") from None
    if day != found.date:
        raise S3Error(code, "The credential's date is not that of the request.")
    if not _SIGNATURE.fullmatch(signature):
        raise S3Error("SignatureDoesNotMatch", SignatureProvided=signature[:100])
    return found


def _stamp_of(request: Request) -> str:
    stamp = request.headers.get("x-amz-date")
    if stamp is not None:
        return stamp
    try:
        text = request.headers.get("date", "")
        date = dt.datetime.strptime(text, _HTTP_DATE).replace(tzinfo=dt.UTC)
    except ValueError:
        raise S3Error("AccessDenied", "A valid x-amz-date or Date header is needed.") from None
    return date.strftime(_STAMP)


def _check_signed_headers(request: Request, credentials: Credentials) -> None:
    signed = set(credentials.signed_headers)
    needed = {
        name
        for name in request.headers
        if name.startswith("x-amz-") and name not in _NEED_NOT_BE_SIGNED
    }
    missing = ({"host"} | needed) - signed
    if missing:
        raise S3Error(
            "AccessDenied",
            "There were headers present in the request which were not signed.",
            HeadersNotSigned=", ".join(sorted(missing)),
        )


def _canonical_query(request: Request) -> str:
    encoded = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in pairs_of(request.query_text)
        if name != "X-Amz-Signature"
    )
    return "&".join(f"{name}={value}" for name, value in encoded)


def _unquoted(request: Request) -> bytes:
    return unquote_to_bytes(request.path.encode("latin-1")) or b"/"


def _query_error(message: str) -> S3Error:
    return S3Error("AuthorizationQueryParametersError", message)


def _other_kind() -> S3Error:
    return S3Error(
        "InvalidRequest",
        f"The authorization mechanism you have provided is not supported. Please use {ALGORITHM}.",
    )


# --- Presigned addresses of signature version 2, which boto3 and the AWS CLI still make by default.
#
# Source: AWS, "Signing and authenticating REST requests", query string authentication. Version 2 in
# the Authorization header is not taken: no client of today sends it.

_MOST_DIGITS = 11
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
        raise S3Error("AccessDenied", "Query-string authentication of version 2 needs Expires.")
    if now.timestamp() > int(expires):
        ended = dt.datetime.fromtimestamp(int(expires), dt.UTC)
        raise S3Error(
            "AccessDenied",
            "Request has expired",
            Expires=ended.strftime(_XML_TIME),
            ServerTime=now.strftime(_XML_TIME),
        )
    text = _string_to_sign(request, expires)
    digest = hmac.digest(secret.encode(), text.encode("utf-8"), "sha1")
    expected = base64.b64encode(digest).decode()
    if not hmac.compare_digest(expected.encode(), request.query["Signature"].encode()):
        raise S3Error("SignatureDoesNotMatch", StringToSign=text)


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
