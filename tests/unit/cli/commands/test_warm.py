"""`snowmelt warm`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from snowmelt.cli.main import main

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of this test keep what they compile in a folder of its own."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))


@pytest.mark.slow
def test_warm_compiles_everything_once(
    empty_cache: None, snowmelt_process: Callable[..., Finished]
) -> None:
    first, second = snowmelt_process("warm"), snowmelt_process("warm")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    compiled = [line for line in first.stdout.splitlines() if line.startswith("compiled ")]
    assert {"compiled find_records", "compiled frame_objects"} <= set(compiled)
    *_, kernels, classes = first.stdout.splitlines()
    assert re.fullmatch(
        rf"{len(compiled)} kernels compiled, 0 loaded in \d+\.\d s of processor time; kept in .*",
        kernels,
    )
    assert classes.startswith("Spark's classes ")
    assert second.stdout.startswith("0 kernels compiled, ")


def test_its_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["warm", "--help"])
    assert "snowmelt warm" in capsys.readouterr().out.split("examples:")[1]
