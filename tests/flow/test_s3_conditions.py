"""Requests whose conditions, owners, sizes or parts do not match have no effect."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from botocore.exceptions import ClientError

from fixtures.s3 import S3Process

MIB = 1024 * 1024


def refusal(call: Any, **arguments: Any) -> tuple[Any, Any, Any]:
    """Return the code, status and error of a call that must be rejected."""
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    response = refused.value.response
    return (
        response["Error"]["Code"],
        response["ResponseMetadata"]["HTTPStatusCode"],
        response["Error"],
    )


@pytest.fixture
def client(s3: S3Process) -> Any:
    return s3.client()


@pytest.fixture
def there(client: Any, bucket: str) -> Any:
    """An object `k`, as HeadObject returns it."""
    client.put_object(Bucket=bucket, Key="k", Body=b"12345")
    return client.head_object(Bucket=bucket, Key="k")


CONDITIONS = ["IfMatch", "IfMatchSize", "IfMatchLastModifiedTime"]


def one(there: Any, name: str, *, holds: bool) -> dict[Any, Any]:
    good = {
        "IfMatch": there["ETag"],
        "IfMatchSize": there["ContentLength"],
        "IfMatchLastModifiedTime": there["LastModified"],
    }
    bad = {
        "IfMatch": '"other"',
        "IfMatchSize": there["ContentLength"] + 1,
        "IfMatchLastModifiedTime": there["LastModified"] - dt.timedelta(seconds=1),
    }
    return {name: (good if holds else bad)[name]}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_deletion_whose_condition_does_not_hold_deletes_nothing(
    client: Any, bucket: str, there: Any, name: str
) -> None:
    asked = {"Bucket": bucket, "Key": "k"}
    wrong = asked | one(there, name, holds=False)
    assert refusal(client.delete_object, **wrong)[:2] == ("PreconditionFailed", 412)
    client.head_object(**asked)
    # If there are several conditions, each must be true.
    for other in CONDITIONS:
        if other != name:
            both = wrong | one(there, other, holds=True)
            assert refusal(client.delete_object, **both)[0] == "PreconditionFailed"
    client.head_object(**asked)
    client.delete_object(**asked, **one(there, name, holds=True))
    assert refusal(client.head_object, **asked)[1] == 404


@pytest.mark.parametrize("name", CONDITIONS)
def test_each_deletion_of_many_has_its_own_condition(
    client: Any, bucket: str, there: Any, name: str
) -> None:
    client.put_object(Bucket=bucket, Key="free", Body=b"x")
    element = {"IfMatch": "ETag", "IfMatchSize": "Size"}.get(name, "LastModifiedTime")

    def delete(*, holds: bool) -> Any:
        (value,) = one(there, name, holds=holds).values()
        objects = [{"Key": "k", element: value}, {"Key": "free"}]
        return client.delete_objects(Bucket=bucket, Delete={"Objects": objects})

    answer = delete(holds=False)
    assert [each["Key"] for each in answer["Deleted"]] == ["free"]
    assert [(each["Key"], each["Code"]) for each in answer["Errors"]] == [
        ("k", "PreconditionFailed")
    ]
    client.head_object(Bucket=bucket, Key="k")
    assert {each["Key"] for each in delete(holds=True)["Deleted"]} == {"k", "free"}


def test_a_deletion_may_ask_that_there_is_an_object(client: Any, bucket: str, there: Any) -> None:
    client.delete_object(Bucket=bucket, Key="k", IfMatch="*")
    for etag in ("*", there["ETag"]):
        found = refusal(client.delete_object, Bucket=bucket, Key="k", IfMatch=etag)
        assert found[:2] == ("NoSuchKey", 404)
    # As in S3, these two succeed if the object does not exist.
    client.delete_object(Bucket=bucket, Key="k", IfMatchSize=1)
    client.delete_object(
        Bucket=bucket, Key="k", IfMatchLastModifiedTime=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    )


@pytest.mark.parametrize(
    ("condition", "header"),
    [
        ({"IfMatch": "*"}, "If-Match"),
        ({"IfNoneMatch": '"etag"'}, "If-None-Match"),
        ({"IfMatch": '"etag"', "IfNoneMatch": "*"}, "If-Match,If-None-Match"),
    ],
)
def test_conditions_that_s3_does_not_know_of_writes_write_nothing(
    client: Any, bucket: str, there: Any, condition: dict[str, str], header: str
) -> None:
    upload = client.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    part = client.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"y")[
        "ETag"
    ]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    for call in (
        lambda **given: client.put_object(Bucket=bucket, Key="k", Body=b"y", **given),
        lambda **given: client.copy_object(
            Bucket=bucket, Key="k", CopySource=f"{bucket}/k", **given
        ),
        lambda **given: client.complete_multipart_upload(
            Bucket=bucket, Key="k", UploadId=upload, MultipartUpload=parts, **given
        ),
    ):
        code, status, error = refusal(call, **condition)
        assert (code, status, error["Header"]) == ("NotImplemented", 501, header)
    assert client.head_object(Bucket=bucket, Key="k")["ETag"] == there["ETag"]


def test_an_owner_that_is_expected_is_compared(client: Any, bucket: str, there: Any) -> None:
    owner = client.list_objects_v2(Bucket=bucket, FetchOwner=True)["Contents"][0]["Owner"]["ID"]
    asked = {"Bucket": bucket, "Key": "k"}
    for expected, works in ((owner, True), ("123456789012", False)):
        calls = [
            lambda given: client.head_object(**asked, **given),
            lambda given: client.list_objects_v2(Bucket=bucket, **given),
            lambda given: client.head_bucket(Bucket=bucket, **given),
            lambda given: client.put_object(**asked | {"Key": "l"}, Body=b"x", **given),
            lambda given: client.copy_object(
                Bucket=bucket,
                Key="l",
                CopySource=f"{bucket}/k",
                ExpectedSourceBucketOwner=given["ExpectedBucketOwner"],
            ),
            lambda given: client.delete_object(**asked, **given),
        ]
        for call in calls if works else reversed(calls):
            if works:
                call({"ExpectedBucketOwner": expected})
            else:
                assert refusal(call, given={"ExpectedBucketOwner": expected})[1] == 403
        if works:
            client.put_object(**asked, Body=b"12345")
    assert client.head_object(**asked)["ETag"] == there["ETag"]


@pytest.fixture
def in_parts(client: Any, bucket: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    sizes = [5 * MIB, 5 * MIB, 7]
    upload = client.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"]
    asked = {"Bucket": bucket, "Key": "parts", "UploadId": upload}
    done = [
        client.upload_part(**asked, PartNumber=3 * at + 2, Body=bytes([at]) * size)
        for at, size in enumerate(sizes)
    ]
    parts = [{"PartNumber": 3 * at + 2, "ETag": each["ETag"]} for at, each in enumerate(done)]
    return asked, parts


def test_parts_of_an_object_are_got_by_number(
    client: Any, bucket: str, in_parts: tuple[dict[str, Any], list[dict[str, Any]]]
) -> None:
    asked, parts = in_parts
    client.complete_multipart_upload(**asked, MultipartUpload={"Parts": parts})
    where = {"Bucket": bucket, "Key": "parts"}
    for number, size in enumerate([5 * MIB, 5 * MIB, 7], 1):
        got = client.get_object(**where, PartNumber=number)
        start = (number - 1) * 5 * MIB
        told = client.head_object(**where, PartNumber=number)
        for each in (got, told):
            assert each["PartsCount"] == 3
            assert each["ContentLength"] == size
            assert each["ContentRange"] == f"bytes {start}-{start + size - 1}/{10 * MIB + 7}"
            assert each["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert got["Body"].read() == bytes([number - 1]) * size
    code, status, error = refusal(client.get_object, **where, PartNumber=4)
    assert (code, status) == ("InvalidPartNumber", 416)
    assert (error["ActualPartCount"], error["PartNumberRequested"]) == ("3", "4")
    assert refusal(client.head_object, **where, PartNumber=4)[1] == 416
    assert refusal(client.get_object, **where, PartNumber=0)[0] == "InvalidArgument"
    assert refusal(client.get_object, **where, PartNumber=1, Range="bytes=0-1")[0] == (
        "InvalidRequest"
    )
    whole = client.head_object(**where)
    assert "PartsCount" not in whole
    assert whole["ContentLength"] == 10 * MIB + 7
    assert whole["Metadata"] == {}


def test_an_object_that_came_whole_is_its_first_part(client: Any, bucket: str, there: Any) -> None:
    del there
    got = client.get_object(Bucket=bucket, Key="k", PartNumber=1)
    assert (got["Body"].read(), got["ContentRange"]) == (b"12345", "bytes 0-4/5")
    assert "PartsCount" not in got
    assert refusal(client.get_object, Bucket=bucket, Key="k", PartNumber=2)[:2] == (
        "InvalidPartNumber",
        416,
    )


def test_what_is_said_of_the_whole_is_compared_when_it_is_completed(
    client: Any, in_parts: tuple[dict[str, Any], list[dict[str, Any]]]
) -> None:
    asked, parts = in_parts
    listed = {"Parts": parts}
    complete = client.complete_multipart_upload
    cases: list[tuple[dict[str, Any], str]] = [
        ({"MpuObjectSize": 10 * MIB}, "InvalidRequest"),
        ({"ChecksumType": "FULL_OBJECT", "ChecksumSHA256": "x"}, "InvalidRequest"),
        ({"ChecksumSHA256": "x" * 43 + "="}, "InvalidRequest"),
    ]
    for given, code in cases:
        assert refusal(complete, **asked, MultipartUpload=listed, **given)[0] == code
    twice = {"Parts": [parts[0], parts[0], *parts[1:]]}
    code, status, error = refusal(complete, **asked, MultipartUpload=twice)
    assert (code, status) == ("InvalidPartOrder", 400)
    assert error["UploadId"] == asked["UploadId"]
    complete(**asked, MultipartUpload=listed, MpuObjectSize=10 * MIB + 7)


def test_a_part_has_the_checksum_that_its_upload_began_with(client: Any, bucket: str) -> None:
    upload = client.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm="SHA256")
    asked = {"Bucket": bucket, "Key": "k", "UploadId": upload["UploadId"], "PartNumber": 1}
    found = refusal(client.upload_part, **asked, Body=b"x", ChecksumAlgorithm="CRC32")
    assert (found[0], "expected checksum Type: sha256" in found[2]["Message"]) == (
        "InvalidRequest",
        True,
    )
    client.upload_part(**asked, Body=b"x", ChecksumAlgorithm="SHA256")


def test_an_abort_may_name_when_the_upload_began(client: Any, bucket: str) -> None:
    upload = client.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    (listed,) = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    asked = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    wrong = listed["Initiated"] - dt.timedelta(seconds=1)
    found = refusal(client.abort_multipart_upload, **asked, IfMatchInitiatedTime=wrong)
    assert found[:2] == ("PreconditionFailed", 412)
    client.abort_multipart_upload(**asked, IfMatchInitiatedTime=listed["Initiated"])


def test_a_copy_gets_the_checksum_that_is_asked_for(client: Any, bucket: str, there: Any) -> None:
    del there
    copied = client.copy_object(
        Bucket=bucket, Key="c", CopySource=f"{bucket}/k", ChecksumAlgorithm="SHA256"
    )["CopyObjectResult"]
    put = client.put_object(Bucket=bucket, Key="k", Body=b"12345", ChecksumAlgorithm="SHA256")
    assert copied["ChecksumSHA256"] == put["ChecksumSHA256"]
