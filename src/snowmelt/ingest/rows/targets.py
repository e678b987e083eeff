"""Look up the target table of a pipe. Results are cached for 2 s.

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
from snowmelt.catalog.objects.file_pipes import find_file_pipe
from snowmelt.catalog.objects.tables import DEFAULT_PIPE_SUFFIX, resolve_pipe_table
from snowmelt.catalog.security import access_control
from snowmelt.catalog.security.encryption_keys import DataKey, KeyRing
from snowmelt.catalog.sql.pipe_copy import PipeCopy, parse_pipe_copy
from snowmelt.catalog.streaming import registration, row_request_state
from snowmelt.clock import Clock
from snowmelt.errors import PipeNotFound, RoleNotGranted, UserError
from snowmelt.schema.types import LogicalType, TableName, to_internal_name

ELASTIC_CHANNEL = "ELASTIC"


@dataclass(frozen=True, slots=True)
class PipePath:
    """Name of a pipe in a request. Parts are as the client wrote them."""

    database: str
    schema: str
    pipe: str

    @property
    def name(self) -> TableName:
        """Full internal name of the pipe."""
        return TableName(*map(to_internal_name, (self.database, self.schema, self.pipe)))

    @property
    def default_table(self) -> TableName | None:
        """Table whose default pipe has this name, or None if it is not the name of a default pipe."""
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
    """User and role of a request. Role None means the user's default role."""

    user: str
    role: str | None = None


@dataclass(frozen=True, slots=True)
class SdkClient:
    """Client of the official SDK: ID and time of issue of its token.

    `first_token_issued_ms` is when the first token used with its channel was issued, or None.
    """

    token_id: str = ""
    token_issued_ms: int = 0
    first_token_issued_ms: int = 0


@dataclass(frozen=True, slots=True)
class PipeTarget:
    """Target table of a pipe for one user. `copy` is the pipe's transformation.

    `last_base64_client_at` is the last time at which an older service instructed a client of this
    pipe to write base64.
    """

    path: PipePath
    table: TableRecord
    sender: RowSender
    data_key: DataKey
    copy: PipeCopy | None = None
    base64_client_since: dt.datetime | None = None

    @property
    def chunk_key(self) -> tuple[int, int, int, str, str | None]:
        """Properties that must be equal for rows in one chunk."""
        return (
            self.table.table_id,
            self.table.schema.version,
            self.data_key.key_id,
            self.sender.user,
            self.sender.role,
        )

    @property
    def rejection_rules(self) -> tuple[object, ...]:
        """Properties that determine which rows are rejected, and where they are stored."""
        table = self.table
        return table.schema.version, table.schema_evolution, table.error_table_id, self.copy


def has_binary_column(table: TableRecord) -> bool:
    """Return True if a table has a BINARY column."""
    return any(column.kind is LogicalType.BINARY for column in table.schema.columns)


def elastic_channel_name(user: str) -> str:
    """Return the channel for rows that a user sends without a channel name.

    Each user has one, because a channel has one owner. Its name has lower-case letters, so an
    unquoted name cannot open it.
    """
    return f"elastic:{user}"


def is_elastic_channel(channel: str) -> bool:
    """Return True if a request names the elastic channel."""
    return channel.upper() == ELASTIC_CHANNEL


def is_uploaded_row_file_name(name: str) -> bool:
    """Return True if a name is that of an uploaded file of rows: a number and `.ndjson`."""
    number, _, ending = name.partition(".")
    return ending == "ndjson" and number.isascii() and number.isdigit() and len(number) < 20


_WRITE_PRIVILEGE = "INSERT"
# The registering transaction checks privileges again, so a revocation takes effect immediately.
_CACHE_TTL_S = 2.0
_MAX_CACHED_TARGETS = 10_000


@dataclass(eq=False, slots=True)
class TargetResolver:
    """Looks up the target tables of pipes for senders. Thread-safe."""

    _database: Database
    _keyring: KeyRing
    _clock: Clock
    _cached_targets: dict[tuple[PipePath, RowSender], tuple[float, PipeTarget]] = field(
        default_factory=dict
    )
    _prefixes: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, path: PipePath, sender: RowSender, *, refresh: bool = False) -> PipeTarget:
        """Return the target table of a pipe. Results up to 2 s old are reused unless `refresh` is set.

        Raises:
            PipeNotFound: If the pipe does not exist, or the role may not insert through it.
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
        """Return the client prefix with which this service stages a user's rows."""
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
    """Return the current name of a table, or None if the sender may not insert into it."""
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
    """Return the target table of a pipe, and the transformation. Checks the sender's privileges.

    Raises:
        PipeNotFound: If the pipe does not exist, or the role may not insert through it.
    """
    pipe = tables.find_pipe(connection, path.name)
    if pipe is not None and find_file_pipe(connection, pipe.pipe_id) is not None:
        raise PipeNotFound(f"{PipeNotFound(pipe=path)} It loads files and does not accept rows.")
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
        # The target of a pipe is hidden from roles that may not insert into it.
        reveals_target = copy is not None and not isinstance(error, RoleNotGranted)
        reason = "" if reveals_target else f" {error}"
        raise PipeNotFound(f"{PipeNotFound(pipe=path)}{reason}") from None
    return table, copy
