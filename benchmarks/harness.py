"""Service in a child process with a new data folder, for benchmarks."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.client.client import Client
from snowmelt.clock import SystemClock
from snowmelt.config import Settings

_TICKS = os.sysconf("SC_CLK_TCK")

# Benchmarks that import this module first can also import the servers and engines of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def list_findings(data_dir: Path) -> list[str]:
    """Return the findings of `snowmelt check --deep` for a data folder."""
    command = ("check", "--deep", "--quiet", "--format", "json", "--data-dir", str(data_dir))
    done = subprocess.run(
        [sys.executable, "-m", "snowmelt", *command], capture_output=True, text=True, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if not found or "summary" not in found[-1]:
        raise RuntimeError(f"The check failed with status {done.returncode}: {done.stderr}")
    return [f"{each['finding']}: {each['detail']}" for each in found[:-1]]


def processor_s(process_id: int) -> float:
    """Return the processor time of a process and its children in seconds."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    children = [
        int(child)
        for task in Path(f"/proc/{process_id}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    # User and system time of the process, and of its ended children.
    return sum(map(int, fields[11:15])) / _TICKS + sum(map(processor_s, children))


def key_pair() -> tuple[str, str]:
    """Return a private key in PEM, and its public key in the base64 form for SQL."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem, "".join(public.decode().splitlines()[1:-1])


class Running:
    """Context with a running `snowmelt serve` on a free port, with the default durability."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        empty: bool = False,
        niceness: int = 0,
        **settings: Any,
    ) -> None:
        """Prepare a service. If `empty` is true, it has no database and no user."""
        self._is_empty = empty
        self._niceness = niceness
        self._own: tempfile.TemporaryDirectory[str] | None = None
        if folder is None:
            self._own = tempfile.TemporaryDirectory(prefix="snowmelt-bench-")
            folder = Path(self._own.name)
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.settings = Settings.load(
            data_dir=self.folder, port=port, **({"s3_port": 0, "migrate": False} | settings)
        )
        self.url = f"http://127.0.0.1:{port}"
        self.private_key, self._public_key = key_pair()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def started(self) -> subprocess.Popen[bytes]:
        """Process of the running service."""
        assert self.process is not None
        return self.process

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._is_empty:
            self.execute(
                "CREATE DATABASE IF NOT EXISTS bench",
                f"CREATE USER IF NOT EXISTS bench RSA_PUBLIC_KEY = '{self._public_key}' "
                "DEFAULT_ROLE = ACCOUNTADMIN",
                "GRANT ROLE ACCOUNTADMIN TO USER bench",
            )
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._own is not None:
            self._own.cleanup()

    def start(self) -> None:
        """Start the service and wait until it responds."""
        environment = os.environ | self.settings.to_environment()
        log = (self.folder / "service.log").open("ab")
        command = [sys.executable, "-m", "snowmelt", "serve"]
        if self._niceness:
            command = ["nice", "-n", str(self._niceness), *command]
        self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        for _ in range(300):
            try:
                if httpx.get(f"{self.url}/healthz", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        raise RuntimeError((self.folder / "service.log").read_text())

    def stop(self) -> None:
        """Stop the service."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)

    def execute(self, *statements: str) -> None:
        """Run DDL directly on the catalog."""
        database = open_and_upgrade_database(self.settings.catalog_url)
        try:
            for statement in statements:
                execute_statement(database, statement, user=None, clock=SystemClock())
        finally:
            database.close()

    def client(self, **options: Any) -> Client:
        """Open an SDK client."""
        return Client(self.url, user="bench", private_key=self.private_key, **options)


class Secure(Running):
    """Service with TLS."""

    def __init__(self, folder: Path) -> None:
        certs = folder / "certs"
        command = [sys.executable, "-m", "snowmelt", "cert", "--out", str(certs)]
        subprocess.run(command, check=True, capture_output=True)
        self.ca = certs / "ca.pem"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            s3_port = probe.getsockname()[1]
        pair: dict[str, Any] = {
            "tls_cert": str(certs / "server.pem"),
            "tls_key": str(certs / "server.key"),
        }
        super().__init__(folder / "data", s3_port=s3_port, **pair)
        self.url = self.url.replace("http:", "https:")

    def start(self) -> None:
        """Start the service and wait until it responds."""
        environment = os.environ | self.settings.to_environment()
        log = (self.folder / "service.log").open("ab")
        command = [sys.executable, "-m", "snowmelt", "serve"]
        self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        trust = ssl.create_default_context(cafile=str(self.ca))
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{self.url}/healthz", context=trust, timeout=2).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise RuntimeError((self.folder / "service.log").read_text())
