"""Which time counts where machines disagree."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path

import pytest

from snowmelt.catalog.db.database import (
    DatabaseServerClock,
    open_and_upgrade_database,
    open_catalog_clock,
    read_server_time,
)
from snowmelt.clock import ManualClock

NOW = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@pytest.mark.postgres
def test_a_clock_that_is_far_off_follows_the_catalogs(postgres_url: str) -> None:
    clock = DatabaseServerClock(ManualClock(NOW))
    database = open_and_upgrade_database(postgres_url)
    with contextlib.closing(database), database.reading() as connection:
        theirs = clock.synchronize(connection)
    assert abs(clock.now() - theirs) < dt.timedelta(minutes=1)
    assert clock.skew_s < -86_400


@pytest.mark.postgres
def test_who_loads_and_maintains_agrees_with_the_services(postgres_url: str) -> None:
    """Or its lease would look as if it had run out, and clean-up would close what is at work."""
    with contextlib.closing(open_and_upgrade_database(postgres_url)) as database:
        with database.reading() as connection:
            theirs = read_server_time(connection)
        assert theirs is not None
        now = open_catalog_clock(database, ManualClock(NOW)).now()
    assert abs(now - theirs) < dt.timedelta(minutes=1)


def test_on_sqlite_the_machines_clock_is_the_catalogs(tmp_path: Path) -> None:
    clock = DatabaseServerClock(ManualClock(NOW))
    database = open_and_upgrade_database(str(tmp_path / "catalog.db"))
    with contextlib.closing(database), database.reading() as connection:
        assert clock.synchronize(connection) == NOW
    assert clock.now() == NOW
