"""Signatures against the worked examples of AWS's documentation of signature version 4."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from snowmelt.buckets.errors import S3Error
from snowmelt.server.s3 import signatures
from snowmelt.server.s3.request import S3Request, parse_request
from snowmelt.sigv4 import SignableRequest, build_string_to_sign, derive_signing_key, sign_text

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
CREDENTIAL = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"
AT = dt.datetime(2013, 5, 24, tzinfo=dt.UTC)


def request(
    method: str = "GET", path: str = "/test.txt", query: str = "", **headers: str
) -> S3Request:
    given = {"host": "examplebucket.s3.amazonaws.com"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    scope = {
        "method": method,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(n.encode(), v.encode()) for n, v in given.items()],
    }
    return parse_request(scope, ["s3.amazonaws.com"])


def signed(
    signed_headers: str,
    signature: str,
    path: str = "/test.txt",
    query: str = "",
    method: str = "GET",
    **headers: str,
) -> S3Request:
    return request(
        method,
        path,
        query,
        x_amz_date="20130524T000000Z",
        authorization=f"AWS4-HMAC-SHA256 Credential={CREDENTIAL},"
        f"SignedHeaders={signed_headers},Signature={signature}",
        **({"x_amz_content_sha256": EMPTY} | headers),
    )


def check(given: S3Request, secret: str = SECRET, now: dt.datetime = AT) -> None:
    credentials = signatures.parse_credentials(given)
    assert credentials is not None
    signatures.check_signing_time(credentials, now)
    key = derive_signing_key(secret, credentials.credential_scope)
    signatures.verify_signature(given, credentials, key)


GET = signed(
    "host;range;x-amz-content-sha256;x-amz-date",
    "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    range="bytes=0-9",
)
PUT = signed(
    "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
    "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    path="/test$file.text",
    method="PUT",
    date="Fri, 24 May 2013 00:00:00 GMT",
    x_amz_storage_class="REDUCED_REDUNDANCY",
    x_amz_content_sha256="44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
)
LIFECYCLE = signed(
    "host;x-amz-content-sha256;x-amz-date",
    "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    path="/",
    query="lifecycle",
)
LISTING = signed(
    "host;x-amz-content-sha256;x-amz-date",
    "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    path="/",
    query="max-keys=2&prefix=J",
)
PRESIGNED = request(
    query="X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential="
    + CREDENTIAL.replace("/", "%2F")
    + "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature="
    "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
)


@pytest.mark.parametrize("given", [GET, PUT, LIFECYCLE, LISTING, PRESIGNED])
def test_the_documented_examples_hold(given: S3Request) -> None:
    assert given.bucket == "examplebucket"
    check(given)


@pytest.mark.parametrize("given", [GET, PUT, LIFECYCLE, LISTING, PRESIGNED])
def test_anything_else_does_not_hold(given: S3Request) -> None:
    with pytest.raises(S3Error) as refused:
        check(given, secret=SECRET + "x")
    assert refused.value.s3_code == "SignatureDoesNotMatch"
    others = [
        replace(given, method="DELETE"),
        replace(given, path=given.path + "x"),
        replace(given, query_text=given.query_text + "&a=b"),
        replace(given, headers={**given.headers, "host": "other.s3.amazonaws.com"}),
    ]
    for other in others:
        with pytest.raises(S3Error) as refused:
            check(other)
        assert refused.value.s3_code == "SignatureDoesNotMatch"


def test_headers_of_s3_must_be_signed() -> None:
    tampered = replace(GET, headers={**GET.headers, "x-amz-copy-source": "/secret/object"})
    with pytest.raises(S3Error, match="not signed") as refused:
        check(tampered)
    assert refused.value.details["HeadersNotSigned"] == "x-amz-copy-source"


@pytest.mark.parametrize("minutes", [-16, 16])
def test_a_signature_of_another_time_is_refused(minutes: int) -> None:
    with pytest.raises(S3Error) as refused:
        check(GET, now=AT + dt.timedelta(minutes=minutes))
    assert refused.value.s3_code == "RequestTimeTooSkewed"
    check(GET, now=AT + dt.timedelta(minutes=minutes) * 0.9)


def test_a_presigned_address_holds_as_long_as_it_says() -> None:
    check(PRESIGNED, now=AT + dt.timedelta(hours=23))
    with pytest.raises(S3Error, match="expired"):
        check(PRESIGNED, now=AT + dt.timedelta(hours=25))
    with pytest.raises(S3Error, match="not yet valid"):
        check(PRESIGNED, now=AT - dt.timedelta(hours=1))


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("AWS AKIA:signature", "InvalidRequest"),
        ("AWS4-ECDSA-P256-SHA256 Credential=a", "InvalidRequest"),
        ("AWS4-HMAC-SHA256 nonsense", "AuthorizationHeaderMalformed"),
        (f"AWS4-HMAC-SHA256 Credential={CREDENTIAL}", "AuthorizationHeaderMalformed"),
        (
            f"AWS4-HMAC-SHA256 Credential={CREDENTIAL.replace('s3', 'ec2')},SignedHeaders=host,"
            "Signature=" + "0" * 64,
            "AuthorizationHeaderMalformed",
        ),
        (
            f"AWS4-HMAC-SHA256 Credential={CREDENTIAL.replace('0524', '0525')},"
            "SignedHeaders=host,Signature=" + "0" * 64,
            "AuthorizationHeaderMalformed",
        ),
        (
            f"AWS4-HMAC-SHA256 Credential={CREDENTIAL},SignedHeaders=host,Signature=zz",
            "SignatureDoesNotMatch",
        ),
    ],
)
def test_malformed_authorizations_are_told(authorization: str, code: str) -> None:
    given = replace(GET, headers={**GET.headers, "authorization": authorization})
    with pytest.raises(S3Error) as refused:
        signatures.parse_credentials(given)
    assert refused.value.s3_code == code


def test_a_request_without_a_signature_has_no_credentials() -> None:
    assert signatures.parse_credentials(request()) is None


@pytest.mark.parametrize("path", ["/a%20b", "/a%2Fb", "/%C3%BC", "/a+b", "/a%7Eb~", "/a//b/../c"])
def test_a_path_may_be_encoded_either_way(path: str) -> None:
    given = signed("host;x-amz-content-sha256;x-amz-date", "0" * 64, path=path)
    credentials = signatures.parse_credentials(given)
    assert credentials is not None
    key = derive_signing_key(SECRET, credentials.credential_scope)
    signable = SignableRequest("GET", path, (), given.headers, EMPTY)
    text = build_string_to_sign(
        signable, credentials.signed_headers, credentials.amz_date, credentials.credential_scope
    )
    own = replace(credentials, signature=sign_text(key, text))
    signatures.verify_signature(given, own, key)
