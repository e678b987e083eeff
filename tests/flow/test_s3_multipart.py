"""Multipart uploads: parts in any order, interruptions at any time, all or nothing."""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from fixtures.s3 import S3Process

MIB = 1024 * 1024


def code_of(refused: pytest.ExceptionInfo[Any]) -> str:
    return cast("str", refused.value.response["Error"]["Code"])


def part_data(number: int, size: int = 5 * MIB) -> bytes:
    return (b"%08d" % number) * (size // 8)


@pytest.fixture
def client(s3: S3Process) -> Any:
    return s3.client()


@pytest.fixture
def upload(client: Any, bucket: str) -> dict[Any, Any]:
    begun = client.create_multipart_upload(
        Bucket=bucket, Key="big/ü", ContentType="text/csv", Metadata={"a": "b"}
    )
    return {"Bucket": bucket, "Key": "big/ü", "UploadId": begun["UploadId"]}


def put_part(client: Any, upload: Any, number: int, data: bytes, **more: Any) -> dict[str, Any]:
    answer = client.upload_part(**upload, PartNumber=number, Body=data, **more)
    return {"PartNumber": number, "ETag": answer["ETag"]}


def test_parts_arrive_in_any_order_and_twice(client: Any, upload: Any) -> None:
    last = put_part(client, upload, 7, b"the end")
    first = put_part(client, upload, 1, b"x" * 100)
    first = put_part(client, upload, 1, part_data(1))
    middle = put_part(client, upload, 3, part_data(3))
    put_part(client, upload, 5, b"not wanted in the end")
    listed = client.list_parts(**upload)
    assert [part["PartNumber"] for part in listed["Parts"]] == [1, 3, 5, 7]
    assert listed["Parts"][0]["Size"] == 5 * MIB
    paged = client.list_parts(**upload, MaxParts=2, PartNumberMarker=1)
    assert [part["PartNumber"] for part in paged["Parts"]] == [3, 5]
    assert paged["IsTruncated"]
    parts = [first, middle, last]
    done = client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    md5s = b"".join(bytes.fromhex(part["ETag"].strip('"')) for part in parts)
    assert done["ETag"] == f'"{hashlib.md5(md5s).hexdigest()}-3"'
    found = client.get_object(Bucket=upload["Bucket"], Key=upload["Key"])
    assert found["Body"].read() == part_data(1) + part_data(3) + b"the end"
    assert (found["ContentType"], found["Metadata"]) == ("text/csv", {"a": "b"})
    assert found["ETag"] == done["ETag"]
    assert "Uploads" not in client.list_multipart_uploads(Bucket=upload["Bucket"])
    # A repeated request returns the same response, because the first may be lost.
    again = client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    assert again["ETag"] == done["ETag"]


def test_an_abort_leaves_nothing(client: Any, upload: Any, bucket: str) -> None:
    put_part(client, upload, 1, part_data(1))
    (listed,) = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert (listed["Key"], listed["UploadId"]) == (upload["Key"], upload["UploadId"])
    with pytest.raises(ClientError) as refused:
        client.delete_bucket(Bucket=bucket)
    assert code_of(refused) == "BucketNotEmpty"
    client.abort_multipart_upload(**upload)
    for call in (
        lambda: client.abort_multipart_upload(**upload),
        lambda: client.list_parts(**upload),
        lambda: put_part(client, upload, 1, b"x"),
        lambda: client.complete_multipart_upload(
            **upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": "0" * 32}]}
        ),
    ):
        with pytest.raises(ClientError) as refused:
            call()
        assert code_of(refused) == "NoSuchUpload"
    client.delete_bucket(Bucket=bucket)


def test_wrong_lists_are_refused_and_the_upload_goes_on(client: Any, upload: Any) -> None:
    one, two = put_part(client, upload, 1, part_data(1)), put_part(client, upload, 2, b"small")
    three = put_part(client, upload, 3, b"x")
    for parts, code in [
        ([two, one], "InvalidPartOrder"),
        ([one, one], "InvalidPartOrder"),
        ([one, {"PartNumber": 9, "ETag": one["ETag"]}], "InvalidPart"),
        ([one | {"ETag": two["ETag"]}], "InvalidPart"),
        ([one, two, three], "EntityTooSmall"),
        ([], "MalformedXML"),
    ]:
        with pytest.raises(ClientError) as refused:
            client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        assert code_of(refused) == code
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": [one, two]})


@pytest.mark.parametrize("number", [0, 10_001])
def test_part_numbers_are_1_to_10000(client: Any, upload: Any, number: int) -> None:
    with pytest.raises(ClientError) as refused:
        put_part(client, upload, number, b"x")
    assert code_of(refused) == "InvalidArgument"


@pytest.mark.parametrize(("kind", "algorithm"), [("COMPOSITE", "SHA256"), ("FULL_OBJECT", "CRC32")])
def test_checksums_of_parts_become_one_of_the_object(
    client: Any, bucket: str, kind: str, algorithm: str
) -> None:
    begun = client.create_multipart_upload(
        Bucket=bucket, Key="k", ChecksumAlgorithm=algorithm, ChecksumType=kind
    )
    assert (begun["ChecksumAlgorithm"], begun["ChecksumType"]) == (algorithm, kind)
    upload = {"Bucket": bucket, "Key": "k", "UploadId": begun["UploadId"]}
    data = [part_data(1), b"rest"]
    parts = []
    name = f"Checksum{algorithm}"
    for number, each in enumerate(data, 1):
        answer = client.upload_part(
            **upload, PartNumber=number, Body=each, ChecksumAlgorithm=algorithm
        )
        parts.append({"PartNumber": number, "ETag": answer["ETag"], name: answer[name]})
    wrong = [parts[0], parts[1] | {name: parts[0][name]}]
    with pytest.raises(ClientError) as refused:
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": wrong})
    assert code_of(refused) == "InvalidPart"
    done = client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    if kind == "FULL_OBJECT":
        value = zlib.crc32(b"".join(data)).to_bytes(4, "big")
        expected = base64.b64encode(value).decode()
    else:
        digests = b"".join(hashlib.sha256(each).digest() for each in data)
        expected = base64.b64encode(hashlib.sha256(digests).digest()).decode() + "-2"
    assert done[name] == expected
    head = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (head[name], head["ChecksumType"]) == (expected, kind)
    # A copy is one part, so its checksum is of its bytes.
    client.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})
    head = client.head_object(Bucket=bucket, Key="copy", ChecksumMode="ENABLED")
    if kind == "COMPOSITE":
        expected = base64.b64encode(hashlib.sha256(b"".join(data)).digest()).decode()
    assert (head[name], head["ChecksumType"]) == (expected, "FULL_OBJECT")


