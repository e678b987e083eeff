"""Parsed S3 request: bucket, key, headers and query parameters."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from snowmelt.buckets.errors import S3Error

if TYPE_CHECKING:
    from starlette.types import Scope


@dataclass(frozen=True, slots=True)
class S3Request:
    """One request without its body.

    `path` and `query_text` are as sent. `bucket` and `key` are decoded, and empty if missing.
    Header names are in lower case; values are decoded as Latin-1. Of repeated parameters, the first
    one applies. `is_virtual_hosted` is True if the bucket was in the Host header.
    """

    method: str
    path: str
    query_text: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    bucket: str
    key: str
    request_id: str
    is_virtual_hosted: bool

    @property
    def resource(self) -> str:
        """Bucket and key in the form that error documents have."""
        return f"/{self.bucket}" + (f"/{self.key}" if self.key else "") if self.bucket else "/"


def parse_request(scope: Scope, domains: Sequence[str]) -> S3Request:
    """Parse the request of an ASGI scope. The Host header may be a bucket followed by a domain.

    Raises:
        S3Error: If the URL is not UTF-8.
    """
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    path: str = scope["raw_path"].decode("latin-1")
    query_text: str = scope["query_string"].decode("latin-1")
    decoded = _percent_decode(path).removeprefix("/")
    bucket = _parse_bucket_from_host(headers.get("host", ""), domains)
    in_host = bool(bucket)
    if in_host:
        key = decoded
    else:
        bucket, _, key = decoded.partition("/")
    query: dict[str, str] = {}
    for name, value in parse_query_pairs(query_text):
        query.setdefault(name, value)
    return S3Request(
        method=scope["method"],
        path=path,
        query_text=query_text,
        headers=headers,
        query=query,
        bucket=bucket,
        key=key,
        request_id=new_request_id(),
        is_virtual_hosted=in_host,
    )


def new_request_id() -> str:
    """Return a unique ID for a response."""
    return secrets.token_hex(8).upper()


def parse_query_pairs(query_text: str) -> list[tuple[str, str]]:
    """Return the decoded parameters of a query in order.

    Raises:
        S3Error: If the query is not UTF-8.
    """
    pairs = []
    for part in filter(None, query_text.split("&")):
        name, _, value = part.partition("=")
        pairs.append((_percent_decode(name), _percent_decode(value)))
    return pairs


def _percent_decode(text: str) -> str:
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI") from None


def _parse_bucket_from_host(host: str, domains: Sequence[str]) -> str:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.lower()
    for domain in domains:
        if name.endswith("." + domain):
            return name[: -len(domain) - 1]
    return ""
