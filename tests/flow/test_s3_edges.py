"""Edge cases of S3: error codes and forms with boto3, the AWS CLI and plain HTTP."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import re
import subprocess
import sys
from email.header import decode_header, make_header
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import boto3
import botocore.auth
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from fixtures.s3 import S3Process


@pytest.fixture
def client(s3: S3Process) -> Any:
    return s3.client()


def code_of(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    return cast("str", refused.value.response["Error"]["Code"])


def send(
    url: Any, method: str = "GET", body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, str]:
    """Send a presigned request without an SDK. Return status, headers and body."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    try:
        path = address.path + (f"?{address.query}" if address.query else "")
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "name",
    [
        *("with_underscore", "dot.-hyphen", "hyphen-.dot", "two..dots", "-start", "end-", "ab"),
        *("Capital", "192.168.5.4", "xn--name", "sthree-name", "amzn-s3-demo-name"),
        *("name-s3alias", "name--ol-s3", "name.mrap", "name--table-s3", "x" * 64),
    ],
)
def test_names_that_s3_gives_no_bucket_are_refused(s3: S3Process, name: str) -> None:
    client = s3.client(parameter_validation=False)
    client.meta.events.unregister("before-parameter-build.s3", _validate_bucket())
    assert code_of(client.create_bucket, Bucket=name) == "InvalidBucketName"


def _validate_bucket() -> Any:
    from botocore.handlers import validate_bucket_name

    return validate_bucket_name


@pytest.mark.parametrize("name", ["abc", "a.b.c", "a--b", "1-2.3-4", "x" * 63])
def test_names_that_s3_gives_a_bucket_are_taken(client: Any, name: str) -> None:
    client.create_bucket(Bucket=name)
    client.delete_bucket(Bucket=name)


def test_what_hinders_the_deletion_of_a_bucket_is_said(client: Any, bucket: str) -> None:
    upload = client.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    with pytest.raises(ClientError, match="multipart uploads that are not completed") as refused:
        client.delete_bucket(Bucket=bucket)
    assert refused.value.response["Error"]["Code"] == "BucketNotEmpty"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 409
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    with pytest.raises(ClientError, match="holds objects"):
        client.delete_bucket(Bucket=bucket)
    client.delete_object(Bucket=bucket, Key="k")
    client.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload)
    client.delete_bucket(Bucket=bucket)


def signed_for(s3: S3Process, region: str | None, **config: str) -> Any:
    key = s3.keys["admin"]
    return boto3.client(
        "s3",
        endpoint_url=s3.url,
        region_name=region,
        aws_access_key_id=key.access_key_id,
        aws_secret_access_key=key.secret,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, **config),
    )


def test_a_signature_for_another_region_is_refused_with_the_one_expected(
    s3: S3Process, bucket: str
) -> None:
    with pytest.raises(ClientError) as refused:
        signed_for(s3, "eu-central-1").list_buckets()
    error = refused.value.response["Error"]
    assert (error["Code"], error["Region"]) == ("AuthorizationHeaderMalformed", "us-east-1")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert "the region 'eu-central-1' is wrong; expecting 'us-east-1'" in error["Message"]
    address = signed_for(s3, "eu-central-1", signature_version="s3v4").generate_presigned_url(
        "get_object", {"Bucket": bucket, "Key": "k"}
    )
    status, _, body = send(address)
    assert status == 400
    assert "<Code>AuthorizationQueryParametersError</Code>" in body
    assert "<Region>us-east-1</Region>" in body
    assert s3.client().head_bucket(Bucket=bucket)["BucketRegion"] == "us-east-1"


