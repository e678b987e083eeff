"""Clean-up deletes what nobody needs any more, and nothing else."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from fixtures.chunks import COLUMNS, NUMBERS, Lakehouse, numbers
from snowmelt.catalog.jobs import load_history
from snowmelt.catalog.model import stream_offsets
from snowmelt.catalog.objects.published_snapshots import record_demand, record_engine_write
from snowmelt.catalog.objects.tables import create_table, find_table, list_dropped_tables
from snowmelt.clock import ManualClock
from snowmelt.errors import ServiceBusy
from snowmelt.schema.types import TableName
from snowmelt.table import iceberg
from snowmelt.table.chunk_reader import concatenate_native_tables
from snowmelt.table.iceberg import MAX_SNAPSHOTS
from snowmelt.table.migration import MigrationSettings, plan_migration
from snowmelt.table.migration_task import run_migration_task
from snowmelt.table.native_file import read_native_file
from snowmelt.table.snapshot import TableSnapshot, take_snapshots

OTHER = TableName("DEMO", "PUBLIC", "OTHER")
HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Lakehouse]:
    """A lakehouse whose clock stands at the machine's time, with the table NUMBERS."""
    clock = ManualClock(dt.datetime.now(dt.UTC))
    with contextlib.closing(Lakehouse(tmp_path, clock)) as found:
        found.create()
        yield found


def test_blobs_go_a_retention_after_their_migration(house: Lakehouse) -> None:
    house.put_numbers(0, 10)
    kept = house.put_numbers(10, 10)
    house.migrate()
    assert house.collect(HOUR).blobs == 0
    house.clock.advance(HOUR + 1)
    newer = house.put_numbers(20, 10)
    assert kept in house.files(house.stage)
    assert house.collect(HOUR).blobs == 2
    assert house.files(house.stage) == {newer}
    assert house.read_numbers() == list(range(30))


def test_a_round_that_is_ended_anywhere_is_gone_on_with_by_the_next(house: Lakehouse) -> None:
    for start in range(0, 30, 10):
        house.put_numbers(start, 10)
    house.migrate()
    house.clock.advance(HOUR + 1)
    kept = house.put_numbers(30, 10)
    asked = 0

    def stop_later() -> None:
        nonlocal asked
        asked += 1
        if asked > rounds:
            raise ServiceBusy(reason="it is stopping")

    for rounds in range(100):  # noqa: B007 - read above
        asked = 0
        try:
            house.collect(HOUR, on_step=stop_later)
        except ServiceBusy:
            continue
        break
    assert rounds > 3
    assert house.files(house.stage) == {kept}
    assert house.read_numbers() == list(range(40))


def test_a_plan_made_before_the_migration_still_reads_within_the_retention(
    house: Lakehouse,
) -> None:
    house.put_numbers(0, 10)
    [snapshot] = take_snapshots(house.database, [NUMBERS], clock=house.clock)
    house.migrate()
    house.clock.advance(HOUR - 1)
    house.collect(HOUR)
    assert {f"{chunk.prefix}/{chunk.path}" for chunk in snapshot.chunks} <= house.files(house.stage)


@pytest.mark.slow
def test_a_blob_of_several_tables_goes_when_none_needs_it(house: Lakehouse) -> None:
    with house.database.writing() as connection:
        create_table(connection, OTHER, COLUMNS, owner="ACCOUNTADMIN", now=house.clock.now())
    path = house.put_all([(NUMBERS, numbers(0, 10)), (OTHER, numbers(50, 5))])
    house.migrate()
    house.clock.advance(HOUR + 1)
    assert house.collect(HOUR).blobs == 0
    assert house.files(house.stage) == {path}
    assert house.read_numbers(OTHER) == list(range(50, 55))
    house.migrate(OTHER)
    house.clock.advance(HOUR + 1)
    assert house.collect(HOUR).blobs == 1
    assert house.files(house.stage) == set()
    assert house.read_numbers(OTHER) == list(range(50, 55))


def test_a_blob_in_quarantine_is_kept(house: Lakehouse) -> None:
    house.is_damaged = True
    path = house.put_numbers(0, 10)
    data = house.stage.get(path)
    house.stage.put(path, bytes(len(data)))
    house.migrate()
    house.clock.advance(HOUR + 1)
    assert house.collect(HOUR).blobs == 0
    house.stage.put(path, data)
    assert house.read_numbers() == list(range(10))


def test_a_blob_that_nobody_registered_goes_a_day_after_it_was_seen(house: Lakehouse) -> None:
    at = house.clock.now()
    folder = f"{at.year}/{at.month}/{at.day}/{at.hour}/{at.minute}"
    stray = f"somebody/{folder}/t5_somebody_1_0.bdec"
    house.stage.put(stray, b"x")
    house.stage.put("not/a/blob", b"x")
    registered = house.put_numbers(0, 10)
    house.clock.advance(HOUR)
    assert house.collect().unregistered == 0
    house.clock.advance(24 * HOUR - 1)
    assert house.collect().unregistered == 0
    house.clock.advance(2)
    assert house.collect().unregistered == 1
    assert house.files(house.stage) == {"not/a/blob", registered}
    house.stage.put(stray, b"x")
    house.clock.advance(HOUR)
    assert house.collect().unregistered == 1


