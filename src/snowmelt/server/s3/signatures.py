"""Verify request signatures of versions 4 and 2. Pure: no input or output.

Source: AWS, "Signature calculations for the Authorization header".

Version 2 is supported for presigned URLs only, which boto3 and the AWS CLI create by default. No
current client uses it in the Authorization header. Source: AWS, "Signing and authenticating REST
requests", query string authentication.
"""

from __future__ import annotations

import base64
import datetime as dt
import hmac
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from snowmelt.buckets.errors import S3Error
from snowmelt.server.s3.request import S3Request, parse_query_pairs
from snowmelt.sigv4 import (
    ALGORITHM,
    AMZ_DATE_FORMAT,
    UNSIGNED_PAYLOAD,
    SignableRequest,
    build_string_to_sign,
    format_credential_scope,
    sign_text,
)

MAX_CLOCK_SKEW = dt.timedelta(minutes=15)
MAX_PRESIGNED_LIFETIME_S = 7 * 24 * 3600

_HTTP_DATE_FORMAT = "%a, %d %b %Y %H:%M:%S GMT"
_XML_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_SIGNATURE_PATTERN = re.compile(r"[0-9a-f]{64}")
# `x-amz-` headers that need not be signed, because they have no effect on the operation.
_OPTIONALLY_SIGNED_HEADERS = frozenset({"x-amz-content-sha256", "x-amz-user-agent"})


@dataclass(frozen=True, slots=True)
class SignatureCredentials:
    """Credentials and parameters in a request's signature."""

    access_key_id: str
    date: str
    region: str
    signed_headers: tuple[str, ...]
    signature: str
    amz_date: str
    payload_hash: str
    expires_s: int | None

    @property
    def credential_scope(self) -> str:
        """Scope of the signing key."""
        return format_credential_scope(self.date, self.region, "s3")

    @property
    def signed_at(self) -> dt.datetime:
        """Time of signing, by the client's clock."""
        return dt.datetime.strptime(self.amz_date, AMZ_DATE_FORMAT).replace(tzinfo=dt.UTC)


def parse_credentials(request: S3Request) -> SignatureCredentials | None:
    """Return a request's credentials in header or query, or None if it is not signed.

    Raises:
        S3Error: If the credentials are malformed, or not of version 4.
    """
    header = request.headers.get("authorization")
    if header is not None:
        return _parse_authorization_header(request, header)
    if "X-Amz-Algorithm" in request.query or "X-Amz-Signature" in request.query:
        return _parse_presigned_query(request)
    return None


def check_signing_time(credentials: SignatureCredentials, now: dt.datetime) -> None:
    """Verify that a request was signed within 15 minutes, or that a presigned URL is valid.

    Raises:
        S3Error: If the signing time differs from the clock by more than 15 minutes, or the URL has
            expired.
    """
    age = now - credentials.signed_at
    if credentials.expires_s is None:
        if abs(age) > MAX_CLOCK_SKEW:
            raise S3Error(
                "RequestTimeTooSkewed",
                RequestTime=credentials.amz_date,
                ServerTime=now.strftime(AMZ_DATE_FORMAT),
                MaxAllowedSkewMilliseconds=int(MAX_CLOCK_SKEW.total_seconds() * 1000),
            )
        return
    if age < -MAX_CLOCK_SKEW:
        raise S3Error(
            "AccessDenied", "Request is not yet valid", ServerTime=now.strftime(_XML_TIME_FORMAT)
        )
    ends = credentials.signed_at + dt.timedelta(seconds=credentials.expires_s)
    if now > ends:
        raise S3Error(
            "AccessDenied",
            "Request has expired",
            **{"X-Amz-Expires": credentials.expires_s},
            Expires=ends.strftime(_XML_TIME_FORMAT),
            ServerTime=now.strftime(_XML_TIME_FORMAT),
        )


