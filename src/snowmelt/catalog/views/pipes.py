"""Pipes with their state and waiting files, a page at a time."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_record
from snowmelt.catalog.model.records import ACCOUNTADMIN, PUBLIC
from snowmelt.catalog.views.paging import Order, Page, fetch_page
from snowmelt.catalog.views.visibility import Visibility
from snowmelt.schema.types import TableName

_PIPES, _FILE_PIPES, _PIPE_FILES = model.pipes, model.file_pipes, model.pipe_files
_SCHEMAS, _DATABASES = model.schemas, model.databases
_FULL_NAME = _DATABASES.c.name + "." + _SCHEMAS.c.name + "." + _PIPES.c.name
_ORDER = Order(_FULL_NAME, _PIPES.c.pipe_id)


@dataclass(frozen=True, slots=True)
class PipeView:
    """A pipe. The fields after `created_at` apply to pipes that load files.

    `state` is `streaming` for a pipe that takes streamed rows; otherwise `paused`, `stalled` (an error stops
    it) or `running`. `failed_files` are files that the pipe could not load. `definition` is None if the
    role is not its owner.
    """

    pipe_id: int
    name: TableName
    owner: str
    state: str
    definition: str | None
    created_at: dt.datetime
    waiting_files: int | None
    oldest_waiting_at: dt.datetime | None
    listed_at: dt.datetime | None
    last_file: str | None
    last_load_at: dt.datetime | None
    last_error: str | None
    last_error_at: dt.datetime | None
    failed_files: int


def fetch_pipes(
    connection: sa.Connection,
    visibility: Visibility,
    *,
    after: str | None = None,
    limit: int = 50,
) -> Page[PipeView]:
    """Return a page of pipes, by name.

    A role sees the pipes that it owns, or all pipes if it has MONITOR on the account.

    Raises:
        RequestMalformed: If the cursor is invalid.
    """
    query = _select_pipes(visibility)
    page = fetch_page(connection, query, _ORDER, lambda row: row, after=after, limit=limit)
    return Page([_to_view(row, visibility) for row in page.rows], page.next_cursor)


def find_pipe_view(
    connection: sa.Connection, visibility: Visibility, name: TableName
) -> PipeView | None:
    """Return one pipe, or None if it does not exist or the role may not see it."""
    query = _select_pipes(visibility).where(
        _DATABASES.c.name == name.database,
        _SCHEMAS.c.name == name.schema,
        _PIPES.c.name == name.table,
    )
    row = connection.execute(query).first()
    return None if row is None else _to_view(row, visibility)


def list_stalled_pipes(connection: sa.Connection, visibility: Visibility) -> list[PipeView]:
    """Return pipes that an error stops, and those with files that they could not load."""
    query = _select_pipes(visibility).where(
        sa.or_(_FILE_PIPES.c.last_error.is_not(None), _COUNT_FAILED > 0)
    )
    return [_to_view(row, visibility) for row in connection.execute(query.order_by(_FULL_NAME))]


_COUNT_FAILED = (
    sa.select(sa.func.count())
    .where(_PIPE_FILES.c.pipe_id == _PIPES.c.pipe_id)
    .correlate(_PIPES)
    .scalar_subquery()
)


def _select_pipes(visibility: Visibility) -> sa.Select[Any]:
    names = ("waiting_files", "oldest_waiting_at", "listed_at", "last_file", "last_load_at")
    state = (*names, "last_error", "last_error_at", "paused")
    query = (
        sa.select(
            *(_PIPES.c[name] for name in ("pipe_id", "owner", "definition", "created_at")),
            _DATABASES.c.name.label("database_name"),
            _SCHEMAS.c.name.label("schema_name"),
            _PIPES.c.name.label("pipe_name"),
            *(_FILE_PIPES.c[name] for name in state),
            _FILE_PIPES.c.pipe_id.label("file_pipe_id"),
            _COUNT_FAILED.label("failed_files"),
        )
        .select_from(
            _PIPES.join(_SCHEMAS, _SCHEMAS.c.schema_id == _PIPES.c.schema_id)
            .join(_DATABASES, _DATABASES.c.database_id == _SCHEMAS.c.database_id)
            .outerjoin(_FILE_PIPES, _FILE_PIPES.c.pipe_id == _PIPES.c.pipe_id)
        )
        .where(_PIPES.c.dropped_at.is_(None))
    )
    if visibility.is_account_visible:
        return query
    return query.where(_PIPES.c.owner.in_((visibility.role, PUBLIC)))


def _to_view(row: sa.Row[Any], visibility: Visibility) -> PipeView:
    state = "running"
    if row.file_pipe_id is None:
        state = "streaming"
    elif row.paused:
        state = "paused"
    elif row.last_error is not None:
        state = "stalled"
    shows_definition = visibility.role in {ACCOUNTADMIN, row.owner}
    return make_record(
        PipeView,
        row,
        name=TableName(row.database_name, row.schema_name, row.pipe_name),
        state=state,
        definition=row.definition if shows_definition else None,
    )
