"""The real command in a child process, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def snowmelt(tmp_path: Path) -> Callable[..., Finished]:
    """Run `snowmelt` with these arguments in `tmp_path`; the environment has no settings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SNOWMELT_")}

    def run(*arguments: str, given: str | None = None, **settings: str) -> Finished:
        return subprocess.run(
            [sys.executable, "-m", "snowmelt", *arguments],
            cwd=tmp_path,
            env=environment | {f"SNOWMELT_{k.upper()}": v for k, v in settings.items()},
            input=given,
            capture_output=True,
            text=True,
            timeout=280,
        )

    return run
