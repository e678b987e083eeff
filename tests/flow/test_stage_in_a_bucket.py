"""Clients on other machines upload blobs through the S3 endpoint to a stage in a bucket or folder."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import hashlib
import http.client
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import snowmelt
from fixtures.s3 import ROLE, S3Process, Seaweed
from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.blob.encryption import make_blob_path
from snowmelt.cli.commands.doctor import CheckStatus, check_stage_role
from snowmelt.client.auth import KeyPairTokenProvider, load_private_key
from snowmelt.client.stage import encode_url_path
from snowmelt.client.transport import parse_service_url
from snowmelt.clock import SystemClock
from snowmelt.sigv4 import AwsCredentials, SignableRequest, sign_headers
from snowmelt.table.table_reader import read_table
from support.ports import free_port
from support.sdk_table import SOON, rows
from support.stage_service import NAME, House, T

if TYPE_CHECKING:
    from snowmelt.client.service_requests import ApiClient

NOW = dt.datetime.now(dt.UTC)
OTHERS = KeyPair.generate()


both = pytest.mark.parametrize(
    "house", ["folder", pytest.param("bucket", marks=pytest.mark.slow)], indirect=True
)


@pytest.fixture
def house(
    request: pytest.FixtureRequest,
    own_s3: S3Process,
    tmp_path: Path,
    key_pair: KeyPair,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[House]:
    stage_url = str(tmp_path / "elsewhere")
    if getattr(request, "param", "folder") == "bucket":
        seaweed = request.getfixturevalue("seaweed")
        own_s3.service.environment.update(seaweed.environment)
        for name, value in seaweed.environment.items():
            monkeypatch.setenv(name, value)
        stage_url = f"s3://behind/stage-{uuid.uuid4().hex[:8]}"
    house = House(own_s3, stage_url, key_pair)
    yield house
    house.close()


def boto(calls: ApiClient, **other: str) -> Any:
    location = calls.upload_grant.location
    given: dict[str, Any] = {
        "aws_access_key_id": location.creds["AWS_KEY_ID"],
        "aws_secret_access_key": location.creds["AWS_SECRET_KEY"],
        "aws_session_token": location.creds["AWS_TOKEN"],
    } | other
    return boto3.client(
        "s3",
        endpoint_url=location.endPoint,
        region_name=location.region,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        **given,
    )


def place(calls: ApiClient) -> tuple[str, str]:
    """Bucket, and folder with a trailing slash, to which a client may upload."""
    bucket, _, folder = calls.upload_grant.location.location.partition("/")
    return bucket, folder


def refusal(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(ClientError) as refused:
        call(*arguments, **named)
    return cast("str", refused.value.response["Error"]["Code"])


@both
def test_rows_are_streamed_read_migrated_and_cleaned_up_through_a_service_killed(
    house: Any,
) -> None:
    with house.client() as client:
        channel = client.open_channel("c", table=T)
        channel.insert_rows(rows(0, 1000), "a")
        channel.wait_for_commit("a", timeout=SOON)
        assert house.ids() == list(range(1000))
        house.process.service.kill()
        channel.insert_rows(rows(1000, 2000), "b")
        house.start()
        channel.wait_for_commit("b", timeout=SOON)
        assert house.ids() == list(range(2000))
        house.migrate()
        channel.insert_rows(rows(2000, 2100), "c")
        channel.wait_for_commit("c", timeout=SOON)
        before = house.blobs()
        house.clean()
        assert len(before) > len(house.blobs()) > 0
    migrated = read_table(house.database, house.keyring, house.stage, NAME)
    assert sorted(map(int, migrated.column("ID").to_pylist())) == list(range(2100))


@both
def test_the_official_clients_kind_of_upload_is_taken(house: Any) -> None:
    calls = house.calls()
    assert calls.upload_grant.location.locationType == "S3"
    assert calls.upload_grant.location.presignedUrl is None
    bucket, folder = place(calls)
    own = folder + make_blob_path(NOW, calls.prefix, 0, 0)
    client = boto(calls)
    client.put_object(Bucket=bucket, Key=own, Body=b"a" * 1000)
    assert house.stage.get(own) == b"a" * 1000
    own = folder + make_blob_path(NOW, calls.prefix, 0, 1)
    parts = client.create_multipart_upload(Bucket=bucket, Key=own)["UploadId"]
    given: dict[str, Any] = {"Bucket": bucket, "Key": own, "UploadId": parts}
    etag = client.upload_part(PartNumber=1, Body=b"b" * 6 * 2**20, **given)["ETag"]
    whole = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    client.complete_multipart_upload(MultipartUpload=whole, **given)
    assert house.stage.get(own) == b"b" * 6 * 2**20


def test_credentials_are_for_uploads_of_the_clients_own_blobs_only(house: House) -> None:
    mine, sibling = house.calls(), house.calls()
    bucket, folder = place(mine)
    client = boto(mine)
    own = folder + make_blob_path(NOW, mine.prefix, 0, 0)
    client.put_object(Bucket=bucket, Key=own, Body=b"mine")
    theirs = place(sibling)[1] + make_blob_path(NOW, sibling.prefix, 0, 0)
    posing = folder + make_blob_path(NOW, sibling.prefix, 0, 1)
    for key in (theirs, posing, folder + "any.bdec", "x" + own, folder + "../" + own, "any"):
        assert refusal(client.put_object, Bucket=bucket, Key=key, Body=b"x") == "AccessDenied"
    source = {"Bucket": bucket, "Key": own}
    assert refusal(client.copy_object, Bucket=bucket, Key=own, CopySource=source) == "AccessDenied"
    for call in (client.get_object, client.delete_object):
        assert refusal(call, Bucket=bucket, Key=own) == "AccessDenied"
    for call in (client.list_objects_v2, client.delete_bucket, client.create_bucket):
        assert refusal(call, Bucket=bucket) == "AccessDenied"
    assert refusal(client.list_buckets) == "AccessDenied"
    assert house.blobs() == [own]


def test_a_blob_on_the_stage_is_never_replaced(house: House) -> None:
    calls = house.calls()
    client = boto(calls)
    bucket, folder = place(calls)
    own = folder + make_blob_path(NOW, calls.prefix, 0, 0)
    client.put_object(Bucket=bucket, Key=own, Body=b"verified")
    client.put_object(Bucket=bucket, Key=own, Body=b"verified")
    other = {"Bucket": bucket, "Key": own, "Body": b"garbled!"}
    assert refusal(client.put_object, **other) == "PreconditionFailed"
    given: dict[str, Any] = {"Bucket": bucket, "Key": own}
    given["UploadId"] = client.create_multipart_upload(**given)["UploadId"]
    etag = client.upload_part(PartNumber=1, Body=b"garbled!", **given)["ETag"]
    whole = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    completed = refusal(client.complete_multipart_upload, MultipartUpload=whole, **given)
    assert completed == "PreconditionFailed"
    assert house.stage.get(own) == b"verified"


@pytest.mark.slow
def test_clients_upload_to_the_bucket_itself_with_a_role_narrowed_to_their_prefix(
    seaweed: Seaweed, own_s3: S3Process, key_pair: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = seaweed.environment | {"SNOWMELT_STAGE_ROLE": ROLE}
    own_s3.service.environment.update(given)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    folder = f"stage-{uuid.uuid4().hex[:8]}"
    house = House(own_s3, f"s3://behind/{folder}", key_pair)
    try:
        with house.client() as client:
            assert client._api_client.upload_grant.location.endPoint == seaweed.url
            channel = client.open_channel("c", table=T)
            channel.insert_rows(rows(0, 100), "all")
            channel.wait_for_commit("all", timeout=SOON)
        assert house.ids() == list(range(100))
        streamed = house.blobs()

        mine, sibling = house.calls(), house.calls()
        bucket, place_of_mine = place(mine)
        assert place_of_mine == f"{folder}/{mine.prefix.partition('_')[0]}/"
        narrow = boto(mine)
        own = place_of_mine + make_blob_path(NOW, mine.prefix, 0, 0)
        narrow.put_object(Bucket=bucket, Key=own, Body=b"mine")
        theirs = place(sibling)[1] + make_blob_path(NOW, sibling.prefix, 0, 0)
        for key in (theirs, f"{folder}/any", "any"):
            assert refusal(narrow.put_object, Bucket=bucket, Key=key, Body=b"x") == "AccessDenied"
        for call in (narrow.get_object, narrow.delete_object):
            assert refusal(call, Bucket=bucket, Key=own) == "AccessDenied"
        assert refusal(narrow.list_objects_v2, Bucket=bucket) == "AccessDenied"

        again = mine.renew_upload_grant()
        assert again.location.location == mine.upload_grant.location.location
        assert again.location.creds != mine.upload_grant.location.creds
        secrets = [
            mine.upload_grant.location.creds[each] for each in ("AWS_SECRET_KEY", "AWS_TOKEN")
        ]
        assert not [each for each in secrets if each in house.process.service.log]
        settings = dataclasses.replace(house.settings, stage_url=house.stage_url, stage_role=ROLE)
        check = check_stage_role(settings, SystemClock())
        assert check.finding is CheckStatus.FINE, check.detail
        assert house.blobs() == sorted([own.removeprefix(f"{folder}/"), *streamed])
        # The official client cannot renew credentials for one prefix, so it uploads through the
        # service.
        assert configured(house, key_pair)["stage_location"]["endPoint"] == house.process.url
    finally:
        house.close()


def test_forged_tokens_and_those_of_others_open_nothing(house: House) -> None:
    mine, sibling = house.calls(), house.calls()
    bucket, folder = place(mine)
    put = {"Bucket": bucket, "Key": folder + make_blob_path(NOW, mine.prefix, 0, 0), "Body": b"x"}
    token = mine.upload_grant.location.creds["AWS_TOKEN"]
    raw = bytearray(base64.urlsafe_b64decode(token))
    raw[20] ^= 1
    forged = base64.urlsafe_b64encode(raw).decode()
    swapped = sibling.upload_grant.location.creds["AWS_TOKEN"]
    for each in (forged, swapped, "x", "A" * 5000):
        assert refusal(boto(mine, aws_session_token=each).put_object, **put) == "InvalidToken"
    wrong = boto(mine, aws_secret_access_key="x" * 40)
    assert refusal(wrong.put_object, **put) == "SignatureDoesNotMatch"
    assert house.blobs() == []


def test_the_user_of_a_token_may_be_dropped(house: House) -> None:
    house.process.service.sql(f"CREATE USER gone RSA_PUBLIC_KEY = '{OTHERS.public_base64}'")
    calls = house.calls("gone", OTHERS)
    bucket, folder = place(calls)
    house.process.service.sql("DROP USER gone")
    put = {"Bucket": bucket, "Key": folder + make_blob_path(NOW, calls.prefix, 0, 0), "Body": b"x"}
    assert refusal(boto(calls).put_object, **put) == "InvalidToken"


def test_a_prefix_is_renewed_for_its_own_user_only(house: House) -> None:
    house.process.service.sql(f"CREATE USER other RSA_PUBLIC_KEY = '{OTHERS.public_base64}'")
    mine, theirs = house.calls(), house.calls("other", OTHERS)
    again = mine.renew_upload_grant()
    assert again.location.location == mine.upload_grant.location.location
    assert again.location.creds != mine.upload_grant.location.creds
    theirs.prefix = mine.prefix
    with pytest.raises(snowmelt.SnowmeltError, match="was not issued to this user"):
        theirs.renew_upload_grant()


def configured(house: House, key_pair: KeyPair) -> dict[str, Any]:
    """Request a stage as the official client does."""
    service = parse_service_url(house.process.service.url)
    key = load_private_key(key_pair.private_pem)
    token = KeyPairTokenProvider(service.account, "loader", key, SystemClock()).get_token()
    answer = httpx.post(
        f"{service.url}/v1/streaming/client/configure/",
        content=json.dumps({"role": None}),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        timeout=60,
    )
    return cast("dict[str, Any]", answer.json())


def test_the_official_client_goes_on_with_its_first_prefix_after_it_asked_again(
    house: House, key_pair: KeyPair
) -> None:
    first, again = configured(house, key_pair), configured(house, key_pair)
    named = make_blob_path(NOW, f"{first['prefix']}_{first['deployment_id']}", 0, 0)
    location = again["stage_location"]
    bucket, _, folder = location["location"].partition("/")
    client = boto3.client(
        "s3",
        endpoint_url=location["endPoint"],
        region_name=location["region"],
        aws_access_key_id=location["creds"]["AWS_KEY_ID"],
        aws_secret_access_key=location["creds"]["AWS_SECRET_KEY"],
        aws_session_token=location["creds"]["AWS_TOKEN"],
        config=Config(s3={"addressing_style": "path"}),
    )
    client.put_object(Bucket=bucket, Key=folder + named, Body=b"x")
    assert house.blobs() == [f"{first['prefix']}/{named}"]
    foreign = make_blob_path(NOW, "aaaabbbbccccdddd" + house.suffix, 0, 0)
    assert refusal(client.put_object, Bucket=bucket, Key=folder + foreign, Body=b"x")


def test_credentials_are_renewed_before_they_expire_and_none_is_logged(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.process.service.kill()
    house.start(stage_credentials_s=2, log_level="debug")
    calls = house.calls()
    with caplog.at_level("DEBUG", logger="snowmelt"), house.client() as client:
        channel = client.open_channel("c", table=T)
        for n in range(8):
            channel.insert_rows(rows(n * 10, n * 10 + 10), str(n))
            channel.wait_for_commit(str(n), timeout=SOON)
            SystemClock().sleep(0.5)
        bucket, folder = place(calls)
        put = {
            "Bucket": bucket,
            "Key": folder + make_blob_path(NOW, calls.prefix, 0, 0),
            "Body": b"x",
        }
        assert refusal(boto(calls).put_object, **put) == "ExpiredToken"
        seen = {
            *calls.upload_grant.location.creds.values(),
            *client._api_client.upload_grant.location.creds.values(),
        }
    assert house.ids() == list(range(80))
    written = house.process.service.log + caplog.text + repr(calls.upload_grant)
    hidden = {each for each in seen if not each.startswith("SMST")}
    assert len(hidden) == 4
    assert not [each for each in hidden if each in written]


def test_credentials_that_end_within_an_upload_do_not_spoil_it(house: House) -> None:
    house.process.service.kill()
    house.start(stage_credentials_s=6)
    calls = house.calls()
    bucket, folder = place(calls)
    begun, parted, late = (folder + make_blob_path(NOW, calls.prefix, 0, n) for n in range(3))
    half = b"h" * 100_000
    connection = half_sent(calls, f"{bucket}/{begun}", half)
    client = boto(calls)
    upload = client.create_multipart_upload(Bucket=bucket, Key=parted)["UploadId"]
    given: dict[str, Any] = {"Bucket": bucket, "Key": parted, "UploadId": upload}
    first = client.upload_part(PartNumber=1, Body=b"1" * 5 * 2**20, **given)["ETag"]
    refused = ""
    for _ in range(300):
        try:
            client.put_object(Bucket=bucket, Key=late, Body=b"x")
        except ClientError as error:
            refused = error.response["Error"]["Code"]
            break
        SystemClock().sleep(0.1)
    assert refused == "ExpiredToken"
    # A body whose first half was accepted is accepted completely.
    connection.send(half)
    assert connection.getresponse().status == 200
    connection.close()
    assert house.stage.get(begun) == half * 2
    # The next part is rejected, and accepted with new credentials: the upload continues.
    assert refusal(client.upload_part, PartNumber=2, Body=b"2", **given) == "ExpiredToken"
    calls.upload_grant = calls.renew_upload_grant()
    client = boto(calls)
    second = client.upload_part(PartNumber=2, Body=b"2", **given)["ETag"]
    parts = [{"PartNumber": n, "ETag": tag} for n, tag in ((1, first), (2, second))]
    client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **given)
    assert house.stage.get(parted) == b"1" * 5 * 2**20 + b"2"


def half_sent(calls: ApiClient, path: str, half: bytes) -> http.client.HTTPConnection:
    """Start an upload of twice these bytes, and send them once."""
    location = calls.upload_grant.location
    assert location.endPoint is not None
    where = urlsplit(location.endPoint)
    creds = AwsCredentials(
        location.creds["AWS_KEY_ID"], location.creds["AWS_SECRET_KEY"], location.creds["AWS_TOKEN"]
    )
    digest = hashlib.sha256(half * 2).hexdigest()
    request = SignableRequest("PUT", encode_url_path(path), (), {"host": where.netloc}, digest)
    assert location.region is not None
    headers = sign_headers(
        request, creds, region=location.region, service="s3", signed_at=SystemClock().now()
    )
    assert where.hostname is not None
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    connection.putrequest("PUT", encode_url_path(path), skip_host=True)
    for name, value in (headers | {"content-length": str(len(half) * 2)}).items():
        connection.putheader(name, value)
    connection.endheaders(half)
    return connection


def test_beyond_loopback_clients_upload_over_tls_to_the_name_they_know(
    tmp_path: Path, key_pair: KeyPair
) -> None:
    certs = tmp_path / "certs"
    command = [sys.executable, "-m", "snowmelt", "cert", "--out", str(certs)]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    service = ServiceProcess(tmp_path / "data", free_port(), ca_file=certs / "ca.pem")
    given: dict[str, Any] = {"tls_cert": certs / "server.pem", "tls_key": certs / "server.key"}
    s3 = S3Process(service).start(host="0.0.0.0", **given)
    try:
        prepare_loading(service, key_pair)
        who: dict[str, Any] = {"user": "loader", "private_key": key_pair.private_pem}
        url = f"https://localhost:{service.port}"
        with snowmelt.Client(url, **who, ca_file=str(service.ca_file)) as client:
            assert (
                client._api_client.upload_grant.location.endPoint == f"https://localhost:{s3.port}"
            )
            channel = client.open_channel("c", table=T)
            channel.insert_rows(rows(0, 100), "all")
            channel.wait_for_commit("all", timeout=SOON)
    finally:
        service.kill()
