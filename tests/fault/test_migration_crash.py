"""A migration or garbage collection that is killed at any point loses and duplicates no row."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.chunks import Lakehouse
from snowmelt.clock import ManualClock
from snowmelt.failpoints import Failpoint
from snowmelt.table.native_file import NativeFile
from snowmelt.table.snapshot import take_snapshots
from support import forked_processes

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent
HOUR = 3600.0
KILLS = 2

MIGRATION = [
    Failpoint.MIGRATION_PLANNED,
    Failpoint.MIGRATION_TASK,
    Failpoint.MIGRATION_WRITTEN,
    Failpoint.MIGRATION_STAGED,
    Failpoint.MIGRATION_INSIDE_COMMIT,
    Failpoint.MIGRATION_COMMITTED,
]
CLEANUP = [Failpoint.CLEANUP_MARKED, Failpoint.CLEANUP_DELETED]

CHILD = """
import datetime as dt, sys
from pathlib import Path
from fixtures.chunks import Lakehouse
from snowmelt.clock import ManualClock

folder, work, later_s = sys.argv[1:]
house = Lakehouse(Path(folder), ManualClock(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=float(later_s))))
house.migrate() if work == "migrate" else house.collect(3600)
"""


def killed(folder: Path, point: Failpoint, work: str, later_s: float) -> None:
    """Run a migration or garbage collection in a separate process that is killed at `point`."""
    done = forked_processes.run(
        [sys.executable, "-c", CHILD, str(folder), work, str(later_s)],
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "SNOWMELT_FAULT": f"{point}=kill",
        },
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Lakehouse]:
    clock = ManualClock(dt.datetime.now(dt.UTC))
    with contextlib.closing(Lakehouse(tmp_path, clock)) as found:
        found.create()
        yield found


@pytest.mark.parametrize("point", MIGRATION)
def test_a_migration_killed_at(point: Failpoint, house: Lakehouse) -> None:
    house.put_numbers(0, 100)
    house.migrate()
    for kill in range(KILLS):
        start = 100 * (kill + 1)
        house.put_numbers(start, 50)
        house.put_numbers(start + 50, 50)
        # Use a clock after the expiry of the killed migrator's lease, so that the next run need not
        # wait.
        killed(house.folder, point, "migrate", 100.0 * (kill + 1))
        assert house.read_numbers() == list(range(start + 100))
    house.clock.advance(HOUR)
    house.migrate()
    count = 100 * (KILLS + 1)
    assert house.read_numbers() == list(range(count))
    table = house.table()
    assert table.migrated_seq == table.last_seq
    house.clock.advance(2 * HOUR)
    house.collect(HOUR)
    assert house.read_numbers() == list(range(count))
    assert house.files(house.stage) == set()
    assert len(house.data_files()) == len(snapshot_files(house))


@pytest.mark.parametrize("point", CLEANUP)
def test_a_clean_up_killed_at(point: Failpoint, house: Lakehouse) -> None:
    house.put_numbers(0, 100)
    house.migrate()
    kept = house.put_numbers(100, 100)
    for _ in range(KILLS):
        killed(house.folder, point, "collect", 2 * HOUR)
        assert house.read_numbers() == list(range(200))
    house.clock.advance(2 * HOUR)
    house.collect(HOUR)
    assert house.read_numbers() == list(range(200))
    assert house.files(house.stage) == {kept}


def snapshot_files(house: Lakehouse) -> list[NativeFile]:
    [snapshot] = take_snapshots(house.database, [house.table().name], clock=house.clock)
    return snapshot.list_native_files()