def test_parts_may_be_copied(client: Any, bucket: str, upload: Any) -> None:
    client.put_object(Bucket=bucket, Key="source", Body=part_data(4, 6 * MIB))
    source = {"Bucket": bucket, "Key": "source"}
    copied = client.upload_part_copy(**upload, PartNumber=1, CopySource=source)
    ranged = client.upload_part_copy(
        **upload, PartNumber=2, CopySource=source, CopySourceRange="bytes=8-15"
    )
    parts = [
        {"PartNumber": number, "ETag": each["CopyPartResult"]["ETag"]}
        for number, each in enumerate((copied, ranged), 1)
    ]
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    found = client.get_object(Bucket=bucket, Key=upload["Key"])["Body"].read()
    assert found == part_data(4, 6 * MIB) + b"00000004"
    with pytest.raises(ClientError) as refused:
        client.upload_part_copy(
            **upload, PartNumber=2, CopySource=source, CopySourceRange="bytes=8-99999999"
        )
    assert code_of(refused) == "NoSuchUpload"


def test_uploads_are_listed_by_key_and_age_in_pages(client: Any, bucket: str) -> None:
    keys = ["a/1", "a/2", "b", "b", "c/1"]
    ids = [client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"] for key in keys]
    paginator = client.get_paginator("list_multipart_uploads")
    found = [
        (each["Key"], each["UploadId"])
        for page in paginator.paginate(Bucket=bucket, PaginationConfig={"PageSize": 2})
        for each in page.get("Uploads", [])
    ]
    assert found == list(zip(keys, ids, strict=True))
    grouped = client.list_multipart_uploads(Bucket=bucket, Delimiter="/")
    assert [each["Prefix"] for each in grouped["CommonPrefixes"]] == ["a/", "c/"]
    assert [each["Key"] for each in grouped["Uploads"]] == ["b", "b"]
    pages = list(paginator.paginate(Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 1}))
    prefixes = [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", [])]
    assert prefixes == ["a/", "c/"]
    assert [each["Key"] for page in pages for each in page.get("Uploads", [])] == ["b", "b"]
    beneath = client.list_multipart_uploads(Bucket=bucket, Prefix="a/")
    assert [each["Key"] for each in beneath["Uploads"]] == ["a/1", "a/2"]


def test_a_condition_is_asked_when_the_object_is_whole(
    client: Any, bucket: str, upload: Any
) -> None:
    part = put_part(client, upload, 1, b"late")
    client.put_object(Bucket=bucket, Key=upload["Key"], Body=b"first")
    with pytest.raises(ClientError) as refused:
        client.complete_multipart_upload(
            **upload, MultipartUpload={"Parts": [part]}, IfNoneMatch="*"
        )
    assert code_of(refused) == "PreconditionFailed"
    found = client.get_object(Bucket=bucket, Key=upload["Key"])["Body"].read()
    assert found == b"first"
