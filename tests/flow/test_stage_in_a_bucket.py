"""Clients on other machines: blobs go through the S3 endpoint to a stage in a bucket or folder."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import snowmelt
from fix_service import KeyPair, prepare_loading
from sdk_table import SOON, rows
from snowmelt.blob.layout import blob_path
from snowmelt.catalog import deployment
from snowmelt.catalog.database import open_database
from snowmelt.catalog.keys import KeyRing, load_master_key
from snowmelt.client.calls import Calls
from snowmelt.client.tokens import KeyPairTokens, load_private_key
from snowmelt.client.transport import Transport, parse_url
from snowmelt.clock import ManualClock, SystemClock
from snowmelt.schema.types import TableName
from snowmelt.storage.opening import open_store
from snowmelt.table.cleanup import collect
from snowmelt.table.migration import MigrationSettings, migrate_locally
from snowmelt.table.reading import read_table

T = "demo.public.t"
NAME = TableName("DEMO", "PUBLIC", "T")
NOW = dt.datetime.now(dt.UTC)
OTHERS = KeyPair.generate()


class House:
    """A service whose clients upload to its S3 endpoint, and its parts from behind."""

    def __init__(self, process, stage_url: str, key_pair: KeyPair) -> None:
        self.process, self.stage_url, self._key_pair = process, stage_url, key_pair
        self._transports: list[Transport] = []
        self.start()
        prepare_loading(process.service, key_pair)
        settings = process.service.settings
        self.settings = settings
        self.keyring = KeyRing(load_master_key(settings.keys_dir))
        self.database = open_database(settings.catalog_url)
        self.stage = open_store(stage_url)
        self.warehouse = open_store(settings.warehouse_url)

    def start(self, **settings: object) -> None:
        given = {"stage_url": self.stage_url, "stage_endpoint": self.process.url}
        self.process.start(**(given | settings))

    def client(self, **options):
        options.setdefault("max_client_lag", dt.timedelta(milliseconds=100))
        return snowmelt.Client(
            self.process.service.url,
            user="loader",
            private_key=self._key_pair.private_pem,
            **options,
        )

    def calls(self, user: str = "loader", key_pair: KeyPair | None = None) -> Calls:
        """Configure a client of a user without opening its stage."""
        service = parse_url(self.process.service.url)
        key = load_private_key((key_pair or self._key_pair).private_pem)
        tokens = KeyPairTokens(service.account, user, key, SystemClock())
        transport = Transport(service, tokens, SystemClock(), timeout_s=10)
        self._transports.append(transport)
        return Calls(transport, None, 10)

    def close(self) -> None:
        for transport in self._transports:
            transport.stop()
        self.database.close()

    def ids(self) -> list[int]:
        found = read_table(self.database, self.keyring, self.stage, NAME)
        return sorted(int(each) for each in found.column("ID").to_pylist())

    def blobs(self) -> list[str]:
        return sorted(each.path for each in self.stage.list())

    def migrate(self) -> None:
        settings = MigrationSettings(self.stage_url, self.settings.warehouse_url)
        assert migrate_locally(self.database, self.keyring, NAME, settings) is not None

    def clean(self) -> None:
        clock = ManualClock(dt.datetime.now(dt.UTC) + dt.timedelta(hours=2))
        collect(self.database, self.stage, self.warehouse, clock=clock, retention_s=3601)

    @property
    def suffix(self) -> str:
        with self.database.reading() as connection:
            return f"_{deployment.deployment_id(connection)}"


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def house(request, own_s3, tmp_path, key_pair, monkeypatch):
    stage_url = str(tmp_path / "elsewhere")
    if request.param == "bucket":
        seaweed = request.getfixturevalue("seaweed")
        own_s3.service.environment.update(seaweed.environment)
        for name, value in seaweed.environment.items():
            monkeypatch.setenv(name, value)
        stage_url = f"s3://behind/stage-{uuid.uuid4().hex[:8]}"
    house = House(own_s3, stage_url, key_pair)
    yield house
    house.close()


def boto(calls: Calls, **other: str):
    location = calls.grant.location
    given = {
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


def place(calls: Calls) -> tuple[str, str]:
    """Bucket and folder, with the slash, that a client may fill."""
    bucket, _, folder = calls.grant.location.location.partition("/")
    return bucket, folder


def refusal(call, *arguments, **named) -> str:
    with pytest.raises(ClientError) as refused:
        call(*arguments, **named)
    return refused.value.response["Error"]["Code"]


def test_rows_are_streamed_read_migrated_and_cleaned_up_through_a_service_killed(house):
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


def test_the_official_clients_kind_of_upload_is_taken(house):
    calls = house.calls()
    assert calls.grant.location.locationType == "S3"
    assert calls.grant.location.presignedUrl is None
    bucket, folder = place(calls)
    own = folder + blob_path(NOW, calls.prefix, 0, 0)
    client = boto(calls)
    client.put_object(Bucket=bucket, Key=own, Body=b"a" * 1000)
    parts = client.create_multipart_upload(Bucket=bucket, Key=own)["UploadId"]
    given = {"Bucket": bucket, "Key": own, "UploadId": parts}
    etag = client.upload_part(PartNumber=1, Body=b"b" * 6 * 2**20, **given)["ETag"]
    whole = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    client.complete_multipart_upload(MultipartUpload=whole, **given)
    assert house.stage.get(own) == b"b" * 6 * 2**20


def test_credentials_are_for_uploads_of_the_clients_own_blobs_only(house):
    mine, sibling = house.calls(), house.calls()
    bucket, folder = place(mine)
    client = boto(mine)
    own = folder + blob_path(NOW, mine.prefix, 0, 0)
    client.put_object(Bucket=bucket, Key=own, Body=b"mine")
    theirs = place(sibling)[1] + blob_path(NOW, sibling.prefix, 0, 0)
    posing = folder + blob_path(NOW, sibling.prefix, 0, 1)
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


def test_forged_tokens_and_those_of_others_open_nothing(house):
    mine, sibling = house.calls(), house.calls()
    bucket, folder = place(mine)
    put = {"Bucket": bucket, "Key": folder + blob_path(NOW, mine.prefix, 0, 0), "Body": b"x"}
    token = mine.grant.location.creds["AWS_TOKEN"]
    raw = bytearray(base64.urlsafe_b64decode(token))
    raw[20] ^= 1
    forged = base64.urlsafe_b64encode(raw).decode()
    swapped = sibling.grant.location.creds["AWS_TOKEN"]
    for each in (forged, swapped, "x", "A" * 5000):
        assert refusal(boto(mine, aws_session_token=each).put_object, **put) == "InvalidToken"
    wrong = boto(mine, aws_secret_access_key="x" * 40)
    assert refusal(wrong.put_object, **put) == "SignatureDoesNotMatch"
    assert house.blobs() == []


def test_the_user_of_a_token_may_be_dropped(house):
    house.process.service.sql(f"CREATE USER gone RSA_PUBLIC_KEY = '{OTHERS.public_base64}'")
    calls = house.calls("gone", OTHERS)
    bucket, folder = place(calls)
    house.process.service.sql("DROP USER gone")
    put = {"Bucket": bucket, "Key": folder + blob_path(NOW, calls.prefix, 0, 0), "Body": b"x"}
    assert refusal(boto(calls).put_object, **put) == "InvalidToken"


def test_a_prefix_is_renewed_for_its_own_user_only(house):
    house.process.service.sql(f"CREATE USER other RSA_PUBLIC_KEY = '{OTHERS.public_base64}'")
    mine, theirs = house.calls(), house.calls("other", OTHERS)
    again = mine.renewed_grant()
    assert again.location.location == mine.grant.location.location
    assert again.location.creds != mine.grant.location.creds
    theirs.prefix = mine.prefix
    with pytest.raises(snowmelt.SnowmeltError, match="was not given to this user"):
        theirs.renewed_grant()


def test_the_official_client_goes_on_with_its_first_prefix_after_it_asked_again(house, key_pair):
    def configured() -> dict:
        service = parse_url(house.process.service.url)
        key = load_private_key(key_pair.private_pem)
        token = KeyPairTokens(service.account, "loader", key, SystemClock()).current()
        answer = httpx.post(
            f"{service.url}/v1/streaming/client/configure/",
            content=json.dumps({"role": None}),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        return answer.json()

    first, again = configured(), configured()
    named = blob_path(NOW, f"{first['prefix']}_{first['deployment_id']}", 0, 0)
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
    foreign = blob_path(NOW, "aaaabbbbccccdddd" + house.suffix, 0, 0)
    assert refusal(client.put_object, Bucket=bucket, Key=folder + foreign, Body=b"x")


@pytest.mark.parametrize("house", ["folder"], indirect=True)
def test_credentials_are_renewed_before_they_expire_and_none_is_logged(house, caplog):
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
        put = {"Bucket": bucket, "Key": folder + blob_path(NOW, calls.prefix, 0, 0), "Body": b"x"}
        assert refusal(boto(calls).put_object, **put) == "ExpiredToken"
        seen = {*calls.grant.location.creds.values(), *client._calls.grant.location.creds.values()}
    assert house.ids() == list(range(80))
    written = house.process.service.log + caplog.text + repr(calls.grant)
    hidden = {each for each in seen if not each.startswith("SMST")}
    assert len(hidden) == 4
    assert not [each for each in hidden if each in written]
