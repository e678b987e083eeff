"""The commit of a load is one transaction of the catalog, on each database."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fixtures.catalog import World
from fixtures.chunks import NUMBERS, ROLE, Lakehouse
from snowmelt import failpoints
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import load_history
from snowmelt.catalog.jobs.load_history import LoadedFileKey, OffsetAdvance
from snowmelt.catalog.jobs.run_history import RunState
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects.tables import add_schema_version
from snowmelt.clock import ManualClock
from snowmelt.errors import LeaseLost, LoadOvertaken, LoadRefused, UnknownOutcome
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import Column, LogicalType, TableName
from snowmelt.table.load_commit import (
    LoadRequest,
    OpenLoad,
    abort_load,
    abort_orphaned_loads,
    begin_load,
    commit_load,
    get_or_create_reject_table,
    is_committed,
    publish_rejects,
)
from snowmelt.table.migration import (
    MigrationSettings,
    commit_migration,
    plan_migration,
)
from snowmelt.table.migration_task import run_migration_task
from snowmelt.table.rejects import REJECT_SCHEMA
from support.interleaving import begin_beside
from support.numbered_loads import begin, load_numbers, rejected, result, written

REJECTS = TableName("DEMO", "PUBLIC", "REJECTS")


@pytest.fixture
def house(database: Database, tmp_path: Path) -> Lakehouse:
    clock = ManualClock(dt.datetime.now(dt.UTC))
    found = Lakehouse(tmp_path, clock, database)
    found.create()
    return found


def state_of(house: Lakehouse, load: OpenLoad) -> load_history.LoadRecord:
    with house.database.reading() as connection:
        return load_history.find_load(connection, load.load_id)


def offsets(house: Lakehouse, stream: str = "S") -> dict[tuple[str, int], int]:
    with house.database.reading() as connection:
        return load_history.read_stream_offsets(connection, stream)


def test_loaded_and_streamed_rows_are_one_table(house: Lakehouse) -> None:
    house.put_numbers(0, 10)
    load = load_numbers(house, 10, 25, "a.csv")
    assert sorted(house.read_numbers()) == list(range(35))
    assert house.migrate().rows == 10
    load_numbers(house, 35, 5, "b.csv")
    house.put_numbers(40, 10)
    assert house.migrate().rows == 10
    assert sorted(house.read_numbers()) == list(range(50))
    record = state_of(house, load)
    assert (record.state, record.rows, record.files) == (RunState.COMMITTED, 25, 1)
    assert record.snapshot_id is not None


def test_loads_and_migrations_at_once_move_every_row_once(house: Lakehouse) -> None:
    for start in range(0, 40, 10):
        house.put_numbers(start, 10)
    errors = []

    def run(work: Any, *parts: Any) -> None:
        try:
            work(*parts)
        except BaseException as error:
            errors.append(error)

    works = [(load_numbers, house, 40 + 10 * n, 10, f"{n}.csv") for n in range(4)]
    threads = [threading.Thread(target=run, args=work) for work in [*works, (house.migrate,)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(house.read_numbers()) == list(range(80))


def test_a_migration_that_loses_to_a_load_commits_its_files_on_top(house: Lakehouse) -> None:
    house.put_numbers(0, 10)
    settings = MigrationSettings(house.stage.url, house.warehouse.url)
    plan = plan_migration(house.database, house.keyring, NUMBERS, settings, clock=house.clock)
    assert plan is not None
    files = [outcome for task in plan.tasks for outcome in run_migration_task(task)]
    load_numbers(house, 10, 10, "a.csv")
    assert commit_migration(house.database, plan, files, clock=house.clock).rows == 10
    assert sorted(house.read_numbers()) == list(range(20))
    assert len([path for path in house.files() if path.endswith(".metadata.json")]) == 2


def test_of_two_loads_of_one_file_the_second_does_nothing(house: Lakehouse) -> None:
    first, second = begin(house), begin(house)
    outcomes = [result([written(house, load, 0, 10)], "a.csv") for load in (first, second)]
    commit_load(house.database, first, outcomes[0], clock=house.clock)
    with pytest.raises(LoadOvertaken, match=r"has loaded a\.csv meanwhile"):
        commit_load(house.database, second, outcomes[1], clock=house.clock)
    assert abort_load(house.database, second, "overtaken", clock=house.clock)
    assert house.read_numbers() == list(range(10))
    forced = begin(house)
    files = [written(house, forced, 10, 10)]
    commit_load(house.database, forced, result(files, "a.csv", force=True), clock=house.clock)
    assert house.read_numbers() == list(range(20))


def test_what_was_loaded_is_known_until_the_table_is_created_again(house: Lakehouse) -> None:
    load = load_numbers(house, 0, 10, "a.csv", "b.csv")
    table = house.table()
    with house.database.reading() as connection:
        found = load_history.find_loaded_files(connection, table.table_id, ["a.csv", "c.csv"])
        assert found == {LoadedFileKey("a.csv", 10, "tag"): load.load_id}
    house.create(replace=True)
    with house.database.reading() as connection:
        assert load_history.find_loaded_files(connection, house.table().table_id, ["a.csv"]) == {}


def test_a_pipe_remembers_what_it_loaded_into_tables_that_were_replaced(house: Lakehouse) -> None:
    created_at = house.clock.now()
    load = begin(house, stream="DEMO.PUBLIC.P")
    done = result([written(house, load, 0, 10)], "a.csv", "b.csv")
    commit_load(house.database, load, done, clock=house.clock)
    load_numbers(house, 10, 10, "c.csv")
    house.create(replace=True)
    later = created_at + dt.timedelta(days=1)
    with house.database.reading() as connection:
        known = [
            load_history.find_files_of_pipe(connection, pipe, since, ["a.csv", "c.csv", "d.csv"])
            for pipe, since in [
                ("DEMO.PUBLIC.P", created_at),
                ("DEMO.PUBLIC.Q", created_at),
                ("DEMO.PUBLIC.P", later),
            ]
        ]
    assert known == [{LoadedFileKey("a.csv", 10, "tag"): load.load_id}, {}, {}]


def test_offsets_move_with_the_rows_or_not_at_all(house: Lakehouse) -> None:
    load = begin(house)
    step = OffsetAdvance("S", "T", 0, None, 5)
    done = result([written(house, load, 0, 5)], offsets=[step])
    commit_load(house.database, load, done, clock=house.clock)
    assert offsets(house) == {("T", 0): 5}
    late = begin(house)
    files = [written(house, late, 0, 5)]
    for stale in (step, OffsetAdvance("S", "T", 0, 4, 9)):
        with pytest.raises(LoadOvertaken, match="another load has changed the offset"):
            commit_load(house.database, late, result(files, offsets=[stale]), clock=house.clock)
    assert house.read_numbers() == list(range(5))
    assert not is_committed(house.database, late.load_id)
    empty = begin(house)
    step = OffsetAdvance("S", "T", 0, 5, 7)
    commit_load(house.database, empty, result([], offsets=[step]), clock=house.clock)
    assert offsets(house) == {("T", 0): 7}
    assert is_committed(house.database, empty.load_id)


def test_rejects_are_there_whether_or_not_the_rows_are(house: Lakehouse) -> None:
    load = begin(house, rejects=REJECTS)
    publish_rejects(
        house.database, load, [rejected(house, load, b"one", b"\xff")], clock=house.clock
    )
    assert abort_load(house.database, load, "too many", clock=house.clock)
    rows = house.read(REJECTS)
    assert rows["REJECTED_DATA"].to_pylist() == ["one", "\\xff"]
    assert rows["REJECTED_BYTES"].to_pylist() == [None, b"\xff"]
    assert set(rows["LOAD_ID"].to_pylist()) == {load.load_id}
    assert house.read_numbers() == []
    again = begin(house, rejects=REJECTS)
    publish_rejects(house.database, again, [rejected(house, again, b"two")], clock=house.clock)
    assert house.read(REJECTS)["REJECTED_DATA"].to_pylist() == ["one", "\\xff", "two"]


def test_rejects_go_into_a_table_of_rejects_alone(house: Lakehouse) -> None:
    with pytest.raises(LoadRefused, match="this is the table that is loaded"):
        begin(house, rejects=NUMBERS)
    other = TableName("DEMO", "PUBLIC", "OTHER")
    house.create(other, replace=True)
    with pytest.raises(LoadRefused, match="does not have the columns of a table of rejects"):
        begin(house, rejects=other)
    house.create(REJECTS, REJECT_SCHEMA.columns, replace=True)
    assert begin(house, rejects=REJECTS).rejects is not None


def test_a_load_that_was_given_up_cannot_commit(house: Lakehouse) -> None:
    load = begin(house)
    files = [written(house, load, 0, 10)]
    abort_orphaned_loads(house.database, load.table, house.clock)
    assert state_of(house, load).state is RunState.RUNNING
    house.clock.advance(61)
    abort_orphaned_loads(house.database, load.table, house.clock)
    assert state_of(house, load).state is RunState.LOST
    with pytest.raises(LeaseLost):
        commit_load(house.database, load, result(files), clock=house.clock)
    assert house.read_numbers() == []


def test_a_dropped_or_changed_table_is_not_loaded(house: Lakehouse) -> None:
    load = begin(house)
    files = [written(house, load, 0, 10)]
    house.drop()
    with pytest.raises(LoadOvertaken, match="dropped"):
        commit_load(house.database, load, result(files), clock=house.clock)
    with pytest.raises(LoadOvertaken, match="dropped"):
        commit_load(house.database, load, result([]), clock=house.clock)


def test_a_column_that_came_meanwhile_must_be_nullable(house: Lakehouse) -> None:
    load = begin(house)
    files = [written(house, load, 0, 10)]
    for number, nullable in ((3, True), (4, False)):
        with house.database.writing() as connection:
            table = house.table()
            column = Column(f"C{number}", LogicalType.BOOLEAN, number, nullable=nullable)
            columns = (*table.schema.columns, column)
            add_schema_version(connection, table, columns, now=house.clock.now())
        if nullable:
            commit_load(house.database, load, result(files), clock=house.clock)
            assert house.read(columns=["N", "C3"])["C3"].null_count == 10
            load = begin(house)
            files = [written(house, load, 10, 10)]
            assert load.table.schema.version == 2
    with pytest.raises(LoadOvertaken, match="became NOT NULL"):
        commit_load(house.database, load, result(files), clock=house.clock)


def test_a_column_that_must_not_be_null_by_now_may_have_got_nulls(house: Lakehouse) -> None:
    load = begin(house)
    files = [written(house, load, 0, 10)]
    with house.database.writing() as connection:
        table = house.table()
        columns = [replace(column, nullable=False) for column in table.schema.columns]
        add_schema_version(connection, table, columns, now=house.clock.now())
    with pytest.raises(LoadOvertaken, match="column WORD of table"):
        commit_load(house.database, load, result(files), clock=house.clock)


def test_what_is_not_known_is_looked_up(house: Lakehouse) -> None:
    def broken() -> None:
        raise OSError("the line broke")

    load = begin(house)
    done = result([written(house, load, 0, 10)], "a.csv")
    failpoints.arm(Failpoint.LOAD_INSIDE_COMMIT, broken)
    with pytest.raises(UnknownOutcome, match="did not end clearly: the line broke"):
        commit_load(house.database, load, done, clock=house.clock)
    assert not is_committed(house.database, load.load_id)
    assert house.read_numbers() == []
    # It may still be running for all anybody knows; the next one does not wait for it.
    load_numbers(house, 0, 10, "a.csv")
    house.clock.advance(7200)
    house.collect(3600)
    assert state_of(house, load).state is RunState.LOST
    assert house.read_numbers() == list(range(10))


def test_a_commit_by_a_machine_whose_clock_is_ahead_keeps_its_files_from_clean_up(
    house: Lakehouse,
) -> None:
    load_numbers(house, 0, 10, "a.csv")
    ahead = ManualClock(house.clock.now() + dt.timedelta(hours=2))
    load = begin_load(
        house.database,
        LoadRequest(NUMBERS, "COPY …", ROLE),
        warehouse_url=house.warehouse.url,
        clock=ahead,
        lease_s=1e9,
    )
    files = [written(house, load, 10, 10)]
    failpoints.arm(Failpoint.LOAD_STAGED, lambda: cast("None", house.collect(60)))
    commit_load(house.database, load, result(files), clock=ahead)
    assert sorted(house.read_numbers()) == list(range(20))
    load_numbers(house, 20, 10, "b.csv")
    assert sorted(house.read_numbers()) == list(range(30))


def test_clean_up_takes_what_no_commit_names_and_nothing_else(house: Lakehouse) -> None:
    kept = load_numbers(house, 0, 10, "a.csv")
    load_numbers(house, 10, 10, "b.csv")
    dead, alive = begin(house), begin(house, lease_s=1e9)
    written(house, dead, 20, 10)
    files = [written(house, alive, 30, 10)]
    house.clock.advance(7200)
    house.collect(3600)
    assert state_of(house, dead).state is RunState.LOST
    commit_load(house.database, alive, result(files), clock=house.clock)
    expected = [*range(20), *range(30, 40)]
    assert sorted(house.read_numbers()) == expected
    house.clock.advance(7200)
    house.collect(3600)
    assert sorted(house.read_numbers()) == expected
    assert not any(dead.load_id in path for path in house.files())
    assert any(kept.load_id in path for path in house.data_files())
    house.drop()
    house.clock.advance(7200)
    house.collect(3600)
    assert house.files()  # UNDROP could bring it back
    house.clock.advance(86_400)
    house.collect(3600)
    assert house.files() == set()


def test_a_load_stores_no_null_in_a_column_that_is_added_during_its_commit(
    house: Lakehouse,
) -> None:
    load = begin(house)
    files = [written(house, load, 0, 10)]

    def add_column() -> None:
        with house.database.writing() as connection:
            table = house.table(NUMBERS)
            column = Column("C", LogicalType.TEXT, 9, nullable=False, length=5, byte_length=20)
            add_schema_version(
                connection, table, [*table.schema.columns, column], now=house.clock.now()
            )

    failpoints.arm(Failpoint.LOAD_STAGED, add_column)
    with pytest.raises(LoadOvertaken, match="became NOT NULL"):
        commit_load(house.database, load, result(files, "a.csv"), clock=house.clock)
    assert house.read_numbers() == []


@pytest.mark.postgres
def test_loads_that_begin_together_share_the_table_of_rejects(postgres_world: World) -> None:
    world, name = postgres_world, TableName("DB", "PUBLIC", "REJECTS")

    def get_or_create() -> TableRecord:
        with world.database.writing() as other:
            return get_or_create_reject_table(other, name, owner="ACCOUNTADMIN", now=world.now)

    with world.database.writing() as connection:
        created = get_or_create_reject_table(connection, name, owner="ACCOUNTADMIN", now=world.now)
        other = begin_beside(world.database, get_or_create)
    assert other.result(60) == created
