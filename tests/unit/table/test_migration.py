"""Migration: chunks become native files once, whoever else tries or dies."""

from __future__ import annotations

import datetime as dt
import errno
from typing import Any

import pytest

from fixtures.chunks import NUMBERS, Lakehouse, numbers
from snowmelt import failpoints
from snowmelt.catalog.jobs import leases, run_history
from snowmelt.catalog.streaming.chunks import discard_quarantined_chunks, list_quarantined_chunks
from snowmelt.clock import ManualClock
from snowmelt.errors import (
    BlobCorrupt,
    CommitLost,
    LeaseLost,
    ObjectMissing,
    TableInconsistent,
    UnknownOutcome,
)
from snowmelt.failpoints import Failpoint
from snowmelt.table.iceberg import MAX_SNAPSHOTS
from snowmelt.table.migration import (
    MigrationPlan,
    MigrationSettings,
    abort_migration,
    commit_migration,
    migration_lease_name,
    plan_migration,
)
from snowmelt.table.migration_task import run_migration_task
from snowmelt.table.snapshot import TableSnapshot, take_snapshots


def settings(lakehouse: Lakehouse, **options: Any) -> MigrationSettings:
    return MigrationSettings(lakehouse.stage.url, lakehouse.warehouse.url, **options)


def plan(
    lakehouse: Lakehouse, *, clock: ManualClock | None = None, **options: int
) -> MigrationPlan:
    found = plan_migration(
        lakehouse.database, lakehouse.keyring, NUMBERS, settings(lakehouse, **options), clock=clock
    )
    assert found is not None
    return found


def written(found: MigrationPlan) -> list[Any]:
    return [outcome for task in found.tasks for outcome in run_migration_task(task)]


def expired(lakehouse: Lakehouse) -> ManualClock:
    """A clock at which every lease taken until now has run out."""
    return ManualClock(lakehouse.clock.now() + dt.timedelta(seconds=90))


def snapshot(lakehouse: Lakehouse) -> TableSnapshot:
    [found] = take_snapshots(lakehouse.database, [NUMBERS], clock=lakehouse.clock)
    return found


@pytest.mark.slow
def test_a_migration_changes_where_rows_are_and_nothing_else(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 100)
    house.put_numbers(100, 50)
    before = house.read()
    done = house.migrate()
    assert (done.from_seq, done.to_seq, done.rows, done.files) == (0, 2, 150, 1)
    assert house.read().equals(before)
    found = snapshot(house)
    assert (found.watermark, found.up_to, list(found.chunks)) == (2, 2, [])
    assert found.native is not None
    assert found.native.facts.total_rows == 150
    house.put_numbers(150, 10)
    assert house.read_numbers() == list(range(160))
    assert house.migrate().from_seq == 2
    assert house.read_numbers() == list(range(160))
    assert house.migrate() is None


