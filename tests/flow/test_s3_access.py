"""Access to S3: signatures, clocks, grants and virtual hosts."""

from __future__ import annotations

import datetime as dt
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import boto3
import botocore.auth
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from fixtures.s3 import S3Process


def code_of(refused: pytest.ExceptionInfo[Any]) -> str:
    return cast("str", refused.value.response["Error"]["Code"])


@pytest.fixture
def client(s3: S3Process) -> Any:
    return s3.client()


def other_client(s3: S3Process, key_id: str, secret: str, **config: Any) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=s3.url,
        region_name="us-east-1",
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, **config),
    )


def test_a_wrong_secret_and_an_unknown_key_are_told_apart(s3: S3Process, bucket: str) -> None:
    key = s3.keys["admin"]
    assert other_client(s3, key.access_key_id, key.secret).list_buckets()["Buckets"]
    calls: tuple[Callable[[Any], Any], ...] = (
        lambda client: client.list_objects_v2(Bucket=bucket),
        lambda client: client.put_object(Bucket=bucket, Key="k", Body=b"x" * 100_000),
    )
    for key_id, secret, code in [
        (key.access_key_id, "wrong", "SignatureDoesNotMatch"),
        ("AKIAUNKNOWN", key.secret, "InvalidAccessKeyId"),
    ]:
        for call in calls:
            with pytest.raises(ClientError) as refused:
                call(other_client(s3, key_id, secret))
            assert code_of(refused) == code
            assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
            assert refused.value.response["ResponseMetadata"]["RequestId"]


def test_requests_must_be_signed(s3: S3Process, bucket: str) -> None:
    client = other_client(s3, "x", "x", signature_version=UNSIGNED)
    with pytest.raises(ClientError) as refused:
        client.list_objects_v2(Bucket=bucket)
    assert code_of(refused) == "AccessDenied"


@pytest.mark.parametrize("minutes", [-20, 20])
def test_a_skewed_clock_is_told(
    s3: S3Process, bucket: str, client: Any, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    skewed = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes)
    monkeypatch.setattr(
        botocore.auth,
        "get_current_datetime",
        lambda remove_tzinfo=True: skewed.replace(tzinfo=None),
    )
    with pytest.raises(ClientError) as refused:
        client.list_objects_v2(Bucket=bucket)
    assert code_of(refused) == "RequestTimeTooSkewed"


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_presigned_addresses_work_without_a_client(
    s3: S3Process, bucket: str, version: str
) -> None:
    client = s3.client(signature_version=version)
    key = "a b/ü+1"
    put = client.generate_presigned_url("put_object", {"Bucket": bucket, "Key": key})
    address = urlsplit(put)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    connection.request("PUT", f"{address.path}?{address.query}", body=b"hello")
    assert connection.getresponse().status == 200
    connection.close()
    got = client.generate_presigned_url(
        "get_object", {"Bucket": bucket, "Key": key, "ResponseContentType": "text/x"}
    )
    with urllib.request.urlopen(got) as answer:
        assert answer.read() == b"hello"
        assert answer.headers["Content-Type"] == "text/x"
    for wrong in (got.replace("%2B1", "%2B2"), got.replace("Signature=", "Signature=0"), put):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(wrong)
        assert refused.value.code == 403
        assert b"<Code>SignatureDoesNotMatch</Code>" in refused.value.read()
        refused.value.close()


