"""AWS Signature Version 4: canonical requests, signing keys, signatures and chains of chunks.

Source: AWS, "Signature Version 4 signing process" and "Signature calculations: transferring payload
in multiple chunks". No input or output. S3 signs the path as it is sent; every other service signs
it normalized and encoded once more.
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
    """What requests are signed with; secret and token are not printed. `session_token` may be empty."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class SignableRequest:
    """What of a request is signed.

    `path` is encoded, as the service wants it signed. `query_pairs` are names and values, encoded, in
    any order, without the signature itself. `headers` are by lower-case name. `payload_hash` is the
    body's SHA-256, hex, or one of the words that stand for it.
    """

    method: str
    path: str
    query_pairs: Iterable[tuple[str, str]]
    headers: Mapping[str, str]
    payload_hash: str


def format_credential_scope(date: str, region: str, service: str) -> str:
    """Return what a signing key is good for; `date` is YYYYMMDD."""
    return f"{date}/{region}/{service}/aws4_request"


@lru_cache(maxsize=4096)
def derive_signing_key(secret: str, credential_scope: str) -> bytes:
    """Return the key that signs requests of one day, region and service."""
    key = f"AWS4{secret}".encode()
    for part in credential_scope.rsplit("/", 3):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def sign_text(key: bytes, text: str) -> str:
    """Return the signature of a text, hex."""
    return hmac.digest(key, text.encode(), "sha256").hex()


def normalize_path(path: str) -> str:
    """Return a path as services other than S3 sign it: no dot segments, encoded once more."""
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
    """Return what the signature of a request signs.

    `signed_names` are of the headers that are signed, in the order of the list that is sent;
    `amz_date` is when it was signed, as `AMZ_DATE_FORMAT` says. `encoding` is of the request's
    texts: `latin-1` where they are bytes as they came.
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
    """Return the headers of a request with all that its signature adds.

    Its headers have `host`, and all of them are signed. `service` is a name such as `s3`,
    `signed_at` aware, in UTC.
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
    """The signatures of a body in chunks: each signs its chunk and the signature before."""

    def __init__(self, key: bytes, amz_date: str, credential_scope: str, seed: str) -> None:
        """Begin with the signature of the request's headers, the seed."""
        self._key = key
        self._context = f"{amz_date}\n{credential_scope}"
        self._previous = seed

    def sign_chunk(self, sha256: str) -> str:
        """Return the signature of the next chunk, by its SHA-256."""
        return self._sign_next("PAYLOAD", f"{_EMPTY_SHA256}\n{sha256}")

    def sign_trailers(self, text: str) -> str:
        """Return the signature of the trailing headers, as lines that end in a line feed."""
        return self._sign_next("TRAILER", hashlib.sha256(text.encode("latin-1")).hexdigest())

    def _sign_next(self, kind: str, digests: str) -> str:
        text = f"{ALGORITHM}-{kind}\n{self._context}\n{self._previous}\n{digests}"
        self._previous = sign_text(self._key, text)
        return self._previous
