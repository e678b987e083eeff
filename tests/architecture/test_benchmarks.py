"""Each benchmark can be started: its imports are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
_FOLDER = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in _FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_is_imported_as_it_is_started(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=_FOLDER, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
