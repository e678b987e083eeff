"""AWS Signature Version 4: canonical requests, signing keys, signatures and chains of chunks.

Pure: no input or output. S3 signs the path as sent. All other services sign the path normalized and
encoded a second time. Source: AWS, "Signature Version 4 signing process" and "Signature
calculations: transferring payload in multiple chunks".
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    import datetime as dt

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
AMZ_DATE_FORMAT = "%Y%m%dT%H%M%SZ"

_EMPTY_SHA256 = hashlib.sha256().hexdigest()
_SPACES_PATTERN = re.compile(r" +")


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """Credentials for signing. `repr` hides secret and token. `session_token` may be empty."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class SignableRequest:
    """The signed parts of a request.

    `path` is encoded as the service requires. `query_pairs` are encoded names and values in any
    order, without the signature. `headers` are by lower-case name. `payload_hash` is the SHA-256 of
    the body in hexadecimal digits, or a placeholder such as `UNSIGNED-PAYLOAD`.
    """

    method: str
    path: str
    query_pairs: Iterable[tuple[str, str]]
    headers: Mapping[str, str]
    payload_hash: str


def format_credential_scope(date: str, region: str, service: str) -> str:
    """Return the credential scope of a signing key. `date` is YYYYMMDD."""
    return f"{date}/{region}/{service}/aws4_request"


@lru_cache(maxsize=4096)
def derive_signing_key(secret: str, credential_scope: str) -> bytes:
    """Derive the key that signs requests of one day, region and service."""
    key = f"AWS4{secret}".encode()
    for part in credential_scope.rsplit("/", 3):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def sign_text(key: bytes, text: str) -> str:
    """Return the signature of a text in hexadecimal digits."""
    return hmac.digest(key, text.encode(), "sha256").hex()


def normalize_path(path: str) -> str:
    """Normalize a path for services other than S3: remove dot segments, and encode it again."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            segments = segments[:-1]
        elif segment not in {"", "."}:
            segments.append(segment)
    end = "/" if segments and path.endswith("/") else ""
    return quote(f"/{'/'.join(segments)}{end}", safe="/~")


def build_string_to_sign(
    request: SignableRequest,
    signed_names: Sequence[str],
    amz_date: str,
    credential_scope: str,
    *,
    encoding: str = "utf-8",
) -> str:
    """Return the string to sign of a request.

    `signed_names` are the names of signed headers, in the order of the list in the request.
    `amz_date` is the signing time in `AMZ_DATE_FORMAT`. `encoding` encodes the texts of the
    request: `latin-1` if they were decoded from received bytes.
    """
    headers = request.headers
    lines = (
        request.method,
        request.path,
        "&".join(f"{name}={value}" for name, value in sorted(request.query_pairs)),
        *(
            f"{name}:{_SPACES_PATTERN.sub(' ', headers.get(name, '').strip())}"
            for name in signed_names
        ),
        "",
        ";".join(signed_names),
        request.payload_hash,
    )
    digest = hashlib.sha256("\n".join(lines).encode(encoding)).hexdigest()
    return "\n".join((ALGORITHM, amz_date, credential_scope, digest))


def sign_headers(
    request: SignableRequest,
    credentials: AwsCredentials,
    *,
    region: str,
    service: str,
    signed_at: dt.datetime,
) -> dict[str, str]:
    """Return the headers of a request with the headers that sign it.

    The headers must include `host`. All of them are signed. `service` is a name such as `s3`.
    `signed_at` is an aware UTC datetime.
    """
    amz_date = signed_at.strftime(AMZ_DATE_FORMAT)
    headers = {
        **request.headers,
        "x-amz-date": amz_date,
        "x-amz-content-sha256": request.payload_hash,
    }
    if credentials.session_token:
        headers["x-amz-security-token"] = credentials.session_token
    scope = format_credential_scope(amz_date[:8], region, service)
    names = sorted(headers)
    text = build_string_to_sign(replace(request, headers=headers), names, amz_date, scope)
    signature = sign_text(derive_signing_key(credentials.secret_access_key, scope), text)
    headers["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key_id}/{scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return headers


class ChunkSignatureChain:
    """Signatures of a chunked body. Each signs its chunk and the previous signature."""

    def __init__(self, key: bytes, amz_date: str, credential_scope: str, seed: str) -> None:
        """Begin with the seed: the signature of the request's headers."""
        self._key = key
        self._context = f"{amz_date}\n{credential_scope}"
        self._previous = seed

    def sign_chunk(self, sha256: str) -> str:
        """Return the signature of the next chunk, given its SHA-256."""
        return self._sign_next("PAYLOAD", f"{_EMPTY_SHA256}\n{sha256}")

    def sign_trailers(self, text: str) -> str:
        """Return the signature of the trailing headers, given as lines that end in a line feed."""
        return self._sign_next("TRAILER", hashlib.sha256(text.encode("latin-1")).hexdigest())

    def _sign_next(self, kind: str, digests: str) -> str:
        text = f"{ALGORITHM}-{kind}\n{self._context}\n{self._previous}\n{digests}"
        self._previous = sign_text(self._key, text)
        return self._previous
