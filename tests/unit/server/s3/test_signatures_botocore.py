"""What botocore signs at random, in headers and in addresses, holds, and nothing else does."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import assume, given
from hypothesis import strategies as st

from snowmelt.buckets.errors import S3Error
from snowmelt.server.s3 import signatures
from snowmelt.server.s3.request import S3Request, parse_request
from snowmelt.sigv4 import derive_signing_key

SECRET = "s3/cret+"
HOST = "example.com:8333"
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
PATHS = TEXTS.map(lambda text: "/bucket/" + quote(text, safe="/-_.~"))
QUERIES = st.dictionaries(
    TEXTS.filter(lambda name: name and not name.startswith("X-Amz-")), TEXTS, max_size=4
).map(
    lambda pairs: "&".join(
        f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs.items()
    )
)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=10)
HEADERS = st.dictionaries(st.sampled_from(["content-type", "x-amz-meta-a", "x-amz-acl"]), VALUES)


def sign(
    kind: Any,
    method: Any,
    path: str,
    query: str,
    headers: dict[str, str],
    body: bytes = b"",
    **options: int,
) -> S3Request:
    url = f"http://{HOST}{path}{'?' if query else ''}{query}"
    request = AWSRequest(method, url, headers, body)
    kind(Credentials("AKIATEST", SECRET), "s3", "eu-west-1", **options).add_auth(request)
    parts = urlsplit(request.url)
    sent = {"host": HOST} | {name.lower(): str(value) for name, value in request.headers.items()}
    return parse_request(
        {
            "method": method,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        },
        [],
    )


def check(request: S3Request, secret: str = SECRET) -> None:
    credentials = signatures.parse_credentials(request)
    assert credentials is not None
    assert (credentials.access_key_id, credentials.region) == ("AKIATEST", "eu-west-1")
    signatures.check_signing_time(credentials, credentials.signed_at + dt.timedelta(seconds=59))
    key = derive_signing_key(secret, credentials.credential_scope)
    signatures.verify_signature(request, credentials, key)


@given(
    way=st.sampled_from([(S3SigV4Auth, {}), (S3SigV4QueryAuth, {"expires": 60})]),
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE"]),
    path=PATHS,
    query=QUERIES,
    headers=HEADERS,
    other=st.sampled_from(["secret", "method", "path", "query", "headers"]),
)
def test_what_botocore_signs_holds(
    way: Any, method: Any, path: str, query: str, headers: dict[str, str], other: Any
) -> None:
    request = sign(way[0], method, path, query, headers, **way[1])
    check(request)
    tampered = {
        "secret": request,
        "method": replace(request, method="HEAD"),
        "path": replace(request, path=request.path + "x"),
        "query": replace(request, query_text=request.query_text + "&a=b"),
        "headers": replace(request, headers={**request.headers, "host": "other.example.com"}),
    }[other]
    with pytest.raises(S3Error) as refused:
        check(tampered, "another" if other == "secret" else SECRET)
    assert refused.value.s3_code == "SignatureDoesNotMatch"


@given(path=PATHS, query=QUERIES, name=TEXTS)
def test_an_address_holds_for_its_own_time_and_signature_alone(
    path: str, query: str, name: str
) -> None:
    request = sign(S3SigV4QueryAuth, "GET", path, query, {}, expires=60)
    credentials = signatures.parse_credentials(request)
    assert credentials is not None
    with pytest.raises(S3Error, match="expired"):
        signatures.check_signing_time(credentials, credentials.signed_at + dt.timedelta(seconds=61))
    longer = request.query_text.replace("X-Amz-Expires=60", "X-Amz-Expires=61")
    assume(longer != request.query_text)
    with pytest.raises(S3Error):
        check(replace(request, query_text=longer))
