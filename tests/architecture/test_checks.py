"""Style, types and import rules hold; run here so that the test command is all there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "format", "--check", "."],
        ["ruff", "check", "."],
        ["mypy"],
        ["lint-imports"],
        ["codespell", "src", "tests", "benchmarks", "docs", "README.md", "CHANGELOG.md"],
    ],
    ids=lambda command: command[0] + " " + command[1] if len(command) > 1 else command[0],
)
@pytest.mark.slow
def test_check_passes(command: list[str]) -> None:
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