def test_a_snapshot_taken_before_a_commit_reads_the_same_after_it(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    found = snapshot(house)
    house.migrate()
    assert [chunk.rows for chunk in found.chunks] == [10]
    assert found.list_native_files() == []


def test_history_says_what_a_run_did(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    run_id = house.migrate().run_id
    with house.database.reading() as connection:
        [run] = run_history.list_migrations(connection, house.table().table_id)
    assert (run.run_id, run.state, run.rows, run.files) == (run_id, "committed", 10, 1)
    native = snapshot(house).native
    assert native is not None
    assert run.snapshot_id == native.metadata.current_snapshot_id


def test_a_run_takes_a_bounded_prefix_and_groups_chunks_by_size(numbers_table: Lakehouse) -> None:
    house = numbers_table
    for start in range(0, 50, 10):
        house.put_numbers(start, 10)
    found = plan(house, max_chunks=4, target_bytes=1)
    assert [chunk.seq for chunk in found.chunks] == [1, 2, 3, 4]
    assert len(found.tasks) == 4
    commit_migration(house.database, found, written(found))
    assert house.read_numbers() == list(range(50))
    assert house.migrate().rows == 10


def test_files_of_a_clustered_table_are_sorted(lakehouse: Lakehouse) -> None:
    lakehouse.create(cluster_by=("WORD", "N"))
    lakehouse.put_numbers(0, 30)
    rows = lakehouse.read().to_pylist()
    lakehouse.migrate()
    by_word = sorted(rows, key=lambda row: (row["WORD"] is None, row["WORD"], row["N"]))
    assert lakehouse.read().to_pylist() == by_word


def test_only_one_migrator_gets_the_lease(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    found = plan(house)
    assert house.migrate() is None
    abort_migration(house.database, found, "enough")
    assert house.migrate().rows == 10


@pytest.mark.slow
def test_two_stale_migrators_never_double(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    first = plan(house)
    files = written(first)
    second = plan(house, clock=expired(house))
    assert commit_migration(house.database, second, written(second)).rows == 10
    with pytest.raises((LeaseLost, CommitLost)):
        commit_migration(house.database, first, files)
    assert house.read_numbers() == list(range(10))
    with house.database.reading() as connection:
        runs = run_history.list_migrations(connection, house.table().table_id)
    assert {run.run_id: run.state for run in runs} == {
        first.run_id: "lost",
        second.run_id: "committed",
    }


def test_a_lost_lease_alone_loses_the_commit(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    found = plan(house)
    with house.database.writing() as connection:
        later = expired(house).now()
        assert leases.acquire_lease(
            connection, migration_lease_name(found.table), "other", ttl_s=1, now=later
        )
    with pytest.raises(LeaseLost):
        commit_migration(house.database, found, written(found))
    assert snapshot(house).watermark == 0


def test_a_dropped_table_takes_no_commit(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    found = plan(house)
    house.drop()
    with pytest.raises(CommitLost):
        commit_migration(house.database, found, written(found))


def test_a_table_created_again_takes_no_commit_of_the_old(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    found = plan(house)
    house.create(replace=True)
    house.put_numbers(500, 1)
    with pytest.raises(CommitLost):
        commit_migration(house.database, found, written(found))
    assert house.read_numbers() == [500]
    assert house.migrate().rows == 1
    assert house.read_numbers() == [500]


def lose_the_answer() -> None:
    raise UnknownOutcome


def test_a_commit_whose_answer_is_lost_is_found_by_its_run(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    found = plan(house)
    failpoints.arm(Failpoint.MIGRATION_COMMITTED, lose_the_answer)
    assert commit_migration(house.database, found, written(found)).rows == 10
    assert house.read_numbers() == list(range(10))


def test_a_commit_that_did_not_happen_is_reported_as_unknown_and_made_up_for(
    numbers_table: Lakehouse,
) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    found = plan(house)
    failpoints.arm(Failpoint.MIGRATION_INSIDE_COMMIT, lose_the_answer)
    with pytest.raises(UnknownOutcome):
        commit_migration(house.database, found, written(found))
    assert snapshot(house).watermark == 0
    assert house.migrate() is None
    assert house.migrate(clock=expired(house)).rows == 10
    assert house.read_numbers() == list(range(10))


def test_a_commit_whose_files_may_not_be_on_the_disk_commits_nothing(
    numbers_table: Lakehouse,
) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    found = plan(house)
    files = written(found)

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    failpoints.arm(Failpoint.STORE_SYNC, fail)
    with pytest.raises(UnknownOutcome, match="Input/output error"):
        commit_migration(house.database, found, files)
    assert snapshot(house).watermark == 0
    # The next run writes files of its own.
    assert house.migrate(clock=expired(house)).rows == 10
    assert house.read_numbers() == list(range(10))


def test_tasks_that_ran_twice_do_not_double(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    found = plan(house)
    written(found)
    commit_migration(house.database, found, written(found))
    assert house.read_numbers() == list(range(10))
    assert len(house.data_files()) == 2
    assert house.collect().files == 1
    assert house.read_numbers() == list(range(10))


def test_rows_that_do_not_add_up_are_not_committed(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    found = plan(house)
    with pytest.raises(TableInconsistent):
        commit_migration(house.database, found, [*written(found), *written(found)])
    assert house.migrate().rows == 10


def test_a_broken_chunk_goes_to_quarantine_and_the_rest_moves_on(numbers_table: Lakehouse) -> None:
    house = numbers_table
    house.put_numbers(0, 10)
    broken = house.put_numbers(10, 10)
    house.put_numbers(20, 10)
    good = house.stage.get(broken)
    house.stage.put(broken, bytes([good[0] ^ 1]) + good[1:])
    done = house.migrate()
    assert (done.rows, done.to_seq, [chunk.seq for chunk in done.quarantined]) == (20, 3, [2])
    with house.database.reading() as connection:
        [held] = list_quarantined_chunks(connection)
    assert f"{held.prefix}/{held.path}" == broken
    with pytest.raises(BlobCorrupt, match=held.path):
        house.read()
    house.stage.put(broken, good)
    assert sorted(house.read_numbers()) == list(range(30))
    house.stage.put(broken, b"")
    with house.database.writing() as connection:
        assert (
            discard_quarantined_chunks(connection, held.table_id, house.clock.now(), seq=held.seq)
            == 1
        )
    assert sorted(house.read_numbers()) == [*range(10), *range(20, 30)]


def test_a_missing_blob_fails_the_run_and_gives_the_lease_back(numbers_table: Lakehouse) -> None:
    house = numbers_table
    path = house.put_numbers(0, 10)
    data = house.stage.get(path)
    house.stage.delete(path)
    with pytest.raises(ObjectMissing):
        house.migrate()
    house.stage.put(path, data)
    assert house.migrate().rows == 10


@pytest.mark.slow
def test_a_long_history_keeps_few_snapshots(numbers_table: Lakehouse) -> None:
    house = numbers_table
    for start in range(MAX_SNAPSHOTS + 5):
        house.put(numbers(start, 1))
        house.migrate()
    native = snapshot(house).native
    assert native is not None
    assert len(native.metadata.snapshots) == MAX_SNAPSHOTS
    assert house.read_numbers() == list(range(MAX_SNAPSHOTS + 5))
