"""Compaction joins small files, keeps every row, and never takes a file from a running query."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.snapshots import Summary

from fixtures.chunks import NUMBERS, Lakehouse
from snowmelt import failpoints
from snowmelt.catalog.jobs import leases, run_history
from snowmelt.catalog.jobs.run_history import MaintenanceKind, RunState
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.clock import ManualClock
from snowmelt.errors import CommitLost, LeaseLost, TableInconsistent
from snowmelt.failpoints import Failpoint
from snowmelt.table.compaction import compact, group_small_files, plan_compaction
from snowmelt.table.file_replacement_run import (
    MaintenanceSettings,
    expire_snapshots,
    maintenance_lease_name,
)
from snowmelt.table.iceberg import NativeTable, list_native_files
from snowmelt.table.native_file import NativeFile, read_native_file
from snowmelt.table.snapshot import TableSnapshot, take_snapshots

HOUR = 3600.0
MIB = 1024 * 1024


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Lakehouse]:
    """A lakehouse whose clock stands at the machine's time, with the table NUMBERS."""
    with contextlib.closing(Lakehouse(tmp_path, ManualClock(dt.datetime.now(dt.UTC)))) as found:
        found.create()
        yield found


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def settings_of(house: Lakehouse, **changes: Any) -> MaintenanceSettings:
    return MaintenanceSettings(house.warehouse.url, **{"min_files": 2, **changes})


def try_compact(house: Lakehouse, **changes: int) -> run_history.MaintenanceTotals | None:
    return compact(house.database, NUMBERS, settings_of(house, **changes), clock=house.clock)


def compacted(house: Lakehouse, **changes: int) -> run_history.MaintenanceTotals:
    done = try_compact(house, **changes)
    assert done is not None
    return done


def migrated(house: Lakehouse, starts: range | tuple[int, ...], count: int = 100) -> None:
    for start in starts:
        house.put_numbers(start, count)
        house.migrate()


def snapshot_of(house: Lakehouse) -> TableSnapshot:
    [snapshot] = take_snapshots(house.database, [NUMBERS], clock=house.clock)
    return snapshot


def native_of(house: Lakehouse) -> NativeTable:
    native = snapshot_of(house).native
    assert native is not None
    return native


def runs(house: Lakehouse) -> list[run_history.MaintenanceRecord]:
    with house.database.reading() as connection:
        return run_history.list_maintenance_runs(connection)


@pytest.mark.slow
def test_small_files_become_one_with_the_same_rows(house: Lakehouse) -> None:
    migrated(house, range(0, 500, 100))
    before, facts = house.read().sort_by("N"), native_of(house).facts
    done = compacted(house)
    assert (done.rows, done.files_before, done.files_after) == (500, 5, 1)
    assert house.read().sort_by("N").equals(before)
    after = native_of(house).facts
    assert (after.watermark, after.epoch, after.checksum, after.total_rows) == (
        facts.watermark,
        facts.epoch,
        facts.checksum,
        facts.total_rows,
    )
    [run] = runs(house)
    assert (run.state, run.kind) == (RunState.COMMITTED, MaintenanceKind.COMPACTION)
    assert (run.files_before, run.bytes_before) == (5, done.bytes_before)
    assert try_compact(house) is None


@pytest.mark.slow
def test_migrations_go_on_after_a_compaction_and_before_its_commit(house: Lakehouse) -> None:
    migrated(house, (0, 100))

    def meanwhile() -> None:
        migrated(house, (200,))

    failpoints.arm(Failpoint.COMPACTION_WRITTEN, meanwhile)
    assert compacted(house).files_before == 2
    migrated(house, (300,))
    assert sorted(house.read_numbers()) == list(range(400))
    assert [file.rows for file in snapshot_of(house).list_native_files()] == [100, 200, 100]
    house.put_numbers(400, 10)
    assert len(house.read_numbers()) == 410


