"""Both ports with TLS, with a certificate of a local authority."""

from __future__ import annotations

import datetime as dt
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import boto3
import botocore.exceptions
import httpx
import pytest
from botocore.config import Config

import snowmelt
from fixtures.s3 import REGION, S3Process
from fixtures.service import KeyPair, ServiceProcess
from snowmelt.errors import ConfigurationError, ServiceUnavailable
from support.ports import free_port


def certify(folder: Any, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "snowmelt", "cert", "--out", str(folder), *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Process]:
    folder = tmp_path_factory.mktemp("tls")
    certs = folder / "certs"
    assert certify(certs).returncode == 0
    service = ServiceProcess(folder / "data", free_port(), ca_file=certs / "ca.pem")
    s3 = S3Process(service).start(tls_cert=certs / "server.pem", tls_key=certs / "server.key")
    yield s3
    service.kill()


def serial_of(port: int, ca_file: Path | None) -> Any:
    context = ssl.create_default_context(cafile=ca_file)
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        return cast("dict[str, Any]", wrapped.getpeercert())["serialNumber"]


def test_rows_stream_over_tls(secure: S3Process, key_pair: KeyPair) -> None:
    service = secure.service
    service.sql(
        f"CREATE USER loader RSA_PUBLIC_KEY = '{key_pair.public_base64}' DEFAULT_ROLE = ACCOUNTADMIN",
        "GRANT ROLE accountadmin TO USER loader",
        "CREATE DATABASE demo",
        "CREATE TABLE demo.public.t (id NUMBER)",
    )
    who: dict[str, Any] = {"user": "loader", "private_key": key_pair.private_pem}
    with snowmelt.Client(service.url, **who, ca_file=str(service.ca_file)) as client:
        channel = client.open_channel("c", table="demo.public.t")
        channel.insert_rows([{"id": 1}], offset_token="1")
        channel.wait_for_commit("1")
        assert channel.latest_committed_offset_token() == "1"
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"ca_file.*is not trusted.*name the file"):
        snowmelt.Client(service.url, **who)
    assert time.monotonic() - began < 60
    plain = service.url.replace("https://", "http://")
    with pytest.raises(ServiceUnavailable, match="is reached by https:// alone; given up"):
        snowmelt.Client(plain, **who, request_timeout=dt.timedelta(0))


def test_objects_go_over_tls(secure: S3Process) -> None:
    key = secure.add_user("over_tls", "accountadmin")
    options = {
        "endpoint_url": f"https://localhost:{secure.port}",
        "region_name": REGION,
        "aws_access_key_id": key.access_key_id,
        "aws_secret_access_key": key.secret,
        "config": Config(retries={"max_attempts": 1}),
    }
    s3 = boto3.client("s3", **options, verify=str(secure.service.ca_file))
    s3.create_bucket(Bucket="sealed")
    s3.put_object(Bucket="sealed", Key="a.csv", Body=b"1,2\n3,4\n" * 10_000)
    assert len(s3.get_object(Bucket="sealed", Key="a.csv")["Body"].read()) == 80_000
    events = s3.select_object_content(
        Bucket="sealed",
        Key="a.csv",
        Expression="select count(*) from s3object",
        ExpressionType="SQL",
        InputSerialization={"CSV": {}},
        OutputSerialization={"CSV": {}},
    )["Payload"]
    assert b"".join(e["Records"]["Payload"] for e in events if "Records" in e) == b"20000\n"
    s3.close()
    stranger = boto3.client("s3", **options)
    with pytest.raises(botocore.exceptions.SSLError):
        stranger.list_buckets()
    stranger.close()


def test_without_tls_nothing_is_answered(secure: S3Process) -> None:
    for port in (secure.port, secure.service.port):
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=10)


def test_a_renewed_certificate_is_shown_after_a_hang_up(secure: S3Process) -> None:
    ca_file = secure.service.ca_file
    before = serial_of(secure.port, ca_file)
    assert ca_file is not None
    assert certify(ca_file.parent, "--host", "lake.example").returncode == 0
    assert serial_of(secure.port, ca_file) == before
    assert secure.service.process is not None
    secure.service.process.send_signal(signal.SIGHUP)
    give_up_at = time.monotonic() + 200
    while (after := serial_of(secure.port, ca_file)) == before:
        assert time.monotonic() < give_up_at, secure.service.log
        time.sleep(0.05)
    assert serial_of(secure.service.port, ca_file) == after
    (ca_file.parent / "server.key").write_text("spoilt")
    secure.service.process.send_signal(signal.SIGHUP)
    while "the old certificate stays" not in secure.service.log:
        assert time.monotonic() < give_up_at + 60
        time.sleep(0.05)
    assert serial_of(secure.port, ca_file) == after


def test_certificate_and_key_that_do_not_fit_are_refused_in_a_sentence(tmp_path: Path) -> None:
    assert certify(tmp_path / "one").returncode == 0
    assert certify(tmp_path / "two").returncode == 0
    command = [sys.executable, "-m", "snowmelt", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--port", "0", "--s3-port", "0", "--tls-cert", str(tmp_path / "one/server.pem")]
    for more, reason in (
        ([], "Setting tls_key: certificate and key go together."),
        (["--tls-key", str(tmp_path / "none")], f"there is no file {tmp_path / 'none'}"),
        (["--tls-key", str(tmp_path / "two/server.key")], "are not a certificate and its key"),
    ):
        done = subprocess.run(
            [*command, *more], check=False, capture_output=True, text=True, timeout=200
        )
        assert (done.returncode, reason in done.stderr) == (1, True), done.stderr
        assert "Traceback" not in done.stderr
