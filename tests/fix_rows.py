"""A service over TLS and the official SDK in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import warm
from conversation import token
from fix_service import KeyPair, ServiceProcess, prepare_loading
from ports import free_port
from snowmelt.catalog.commands.executor import Result, execute
from snowmelt.catalog.db.database import open_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCRIPT = Path(__file__).parent / "official_writer.py"


class SdkError(Exception):
    """What the SDK raised in its process."""


@dataclass
class OfficialWriter:
    """The SDK in its process; every method of `official_writer.Writer` by `tell`."""

    process: subprocess.Popen[str]
    answers: object

    def tell(self, command: str, *arguments: object) -> object:
        """Have a command done and return its result."""
        self.begin(command, *arguments)
        return self.result()

    def begin(self, command: str, *arguments: object) -> None:
        """Have a command begun."""
        print(json.dumps([command, *arguments]), file=self.process.stdin, flush=True)

    def result(self) -> object:
        """Wait for the command that was begun."""
        line = self.answers.readline()
        assert line, "the SDK's process ended"
        told = json.loads(line)
        if "error" in told:
            raise SdkError(f"{told['error']}: {told['text']}")
        return told["answer"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.answers.close()


@dataclass
class RowService:
    """A TLS service with user LOADER, which may insert into DEMO.PUBLIC.T."""

    folder: Path
    key_pair: KeyPair
    service: ServiceProcess
    s3_port: int
    settings: dict[str, str] = field(default_factory=dict)
    writers: list[OfficialWriter] = field(default_factory=list)

    def start(self, **more: object) -> None:
        certs = self.folder / "certs"
        self.service.start(
            tls_cert=certs / "server.pem",
            tls_key=certs / "server.key",
            s3_port=self.s3_port,
            **self.settings | more,
        )

    def properties(self, **more: object) -> dict[str, object]:
        """Everything that a user of the SDK gives, but for the certificate; None leaves one out."""
        given = {
            "url": self.service.url,
            "account": "local",
            "user": "loader",
            "private_key": self.key_pair.private_pem,
            **more,
        }
        return {name: value for name, value in given.items() if value is not None}

    def authorization(self) -> dict[str, str]:
        """Return the headers of a user of the REST API."""
        bearer = token(self.key_pair.private_pem, "LOADER")
        return {
            "authorization": f"Bearer {bearer}",
            "x-snowflake-authorization-token-type": "KEYPAIR_JWT",
            "content-type": "application/x-ndjson",
        }

    def writer(
        self, pipe: str = "t-STREAMING", *, table_mode: bool = False, **more: object
    ) -> OfficialWriter:
        """Start the SDK, with what it is given besides the least."""
        reading, writing = os.pipe()
        with (self.folder / "sdk.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[writing],
                env={**os.environ, "SSL_CERT_FILE": str(self.folder / "certs" / "ca.pem")},
                text=True,
            )
        os.close(writing)
        writer = OfficialWriter(process, os.fdopen(reading))
        self.writers.append(writer)
        whole = {
            "properties": self.properties(**more),
            "database": "demo",
            "schema": "public",
            "pipe": pipe,
            "table_mode": table_mode,
        }
        print(json.dumps(whole), file=process.stdin, flush=True)
        writer.result()
        return writer

    def rows(self, table: str = "T", columns: Sequence[str] = ("ID",)) -> list[tuple[object, ...]]:
        """Return what is in a table, read without the service, sorted."""
        settings = self.service.settings
        with contextlib.closing(open_database(settings.catalog_url)) as database:
            found = read_table(
                database,
                KeyRing(load_master_key(settings.keys_dir)),
                open_store(self.settings.get("stage_url", settings.stage_url)),
                TableName("DEMO", "PUBLIC", table),
                list(columns),
            )
        return sorted(zip(*(found.column(name).to_pylist() for name in columns), strict=True))

    def sql_as(self, user: str, text: str) -> Result:
        """Execute a statement as a user with the default role."""
        with contextlib.closing(open_database(self.service.settings.catalog_url)) as database:
            return execute(database, text, user=user)

    def ids(self) -> list[int]:
        """Return column ID of T, sorted."""
        return [int(row[0]) for row in self.rows()]

    def close(self) -> None:
        for writer in self.writers:
            writer.kill()
        if self.service.process is not None and self.service.process.poll() is None:
            self.service.kill()


def row_service_in(
    folder: Path, key_pair: KeyPair, catalog_url: str | None = None, popen=warm.Popen
) -> RowService:
    """Return a started service; whoever calls closes it."""
    certs = folder / "certs"
    warm.run([sys.executable, "-m", "snowmelt", "cert", "--out", str(certs)], check=True)
    service = ServiceProcess(
        folder / "data", free_port(), catalog_url, ca_file=certs / "ca.pem", popen=popen
    )
    found = RowService(folder, key_pair, service, free_port())
    found.start()
    prepare_loading(service, key_pair)
    return found


@pytest.fixture(scope="session")
def row_service(tmp_path_factory, key_pair):
    """One for all tests, which use tables or channels of their own; nobody may stop it."""
    found = row_service_in(tmp_path_factory.mktemp("rows"), key_pair, popen=subprocess.Popen)
    yield found
    found.close()


@pytest.fixture
def own_row_service(tmp_path, key_pair):
    """One that a test may kill and start again."""
    found = row_service_in(tmp_path, key_pair)
    yield found
    found.close()
