"""A complete service and its client in this process, for a single user."""

from __future__ import annotations

import datetime as dt
import os
import threading
from pathlib import Path
from typing import Any, Self, Unpack

from cryptography.hazmat.primitives import serialization

from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.security import access_control
from snowmelt.catalog.security.encryption_keys import generate_key_pair
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.client.client import Client
from snowmelt.client.settings import ClientOptions
from snowmelt.clock import Clock
from snowmelt.config import Settings
from snowmelt.errors import NotFound
from snowmelt.loaders.file_pipe_check import check_file_copy
from snowmelt.server.app import ServiceComponents
from snowmelt.server.lifecycle import RunningService
from snowmelt.storage.local_store import create_durable_file

EMBEDDED_USER = "EMBEDDED"
_KEY_FILE = "embedded.pem"


class EmbeddedService:
    """A service that runs in a thread of this process, on a free port of 127.0.0.1.

    Its user EMBEDDED has the role ACCOUNTADMIN. The user's private key is in the folder `keys` of
    the data folder.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        clock: Clock | None = None,
        **settings: object,
    ) -> None:
        """Start a service.

        Args:
            data_dir: Data folder. None: `./snowmelt-data`.
            clock: Clock, for tests.
            settings: As in `snowmelt.config.Settings`. Migration is off by default.

        Raises:
            DataFolderBusy: If another service uses the data folder.
            ConfigurationError: If settings are invalid.
        """
        # Any free port, because only clients in this process use it.
        chosen: dict[str, Any] = {
            "port": 0,
            "s3_port": 0,
            "migrate": False,
            "tls_cert": "",
            "tls_key": "",
        } | settings
        self._settings = Settings.load(data_dir, **chosen)
        self._running = RunningService(self._settings, clock=clock)
        self._private_key = _ensure_embedded_user(self._running.service, self._settings.keys_dir)
        self._thread = threading.Thread(target=self._running.run, name="snowmelt", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """URL of the service."""
        return self._running.url

    @property
    def service(self) -> ServiceComponents:
        """Components of the service: catalog, stage, keys."""
        return self._running.service

    @property
    def settings(self) -> Settings:
        """Settings of the service."""
        return self._settings

    @property
    def private_key_file(self) -> Path:
        """File with the private key of user EMBEDDED."""
        return self._settings.keys_dir / _KEY_FILE

    def sql(self, text: str) -> StatementResult:
        """Execute a statement that is not a query, as ACCOUNTADMIN.

        Raises:
            StatementError: If the statement cannot be parsed.
            UserError: If an object is missing or already exists.
        """
        return execute_statement(
            self.service.database,
            text,
            clock=self.service.clock,
            open_keyring=lambda: self.service.keyring,
            check_file_copy=check_file_copy,
        )

    def client(self, **options: Unpack[ClientOptions]) -> Client:
        """Create a client for user EMBEDDED. It accepts the options of `snowmelt.Client`."""
        return Client(
            self.url,
            user=EMBEDDED_USER,
            private_key=self._private_key,
            role=ACCOUNTADMIN,
            **options,
        )

    def close(self) -> None:
        """Finish open requests and stop. Close the clients first."""
        self._running.stop()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EmbeddedClient(Client):
    """A client that owns an embedded service. Closing it stops both."""

    def __init__(
        self, data_dir: str | os.PathLike[str] | None = None, **options: Unpack[ClientOptions]
    ) -> None:
        """Start a service on `data_dir` and connect to it with options of `snowmelt.Client`."""
        self._embedded = EmbeddedService(data_dir)
        try:
            super().__init__(
                self._embedded.url,
                user=EMBEDDED_USER,
                private_key=self._embedded._private_key,  # noqa: SLF001 - same module
                role=ACCOUNTADMIN,
                **options,
            )
        except BaseException:
            self._embedded.close()
            raise

    @property
    def service(self) -> EmbeddedService:
        """The service that the client owns."""
        return self._embedded

    def close(self, timeout: dt.timedelta | None = None) -> None:
        """Flush and close the client as `Client.close` does, then stop the service."""
        try:
            super().close(timeout)
        finally:
            self._embedded.close()


def embedded(
    data_dir: str | os.PathLike[str] | None = None, **options: Unpack[ClientOptions]
) -> EmbeddedClient:
    """Start a service in this process and return a client that owns it.

    Args:
        data_dir: Data folder. None: `./snowmelt-data`.
        options: Options of `snowmelt.Client`.

    Raises:
        DataFolderBusy: If another service uses the data folder.
    """
    return EmbeddedClient(data_dir, **options)


def _ensure_embedded_user(service: ServiceComponents, keys_dir: Path) -> str:
    """Create user and key if they are missing. Return the private key."""
    path = keys_dir / _KEY_FILE
    if not path.exists():
        create_durable_file(path, generate_key_pair()[0])
    pem = path.read_text()
    private_key = serialization.load_pem_private_key(pem.encode(), password=None)
    public_key = private_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with service.database.writing() as connection:
        try:
            access_control.find_user(connection, EMBEDDED_USER)
        except NotFound:
            access_control.create_user(
                connection, EMBEDDED_USER, default_role=ACCOUNTADMIN, now=service.clock.now()
            )
        access_control.set_public_key(connection, EMBEDDED_USER, public_key.decode())
        access_control.grant_role(connection, ACCOUNTADMIN, EMBEDDED_USER)
    return pem