def check_region(credentials: SignatureCredentials, region: str) -> None:
    """Verify that a request is signed for a region. An empty region accepts all.

    Raises:
        S3Error: If the region differs. Clients then sign again for the region in the error.
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


def verify_signature(request: S3Request, credentials: SignatureCredentials, key: bytes) -> None:
    """Verify a request's signature with this key.

    Raises:
        S3Error: If the signature does not match, or does not cover the required headers.
    """
    _check_signed_headers(request, credentials)
    paths = dict.fromkeys((quote(_decode_path(request), safe="/-_.~"), request.path or "/"))
    text = ""
    for path in paths:
        text = _build_request_string_to_sign(request, credentials, path)
        if hmac.compare_digest(sign_text(key, text), credentials.signature):
            return
    raise S3Error(
        "SignatureDoesNotMatch",
        AWSAccessKeyId=credentials.access_key_id,
        StringToSign=text,
        SignatureProvided=credentials.signature,
    )


def _build_request_string_to_sign(
    request: S3Request, credentials: SignatureCredentials, path: str
) -> str:
    """Return the string to sign, with the path in this encoding."""
    signable = SignableRequest(
        request.method,
        path,
        [
            (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
            for name, value in parse_query_pairs(request.query_text)
            if name != "X-Amz-Signature"
        ],
        request.headers,
        credentials.payload_hash,
    )
    return build_string_to_sign(
        signable,
        credentials.signed_headers,
        credentials.amz_date,
        credentials.credential_scope,
        encoding="latin-1",
    )


def _parse_authorization_header(request: S3Request, header: str) -> SignatureCredentials:
    algorithm, _, rest = header.partition(" ")
    if algorithm != ALGORITHM:
        raise _unsupported_algorithm_error()
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    if not {"Credential", "SignedHeaders", "Signature"} <= fields.keys():
        raise S3Error(
            "AuthorizationHeaderMalformed",
            "The authorization header needs Credential, SignedHeaders and Signature.",
        )
    payload = request.headers.get("x-amz-content-sha256")
    if payload is None:
        raise S3Error("InvalidRequest", "Missing required header: x-amz-content-sha256")
    return _parse_credential(
        "AuthorizationHeaderMalformed",
        fields["Credential"],
        fields["SignedHeaders"],
        fields["Signature"],
        (_get_amz_date(request), payload, None),
    )


def _parse_presigned_query(request: S3Request) -> SignatureCredentials:
    query = request.query
    wanted = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
    missing = [name for name in wanted if f"X-Amz-{name}" not in query]
    if missing:
        raise _query_error(f"Query-string authentication needs X-Amz-{missing[0]}.")
    if query["X-Amz-Algorithm"] != ALGORITHM:
        raise _query_error(f"X-Amz-Algorithm only supports {ALGORITHM}.")
    expires = query["X-Amz-Expires"]
    if not expires.isdecimal() or not 0 < int(expires[:9]) <= MAX_PRESIGNED_LIFETIME_S:
        raise _query_error(f"X-Amz-Expires must be between 1 and {MAX_PRESIGNED_LIFETIME_S}.")
    payload = query.get("X-Amz-Content-Sha256", UNSIGNED_PAYLOAD)
    if "x-amz-content-sha256" in query["X-Amz-SignedHeaders"].lower().split(";"):
        payload = request.headers.get("x-amz-content-sha256", payload)
    return _parse_credential(
        "AuthorizationQueryParametersError",
        query["X-Amz-Credential"],
        query["X-Amz-SignedHeaders"],
        query["X-Amz-Signature"],
        (query["X-Amz-Date"], payload, int(expires)),
    )


def _parse_credential(
    error_code: str,
    credential: str,
    signed_headers: str,
    signature: str,
    rest: tuple[str, str, int | None],
) -> SignatureCredentials:
    stamp, payload, expires_s = rest
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or parts[3:] != ["s3", "aws4_request"]:
        raise S3Error(error_code, "The credential must be KEY/DATE/REGION/s3/aws4_request.")
    found = SignatureCredentials(
        access_key_id=parts[0],
        date=parts[1],
        region=parts[2],
        signed_headers=tuple(signed_headers.lower().split(";")),
        signature=signature,
        amz_date=stamp,
        payload_hash=payload,
        expires_s=expires_s,
    )
    try:
        day = found.signed_at.strftime("%Y%m%d")
    except ValueError:
        raise S3Error(error_code, "The time of the request must be YYYYMMDD'T'HHMMSS'Z'.") from None
    if day != found.date:
        raise S3Error(
            error_code,
            f"The credential date {found.date[:80]!r} differs from the request date {day!r}. Sign with"
            " the date of the request.",
        )
    if not _SIGNATURE_PATTERN.fullmatch(signature):
        raise S3Error("SignatureDoesNotMatch", SignatureProvided=signature[:100])
    return found


def _get_amz_date(request: S3Request) -> str:
    stamp = request.headers.get("x-amz-date")
    if stamp is not None:
        return stamp
    try:
        text = request.headers.get("date", "")
        date = dt.datetime.strptime(text, _HTTP_DATE_FORMAT).replace(tzinfo=dt.UTC)
    except ValueError:
        raise S3Error("AccessDenied", "A valid x-amz-date or Date header is needed.") from None
    return date.strftime(AMZ_DATE_FORMAT)


def _check_signed_headers(request: S3Request, credentials: SignatureCredentials) -> None:
    signed = set(credentials.signed_headers)
    needed = {
        name
        for name in request.headers
        if name.startswith("x-amz-") and name not in _OPTIONALLY_SIGNED_HEADERS
    }
    missing = ({"host"} | needed) - signed
    if missing:
        raise S3Error(
            "AccessDenied",
            "There were headers present in the request which were not signed.",
            HeadersNotSigned=", ".join(sorted(missing)),
        )


def _decode_path(request: S3Request) -> bytes:
    return unquote_to_bytes(request.path.encode("latin-1")) or b"/"


def _query_error(message: str) -> S3Error:
    return S3Error("AuthorizationQueryParametersError", message)


def _unsupported_algorithm_error() -> S3Error:
    return S3Error(
        "InvalidRequest",
        f"The authorization mechanism you have provided is not supported. Please use {ALGORITHM}.",
    )


# --- Presigned URLs of signature version 2, which boto3 and the AWS CLI create by default.
#
# Source: AWS, "Signing and authenticating REST requests", query string authentication. Version 2
# in the Authorization header is not supported: no current client sends it.

_MAX_EXPIRES_DIGITS = 11
# Parameters that version 2 signs. Others are ignored.
_V2_SIGNED_PARAMETERS = frozenset(
    {
        *("accelerate", "acl", "analytics", "cors", "delete", "inventory", "lifecycle", "location"),
        *("logging", "metrics", "notification", "object-lock", "partNumber", "policy", "restore"),
        *("replication", "requestPayment", "select", "select-type", "storageClass", "tagging"),
        *("torrent", "uploadId", "uploads", "versionId", "versioning", "versions", "website"),
        *("response-cache-control", "response-content-disposition", "response-content-encoding"),
        *("response-content-language", "response-content-type", "response-expires"),
    }
)


def parse_v2_access_key_id(request: S3Request) -> str | None:
    """Return the access key ID of a URL presigned with version 2, or None for other requests."""
    if "authorization" in request.headers or "Signature" not in request.query:
        return None
    return request.query.get("AWSAccessKeyId")


def verify_v2_signature(request: S3Request, secret: str, now: dt.datetime) -> None:
    """Verify the signature and the expiration of a URL presigned with version 2.

    Raises:
        S3Error: If the URL has expired, or the signature does not match.
    """
    expires = request.query.get("Expires", "")
    if not expires.isdecimal() or len(expires) > _MAX_EXPIRES_DIGITS:
        raise S3Error("AccessDenied", "Query-string authentication of version 2 needs Expires.")
    if now.timestamp() > int(expires):
        ended = dt.datetime.fromtimestamp(int(expires), dt.UTC)
        raise S3Error(
            "AccessDenied",
            "Request has expired",
            Expires=ended.strftime(_XML_TIME_FORMAT),
            ServerTime=now.strftime(_XML_TIME_FORMAT),
        )
    text = _build_v2_string_to_sign(request, expires)
    digest = hmac.digest(secret.encode(), text.encode("utf-8"), "sha1")
    expected = base64.b64encode(digest).decode()
    if not hmac.compare_digest(expected.encode(), request.query["Signature"].encode()):
        raise S3Error("SignatureDoesNotMatch", StringToSign=text)


def _build_v2_string_to_sign(request: S3Request, expires: str) -> str:
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
        (name, value)
        for name, value in parse_query_pairs(request.query_text)
        if name in _V2_SIGNED_PARAMETERS
    )
    query = "&".join(f"{name}={value}" if value else name for name, value in signed)
    return (
        "\n".join(lines) + "\n" + _canonical_v2_resource(request) + (f"?{query}" if query else "")
    )


def _canonical_v2_resource(request: S3Request) -> str:
    return f"/{request.bucket}{request.path}" if request.is_virtual_hosted else request.path
