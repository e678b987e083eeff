"""Each benchmark can be started: its imports are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
_FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_each_benchmark_can_be_imported() -> None:
    names = sorted(path.stem for path in _FOLDER.glob("*.py"))
    # One process for all: most of the time is that of the libraries.
    done = subprocess.run(
        [sys.executable, "-c", f"import {', '.join(names)}"],
        cwd=_FOLDER,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
