"""What the operations of a run share: its site, model, writers, log and differences."""

from __future__ import annotations

import collections
import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from pyiceberg.catalog import Catalog

from snowmelt import StatementClient
from snowmelt.client.statements import StatementRows
from snowmelt.errors import (
    ServiceBusy,
    ServiceUnavailable,
    SnowmeltError,
    StatementFailed,
    UnknownOutcome,
)
from support.system_model.model import Handle, Table, tick
from support.system_model.site import Site
from support.system_model.writers import SdkHandle, Writer

if TYPE_CHECKING:
    from support.system_model.pipe_operations import Pipe
    from support.system_model.readers import DuckDbReader
    from support.system_model.spark_operations import SparkStatements

MAX_DIFFERENCES = 10
SCHEMAS = ("PUBLIC", "s two")
_RETRY_S = 90.0
_LOGGED_CHARACTERS = 600


class TooManyDifferences(Exception):
    """The model and the service differ so much that more steps are of no use."""


@dataclass(frozen=True)
class DescribedColumn:
    """Column as DESCRIBE TABLE returns it."""

    name: str
    type: str
    is_nullable: bool
    ordinal: int


class RowApiHandle:
    """Channel that is open in the row API, with the token that its next request continues."""

    def __init__(self, channel: Any, continuation: str) -> None:
        self.channel = channel
        self.continuation = continuation
        self.last_token = channel.token or 0
        self.is_closed = False
        self.opened_at = tick()
        # The URL of the channel contains the name of its table.
        self.opened_name = channel.table.full_name

    @property
    def is_current(self) -> bool:
        """True if the table still has the name in the URL."""
        return bool(self.opened_name == self.channel.table.full_name)