def test_files_of_a_run_without_commit_go_and_a_run_at_work_is_left_alone(house: Lakehouse) -> None:
    house.put_numbers(0, 10)
    settings = MigrationSettings(house.stage.url, house.warehouse.url)
    plan = plan_migration(house.database, house.keyring, NUMBERS, settings, clock=house.clock)
    assert plan is not None
    for task in plan.tasks:
        run_migration_task(task)
    assert house.collect().files == 0
    assert len(house.data_files()) == 1
    house.clock.advance(settings.lease_s + 1)
    assert house.collect().files == 1
    assert house.data_files() == set()
    assert house.migrate().rows == 10


@pytest.mark.slow
def test_metadata_that_was_current_within_the_retention_is_kept(house: Lakehouse) -> None:
    taken: list[TableSnapshot] = []
    for start in range(MAX_SNAPSHOTS + 2):
        house.put(numbers(start, 1))
        house.migrate()
        house.clock.advance(1)
        if start == 0:
            taken = list(take_snapshots(house.database, [NUMBERS], clock=house.clock))
    house.collect(HOUR)
    [snapshot] = taken
    assert snapshot.pointer is not None
    path = house.warehouse.to_path(snapshot.pointer)
    assert path in house.files()
    iceberg.load_native_table.cache_clear()
    native = iceberg.load_native_table(snapshot.pointer, snapshot.table.incarnation)
    files = iceberg.list_native_files(native)
    parts = [read_native_file(file.path, snapshot.table.schema) for file in files]
    assert concatenate_native_tables(parts, snapshot.table.schema).num_rows == 1
    house.clock.advance(HOUR)
    assert house.collect(HOUR).files > 0
    assert path not in house.files()
    assert house.read_numbers() == list(range(MAX_SNAPSHOTS + 2))


def test_files_of_a_commit_that_an_engine_is_about_to_send_are_kept(house: Lakehouse) -> None:
    house.put_numbers(0, 5)
    house.migrate()
    table = house.table()
    folder = house.warehouse.table_folder(table)
    manifest, rows = f"{folder}/metadata/{'0' * 8}-m0.avro", f"{folder}/data/{'0' * 8}.parquet"
    with house.database.writing() as connection:
        record_demand(connection, table.table_id, native_only=False, now=house.clock.now())
        record_engine_write(connection, table.table_id, house.clock.now())
    for path in (manifest, rows):
        house.warehouse.store.put(path, b"x")
    house.clock.advance(2 * HOUR)
    house.collect(HOUR)
    assert {manifest, rows} <= house.files()
    house.clock.advance(DAY)
    house.collect(HOUR)
    assert not {manifest, rows} & house.files()


def test_a_dropped_table_leaves_nothing(house: Lakehouse) -> None:
    house.put_numbers(0, 10)
    house.migrate()
    house.put_numbers(10, 10)
    house.drop()
    house.collect(HOUR)
    assert house.files()
    assert len(house.files(house.stage)) == 2
    house.clock.advance(DAY - 1)
    house.collect(HOUR)
    assert len(house.data_files()) == 1
    assert len(house.files(house.stage)) == 2
    house.clock.advance(2)
    house.collect(HOUR)
    assert house.files() == set()
    assert house.files(house.stage) == set()
    with house.database.reading() as connection:
        assert list_dropped_tables(connection) == []


@pytest.mark.slow
def test_a_table_created_again_keeps_its_files(house: Lakehouse) -> None:
    house.put_numbers(0, 10)
    house.migrate()
    house.create(replace=True)
    house.put_numbers(100, 5)
    house.migrate()
    house.clock.advance(DAY + 1)
    house.collect(HOUR)
    assert house.read_numbers() == list(range(100, 105))
    assert len(house.data_files()) == 1


def test_a_table_that_cannot_be_read_does_not_keep_others_from_being_cleaned(
    house: Lakehouse,
) -> None:
    house.is_damaged = True
    with house.database.writing() as connection:
        create_table(connection, OTHER, COLUMNS, owner="ACCOUNTADMIN", now=house.clock.now())
    paths = [house.put_all([(name, numbers(0, 5))]) for name in (NUMBERS, OTHER)]
    for name in (NUMBERS, OTHER):
        house.migrate(name)
    damaged = [path for path in house.files() if path.endswith(".metadata.json")]
    with house.database.reading() as connection:
        incarnation = find_table(connection, NUMBERS).incarnation
    for path in damaged:
        if incarnation in path:
            house.warehouse.store.put(path, b"{}")
    house.clock.advance(HOUR + 1)
    collected = house.collect(HOUR)
    assert collected.blobs == len(paths)
    (problem,) = collected.problems
    assert problem.startswith(f"table {NUMBERS} ({incarnation}): ")


def test_marks_of_streams_that_stay_away_are_forgotten_though_no_chunk_is_left(
    house: Lakehouse,
) -> None:
    with house.database.writing() as connection:
        incarnation = find_table(connection, NUMBERS).incarnation
        load_history.save_position(connection, incarnation, "gone", 0, house.clock.now())
    house.clock.advance(2 * DAY)
    with house.database.writing() as connection:
        load_history.save_position(connection, incarnation, "there", 0, house.clock.now())
    house.collect(HOUR)
    with house.database.reading() as connection:
        found = connection.execute(sa.select(stream_offsets.c.stream)).scalars().all()
    assert found == [f"{incarnation}/read:there"]
