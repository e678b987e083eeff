"""Tables, columns and channels as they must be, and the comparison with rows of a reader."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Protocol

from support.system_model.values import ColumnType, comparable

# Logical clock: orders changes of columns and the openings of channels.
_ticks = itertools.count(1)

# A row of the model and of a reader: the values by the number of the column.
StoredRow = dict[int, Any]


def tick() -> int:
    """Return a number that is greater than all earlier ones."""
    return next(_ticks)


@dataclass(frozen=True)
class OneOf:
    """Values of which any is right, because a change of the column was concurrent."""

    values: tuple[Any, ...]


def quote(name: str) -> str:
    """Return a name as SQL and the SDK take it, quoted if necessary."""
    if name.isascii() and name.isalnum() and name == name.upper():
        return name
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


@dataclass
class Column:
    """Column of a table. `ordinal` identifies it in files and is never reused in its table.

    `..._at` are ticks of the last change. A channel that was opened before may still have converted
    its rows with the former state.
    """

    ordinal: int
    name: str
    type: ColumnType
    is_required: bool = False
    default: Any = None
    has_default: bool = False
    former_type: ColumnType | None = None
    type_at: int = 0
    default_at: int = 0
    required_at: int = 0
    former_defaults: list[Any] = field(default_factory=list)

    @property
    def possible_defaults(self) -> OneOf:
        """Values of a row without this column, if the default changed since its channel opened."""
        return OneOf((None, self.default, *self.former_defaults))

    @property
    def definition(self) -> str:
        """SQL of the column in CREATE TABLE, without its default."""
        required = " NOT NULL" if self.is_required else ""
        return f"{quote(self.name)} {self.type.sql}{required}"

    def set_default(self, value: Any, *, exists: bool) -> None:
        self.former_defaults.append(self.default if self.has_default else None)
        self.default, self.has_default, self.default_at = value, exists, tick()

    def drop_required(self) -> None:
        self.is_required, self.required_at = False, tick()

    def copy(self) -> Column:
        return replace(self, former_defaults=list(self.former_defaults))


@dataclass
class Batch:
    """Rows that were sent with one token. `rejected` are the keys of its rejected rows.

    A batch is deferred if it has nothing to commit: its token waits for a later batch.
    """

    token: int
    rows: list[StoredRow]
    rejected: list[int] = field(default_factory=list)
    is_deferred: bool = False


class Handle(Protocol):
    """Open channel of a client. Nothing is sent through a handle that is closed."""

    channel: Channel
    is_closed: bool


@dataclass(eq=False)
class Channel:
    """Channel with its committed token, and with the batches whose commit is not reported yet."""

    table: Table
    name: str
    token: int | None = None
    pending: list[Batch] = field(default_factory=list)
    owner: Handle | None = None

    def commit(self, batch: Batch) -> None:
        self.table.add_rows(batch.rows, batch.rejected)
        self.token = batch.token

    def commit_up_to(self, token: int | None) -> bool:
        """Commit pending batches up to a reported token. Return False if no batch has that token."""
        if token == self.token:
            return True
        if token is None or token not in [batch.token for batch in self.pending]:
            self.token, self.pending = token, []
            return False
        while self.pending and self.pending[0].token <= token:
            self.commit(self.pending.pop(0))
        return True

    def commit_all(self) -> None:
        """Commit all rows that were sent. Deferred tokens after the last of them may be committed."""
        while any(not batch.is_deferred for batch in self.pending):
            self.commit(self.pending.pop(0))

    def release(self) -> None:
        """Close the handle of the owner."""
        if self.owner is not None:
            self.owner.is_closed = True
        self.owner = None


@dataclass(eq=False)
class Table:
    """Table with its rows by key, and its channels by name.

    `rejected` are keys that the error table must have once, `maybe_rejected` keys that it may have.
    `removed` are keys of rows that a client or an engine has deleted.
    """

    schema: str
    name: str
    columns: list[Column] = field(default_factory=list)
    rows: dict[int, StoredRow] = field(default_factory=dict)
    channels: dict[str, Channel] = field(default_factory=dict)
    used_names: set[str] = field(default_factory=set)
    next_ordinal: int = 1
    renamed_at: int = 0
    has_renamed_columns: bool = False
    evolves: bool = False
    has_error_table: bool = False
    rejected: set[int] = field(default_factory=set)
    maybe_rejected: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)

    @property
    def full_name(self) -> str:
        return f"DEMO.{quote(self.schema)}.{quote(self.name)}"

    @property
    def key(self) -> Column:
        """First column: the number that identifies a row."""
        return self.columns[0]

    def add_column(self, name: str, column_type: ColumnType, **more: Any) -> Column:
        column = Column(self.next_ordinal, name, column_type, **more)
        self.next_ordinal += 1
        self.columns.append(column)
        self.used_names.add(name.upper())
        return column

    def add_rows(self, rows: Iterable[StoredRow], rejected: Iterable[int] = ()) -> None:
        for row in rows:
            key = int(row[self.key.ordinal])
            assert key not in self.rows, "the model has a row twice"
            self.rows[key] = row
        self.rejected.update(rejected)

    def rename(self, schema: str, name: str) -> None:
        self.schema, self.name, self.renamed_at = schema, name, tick()

    def remove_rows(self, keys: Iterable[int]) -> None:
        for key in keys:
            del self.rows[key]
            self.removed.add(key)

    @property
    def pending_keys(self) -> set[int]:
        """Keys of rows whose commit is not reported yet. Readers may see them."""
        return {
            int(row[self.key.ordinal])
            for channel in self.channels.values()
            for batch in channel.pending
            for row in batch.rows
        }

    def renumber(self, ordinals: dict[str, int]) -> None:
        """Take over the ordinals of a table that replaced this one. The table must be empty."""
        assert not self.rows
        for column in self.columns:
            column.ordinal = ordinals[column.name]
        self.next_ordinal = max(ordinals.values()) + 1

    def copy_as_dropped(self) -> Table:
        """Return the table that TRUNCATE leaves behind, with its rows and channels."""
        copy = replace(
            self,
            columns=[column.copy() for column in self.columns],
            used_names=set(self.used_names),
            channels={},
            rejected=set(),
            maybe_rejected=set(),
            removed=set(self.removed),
        )
        for name, channel in self.channels.items():
            copy.channels[name] = Channel(copy, name, channel.token)
        return copy


def find_difference(table: Table, columns: Sequence[Column], rows: Sequence[StoredRow]) -> str:
    """Return the first difference between a reader's rows and the table; empty if there is none."""
    found: dict[int, StoredRow] = {}
    for row in rows:
        key = int(Decimal(row[table.key.ordinal]))
        if key in found:
            return f"row {key} twice"
        found[key] = row
    missing, unexpected = table.rows.keys() - found.keys(), found.keys() - table.rows.keys()
    if missing or unexpected:
        return (
            f"{len(rows)} rows instead of {len(table.rows)}, "
            f"missing {sorted(missing)[:10]}, unexpected {sorted(unexpected)[:10]}"
        )
    for key, row in table.rows.items():
        for column in columns:
            wanted, value = row.get(column.ordinal), found[key][column.ordinal]
            if column is not table.key and not _is_equal(column, wanted, value):
                shown = [comparable(column.type, each) for each in _possible(wanted)]
                return (
                    f"row {key}, column {column.name!r} ({column.ordinal}, {column.type.sql}): "
                    f"{value!r} instead of {' or '.join(map(repr, shown))}"
                )
    return ""


def _possible(wanted: Any) -> tuple[Any, ...]:
    return wanted.values if isinstance(wanted, OneOf) else (wanted,)


def _is_equal(column: Column, wanted: Any, value: Any) -> bool:
    return any(comparable(column.type, each) == value for each in _possible(wanted))
