from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.catalog import START
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import leases, run_history
from snowmelt.catalog.jobs.run_history import MigrationRecord, MigrationTotals, RunState
from snowmelt.errors import NotFound

if TYPE_CHECKING:
    from sqlalchemy import Connection


@pytest.fixture
def writing(database: Database) -> Iterator[Connection]:
    with database.writing() as connection:
        yield connection


def _at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def _acquire(connection: Connection, owner: str, seconds: float = 0.0) -> leases.Lease | Any:
    return leases.acquire_lease(connection, "table/1", owner, ttl_s=60, now=_at(seconds))


def test_a_lease_has_one_holder_until_it_expires(writing: Connection) -> None:
    first = _acquire(writing, "A")
    assert first is not None
    assert first.epoch == 1
    assert _acquire(writing, "B", 59.9) is None
    second = _acquire(writing, "B", 60)
    assert second is not None
    assert second.epoch == 2
    assert (leases.holds_lease(writing, first), leases.holds_lease(writing, second)) == (
        False,
        True,
    )


def test_a_renewed_lease_lasts_longer(writing: Connection) -> None:
    first = _acquire(writing, "A")
    assert leases.renew_lease(writing, first, ttl_s=60, now=_at(50))
    assert _acquire(writing, "B", 100) is None


def test_an_expired_lease_is_held_until_somebody_takes_it(writing: Connection) -> None:
    first = _acquire(writing, "A")
    assert leases.holds_lease(writing, first)
    assert leases.renew_lease(writing, first, ttl_s=60, now=_at(3600))
    assert _acquire(writing, "B", 3700) is not None
    assert not leases.renew_lease(writing, first, ttl_s=60, now=_at(3700))


def test_a_released_lease_is_free_at_once_and_its_epoch_goes_on(writing: Connection) -> None:
    leases.release_lease(writing, _acquire(writing, "A"))
    second = _acquire(writing, "B", 1)
    assert second is not None
    assert second.epoch == 2


def test_releasing_what_others_took_over_does_nothing(writing: Connection) -> None:
    first = _acquire(writing, "A")
    _acquire(writing, "B", 60)
    leases.release_lease(writing, first)
    assert _acquire(writing, "C", 61) is None


def test_the_same_owner_gets_a_new_epoch(writing: Connection) -> None:
    first = _acquire(writing, "A")
    again = _acquire(writing, "A", 1)
    assert again is not None
    assert (again.epoch, leases.holds_lease(writing, first)) == (2, False)


def test_a_clock_that_goes_far_back_does_not_lock_a_lease_away(writing: Connection) -> None:
    first = _acquire(writing, "A")
    assert _acquire(writing, "B", -30) is None
    second = _acquire(writing, "B", -86_400)
    assert second is not None
    assert not leases.holds_lease(writing, first)


def test_leases_of_other_names_are_other_leases(writing: Connection) -> None:
    assert _acquire(writing, "A") is not None
    assert leases.acquire_lease(writing, "table/2", "B", ttl_s=60, now=START) is not None


def test_of_many_that_try_at_once_one_gets_it(open_catalog: Callable[..., Database]) -> None:
    got = []

    def work(owner: str, database: Database) -> None:
        with database.writing() as connection:
            got.append(_acquire(connection, owner))

    threads = [threading.Thread(target=work, args=(each, open_catalog())) for each in "ABCD"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([lease for lease in got if lease is not None]) == 1


def test_a_migration_is_written_down_and_closed(writing: Connection) -> None:
    record = MigrationRecord("run-1", 7, 3, 0, 10, RunState.RUNNING, START)
    run_history.start_migration(writing, record)
    assert run_history.list_running_migrations(writing, 7) == [record]
    written = MigrationTotals(rows=100, files=2, bytes=5000, snapshot_id=2**62)
    run_history.finish_migration(writing, "run-1", RunState.COMMITTED, now=_at(5), totals=written)
    closed = run_history.find_migration(writing, "run-1")
    assert closed is not None
    assert (closed.state, closed.rows, closed.snapshot_id) == ("committed", 100, 2**62)
    assert closed.ended_at == _at(5)
    assert run_history.list_running_migrations(writing, 7) == []
    assert (
        run_history.list_migrations(writing) == run_history.list_migrations(writing, 7) == [closed]
    )
    assert run_history.find_migration(writing, "run-2") is None
    with pytest.raises(NotFound):
        run_history.finish_migration(writing, "run-2", RunState.FAILED, now=START)


def test_what_was_migrated_at_an_instant_counts_commits_only(writing: Connection) -> None:
    for number, state in enumerate((RunState.COMMITTED, RunState.LOST), start=1):
        run = MigrationRecord(f"run-{number}", 7, 1, 0, number * 10, RunState.RUNNING, START)
        run_history.start_migration(writing, run)
        run_history.finish_migration(writing, run.run_id, state, now=_at(5))
    assert run_history.find_migrated_seq(writing, 7, _at(4)) == 0
    assert run_history.find_migrated_seq(writing, 7, _at(5)) == 10


def test_a_deployment_has_a_number(writing: Connection) -> None:
    assert 0 < leases.read_deployment_id(writing) < 2**31


def test_a_renewal_after_the_release_does_not_bring_the_lease_back(writing: Connection) -> None:
    lease = _acquire(writing, "A")
    leases.release_lease(writing, lease)
    assert not leases.renew_lease(writing, lease, ttl_s=60, now=_at(1))
    assert not leases.holds_lease(writing, lease)
    assert _acquire(writing, "B", 2) is not None
