"""A watch that is killed at any point loads each file once."""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.chunks import Lakehouse
from fixtures.copy import Copying
from snowmelt.clock import ManualClock
from snowmelt.failpoints import Failpoint
from snowmelt.loaders.file_watch import BatchLimits, FileWatch
from snowmelt.loaders.load_task_execution import LocalTaskRunner
from support import forked_processes

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent
BEFORE = [
    Failpoint.WATCH_LISTED,
    Failpoint.LOAD_BEGUN,
    Failpoint.LOAD_TASK,
    Failpoint.LOAD_WRITTEN,
    Failpoint.LOAD_STAGED,
    Failpoint.LOAD_INSIDE_COMMIT,
]
AFTER = [Failpoint.LOAD_COMMITTED, Failpoint.WATCH_LOADED]

CHILD = """
import datetime as dt, sys
from pathlib import Path
from fixtures.chunks import Lakehouse
from fixtures.copy import Copying
from snowmelt.clock import ManualClock
from snowmelt.loaders.file_watch import BatchLimits, FileWatch
from snowmelt.loaders.load_task_execution import LocalTaskRunner

folder, statement = sys.argv[1:]
house = Lakehouse(Path(folder), ManualClock(dt.datetime.now(dt.UTC)))
limits = BatchLimits(age_s=0.0, stable_s=0.0)
watch = FileWatch(Copying(house).context, statement, LocalTaskRunner(), limits=limits)
watch.run_round()
"""


@pytest.fixture
def copying(tmp_path: Path) -> Iterator[Copying]:
    clock = ManualClock(dt.datetime.now(dt.UTC))
    with contextlib.closing(Lakehouse(tmp_path, clock)) as found:
        found.create()
        yield Copying(found)


def statement(copying: Copying) -> str:
    return f"COPY numbers FROM '{copying.folder}/*'"


def watch(copying: Copying, fault: str) -> subprocess.CompletedProcess[Any]:
    return forked_processes.run(
        [
            *(sys.executable, "-c", CHILD, str(copying.house.folder)),
            statement(copying),
        ],
        env={**os.environ, "PYTHONPATH": str(TESTS), "SNOWMELT_FAULT": fault},
        capture_output=True,
        timeout=120,
    )


@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
def test_a_watch_killed_at(point: Failpoint, copying: Copying) -> None:
    for number in range(3):
        copying.file(f"{number}.csv", f"{10 * number}|a\n{10 * number + 1}|b\n")
    copying.file("broken.csv.gz", gzip.compress(b"7|a\n" * 50)[:-9])
    done = watch(copying, f"{point}=kill")
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    loaded = [0, 1, 10, 11, 20, 21]
    assert sorted(copying.house.read_numbers()) == (loaded if point in AFTER else [])
    copying.file("later.csv", "30|c\n")
    limits = BatchLimits(age_s=0.0, stable_s=0.0)
    for _ in range(2):
        # A new watch reads the loaded files from the history.
        FileWatch(copying.context, statement(copying), LocalTaskRunner(), limits=limits).run_round()
        assert sorted(copying.house.read_numbers()) == [*loaded, 30]
