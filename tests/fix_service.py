"""A service as a process of its own, which tests may kill and start again."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import warm
from catalog_file import new_catalog
from ports import free_port
from snowmelt.catalog.commands.executor import Result, execute
from snowmelt.catalog.db.database import open_database
from snowmelt.config import Settings

if TYPE_CHECKING:
    from pathlib import Path

# Alone a second is enough; on a machine that others use as well it has taken a minute.
_START_S = 150.0


def admin_sql(data_dir: Path, *texts: str, catalog_url: str | None = None) -> Result:
    """Execute statements as ACCOUNTADMIN, straight on the catalog; the last one's result."""
    settings = Settings.load(data_dir, catalog_url=catalog_url)
    database = open_database(settings.catalog_url)
    try:
        result = None
        for text in texts:
            result = execute(database, text, user=None)
        assert result is not None
        return result
    finally:
        database.close()


@dataclass(frozen=True)
class KeyPair:
    private_pem: str
    public_base64: str

    @staticmethod
    def generate() -> KeyPair:
        key = rsa.generate_private_key(65537, 2048)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        lines = public.decode().strip().splitlines()
        return KeyPair(private.decode(), "".join(lines[1:-1]))


@dataclass
class ServiceProcess:
    """`snowmelt serve` on a data folder; restartable on the same port.

    `popen` starts it; what the run starts once begins as the command does, with nothing imported.
    """

    data_dir: Path
    port: int
    catalog_url: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    ca_file: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    program: tuple[str, ...] = ("-m", "snowmelt", "serve")
    popen: type[subprocess.Popen[bytes]] = warm.Popen

    @property
    def url(self) -> str:
        scheme = "http" if self.ca_file is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.log"

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def start(self, *, fault: str = "", **settings: object) -> ServiceProcess:
        """Start it and wait until it answers; `fault` as in SNOWMELT_FAULT."""
        assert self.process is None or self.process.poll() is not None
        given = {f"SNOWMELT_{name.upper()}": str(value) for name, value in settings.items()}
        if self.catalog_url is not None:
            given["SNOWMELT_CATALOG_URL"] = self.catalog_url
        environment = {
            **os.environ,
            "SNOWMELT_DATA_DIR": str(self.data_dir),
            "SNOWMELT_PORT": str(self.port),
            "SNOWMELT_S3_PORT": "0",
            "SNOWMELT_MIGRATE": "0",
            **self.environment,
            **given,
            "SNOWMELT_FAULT": fault,
        }
        if self.catalog_url is None:
            new_catalog(self.data_dir / "catalog.db")
        with self.log_path.open("ab") as log:
            self.process = self.popen(
                [sys.executable, *self.program],
                env=environment,
                stdout=log,
                stderr=log,
            )
        self._wait_until_it_answers()
        return self

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def wait_for_death(self, seconds: float = _START_S) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self) -> int:
        """SIGTERM, and wait for the end."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_START_S)

    def sql(self, *texts: str) -> Result:
        return admin_sql(self.data_dir, *texts, catalog_url=self.catalog_url)

    @property
    def settings(self) -> Settings:
        return Settings.load(self.data_dir, catalog_url=self.catalog_url)

    def _wait_until_it_answers(self) -> None:
        assert self.process is not None
        give_up_at = time.monotonic() + _START_S
        # One for all tries: to make a client takes longer than to ask.
        secure = False if self.ca_file is None else ssl.create_default_context(cafile=self.ca_file)
        with httpx.Client(base_url=self.url, timeout=5, verify=secure, trust_env=False) as client:
            while time.monotonic() < give_up_at:
                if self.process.poll() is not None:
                    raise AssertionError(f"the service ended:\n{self.log}")
                with contextlib.suppress(httpx.HTTPError):
                    if client.get("/healthz").status_code == 200:
                        return
                time.sleep(0.02)
        raise AssertionError(f"the service does not answer:\n{self.log}")


@pytest.fixture(scope="session")
def key_pair() -> KeyPair:
    return KeyPair.generate()


@pytest.fixture
def service_process(tmp_path: Path):
    """A service that is not started yet: `.start()`, `.kill()`, `.start()` again."""
    service = ServiceProcess(tmp_path / "data", free_port())
    yield service
    if service.process is not None and service.process.poll() is None:
        service.kill()


def prepare_loading(service: ServiceProcess, key_pair: KeyPair, database: str = "demo") -> None:
    """Create user LOADER with role LOADING, and a table `<database>.public.t` to insert into."""
    service.sql(
        "CREATE ROLE IF NOT EXISTS loading",
        "CREATE USER IF NOT EXISTS loader"
        f" RSA_PUBLIC_KEY = '{key_pair.public_base64}' DEFAULT_ROLE = loading",
        "GRANT ROLE loading TO USER loader",
        f"CREATE DATABASE {database}",
        f"CREATE SCHEMA IF NOT EXISTS {database}.public",
        f"CREATE TABLE {database}.public.t"
        " (id NUMBER(10,0) NOT NULL, name VARCHAR, at TIMESTAMP_NTZ)",
        f"GRANT USAGE ON DATABASE {database} TO ROLE loading",
        f"GRANT USAGE ON SCHEMA {database}.public TO ROLE loading",
        f"GRANT INSERT ON TABLE {database}.public.t TO ROLE loading",
    )


@pytest.fixture
def loading_service(service_process: ServiceProcess, key_pair: KeyPair) -> ServiceProcess:
    """A started service of the test's own, prepared for LOADER to insert into DEMO.PUBLIC.T."""
    service_process.start()
    prepare_loading(service_process, key_pair)
    return service_process


@pytest.fixture
def service_on_each_catalog(service_process: ServiceProcess, catalog_url: str, key_pair: KeyPair):
    """Like `loading_service`, once with a catalog on SQLite and once on PostgreSQL."""
    service_process.catalog_url = catalog_url
    service_process.start()
    prepare_loading(service_process, key_pair)
    yield service_process
    # Before the database goes.
    if service_process.process is not None and service_process.process.poll() is None:
        service_process.kill()


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory: pytest.TempPathFactory):
    """A started service that the run's tests share; nobody may stop it."""
    folder = tmp_path_factory.mktemp("shared") / "data"
    service = ServiceProcess(folder, free_port(), popen=subprocess.Popen).start()
    yield service
    service.kill()
