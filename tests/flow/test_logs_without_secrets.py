"""Logs and metrics of a service with full logging contain no secrets."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import boto3
import httpx
import jwt
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import snowmelt
from fixtures.s3 import S3Process
from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.security.encryption_keys import AccessKey
from snowmelt.client.auth import KeyPairTokenProvider
from snowmelt.clock import SystemClock
from support.authorization_server import KEY, AuthorisationServer, integration, token

WRONG_TOKEN = jwt.encode({"sub": "A.LOADER", "iss": "A.LOADER.x"}, "k" * 32, algorithm="HS256")


@pytest.fixture
def service(service_process: ServiceProcess, key_pair: KeyPair) -> S3Process:
    """A service with both ports and full logging."""
    s3 = S3Process(service_process).start(log_level="debug", log_format="json")
    prepare_loading(service_process, key_pair)
    return s3


def s3_client(url: str, key_id: str, secret: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}),
    )


@pytest.fixture
def idp() -> Iterator[AuthorisationServer]:
    server = AuthorisationServer()
    yield server
    server.close()


def test_no_secret_is_in_the_log_of_a_service_that_tells_everything(
    service: S3Process,
    key_pair: KeyPair,
    idp: AuthorisationServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = service.service
    key = service.add_user("keeper", "accountadmin")
    tokens = stream(process.url, key_pair)
    urls = keep_objects(service.url, key)
    refusals(process.url)
    process.sql(integration(idp))
    with caplog.at_level("DEBUG", logger="snowmelt"):
        tokens += authorise(process.url, idp)
    process.stop()
    log = process.log + caplog.text
    master = next(process.settings.keys_dir.iterdir()).read_bytes()
    secrets = [
        *tokens,
        WRONG_TOKEN,
        *(line for line in key_pair.private_pem.splitlines() if "---" not in line),
        key.secret,
        *(url.partition("Signature=")[2].partition("&")[0] for url in urls),
        *(master.hex(), base64.b64encode(master).decode(), master.decode("latin-1").strip()),
    ]
    assert all(secrets)
    assert [secret for secret in secrets if secret in log] == []
    assert "no token from" in caplog.text
    lines = [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]
    others = [line for line in process.log.splitlines() if not line.startswith("{")]
    assert all(
        line.startswith(("Snowmelt ", "Streaming API on", "S3 endpoint on")) for line in others
    )
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, lines))
    assert any(line.get("user") == "LOADER" for line in lines)


def stream(url: str, key_pair: KeyPair) -> list[str]:
    """Stream valid and rejected rows. Return the tokens that were sent."""
    client = snowmelt.Client(url, user="loader", private_key=key_pair.private_pem)
    with client:
        with client.open_channel("c", table="demo.public.t") as channel:
            channel.insert_rows([{"id": 1}, {"id": 2}], offset_token="2")
            channel.wait_for_commit("2", timeout=dt.timedelta(seconds=200))
        with contextlib.suppress(snowmelt.SnowmeltError):
            client.open_channel("c", table="demo.public.missing")
    key = serialization.load_pem_private_key(key_pair.private_pem.encode(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    token = KeyPairTokenProvider("ANY", "LOADER", key, SystemClock()).get_token()
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    answer = httpx.post(
        f"{url}/v1/streaming/channels/open/", content="{", headers=headers, timeout=60
    )
    assert answer.status_code == 400
    return [token]


def authorise(url: str, idp: AuthorisationServer) -> list[str]:
    """Stream with OAuth, with failures and rejections. Return the secrets."""
    idp.failures = 1
    oauth = snowmelt.OAuth("client", "client secret 4711", "refresh 0815", f"{idp.url}/token")
    with (
        snowmelt.Client(url, oauth=oauth) as client,
        client.open_channel("authorised", table="demo.public.t") as channel,
    ):
        channel.insert_row({"id": 3}, offset_token="3")
        channel.wait_for_commit("3", timeout=dt.timedelta(seconds=200))
    wrong = [token(aud="elsewhere"), token(exp=1_000_000), token(KEY, "unknown"), token() + "x"]
    for each in wrong:
        with pytest.raises(snowmelt.SnowmeltError) as refused:
            snowmelt.Client(url, oauth=each)
        assert each not in str(refused.value)
    basic = idp.authorizations[-1].removeprefix("Basic ")
    assert idp.forms[-1]["refresh_token"] == [oauth.refresh_token]
    shown = [each.rpartition(".")[2] for each in (*idp.issued, *wrong)]
    return [oauth.client_secret, oauth.refresh_token, basic, *idp.issued, *wrong, *shown]


def keep_objects(url: str, key: AccessKey) -> list[str]:
    """Send valid and invalid requests to the S3 endpoint. Return the presigned addresses used."""
    client = s3_client(url, key.access_key_id, key.secret)
    client.create_bucket(Bucket="kept")
    client.put_object(Bucket="kept", Key="k.csv", Body=b"a,b\n1,2\n")
    presigned = client.generate_presigned_url("get_object", {"Bucket": "kept", "Key": "k.csv"})
    assert httpx.get(presigned, timeout=60).text == "a,b\n1,2\n"
    assert httpx.get(presigned + "x", timeout=60).status_code == 403
    for sql in ("SELECT * FROM S3Object", "SELECT nonsense FROM"):
        with contextlib.suppress(ClientError):
            answer = client.select_object_content(
                Bucket="kept",
                Key="k.csv",
                Expression=sql,
                ExpressionType="SQL",
                InputSerialization={"CSV": {}},
                OutputSerialization={"CSV": {}},
            )
            answer["Payload"].close()
    with contextlib.suppress(ClientError):
        s3_client(url, key.access_key_id, "wrong" * 8).list_buckets()
    return [presigned]


def refusals(url: str) -> None:
    for body, wrong in (("{", WRONG_TOKEN), ("{}", WRONG_TOKEN), ("{}", "no token at all")):
        answer = httpx.post(
            f"{url}/v1/streaming/channels/open/",
            content=body,
            headers={"authorization": f"Bearer {wrong}", "content-type": "application/json"},
            timeout=60,
        )
        assert answer.status_code == 401
