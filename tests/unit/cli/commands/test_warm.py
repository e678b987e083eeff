"""`snowmelt warm`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from snowmelt.cli.main import main

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


@pytest.mark.slow
def test_warm_compiles_everything_once(snowmelt_process: Callable[..., Finished]) -> None:
    first, second = snowmelt_process("warm"), snowmelt_process("warm")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    listed = [line for line in first.stdout.splitlines() if line.startswith("compiled ")]
    *_, kernels, classes = first.stdout.splitlines()
    compiled, loaded = count_kernels(kernels)
    # `./run test` has compiled them before; a run of this file alone compiles the missing ones.
    assert (len(listed), compiled + loaded > 30) == (compiled, True)
    assert count_kernels(second.stdout.splitlines()[0]) == (0, compiled + loaded)
    assert classes.startswith("Spark's classes ")


def count_kernels(line: str) -> tuple[int, int]:
    """Return the numbers of compiled and of loaded kernels."""
    found = re.fullmatch(
        r"(\d+) kernels compiled, (\d+) loaded in \d+\.\d s of processor time; kept .*", line
    )
    assert found, line
    return int(found[1]), int(found[2])


def test_its_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["warm", "--help"])
    assert "snowmelt warm" in capsys.readouterr().out.split("examples:")[1]
