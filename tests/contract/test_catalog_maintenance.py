from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

from fixtures.catalog import START
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.jobs import run_history
from snowmelt.catalog.jobs.run_history import MaintenanceKind, MaintenanceTotals, RunState

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from snowmelt.catalog.jobs.run_history import MaintenanceRecord


@pytest.fixture
def writing(database: Database) -> Iterator[Connection]:
    with database.writing() as connection:
        yield connection


def _at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def test_a_run_is_closed_once_with_what_it_did(writing: Connection) -> None:
    run_history.start_maintenance_run(writing, "a", 7, MaintenanceKind.COMPACTION, _at(0))
    run_history.start_maintenance_run(writing, "b", 7, MaintenanceKind.EXPIRY, _at(1))
    run_history.start_maintenance_run(writing, "c", 8, MaintenanceKind.COMPACTION, _at(2))
    assert [run.run_id for run in run_history.list_running_maintenance(writing, 7)] == [
        "a",
        "b",
    ]
    done = MaintenanceTotals(
        rows=10, files_before=8, bytes_before=80, files_after=1, bytes_after=60, snapshot_id=2**60
    )
    state = RunState.COMMITTED
    assert run_history.finish_maintenance_run(writing, "a", state, now=_at(5), totals=done)
    assert not run_history.finish_maintenance_run(writing, "a", RunState.LOST, now=_at(6))
    assert run_history.finish_maintenance_run(
        writing, "b", RunState.FAILED, now=_at(7), message="the disk is full"
    )
    assert run_history.list_running_maintenance(writing, 7) == []
    assert run_history.find_maintenance_commit_times(writing, 7) == {"a": _at(5)}
    assert run_history.find_maintenance_commit_times(writing, 8) == {}
    second, first = run_history.list_maintenance_runs(writing, 7)
    assert (second.state, second.message) == (RunState.FAILED, "the disk is full")
    assert (first.rows, first.files_before, first.snapshot_id) == (10, 8, 2**60)
    assert [run.run_id for run in run_history.list_maintenance_runs(writing)] == [
        "c",
        "b",
        "a",
    ]
    assert (
        cast("MaintenanceRecord", run_history.find_maintenance_run(writing, "c")).kind
        is MaintenanceKind.COMPACTION
    )
    assert run_history.find_maintenance_run(writing, "d") is None
