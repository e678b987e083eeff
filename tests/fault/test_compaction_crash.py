"""A compaction that is killed at any point loses and duplicates no row, and leaves no file."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.chunks import NUMBERS, Lakehouse
from snowmelt.clock import ManualClock
from snowmelt.failpoints import Failpoint
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings, expire_snapshots
from snowmelt.table.snapshot import take_snapshots
from support import forked_processes

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent
HOUR = 3600.0
KILLS = 2

BEFORE = [
    Failpoint.COMPACTION_PLANNED,
    Failpoint.COMPACTION_FILE,
    Failpoint.COMPACTION_WRITTEN,
    Failpoint.COMPACTION_STAGED,
    Failpoint.COMPACTION_INSIDE_COMMIT,
]
POINTS = [*BEFORE, Failpoint.COMPACTION_COMMITTED]

CHILD = """
import datetime as dt, sys
from pathlib import Path
from fixtures.chunks import NUMBERS, Lakehouse
from snowmelt.clock import ManualClock
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings

folder, later_s = sys.argv[1:]
house = Lakehouse(Path(folder), ManualClock(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=float(later_s))))
compact(house.database, NUMBERS, MaintenanceSettings(house.warehouse.url, min_files=2), clock=house.clock)
"""


def killed(folder: Path, point: Failpoint, later_s: float) -> None:
    """Run a compaction in a separate process that is killed at `point`."""
    done = forked_processes.run(
        [sys.executable, "-c", CHILD, str(folder), str(later_s)],
        env={**os.environ, "PYTHONPATH": str(TESTS), "SNOWMELT_FAULT": f"{point}=kill"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Lakehouse]:
    with contextlib.closing(Lakehouse(tmp_path, ManualClock(dt.datetime.now(dt.UTC)))) as found:
        found.create()
        yield found


@pytest.mark.parametrize("point", POINTS)
def test_a_compaction_killed_at(point: Failpoint, house: Lakehouse) -> None:
    settings = MaintenanceSettings(house.warehouse.url, min_files=2)
    count = 0
    for kill in range(KILLS):
        for _ in range(2):
            house.put_numbers(count, 50)
            count += 50
            house.migrate()
        # Use a clock after the expiry of the killed run's lease, so that the next run need not
        # wait.
        killed(house.folder, point, 100.0 * (kill + 1))
        assert sorted(house.read_numbers()) == list(range(count))
    [snapshot] = take_snapshots(house.database, [NUMBERS], clock=house.clock)
    assert len(snapshot.list_native_files()) == (2 * KILLS if point in BEFORE else 1)
    house.clock.advance(2 * HOUR)
    compact(house.database, NUMBERS, settings, clock=house.clock)
    house.clock.advance(2 * HOUR)
    expire_snapshots(house.database, NUMBERS, settings, house.clock)
    house.clock.advance(2 * HOUR)
    house.collect(HOUR)
    assert sorted(house.read_numbers()) == list(range(count))
    assert len(house.data_files()) == 1
    needed = {path for path in house.files() if not path.endswith(".metadata.json")}
    [snapshot] = take_snapshots(house.database, [NUMBERS], clock=house.clock)
    # The file, its manifest, the manifest of the files it replaced, and the manifest list.
    assert len(needed) <= 4
    assert snapshot.native is not None
    assert snapshot.native.facts.total_rows == count