class Run:
    """Random operations on a site, and the model of what the site must contain.

    `source` is the random source of the current step. `differences` are sentences.
    """

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.seed = site, seed
        self.source = random.Random(f"{seed}")
        self.tables: list[Table] = []
        self.dropped: list[Table] = []
        self.writers: list[Writer] = []
        self.row_api_handles: list[RowApiHandle] = []
        self.pipes: dict[str, Pipe] = {}
        self.counts: collections.Counter[str] = collections.Counter()
        self.differences: list[str] = []
        self.duckdb: DuckDbReader | None = None
        self.spark: SparkStatements | None = None
        self._chosen: Table | None = None
        # PyIceberg's catalogs by their warehouse.
        self.catalogs: dict[str, Catalog] = {}
        self.http = httpx.Client(timeout=60, trust_env=False)
        self._statements = StatementClient(site.url)
        self._started_at = time.monotonic()
        self._log = (site.folder / "operations.log").open("w")

    @property
    def folder(self) -> Path:
        return self.site.folder

    def begin_step(self, step: int) -> None:
        """Give a step a random source that depends on the seed and its number only."""
        self.source = random.Random(f"{self.seed}/{step}")
        self.log("step", step)

    def log(self, *words: Any) -> None:
        """Write a line to `operations.log`."""
        elapsed = time.monotonic() - self._started_at
        text = " ".join(map(str, words))[:_LOGGED_CHARACTERS]
        print(f"{elapsed:8.2f} {text}", file=self._log, flush=True)

    def differ(self, *words: Any) -> None:
        """Record a difference between the model and the service.

        Raises:
            TooManyDifferences: If there are already `MAX_DIFFERENCES`.
        """
        text = " ".join(map(str, words))
        self.log("DIFFERENCE", text)
        self.differences.append(text)
        if len(self.differences) >= MAX_DIFFERENCES:
            raise TooManyDifferences

    def stop(self) -> None:
        """Kill the writers and close connections."""
        for writer in self.writers:
            writer.stop()
        for catalog in self.catalogs.values():
            catalog.close()
        self._statements.close()
        self.http.close()
        self._log.close()

    # --- statements

    def query(self, statement: str) -> StatementRows:
        """Return the result of a statement that can be repeated, also while the service is killed.

        Raises:
            SnowmeltError: If the service rejects the statement.
        """
        until = time.monotonic() + _RETRY_S
        while True:
            try:
                return self._statements.execute(statement)
            except (ServiceUnavailable, ServiceBusy, UnknownOutcome):
                if time.monotonic() > until:
                    raise
            except StatementFailed as error:
                text = str(error)
                if time.monotonic() > until or not ("busy" in text or "conflict" in text):
                    raise
            time.sleep(0.1)

    def execute(self, statement: str) -> SnowmeltError | None:
        """Run a statement that changes objects, safe from kills. Return its error."""
        with self.site.lock:
            self.log("statement:", statement)
            try:
                self.query(statement)
            except SnowmeltError as error:
                self.log("  ->", type(error).__name__, error)
                return error
        return None

    def change(self, statement: str) -> bool:
        """Run a statement that must succeed. Return True if it did."""
        error = self.execute(statement)
        if error is not None:
            self.differ(f"{statement}: {error}")
        return error is None

    def must_reject(self, statement: str) -> None:
        """Run a statement that must fail."""
        if self.execute(statement) is None:
            self.differ(f"accepted: {statement}")

    def query_records(self, statement: str) -> list[dict[str, Any]]:
        """Return the rows of a statement by the lower-case names of its columns."""
        found = self.query(statement)
        names = [name.lower() for name in found.columns]
        return [dict(zip(names, row, strict=True)) for row in found.rows]

    def describe(self, table: Table) -> list[DescribedColumn]:
        """Return the columns of a table as the service knows them."""
        return [
            DescribedColumn(
                each["name"],
                each["type"],
                str(each["nullable"]).lower() in {"true", "y", "yes"},
                int(each["ordinal"]),
            )
            for each in self.query_records(f"DESCRIBE TABLE {table.full_name}")
        ]

    def adopt_dropped_required(self, table: Table) -> None:
        """Adopt that rows without a value have dropped NOT NULL from columns of the table."""
        nullable = {each.ordinal for each in self.describe(table) if each.is_nullable}
        for column in table.columns:
            if column.is_required and column.ordinal in nullable:
                column.drop_required()

    # --- handles

    def choose_table(self) -> Table:
        return self._chosen or self.source.choice(self.tables)

    @contextlib.contextmanager
    def choosing(self, table: Table) -> Iterator[None]:
        """Let all operations choose this table."""
        self._chosen = table
        try:
            yield
        finally:
            self._chosen = None

    def list_sdk_handles(self, table: Table | None = None) -> list[SdkHandle]:
        """Return the open handles of the SDK, of all tables or of one."""
        return [
            handle
            for writer in self.writers
            for handle in writer.handles.values()
            if not handle.is_closed and table in (None, handle.channel.table)
        ]

    def list_row_api_handles(self) -> list[RowApiHandle]:
        """Return the open handles of the row API on tables that exist."""
        self.row_api_handles = [
            each
            for each in self.row_api_handles
            if not each.is_closed and each.channel.table in self.tables
        ]
        return self.row_api_handles

    def close_handle(self, handle: Handle) -> None:
        """Note that nothing more is sent through a handle."""
        handle.is_closed = True
        if handle.channel.owner is handle:
            handle.channel.owner = None
        for writer in self.writers:
            writer.handles = {
                number: each for number, each in writer.handles.items() if not each.is_closed
            }

    def close_handles(self, table: Table) -> None:
        """Note that all handles of a table are lost."""
        for channel in table.channels.values():
            channel.release()
        for handle in self.list_sdk_handles(table):
            self.close_handle(handle)

    def reconcile(self, channel: Any, token: str | None, where: str, *, final: bool) -> None:
        """Commit the batches up to a token that a service reported.

        If `final` is true, batches after it are lost: the channel was opened again.
        """
        number = None if token is None else int(token)
        known, before = [batch.token for batch in channel.pending], channel.token
        if not channel.commit_up_to(number):
            self.differ(
                f"{where}: channel {channel.name!r} of {channel.table.full_name} has token {token}; "
                f"committed before: {before}, sent since: {known}"
            )
        if final:
            channel.pending = []

    # --- names

    def new_column_name(self) -> str:
        number = tick()
        plain = f"C{number}"
        odd = (f"c{number} é", f"c{number}.x", f'X"{number}', f"Ünï{number}")
        return self.source.choice([*[plain] * 6, *odd])