def test_clients_without_a_region_are_let_in(
    s3: S3Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert signed_for(s3, None).list_buckets()["Buckets"] is not None
    environment = s3.environment()
    del environment["AWS_DEFAULT_REGION"]
    aws = Path(sys.executable).parent / "aws"
    done = subprocess.run(
        [aws, "s3", "ls"], env=environment | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_region_is_a_setting(own_s3: S3Process) -> None:
    own_s3.start(s3_region="eu-west-3")
    own_s3.add_user("admin", "accountadmin")
    client = signed_for(own_s3, "eu-west-3")
    client.create_bucket(
        Bucket="paris", CreateBucketConfiguration={"LocationConstraint": "eu-west-3"}
    )
    assert client.get_bucket_location(Bucket="paris")["LocationConstraint"] == "eu-west-3"
    assert client.head_bucket(Bucket="paris")["BucketRegion"] == "eu-west-3"
    assert [each["Name"] for each in client.list_buckets(BucketRegion="eu-west-3")["Buckets"]]
    assert client.list_buckets(BucketRegion="eu-west-1")["Buckets"] == []
    elsewhere = {"LocationConstraint": "eu-west-1"}
    assert code_of(client.create_bucket, Bucket="dublin", CreateBucketConfiguration=elsewhere) == (
        "IllegalLocationConstraintException"
    )
    with pytest.raises(ClientError, match="expecting 'eu-west-3'"):
        own_s3.client().list_buckets()
    own_s3.service.stop()
    own_s3.start(s3_region="")
    for region in ("us-east-1", "eu-west-3", "moon-1"):
        assert signed_for(own_s3, region).list_buckets()["Buckets"]


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_an_expired_address_is_answered_with_its_times(
    s3: S3Process, bucket: str, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    past = dt.datetime.now(dt.UTC) - dt.timedelta(hours=2)
    with monkeypatch.context() as patched:
        patched.setattr(
            botocore.auth,
            "get_current_datetime",
            lambda remove_tzinfo=True: past.replace(tzinfo=None),
        )
        patched.setattr(botocore.auth.time, "time", past.timestamp)
        address = s3.client(signature_version=version).generate_presigned_url(
            "get_object", {"Bucket": bucket, "Key": "k"}, ExpiresIn=3600
        )
    status, _, body = send(address)
    assert status == 403
    assert "<Code>AccessDenied</Code><Message>Request has expired</Message>" in body
    ended = (past + dt.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")
    assert f"<Expires>{ended}" in body
    assert re.search(r"<ServerTime>\d{4}-\d\d-\d\dT[\d:]{8}Z</ServerTime>", body)
    if version == "s3v4":
        assert "<X-Amz-Expires>3600</X-Amz-Expires>" in body


def test_headers_that_presigning_moved_into_the_address_count(s3: S3Process, bucket: str) -> None:
    client = s3.client(signature_version="s3v4")

    def presigned(method: str, **moved: Any) -> Any:
        def add(request: Any, **_: Any) -> None:
            request.url += "?" + "&".join(f"{name}={value}" for name, value in moved.items())

        client.meta.events.register("before-sign.s3", add)
        try:
            return client.generate_presigned_url(method, {"Bucket": bucket, "Key": "k"})
        finally:
            client.meta.events.unregister("before-sign.s3", add)

    put = presigned("put_object", **{"x-amz-meta-who": "ada", "x-id": "PutObject"})
    assert send(put, "PUT", b"x")[0] == 200
    assert client.head_object(Bucket=bucket, Key="k")["Metadata"] == {"who": "ada"}
    status, _, body = send(presigned("put_object", **{"x-amz-acl": "public-read"}), "PUT", b"y")
    assert (status, "x-amz-acl" in body) == (501, True)
    delete = presigned("delete_object", **{"x-amz-if-match-size": "2"})
    assert send(delete, "DELETE")[0] == 412
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"


def test_metadata_beyond_ascii_comes_back_as_encoded_words(s3: S3Process, bucket: str) -> None:
    told: dict[Any, Any] = {}

    def add(request: Any, **_: Any) -> None:
        for name, value in told.items():
            request.headers[name] = value

    client = s3.client()
    client.meta.events.register("before-sign.s3", add)
    encoded = f"=?UTF-8?B?{base64.b64encode('Zürich ☃'.encode()).decode()}?="
    for sent, expected in [
        ("Zürich", "Zürich"),
        (encoded, "Zürich ☃"),
        ("plain", "plain"),
    ]:
        told["x-amz-meta-place"] = sent
        client.put_object(Bucket=bucket, Key="k", Body=b"x")
        told.clear()
        found = client.head_object(Bucket=bucket, Key="k")["Metadata"]["place"]
        assert found.isascii()
        assert str(make_header(decode_header(found))) == expected


def test_a_prefix_with_a_line_break_lists_in_every_form(
    s3: S3Process, client: Any, bucket: str
) -> None:
    keys = ["a\nb/1", "a\nb/2\r", "a\n", "a b"]
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=b"x")
    for prefix, found in [("a\nb/", keys[:2]), ("a\n", sorted(keys[:3])), ("\n", [])]:
        for call in (client.list_objects, client.list_objects_v2):
            answer = call(Bucket=bucket, Prefix=prefix)
            assert answer["Prefix"] == prefix
            assert [each["Key"] for each in answer.get("Contents", [])] == found
        versions = client.list_object_versions(Bucket=bucket, Prefix=prefix)
        assert [each["Key"] for each in versions.get("Versions", [])] == found
    # Without an encoding type, as programs without an SDK send it.
    for form in ("", "list-type=2&"):
        address = listing_address(s3, bucket, f"{form}prefix=a%0Ab%2F")
        status, _, body = send(address)
        assert status == 200
        assert "<Prefix>a&#xa;b/</Prefix>" in body
        assert "<Key>a&#xa;b/2&#xd;</Key>" in body


def listing_address(s3: S3Process, bucket: str, query: str) -> Any:
    """Return the presigned address of a listing with this query."""
    client = s3.client(signature_version="s3v4")

    def add(request: Any, **_: Any) -> None:
        request.url = request.url.partition("?")[0] + f"?{query}"

    presigning = client.meta.events
    presigning.register("before-sign.s3", add)
    try:
        return client.generate_presigned_url("list_objects", {"Bucket": bucket})
    finally:
        presigning.unregister("before-sign.s3", add)


def test_a_form_is_refused_by_name(client: Any, bucket: str) -> None:
    post = client.generate_presigned_post(bucket, "k")
    boundary = "x" * 20
    fields = post["fields"] | {"file": "hello"}
    body = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    status, _, text = send(post["url"], "POST", f"{body}--{boundary}--\r\n".encode(), headers)
    assert status == 501
    assert "<Code>NotImplemented</Code><Message>PostObject" in text
    assert code_of(client.head_object, Bucket=bucket, Key="k") == "404"


def test_digests_that_do_not_match_are_told_with_both(client: Any, bucket: str) -> None:
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket=bucket, Key="k", Body=b"x", ContentMD5="A" * 22 + "==")
    error = refused.value.response["Error"]
    assert error["Code"] == "BadDigest"
    assert error["ExpectedDigest"] == "A" * 22 + "=="
    assert error["CalculatedDigest"] == "nd1EsY3CZhvfqtXt1ILfJg==" or len(
        error["CalculatedDigest"]
    ) == len("A" * 24)
    wrong = {"ChecksumCRC32": "AAAAAA=="}
    with pytest.raises(ClientError, match="The CRC32 you specified did not match") as refused:
        client.put_object(Bucket=bucket, Key="k", Body=b"x", **wrong)
    assert refused.value.response["Error"]["Code"] == "BadDigest"
    assert code_of(
        client.put_object, Bucket=bucket, Key="k", Body=b"x", ChecksumSHA256="AAAAAA=="
    ) == ("InvalidRequest")
    assert code_of(client.head_object, Bucket=bucket, Key="k") == "404"


def test_a_range_of_another_object_brings_the_whole(s3: S3Process, bucket: str) -> None:
    client = s3.client(signature_version="s3v4")
    etag = client.put_object(Bucket=bucket, Key="k", Body=b"12345")["ETag"]
    address = client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "k"})
    asked = {"Range": "bytes=1-2"}
    assert send(address, headers=asked | {"If-Range": etag})[::2] == (206, "23")
    assert send(address, headers=asked | {"If-Range": '"other"'})[::2] == (200, "12345")


def test_parameters_that_no_operation_knows_are_refused_by_name(
    s3: S3Process, client: Any, bucket: str
) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    status, _, body = send(listing_address(s3, bucket, "prefix=k&fetch-owners=true"))
    assert (status, "fetch-owners" in body) == (501, True)
    assert send(listing_address(s3, bucket, "prefix=k&x-caller=report"))[0] == 200