def test_a_presigned_address_expires(
    s3: S3Process, bucket: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = dt.datetime.now(dt.UTC) - dt.timedelta(hours=2)
    with monkeypatch.context() as patched:
        patched.setattr(
            botocore.auth,
            "get_current_datetime",
            lambda remove_tzinfo=True: past.replace(tzinfo=None),
        )
        address = s3.client(signature_version="s3v4").generate_presigned_url(
            "get_object", {"Bucket": bucket, "Key": "k"}, ExpiresIn=3600
        )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(address)
    assert b"Request has expired" in refused.value.read()
    refused.value.close()


def test_a_bucket_may_stand_in_the_host(s3: S3Process, bucket: str) -> None:
    key = s3.keys["admin"]
    client = boto3.client(
        "s3",
        endpoint_url=f"http://localhost:{s3.port}",
        region_name="us-east-1",
        aws_access_key_id=key.access_key_id,
        aws_secret_access_key=key.secret,
        config=Config(s3={"addressing_style": "virtual"}, signature_version="s3v4"),
    )
    signed = client.generate_presigned_url("put_object", {"Bucket": bucket, "Key": "a/b"})
    address = urlsplit(signed)
    assert address.hostname == f"{bucket}.localhost"
    connection = http.client.HTTPConnection("127.0.0.1", s3.port)
    connection.request(
        "PUT", f"{address.path}?{address.query}", body=b"x", headers={"Host": address.netloc}
    )
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    # The same connection can be reused with the bucket in the path.
    signed = s3.client().generate_presigned_url("get_object", {"Bucket": bucket, "Key": "a/b"})
    address = urlsplit(signed)
    connection.request("GET", f"{address.path}?{address.query}")
    assert connection.getresponse().read() == b"x"
    connection.close()


def test_grants_decide_what_is_reached(s3: S3Process, bucket: str, client: Any) -> None:
    name = f"u{bucket[2:]}"
    role = f"r{bucket[2:]}"
    s3.add_user(name, role)
    user = s3.client(name)
    client.put_object(Bucket=bucket, Key="in/a", Body=b"a")
    client.put_object(Bucket=bucket, Key="secret", Body=b"s")

    def allowed(call: Callable[[], Any]) -> bool:
        try:
            call()
        except ClientError as error:
            if error.response["Error"]["Code"] not in {"AccessDenied", "403"}:
                raise
            return False
        return True

    def reads(key: str) -> bool:
        return allowed(lambda: user.get_object(Bucket=bucket, Key=key)["Body"].read())

    def writes(key: str) -> bool:
        return allowed(lambda: user.put_object(Bucket=bucket, Key=key, Body=b"x"))

    assert not reads("in/a")
    assert not allowed(lambda: user.head_bucket(Bucket=bucket))
    assert bucket not in {each["Name"] for each in user.list_buckets()["Buckets"]}
    s3.service.sql(f"GRANT READ ON BUCKET '{bucket}' PREFIX 'in/' TO ROLE {role}")
    assert reads("in/a")
    assert not reads("secret")
    assert not writes("in/b")
    assert allowed(lambda: user.list_objects_v2(Bucket=bucket, Prefix="in/"))
    assert not allowed(lambda: user.list_objects_v2(Bucket=bucket))
    assert bucket in {each["Name"] for each in user.list_buckets()["Buckets"]}
    source = {"Bucket": bucket, "Key": "secret"}
    assert not allowed(lambda: user.copy_object(Bucket=bucket, Key="in/c", CopySource=source))
    s3.service.sql(f"GRANT WRITE ON BUCKET '{bucket}' PREFIX 'in/' TO ROLE {role}")
    assert writes("in/b")
    assert not writes("in")
    assert not allowed(lambda: user.copy_object(Bucket=bucket, Key="in/c", CopySource=source))
    deleted = user.delete_objects(
        Bucket=bucket, Delete={"Objects": [{"Key": "in/b"}, {"Key": "secret"}]}
    )
    assert [each["Key"] for each in deleted["Deleted"]] == ["in/b"]
    assert deleted["Errors"][0]["Code"] == "AccessDenied"
    assert not allowed(lambda: user.delete_bucket(Bucket=bucket))
    s3.service.sql(f"REVOKE READ, WRITE ON BUCKET '{bucket}' PREFIX 'in/' FROM ROLE {role}")
    assert not reads("in/a")
    assert not writes("in/b")


def test_buckets_belong_to_the_role_that_may_create_them(s3: S3Process) -> None:
    s3.add_user("maker", "makers")
    s3.add_user("mate", "makers")
    s3.add_user("stranger", "strangers")
    maker = s3.client("maker")
    with pytest.raises(ClientError) as refused:
        maker.create_bucket(Bucket="of-makers")
    assert code_of(refused) == "AccessDenied"
    s3.service.sql("GRANT CREATE BUCKET ON ACCOUNT TO ROLE makers")
    maker.create_bucket(Bucket="of-makers")
    s3.client("mate").put_object(Bucket="of-makers", Key="k", Body=b"x")
    s3.service.sql("GRANT CREATE BUCKET ON ACCOUNT TO ROLE strangers")
    with pytest.raises(ClientError) as refused:
        s3.client("stranger").create_bucket(Bucket="of-makers")
    assert code_of(refused) == "BucketAlreadyExists"


def test_a_withdrawn_key_is_no_key(s3: S3Process, bucket: str) -> None:
    s3.add_user("leaver", "accountadmin")
    key = s3.keys["leaver"]
    s3.service.sql(f"ALTER USER leaver DROP ACCESS KEY '{key.access_key_id}'")
    with pytest.raises(ClientError) as refused:
        s3.client("leaver").list_buckets()
    assert code_of(refused) == "InvalidAccessKeyId"


def test_development_needs_no_signature_on_loopback_names(own_s3: S3Process) -> None:
    own_s3.start(dev=1)
    client = other_client(own_s3, "x", "x", signature_version=UNSIGNED)
    client.create_bucket(Bucket="dev")
    client.put_object(Bucket="dev", Key="k", Body=b"x")
    assert client.get_object(Bucket="dev", Key="k")["Body"].read() == b"x"
    connection = http.client.HTTPConnection("127.0.0.1", own_s3.port)
    connection.request("GET", "/dev/k", headers={"Host": "evil.example"})
    answer = connection.getresponse()
    assert (answer.status, b"AccessDenied" in answer.read()) == (403, True)
    connection.close()
