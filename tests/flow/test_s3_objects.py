"""Objects with boto3: put, get, list, copy and delete."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
from typing import TYPE_CHECKING, Any, cast

import pytest
from botocore.exceptions import ClientError

from fixtures.s3 import S3Process

if TYPE_CHECKING:
    from collections.abc import Callable


KEYS = [
    "a",
    "a/b",
    "a//b",
    "/lead",
    "trail/",
    "../up",
    "a/./b/../c",
    "ü/日本語/😀",
    "sp ace+plus%20&=?#;:@,'\"<>|`{}[]^~",
    "back\\slash",
    "tab\tand\nnewline\x01",
    "\ufffe, \uffff",
    "x" * 1024,
    "é" * 512,
    "a/" * 511 + "bb",
    ".put-1",
    ".",
    "..",
]


def code_of(refused: pytest.ExceptionInfo[Any]) -> str:
    return cast("str", refused.value.response["Error"]["Code"])


def body_of(answer: Any) -> bytes:
    return cast("bytes", answer["Body"].read())


@pytest.fixture
def client(s3: S3Process) -> Any:
    return s3.client()


@pytest.mark.parametrize("key", KEYS, ids=lambda key: ascii(key[:20]))
def test_any_key_can_be_put_got_listed_copied_and_deleted(
    client: Any, bucket: str, key: str
) -> None:
    data = key.encode() * 3
    client.put_object(Bucket=bucket, Key=key, Body=data)
    assert body_of(client.get_object(Bucket=bucket, Key=key)) == data
    assert client.head_object(Bucket=bucket, Key=key)["ContentLength"] == len(data)
    assert [each["Key"] for each in client.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    assert [each["Key"] for each in client.list_objects(Bucket=bucket)["Contents"]] == [key]
    assert len(client.list_objects(Bucket=bucket, Prefix=key)["Contents"]) == 1
    (version,) = client.list_object_versions(Bucket=bucket)["Versions"]
    assert (version["Key"], version["VersionId"], version["IsLatest"]) == (key, "null", True)
    client.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": key})
    assert body_of(client.get_object(Bucket=bucket, Key="copy", VersionId="null")) == data
    # XML cannot represent every key.
    wanted = [{"Key": key}, {"Key": "copy", "VersionId": "null"}]
    quiet = "\x01" in key or "\uffff" in key
    deleted = client.delete_objects(Bucket=bucket, Delete={"Objects": wanted, "Quiet": quiet})
    assert "Errors" not in deleted
    if not quiet:
        assert {each["Key"] for each in deleted["Deleted"]} == {key, "copy"}
    assert "Contents" not in client.list_objects_v2(Bucket=bucket)


def test_a_key_over_1024_bytes_is_refused(client: Any, bucket: str) -> None:
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket=bucket, Key="é" * 512 + "x", Body=b"")
    assert code_of(refused) == "KeyTooLongError"


def test_headers_and_metadata_come_back(client: Any, bucket: str) -> None:
    expires = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    put = client.put_object(
        Bucket=bucket,
        Key="k",
        Body=b"hello",
        ContentType="text/csv; charset=utf-8",
        ContentEncoding="gzip",
        ContentLanguage="de",
        ContentDisposition='attachment; filename="x"',
        CacheControl="no-cache",
        Expires=expires,
        Metadata={"colour": "blue", "dash-ed": "1"},
    )
    assert put["ETag"] == f'"{hashlib.md5(b"hello").hexdigest()}"'
    headed = client.head_object(Bucket=bucket, Key="k")
    got = client.get_object(Bucket=bucket, Key="k")
    assert body_of(got) == b"hello"
    for found in (headed, got):
        assert found["ContentType"] == "text/csv; charset=utf-8"
        assert found["ContentEncoding"] == "gzip"
        assert found["ContentLanguage"] == "de"
        assert found["ContentDisposition"] == 'attachment; filename="x"'
        assert found["CacheControl"] == "no-cache"
        assert found["Metadata"] == {"colour": "blue", "dash-ed": "1"}
        assert found["ETag"] == put["ETag"]
        assert found["ResponseMetadata"]["HTTPHeaders"]["accept-ranges"] == "bytes"
    told = client.get_object(Bucket=bucket, Key="k", ResponseContentType="text/plain")
    assert told["ContentType"] == "text/plain"
    assert body_of(told) == b"hello"


def test_metadata_over_2_kib_is_refused(client: Any, bucket: str) -> None:
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket=bucket, Key="k", Body=b"", Metadata={"a": "x" * 2050})
    assert code_of(refused) == "MetadataTooLarge"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-3", (0, 4)),
        ("bytes=999999-", (999_999, 1_000_000)),
        ("bytes=-10", (999_990, 1_000_000)),
        ("bytes=5-9999999", (5, 1_000_000)),
    ],
)
def test_a_range_is_a_part(
    client: Any, bucket: str, header: str, expected: tuple[int, int]
) -> None:
    data = bytes(range(250)) * 4000
    client.put_object(Bucket=bucket, Key="k", Body=data)
    found = client.get_object(Bucket=bucket, Key="k", Range=header)
    start, end = expected
    assert body_of(found) == data[start:end]
    assert found["ContentRange"] == f"bytes {start}-{end - 1}/{len(data)}"
    assert found["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert client.head_object(Bucket=bucket, Key="k", Range=header)["ContentLength"] == end - start


def test_a_range_beyond_the_end_is_refused(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    with pytest.raises(ClientError) as refused:
        client.get_object(Bucket=bucket, Key="k", Range="bytes=10-")
    assert code_of(refused) == "InvalidRange"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 416
    assert refused.value.response["Error"]["ActualObjectSize"] == "10"


def test_conditions_of_reads(client: Any, bucket: str) -> None:
    etag = client.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    future = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    past = future - dt.timedelta(days=1)
    assert body_of(client.get_object(Bucket=bucket, Key="k", IfMatch=etag)) == b"x"
    assert body_of(client.get_object(Bucket=bucket, Key="k", IfModifiedSince=past)) == b"x"
    for arguments, status in [
        ({"IfNoneMatch": etag}, 304),
        ({"IfModifiedSince": future}, 304),
        ({"IfMatch": '"other"'}, 412),
        ({"IfUnmodifiedSince": past}, 412),
    ]:
        for call in (client.get_object, client.head_object):
            with pytest.raises(ClientError) as refused:
                call(Bucket=bucket, Key="k", **arguments)
            assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    # The connection can be reused.
    assert body_of(client.get_object(Bucket=bucket, Key="k")) == b"x"


def test_conditions_of_writes(client: Any, bucket: str) -> None:
    etag = client.put_object(Bucket=bucket, Key="k", Body=b"first", IfNoneMatch="*")["ETag"]
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket=bucket, Key="k", Body=b"second", IfNoneMatch="*")
    assert code_of(refused) == "PreconditionFailed"
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket=bucket, Key="k", Body=b"second", IfMatch='"other"')
    assert code_of(refused) == "PreconditionFailed"
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket=bucket, Key="none", Body=b"second", IfMatch=etag)
    assert code_of(refused) == "NoSuchKey"
    assert body_of(client.get_object(Bucket=bucket, Key="k")) == b"first"
    client.put_object(Bucket=bucket, Key="k", Body=b"second", IfMatch=etag)
    with pytest.raises(ClientError) as refused:
        client.delete_object(Bucket=bucket, Key="k", IfMatch=etag)
    assert code_of(refused) == "PreconditionFailed"
    assert body_of(client.get_object(Bucket=bucket, Key="k")) == b"second"


def test_an_empty_object_and_one_that_is_replaced(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"")
    assert body_of(client.get_object(Bucket=bucket, Key="k")) == b""
    client.put_object(Bucket=bucket, Key="k", Body=b"y" * 3_000_000)
    reading = client.get_object(Bucket=bucket, Key="k")["Body"]
    first = reading.read(1000)
    client.put_object(Bucket=bucket, Key="k", Body=b"z")
    client.delete_object(Bucket=bucket, Key="k")
    # An object that is being read does not change.
    assert first + reading.read() == b"y" * 3_000_000
    client.delete_object(Bucket=bucket, Key="k")


def test_what_is_missing_is_told(client: Any, bucket: str) -> None:
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: client.get_object(Bucket=bucket, Key="none"), "NoSuchKey"),
        (lambda: client.head_object(Bucket=bucket, Key="none"), "404"),
        (lambda: client.get_object(Bucket="no-such-bucket", Key="k"), "NoSuchBucket"),
        (lambda: client.put_object(Bucket="no-such-bucket", Key="k", Body=b""), "NoSuchBucket"),
        (lambda: client.head_bucket(Bucket="no-such-bucket"), "404"),
        (lambda: client.list_objects_v2(Bucket="no-such-bucket"), "NoSuchBucket"),
        (
            lambda: client.get_object(Bucket=bucket, Key="none", VersionId="v2"),
            "NoSuchVersion",
        ),
    ]
    for call, code in calls:
        with pytest.raises(ClientError) as refused:
            call()
        assert code_of(refused) == code


def test_a_copy_keeps_or_replaces_metadata(client: Any, bucket: str, s3: S3Process) -> None:
    client.put_object(
        Bucket=bucket, Key="a", Body=b"x", ContentType="text/csv", Metadata={"m": "1"}
    )
    source = {"Bucket": bucket, "Key": "a"}
    client.copy_object(Bucket=bucket, Key="b", CopySource=source)
    kept = client.head_object(Bucket=bucket, Key="b")
    assert (kept["ContentType"], kept["Metadata"]) == ("text/csv", {"m": "1"})
    client.copy_object(
        Bucket=bucket,
        Key="a",
        CopySource=source,
        MetadataDirective="REPLACE",
        ContentType="text/plain",
        Metadata={"n": "2"},
    )
    replaced = client.head_object(Bucket=bucket, Key="a")
    assert (replaced["ContentType"], replaced["Metadata"]) == ("text/plain", {"n": "2"})
    with pytest.raises(ClientError) as refused:
        client.copy_object(Bucket=bucket, Key="a", CopySource=source)
    assert code_of(refused) == "InvalidRequest"
    with pytest.raises(ClientError) as refused:
        client.copy_object(Bucket=bucket, Key="c", CopySource=source, CopySourceIfMatch="x")
    assert code_of(refused) == "PreconditionFailed"
    with pytest.raises(ClientError) as refused:
        client.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "none"})
    assert code_of(refused) == "NoSuchKey"


def test_buckets_come_and_go(client: Any, s3: S3Process) -> None:
    client.create_bucket(Bucket="come-and-go")
    client.create_bucket(Bucket="come-and-go")
    assert "come-and-go" in {each["Name"] for each in client.list_buckets()["Buckets"]}
    client.head_bucket(Bucket="come-and-go")
    assert client.get_bucket_location(Bucket="come-and-go")["LocationConstraint"] is None
    assert "Status" not in client.get_bucket_versioning(Bucket="come-and-go")
    client.put_object(Bucket="come-and-go", Key="k", Body=b"x")
    with pytest.raises(ClientError) as refused:
        client.delete_bucket(Bucket="come-and-go")
    assert code_of(refused) == "BucketNotEmpty"
    client.delete_object(Bucket="come-and-go", Key="k")
    client.delete_bucket(Bucket="come-and-go")
    with pytest.raises(ClientError) as refused:
        client.delete_bucket(Bucket="come-and-go")
    assert code_of(refused) == "NoSuchBucket"
    with pytest.raises(ClientError) as refused:
        client.create_bucket(Bucket="Capital_Letters")
    assert code_of(refused) == "InvalidBucketName"


def test_what_is_not_offered_is_said(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    own_key = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
    calls: tuple[Callable[[], Any], ...] = (
        lambda: client.get_bucket_acl(Bucket=bucket),
        lambda: client.get_bucket_policy(Bucket=bucket),
        lambda: client.get_object_tagging(Bucket=bucket, Key="k"),
        lambda: client.put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
        ),
        lambda: client.put_object(Bucket=bucket, Key="k", Body=b"y", ACL="public-read"),
        lambda: client.put_object(Bucket=bucket, Key="k", Body=b"y", Tagging="a=b"),
        lambda: client.put_object(Bucket=bucket, Key="k", Body=b"y", ServerSideEncryption="AES256"),
        lambda: client.put_object(Bucket=bucket, Key="k", Body=b"y", **own_key),
        lambda: client.put_object(Bucket=bucket, Key="k", Body=b"y", GrantReadACP="id=1"),
        lambda: client.put_object(
            Bucket=bucket, Key="k", Body=b"y", ObjectLockRetainUntilDate="2030-01-01"
        ),
        lambda: client.put_object(Bucket=bucket, Key="k", Body=b"y", StorageClass="GLACIER"),
        lambda: client.create_multipart_upload(Bucket=bucket, Key="k", **own_key),
        lambda: client.create_bucket(Bucket="shown-to-all", ACL="public-read"),
    )
    for call in calls:
        with pytest.raises(ClientError) as refused:
            call()
        assert code_of(refused) == "NotImplemented"
    assert body_of(client.get_object(Bucket=bucket, Key="k")) == b"x"
    whole: dict[str, Any] = {"InputSerialization": {"CSV": {}}, "OutputSerialization": {"CSV": {}}}
    for call in (
        lambda: client.get_object(Bucket=bucket, Key="k", **own_key),
        lambda: client.select_object_content(
            Bucket=bucket, Key="k", ExpressionType="SQL", Expression="select 1 from s3object",
            **whole, **own_key,
        ),
        lambda: client.copy_object(
            Bucket=bucket, Key="l", CopySource=f"{bucket}/k", CopySourceSSECustomerAlgorithm="AES256",
            CopySourceSSECustomerKey="k" * 32,
        ),
    ):  # fmt: skip
        with pytest.raises(
            ClientError, match="encryption parameters are not applicable"
        ) as refused:
            call()
        assert code_of(refused) == "InvalidRequest"


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_checksums_are_kept(client: Any, bucket: str, algorithm: str) -> None:
    put = client.put_object(Bucket=bucket, Key="k", Body=b"hello", ChecksumAlgorithm=algorithm)
    name = f"Checksum{algorithm}"
    found = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert found[name] == put[name]
    assert found["ChecksumType"] == "FULL_OBJECT"
    got = client.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert body_of(got) == b"hello"
    assert got[name] == put[name]


def test_files_go_up_and_down_through_the_transfer_manager(client: Any, bucket: str) -> None:
    data = bytes(range(256)) * 80_000
    client.upload_fileobj(io.BytesIO(data), bucket, "big")
    assert client.head_object(Bucket=bucket, Key="big")["ETag"].endswith('-3"')
    target = io.BytesIO()
    client.download_fileobj(bucket, "big", target)
    assert target.getvalue() == data
    client.copy({"Bucket": bucket, "Key": "big"}, bucket, "copied")
    assert body_of(client.get_object(Bucket=bucket, Key="copied")) == data
