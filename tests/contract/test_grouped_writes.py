"""Opens and drops of many clients share transactions, on SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import sqlalchemy as sa

from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.clock import SystemClock
from snowmelt.errors import CatalogBusy, CatalogUnavailable, RequestMalformed, ServiceBusy
from snowmelt.ingest.channel_write_batcher import WriteBatcher
from support.catalog_files import new_catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.errors import SnowmeltError


LONG_S = 120


@pytest.fixture
def lines(database: Database) -> Callable[[], list[int]]:
    """A table of texts, and what reads it."""
    with database.writing() as connection:
        connection.execute(sa.text("CREATE TABLE lines (line INTEGER PRIMARY KEY)"))

    def read() -> list[int]:
        with database.reading() as connection:
            return sorted(connection.execute(sa.text("SELECT line FROM lines")).scalars())

    return read


@pytest.fixture
def writes(database: Database) -> Iterator[WriteBatcher]:
    made = WriteBatcher(database, SystemClock())
    yield made
    made.close()


def insert(connection: sa.Connection, line: int) -> int:
    connection.execute(sa.text("INSERT INTO lines VALUES (:line)"), {"line": line})
    return line


@pytest.fixture
def held_up(writes: WriteBatcher) -> Callable[..., threading.Event]:
    """What begins with one write under way, so that all that is submitted meanwhile waits."""

    def hold(key: object = "t") -> threading.Event:
        begun, go_on = threading.Event(), threading.Event()

        def work(connection: sa.Connection) -> None:
            begun.set()
            assert go_on.wait(LONG_S)

        writes.submit(work, group_key=key)
        assert begun.wait(LONG_S)
        return go_on

    return hold


def test_writes_that_wait_share_a_transaction(
    database: Database,
    writes: WriteBatcher,
    held_up: Callable[..., threading.Event],
    lines: Callable[[], list[int]],
) -> None:
    go_on = held_up()
    commits = 0

    @sa.event.listens_for(database._writer, "commit")
    def count(connection: sa.Connection) -> None:
        nonlocal commits
        commits += 1

    futures = [writes.submit(partial(insert, line=line), group_key="t") for line in range(40)]
    go_on.set()
    assert [future.result(LONG_S) for future in futures] == list(range(40))
    assert lines() == list(range(40))
    # One after the other there would be 40. A full group ends after 50 ms, on a busy machine early.
    assert commits < 40


def test_items_of_one_work_that_wait_share_a_call(
    writes: WriteBatcher, held_up: Callable[..., threading.Event], lines: Callable[[], list[int]]
) -> None:
    go_on = held_up()
    calls: list[list[int]] = []

    def insert_even(connection: sa.Connection, items: Sequence[int]) -> list[int | SnowmeltError]:
        calls.append(cast("list[int]", items))
        for item in items:
            if item % 2 == 0:
                insert(connection, item)
        return [RequestMalformed(reason="it is odd") if item % 2 else item for item in items]

    futures = [writes.submit_item(insert_even, item, group_key="t") for item in range(5)]
    between = writes.submit(lambda c: insert(c, 100), group_key="t")
    futures += [writes.submit_item(insert_even, item, group_key="t") for item in range(5, 9)]
    go_on.set()
    assert between.result(LONG_S) == 100
    outcomes = [future.exception(LONG_S) for future in futures]
    assert [outcome is None for outcome in outcomes] == [item % 2 == 0 for item in range(9)]
    assert lines() == [0, 2, 4, 6, 8, 100]
    assert calls == [[0, 1, 2, 3, 4], [5, 6, 7, 8]]


def test_an_item_that_the_database_refuses_costs_its_neighbours_nothing(
    writes: WriteBatcher, held_up: Callable[..., threading.Event], lines: Callable[[], list[int]]
) -> None:
    go_on = held_up()

    def insert_all(connection: sa.Connection, items: Sequence[int]) -> list[int]:
        return [insert(connection, item) for item in items]

    futures = [writes.submit_item(insert_all, item, group_key="t") for item in (1, 1, 2)]
    go_on.set()
    outcomes = [future.exception(LONG_S) for future in futures]
    assert [outcome is None for outcome in outcomes] == [True, False, True]
    assert lines() == [1, 2]


def test_a_write_that_fails_is_rolled_back_alone(
    writes: WriteBatcher, held_up: Callable[..., threading.Event], lines: Callable[[], list[int]]
) -> None:
    go_on = held_up()

    def fail(connection: sa.Connection) -> None:
        insert(connection, 100)
        raise RequestMalformed(reason="of a test")

    good = [writes.submit(lambda c: insert(c, 1), group_key="t")]
    bad = writes.submit(fail, group_key="t")
    good.append(writes.submit(lambda c: insert(c, 2), group_key="t"))
    go_on.set()
    assert [future.result(LONG_S) for future in good] == [1, 2]
    with pytest.raises(RequestMalformed):
        bad.result(LONG_S)
    assert lines() == [1, 2]


def test_an_error_of_the_database_costs_its_own_write_only(
    writes: WriteBatcher, held_up: Callable[..., threading.Event], lines: Callable[[], list[int]]
) -> None:
    go_on = held_up()
    futures = [writes.submit(partial(insert, line=line), group_key="t") for line in (1, 1, 2)]
    go_on.set()
    outcomes = [future.exception(LONG_S) for future in futures]
    assert [outcome is None for outcome in outcomes] == [True, False, True]
    assert lines() == [1, 2]


def test_a_caller_that_goes_away_costs_nobody_else_a_write(
    writes: WriteBatcher, held_up: Callable[..., threading.Event], lines: Callable[[], list[int]]
) -> None:
    go_on = held_up()
    gone = writes.submit(lambda c: insert(c, 1), group_key="t")
    stays = writes.submit(lambda c: insert(c, 2), group_key="t")
    gone.cancel()
    go_on.set()
    assert stays.result(LONG_S) == 2
    assert set(lines()) - {1} == {2}


def test_close_executes_what_was_submitted(
    database: Database, lines: Callable[[], list[int]]
) -> None:
    writes = WriteBatcher(database, SystemClock())
    futures = [writes.submit(partial(insert, line=line), group_key=line) for line in range(50)]
    writes.close()
    assert [future.result(0) for future in futures] == list(range(50))
    with pytest.raises(ServiceBusy):
        writes.submit(lambda c: insert(c, 99), group_key="t")


def test_groups_of_several_keys_do_not_wait_for_each_other(
    database: Database, writes: WriteBatcher, lines: Callable[[], list[int]]
) -> None:
    """Each write locks the line of its key; groups that held two keys could deadlock."""
    with database.writing() as connection:
        for line in range(4):
            insert(connection, line)
    lock = " FOR UPDATE" if database.dialect == "postgresql" else ""

    def work(connection: sa.Connection, key: int) -> int:
        query = sa.text(f"SELECT line FROM lines WHERE line = :line{lock}")
        return cast("int", connection.execute(query, {"line": key}).scalar_one())

    futures = [writes.submit(partial(work, key=n % 4), group_key=n % 4) for n in range(400)]
    assert [future.result(LONG_S) for future in futures] == [n % 4 for n in range(400)]


def test_commits_of_rows_wait_for_one_group_at_most(
    database: Database, writes: WriteBatcher, lines: Callable[[], list[int]]
) -> None:
    """Counted in transactions, not in seconds: rows commit while hundreds of opens wait."""
    done = 0
    behind: list[int] = []

    def slow(connection: sa.Connection) -> None:
        # A millisecond each, by work that depends on no clock.
        connection.execute(
            sa.text(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
                " SELECT count(*) FROM n"
            )
        )

    def count(_: object) -> None:
        nonlocal done
        done += 1

    futures = [writes.submit(slow, group_key="t") for _ in range(1_000)]
    for future in futures:
        future.add_done_callback(count)
    line = 0
    while done < len(futures):
        with database.writing(urgent=True) as connection:
            insert(connection, line)
        behind.append(done)
        line += 1
    # Rows were committed again and again between the groups.
    assert len({at for at in behind if 0 < at < len(futures)}) >= 2


def test_a_catalog_that_is_away_fails_every_write_with_its_own_error(tmp_path: Path) -> None:
    database = open_and_upgrade_database(str(new_catalog(tmp_path / "catalog.db")))
    writes = WriteBatcher(database, SystemClock())
    with ThreadPoolExecutor(1) as pool:
        database.close()
        (tmp_path / "catalog.db").unlink()
        (tmp_path / "catalog.db").mkdir()
        futures = [writes.submit(lambda c: insert(c, 1), group_key="t") for _ in range(3)]
        pool.submit(writes.close).result(LONG_S)
    for future in futures:
        with pytest.raises(CatalogUnavailable):
            future.result(0)


def test_a_busy_catalog_is_waited_for_once_by_a_whole_group(tmp_path: Path) -> None:
    """Counted in transactions: one by one, each write would wait as long again."""
    path = new_catalog(tmp_path / "catalog.db")
    database = open_and_upgrade_database(str(path), busy_timeout_s=0.2)
    writes = WriteBatcher(database, SystemClock())
    begins = 0
    original = database.writing

    def counted(**options: bool) -> contextlib.AbstractContextManager[sa.Connection]:
        nonlocal begins
        begins += 1
        return original(**options)

    cast("Any", database).writing = counted
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        futures = [writes.submit(lambda c: insert(c, 1), group_key="t") for _ in range(30)]
        for future in futures:
            with pytest.raises(CatalogBusy):
                future.result(LONG_S)
    assert begins < 30
    writes.close()
    database.close()
