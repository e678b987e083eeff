"""Loads with their files, migrations, maintenance runs and backups, newest first, a page at a time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_record
from snowmelt.catalog.jobs.load_history import LoadFileState
from snowmelt.catalog.jobs.run_history import RunState
from snowmelt.catalog.views.paging import Order, Page, fetch_page
from snowmelt.catalog.views.tables import list_table_names
from snowmelt.catalog.views.visibility import Visibility
from snowmelt.schema.types import TableName

_LOADS, _FILES = model.loads, model.loaded_files
_MIGRATIONS, _MAINTENANCE = model.migrations, model.maintenance_runs
_BACKUPS = model.backups


# Columns of `snowmelt … list` and of SHOW.
LOAD_COLUMNS = (
    *("load_id", "table", "state", "started_at", "ended_at", "files", "rows", "rejects", "bytes"),
    *("first_error", "message"),
)
RUN_COLUMNS = (
    *("run_id", "table", "state", "started_at", "ended_at", "rows", "files", "bytes", "message"),
)
BACKUP_COLUMNS = (
    *("backup_id", "destination", "state", "started_at", "ended_at", "point_id", "objects"),
    *("bytes", "message"),
)
WITH_REJECTS = "rejects"
# A load commits even if none of its files could be loaded.
_FILES_OF_LOAD = sa.select(sa.literal(1)).where(_FILES.c.load_id == _LOADS.c.load_id)
_ALL_FILES_FAILED = sa.and_(
    _LOADS.c.state == RunState.COMMITTED,
    _LOADS.c.rows == 0,
    _FILES_OF_LOAD.where(_FILES.c.state == LoadFileState.FAILED).correlate(_LOADS).exists(),
    sa.not_(
        _FILES_OF_LOAD.where(_FILES.c.state != LoadFileState.FAILED).correlate(_LOADS).exists()
    ),
)
# Failed files are counted only for loads of at most this many files.
_MAX_COUNTED_FILES = 10_000


def _newest_first(table: sa.Table) -> Order:
    started = sa.type_coerce(table.c.started_at, sa.BigInteger)
    (key,) = table.primary_key
    return Order(started, key, is_descending=True)


@dataclass(frozen=True, slots=True)
class LoadView:
    """A load of files or of a stream. Counts are None while it runs.

    `state` is the state of the load, but `failed` if it committed and no file could be loaded,
    `committed partly` if a file could not, and `committed with rejects` if records were rejected.

    `statement` and `first_error` are None if the role may not read the table.
    """

    load_id: str
    table_id: int
    table: TableName | None
    reject_table: TableName | None
    role: str
    stream_name: str | None
    statement: str | None
    state: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    files: int | None
    rows: int | None
    rejects: int | None
    bytes: int | None
    first_error: str | None
    message: str | None

    @property
    def seconds(self) -> float | None:
        """Its duration; None while it runs."""
        return None if self.ended_at is None else (self.ended_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class LoadFileView:
    """A file of a load."""

    number: int
    path: str
    size: int | None
    state: str
    rows: int
    rejects: int
    bytes: int
    first_error: str | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A migration, compaction or snapshot expiration. Counts are set when it commits."""

    run_id: str
    kind: str
    table_id: int
    table: TableName | None
    state: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    rows: int | None
    files: int | None
    bytes: int | None
    message: str | None

    @property
    def seconds(self) -> float | None:
        """Its duration; None while it runs."""
        return None if self.ended_at is None else (self.ended_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class BackupView:
    """A run of `snowmelt backup`. Counts of copied objects are None until it ends."""

    backup_id: str
    destination: str
    state: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    point_id: str | None
    objects: int | None
    bytes: int | None
    message: str | None


def fetch_loads(
    connection: sa.Connection,
    visibility: Visibility,
    *,
    table_id: int | None = None,
    state: str = "",
    stream_name: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[LoadView]:
    """Return a page of loads, newest first. Loads of a pipe have its name as `stream_name`.

    The state `rejects` selects loads that rejected records.

    Raises:
        RequestMalformed: If the cursor is invalid.
    """
    query = visibility.restrict(sa.select(_LOADS), _LOADS.c.table_id)
    if table_id is not None:
        query = query.where(_LOADS.c.table_id == table_id)
    if stream_name is not None:
        query = query.where(_LOADS.c.stream_name == stream_name)
    if state == "failed":
        query = query.where(sa.or_(_LOADS.c.state == state, _ALL_FILES_FAILED))
    elif state == "committed":
        query = query.where(_LOADS.c.state == state, sa.not_(_ALL_FILES_FAILED))
    elif state == WITH_REJECTS:
        query = query.where(_LOADS.c.rejects > 0)
    elif state:
        query = query.where(_LOADS.c.state == state)
    page = fetch_page(
        connection, query, _newest_first(_LOADS), lambda row: row, after=after, limit=limit
    )
    return Page(_to_loads(connection, page.rows, visibility), page.next_cursor)


def find_load_view(
    connection: sa.Connection, visibility: Visibility, load_id: str
) -> LoadView | None:
    """Return one load, or None if it does not exist or the role may not see it."""
    query = visibility.restrict(sa.select(_LOADS), _LOADS.c.table_id)
    rows = connection.execute(query.where(_LOADS.c.load_id == load_id)).all()
    return next(iter(_to_loads(connection, rows, visibility)), None)


def fetch_load_files(
    connection: sa.Connection,
    load: LoadView,
    visibility: Visibility,
    *,
    after: str | None = None,
    limit: int = 50,
) -> Page[LoadFileView]:
    """Return a page of the files of a load, those with the most rejects first.

    Raises:
        RequestMalformed: If the cursor is invalid.
    """
    hidden = {} if visibility.can_read(load.table_id) else {"first_error": None}
    query = sa.select(_FILES).where(_FILES.c.load_id == load.load_id)
    order = Order(_FILES.c.rejects, _FILES.c.number, is_descending=True)
    return fetch_page(
        connection,
        query,
        order,
        lambda row: make_record(LoadFileView, row, **hidden),
        after=after,
        limit=limit,
    )


def fetch_migrations(
    connection: sa.Connection,
    visibility: Visibility,
    *,
    table_id: int | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[RunView]:
    """Return a page of migrations, newest first.

    Raises:
        RequestMalformed: If the cursor is invalid.
    """
    columns = [sa.literal("migration").label("kind"), *_MIGRATIONS.c]
    return _fetch_runs(connection, visibility, _MIGRATIONS, columns, table_id, after, limit)


def fetch_maintenance_runs(
    connection: sa.Connection,
    visibility: Visibility,
    *,
    table_id: int | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[RunView]:
    """Return a page of compactions and snapshot expirations, newest first.

    Raises:
        RequestMalformed: If the cursor is invalid.
    """
    columns = [
        *_MAINTENANCE.c,
        _MAINTENANCE.c.files_after.label("files"),
        _MAINTENANCE.c.bytes_after.label("bytes"),
    ]
    return _fetch_runs(connection, visibility, _MAINTENANCE, columns, table_id, after, limit)


def fetch_backups(
    connection: sa.Connection,
    visibility: Visibility,
    *,
    after: str | None = None,
    limit: int = 50,
) -> Page[BackupView]:
    """Return a page of backups, newest first: none for a role without MONITOR on the account.

    Raises:
        RequestMalformed: If the cursor is invalid.
    """
    columns = [_BACKUPS.c[name] for name in BACKUP_COLUMNS]
    query = sa.select(*columns)
    if not visibility.is_account_visible:
        query = query.where(sa.false())
    return fetch_page(
        connection,
        query,
        _newest_first(_BACKUPS),
        lambda row: BackupView(*row[: len(columns)]),
        after=after,
        limit=limit,
    )


def _fetch_runs(
    connection: sa.Connection,
    visibility: Visibility,
    table: sa.Table,
    columns: list[Any],
    table_id: int | None,
    after: str | None,
    limit: int,
) -> Page[RunView]:
    query = visibility.restrict(sa.select(*columns), table.c.table_id)
    if table_id is not None:
        query = query.where(table.c.table_id == table_id)
    page = fetch_page(
        connection, query, _newest_first(table), lambda row: row, after=after, limit=limit
    )
    names = list_table_names(connection, sorted({row.table_id for row in page.rows}))
    runs = [make_record(RunView, row, table=names.get(row.table_id)) for row in page.rows]
    return Page(runs, page.next_cursor)


def _to_loads(connection: sa.Connection, rows: Any, visibility: Visibility) -> list[LoadView]:
    ids = {each for row in rows for each in (row.table_id, row.reject_table_id) if each is not None}
    names = list_table_names(connection, sorted(ids))
    counted = [row.load_id for row in rows if (row.files or 0) <= _MAX_COUNTED_FILES]
    failed = _count_failed_files(connection, counted)
    return [
        make_record(
            LoadView,
            row,
            table=names.get(row.table_id),
            reject_table=names.get(row.reject_table_id),
            state=_find_load_state(row.state, row.rejects, *failed.get(row.load_id, (0, 0))),
            **(
                {}
                if visibility.can_read(row.table_id)
                else {"statement": None, "first_error": None}
            ),
        )
        for row in rows
    ]


def _count_failed_files(
    connection: sa.Connection, load_ids: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Return the numbers of files and of failed files of each load."""
    failed = sa.case((_FILES.c.state == LoadFileState.FAILED, 1), else_=0)
    query = (
        sa.select(_FILES.c.load_id, sa.func.count(), sa.func.sum(failed))
        .where(_FILES.c.load_id.in_(load_ids))
        .group_by(_FILES.c.load_id)
    )
    return {row[0]: (row[1], int(row[2])) for row in connection.execute(query)}


def _find_load_state(state: str, rejects: int | None, files: int, failed: int) -> str:
    if state != RunState.COMMITTED:
        return state
    if failed:
        return RunState.FAILED if failed == files else "committed partly"
    return "committed with rejects" if rejects else state
