"""Portions run beside each other in this process, and end together."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fixtures.copy import Copying

# Each command waits until two of them are there.
_BOTH = """ mkdir -p {folder}/here; : > {folder}/here/$$;
 until [ "$(ls {folder}/here | wc -l)" -ge 2 ]; do sleep 0.05; done; cat"""


def command(text: str) -> str:
    return f"FILTER ExternalCommand(cmd = '{text}')"


@pytest.mark.slow
def test_two_portions_run_at_the_same_time(copying: Copying, tmp_path: Path) -> None:
    paths = ", ".join(copying.file(f"{number}.csv", f"{number}|x\n") for number in range(2))
    copied = copying.copy(f"COPY numbers FROM {paths} {command(_BOTH.format(folder=tmp_path))}")
    assert copied.totals.rows == 2
    assert sorted(copying.house.read_numbers()) == [0, 1]


@pytest.mark.slow
def test_more_portions_than_threads_are_all_run(copying: Copying) -> None:
    paths = ", ".join(copying.file(f"{number}.csv", f"{number}|x\n") for number in range(7))
    assert copying.copy(f"COPY numbers FROM {paths}").totals.files == 7
    assert sorted(copying.house.read_numbers()) == list(range(7))


def test_who_interrupts_does_not_wait_for_the_other_portions(
    copying: Copying, tmp_path: Path
) -> None:
    quick, slow = copying.file("quick.csv", "1|x\n"), copying.file("slow.csv", "2|y\n")
    waits = f' read line; case "$line" in 2*) : > {tmp_path}/slow; sleep 1000;; esac; echo "$line"'

    def interrupted(_: Any, __: Any) -> None:
        while not (tmp_path / "slow").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    # A load that waited would exceed the time limit of a test.
    with pytest.raises(KeyboardInterrupt):
        copying.copy(f"COPY numbers FROM {quick}, {slow} {command(waits)}", on_progress=interrupted)
    assert copying.house.read_numbers() == []
    assert copying.states() == ["failed"]


def test_code_of_users_is_never_run_by_two_threads(copying: Copying, tmp_path: Path) -> None:
    library = tmp_path / "lib.py"
    library.write_text(
        "import threading\n"
        "def alone(data):\n"
        "    assert threading.current_thread() is threading.main_thread()\n"
        "    return data\n"
    )
    copying.sql(f"CREATE LIBRARY lib AS '{library}' LANGUAGE 'Python'")
    copying.sql("CREATE FILTER alone AS LANGUAGE 'Python' NAME 'alone' LIBRARY lib")
    paths = ", ".join(copying.file(f"{number}.csv", f"{number}|x\n") for number in range(3))
    assert copying.copy(f"COPY numbers FROM {paths} FILTER alone()").totals.rows == 3
