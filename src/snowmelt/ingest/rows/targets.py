"""Lookup of the table behind a pipe, cached for two seconds.

The result only prepares a request. The transaction that registers the rows checks role, table,
columns and key again. The module also defines pipe paths, senders and the elastic channel.
"""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import dataclass, field

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import tables
from snowmelt.catalog.objects.tables import resolve_pipe_table
from snowmelt.catalog.security import access_control
from snowmelt.catalog.security.encryption_keys import DataKey, KeyRing
from snowmelt.catalog.sql.pipe_copy import PipeCopy, parse_pipe_copy
from snowmelt.catalog.streaming import registration, row_request_state
from snowmelt.clock import Clock
from snowmelt.errors import PipeNotFound, UserError
from snowmelt.schema.types import LogicalType, TableName, to_internal_name

DEFAULT_PIPE_SUFFIX = "-STREAMING"
ELASTIC_CHANNEL = "ELASTIC"


@dataclass(frozen=True, slots=True)
class PipePath:
    """A pipe as a request names it, parts as the user typed them."""

    database: str
    schema: str
    pipe: str

    @property
    def name(self) -> TableName:
        """The pipe's full internal name."""
        return TableName(*map(to_internal_name, (self.database, self.schema, self.pipe)))

    @property
    def default_table(self) -> TableName | None:
        """The table whose default pipe this is, by its name; None when the name is no such."""
        pipe = self.pipe
        quoted = len(pipe) > 1 and pipe[0] == pipe[-1] == '"'
        bare = pipe[1:-1] if quoted else pipe
        if not bare.upper().endswith(DEFAULT_PIPE_SUFFIX) or len(bare) == len(DEFAULT_PIPE_SUFFIX):
            return None
        table = bare[: -len(DEFAULT_PIPE_SUFFIX)]
        return TableName(
            to_internal_name(self.database),
            to_internal_name(self.schema),
            to_internal_name(f'"{table}"' if quoted else table),
        )

    def __str__(self) -> str:
        return f"{self.database}.{self.schema}.{self.pipe}"


@dataclass(frozen=True, slots=True)
class RowSender:
    """Who sends rows, in which role; None is the user's default."""

    user: str
    role: str | None = None


@dataclass(frozen=True, slots=True)
class SdkClient:
    """Which client of the official SDK sends: its token's id, and when that was issued.

    `first_token_issued_ms` is when the first token that its channel was used with was, where that is known.
    """

    token_id: str = ""
    token_issued_ms: int = 0
    first_token_issued_ms: int = 0


@dataclass(frozen=True, slots=True)
class PipeTarget:
    """The table behind a pipe, as one user writes to it; `copy` is what the pipe computes.

    `last_base64_client_at` is when a client of this pipe was last told to write bytes so, by an older service.
    """

    path: PipePath
    table: TableRecord
    sender: RowSender
    data_key: DataKey
    copy: PipeCopy | None = None
    base64_client_since: dt.datetime | None = None

    @property
    def chunk_key(self) -> tuple[int, int, int, str, str | None]:
        """What rows must have in common to share a chunk."""
        return (
            self.table.table_id,
            self.table.schema.version,
            self.data_key.key_id,
            self.sender.user,
            self.sender.role,
        )

    @property
    def rejection_rules(self) -> tuple[object, ...]:
        """By what rows are refused, and what becomes of them."""
        table = self.table
        return table.schema.version, table.schema_evolution, table.error_table_id, self.copy


def has_binary_column(table: TableRecord) -> bool:
    """Tell whether a table has a BINARY column."""
    return any(column.kind is LogicalType.BINARY for column in table.schema.columns)


def elastic_channel_name(user: str) -> str:
    """Return the channel that counts what a user sends without naming a channel.

    One for each user, since a channel has one owner; small letters, so that nobody opens it unquoted.
    """
    return f"elastic:{user}"


