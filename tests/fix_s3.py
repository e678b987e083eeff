"""An S3 endpoint of a service process, and clients that sign as users of its catalog."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from fix_service import ServiceProcess
from ports import free_port
from snowmelt.catalog.db.database import open_database
from snowmelt.catalog.security import access_keys, encryption_keys

if TYPE_CHECKING:
    from snowmelt.catalog.security.access_keys import AccessKey

REGION = "us-east-1"


@dataclass
class S3Process:
    """`snowmelt serve` with an S3 endpoint; restartable on the same ports."""

    service: ServiceProcess
    port: int = field(default_factory=free_port)
    keys: dict[str, AccessKey] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.service.process is not None
        return self.service.process.pid

    def start(self, *, fault: str = "", **settings: object) -> S3Process:
        self.service.start(fault=fault, s3_port=self.port, **settings)
        return self

    def add_user(self, name: str, *roles: str, default_role: str | None = None) -> AccessKey:
        """Create a user with these roles, the first of them the default, and an access key."""
        default = default_role or (roles[0] if roles else None)
        self.service.sql(
            *(f"CREATE ROLE IF NOT EXISTS {role}" for role in roles if role != "accountadmin"),
            f"CREATE USER {name}" + (f" DEFAULT_ROLE = {default}" if default else ""),
            *(f"GRANT ROLE {role} TO USER {name}" for role in roles),
        )
        return self.add_key(name)

    def add_key(self, name: str) -> AccessKey:
        settings = self.service.settings
        keyring = encryption_keys.KeyRing(encryption_keys.load_master_key(settings.keys_dir))
        database = open_database(settings.catalog_url)
        try:
            with database.writing() as connection:
                key = access_keys.create_access_key(
                    connection, keyring, name.upper(), now=dt.datetime.now(dt.UTC)
                )
        finally:
            database.close()
        self.keys[name] = key
        return key

    def client(self, name: str = "admin", *, style: str = "path", **config: object):
        """Return a boto3 client that signs with the last key of a user."""
        key = self.keys[name]
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=key.access_key_id,
            aws_secret_access_key=key.secret,
            config=Config(
                s3={"addressing_style": style}, retries={"total_max_attempts": 1}, **config
            ),
        )

    def environment(self, name: str = "admin") -> dict[str, str]:
        """Return what the AWS CLI needs."""
        key = self.keys[name]
        return {
            "AWS_ACCESS_KEY_ID": key.access_key_id,
            "AWS_SECRET_ACCESS_KEY": key.secret,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def s3_process(folder: Path) -> S3Process:
    return S3Process(ServiceProcess(folder / "data", free_port()))


@pytest.fixture
def own_s3(tmp_path: Path):
    """An endpoint of the test's own, not started yet; user `admin` may do everything."""
    process = s3_process(tmp_path)
    yield process
    if process.service.process is not None and process.service.process.poll() is None:
        process.service.kill()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory):
    """A started endpoint that the run's tests share; user `admin` may do everything."""
    process = s3_process(tmp_path_factory.mktemp("s3")).start(log_level="debug")
    process.add_user("admin", "accountadmin")
    yield process
    process.service.kill()


@pytest.fixture
def bucket(s3, request):
    """A bucket of the test's own at the shared endpoint, whose name this is."""
    name = f"b-{abs(hash(request.node.nodeid)) % 10**12}"
    s3.client().create_bucket(Bucket=name)
    return name


# One administrator, and a role that it may assume.
ROLE = "arn:aws:iam::role/Uploading"
_IDENTITIES = {
    "identities": [
        {
            "name": "any",
            "credentials": [{"accessKey": "any", "secretKey": "any"}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}
_ROLES = {
    "sts": {
        "tokenDuration": "1h",
        "maxSessionLength": "12h",
        "issuer": "tests",
        "signingKey": base64.b64encode(b"a key of the tests, 32 bytes long").decode(),
    },
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "policies": [
        {
            "name": "AllOfTheBucket",
            "document": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Action": ["s3:*"],
                        "Resource": ["arn:aws:s3:::behind", "arn:aws:s3:::behind/*"],
                    }
                ],
            },
        }
    ],
    "roles": [
        {
            "roleName": "Uploading",
            "roleArn": ROLE,
            "trustPolicy": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Principal": "*", "Action": ["sts:AssumeRole"]}],
            },
            "attachedPolicies": ["AllOfTheBucket"],
        }
    ],
}


@dataclass(frozen=True)
class Seaweed:
    """A real S3 server of others, to stand in front of."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return what obstore needs to reach it."""
        return {
            "AWS_ENDPOINT": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": REGION,
        }

    def client(self):
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id="any",
            aws_secret_access_key="any",
            config=Config(s3={"addressing_style": "path"}),
        )


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory):
    """A SeaweedFS server with its S3 gateway and STS, for whoever knows the key `any`.

    Bucket `behind` is shared: whoever uses it stays in a folder of its own.
    Bucket `front` is that of the tests of backends.
    """
    folder = tmp_path_factory.mktemp("seaweed")
    port = free_port()
    ports = {name: free_port() for name in ("master", "volume", "filer")}
    (folder / "s3.json").write_text(json.dumps(_IDENTITIES))
    (folder / "iam.json").write_text(json.dumps(_ROLES))
    command = [
        str(Path(sys.executable).parent / "weed"),
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-s3",
        f"-s3.config={folder / 's3.json'}",
        f"-s3.iam.config={folder / 'iam.json'}",
        f"-s3.port={port}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=50",
        *(f"-{name}.port={each}" for name, each in ports.items()),
        *(f"-{name}.port.grpc={free_port()}" for name in (*ports, "s3")),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    server = Seaweed(port)
    give_up_at = time.monotonic() + 180
    while True:
        with contextlib.suppress(BotoCoreError, ClientError):
            server.client().create_bucket(Bucket="behind")
            break
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < give_up_at, (folder / "log").read_text()
        time.sleep(0.2)
    server.client().create_bucket(Bucket="front")
    yield server
    # Nothing of it is kept, and it takes 25 s to stop in order.
    process.kill()
    process.wait()
