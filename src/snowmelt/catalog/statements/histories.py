"""SHOW LOADS, MIGRATIONS, MAINTENANCE and BACKUPS: list the histories, newest first.

The rows equal those of `snowmelt … list` and the console, limited to what the role of the session
may see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from snowmelt.catalog.sql.cursor import ObjectName, TokenCursor
from snowmelt.catalog.statements.statement_context import (
    Statement,
    StatementResult,
    StatementSession,
)
from snowmelt.catalog.views.history import (
    BACKUP_COLUMNS,
    LOAD_COLUMNS,
    RUN_COLUMNS,
    fetch_backups,
    fetch_loads,
    fetch_maintenance_runs,
    fetch_migrations,
)
from snowmelt.catalog.views.paging import MAX_PAGE_ROWS, Page
from snowmelt.catalog.views.visibility import read_visibility

_DEFAULT_ROWS = 100


@dataclass(frozen=True, slots=True)
class History:
    """Definition of a history: word in SHOW, columns, and the function that returns a page.

    A history lists runs on tables or, if `is_of_tables` is false, runs on the whole account.
    """

    word: str
    columns: tuple[str, ...] = field(repr=False)
    fetch: Callable[..., Page[Any]] = field(repr=False)
    is_of_tables: bool = field(default=True, repr=False)


HISTORIES = {
    history.word: history
    for history in (
        History("LOADS", LOAD_COLUMNS, fetch_loads),
        History("MIGRATIONS", RUN_COLUMNS, fetch_migrations),
        History("MAINTENANCE", ("kind", *RUN_COLUMNS), fetch_maintenance_runs),
        History("BACKUPS", BACKUP_COLUMNS, fetch_backups, is_of_tables=False),
    )
}


class ShowHistory(Statement):
    """SHOW of a history, optionally of one table."""

    reads_only = True

    history: History
    table: ObjectName | None
    limit: int

    def execute(self, session: StatementSession) -> StatementResult:
        chosen: dict[str, Any] = {}
        if self.table is not None:
            chosen["table_id"] = session.find_table(session.resolve_table_name(self.table)).table_id
        visibility = read_visibility(session.connection, session.role)
        rows: list[Any] = []
        after: str | None = None
        while len(rows) < self.limit:
            page = self.history.fetch(
                session.connection,
                visibility,
                **chosen,
                after=after,
                limit=min(self.limit - len(rows), MAX_PAGE_ROWS),
            )
            rows += page.rows
            after = page.next_cursor
            if after is None:
                break
        columns = self.history.columns
        return StatementResult(columns, tuple(_to_row(each, columns) for each in rows))


def parse_show_history(cursor: TokenCursor, history: History) -> ShowHistory:
    """Parse the text of SHOW after the word of a history."""
    table = None
    if history.is_of_tables and cursor.accept("IN") and not cursor.accept("ACCOUNT"):
        cursor.accept("TABLE")
        table = cursor.parse_name("a table", 3)
    limit = _DEFAULT_ROWS
    if cursor.accept("LIMIT"):
        limit = cursor.parse_integer("the limit", 1, 10_000)
    cursor.expect_end(f"SHOW {history.word}")
    return ShowHistory(history, table, limit)


def _to_row(view: object, columns: Sequence[str]) -> tuple[object, ...]:
    values = (getattr(view, column) for column in columns)
    return tuple(str(each) if hasattr(each, "display_name") else each for each in values)
