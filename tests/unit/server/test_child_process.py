"""A child of a service runs while it is needed, and again when it has died."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from snowmelt.clock import ManualClock
from snowmelt.config import Settings
from snowmelt.server.child_process import ChildProgram, ChildSupervisor

# A module that waits for its standard input, which is the pipe of its parent.
PROGRAM = ChildProgram("the waiter", "fileinput", ("-",), min_delay_s=1.0, max_delay_s=3.0)


class Supervised:
    """A supervisor, and what it starts."""

    def __init__(self, folder: Path, child: subprocess.Popen[bytes] | None = None) -> None:
        self.is_needed = True
        self.clock = ManualClock(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
        self.supervisor = ChildSupervisor(
            PROGRAM, Settings.load(folder), self.clock, lambda: self.is_needed, child=child
        )

    @property
    def child(self) -> subprocess.Popen[bytes] | None:
        return self.supervisor._child

    def kill_child(self) -> None:
        assert self.child is not None
        os.kill(self.child.pid, signal.SIGKILL)
        self.child.wait()


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    found = Supervised(tmp_path)
    yield found
    found.supervisor.stop()


def test_a_child_is_started_when_it_is_needed(supervised: Supervised) -> None:
    supervised.is_needed = False
    supervised.supervisor.ensure_running()
    assert supervised.child is None
    supervised.is_needed = True
    supervised.supervisor.ensure_running()
    child = supervised.child
    supervised.supervisor.ensure_running()
    assert supervised.child is child is not None


def test_delays_grow_with_each_death(supervised: Supervised) -> None:
    supervised.supervisor.ensure_running()
    for delay_s in (1.0, 2.0, 3.0, 3.0):
        supervised.kill_child()
        supervised.supervisor.ensure_running()
        supervised.clock.advance(delay_s - 0.1)
        supervised.supervisor.ensure_running()
        assert supervised.child is None
        supervised.clock.advance(0.2)
        supervised.supervisor.ensure_running()
        assert supervised.child is not None
    supervised.clock.advance(PROGRAM.stable_s)
    supervised.kill_child()
    supervised.supervisor.ensure_running()
    supervised.clock.advance(1.1)
    supervised.supervisor.ensure_running()
    assert supervised.child is not None


def test_a_stopped_supervisor_starts_nothing(supervised: Supervised) -> None:
    supervised.supervisor.ensure_running()
    child = supervised.child
    assert child is not None
    supervised.supervisor.end_child()
    assert child.poll() is not None
    supervised.supervisor.ensure_running()
    assert supervised.child is not None
    supervised.supervisor.stop()
    supervised.supervisor.ensure_running()
    assert supervised.child is None


def test_a_released_child_goes_on_under_another_supervisor(
    supervised: Supervised, tmp_path: Path
) -> None:
    supervised.supervisor.ensure_running()
    child = supervised.supervisor.release()
    supervised.supervisor.ensure_running()
    assert supervised.child is None
    other = Supervised(tmp_path, child)
    other.supervisor.ensure_running()
    assert other.child is child is not None
    assert child.poll() is None
    other.supervisor.stop()
    assert child.poll() is not None
