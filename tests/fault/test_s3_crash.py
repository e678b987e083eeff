"""kill -9 at every step of a write: each object is the complete old or new one, and no file is left."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable

import pytest
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from fixtures.s3 import S3Process

pytestmark = pytest.mark.slow

OLD, NEW = b"old" * 400_000, b"new!" * 2_000_000


def files_of(process: S3Process) -> list[str]:
    objects = process.service.data_dir / "objects"
    return [path.name for path in objects.rglob("*") if path.is_file()]


def wait_until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("fault", "survivor"),
    [
        ("object.writing=kill:1", OLD),
        ("object.writing=kill:6", OLD),
        ("object.written=kill", OLD),
        ("object.indexing=kill", OLD),
        ("object.indexed=kill", NEW),
    ],
)
def test_a_put_that_is_killed_leaves_the_old_object_or_the_new(
    own_s3: S3Process, fault: str, survivor: bytes
) -> None:
    own_s3.start()
    own_s3.add_user("admin", "accountadmin")
    client = own_s3.client()
    client.create_bucket(Bucket="crash")
    client.put_object(Bucket="crash", Key="k", Body=OLD)
    own_s3.service.stop()
    own_s3.start(fault=fault)
    with pytest.raises((BotoCoreError, ClientError, HTTPClientError)):
        own_s3.client().put_object(Bucket="crash", Key="k", Body=NEW)
    own_s3.service.wait_for_death()
    own_s3.start()
    assert own_s3.client().get_object(Bucket="crash", Key="k")["Body"].read() == survivor
    # Files that the crash left are found and deleted.
    wait_until(lambda: len(files_of(own_s3)) == 1)
    assert own_s3.client().get_object(Bucket="crash", Key="k")["Body"].read() == survivor


def test_what_was_acknowledged_survives_a_kill_at_any_moment(own_s3: S3Process) -> None:
    own_s3.start()
    own_s3.add_user("admin", "accountadmin")
    client = own_s3.client()
    client.create_bucket(Bucket="crash")
    upload = client.create_multipart_upload(Bucket="crash", Key="parts")
    part = client.upload_part(
        Bucket="crash", Key="parts", UploadId=upload["UploadId"], PartNumber=1, Body=b"part"
    )
    url = own_s3.client(signature_version="s3v4").generate_presigned_url(
        "put_object", {"Bucket": "crash", "Key": "half"}
    )
    for number in range(20):
        client.put_object(Bucket="crash", Key=f"k/{number}", Body=b"%d" % number * 1000)
    connection = http.client.HTTPConnection("127.0.0.1", own_s3.port)
    connection.putrequest("PUT", url.partition(f":{own_s3.port}")[2])
    connection.putheader("Content-Length", "9000000")
    connection.endheaders(b"x" * 4_000_000)
    own_s3.service.kill()
    connection.close()
    own_s3.start()
    client = own_s3.client()
    listed = client.list_objects_v2(Bucket="crash")["Contents"]
    assert sorted(each["Key"] for each in listed) == sorted(f"k/{n}" for n in range(20))
    for number in range(20):
        found = client.get_object(Bucket="crash", Key=f"k/{number}")["Body"].read()
        assert found == b"%d" % number * 1000
    client.complete_multipart_upload(
        Bucket="crash",
        Key="parts",
        UploadId=upload["UploadId"],
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
    )
    assert client.get_object(Bucket="crash", Key="parts")["Body"].read() == b"part"
    wait_until(lambda: len(files_of(own_s3)) == 21)
