"""Where rows are sent: database, schema, pipe; and which table that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.schema.types import Kind, TableName, internal_name

if TYPE_CHECKING:
    import datetime as dt

    from snowmelt.catalog.keys import DataKey
    from snowmelt.catalog.pipe_syntax import PipeCopy
    from snowmelt.catalog.tables import TableRecord

DEFAULT_SUFFIX = "-STREAMING"
ELASTIC = "ELASTIC"


@dataclass(frozen=True, slots=True)
class PipePath:
    """A pipe as a request names it, parts as the user typed them."""

    database: str
    schema: str
    pipe: str

    @property
    def name(self) -> TableName:
        """The pipe's full internal name."""
        return TableName(*map(internal_name, (self.database, self.schema, self.pipe)))

    @property
    def default_table(self) -> TableName | None:
        """The table whose default pipe this is, by its name; None when the name is no such."""
        pipe = self.pipe
        quoted = len(pipe) > 1 and pipe[0] == pipe[-1] == '"'
        bare = pipe[1:-1] if quoted else pipe
        if not bare.upper().endswith(DEFAULT_SUFFIX) or len(bare) == len(DEFAULT_SUFFIX):
            return None
        table = bare[: -len(DEFAULT_SUFFIX)]
        return TableName(
            internal_name(self.database),
            internal_name(self.schema),
            internal_name(f'"{table}"' if quoted else table),
        )

    def __str__(self) -> str:
        return f"{self.database}.{self.schema}.{self.pipe}"


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends rows, in which role; None is the user's default."""

    user: str
    role: str | None = None


@dataclass(frozen=True, slots=True)
class SdkClient:
    """Which client of the official SDK sends: its token's id, and when that was issued.

    `born_ms` is when the first token that its channel was used with was, where that is known.
    """

    token: str = ""
    issued_ms: int = 0
    born_ms: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """The table behind a pipe, as one user writes to it; `copy` is what the pipe computes.

    `told_base64` is when a client of this pipe was last told to write bytes so, by an older service.
    """

    path: PipePath
    table: TableRecord
    sender: Sender
    data_key: DataKey
    copy: PipeCopy | None = None
    told_base64: dt.datetime | None = None

    @property
    def key(self) -> tuple[int, int, int, str, str | None]:
        """What rows must have in common to share a chunk."""
        return (
            self.table.table_id,
            self.table.schema.version,
            self.data_key.key_id,
            self.sender.user,
            self.sender.role,
        )

    @property
    def rules(self) -> tuple[object, ...]:
        """By what rows are refused, and what becomes of them."""
        table = self.table
        return table.schema.version, table.schema_evolution, table.error_table_id, self.copy


def has_binary(table: TableRecord) -> bool:
    """Tell whether a table has a BINARY column."""
    return any(column.kind is Kind.BINARY for column in table.schema.columns)


def elastic_channel(user: str) -> str:
    """Return the channel that counts what a user sends without naming a channel.

    One for each user, since a channel has one owner; small letters, so that nobody opens it unquoted.
    """
    return f"elastic:{user}"


def is_elastic(channel: str) -> bool:
    """Tell whether a request names the elastic channel."""
    return channel.upper() == ELASTIC


def is_row_file(name: str) -> bool:
    """Tell whether a name is that of a file of rows: a number and `.ndjson`."""
    number, _, ending = name.partition(".")
    return ending == "ndjson" and number.isascii() and number.isdigit() and len(number) < 20
