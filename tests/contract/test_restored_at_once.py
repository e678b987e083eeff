"""DROP and UNDROP while others stream, migrate and clean up, on every database there is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fixtures.chunks import Lakehouse
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.tables import list_dropped_tables, list_tables
from snowmelt.clock import SystemClock
from snowmelt.errors import SnowmeltError


@pytest.fixture
def house(database: Database, tmp_path: Path) -> Lakehouse:
    house = Lakehouse(tmp_path, SystemClock(), database)
    house.create()
    return house


def test_drop_undrop_clean_up_and_migration_at_once(house: Lakehouse) -> None:
    """A stream, a migrator, a collector and somebody who drops and restores, side by side."""
    errors: list[BaseException] = []
    over = threading.Event()

    def repeat(work: Any) -> threading.Thread:
        def loop() -> None:
            while not over.is_set():
                try:
                    work()
                except SnowmeltError:
                    over.wait(0.001)
                except BaseException as error:  # the test tells it
                    errors.append(error)
                    return

        thread = threading.Thread(target=loop)
        thread.start()
        return thread

    workers = [repeat(house.migrate), repeat(lambda: house.collect(0.0))]
    put = 0
    try:
        for round_number in range(12):
            house.put_numbers(put, 5)
            put += 5
            if round_number % 3 == 2:
                house.drop()
                house.undrop()
    finally:
        over.set()
        for each in workers:
            each.join()
    assert errors == []
    assert sorted(house.read_numbers()) == list(range(put))
    house.migrate()
    assert sorted(house.read_numbers()) == list(range(put))
    with house.database.reading() as connection:
        assert len(list_tables(connection)) == 1
        assert list_dropped_tables(connection) == []
