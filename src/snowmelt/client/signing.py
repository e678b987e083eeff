"""Signature version 4 of a request to S3; no input or output.

Source: AWS, "Signature Version 4 signing process", with S3's own rule: paths are encoded once.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What requests are signed with; secret and token are not printed. `token` may be empty."""

    access_key_id: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    region: str


def encoded_path(*parts: str) -> str:
    """Return a bucket and a key as the path of an address."""
    return quote("/" + "/".join(parts), safe="/-_.~")


def signed(
    method: str,
    path: str,
    headers: Mapping[str, str],
    payload_sha256: str,
    credentials: Credentials,
    now: dt.datetime,
) -> dict[str, str]:
    """Return the headers of a request with all that its signature adds.

    Args:
        method: The request's method.
        path: From `encoded_path`; the address has no query.
        headers: With `host`; names in lower case.
        payload_sha256: Of the body, hex.
        credentials: What to sign with.
        now: Aware, in UTC.
    """
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    all_headers = {**headers, "x-amz-date": stamp, "x-amz-content-sha256": payload_sha256}
    if credentials.token:
        all_headers["x-amz-security-token"] = credentials.token
    names = sorted(all_headers)
    signed_names = ";".join(names)
    canonical = "\n".join(
        (
            method,
            path,
            "",
            *(f"{name}:{all_headers[name].strip()}" for name in names),
            "",
            signed_names,
            payload_sha256,
        )
    )
    scope = f"{stamp[:8]}/{credentials.region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{credentials.secret}".encode()
    for text in (*scope.split("/"), "\n".join((_ALGORITHM, stamp, scope, digest))):
        key = hmac.digest(key, text.encode(), "sha256")
    all_headers["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key_id}/{scope},"
        f"SignedHeaders={signed_names},Signature={key.hex()}"
    )
    return all_headers
