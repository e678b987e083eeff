"""The demo's files, loaded without Spark: invalid records are rejected, and others loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.cli.flights_demo import dataset
from snowmelt.clock import SystemClock
from snowmelt.loaders.copy_job import CopyContext, run_copy
from snowmelt.loaders.load_task_execution import LocalTaskRunner


@pytest.mark.slow
def test_weather_and_planes_are_loaded_through_a_filter_written_for_vertica(tmp_path: Path) -> None:
    expected = dataset.write_raw_files(tmp_path / "files")
    (tmp_path / "warehouse").mkdir()
    database = open_and_upgrade_database(str(tmp_path / "catalog.db"))
    try:
        for statement in (
            "CREATE DATABASE demo",
            *dataset.build_preparing_statements(tmp_path / "files"),
        ):
            execute_statement(database, statement, user=None, clock=SystemClock())
        context = CopyContext(database, str(tmp_path / "warehouse"), "ACCOUNTADMIN", SystemClock())
        copies = dataset.build_copy_statements(tmp_path / "files")
        weather = run_copy(context, copies[dataset.WEATHER], LocalTaskRunner())
        planes = run_copy(context, copies[dataset.PLANES], LocalTaskRunner())
        again = run_copy(context, copies[dataset.WEATHER], LocalTaskRunner())
    finally:
        database.close()
    assert weather.totals.rows == len(expected.weather_keys) > 26_000
    assert planes.totals.rows == len(expected.manufacturer_by_plane) > 3_300
    assert weather.totals.rejects + planes.totals.rejects == expected.rejects > 60
    assert (again.load_id, again.skipped_files) == (None, 3)