@pytest.mark.slow
def test_a_migration_that_is_overtaken_by_a_compaction_commits_on_top_of_it(
    house: Lakehouse,
) -> None:
    migrated(house, (0, 100))
    house.put_numbers(200, 100)
    failpoints.arm(Failpoint.MIGRATION_STAGED, lambda: compacted(house))
    assert house.migrate().rows == 100
    assert sorted(house.read_numbers()) == list(range(300))
    assert len(snapshot_of(house).list_native_files()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("point", [Failpoint.COMPACTION_WRITTEN, Failpoint.MIGRATION_STAGED])
def test_files_of_a_run_have_the_columns_of_its_start_if_one_is_dropped_meanwhile(
    house: Lakehouse, point: Failpoint
) -> None:
    migrated(house, (0, 100))

    def meanwhile() -> None:
        execute_statement(
            house.database, "ALTER TABLE demo.public.numbers DROP COLUMN word", clock=house.clock
        )
        if point is Failpoint.MIGRATION_STAGED:
            compacted(house)

    house.put_numbers(200, 100)
    failpoints.arm(point, meanwhile)
    if point is Failpoint.COMPACTION_WRITTEN:
        compacted(house)
    house.migrate()
    # Their fingerprints cover the dropped column. A comparison without it would find other rows.
    assert house.find_errors() == []
    assert compacted(house).files_before == 2


@pytest.mark.slow
def test_the_clustering_order_is_kept_also_of_rows_that_do_not_fit_into_memory(
    tmp_path: Path,
) -> None:
    with contextlib.closing(Lakehouse(tmp_path)) as house:
        house.create(cluster_by=("WORD",))
        migrated(house, range(0, 3000, 1000), 1000)
        assert compacted(house, memory_bytes=64 * 1024).files_before == 3
        [file] = snapshot_of(house).list_native_files()
        words = read_native_file(file.path, house.table().schema)["WORD"].to_pylist()
        given = [f"word {value}" for value in range(3000) if value % 7]
        assert words == sorted(given) + [None] * (3000 - len(given))


@pytest.mark.slow
def test_a_running_query_keeps_its_files_for_the_retention_and_they_go_after_it(
    house: Lakehouse,
) -> None:
    migrated(house, (0, 100))
    snapshot = snapshot_of(house)
    house.clock.advance(2 * HOUR)
    assert compacted(house).snapshots_expired == 1
    house.clock.advance(HOUR - 1)
    assert expire_snapshots(house.database, NUMBERS, settings_of(house), house.clock) is None
    house.collect(HOUR)
    parts = [
        read_native_file(file.path, snapshot.table.schema) for file in snapshot.list_native_files()
    ]
    assert pa.concat_tables(parts).num_rows == 200
    house.clock.advance(2)
    assert (
        cast(
            "run_history.MaintenanceTotals",
            expire_snapshots(house.database, NUMBERS, settings_of(house), house.clock),
        ).snapshots_expired
        == 1
    )
    house.collect(HOUR)
    assert len(house.data_files()) == 1
    assert sorted(house.read_numbers()) == list(range(200))
    assert expire_snapshots(house.database, NUMBERS, settings_of(house), house.clock) is None


@pytest.mark.slow
def test_metadata_that_a_compaction_replaced_is_kept_beside_what_replaces_it(
    house: Lakehouse,
) -> None:
    migrated(house, (0, 100))
    compacted(house)
    snapshot = snapshot_of(house)
    migrated(house, (200,))
    house.clock.advance(1)
    compacted(house, retention_s=0)
    house.collect(HOUR)
    assert {
        house.warehouse.to_path(file.path) for file in snapshot.list_native_files()
    } <= house.files()


@pytest.mark.slow
def test_two_maintainers_do_not_do_the_same_table(house: Lakehouse) -> None:
    migrated(house, (0, 100))
    with house.database.writing() as connection:
        leases.acquire_lease(
            connection,
            maintenance_lease_name(house.table()),
            "other",
            ttl_s=60,
            now=house.clock.now(),
        )
    assert try_compact(house) is None
    house.clock.advance(61)
    assert compacted(house).files_before == 2


@pytest.mark.slow
def test_who_has_lost_the_lease_changes_nothing(house: Lakehouse) -> None:
    migrated(house, (0, 100))

    def taken_over() -> None:
        house.clock.advance(61)
        assert compacted(house).files_before == 2

    failpoints.arm(Failpoint.COMPACTION_WRITTEN, taken_over)
    with pytest.raises((CommitLost, LeaseLost)):
        compacted(house)
    assert sorted(house.read_numbers()) == list(range(200))
    assert sorted(run.state for run in runs(house)) == ["committed", "lost"]


@pytest.mark.slow
def test_a_table_dropped_meanwhile_is_left_alone(house: Lakehouse) -> None:
    migrated(house, (0, 100))
    failpoints.arm(Failpoint.COMPACTION_WRITTEN, house.drop)
    with pytest.raises(CommitLost):
        compacted(house)
    house.clock.advance(26 * HOUR)
    house.collect(HOUR)
    assert house.files() == set()


@pytest.mark.slow
def test_what_a_compaction_at_work_has_written_is_not_swept_and_goes_when_it_died(
    house: Lakehouse,
) -> None:
    migrated(house, (0, 100))
    swept = []
    failpoints.arm(Failpoint.COMPACTION_WRITTEN, lambda: swept.append(house.collect(HOUR).files))
    assert compacted(house).files_after == 1
    assert swept == [0]

    def died() -> None:
        raise KeyboardInterrupt

    migrated(house, (200,))
    failpoints.arm(Failpoint.COMPACTION_WRITTEN, died)
    with pytest.raises(KeyboardInterrupt):
        compacted(house)
    assert house.collect(HOUR).files == 0
    house.clock.advance(2 * HOUR)
    expire_snapshots(house.database, NUMBERS, settings_of(house), house.clock)
    house.clock.advance(2 * HOUR)
    house.collect(HOUR)
    assert {
        house.warehouse.to_path(file.path) for file in snapshot_of(house).list_native_files()
    } == (house.data_files())
    assert sorted(house.read_numbers()) == list(range(300))


def test_a_file_with_fewer_rows_than_its_entry_says_is_not_compacted(house: Lakehouse) -> None:
    house.is_damaged = True
    migrated(house, (0, 100))
    path = house.warehouse.to_path(snapshot_of(house).list_native_files()[0].path)
    whole = pq.read_table(house.folder / "warehouse" / path)
    pq.write_table(whole.slice(1), house.folder / "warehouse" / path)
    with pytest.raises(TableInconsistent, match="does not have the rows that were written"):
        compacted(house)
    assert runs(house)[0].state is RunState.FAILED


def test_other_readers_see_files_replaced_and_no_rows_changed(house: Lakehouse) -> None:
    migrated(house, (0, 100))
    compacted(house)
    metadata = native_of(house).metadata
    assert [cast("Summary", each.summary).operation.value for each in metadata.snapshots] == [
        "append",
        "append",
        "replace",
    ]
    current = metadata.current_snapshot()
    assert current is not None
    assert cast("Summary", current.summary)["total-records"] == "200"


@pytest.mark.slow
def test_a_large_backlog_is_compacted_in_several_commits(house: Lakehouse) -> None:
    migrated(house, range(0, 600, 100))
    size = max(file.size for file in snapshot_of(house).list_native_files())
    limits = {"target_bytes": 2 * size, "run_bytes": 1}
    done = []
    while plan_compaction(house.database, NUMBERS, settings_of(house, **limits)):
        done.append(compacted(house, **limits).files_before)
    assert done == [2, 2, 2]
    assert sorted(house.read_numbers()) == list(range(600))


def sized(*sizes: Any) -> list[Any]:
    return [
        NativeFile(f"file:///{number}", number, size, 1, {}, {}, {}, {})
        for number, size in enumerate(sizes)
    ]


def grouped_sizes(sizes: list[Any], min_files: int = 8) -> list[Any]:
    groups = group_small_files(sized(*sizes), target_bytes=128 * MIB, min_files=min_files)
    return [[file.size // MIB for file in group] for group in groups]


def test_files_are_joined_once_there_are_enough_of_about_a_size() -> None:
    assert grouped_sizes([MIB] * 7) == []
    assert grouped_sizes([MIB] * 8) == [[1] * 8]
    assert grouped_sizes([8 * MIB, *[MIB] * 7]) == []
    assert grouped_sizes([8 * MIB, *[MIB] * 8]) == [[8, *[1] * 8]]
    assert grouped_sizes([90 * MIB, *[MIB] * 7]) == []
    assert grouped_sizes([90 * MIB, *[MIB] * 8]) == [[1] * 8]


def test_groups_have_the_target_at_most_and_large_files_are_left_alone() -> None:
    assert grouped_sizes([*[40 * MIB] * 8, 96 * MIB, 500 * MIB]) == [[40] * 3, [40] * 3, [40] * 2]


def test_each_row_is_rewritten_a_few_times_at_most() -> None:
    files, rewritten = sized(), 0
    for number in range(1280):
        files.append(NativeFile(f"file:///n{number}", number, MIB, 1, {}, {}, {}, {}))
        for group in group_small_files(files, target_bytes=128 * MIB, min_files=8):
            size = sum(file.size for file in group)
            rewritten += size // MIB
            gone = {file.path for file in group}
            files = [file for file in files if file.path not in gone]
            files.append(NativeFile(f"file:///g{number}.{size}", number, size, 1, {}, {}, {}, {}))
    assert rewritten <= 5 * 1280
    assert len(files) <= 10 + 24


@pytest.mark.slow
def test_a_compaction_that_nothing_asks_for_does_not_begin(house: Lakehouse) -> None:
    assert try_compact(house) is None
    migrated(house, (0,))
    assert try_compact(house) is None
    assert runs(house) == []
    assert list_native_files(native_of(house))[0].rows == 100
