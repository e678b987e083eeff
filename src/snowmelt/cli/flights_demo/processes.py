"""The demo's child processes: a real service on a free port, and the loader that is killed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, BinaryIO, Self

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.cli.flights_demo import dataset
from snowmelt.clock import SystemClock
from snowmelt.config import copy_environment
from snowmelt.errors import ServiceUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from snowmelt.config import Settings

_LOADER_USER = "LOADER"
_START_TIMEOUT_S = 30.0


class DemoService:
    """`snowmelt serve` in a child process, with the demo's table, user and key made.

    Leaving the context stops the service and a loader that still runs.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f"http://{settings.host}:{settings.port}"
        self._key_file = settings.data_dir / "loader-key.pem"

    def __enter__(self) -> Self:
        self._create_catalog_objects()
        log = (self._settings.data_dir / "service.log").open("ab")
        environment = copy_environment() | self._settings.to_environment()
        command = [sys.executable, "-m", "snowmelt", "serve"]
        with log:
            self._start_process(command, environment, log)
        self._wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()

    def start_loader(self, journal: Path, rows_per_s: float) -> subprocess.Popen[bytes]:
        """Start the loading process; it goes on after the committed offset tokens."""
        module = "snowmelt.cli.flights_demo.loader"
        command = [
            *(
                sys.executable,
                "-m",
                module,
                self.url,
                _LOADER_USER,
                str(self._key_file),
                str(journal),
            ),
            *("--rows-per-s", str(rows_per_s)),
        ]
        with (self._settings.data_dir / "loader.log").open("ab") as log:
            return self._start_process(command, copy_environment(), log)

    def _start_process(
        self, command: list[str], environment: dict[str, str], log: BinaryIO
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and modules
            command, env=environment, stdout=log, stderr=log
        )
        self._processes.append(process)
        return process

    def _create_catalog_objects(self) -> None:
        private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._key_file.touch(mode=0o600)
        self._key_file.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        public = private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        body = "".join(public.decode().splitlines()[1:-1])
        database = open_and_upgrade_database(self._settings.catalog_url)
        try:
            for statement in (
                "CREATE DATABASE demo",
                dataset.format_create_table(),
                "CREATE ROLE loading",
                f"CREATE USER {_LOADER_USER} RSA_PUBLIC_KEY = '{body}' DEFAULT_ROLE = loading",
                f"GRANT ROLE loading TO USER {_LOADER_USER}",
                "GRANT USAGE ON DATABASE demo TO ROLE loading",
                "GRANT USAGE ON SCHEMA demo.public TO ROLE loading",
                f"GRANT INSERT ON TABLE {dataset.TABLE} TO ROLE loading",
            ):
                execute_statement(database, statement, user=None, clock=SystemClock())
        finally:
            database.close()

    def _wait_until_ready(self) -> None:
        clock = SystemClock()
        until = clock.monotonic() + _START_TIMEOUT_S
        # One client for all tries: to make one takes as long as the pause between them.
        with httpx.Client(timeout=2.0) as client:
            while clock.monotonic() < until and self._processes[0].poll() is None:
                try:
                    if client.get(f"{self.url}/healthz").status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    clock.sleep(0.1)
        log = (self._settings.data_dir / "service.log").read_text(errors="replace")
        last = log.strip().splitlines()[-1:] or ["no output"]
        raise ServiceUnavailable(url=self.url, reason=last[0])
