"""Mounted buckets, with another S3 server or a folder of files as backend."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from fixtures.s3 import S3Process, Seaweed

MIB = 1024 * 1024


def code_of(refused: pytest.ExceptionInfo[Any]) -> str:
    return cast("str", refused.value.response["Error"]["Code"])


@pytest.fixture
def front(own_s3: S3Process, seaweed: Seaweed, tmp_path: Path) -> S3Process:
    """An endpoint with a mounted bucket of another server and a mounted folder."""
    folder = tmp_path / "exports"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.csv").write_bytes(b"1,2\n")
    own_s3.service.environment.update(seaweed.environment)
    own_s3.start(s3_backend=f"s3://front,files={folder}")
    own_s3.add_user("admin", "accountadmin")
    return own_s3


def keys_of(listed: Any) -> list[str]:
    return [each["Key"] for each in listed.get("Contents", [])]


@pytest.mark.slow
def test_a_bucket_elsewhere_is_read_and_written_through(front: S3Process, seaweed: Seaweed) -> None:
    behind, client = seaweed.client(), front.client()
    behind.put_object(Bucket="front", Key="was/there", Body=b"old", ContentType="text/csv")
    names = {each["Name"] for each in client.list_buckets()["Buckets"]}
    assert names == {"front", "files"}
    found = client.get_object(Bucket="front", Key="was/there")
    assert (found["Body"].read(), found["ContentType"]) == (b"old", "text/csv")
    etag = client.put_object(
        Bucket="front", Key="new", Body=b"x" * 1000, ContentType="a/b", Metadata={"m": "1"}
    )["ETag"]
    direct = behind.get_object(Bucket="front", Key="new")
    assert (direct["Body"].read(), direct["ContentType"]) == (b"x" * 1000, "a/b")
    assert (direct["Metadata"], direct["ETag"]) == ({"m": "1"}, etag)
    ranged = client.get_object(Bucket="front", Key="new", Range="bytes=990-", IfMatch=etag)
    assert ranged["Body"].read() == b"x" * 10
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket="front", Key="new", Body=b"y", IfNoneMatch="*")
    assert code_of(refused) == "PreconditionFailed"
    client.copy_object(Bucket="front", Key="copied", CopySource={"Bucket": "front", "Key": "new"})
    assert behind.head_object(Bucket="front", Key="copied")["Metadata"] == {"m": "1"}
    data = bytes(range(256)) * (12 * MIB // 256)
    client.upload_fileobj(io.BytesIO(data), "front", "big")
    assert behind.get_object(Bucket="front", Key="big")["Body"].read() == data
    assert client.get_object(Bucket="front", Key="big")["Body"].read() == data
    assert keys_of(client.list_objects_v2(Bucket="front")) == ["big", "copied", "new", "was/there"]
    listed = client.list_objects_v2(Bucket="front", Delimiter="/", MaxKeys=2)
    assert keys_of(listed) == ["big", "copied"]
    listed = client.list_objects_v2(
        Bucket="front", Delimiter="/", ContinuationToken=listed["NextContinuationToken"]
    )
    assert keys_of(listed) == ["new"]
    assert [each["Prefix"] for each in listed["CommonPrefixes"]] == ["was/"]
    assert keys_of(client.list_objects_v2(Bucket="front", Prefix="was/th")) == ["was/there"]
    assert keys_of(client.list_objects_v2(Bucket="front", StartAfter="copied")) == [
        "new",
        "was/there",
    ]
    after_folder = client.list_objects_v2(Bucket="front", Delimiter="/", StartAfter="was/")
    assert [each["Prefix"] for each in after_folder["CommonPrefixes"]] == ["was/"]
    wanted = [{"Key": key} for key in ("big", "copied", "new", "was/there", "none")]
    assert "Errors" not in client.delete_objects(Bucket="front", Delete={"Objects": wanted})
    assert "Contents" not in behind.list_objects_v2(Bucket="front")
    with pytest.raises(ClientError) as refused:
        client.get_object(Bucket="front", Key="new")
    assert code_of(refused) == "NoSuchKey"
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket="front", Key="a//b", Body=b"")
    assert code_of(refused) == "InvalidArgument"
    with pytest.raises(ClientError) as refused:
        client.delete_bucket(Bucket="front")
    assert code_of(refused) == "MethodNotAllowed"


@pytest.mark.slow
def test_a_folder_is_a_bucket(front: S3Process, tmp_path: Path) -> None:
    client = front.client()
    found = client.get_object(Bucket="files", Key="deep/a.csv")
    assert (found["Body"].read(), found["ContentType"]) == (b"1,2\n", "text/csv")
    client.put_object(Bucket="files", Key="deep/b.csv", Body=b"3,4\n")
    assert (tmp_path / "exports" / "deep" / "b.csv").read_bytes() == b"3,4\n"
    assert keys_of(client.list_objects_v2(Bucket="files")) == ["deep/a.csv", "deep/b.csv"]
    for key in ("../secret", "/etc/passwd", "deep/../../secret"):
        with pytest.raises(ClientError) as refused:
            client.get_object(Bucket="files", Key=key)
        assert code_of(refused) == "NoSuchKey"
        with pytest.raises(ClientError) as refused:
            client.put_object(Bucket="files", Key=key, Body=b"x")
        assert code_of(refused) == "InvalidArgument"
    front.add_user("reader", "readers")
    with pytest.raises(ClientError) as refused:
        front.client("reader").list_objects_v2(Bucket="files")
    assert code_of(refused) == "AccessDenied"
    # Without its backend the bucket does not exist, but its grants remain.
    front.service.sql("GRANT READ ON BUCKET files TO ROLE readers")
    front.service.stop()
    front.start()
    assert front.client().list_buckets()["Buckets"] == []
    front.service.stop()
    front.start(s3_backend=f"files={tmp_path / 'exports'}")
    listed = front.client("reader").list_objects_v2(Bucket="files", Prefix="deep/")
    assert keys_of(listed) == ["deep/a.csv", "deep/b.csv"]