def is_elastic_channel(channel: str) -> bool:
    """Tell whether a request names the elastic channel."""
    return channel.upper() == ELASTIC_CHANNEL


def is_uploaded_row_file_name(name: str) -> bool:
    """Tell whether a name is that of a file of rows: a number and `.ndjson`."""
    number, _, ending = name.partition(".")
    return ending == "ndjson" and number.isascii() and number.isdigit() and len(number) < 20


_WRITE_PRIVILEGE = "INSERT"
# A grant that is taken away is noticed by the registering transaction in any case.
_CACHE_TTL_S = 2.0
_MAX_CACHED_TARGETS = 10_000


@dataclass(eq=False, slots=True)
class TargetResolver:
    """Looks up pipes for senders; thread-safe."""

    _database: Database
    _keyring: KeyRing
    _clock: Clock
    _cached_targets: dict[tuple[PipePath, RowSender], tuple[float, PipeTarget]] = field(
        default_factory=dict
    )
    _prefixes: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, path: PipePath, sender: RowSender, *, refresh: bool = False) -> PipeTarget:
        """Return the table behind a pipe; `refresh` looks even where it was looked at a moment ago.

        Raises:
            PipeNotFound: There is no such pipe, or this role may not insert by it.
        """
        now = self._clock.monotonic()
        known = self._cached_targets.get((path, sender))
        if known is not None and now < known[0] and not refresh:
            return known[1]
        with self._database.reading() as connection:
            table, copy = find_writable_table(connection, path, sender)
            told = row_request_state.last_base64_client_at(connection, str(path.name))
        if known is not None and table.incarnation == known[1].table.incarnation:
            data_key = known[1].data_key
        else:
            with self._database.writing() as connection:
                data_key = self._keyring.get_or_create_data_key(connection, table, sender.user)
        target = PipeTarget(path, table, sender, data_key, copy, told)
        with self._lock:
            if len(self._cached_targets) >= _MAX_CACHED_TARGETS:
                self._cached_targets.clear()
            self._cached_targets[path, sender] = (now + _CACHE_TTL_S, target)
        return target

    def get_stage_prefix(self, user: str) -> str:
        """Return the prefix beneath which this service stages what a user sends."""
        with self._lock:
            prefix = self._prefixes.get(user)
            if prefix is None:
                with self._database.writing() as connection:
                    prefix = registration.issue_client_prefix(connection, user, self._clock.now())
                self._prefixes[user] = prefix
        return prefix


def find_table_name(
    connection: sa.Connection, table_id: int, sender: RowSender
) -> TableName | None:
    """Return what a table is called now; None where the sender may not insert into it any more."""
    role = to_internal_name(sender.role) if sender.role else None
    try:
        table = tables.find_table_by_id(connection, table_id)
        effective = access_control.resolve_effective_role(connection, sender.user, role)
        access_control.require_table_privilege(connection, effective, table, _WRITE_PRIVILEGE)
    except UserError:
        return None
    return table.name if table.dropped_at is None else None


def find_writable_table(
    connection: sa.Connection, path: PipePath, sender: RowSender
) -> tuple[TableRecord, PipeCopy | None]:
    """Return the table behind a pipe, which the sender may insert into, and what the pipe computes.

    Raises:
        PipeNotFound: There is no such pipe, or this role may not insert by it.
    """
    pipe = tables.find_pipe(connection, path.name)
    copy = None if pipe is None else parse_pipe_copy(pipe.definition)
    name = path.default_table if copy is None else resolve_pipe_table(copy, path.name)
    if name is None:
        raise PipeNotFound(pipe=path)
    role = to_internal_name(sender.role) if sender.role else None
    try:
        effective = access_control.resolve_effective_role(connection, sender.user, role)
        table = tables.find_table(connection, name)
        access_control.require_table_privilege(connection, effective, table, _WRITE_PRIVILEGE)
    except UserError as error:
        raise PipeNotFound(f"{PipeNotFound(pipe=path)} {error}") from None
    return table, copy
