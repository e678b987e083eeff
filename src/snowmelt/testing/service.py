"""Real service for tests, in the test process, with a temporary folder."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Self, Unpack

from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.catalog.sql.cursor import parse_table_name
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.client.client import Client
from snowmelt.client.settings import ClientOptions
from snowmelt.clock import Clock, SystemClock
from snowmelt.embedded import EmbeddedService
from snowmelt.errors import SnowmeltError
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table


class LocalService:
    """Real service on a free port, with a new catalog and an empty stage.

    As a context manager, it stops the service and its clients at the end of the block.
    """

    def __init__(self, *, clock: Clock | None = None, **settings: object) -> None:
        """Start the service.

        Args:
            clock: Clock of service and clients, such as a `ManualClock`. None: the system clock.
            settings: As in `snowmelt.config.Settings`.
        """
        self.clock: Clock = clock or SystemClock()
        self._clients: list[Client] = []
        with contextlib.ExitStack() as undo:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="snowmelt-"))
            self.folder = Path(folder)
            self._embedded = undo.enter_context(
                EmbeddedService(self.folder / "data", clock=self.clock, **settings)
            )
            self._resources = undo.pop_all()

    @property
    def url(self) -> str:
        """The URL of the service."""
        return self._embedded.url

    @property
    def embedded(self) -> EmbeddedService:
        """The embedded service, with its components, settings and catalog."""
        return self._embedded

    def sql(self, *statements: str) -> StatementResult:
        """Execute statements that are not queries as ACCOUNTADMIN. Return the last result.

        Raises:
            StatementError: If a statement cannot be parsed.
            UserError: If a statement fails, for example because an object is missing or already exists.
        """
        results = [self._embedded.sql(statement) for statement in statements]
        return results[-1]

    def create_table(self, name: str, columns: str, more: str = "") -> str:
        """Create a table, and its database and schema if they are missing. Return the table's name.

        Args:
            name: `database.schema.table`.
            columns: As in CREATE TABLE, such as `id INT, name VARCHAR`.
            more: Clauses after the columns.
        """
        where = parse_table_name(name)
        self.sql(
            f"CREATE DATABASE IF NOT EXISTS {where.database}",
            f"CREATE SCHEMA IF NOT EXISTS {where.database}.{where.schema}",
            f"CREATE TABLE {where} ({columns}) {more}",
        )
        return name

    def client(self, **options: Unpack[ClientOptions]) -> Client:
        """Create a client with all privileges. Options are those of `snowmelt.Client`."""
        options.setdefault("clock", self.clock)
        client = self._embedded.client(**options)
        self._clients.append(client)
        return client

    def rows(self, table: str) -> list[dict[str, object]]:
        """Return the committed rows of a table in commit order, without Spark.

        Raises:
            TableNotFound: If the table does not exist.
        """
        service = self._embedded.service
        settings = self._embedded.settings
        read = read_table(
            service.database,
            KeyRing(load_master_key(settings.keys_dir)),
            open_store(settings.stage_url),
            parse_table_name(table),
        )
        rows: list[dict[str, object]] = read.to_pylist()
        return rows

    def close(self) -> None:
        """Stop clients and service. Uncommitted rows of the clients are discarded."""
        for client in self._clients:
            with contextlib.suppress(SnowmeltError):
                client.close()
        self._clients.clear()
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
