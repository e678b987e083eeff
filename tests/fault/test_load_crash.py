"""A load that is killed at any point loads everything once or nothing, and leaves no file."""

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
from fixtures.copy import Copying
from snowmelt.clock import ManualClock
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import TableName
from snowmelt.table.snapshot import take_snapshots
from support import forked_processes

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent
REJECTS = TableName("DEMO", "PUBLIC", "REJECTS")
BEFORE = [
    Failpoint.LOAD_BEGUN,
    Failpoint.LOAD_TASK,
    Failpoint.LOAD_REJECTS_PUBLISHED,
    Failpoint.LOAD_WRITTEN,
    Failpoint.LOAD_STAGED,
    Failpoint.LOAD_INSIDE_COMMIT,
]
AFTER = [Failpoint.LOAD_COMMITTED]

CHILD = """
import datetime as dt, sys
from pathlib import Path
from fixtures.chunks import Lakehouse
from fixtures.copy import Copying
from snowmelt.clock import ManualClock

folder, statement = sys.argv[1:]
house = Lakehouse(Path(folder), ManualClock(dt.datetime.now(dt.UTC)))
Copying(house).copy(statement)
"""


@pytest.fixture
def copying(tmp_path: Path) -> Iterator[Copying]:
    clock = ManualClock(dt.datetime.now(dt.UTC))
    with contextlib.closing(Lakehouse(tmp_path, clock)) as found:
        found.create()
        yield Copying(found)


def killed(copying: Copying, point: Failpoint, statement: str) -> None:
    """Run a COPY in a separate process that is killed at `point`."""
    done = forked_processes.run(
        [sys.executable, "-c", CHILD, str(copying.house.folder), statement],
        env={**os.environ, "PYTHONPATH": str(TESTS), "SNOWMELT_FAULT": f"{point}=kill"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
def test_a_load_killed_at(point: Failpoint, copying: Copying) -> None:
    house = copying.house
    house.put_numbers(0, 10)
    house.migrate()
    paths = ", ".join(
        copying.file(f"{n}.csv", f"{10 * n + 10}|a\n{10 * n + 11}|b\nx|c\n") for n in range(2)
    )
    statement = f"COPY numbers FROM {paths} REJECTED DATA AS TABLE rejects"
    killed(copying, point, statement)
    loaded = [*range(10), 10, 11, 20, 21]
    committed = point in AFTER
    assert sorted(house.read_numbers()) == (loaded if committed else list(range(10)))
    # The same COPY can run again before garbage collection.
    again = copying.copy(statement)
    assert again.skipped_files == (2 if committed else 0)
    assert sorted(house.read_numbers()) == loaded
    house.clock.advance(7200)
    assert house.collect(3600).problems == ()
    assert sorted(copying.states()) == (["committed"] if committed else ["committed", "lost"])
    house.clock.advance(7200)
    house.collect(3600)
    assert sorted(house.read_numbers()) == loaded
    for name in (house.table().name, REJECTS):
        [snapshot] = take_snapshots(house.database, [name], clock=house.clock)
        folder = house.warehouse.table_folder(snapshot.table)
        there = {path for path in house.data_files() if path.startswith(folder)}
        named = {house.warehouse.to_path(file.path) for file in snapshot.list_native_files()}
        assert there == named
    rejects = house.read(REJECTS)
    assert rejects["REJECTED_DATA"].to_pylist() == ["x|c"] * rejects.num_rows
    # Rejects of the killed load exist if they were published. The load ID distinguishes them.
    assert rejects.num_rows in {2, 4}
