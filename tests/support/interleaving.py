"""Transactions that run beside an open one on PostgreSQL, in an order that row locks determine."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy import event

from fixtures.catalog import World
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.statements.executor import parse_statement
from snowmelt.catalog.statements.statement_context import StatementSession
from snowmelt.clock import Clock

_Result = TypeVar("_Result")
_COUNT_WAITING = sa.text(
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def execute_inside(
    connection: sa.Connection, text: str, clock: Clock, *, role: str = ACCOUNTADMIN
) -> None:
    """Execute a statement in an open transaction, which stays open. Short names are in DB.PUBLIC."""
    session = StatementSession(
        connection=connection, user=None, role=role, database="DB", schema=None, now=clock.now()
    )
    parse_statement(text).execute(session)


def begin_beside(database: Database, work: Callable[[], _Result]) -> Future[_Result]:
    """Run `work` in a thread. Return its future when it has ended or waits for a lock."""
    before = _count_waiting(database)
    threads = ThreadPoolExecutor(1)
    future = threads.submit(work)
    threads.shutdown(wait=False)
    while not future.done() and _count_waiting(database) <= before:
        time.sleep(0.01)
    return future


def run_after(connection: sa.Connection, words: str, action: Callable[[], object]) -> None:
    """Run `action` once, after the next statement of a transaction that contains these words."""
    pending = [action]

    def listen(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if words in statement and pending:
            pending.pop()()

    event.listen(connection, "after_cursor_execute", listen)


def _count_waiting(database: Database) -> int:
    with database.reading() as connection:
        return int(connection.execute(_COUNT_WAITING).scalar_one())


def run_beside(world: World, text: str, work: Callable[[], _Result]) -> _Result:
    """Execute a statement, and begin `work` before its transaction commits. Return the result of `work`."""
    with world.database.writing() as connection:
        execute_inside(connection, text, world.clock)
        future = begin_beside(world.database, work)
    return future.result(60)
