"""Which time counts where machines disagree."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest

from snowmelt.catalog.catalog_clock import CatalogClock
from snowmelt.catalog.database import open_database
from snowmelt.clock import ManualClock

NOW = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@pytest.mark.postgres
def test_a_clock_that_is_far_off_follows_the_catalogs(postgres_url):
    clock = CatalogClock(ManualClock(NOW))
    database = open_database(postgres_url)
    with contextlib.closing(database), database.reading() as connection:
        theirs = clock.follow(connection)
    assert abs(clock.now() - theirs) < dt.timedelta(seconds=1)
    assert clock.ahead_s < -86_400


def test_on_sqlite_the_machines_clock_is_the_catalogs(tmp_path):
    clock = CatalogClock(ManualClock(NOW))
    database = open_database(str(tmp_path / "catalog.db"))
    with contextlib.closing(database), database.reading() as connection:
        assert clock.follow(connection) == NOW
    assert clock.now() == NOW
