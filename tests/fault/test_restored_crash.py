"""Garbage collection is killed while it deletes a dropped table: only that table is deleted."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import sys
from pathlib import Path

import pytest

from fixtures.chunks import NUMBERS, Lakehouse
from snowmelt.clock import ManualClock
from snowmelt.errors import NotRestorable
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import TableName
from support import forked_processes

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent
DAY = 86_400.0
OTHER = TableName("DEMO", "PUBLIC", "OTHER")

CHILD = """
import datetime as dt, sys
from pathlib import Path
from fixtures.chunks import Lakehouse
from snowmelt.clock import ManualClock

folder, later_s = sys.argv[1:]
clock = ManualClock(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=float(later_s)))
Lakehouse(Path(folder), clock).collect(3600.0)
"""


def killed(folder: Path, point: Failpoint, later_s: float) -> None:
    """Run garbage collection in a separate process with a fast clock that is killed at `point`."""
    done = forked_processes.run(
        [sys.executable, "-c", CHILD, str(folder), str(later_s)],
        env={**os.environ, "PYTHONPATH": str(TESTS), "SNOWMELT_FAULT": f"{point}=kill"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize("point", [Failpoint.CLEANUP_MARKED, Failpoint.CLEANUP_DELETED])
def test_a_clean_up_killed_at(point: Failpoint, tmp_path: Path) -> None:
    clock = ManualClock(dt.datetime.now(dt.UTC))
    with contextlib.closing(Lakehouse(tmp_path, clock)) as house:
        house.create()
        house.create(OTHER, replace=True)
        for name in (NUMBERS, OTHER):
            house.put_numbers(0, 10, name)
            house.migrate(name)
            house.put_numbers(10, 10, name)
        house.drop()
        clock.advance(DAY / 2)
        house.drop(OTHER)
        killed(tmp_path, point, DAY + 60)
        # By this clock UNDROP is still in time, but garbage collection has begun to delete the
        # table.
        with pytest.raises(NotRestorable):
            house.undrop()
        house.undrop(OTHER)
        assert sorted(house.read_numbers(OTHER)) == list(range(20))
        house.migrate(OTHER)
        clock.advance(DAY)
        house.collect(3600.0)
        assert sorted(house.read_numbers(OTHER)) == list(range(20))
        assert {path.split("/")[2] for path in house.files()} == {"OTHER"}
        assert len(house.files(house.stage)) <= 1
