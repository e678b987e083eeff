"""The native commit is one transaction of the catalog, on each database."""

from __future__ import annotations

import datetime as dt
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import sqlalchemy as sa

from fixtures.chunks import NUMBERS, Lakehouse
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import run_history
from snowmelt.clock import ManualClock
from snowmelt.errors import CommitLost, LeaseLost
from snowmelt.table.migration import (
    MigrationSettings,
    commit_migration,
    migrate_table,
    plan_migration,
)
from snowmelt.table.migration_task import run_migration_task


@pytest.fixture
def house(database: Database, tmp_path: Path) -> Lakehouse:
    clock = ManualClock(dt.datetime.now(dt.UTC))
    found = Lakehouse(tmp_path, clock, database)
    found.create()
    return found


def test_migrators_at_once_move_every_row_once(house: Lakehouse) -> None:
    for start in range(0, 60, 10):
        house.put_numbers(start, 10)
    done, lost, errors = [], [], []

    def migrate() -> None:
        try:
            done.append(
                migrate_table(
                    house.database,
                    house.keyring,
                    NUMBERS,
                    MigrationSettings(house.stage.url, house.warehouse.url),
                    clock=house.clock,
                )
            )
        except (LeaseLost, CommitLost) as error:
            lost.append(error)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=migrate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sum(result.rows for result in done if result) == 60
    assert house.read_numbers() == list(range(60))


def test_a_migrator_that_another_one_overtakes_finds_no_work(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.put_numbers(0, 10)
    writing = house.database.writing

    def migrate_first() -> AbstractContextManager[sa.Connection]:
        monkeypatch.undo()
        assert house.migrate().rows == 10
        return writing()

    monkeypatch.setattr(house.database, "writing", migrate_first)
    settings = MigrationSettings(house.stage.url, house.warehouse.url)
    assert (
        plan_migration(house.database, house.keyring, NUMBERS, settings, clock=house.clock) is None
    )
    house.put_numbers(10, 10)
    assert house.migrate().rows == 10
    assert house.read_numbers() == list(range(20))


def test_a_stale_migrator_loses_on_each_database(house: Lakehouse) -> None:
    house.put_numbers(0, 10)
    settings = MigrationSettings(house.stage.url, house.warehouse.url)
    first = plan_migration(house.database, house.keyring, NUMBERS, settings, clock=house.clock)
    assert first is not None
    files = [outcome for task in first.tasks for outcome in run_migration_task(task)]
    house.clock.advance(settings.lease_s + 1)
    assert house.migrate().rows == 10
    house.put_numbers(10, 10)
    with pytest.raises((LeaseLost, CommitLost)):
        commit_migration(house.database, first, files, clock=house.clock)
    assert house.read_numbers() == list(range(20))
    with house.database.reading() as connection:
        runs = run_history.list_migrations(connection, house.table().table_id)
    assert sorted(run.state for run in runs) == ["committed", "lost"]


def test_clean_up_on_each_database(house: Lakehouse) -> None:
    house.put_numbers(0, 10)
    house.migrate()
    house.clock.advance(7200)
    assert house.collect(3600).blobs == 1
    assert house.read_numbers() == list(range(10))
    house.drop()
    # A day, as UNDROP may want it back, and the retention.
    house.clock.advance(86_400 + 7200)
    house.collect(3600)
    assert house.files() == set()
