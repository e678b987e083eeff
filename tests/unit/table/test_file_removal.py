"""Commits that remove fresh files: both ways to read a table have the same rows afterwards."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from fixtures.chunks import NUMBERS, ROLE
from snowmelt import failpoints
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.jobs.load_history import LoadTotals
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.clock import ManualClock
from snowmelt.errors import ConflictError, TableNotFound
from snowmelt.failpoints import Failpoint
from snowmelt.table.chunk_reader import run_chunk_read_task
from snowmelt.table.fresh_files import describe_fresh_file
from snowmelt.table.load_commit import LoadRequest, LoadResult, abort_load, begin_load, commit_load
from snowmelt.table.native_file import read_native_file
from snowmelt.table.snapshot import TableSnapshot, take_snapshots
from snowmelt.table.table_reader import make_chunk_read_tasks
from support.interleaving import begin_beside, execute_inside
from support.published_tables import PublishedLakehouse, published_lakehouse

pytestmark = pytest.mark.slow

HOUR = 3600.0


@pytest.fixture
def house(tmp_path: Path) -> Iterator[PublishedLakehouse]:
    """A lakehouse whose table has the numbers to 39 in four chunks. Fresh files have three of them."""
    with published_lakehouse(tmp_path) as found:
        fill(found)
        yield found


def fill(house: PublishedLakehouse) -> None:
    for start in (0, 10, 20):
        house.put_numbers(start, 10)
        house.publish()
    house.put_numbers(30, 10)


def take(house: PublishedLakehouse) -> TableSnapshot:
    [snapshot] = take_snapshots(house.database, [NUMBERS], clock=house.clock, with_fresh_files=True)
    return snapshot


def read_snapshot(house: PublishedLakehouse, snapshot: TableSnapshot) -> list[int]:
    schema = snapshot.table.schema
    files = [file.path for file in snapshot.list_native_files()]
    files += [describe_fresh_file(file, house.warehouse).path for file in snapshot.fresh]
    tasks = make_chunk_read_tasks(
        house.database, house.keyring, house.stage.url, snapshot.chunks, schema
    )
    parts = [read_native_file(path, schema) for path in files]
    parts += map(run_chunk_read_task, tasks)
    return sorted(int(number) for part in parts for number in part["N"].to_pylist())


def read_both(house: PublishedLakehouse) -> list[int]:
    """Return the numbers of the table, read with fresh files and without."""
    found = read_snapshot(house, take(house))
    assert sorted(house.read_numbers()) == found
    return found


def remove(house: PublishedLakehouse, *indexes: int) -> None:
    """Remove fresh files, as the commit of an engine that deletes their rows does."""
    paths = frozenset(house.fresh_files()[index].path for index in indexes)
    request = LoadRequest(NUMBERS, "DELETE", ROLE)
    load = begin_load(
        house.database,
        request,
        warehouse_url=house.warehouse.url,
        clock=house.clock,
        privileges=("DELETE",),
    )
    totals = LoadTotals(files=0, rows=0, rejects=0, bytes=0)
    try:
        commit_load(
            house.database, load, LoadResult((), (), totals, removed=paths), clock=house.clock
        )
    except ConflictError:
        abort_load(house.database, load, "conflict", clock=house.clock)
        raise


def test_other_fresh_files_up_to_the_removed_one_become_native(house: PublishedLakehouse) -> None:
    before = take(house)
    remove(house, 1)
    after = take(house)
    assert (after.watermark, len(after.list_native_files())) == (2, 1)
    assert [(file.from_seq, file.to_seq) for file in after.fresh] == [(2, 3)]
    expected = [*range(10), *range(20, 40)]
    assert read_both(house) == expected
    house.publish()
    house.migrate()
    house.publish()
    assert read_both(house) == expected
    assert read_snapshot(house, before) == list(range(40))
    house.clock.advance(HOUR / 2)
    house.collect(HOUR)
    assert read_snapshot(house, before) == list(range(40))
    assert read_snapshot(house, after) == expected


def test_a_damaged_blob_of_removed_rows_does_not_matter(house: PublishedLakehouse) -> None:
    house.is_damaged = True
    [offer] = house.last_offers
    house.publish()
    path = f"{offer.prefix}/{offer.path}"
    house.stage.put(path, b"x" * len(house.stage.get(path)))
    remove(house, 3)
    assert read_both(house) == list(range(30))
    house.put_numbers(40, 5)
    house.publish()
    house.migrate()
    assert read_both(house) == [*range(30), *range(40, 45)]


@pytest.mark.parametrize("statement", ["DROP TABLE", "TRUNCATE TABLE", "CREATE OR REPLACE TABLE"])
def test_a_table_that_is_replaced_before_the_commit_keeps_all_rows(
    house: PublishedLakehouse, statement: str
) -> None:
    columns = " (n INT)" if "CREATE" in statement else ""

    def act() -> None:
        execute_statement(house.database, f"{statement} {NUMBERS}{columns}", clock=house.clock)

    failpoints.arm(Failpoint.LOAD_STAGED, act)
    with pytest.raises(ConflictError):
        remove(house, 1)
    restore(house)
    assert read_both(house) == list(range(40))
    assert len(take(house).fresh) == 3


def restore(house: PublishedLakehouse, new_name: str = "newer") -> None:
    """Restore the former table. The table that has its name gets another name."""
    with contextlib.suppress(TableNotFound):
        execute_statement(
            house.database,
            f"ALTER TABLE {NUMBERS} RENAME TO demo.public.{new_name}",
            clock=house.clock,
        )
    house.undrop()


@pytest.mark.parametrize("acts", ["migrate", "join", "alter", "rename"])
def test_a_commit_beside_other_changes_removes_its_rows_or_none(
    house: PublishedLakehouse, monkeypatch: pytest.MonkeyPatch, acts: str
) -> None:
    monkeypatch.setattr("snowmelt.table.snapshot_publication.MAX_UNJOINED_FILES", 1)
    monkeypatch.setattr("snowmelt.table.fresh_files._FILES_PER_JOIN", {0: 2})

    def change(text: str) -> None:
        execute_statement(house.database, f"ALTER TABLE {NUMBERS} {text}", clock=house.clock)

    def drop_column() -> None:
        change("DROP COLUMN word")

    def rename_twice() -> None:
        change("RENAME TO demo.public.other")
        text = f"ALTER TABLE demo.public.other RENAME TO {NUMBERS}"
        execute_statement(house.database, text, clock=house.clock)

    actions: dict[str, Callable[[], object]] = {
        "migrate": house.migrate,
        "join": house.publish,
        "alter": drop_column,
        "rename": rename_twice,
    }
    failpoints.arm(Failpoint.LOAD_STAGED, actions[acts])
    expected = list(range(40))
    try:
        remove(house, 1)
        expected = [*range(10), *range(20, 40)]
    except ConflictError:
        assert acts in {"migrate", "join"}
    assert read_both(house) == expected
    house.publish()
    assert read_both(house) == expected
    house.migrate()
    assert read_both(house) == expected


@pytest.mark.parametrize("statement", ["DROP TABLE", "TRUNCATE TABLE"])
def test_one_of_two_concurrent_statements_wins(house: PublishedLakehouse, statement: str) -> None:
    barrier = Barrier(2)
    failpoints.arm(Failpoint.LOAD_STAGED, barrier.wait)

    def replace() -> None:
        barrier.wait()
        execute_statement(house.database, f"{statement} {NUMBERS}", clock=house.clock)

    with ThreadPoolExecutor(1) as threads:
        replacing = threads.submit(replace)
        try:
            remove(house, 1)
            expected = [*range(10), *range(20, 40)]
        except ConflictError:
            expected = list(range(40))
        replacing.result(60)
    restore(house)
    assert read_both(house) == expected
    house.publish()
    assert read_both(house) == expected


@pytest.mark.postgres
@pytest.mark.parametrize("statement", ["DROP TABLE", "TRUNCATE TABLE"])
def test_a_commit_waits_for_a_statement_that_replaces_its_table(
    tmp_path: Path, postgres_url: str, statement: str
) -> None:
    clock = ManualClock(dt.datetime.now(dt.UTC))
    database = open_and_upgrade_database(postgres_url)
    with contextlib.closing(PublishedLakehouse(tmp_path, clock, database)) as house:
        house.create()
        fill(house)
        with database.writing() as connection:
            execute_inside(connection, f"{statement} {NUMBERS}", clock)
            removing = begin_beside(database, lambda: remove(house, 1))
            assert not removing.done()
        with pytest.raises(ConflictError):
            removing.result(60)
        restore(house)
        assert read_both(house) == list(range(40))
        replacing: list[Future[object]] = []

        def replace() -> object:
            return execute_statement(database, f"{statement} {NUMBERS}", clock=clock)

        failpoints.arm(
            Failpoint.LOAD_INSIDE_COMMIT,
            lambda: replacing.append(begin_beside(database, replace)),
        )
        remove(house, 1)
        replacing[0].result(60)
        restore(house, "newest")
        assert read_both(house) == [*range(10), *range(20, 40)]
