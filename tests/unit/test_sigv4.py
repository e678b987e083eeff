"""Signatures against AWS's published test suite and examples, and against botocore at random."""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import Any
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from snowmelt import sigv4
from snowmelt.sigv4 import AwsCredentials, ChunkSignatureChain, SignableRequest

EMPTY = hashlib.sha256().hexdigest()
SUITE_SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
SUITE_SCOPE = "20150830/us-east-1/service/aws4_request"
SUITE_DATE = "20150830T123600Z"
SUITE_TOKEN = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"
VANILLA = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
UNRESERVED = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

# Name in the suite, method, path, query, headers besides host and date, signature.
SUITE = [
    ("get-vanilla", "GET", "/", (), {}, VANILLA),
    ("get-slash", "GET", "//", (), {}, VANILLA),
    ("get-slash-dot-slash", "GET", "/./", (), {}, VANILLA),
    ("get-relative", "GET", "/example/..", (), {}, VANILLA),
    ("get-relative-relative", "GET", "/example1/example2/../..", (), {}, VANILLA),
    ("get-space", "GET", "/example space/", (), {},
     "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"),
    ("get-utf8", "GET", "/ሴ", (), {},
     "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"),
    ("get-unreserved", "GET", f"/{UNRESERVED}", (), {},
     "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"),
    ("get-vanilla-query-order-key-case", "GET", "/",
     (("Param2", "value2"), ("Param1", "value1")), {},
     "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"),
    ("get-vanilla-utf8-query", "GET", "/", (("ሴ", "bar"),), {},
     "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"),
    ("post-vanilla", "POST", "/", (), {},
     "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
    ("post-header-key-sort", "POST", "/", (), {"my-header1": "value1"},
     "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"),
    ("post-sts-header-before", "POST", "/", (), {"x-amz-security-token": "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="},
     "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "signature"),
    [case[1:] for case in SUITE],
    ids=[case[0] for case in SUITE],
)
def test_the_published_suite_holds(
    method: Any, path: Any, query: Any, headers: Any, signature: Any
) -> None:
    headers = {"host": "example.amazonaws.com", "x-amz-date": SUITE_DATE, **headers}
    pairs = [(quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query]
    request = SignableRequest(method, sigv4.normalize_path(path), pairs, headers, EMPTY)
    text = sigv4.build_string_to_sign(request, sorted(headers), SUITE_DATE, SUITE_SCOPE)
    key = sigv4.derive_signing_key(SUITE_SECRET, SUITE_SCOPE)
    assert sigv4.sign_text(key, text) == signature


def test_the_documented_put_gets_the_documented_signature() -> None:
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "date": "Fri, 24 May 2013 00:00:00 GMT",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
    }
    digest = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
    request = SignableRequest("PUT", "/test%24file.text", (), headers, digest)
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    credentials = AwsCredentials("AKIAIOSFODNN7EXAMPLE", secret)
    at = dt.datetime(2013, 5, 24, tzinfo=dt.UTC)
    made = sigv4.sign_headers(request, credentials, region="us-east-1", service="s3", signed_at=at)
    assert made["authorization"].endswith(
        "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    )


def test_nothing_secret_is_printed() -> None:
    assert "the" not in repr(AwsCredentials("KEY", "the secret", "the token"))


def test_the_documented_chunks_get_the_documented_signatures() -> None:
    scope = "20130524/us-east-1/s3/aws4_request"
    key = sigv4.derive_signing_key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", scope)
    seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    chain = ChunkSignatureChain(key, "20130524T000000Z", scope, seed)
    chunks = (b"a" * 65_536, b"a" * 1024, b"")
    assert [chain.sign_chunk(hashlib.sha256(each).hexdigest()) for each in chunks] == [
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    ]
    assert (
        chain.sign_trailers("x-amz-checksum-crc32c:sOO8/Q==\n")
        == "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
    )


# --- At random, with botocore for the answer.

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
SEGMENTS = st.one_of(st.sampled_from(["", ".", "..", "a", "%7E", "a b"]), TEXTS)
PATHS = st.lists(SEGMENTS, max_size=5).map(lambda each: "/" + quote("/".join(each), safe="/-_.~"))
QUERIES = st.lists(st.tuples(TEXTS, TEXTS), max_size=4).map(
    lambda pairs: [(quote(name, safe="-_.~") or "n", quote(value, safe="-_.~")) for name, value in pairs]
)  # fmt: skip
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=10)
HEADERS = st.dictionaries(
    st.sampled_from(["content-type", "x-amz-meta-a", "x-amz-meta-b", "date"]),
    st.lists(VALUES, max_size=3).map("  ".join),
)
REQUESTS = st.tuples(st.sampled_from(["GET", "PUT", "POST"]), PATHS, QUERIES, HEADERS)


@pytest.mark.parametrize("service", ["s3", "execute-api", "lambda"])
@given(
    request=REQUESTS,
    body=st.binary(max_size=40),
    token=VALUES,
    at=st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1)),
)
def test_botocore_makes_the_same_signatures(
    service: str,
    request: tuple[str, str, list[tuple[str, str]], dict[str, str]],
    body: bytes,
    token: str,
    at: dt.datetime,
) -> None:
    method, path, pairs, headers = request
    credentials = AwsCredentials("AKIATEST", "s3/cret+", token)
    host = "bucket.example.com:8443"
    signable = SignableRequest(
        method,
        path if service == "s3" else sigv4.normalize_path(path),
        pairs,
        {"host": host, **headers},
        hashlib.sha256(body).hexdigest(),
    )
    made = sigv4.sign_headers(
        signable, credentials, region="eu-west-1", service=service, signed_at=at
    )
    assert ("x-amz-security-token" in made) == bool(token)
    query = "&".join(f"{name}={value}" for name, value in pairs)
    given = {name: value for name, value in made.items() if name not in {"authorization", "host"}}
    other = AWSRequest(method, f"https://{host}{path}{'?' if query else ''}{query}", given, body)
    other.context["timestamp"] = made["x-amz-date"]
    kind = S3SigV4Auth if service == "s3" else SigV4Auth
    signer = kind(Credentials("AKIATEST", "s3/cret+", token), service, "eu-west-1")
    text = signer.string_to_sign(other, signer.canonical_request(other))
    assert made["authorization"] == (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(other)}, "
        f"SignedHeaders={signer.signed_headers(signer.headers_to_sign(other))}, "
        f"Signature={signer.signature(text, other)}"
    )
