"""The command in a folder of its own: called, or as the process that a shell starts."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, cast

import pytest

from snowmelt.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def snowmelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Finished]:
    """Call the command with these arguments in `tmp_path`; the environment has no settings.

    It saves starting a process, most of whose second is imports.
    """

    def run(*arguments: str, given: str = "", **settings: str) -> Finished:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name in [name for name in os.environ if name.startswith("SNOWMELT_")]:
                patch.delenv(name)
            patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
            for name, value in settings.items():
                patch.setenv(f"SNOWMELT_{name.upper()}", value)
            patch.setattr(sys, "stdin", io.StringIO(given))
            capfd.readouterr()
            try:
                code = main(arguments)
            except SystemExit as ended:
                code = cast("int", ended.code)
            except Exception:
                # As the interpreter does with --debug.
                traceback.print_exc()
                code = 1
        said = capfd.readouterr()
        return Finished(arguments, code, said.out, said.err)

    return run


@pytest.fixture
def snowmelt_process(tmp_path: Path) -> Callable[..., Finished]:
    """Run `python -m snowmelt` with these arguments, otherwise as `snowmelt`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SNOWMELT_")}
    environment["XDG_CONFIG_HOME"] = str(tmp_path / "no-config")

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
