"""Tables with backlog and last commit, a page at a time, and the recent chunks of one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_record
from snowmelt.catalog.objects.tables import join_namespaces
from snowmelt.catalog.views.freshness import (
    compute_freshness_state,
    find_last_commit,
    is_bookkeeping_channel,
    read_recent_commits,
)
from snowmelt.catalog.views.paging import Order, Page, contains_text, fetch_page
from snowmelt.catalog.views.visibility import Visibility
from snowmelt.errors import RequestMalformed
from snowmelt.schema.types import TableName

_TABLES, _CHANNELS, _CHUNKS = model.tables, model.channels, model.chunks
_SCHEMAS, _DATABASES = model.schemas, model.databases
_BACKLOG = _TABLES.c.last_seq - _TABLES.c.migrated_seq
_ORDERS = {
    "name": Order(
        _DATABASES.c.name + "." + _SCHEMAS.c.name + "." + _TABLES.c.name, _TABLES.c.table_id
    ),
    "backlog": Order(_BACKLOG, _TABLES.c.table_id, is_descending=True),
    "newest": Order(_TABLES.c.table_id, _TABLES.c.table_id, is_descending=True),
}
TABLE_ORDERS = tuple(_ORDERS)


@dataclass(frozen=True, slots=True)
class TableView:
    """A table. `waiting_chunks` are those that no native file contains yet.

    `last_commit_at` is the last commit by a channel, chunk or load. `channels` and `last_commit_at`
    exclude bookkeeping channels of connectors. `freshness_s` is the longest expected time between
    two commits, or None if there is no expectation.
    """

    table_id: int
    name: TableName
    owner: str
    created_at: dt.datetime
    waiting_chunks: int
    chunks: int
    error_table_id: int | None
    freshness_s: int | None
    channels: int = 0
    last_commit_at: dt.datetime | None = None
    usual_gap_s: float | None = None

    def find_freshness_state(self, now: dt.datetime) -> str:
        """Return the state of the table: `fresh`, `late`, `quiet` or `never`."""
        return compute_freshness_state(
            last_commit_at=self.last_commit_at,
            created_at=self.created_at,
            freshness_s=self.freshness_s,
            usual_gap_s=self.usual_gap_s,
            now=now,
        )


@dataclass(frozen=True, slots=True)
class ChunkView:
    """A recent chunk; `channels` has name, start token and end token of each channel in it."""

    seq: int
    rows: int
    length: int
    registered_at: dt.datetime
    first_insert_ms: int | None
    is_migrated: bool
    quarantine_reason: str | None
    path: str
    channels: tuple[tuple[str, str | None, str | None], ...]


def fetch_tables(
    connection: sa.Connection,
    visibility: Visibility,
    *,
    text: str = "",
    order: str = "name",
    after: str | None = None,
    limit: int = 50,
) -> Page[TableView]:
    """Return a page of tables.

    Raises:
        RequestMalformed: If the order is unknown, or the cursor is invalid.
    """
    if order not in _ORDERS:
        raise RequestMalformed(
            reason=f"Unknown order of tables {order[:80]!r}. Valid orders: {', '.join(_ORDERS)}"
        )
    query = visibility.restrict(_select_tables(), _TABLES.c.table_id)
    if text:
        query = query.where(contains_text([_ORDERS["name"].value], text))
    page = fetch_page(connection, query, _ORDERS[order], _to_view, after=after, limit=limit)
    return Page(_add_activity(connection, page.rows), page.next_cursor)


def find_table_view(
    connection: sa.Connection, visibility: Visibility, name: TableName
) -> TableView | None:
    """Return one table, or None if it does not exist or the role may not see it."""
    query = visibility.restrict(_select_tables(), _TABLES.c.table_id).where(
        _DATABASES.c.name == name.database,
        _SCHEMAS.c.name == name.schema,
        _TABLES.c.name == name.table,
    )
    row = connection.execute(query).first()
    return None if row is None else _add_activity(connection, [_to_view(row)])[0]


def list_table_views(connection: sa.Connection, table_ids: Collection[int]) -> list[TableView]:
    """Return these tables, except dropped ones."""
    query = _select_tables().where(_TABLES.c.table_id.in_(table_ids))
    return _add_activity(connection, [_to_view(row) for row in connection.execute(query)])


def list_table_names(connection: sa.Connection, table_ids: Sequence[int]) -> dict[int, TableName]:
    """Return the names of these tables, including dropped ones."""
    query = (
        sa.select(
            _TABLES.c.table_id,
            _DATABASES.c.name,
            _SCHEMAS.c.name.label("s"),
            _TABLES.c.name.label("t"),
        )
        .select_from(join_namespaces(_TABLES))
        .where(_TABLES.c.table_id.in_(table_ids))
    )
    return {row[0]: TableName(row[1], row[2], row[3]) for row in connection.execute(query)}


def list_recent_chunks(
    connection: sa.Connection, table_id: int, *, limit: int = 200
) -> list[ChunkView]:
    """Return the newest chunks of a table, newest first."""
    names = ("seq", "rows", "length", "registered_at", "first_insert_ms", "quarantine_reason")
    query = (
        sa.select(
            *(_CHUNKS.c[name] for name in names),
            (_CHUNKS.c.prefix + "/" + _CHUNKS.c.path).label("path"),
            _CHUNKS.c.channels,
            _TABLES.c.migrated_seq,
        )
        .join(_TABLES, _CHUNKS.c.table_id == _TABLES.c.table_id)
        .where(_CHUNKS.c.table_id == table_id)
        .order_by(_CHUNKS.c.seq.desc())
        .limit(limit)
    )
    return [
        ChunkView(
            *row[:5],
            is_migrated=row.seq <= row.migrated_seq and row.quarantine_reason is None,
            quarantine_reason=row.quarantine_reason,
            path=row.path,
            channels=tuple(
                (str(each[0]), _text(each[3:4]), _text(each[4:5]))
                for each in msgspec.json.decode(row.channels, type=list[list[Any]])
            ),
        )
        for row in connection.execute(query)
    ]


def _text(values: Sequence[Any]) -> str | None:
    return None if not values or values[0] is None else str(values[0])


def _select_tables() -> sa.Select[Any]:
    return (
        sa.select(
            _TABLES.c.table_id,
            _TABLES.c.name,
            _TABLES.c.owner,
            _TABLES.c.created_at,
            _TABLES.c.last_seq,
            _TABLES.c.pointer,
            _TABLES.c.error_table_id,
            _TABLES.c.freshness_s,
            _SCHEMAS.c.name.label("schema_name"),
            _DATABASES.c.name.label("database_name"),
            _BACKLOG.label("waiting_chunks"),
        )
        .select_from(join_namespaces(_TABLES))
        .where(_TABLES.c.dropped_at.is_(None))
    )


def _to_view(row: sa.Row[Any]) -> TableView:
    return make_record(
        TableView,
        row,
        name=TableName(row.database_name, row.schema_name, row.name),
        chunks=row.last_seq,
    )


def _add_activity(connection: sa.Connection, tables: Sequence[TableView]) -> list[TableView]:
    query = (
        sa.select(
            _CHANNELS.c.table_id,
            sa.func.count(),
            sa.func.max(_CHANNELS.c.last_commit_at, type_=model.UtcTimestamp),
        )
        .where(_CHANNELS.c.table_id.in_([table.table_id for table in tables]))
        .where(sa.not_(is_bookkeeping_channel()))
        .group_by(_CHANNELS.c.table_id)
    )
    found = {row[0]: (row[1], row[2]) for row in connection.execute(query)}
    ids = [table.table_id for table in tables]
    commits = read_recent_commits(connection, ids)
    result = []
    for table in tables:
        count, last_commit_at = found.get(table.table_id, (0, None))
        recent = commits.get(table.table_id)
        result.append(
            replace(
                table,
                channels=count,
                last_commit_at=find_last_commit(last_commit_at, recent),
                usual_gap_s=None if recent is None else recent.usual_gap_s,
            )
        )
    return result
